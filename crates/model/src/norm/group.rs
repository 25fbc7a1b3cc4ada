//! Group normalization within a token.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};

use super::standardize;

/// LayerNorm over each of `groups` equal parts of a token's features. Wu and He, 2018, but for a token by itself: their
/// groups pool over positions too, which would show a token its future.
#[derive(Module, Debug)]
pub struct GroupNorm {
    gamma: Param<Tensor<1>>,
    beta: Param<Tensor<1>>,
    groups: usize,
}

impl GroupNorm {
    pub(crate) fn new(d_model: usize, groups: usize, device: &Device) -> Self {
        let (gamma, beta) = (Initializer::Ones.init([d_model], device), Initializer::Zeros.init([d_model], device));
        GroupNorm { gamma, beta, groups }
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, d_model] = x.dims();
        let parts = x.reshape([batch * seq, self.groups, d_model / self.groups]);
        let y = standardize(parts, &[2]).reshape([batch, seq, d_model]);
        y * self.gamma.val().unsqueeze() + self.beta.val().unsqueeze()
    }
}
