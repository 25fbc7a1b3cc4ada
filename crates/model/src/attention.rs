//! Causal self-attention over several heads.

use burn::module::Module;
use burn::nn::{Linear, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Tensor};
use kernels::{AttentionShape, Kernels, attention_with};

use crate::dropout::Dropout;
use crate::norm::EPSILON;
use crate::pass::{Hook, Pass};
use crate::projection::projection;
use crate::{ModelConfig, Position};

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
    pub(crate) dropout: Dropout,
    head_dim: usize,
    /// Base of the rotations, where positions are rotated.
    theta: Option<f64>,
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
            dropout: Dropout::new(config.dropout),
            head_dim: config.head_dim(),
            theta: (config.position == Position::Rope).then_some(config.rope_theta),
        }
    }

    fn shape(&self, x: &Tensor<3>) -> AttentionShape {
        let [batch, seq, d_model] = x.dims();
        let head_dim = self.head_dim;
        let n_kv_heads = self.k.weight.dims()[1] / head_dim;
        AttentionShape { batch, seq, n_heads: d_model / head_dim, n_kv_heads, head_dim, theta: self.theta }
    }

    /// Entropy in nats of each head's weights, averaged over the queries of `[batch, seq, d_model]`.
    pub(crate) fn entropies(&self, x: Tensor<3>) -> Vec<f64> {
        let shape = self.shape(&x);
        let (q, k, v) = self.heads(x.flatten(0, 1), Kernels::Plain);
        let mut entropies = vec![];
        attention_with(q, k, v, shape, |weights| {
            // The smallest of positive numbers adds nothing and keeps 0 ln 0 at 0.
            let terms = weights.clone() * (weights.clone() + f32::MIN_POSITIVE).log();
            let of_head = |head| {
                let sum = terms.clone().narrow(1, head, 1).sum().into_scalar::<f64>();
                -sum / (shape.batch * shape.seq) as f64
            };
            entropies = (0..shape.n_heads).map(of_head).collect();
            weights
        });
        entropies
    }

    /// The attention of `x` added to `onto`, both `[batch, seq, d_model]`.
    pub(crate) fn forward(&self, x: Tensor<3>, onto: Tensor<3>, pass: &mut Pass) -> Tensor<3> {
        pass.call(Hook::Attention(self, &x));
        let (kernels, shape, dims) = (pass.kernels, self.shape(&x), x.shape());
        let (x, onto) = (x.flatten::<2>(0, 1), onto.flatten::<2>(0, 1));
        let is_bare = self.q.bias.is_none() && self.q_norm.is_none() && self.dropout.is_disabled();
        let y = if is_bare {
            let matrices = [&self.q, &self.k, &self.v, &self.o].map(|linear| linear.weight.val());
            kernels.self_attention(x, matrices, onto, shape)
        } else {
            onto + self.dropout.forward(self.o.forward(self.mix(x, shape, kernels)))
        };
        y.reshape(dims)
    }

    /// Queries, keys and values as the products see them, but for rotations.
    fn heads(&self, x: Tensor<2>, kernels: Kernels) -> (Tensor<2>, Tensor<2>, Tensor<2>) {
        let (q, k, v) = (self.q.forward(x.clone()), self.k.forward(x.clone()), self.v.forward(x));
        let (Some(q_norm), Some(k_norm)) = (&self.q_norm, &self.k_norm) else { return (q, k, v) };
        let norm = |norm: &RmsNorm, x: Tensor<2>| {
            let [n, width] = x.dims();
            let heads = x.reshape([n * width / self.head_dim, self.head_dim]);
            kernels.rms_norm(heads, norm.gamma.val()).reshape([n, width])
        };
        (norm(q_norm, q), norm(k_norm, k), v)
    }

    /// The heads' outputs side by side, with all that can stand between a projection and its use.
    fn mix(&self, x: Tensor<2>, shape: AttentionShape, kernels: Kernels) -> Tensor<2> {
        let (q, k, v) = self.heads(x, kernels);
        if self.dropout.is_disabled() {
            kernels.attention(q, k, v, shape)
        } else {
            attention_with(q, k, v, shape, |weights| self.dropout.forward(weights))
        }
    }
}
