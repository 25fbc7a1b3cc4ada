//! Where numbers stop being finite.

use burn::optim::GradientsParams;
use data::Batch;
use model::{is_finite, named};

use crate::learner::LanguageModel;

/// The first tensor of a step that holds NaN or infinity, in words: a weight before the step, then what the model makes of each
/// part of the batch on the way to the loss, then a gradient on the way back.
pub(crate) fn first_not_finite(
    model: &LanguageModel,
    mut parts: impl Iterator<Item = Batch>,
    grads: &GradientsParams,
) -> Option<String> {
    let all = named(&model.decoder, grads);
    if let Some(wrong) = all.iter().find(|param| !is_finite(param.weights.clone())) {
        return Some(format!("the weights {}", wrong.path));
    }
    if let Some(name) = parts.find_map(|part| model.first_not_finite(&part)) {
        return Some(format!("the output of {name}"));
    }
    // The way back comes to the last first.
    let wrong = all.into_iter().rev().find(|param| param.grad.clone().is_some_and(|grad| !is_finite(grad)))?;
    Some(format!("the gradient of {}", wrong.path))
}
