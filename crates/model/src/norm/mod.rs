//! The function at a norm site, one file each.

mod dyt;

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use strum::VariantArray;

pub use dyt::Dyt;

/// Which function stands at every norm site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// (x - mean) / sqrt(var + 1e-5) * gamma + beta over the features of a token. Ba, Kiros and Hinton, 2016.
    LayerNorm,
    /// x / sqrt(mean(x^2) + 1e-5) * gamma. Zhang and Sennrich, 2019.
    RmsNorm,
    /// gamma * tanh(alpha * x) + beta: no statistics. Zhu, Chen, He, LeCun and Liu, 2025.
    Dyt,
}

impl NormKind {
    /// The norm over `d_model` features; `alpha` is used by DyT alone.
    pub(crate) fn init(self, d_model: usize, alpha: f64, device: &Device) -> Norm {
        match self {
            NormKind::LayerNorm => Norm::LayerNorm(LayerNormConfig::new(d_model).init(device)),
            NormKind::RmsNorm => Norm::RmsNorm(RmsNormConfig::new(d_model).init(device)),
            NormKind::Dyt => Norm::Dyt(Dyt::new(d_model, alpha, device)),
        }
    }

    /// Parameters of one site.
    pub fn n_params(self, d_model: usize) -> usize {
        match self {
            NormKind::LayerNorm => 2 * d_model,
            NormKind::RmsNorm => d_model,
            NormKind::Dyt => 2 * d_model + 1,
        }
    }
}

/// A norm with its weights.
#[derive(Module, Debug)]
pub enum Norm {
    LayerNorm(LayerNorm),
    RmsNorm(RmsNorm),
    Dyt(Dyt),
}

impl Norm {
    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        match self {
            Norm::LayerNorm(norm) => norm.forward(x),
            Norm::RmsNorm(norm) => norm.forward(x),
            Norm::Dyt(norm) => norm.forward(x),
        }
    }
}
