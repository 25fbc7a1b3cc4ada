//! The feed-forward: one activation, with or without a gate.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::activation::{gelu, relu, silu};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::ModelConfig;
use crate::projection::{project, projection};

/// The activation of the feed-forward. A gated one multiplies the activated gate with a second projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ffn {
    /// max(0, x).
    Relu,
    /// x * Phi(x), the exact (erf) form. Hendrycks and Gimpel, 2016.
    Gelu,
    /// silu(gate) * up. Shazeer, 2020.
    SwiGlu,
}

impl Ffn {
    /// Whether a third matrix, the gate, is needed.
    pub fn is_gated(self) -> bool {
        match self {
            Ffn::Relu | Ffn::Gelu => false,
            Ffn::SwiGlu => true,
        }
    }

    /// Matrices of size `d_model * d_ff`.
    pub fn n_matrices(self) -> usize {
        if self.is_gated() { 3 } else { 2 }
    }

    /// The pointwise function; a gated feed-forward applies it to the gate.
    fn activate(self, x: Tensor<3>) -> Tensor<3> {
        match self {
            Ffn::Relu => relu(x),
            Ffn::Gelu => gelu(x),
            Ffn::SwiGlu => silu(x),
        }
    }
}

/// `down(activate(up(x)))`, or `down(activate(gate(x)) * up(x))` when gated.
#[derive(Module, Debug)]
pub struct FeedForward {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    #[module(skip)]
    ffn: Ffn,
}

impl FeedForward {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        let (d_model, d_ff) = (config.d_model, config.d_ff);
        FeedForward {
            gate: config.ffn.is_gated().then(|| projection(d_model, d_ff, device)),
            up: projection(d_model, d_ff, device),
            down: projection(d_ff, d_model, device),
            ffn: config.ffn,
        }
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let hidden = match &self.gate {
            Some(gate) => self.ffn.activate(project(gate, x.clone())) * project(&self.up, x),
            None => self.ffn.activate(project(&self.up, x)),
        };
        project(&self.down, hidden)
    }
}
