//! Causal self-attention over several heads.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Tensor};

use crate::ModelConfig;
use crate::position::Rope;
use crate::projection::{project, projection};

/// What every block's attention shares for one forward pass.
pub(crate) struct Context {
    /// True above the diagonal: positions that must not be seen. `[seq, seq]`
    future: Tensor<2, Bool>,
    rope: Option<Rope>,
}

impl Context {
    pub(crate) fn new(seq: usize, rope: Option<Rope>, device: &Device) -> Self {
        Context { future: Tensor::<2, Bool>::tril_mask([seq, seq], 0, device), rope }
    }
}

/// softmax(q k^T / sqrt(head_dim)) v, each position seeing itself and what came before.
#[derive(Module, Debug)]
pub struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    dropout: Dropout,
    n_heads: usize,
}

impl Attention {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        let square = || projection(config.d_model, config.d_model, device);
        Attention {
            q: square(),
            k: square(),
            v: square(),
            o: square(),
            dropout: DropoutConfig::new(config.dropout).init(),
            n_heads: config.n_heads,
        }
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub(crate) fn forward(&self, x: Tensor<3>, context: &Context) -> Tensor<3> {
        let [batch, seq, d_model] = x.dims();
        let head_dim = d_model / self.n_heads;
        let heads =
            |linear: &Linear| project(linear, x.clone()).reshape([batch, seq, self.n_heads, head_dim]).swap_dims(1, 2);
        let (mut q, mut k, v) = (heads(&self.q), heads(&self.k), heads(&self.v));
        if let Some(rope) = &context.rope {
            (q, k) = (rope.rotate(q), rope.rotate(k));
        }
        let scores = (q * (head_dim as f64).powf(-0.5)).matmul(k.swap_dims(2, 3));
        let weights = softmax(scores.mask_fill(context.future.clone().unsqueeze(), f32::NEG_INFINITY), 3);
        let mixed = self.dropout.forward(weights).matmul(v);
        project(&self.o, mixed.swap_dims(1, 2).reshape([batch, seq, d_model]))
    }
}
