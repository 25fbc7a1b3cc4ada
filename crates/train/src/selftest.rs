//! Whether a backend computes what the CPU computes.

use std::collections::BTreeMap;

use anyhow::Result;
use burn::tensor::{Device, Tensor};
use data::Batch;
use kernels::Kernels;
use model::{Ffn, ModelConfig, NormKind, NormPlacement, Position, named};
use random::{below, stream};

use crate::learner::{PendingLoss, compute, learner, update};
use crate::operations::{normal, operations};
use crate::{Backend, RunConfig, TrainConfig};

/// How far a backend is from the CPU in one thing.
#[derive(Clone, Debug)]
pub struct Agreement {
    pub name: String,
    /// Largest difference, as a share of the largest number.
    pub difference: f64,
    pub tolerance: f64,
}

impl Agreement {
    pub fn holds(&self) -> bool {
        // Not the other way round: a NaN agrees with nothing.
        self.difference <= self.tolerance
    }
}

/// Of one operation or one gradient: sums of some hundred 32-bit products in another order, and other ways to an exponential. Found
/// were 6e-7 for operations and 1e-5 for gradients, on a CPU behind Vulkan.
const OPERATION: f64 = 1e-4;

/// Of the losses of [`STEPS`] training steps, through which differences grow. Found were 3e-7.
const TRAINED: f64 = 1e-3;

const STEPS: usize = 50;

const VOCAB: usize = 64;

/// Compares a backend with flex: each operation with its gradient, then of four models the loss of each token, every gradient, and the
/// losses of 50 training steps. `base` is a valid run of any kind.
///
/// # Errors
/// A backend that is not built in, or has no device.
pub fn selftest(backend: Backend, base: &RunConfig) -> Result<Vec<Agreement>> {
    let [ours, theirs] = [Backend::Flex.device()?.autodiff(), backend.device()?.autodiff()];
    let mut all = vec![];
    let runs = runs(base);
    let (_, llama) = &runs[1];
    for (a, b) in operations(llama, &ours).iter().zip(operations(llama, &theirs)) {
        let on = |device: &Device, apply: &dyn Fn(Tensor<3>, Kernels) -> Tensor<3>| {
            let x = normal(a.name, a.dims, 1.0, device).require_grad();
            let y = apply(x.clone(), Kernels::Plain);
            // Each number counts another amount, so that no gradient cancels out.
            let weights = normal("weights", y.dims(), 1.0, device);
            let grads = (y.clone() * weights).sum().backward();
            let grad = x.grad(&grads).expect("the input has a gradient");
            (numbers(y), numbers(grad))
        };
        let ((y, dx), (y_there, dx_there)) = (on(&ours, &*a.apply), on(&theirs, &*b.apply));
        all.push(agreement(format!("{}, forward", a.name), &y, &y_there, OPERATION));
        all.push(agreement(format!("{}, backward", a.name), &dx, &dx_there, OPERATION));
    }
    for (name, config) in &runs {
        let ((first, losses), (first_there, losses_there)) = (train(config, &ours), train(config, &theirs));
        for (what, numbers) in &first {
            all.push(agreement(format!("{name}: {what}"), numbers, &first_there[what], OPERATION));
        }
        all.push(agreement(format!("{name}: {STEPS} steps"), &losses, &losses_there, TRAINED));
    }
    Ok(all)
}

/// Small runs of each kind of model, by name.
fn runs(base: &RunConfig) -> [(&'static str, RunConfig); 4] {
    let gpt2 = ModelConfig {
        seq_len: 32,
        d_model: 64,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 4,
        d_ff: 128,
        norm: NormKind::LayerNorm,
        norm_placement: NormPlacement::Pre,
        ffn: Ffn::Gelu,
        position: Position::Learned,
        dropout: 0.0,
        ..base.model.clone()
    };
    let llama = ModelConfig {
        norm: NormKind::RmsNorm,
        ffn: Ffn::SwiGlu,
        position: Position::Rope,
        n_kv_heads: 2,
        ..gpt2.clone()
    };
    let post = ModelConfig { norm_placement: NormPlacement::Post, ..gpt2.clone() };
    let dyt = ModelConfig { norm: NormKind::Dyt, ..gpt2.clone() };
    let train = TrainConfig {
        steps: STEPS,
        batch_size: 4,
        lr: 1e-3,
        warmup_steps: 5,
        grad_clip: 0.5,
        grad_accum_steps: 2,
        ..base.train.clone()
    };
    let run = RunConfig { kernels: Kernels::Plain, vocab_size: VOCAB, train, ..base.clone() };
    [("GPT-2-like", gpt2), ("Llama-like", llama), ("Post-LN", post), ("DyT", dyt)]
        .map(|(name, model)| (name, RunConfig { model, ..run.clone() }))
}

/// Every clipped gradient of the first step and their norm, by name, and the losses of all steps.
fn train(config: &RunConfig, device: &Device) -> (BTreeMap<String, Vec<f64>>, Vec<f64>) {
    let mut learner = learner(config, device);
    // As a run on a GPU does it.
    let (mut first, mut pending) = (BTreeMap::new(), vec![]);
    for step in 0..STEPS {
        let step_gradients = compute(&learner, &batch(config, step), config, step);
        let (grads, loss) = step_gradients.clipped_on_device(&learner.model(), config.train.grad_clip);
        if step == 0 {
            let of_params = named(&learner.model().decoder, &grads).into_iter();
            first = of_params.filter_map(|p| Some((format!("gradient of {}", p.path), numbers(p.grad?)))).collect();
        }
        pending.push(loss);
        update(&mut learner, Some(grads));
    }
    let read = PendingLoss::read(&pending);
    first.insert("norm of the gradient".into(), vec![read[0].1]);
    (first, read.iter().map(|(report, _)| report.loss()).collect())
}

/// Random tokens, each of which the one before it foretells half of the time: something to learn.
fn batch(config: &RunConfig, step: usize) -> Batch {
    let mut rng = stream(0, &format!("selftest/{step}"));
    let (batch, seq) = (config.train.batch_size, config.model.seq_len);
    let (mut inputs, mut targets) = (vec![], vec![]);
    for _ in 0..batch {
        let mut token = below(&mut rng, VOCAB as u64) as i32;
        for _ in 0..seq {
            inputs.push(token);
            token = match below(&mut rng, 2) {
                0 => (token * 5 + 3) % VOCAB as i32,
                _ => below(&mut rng, VOCAB as u64) as i32,
            };
            targets.push(token);
        }
    }
    Batch { inputs, targets, batch, seq }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_into_vec().expect("just converted to f64")
}

fn agreement(name: String, ours: &[f64], theirs: &[f64], tolerance: f64) -> Agreement {
    let largest = ours.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let apart: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).collect();
    // A NaN is apart from everything.
    let is_sound = ours.len() == theirs.len() && apart.iter().all(|x| x.is_finite());
    let most = apart.into_iter().fold(0.0, f64::max);
    let difference = if is_sound { most / (largest + 1e-9) } else { f64::NAN };
    Agreement { name, difference, tolerance }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::tiny;

    #[test]
    fn the_cpu_agrees_with_itself_and_nothing_with_a_wrong_number() {
        let all = selftest(Backend::Flex, &tiny()).unwrap();
        let apart: Vec<_> = all.iter().filter(|agreement| agreement.difference != 0.0).collect();
        assert!(all.len() > 60 && apart.is_empty(), "{}: {apart:?}", all.len());
        if Backend::Ndarray.require().is_ok() {
            let all = selftest(Backend::Ndarray, &tiny()).unwrap();
            let apart: Vec<_> = all.iter().filter(|agreement| !agreement.holds()).collect();
            assert!(apart.is_empty(), "{apart:?}");
            assert!(all.iter().any(|agreement| agreement.difference > 0.0), "it is another backend");
        }
        for theirs in [[1.0, 2.1], [1.0, f64::NAN], [f64::NAN, 2.0]] {
            assert!(!agreement("x".into(), &[1.0, 2.0], &theirs, 1e-3).holds());
        }
        assert!(!agreement("x".into(), &[1.0, 2.0], &[1.0], 1e-3).holds());
        // One approximation for another is seen.
        let (device, x) = (Backend::Flex.device().unwrap(), [1, 64, 64]);
        let gelu = |activation| numbers(Kernels::Plain.activate(normal("x", x, 1.0, &device), activation));
        let (erf, tanh) = (gelu(kernels::Activation::Gelu), gelu(kernels::Activation::GeluTanh));
        assert!(!agreement("gelu".into(), &erf, &tanh, OPERATION / 2.0).holds());
    }
}
