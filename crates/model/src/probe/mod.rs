//! What goes on inside a decoder: its gradients, its residual stream, its feed-forward units, its norms and its attention.
//!
//! A probe works on copies: what it looks at trains on as if nobody had looked.

mod matrices;
mod measure;
mod norms;
mod units;

use std::collections::BTreeMap;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor, TensorData};

pub use matrices::updates;
pub use measure::{Measure, Place};
pub use units::Units;

use crate::pass::Hook;
use crate::{Decoder, Norm, is_finite};
use measure::BATCH_SIZES;

/// The values of each measure, in the order of its places. Not a number where one is not defined.
pub type Values = BTreeMap<Measure, Vec<f64>>;

/// Windows of tokens, and the token after each: `[batch, seq]` row by row.
#[derive(Clone, Copy)]
pub struct Windows<'a> {
    pub inputs: &'a [i32],
    pub targets: &'a [i32],
    pub seq: usize,
}

impl Windows<'_> {
    fn len(&self) -> usize {
        self.inputs.len() / self.seq
    }

    fn tensors(&self, device: &Device) -> [Tensor<2, Int>; 2] {
        let shape = [self.len(), self.seq];
        [self.inputs, self.targets].map(|ids| Tensor::from_data(TensorData::new(ids.to_vec(), shape), device))
    }
}

impl Decoder {
    /// All measures that a model in training and some windows give by themselves, and the units that were active. Two copies are
    /// looked at: one as at evaluation, and one in training without dropout, for gradients and for statistics of batches.
    pub fn probe(&self, windows: Windows) -> (Values, Units) {
        let eval = self.valid();
        let (mut values, units) = eval.look(windows);
        let train = eval.train().without_dropout();
        if train.has_batch_statistics() {
            // First, for every pass in training moves its running statistics.
            values.extend(train.batch_statistics(windows));
        }
        values.extend(train.gradients(windows));
        (values, units)
    }

    /// As [`Decoder::nll`], adding the units that are active.
    pub fn nll_and_units(&self, inputs: Tensor<2, Int>, targets: Tensor<2, Int>, units: &mut Units) -> Tensor<1> {
        let mut block = 0;
        let last = self.stream(inputs, &mut |hook| {
            if let Hook::FeedForward(ffn, x) = hook {
                units.add(block, ffn.activation_input(x.clone()));
                block += 1;
            }
        });
        self.nll_of(last, targets)
    }

    /// What an evaluation shows.
    fn look(&self, windows: Windows) -> (Values, Units) {
        let [inputs, targets] = windows.tensors(&self.devices()[0]);
        let (mut values, mut units) = (Values::new(), Units::default());
        let mut block = 0;
        let mut streams: Vec<Tensor<3>> = vec![];
        let mut push = |measure: Measure, value: f64| values.entry(measure).or_default().push(value);
        let last = self.stream(inputs, &mut |hook| match hook {
            Hook::Stream(_, x) => streams.push(x.clone()),
            Hook::Norm(norm, x) => norms::measure(norm, x, self.kernels, &mut push),
            Hook::Attention(attn, x) => {
                for entropy in attn.entropies(x.clone()) {
                    push(Measure::AttnEntropy, entropy);
                }
            }
            Hook::FeedForward(ffn, x) => {
                let input = ffn.activation_input(x.clone());
                units.add(block, input.clone());
                block += 1;
                push(Measure::Active, mean(input.clone().greater_elem(0.0).float()));
                let input = Tensor::from_inner(input).require_grad();
                let slopes = self.kernels.activate(input.clone(), ffn.ffn.activation()).sum().backward();
                let slope = input.grad(&slopes).expect("a function of its input");
                push(Measure::Saturated, mean(slope.abs().lower_elem(FLAT).float()));
            }
        });
        // Window by window, for the logits of a large vocabulary are the largest of all.
        let deviations = (0..windows.len()).map(|i| {
            let logits = last.clone().narrow(0, i, 1).flatten::<2>(0, 1).matmul(self.head());
            mean((logits.clone() - logits.mean_dim(1)).square().mean_dim(1).sqrt())
        });
        push(Measure::LogitStd, deviations.sum::<f64>() / windows.len() as f64);
        let loss = |last| mean(self.nll_of(last, targets.clone()));
        let whole = loss(last);
        if self.has_batch_statistics() {
            push(Measure::EvalLoss, whole);
        }
        // After the blocks comes the final norm's.
        streams.truncate(self.blocks.len() + 1);
        for x in &streams {
            push(Measure::StreamRms, mean(x.clone().square().mean_dim(2).sqrt()));
            push(Measure::EffectiveRank, participation_ratio(x.clone().flatten(0, 1)));
        }
        for (block, pair) in streams.windows(2).enumerate() {
            let [before, after] = [&pair[0], &pair[1]];
            let [product, change] = [before.clone() * after.clone(), after.clone() - before.clone()];
            let [before_length, after_length, change] =
                [before, after, &change].map(|x| x.clone().square().sum_dim(2).sqrt());
            // Where a square overflows, something finite over infinity would be zero.
            let is_sound = is_finite(before_length.clone()) && is_finite(after_length.clone());
            let sound = |x: Tensor<3>| if is_sound { mean(x) } else { f64::NAN };
            push(Measure::StreamCosine, sound(product.sum_dim(2) / (before_length.clone() * after_length)));
            push(Measure::Contribution, sound(change / before_length));
            push(Measure::DropLoss, loss(self.blocks_from(block + 1, before.clone(), &mut |_| {})) - whole);
        }
        values.insert(Measure::NeverActive, units.never_active());
        (values, units)
    }

    /// Gradients of the loss in training.
    fn gradients(&self, windows: Windows) -> Values {
        let [inputs, targets] = windows.tensors(&self.devices()[0]);
        let grads = self.nll(inputs, targets).mean().backward();
        matrices::gradients(self, &GradientsParams::from_grads(grads, self))
    }

    /// What statistics of a batch do in training.
    fn batch_statistics(&self, windows: Windows) -> Values {
        let device = &self.devices()[0];
        let mut values = Values::new();
        let mut push = |measure: Measure, value: f64| values.entry(measure).or_default().push(value);
        let [inputs, targets] = windows.tensors(device);
        self.stream(inputs.clone(), &mut |hook| {
            if let Hook::Norm(Norm::BatchNorm(norm), x) = hook {
                let [means, variances] = norm.distances(x.clone().inner());
                push(Measure::RunningMean, means);
                push(Measure::RunningVariance, variances);
            }
        });
        // The loss of each token of these windows in one batch, `[n, seq]`.
        let losses = |batch: &[usize]| {
            let index = Tensor::<1, Int>::from_data(TensorData::from(&*to_i32(batch)), device);
            let pick = |ids: &Tensor<2, Int>| ids.clone().select(0, index.clone());
            self.nll(pick(&inputs), pick(&targets)).inner().reshape([batch.len(), windows.seq])
        };
        let all: Vec<usize> = (0..windows.len()).collect();
        for size in BATCH_SIZES.into_iter().filter(|&size| size <= all.len()) {
            let parts: Vec<Tensor<2>> = all.chunks(size).map(losses).collect();
            push(Measure::TrainLoss, mean(Tensor::cat(parts, 0)));
        }
        if all.len() > 3 {
            // Halves of neighbours, then halves of every other window: each keeps about half of its companions.
            let (first, second) = all.split_at(all.len() / 2);
            let neighbours = Tensor::cat(vec![losses(first), losses(second)], 0);
            let (even, odd): (Vec<usize>, Vec<usize>) = all.iter().partition(|&&i| i % 2 == 0);
            let mixed = Tensor::cat(vec![losses(&even), losses(&odd)], 0);
            let order = to_i32(&[even, odd].concat());
            let order = Tensor::<1, Int>::from_data(TensorData::from(&*order), &neighbours.device());
            push(Measure::MateEffect, mean((neighbours.select(0, order) - mixed).abs()));
        }
        values
    }
}

/// A slope through which next to no gradient passes.
const FLAT: f64 = 0.005;

fn to_i32(numbers: &[usize]) -> Vec<i32> {
    numbers.iter().map(|&i| i as i32).collect()
}

/// The numbers of a tensor, summed one after the other, for a sum must not depend on the number of threads.
fn sum<const D: usize>(x: Tensor<D>) -> f64 {
    let numbers: Vec<f32> = x.into_data().try_into_vec().expect("floats of 32 bits");
    numbers.into_iter().map(f64::from).sum()
}

fn mean<const D: usize>(x: Tensor<D>) -> f64 {
    let n = x.shape().num_elements();
    sum(x) / n as f64
}

fn square<const D: usize>(x: Tensor<D>) -> f64 {
    sum(x.square())
}

/// [`Measure::EffectiveRank`] of the rows of x: the trace of their covariance C, squared, over that of C C.
fn participation_ratio(x: Tensor<2>) -> f64 {
    let centered = x.clone() - x.mean_dim(0);
    // It depends on no scale, and this one keeps squares in range.
    let scaled = centered.clone() / mean(centered.square()).sqrt();
    let covariance = scaled.clone().transpose().matmul(scaled.clone());
    square(scaled).powi(2) / square(covariance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;
    use crate::config::tests::tiny;
    use crate::decoder::tests::of_fixture;
    use burn::module::{ModuleMapper, ModuleVisitor, Param};
    use kernels::Kernels;
    use serde_json::Value;
    use strum::VariantArray;

    #[test]
    fn every_measure_is_pytorch_s() {
        let cases: Vec<Value> = serde_json::from_str(include_str!("../../tests/fixtures/probe.json")).unwrap();
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
        // Nor how large they are, up to where squares overflow.
        let large = |v: [f32; 3]| v.map(|x| x * 1e12);
        assert!((rows([x, minus(x), y, minus(y), z, minus(z)].map(large)) - 3.0).abs() < 1e-5);
        let overflowing = |v: [f32; 3]| v.map(|x| x * 1e30);
        assert!(rows([x, minus(x), y, minus(y), z, minus(z)].map(overflowing)).is_nan());
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
