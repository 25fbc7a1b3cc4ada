//! Norms that are wrong on purpose: mistakes found in print, kept to show what they do. No default uses them.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};

use super::{EPSILON, standardize};

/// `x * gamma / (|x| + 1e-5)` with the L2 norm |x| in place of the root of the mean square: the output's mean square is 1/d
/// rather than 1, and the epsilon stands outside the root. Equals RMSNorm with a gain of 1/sqrt(d).
#[derive(Module, Debug)]
pub struct L2Norm {
    gamma: Param<Tensor<1>>,
}

impl L2Norm {
    pub(crate) fn new(d_model: usize, device: &Device) -> Self {
        L2Norm { gamma: Initializer::Ones.init([d_model], device) }
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        // The tiny addend keeps the slope of the root finite for a zero vector, and changes no other length.
        let length = (x.clone().square().sum_dim(2) + 1e-30).sqrt() + EPSILON;
        x * self.gamma.val().unsqueeze() / length
    }
}

/// GroupNorm as for images, whose groups pool over all positions of a sequence: each token sees the future.
#[derive(Module, Debug)]
pub struct PooledGroupNorm {
    gamma: Param<Tensor<1>>,
    beta: Param<Tensor<1>>,
    groups: usize,
}

impl PooledGroupNorm {
    pub(crate) fn new(d_model: usize, groups: usize, device: &Device) -> Self {
        let (gamma, beta) = (Initializer::Ones.init([d_model], device), Initializer::Zeros.init([d_model], device));
        PooledGroupNorm { gamma, beta, groups }
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, d_model] = x.dims();
        let parts = x.reshape([batch, seq, self.groups, d_model / self.groups]);
        let y = standardize(parts, &[1, 3]).reshape([batch, seq, d_model]);
        y * self.gamma.val().unsqueeze() + self.beta.val().unsqueeze()
    }
}
