//! Where numbers stop being finite.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use data::Batch;

use crate::learner::LanguageModel;

/// The first tensor of a step that holds NaN or infinity, in words: a weight before the step, then what the model makes of each
/// part of the batch on the way to the loss, then a gradient on the way back.
pub(crate) fn first_not_finite(
    model: &LanguageModel,
    mut parts: impl Iterator<Item = Batch>,
    grads: &GradientsParams,
) -> Option<String> {
    let mut seen = Seen { path: vec![], grads, weight: None, grad: None };
    model.decoder.visit(&mut seen);
    if let Some(name) = seen.weight {
        return Some(format!("the weights {name}"));
    }
    let forward = parts.find_map(|part| model.first_not_finite(&part)).map(|name| format!("the output of {name}"));
    forward.or_else(|| seen.grad.map(|name| format!("the gradient of {name}")))
}

/// Looks at weights and gradients in the order of the forward pass.
struct Seen<'a> {
    path: Vec<String>,
    grads: &'a GradientsParams,
    /// The first.
    weight: Option<String>,
    /// The last, which the way back comes to first.
    grad: Option<String>,
}

impl ModuleVisitor for Seen<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.weight.is_none() && !model::is_finite(param.val()) {
            self.weight = Some(self.path.join("."));
        }
        if self.grads.get::<D>(param.id).is_some_and(|grad| !model::is_finite(grad)) {
            self.grad = Some(self.path.join("."));
        }
    }
}
