//! Causal self-attention over several heads.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, RmsNorm, RmsNormConfig};
use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Tensor};

use crate::ModelConfig;
use crate::norm::EPSILON;
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
///
/// With fewer heads for keys and values, each serves a group of neighbouring query heads (grouped-query attention; Ainslie
/// et al., 2023), down to one for all (multi-query; Shazeer, 2019).
#[derive(Module, Debug)]
pub struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    /// RMSNorm over the features of each head. Henry et al., 2020, in the form of later models.
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    dropout: Dropout,
    head_dim: usize,
}

impl Attention {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        let (d_model, d_kv) = (config.d_model, config.n_kv_heads * config.head_dim());
        let projection = |d_input, d_output| projection(d_input, d_output, config.bias, device);
        let norm = || config.qk_norm.then(|| RmsNormConfig::new(config.head_dim()).with_epsilon(EPSILON).init(device));
        Attention {
            q: projection(d_model, d_model),
            k: projection(d_model, d_kv),
            v: projection(d_model, d_kv),
            o: projection(d_model, d_model),
            q_norm: norm(),
            k_norm: norm(),
            dropout: DropoutConfig::new(config.dropout).init(),
            head_dim: config.head_dim(),
        }
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub(crate) fn forward(&self, x: Tensor<3>, context: &Context) -> Tensor<3> {
        let [batch, seq, d_model] = x.dims();
        let n_heads = d_model / self.head_dim;
        let heads = |linear: &Linear| {
            let y = project(linear, x.clone());
            let n_heads = y.dims()[2] / self.head_dim;
            y.reshape([batch, seq, n_heads, self.head_dim]).swap_dims(1, 2)
        };
        let (mut q, mut k, v) = (heads(&self.q), heads(&self.k), heads(&self.v));
        if let (Some(q_norm), Some(k_norm)) = (&self.q_norm, &self.k_norm) {
            (q, k) = (q_norm.forward(q), k_norm.forward(k));
        }
        if let Some(rope) = &context.rope {
            (q, k) = (rope.rotate(q), rope.rotate(k));
        }
        let (k, v) = (spread(k, n_heads), spread(v, n_heads));
        let scores = (q * (self.head_dim as f64).powf(-0.5)).matmul(k.swap_dims(2, 3));
        let weights = softmax(scores.mask_fill(context.future.clone().unsqueeze(), f32::NEG_INFINITY), 3);
        let mixed = self.dropout.forward(weights).matmul(v);
        project(&self.o, mixed.swap_dims(1, 2).reshape([batch, seq, d_model]))
    }
}

/// Repeats each head for the query heads of its group: `[batch, n_kv_heads, seq, head_dim]` to
/// `[batch, n_heads, seq, head_dim]`.
fn spread(x: Tensor<4>, n_heads: usize) -> Tensor<4> {
    let [batch, n_kv_heads, seq, head_dim] = x.dims();
    if n_kv_heads == n_heads {
        return x;
    }
    let group = n_heads / n_kv_heads;
    let repeated = x.reshape([batch, n_kv_heads, 1, seq * head_dim]).expand([batch, n_kv_heads, group, seq * head_dim]);
    repeated.reshape([batch, n_heads, seq, head_dim])
}
