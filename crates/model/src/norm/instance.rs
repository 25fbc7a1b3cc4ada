//! Instance normalization over the positions of a sequence.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};

use super::standardize;

/// `(x - mean) / sqrt(var + 1e-5) * gamma + beta`, each feature over the positions of its sequence. A token's output depends
/// on later tokens, so a language model that uses it cheats. Ulyanov, Vedaldi and Lempitsky, 2016.
#[derive(Module, Debug)]
pub struct InstanceNorm {
    gamma: Param<Tensor<1>>,
    beta: Param<Tensor<1>>,
}

impl InstanceNorm {
    pub(crate) fn new(d_model: usize, device: &Device) -> Self {
        let (gamma, beta) = (Initializer::Ones.init([d_model], device), Initializer::Zeros.init([d_model], device));
        InstanceNorm { gamma, beta }
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        standardize(x, &[1]) * self.gamma.val().unsqueeze() + self.beta.val().unsqueeze()
    }
}
