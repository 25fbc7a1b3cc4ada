//! One decoder block: attention and feed-forward, each on a residual branch.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use kernels::Kernels;

use crate::attention::Attention;
use crate::dropout::Dropout;
use crate::norm::Site;
use crate::probe::Tap;
use crate::{FeedForward, ModelConfig, Norm};

/// Where a block applies its norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, IntoStaticStr, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum NormPlacement {
    /// x + f(norm(x)); a final norm follows the last block. GPT-2.
    Pre,
    /// norm(x + f(x)); the last block's norm is the final one. Vaswani et al., 2017.
    Post,
}

/// Attention and feed-forward around the residual stream.
#[derive(Module, Debug)]
pub struct Block {
    pub(crate) attn_norm: Norm,
    attn: Attention,
    ffn_norm: Norm,
    ffn: FeedForward,
    dropout: Dropout,
    #[module(skip)]
    placement: NormPlacement,
}

impl Block {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        Block {
            attn_norm: config.norm.init(config, Site::Attention, device),
            attn: Attention::new(config, device),
            ffn_norm: config.norm.init(config, Site::FeedForward, device),
            ffn: FeedForward::new(config, device),
            dropout: Dropout::new(config.dropout),
            placement: config.norm_placement,
        }
    }

    pub(crate) fn dropouts(&mut self) -> [&mut Dropout; 2] {
        [&mut self.dropout, &mut self.attn.dropout]
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub(crate) fn forward(&self, x: Tensor<3>, kernels: Kernels, tap: &mut dyn FnMut(Tap)) -> Tensor<3> {
        let norm = |norm: &Norm, x: Tensor<3>, tap: &mut dyn FnMut(Tap)| {
            tap(Tap::Norm(norm, &x));
            norm.forward(x, kernels)
        };
        let attn = |x: Tensor<3>, residual, tap: &mut dyn FnMut(Tap)| {
            tap(Tap::Attention(&self.attn, &x));
            self.attn.forward(x, residual, kernels)
        };
        let ffn = |x: Tensor<3>, residual, tap: &mut dyn FnMut(Tap)| {
            tap(Tap::FeedForward(&self.ffn, &x));
            self.ffn.forward(x, residual, &self.dropout, kernels)
        };
        match self.placement {
            NormPlacement::Pre => {
                let x = attn(norm(&self.attn_norm, x.clone(), tap), x, tap);
                ffn(norm(&self.ffn_norm, x.clone(), tap), x, tap)
            }
            NormPlacement::Post => {
                let x = norm(&self.attn_norm, attn(x.clone(), x, tap), tap);
                norm(&self.ffn_norm, ffn(x.clone(), x, tap), tap)
            }
        }
    }
}
