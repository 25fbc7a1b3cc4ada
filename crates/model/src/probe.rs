//! What goes on inside a decoder: its gradients, its residual stream, its feed-forward units, its norms and its attention.
//!
//! A probe works on copies: what it looks at trains on as if nobody had looked.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use kernels::Kernels;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::attention::Attention;
use crate::{Decoder, FeedForward, Norm};

/// One number for each place of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray, IntoStaticStr, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Measure {
    /// L2 norm of the loss's gradient in the matrices of a block's attention; the loss is the mean of all tokens of the probe.
    GradAttn,
    /// The same in the matrices of its feed-forward.
    GradFfn,
    /// The same in the last matrix of its feed-forward, whose gradient at the start Xiong et al., 2020, derive.
    GradDown,
    /// Of the step before: the L2 norm of its change to the matrices of attention over that of these matrices.
    UpdateAttn,
    /// The same of the feed-forward.
    UpdateFfn,
    /// Root of the mean square of a token's vector, averaged over tokens.
    StreamRms,
    /// Cosine between a token's vectors in front of a block and behind it, averaged over tokens.
    StreamCosine,
    /// Length of what a block changes of a token's vector over the vector's length in front of it, averaged over tokens.
    Contribution,
    /// (sum of l)^2 / (sum of l^2) over the eigenvalues l of the covariance of the tokens' vectors, called the participation ratio:
    /// 1 where all lie on a line, d_model where they spread alike in all directions.
    EffectiveRank,
    /// What the loss gains where a block is left out, in nats per token.
    DropLoss,
    /// Share of a feed-forward's units whose input is positive at no token of the probe; of a gated one, the gate's.
    NeverActive,
    /// The same at no token of the whole validation split, after the last step.
    Dead,
    /// Of the units that were never active at the last look, the share that are active now.
    Revived,
    /// Share of pairs of token and unit at which it is positive.
    Active,
    /// Share of them at which the activation's slope is within 0.01 of zero, so that next to no gradient passes.
    Saturated,
    /// Of pairs of numbers at a norm, in front of it and behind it before gain and bias: R^2 of the best a tanh(b x).
    TanhR2,
    /// R^2 of the best line through the origin.
    LineR2,
    /// 1 over the standard deviation of all numbers that a norm is given.
    InverseStd,
    /// DyT's alpha.
    Alpha,
    /// Share of a token's squared length along the vector of ones, which re-centering removes, averaged over tokens.
    OnesShare,
    /// BatchNorm: distance of the running mean from the batch's in running standard deviations, averaged over features.
    RunningMean,
    /// BatchNorm: |ln| of the batch's variance over the running one, averaged over features.
    RunningVariance,
    /// BatchNorm: loss by the running statistics, as at evaluation.
    EvalLoss,
    /// BatchNorm: loss by the statistics of batches of some windows, as in training.
    TrainLoss,
    /// BatchNorm: how far a token's loss moves when its window shares the batch with other windows, averaged over tokens, in nats.
    MateEffect,
    /// Entropy of a head's attention weights in nats, averaged over queries.
    AttnEntropy,
    /// Standard deviation of a token's logits over the vocabulary, averaged over tokens.
    LogitStd,
}

/// What the values of a measure are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// From 1.
    Block,
    /// 0 is the embedding, and n what is behind block n.
    Stream,
    /// Norms in the order of the forward pass, from 1: attention's and the feed-forward's of each block, then the final one.
    Norm,
    /// The heads of block 1, those of block 2, and so on, from 1.
    Head,
    /// [`BATCH_SIZES`]
    BatchSize,
    /// There is one value.
    Whole,
}

impl Measure {
    pub fn place(self) -> Place {
        use Measure::*;
        match self {
            GradAttn | GradFfn | GradDown | UpdateAttn | UpdateFfn | StreamCosine | Contribution | DropLoss
            | NeverActive | Dead | Revived | Active | Saturated => Place::Block,
            StreamRms | EffectiveRank => Place::Stream,
            TanhR2 | LineR2 | InverseStd | Alpha | OnesShare | RunningMean | RunningVariance => Place::Norm,
            AttnEntropy => Place::Head,
            TrainLoss => Place::BatchSize,
            EvalLoss | MateEffect | LogitStd => Place::Whole,
        }
    }
}

/// The values of each measure, in the order of its places.
pub type Values = BTreeMap<Measure, Vec<f64>>;

/// Windows in a batch of BatchNorm's [`Measure::TrainLoss`].
pub const BATCH_SIZES: [usize; 4] = [1, 2, 4, 8];

/// What a forward pass shows on its way, in the order of the pass.
pub(crate) enum Tap<'a> {
    /// The stream behind a part, with the part's name.
    Stream(std::fmt::Arguments<'a>, &'a Tensor<3>),
    /// A part, and what it is given.
    Norm(&'a Norm, &'a Tensor<3>),
    Attention(&'a Attention, &'a Tensor<3>),
    FeedForward(&'a FeedForward, &'a Tensor<3>),
}

/// Windows of tokens, and the token behind each: `[batch * seq]`.
#[derive(Clone, Copy)]
pub struct Windows<'a> {
    pub inputs: &'a [i32],
    pub targets: &'a [i32],
    pub seq: usize,
}

impl Windows<'_> {
    fn tensors(&self, device: &Device) -> [Tensor<2, Int>; 2] {
        let shape = [self.inputs.len() / self.seq, self.seq];
        [self.inputs, self.targets].map(|ids| Tensor::from_data(TensorData::new(ids.to_vec(), shape), device))
    }
}

impl Decoder {
    /// All measures that a model and some windows give by themselves, and the units that were active.
    pub fn probe(&self, windows: Windows) -> (Values, Units) {
        let still = self.valid();
        let moving = still.clone().train().without_dropout();
        let (mut values, units) = still.look(windows);
        // First, for every pass in training moves its running statistics.
        values.extend(moving.batch_statistics(&still, windows));
        values.extend(moving.gradients(windows));
        (values, units)
    }

    /// As [`Decoder::nll`], adding the units that are active.
    pub fn nll_and_units(&self, inputs: Tensor<2, Int>, targets: Tensor<2, Int>, units: &mut Units) -> Tensor<1> {
        let mut block = 0;
        let last = self.stream(inputs, None, &mut |tap| {
            if let Tap::FeedForward(ffn, x) = tap {
                units.add(block, ffn.activation_input(x.clone()));
                block += 1;
            }
        });
        self.nll_of(last.flatten(0, 1), targets)
    }

    /// What an evaluation shows.
    fn look(&self, windows: Windows) -> (Values, Units) {
        let [inputs, targets] = windows.tensors(&self.devices()[0]);
        let (mut values, mut units) = (Values::new(), Units::default());
        let mut block = 0;
        let mut streams: Vec<Tensor<2>> = vec![];
        let mut push = |measure, value| values.entry(measure).or_insert_with(Vec::new).push(value);
        let last = self.stream(inputs.clone(), None, &mut |tap| match tap {
            Tap::Stream(_, x) => streams.push(x.clone().flatten(0, 1)),
            Tap::Norm(norm, x) => look_at_norm(norm, x, self.kernels(), &mut push),
            Tap::Attention(attn, x) => {
                for entropy in attn.entropies(x.clone()) {
                    push(Measure::AttnEntropy, entropy);
                }
            }
            Tap::FeedForward(ffn, x) => {
                let (input, f) = (ffn.activation_input(x.clone()), ffn.activation());
                push(Measure::Active, mean(input.clone().greater_elem(0.0).float()));
                units.add(block, input.clone());
                block += 1;
                let input = Tensor::from_inner(input).require_grad();
                let slopes = self.kernels().activate(input.clone(), f).sum().backward();
                let slope = input.grad(&slopes).expect("a function of its input");
                push(Measure::Saturated, mean(slope.abs().lower_elem(0.01).float()));
            }
        });
        // The final norm's comes behind those of the blocks.
        streams.truncate(self.n_blocks() + 1);
        for x in &streams {
            push(Measure::StreamRms, mean(x.clone().square().mean_dim(1).sqrt()));
            push(Measure::EffectiveRank, participation_ratio(x.clone()));
        }
        let length = |x: &Tensor<2>| x.clone().square().sum_dim(1).sqrt();
        for pair in streams.windows(2) {
            let [before, behind] = [&pair[0], &pair[1]];
            let product = (before.clone() * behind.clone()).sum_dim(1);
            push(Measure::StreamCosine, mean(product / (length(before) * length(behind))));
            push(Measure::Contribution, mean(length(&(behind.clone() - before.clone())) / length(before)));
        }
        let logits = last.clone().flatten::<2>(0, 1).matmul(self.head());
        push(Measure::LogitStd, mean((logits.clone() - logits.mean_dim(1)).square().mean_dim(1).sqrt()));
        let loss = |hidden: Tensor<3>| mean(self.nll_of(hidden.flatten(0, 1), targets.clone()));
        let whole = loss(last);
        for block in 0..self.n_blocks() {
            push(Measure::DropLoss, loss(self.stream(inputs.clone(), Some(block), &mut |_| {})) - whole);
        }
        values.insert(Measure::NeverActive, units.never_active());
        (values, units)
    }

    /// Gradients of the loss in training.
    fn gradients(&self, windows: Windows) -> Values {
        let [inputs, targets] = windows.tensors(&self.devices()[0]);
        let grads = self.nll(inputs, targets).mean().backward();
        let grads = Matrices::of(self, Some(&grads));
        let parts = [(Measure::GradAttn, "attn."), (Measure::GradFfn, "ffn."), (Measure::GradDown, "ffn.down.")];
        parts.map(|(measure, part)| (measure, grads.lengths(self.n_blocks(), part))).into()
    }

    /// What statistics of a batch do in training, where there are any.
    fn batch_statistics(&self, still: &Decoder, windows: Windows) -> Values {
        let device = &self.devices()[0];
        let mut values = Values::new();
        let mut push = |measure, value| values.entry(measure).or_insert_with(Vec::new).push(value);
        let [inputs, targets] = windows.tensors(device);
        let mut has_statistics = false;
        self.stream(inputs.clone(), None, &mut |tap| {
            if let Tap::Norm(Norm::BatchNorm(norm), x) = tap {
                has_statistics = true;
                let [means, variances] = norm.distances(x.clone().inner());
                push(Measure::RunningMean, means);
                push(Measure::RunningVariance, variances);
            }
        });
        if !has_statistics {
            return values;
        }
        let [eval_inputs, eval_targets] = windows.tensors(&still.devices()[0]);
        push(Measure::EvalLoss, mean(still.nll(eval_inputs, eval_targets)));
        let n = windows.inputs.len() / windows.seq;
        // Of each window the loss of each token, in batches of these windows.
        let losses = |batch: &[usize]| {
            let index = Tensor::<1, Int>::from_data(TensorData::from(&*to_i32(batch)), device);
            let pick = |ids: &Tensor<2, Int>| ids.clone().select(0, index.clone());
            self.nll(pick(&inputs), pick(&targets)).inner()
        };
        let all: Vec<usize> = (0..n).collect();
        for size in BATCH_SIZES {
            let parts: Vec<Tensor<1>> = all.chunks(size).map(losses).collect();
            push(Measure::TrainLoss, mean(Tensor::cat(parts, 0)));
        }
        if n > 3 {
            // Halves of neighbours, then halves of every other window: each keeps about half of its companions.
            let (first, second) = all.split_at(n / 2);
            let neighbours = Tensor::cat(vec![losses(first), losses(second)], 0).reshape([n, windows.seq]);
            let (even, odd): (Vec<usize>, Vec<usize>) = all.iter().partition(|&&i| i % 2 == 0);
            let mixed = Tensor::cat(vec![losses(&even), losses(&odd)], 0).reshape([n, windows.seq]);
            let order = to_i32(&[even, odd].concat());
            let order = Tensor::<1, Int>::from_data(TensorData::from(&*order), &neighbours.device());
            push(Measure::MateEffect, mean((neighbours.select(0, order) - mixed).abs()));
        }
        values
    }
}

fn to_i32(numbers: &[usize]) -> Vec<i32> {
    numbers.iter().map(|&i| i as i32).collect()
}

fn mean<const D: usize>(x: Tensor<D>) -> f64 {
    x.mean().into_scalar::<f64>()
}

fn square<const D: usize>(x: Tensor<D>) -> f64 {
    x.square().sum().into_scalar::<f64>()
}

/// [`Measure::EffectiveRank`] of the rows of x: the trace of their covariance C, squared, over that of C C.
fn participation_ratio(x: Tensor<2>) -> f64 {
    let centered = x.clone() - x.mean_dim(0);
    let covariance = centered.clone().transpose().matmul(centered.clone());
    square(centered).powi(2) / square(covariance)
}

/// Matrices of the blocks, or their gradients, as rows of numbers under their paths.
struct Matrices<'a> {
    grads: Option<&'a Gradients>,
    path: Vec<String>,
    all: Vec<(String, Tensor<1>)>,
}

impl<'a> Matrices<'a> {
    fn of(decoder: &Decoder, grads: Option<&'a Gradients>) -> Self {
        let mut matrices = Matrices { grads, path: vec![], all: vec![] };
        decoder.visit(&mut matrices);
        matrices
    }

    /// L2 norm over those of a part of each block.
    fn lengths(&self, n_blocks: usize, part: &str) -> Vec<f64> {
        let mut squares = vec![0.0; n_blocks];
        for (path, numbers) in &self.all {
            if let Some((block, rest)) = path.split_once('.')
                && rest.starts_with(part)
            {
                let block: usize = block.parse().expect("blocks are numbered");
                squares[block] += square(numbers.clone());
            }
        }
        squares.into_iter().map(f64::sqrt).collect()
    }
}

impl ModuleVisitor for Matrices<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join(".");
        let Some(path) = path.strip_prefix("blocks.").filter(|_| D == 2) else { return };
        let numbers = match self.grads {
            Some(grads) => param.val().grad(grads).expect("every matrix has a gradient"),
            None => param.val().inner(),
        };
        self.all.push((path.into(), numbers.flatten(0, D - 1)));
    }
}

/// [`Measure::UpdateAttn`] and [`Measure::UpdateFfn`] of a step that has made one model of the other.
pub fn updates(before: &Decoder, behind: &Decoder) -> Values {
    let (old, mut change) = (Matrices::of(before, None), Matrices::of(behind, None));
    for ((_, new), (_, old)) in change.all.iter_mut().zip(&old.all) {
        *new = new.clone() - old.clone();
    }
    let ratios = |part| {
        let lengths = |matrices: &Matrices| matrices.lengths(before.n_blocks(), part);
        lengths(&change).into_iter().zip(lengths(&old)).map(|(change, old)| change / old).collect()
    };
    [(Measure::UpdateAttn, "attn."), (Measure::UpdateFfn, "ffn.")].map(|(measure, part)| (measure, ratios(part))).into()
}

/// Which units of each feed-forward have been active, their input being positive at some token.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Units(Vec<Vec<bool>>);

impl Units {
    /// Adds what the activation of a block is given, `[n_tokens, d_ff]`.
    fn add(&mut self, block: usize, input: Tensor<2>) {
        let highest: Vec<f32> = input.max_dim(0).into_data().try_into_vec().expect("floats of 32 bits");
        if block == self.0.len() {
            self.0.push(vec![false; highest.len()]);
        }
        self.0[block].iter_mut().zip(highest).for_each(|(active, highest)| *active |= highest > 0.0);
    }

    /// Of each block, the units that have not been active.
    pub fn silent(&self) -> Vec<Vec<usize>> {
        let silent = |units: &Vec<bool>| (0..units.len()).filter(|&unit| !units[unit]).collect();
        self.0.iter().map(silent).collect()
    }

    /// Of each block, the share of units that have not been active.
    pub fn never_active(&self) -> Vec<f64> {
        let share = |(silent, units): (Vec<usize>, &Vec<bool>)| silent.len() as f64 / units.len() as f64;
        self.silent().into_iter().zip(&self.0).map(share).collect()
    }
}

fn look_at_norm(norm: &Norm, x: &Tensor<3>, kernels: Kernels, push: &mut impl FnMut(Measure, f64)) {
    let [_, _, d_model] = x.dims();
    let sum = x.clone().sum_dim(2);
    push(Measure::OnesShare, mean(sum.square() / (x.clone().square().sum_dim(2) * d_model as f64)));
    let deviation = mean((x.clone() - x.clone().mean().unsqueeze()).square()).sqrt();
    push(Measure::InverseStd, 1.0 / deviation);
    if let Norm::Dyt(dyt) = norm {
        push(Measure::Alpha, mean(dyt.alpha()));
    }
    let bare = norm.clone().map(&mut Bare { path: vec![] });
    let [x, y] = [x.clone(), bare.forward(x.clone(), kernels)].map(some);
    let fits = Fits::of(&x, &y);
    push(Measure::TanhR2, fits.tanh(deviation));
    push(Measure::LineR2, fits.line());
}

/// Takes gain and bias from a norm.
struct Bare {
    path: Vec<String>,
}

impl ModuleMapper for Bare {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.path.last().map(String::as_str) {
            Some("gamma") => param.map(|x| x.ones_like()),
            Some("beta") => param.map(|x| x.zeros_like()),
            _ => param,
        }
    }
}

/// Numbers that a fit is made of: enough for three digits of R^2.
const N_FITTED: usize = 4096;

/// Some numbers of a tensor, of all rows and columns alike.
fn some(x: Tensor<3>) -> Vec<f64> {
    let all: Vec<f32> = x.into_data().try_into_vec().expect("floats of 32 bits");
    // An odd stride meets all columns of a width that is a power of two.
    let stride = (all.len() / N_FITTED) | 1;
    all.into_iter().step_by(stride).map(f64::from).collect()
}

/// Pairs to which curves through the origin are fitted.
struct Fits<'a> {
    x: &'a [f64],
    y: &'a [f64],
    /// Sum of y^2, and that around its mean.
    squares: f64,
    around_mean: f64,
}

impl<'a> Fits<'a> {
    fn of(x: &'a [f64], y: &'a [f64]) -> Self {
        let squares = y.iter().map(|y| y * y).sum::<f64>();
        let mean = y.iter().sum::<f64>() / y.len() as f64;
        Fits { x, y, squares, around_mean: squares - y.len() as f64 * mean * mean }
    }

    /// R^2 of the best multiple of f(x): the sum of squares that it leaves is that of y less (y f)^2 / (f f).
    fn r2(&self, f: impl Fn(f64) -> f64) -> f64 {
        let (mut yf, mut ff) = (0.0, 0.0);
        for (&x, y) in self.x.iter().zip(self.y) {
            let f = f(x);
            yf += y * f;
            ff += f * f;
        }
        1.0 - (self.squares - yf * yf / ff) / self.around_mean
    }

    fn line(&self) -> f64 {
        self.r2(|x| x)
    }

    /// R^2 of the best a tanh(b x), where b x is between nearly straight and nearly a step at one standard deviation.
    fn tanh(&self, deviation: f64) -> f64 {
        let r2 = |log: f64| self.r2(|x| (log.exp() / deviation * x).tanh());
        let grid: Vec<f64> = (-18..=18).map(|i| 0.25 * f64::from(i)).collect();
        let best = grid.into_iter().max_by(|&a, &b| r2(a).total_cmp(&r2(b))).expect("not empty");
        // Golden section between the neighbours of the best.
        const GOLDEN: f64 = 0.618_033_988_749_894_9;
        let (mut low, mut high) = (best - 0.25, best + 0.25);
        for _ in 0..20 {
            let (left, right) = (high - GOLDEN * (high - low), low + GOLDEN * (high - low));
            if r2(left) < r2(right) {
                low = left;
            } else {
                high = right;
            }
        }
        r2((low + high) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;
    use crate::config::tests::tiny;
    use crate::decoder::tests::of_fixture;
    use serde_json::Value;

    #[test]
    fn every_measure_is_pytorch_s() {
        let cases: Vec<Value> = serde_json::from_str(include_str!("../tests/fixtures/probe.json")).unwrap();
        let device = Device::flex().autodiff();
        for (case, kernels) in
            cases.iter().flat_map(|case| Kernels::VARIANTS.iter().map(move |&kernels| (case, kernels)))
        {
            let decoder = of_fixture(case, kernels, &device);
            let rows: Vec<Vec<i32>> = serde_json::from_value(case["tokens"].clone()).unwrap();
            let inputs: Vec<i32> = rows.iter().flat_map(|row| row[..6].to_vec()).collect();
            let targets: Vec<i32> = rows.iter().flat_map(|row| row[1..].to_vec()).collect();
            let windows = Windows { inputs: &inputs, targets: &targets, seq: 6 };
            let (found, units) = decoder.probe(windows);
            let still = decoder.valid();
            let [inputs, targets] = windows.tensors(&still.devices()[0]);
            let mut seen = Units::default();
            let nll = still.nll_and_units(inputs.clone(), targets.clone(), &mut seen);
            assert_eq!(seen, units);
            assert_eq!(nll.into_data(), still.nll(inputs, targets).into_data());
            let expected: BTreeMap<Measure, Vec<f64>> = serde_json::from_value(case["measures"].clone()).unwrap();
            assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
            for (measure, found) in found {
                let expected = &expected[&measure];
                assert_eq!(found.len(), expected.len(), "{measure:?}");
                for (found, expected) in found.iter().zip(expected) {
                    let error = (found - expected).abs() / expected.abs().max(0.1);
                    assert!(error < 2e-5, "{measure:?}: {found} against {expected}, {kernels:?}: {}", case["model"]);
                }
            }
        }
        use Measure::{Dead, Revived, UpdateAttn, UpdateFfn};
        let is_of_a_run = |measure: &&Measure| matches!(measure, UpdateAttn | UpdateFfn | Revived | Dead);
        for measure in Measure::VARIANTS.iter().filter(|measure| !is_of_a_run(measure)) {
            let name: &str = measure.into();
            assert!(cases.iter().any(|case| case["measures"].get(name).is_some()), "no case for {name}");
        }
    }

    #[test]
    fn a_step_is_measured_by_what_it_changes() {
        struct Grow(Vec<String>);
        impl ModuleMapper for Grow {
            fn enter_module(&mut self, name: &str, _container: &str) {
                self.0.push(name.into());
            }
            fn exit_module(&mut self, _name: &str, _container: &str) {
                self.0.pop();
            }
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let by = if self.0.iter().any(|name| name == "attn") { 1.25 } else { 0.5 };
                param.map(|x| x * by)
            }
        }
        let before = tiny().init(11, 0, Kernels::Fused, &Device::flex().autodiff());
        let found = updates(&before, &before.clone().map(&mut Grow(vec![])));
        for (measure, expected) in [(Measure::UpdateAttn, 0.25), (Measure::UpdateFfn, 0.5)] {
            assert_eq!(found[&measure].len(), 2);
            assert!(found[&measure].iter().all(|found| (found - expected).abs() < 1e-6), "{found:?}");
        }
    }

    #[test]
    fn the_stream_has_as_many_dimensions_as_its_covariance() {
        let device = Device::flex();
        let rows = |rows: [[f32; 3]; 6]| participation_ratio(Tensor::from_data(rows, &device));
        let [x, y, z] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
        let minus = |v: [f32; 3]| v.map(|x| -x);
        assert!((rows([x, minus(x), y, minus(y), z, minus(z)]) - 3.0).abs() < 1e-6);
        // Where all tokens lie does not matter.
        let away = |v: [f32; 3]| [v[0] + 7.0, v[1], v[2]];
        assert!((rows([x, minus(x), x, minus(x), x, minus(x)].map(away)) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn looking_changes_nothing() {
        let device = Device::flex().autodiff();
        let weights = |decoder: &Decoder| -> Vec<Vec<f32>> {
            struct All(Vec<Vec<f32>>);
            impl ModuleVisitor for All {
                fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                    self.0.push(param.val().into_data().try_into_vec().unwrap());
                }
            }
            let mut all = All(vec![]);
            // Running statistics are brought up to date by this.
            decoder.valid().visit(&mut all);
            all.0
        };
        let tokens: Vec<i32> = (0..32).map(|i| i * 5 % 11).collect();
        let windows = Windows { inputs: &tokens, targets: &tokens, seq: 8 };
        for &norm in crate::NormKind::VARIANTS {
            let decoder = ModelConfig { norm, dropout: 0.1, ..tiny() }.init(11, 0, Kernels::Fused, &device);
            let before = weights(&decoder);
            let (first, second) = (decoder.probe(windows), decoder.probe(windows));
            assert_eq!(format!("{first:?}"), format!("{second:?}"), "no dropout, no state: {norm:?}");
            assert_eq!(weights(&decoder), before, "{norm:?}");
        }
    }
}
