//! Dynamic Tanh: a squashing function in place of a norm.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};
use kernels::Kernels;

/// `gamma * tanh(alpha * x) + beta` with one alpha for the site. Zhu et al., "Transformers without Normalization", 2025.
#[derive(Module, Debug)]
pub struct Dyt {
    pub(crate) alpha: Param<Tensor<1>>,
    gamma: Param<Tensor<1>>,
    beta: Param<Tensor<1>>,
}

impl Dyt {
    pub(crate) fn new(d_model: usize, alpha: f64, device: &Device) -> Self {
        Dyt {
            alpha: Initializer::Constant { value: alpha }.init([1], device),
            gamma: Initializer::Ones.init([d_model], device),
            beta: Initializer::Zeros.init([d_model], device),
        }
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>, kernels: Kernels) -> Tensor<3> {
        kernels.dyt(x, self.alpha.val(), self.gamma.val(), self.beta.val())
    }
}
