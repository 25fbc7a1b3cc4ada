//! The same operations as compositions of burn's.

use burn::tensor::activation::{log_softmax, softmax};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::{AttentionShape, EPSILON};

pub(crate) fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>) -> Tensor<D> {
    let scale = (x.clone().square().mean_dim(D - 1) + EPSILON).sqrt();
    x / scale * gamma.unsqueeze()
}

pub(crate) fn layer_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, beta: Tensor<1>) -> Tensor<D> {
    let centered = x.clone() - x.mean_dim(D - 1);
    let variance = centered.clone().square().mean_dim(D - 1);
    centered / (variance + EPSILON).sqrt() * gamma.unsqueeze() + beta.unsqueeze()
}

pub(crate) fn dyt<const D: usize>(x: Tensor<D>, alpha: Tensor<1>, gamma: Tensor<1>, beta: Tensor<1>) -> Tensor<D> {
    (x * alpha.unsqueeze()).tanh() * gamma.unsqueeze() + beta.unsqueeze()
}

pub(crate) fn nll(x: Tensor<2>, w: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let logits = x.matmul(w.transpose());
    log_softmax(logits, 1).gather(1, targets.unsqueeze_dim(1)).squeeze_dim::<1>(1).neg()
}

/// Attention whose weights, `[batch, n_heads, seq, seq]`, pass through `change`, as through dropout.
pub fn attention(
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    shape: AttentionShape,
    change: impl FnOnce(Tensor<4>) -> Tensor<4>,
) -> Tensor<2> {
    let AttentionShape { batch, seq, n_heads, n_kv_heads, head_dim, theta } = shape;
    let device = q.device();
    let heads = |x: Tensor<2>, n: usize| x.reshape([batch, seq, n, head_dim]).swap_dims(1, 2);
    let (mut q, mut k, v) = (heads(q, n_heads), heads(k, n_kv_heads), heads(v, n_kv_heads));
    if let Some(theta) = theta {
        let rope = Rope::new(seq, head_dim, theta, &device);
        (q, k) = (rope.rotate(q), rope.rotate(k));
    }
    let (k, v) = (spread(k, n_heads), spread(v, n_heads));
    let future = Tensor::<2, Bool>::tril_mask([seq, seq], 0, &device);
    let scores = (q * (head_dim as f64).powf(-0.5)).matmul(k.swap_dims(2, 3));
    let weights = softmax(scores.mask_fill(future.unsqueeze(), f32::NEG_INFINITY), 3);
    change(weights).matmul(v).swap_dims(1, 2).reshape([batch * seq, n_heads * head_dim])
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

/// The rotations of positions `0..seq`, in half-split order: dimension i turns with dimension i + head_dim / 2.
struct Rope {
    cos: Tensor<2>,
    sin: Tensor<2>,
}

impl Rope {
    fn new(seq: usize, head_dim: usize, theta: f64, device: &Device) -> Self {
        let half = head_dim / 2;
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> = (0..seq * head_dim)
                .map(|index| {
                    let (position, i) = (index / head_dim, index % head_dim % half);
                    let frequency = theta.powf(-((2 * i) as f64) / head_dim as f64);
                    f(position as f64 * frequency) as f32
                })
                .collect();
            Tensor::from_data(TensorData::new(values, [seq, head_dim]), device)
        };
        Rope { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Rotates `[batch, n_heads, seq, head_dim]`.
    fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        let half = x.dims()[3] / 2;
        let turned = Tensor::cat(vec![x.clone().narrow(3, half, half).neg(), x.clone().narrow(3, 0, half)], 3);
        x * self.cos.clone().unsqueeze() + turned * self.sin.clone().unsqueeze()
    }
}
