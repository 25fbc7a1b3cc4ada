//! Pointwise activations and gates, with their slopes.

use burn::tensor::Tensor;
use burn::tensor::activation::{gelu_approximate, leaky_relu, relu, sigmoid, silu};
use rayon::prelude::*;
use strum::{IntoStaticStr, VariantArray};

use crate::math::{self, fma, normal, simd};
use crate::rows::{NUMBERS, ROWS};

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Activation {
    /// x
    Identity,
    /// max(0, x)
    Relu,
    /// max(0, x)^2
    Relu2,
    /// x where positive, 0.01 x elsewhere
    LeakyRelu,
    /// x where positive, e^x - 1 elsewhere
    Elu,
    /// ELU, scaled
    Selu,
    /// x Phi(x)
    Gelu,
    /// GELU by tanh
    GeluTanh,
    /// x sigmoid(1.702 x)
    GeluSigmoid,
    /// x sigmoid(x)
    Silu,
    /// 1 / (1 + e^-x)
    Sigmoid,
}

/// The constants for which SELU keeps mean 0 and variance 1. Klambauer et al., 2017.
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
/// sqrt(2 / pi), of GELU by tanh.
const TANH_SCALE: f32 = 0.797_884_56;
const TANH_CUBE: f32 = 0.044_715;

impl Activation {
    /// The same as a composition of burn's operations.
    pub fn plain<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Activation::Identity => x,
            Activation::Relu => relu(x),
            Activation::Relu2 => relu(x).square(),
            Activation::LeakyRelu => leaky_relu(x, 0.01),
            Activation::Elu => elu(x),
            Activation::Selu => selu(x),
            Activation::Gelu => gelu(x),
            Activation::GeluTanh => gelu_approximate(x),
            Activation::GeluSigmoid => x.clone() * sigmoid(x * 1.702),
            Activation::Silu => silu(x),
            Activation::Sigmoid => sigmoid(x),
        }
    }
}

/// x Phi(x). burn's own has the slope of the tanh form on every backend but flex.
fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let twice_phi = (x.clone() * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0;
    x * twice_phi * 0.5
}

/// burn's own takes exp(x) everywhere, whose gradient is not a number where it overflows.
fn elu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    relu(x.clone()) + (x.clamp_max(0.0).exp() - 1.0)
}

fn selu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    (relu(x.clone()) + (x.clamp_max(0.0).exp() - 1.0) * SELU_ALPHA) * SELU_SCALE
}

/// The value and the slope of an activation at x.
#[inline(always)]
fn at<const F: bool>(activation: Activation, x: f32) -> (f32, f32) {
    let is_positive = x > 0.0;
    // Not-a-number stays what it is: it is not below zero.
    let positive = if x < 0.0 { 0.0 } else { x };
    match activation {
        Activation::Identity => (x, 1.0),
        Activation::Relu => (positive, if is_positive { 1.0 } else { 0.0 }),
        Activation::Relu2 => (positive * positive, 2.0 * positive),
        Activation::LeakyRelu => (if x < 0.0 { 0.01 * x } else { x }, if is_positive { 1.0 } else { 0.01 }),
        Activation::Elu => {
            let e = math::exp::<F>(if is_positive { 0.0 } else { x });
            (if is_positive { x } else { e - 1.0 }, if is_positive { 1.0 } else { e })
        }
        Activation::Selu => {
            let (scale, alpha) = (SELU_SCALE as f32, SELU_ALPHA as f32);
            let e = math::exp::<F>(if is_positive { 0.0 } else { x });
            let (value, slope) = if is_positive { (x, 1.0) } else { (alpha * (e - 1.0), alpha * e) };
            (scale * value, scale * slope)
        }
        Activation::Gelu => {
            let (cumulative, density) = normal::<F>(x);
            (x * cumulative, fma::<F>(x, density, cumulative))
        }
        Activation::GeluTanh => {
            let t = math::tanh::<F>(TANH_SCALE * fma::<F>(TANH_CUBE * x * x, x, x));
            let inner = TANH_SCALE * fma::<F>(3.0 * TANH_CUBE * x, x, 1.0);
            (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)
        }
        Activation::GeluSigmoid => {
            let s = math::sigmoid::<F>(1.702 * x);
            (x * s, fma::<F>(1.702 * x * s, 1.0 - s, s))
        }
        Activation::Silu => {
            let s = math::sigmoid::<F>(x);
            (x * s, fma::<F>(x * s, 1.0 - s, s))
        }
        Activation::Sigmoid => {
            let s = math::sigmoid::<F>(x);
            (s, s * (1.0 - s))
        }
    }
}

/// Calls a macro with each activation as a constant, so that each has a loop of its own.
macro_rules! each {
    ($activation:expr, $loop:ident) => {
        match $activation {
            Activation::Identity => $loop!(Activation::Identity),
            Activation::Relu => $loop!(Activation::Relu),
            Activation::Relu2 => $loop!(Activation::Relu2),
            Activation::LeakyRelu => $loop!(Activation::LeakyRelu),
            Activation::Elu => $loop!(Activation::Elu),
            Activation::Selu => $loop!(Activation::Selu),
            Activation::Gelu => $loop!(Activation::Gelu),
            Activation::GeluTanh => $loop!(Activation::GeluTanh),
            Activation::GeluSigmoid => $loop!(Activation::GeluSigmoid),
            Activation::Silu => $loop!(Activation::Silu),
            Activation::Sigmoid => $loop!(Activation::Sigmoid),
        }
    };
}

/// y = f(x)
pub(crate) fn forward(activation: Activation, x: &[f32], y: &mut [f32]) {
    let parts = (x.par_chunks(NUMBERS), y.par_chunks_mut(NUMBERS));
    parts.into_par_iter().for_each(|(x, y)| values(activation, x, y));
}

/// dx = dy f'(x) in the place of x, and f(x) in that of dy.
pub(crate) fn backward(activation: Activation, x: &mut [f32], dy: &mut [f32]) {
    let parts = (x.par_chunks_mut(NUMBERS), dy.par_chunks_mut(NUMBERS));
    parts.into_par_iter().for_each(|(x, dy)| slopes(activation, x, dy));
}

/// y = f(gate) up; gate and up lie side by side in rows of `2 * width`.
pub(crate) fn gated_forward(activation: Activation, width: usize, gate_up: &[f32], y: &mut [f32]) {
    let rows = (gate_up.par_chunks(2 * width), y.par_chunks_mut(width));
    rows.into_par_iter().with_min_len(ROWS).for_each(|(gate_up, y)| {
        let (gate, up) = gate_up.split_at(width);
        gated_values(activation, gate, up, y);
    });
}

/// dgate = dy up f'(gate) and dup = dy f(gate) in the place of gate and up, and f(gate) up in that of dy.
pub(crate) fn gated_backward(activation: Activation, width: usize, gate_up: &mut [f32], dy: &mut [f32]) {
    let rows = (gate_up.par_chunks_mut(2 * width), dy.par_chunks_mut(width));
    rows.into_par_iter().with_min_len(ROWS).for_each(|(gate_up, dy)| {
        let (gate, up) = gate_up.split_at_mut(width);
        gated_slopes(activation, gate, up, dy);
    });
}

// Arguments of a function do not overlap, and that the compiler must know to make vectors: so rows are taken outside.
simd! {
    fn values<F>(activation: Activation, x: &[f32], y: &mut [f32]) {
        macro_rules! apply {
            ($f:expr) => {
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = at::<F>($f, x).0;
                }
            };
        }
        each!(activation, apply)
    }

    fn slopes<F>(activation: Activation, x: &mut [f32], dy: &mut [f32]) {
        macro_rules! apply {
            ($f:expr) => {
                for (x, dy) in x.iter_mut().zip(dy) {
                    let (value, slope) = at::<F>($f, *x);
                    *x = *dy * slope;
                    *dy = value;
                }
            };
        }
        each!(activation, apply)
    }

    fn gated_values<F>(activation: Activation, gate: &[f32], up: &[f32], y: &mut [f32]) {
        macro_rules! apply {
            ($f:expr) => {
                for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
                    *y = at::<F>($f, gate).0 * up;
                }
            };
        }
        each!(activation, apply)
    }

    fn gated_slopes<F>(activation: Activation, gate: &mut [f32], up: &mut [f32], dy: &mut [f32]) {
        macro_rules! apply {
            ($f:expr) => {
                for ((gate, up), dy) in gate.iter_mut().zip(up).zip(dy) {
                    let (value, slope) = at::<F>($f, *gate);
                    let y = value * *up;
                    *gate = *dy * *up * slope;
                    *up = *dy * value;
                    *dy = y;
                }
            };
        }
        each!(activation, apply)
    }
}
