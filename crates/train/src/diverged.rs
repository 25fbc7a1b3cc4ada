//! Where numbers stop being finite.

use burn::module::Module;
use burn::optim::GradientsParams;
use data::Batch;
use model::{is_finite, named};

use crate::RunConfig;
use crate::learner::{LanguageModel, micro_batches};

/// The first tensor of a step that holds NaN or infinity, in words: a weight before the step, then what the model makes of each
/// micro-batch on the way to the loss, with the dropout of the step, then a gradient on the way back.
pub(crate) fn first_not_finite(
    model: &LanguageModel,
    batch: &Batch,
    config: &RunConfig,
    step: usize,
    grads: &GradientsParams,
) -> Option<String> {
    let all = named(&model.decoder, grads);
    if let Some(wrong) = all.iter().find(|param| !is_finite(param.weights.clone())) {
        return Some(format!("the weights {}", wrong.path));
    }
    let mut micro_batches = micro_batches(batch, config, step, model.decoder.devices()[0].clone());
    let first = micro_batches.find_map(|(own, windows)| model.in_micro_batch(own).first_not_finite(&windows));
    if let Some(name) = first {
        return Some(format!("the output of {name}"));
    }
    // The way back comes to the last first.
    let wrong = all.into_iter().rev().find(|param| param.grad.clone().is_some_and(|grad| !is_finite(grad)))?;
    Some(format!("the gradient of {}", wrong.path))
}
