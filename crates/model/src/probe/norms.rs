//! What a norm does to the numbers that it is given.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use kernels::Kernels;

use super::{Measure, mean};
use crate::Norm;

/// Measures a norm and its input, `[batch, seq, d_model]`.
pub(super) fn measure(norm: &Norm, x: &Tensor<3>, kernels: Kernels, push: &mut impl FnMut(Measure, f64)) {
    let [_, _, d_model] = x.dims();
    let sum = x.clone().sum_dim(2);
    push(Measure::OnesShare, mean(sum.square() / (x.clone().square().sum_dim(2) * d_model as f64)));
    let deviation = mean((x.clone() - mean(x.clone())).square()).sqrt();
    push(Measure::InverseStd, 1.0 / deviation);
    if let Norm::Dyt(dyt) = norm {
        push(Measure::Alpha, mean(dyt.alpha.val()));
    }
    let bare = norm.clone().map(&mut Bare(String::new()));
    let [x, y] = [x.clone(), bare.forward(x.clone(), kernels)].map(some);
    push(Measure::TanhR2, tanh_r2(&x, &y, deviation));
    push(Measure::LineR2, r2(&x, &y, |x| x));
}

/// Takes gain and bias from a norm: the name of the parameter that it is at.
struct Bare(String);

impl ModuleMapper for Bare {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.0 = name.into();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.0.as_str() {
            "gamma" => param.map(|x| x.ones_like()),
            "beta" => param.map(|x| x.zeros_like()),
            _ => param,
        }
    }
}

/// Numbers that a fit is made of: enough for two digits of R^2.
const N_FITTED: usize = 4096;

/// Some numbers of a tensor, of all columns alike.
fn some(x: Tensor<3>) -> Vec<f64> {
    let [.., width] = x.dims();
    let all: Vec<f32> = x.into_data().try_into_vec().expect("floats of 32 bits");
    let least = (all.len() / N_FITTED).max(1);
    // A stride without a factor in common with the width comes to every column.
    let stride = (least..).find(|&stride| gcd(stride, width) == 1).expect("the next prime, at the latest");
    all.into_iter().step_by(stride).map(f64::from).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// R^2 of the best y = a f(x): the sum of squares that it leaves is that of y less (y f)^2 / (f f).
fn r2(x: &[f64], y: &[f64], f: impl Fn(f64) -> f64) -> f64 {
    let (mut sum, mut yy, mut yf, mut ff) = (0.0, 0.0, 0.0, 0.0);
    for (&x, &y) in x.iter().zip(y) {
        let f = f(x);
        sum += y;
        yy += y * y;
        yf += y * f;
        ff += f * f;
    }
    1.0 - (yy - yf * yf / ff) / (yy - sum * sum / y.len() as f64)
}

/// R^2 of the best y = a tanh(b x), where b x is between nearly straight and nearly a step at one standard deviation.
fn tanh_r2(x: &[f64], y: &[f64], deviation: f64) -> f64 {
    let at = |log: f64| r2(x, y, |x| (log.exp() / deviation * x).tanh());
    let grid = (-18..=18).map(|i| 0.25 * f64::from(i));
    let best = grid.max_by(|&a, &b| at(a).total_cmp(&at(b))).expect("not empty");
    // Golden section between the neighbours of the best.
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let (mut low, mut high) = (best - 0.25, best + 0.25);
    for _ in 0..20 {
        let (left, right) = (high - GOLDEN * (high - low), low + GOLDEN * (high - low));
        if at(left) < at(right) {
            low = left;
        } else {
            high = right;
        }
    }
    at((low + high) / 2.0)
}
