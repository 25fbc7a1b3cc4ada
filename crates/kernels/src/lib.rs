//! The operations of a small Transformer with gradients by hand, beside the compositions of burn's operations that they equal.
//!
//! On a CPU backend most of a training step of burn goes into small operations, not into matrices. Each operation here is
//! a loop or a few over numbers that stay in the cache, without tensors in between. The compositions are what other backends run, and what the tests compare with.
//!
//! Results have the same bits with any number of threads, but not on every kind of processor: what vector instructions there
//! are decides the order of sums.

#![allow(clippy::needless_range_loop, reason = "loops over lanes of equal length are what becomes vector instructions")]
#![allow(clippy::excessive_precision, reason = "constants have the digits of their sources")]

mod activation;
mod adamw;
mod attention;
mod branches;
mod clock;
mod denormals;
mod host;
mod loss;
mod math;
mod matrix;
mod norm;
#[allow(deprecated, reason = "the macro names `ndarray`, which is complete in burn 0.22")]
mod ops;
mod passes;
mod plain;
mod rows;
#[cfg(all(test, feature = "flex"))]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

pub use activation::Activation;
pub use adamw::AdamWStep;
pub use attention::AttentionShape;
pub use clock::{Part, take_spent};
pub use denormals::flush_denormals;
pub use matrix::matrix_peak;
pub use norm::EPSILON;

use ops::KernelOps;

/// Which operations compute: the two give the same numbers but for rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, IntoStaticStr, EnumString, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Kernels {
    /// Ours, on the CPU.
    Fused,
    /// Compositions of burn's, on any backend.
    Plain,
}

impl Kernels {
    /// x / sqrt(mean(x^2) + 1e-5) gamma over the last axis.
    pub fn rms_norm<const D: usize>(self, x: Tensor<D>, gamma: Tensor<1>) -> Tensor<D> {
        match self {
            Kernels::Fused => Tensor::from_dispatch(Dispatch::k_rms_norm(x.into_dispatch(), gamma.into_dispatch())),
            Kernels::Plain => plain::rms_norm(x, gamma),
        }
    }

    /// (x - mean) / sqrt(variance + 1e-5) gamma + beta over the last axis.
    pub fn layer_norm<const D: usize>(self, x: Tensor<D>, gamma: Tensor<1>, beta: Tensor<1>) -> Tensor<D> {
        match self {
            Kernels::Fused => Tensor::from_dispatch(Dispatch::k_layer_norm(
                x.into_dispatch(),
                gamma.into_dispatch(),
                beta.into_dispatch(),
            )),
            Kernels::Plain => plain::layer_norm(x, gamma, beta),
        }
    }

    /// gamma tanh(alpha x) + beta, with one alpha.
    pub fn dyt<const D: usize>(self, x: Tensor<D>, alpha: Tensor<1>, gamma: Tensor<1>, beta: Tensor<1>) -> Tensor<D> {
        match self {
            Kernels::Fused => Tensor::from_dispatch(Dispatch::k_dyt(
                x.into_dispatch(),
                alpha.into_dispatch(),
                gamma.into_dispatch(),
                beta.into_dispatch(),
            )),
            Kernels::Plain => plain::dyt(x, alpha, gamma, beta),
        }
    }

    /// f(x), number by number.
    pub fn activate<const D: usize>(self, x: Tensor<D>, f: Activation) -> Tensor<D> {
        match self {
            Kernels::Fused => Tensor::from_dispatch(Dispatch::k_activate(x.into_dispatch(), f)),
            Kernels::Plain => f.plain(x),
        }
    }

    /// f(gate) up, number by number.
    pub fn gate<const D: usize>(self, gate: Tensor<D>, up: Tensor<D>, f: Activation) -> Tensor<D> {
        match self {
            Kernels::Fused => Tensor::from_dispatch(Dispatch::k_gate(gate.into_dispatch(), up.into_dispatch(), f)),
            Kernels::Plain => f.plain(gate) * up,
        }
    }

    /// Causal attention: q is `[batch * seq, n_heads * head_dim]`, k and v `[batch * seq, n_kv_heads * head_dim]`; out as q.
    pub fn attention(self, q: Tensor<2>, k: Tensor<2>, v: Tensor<2>, shape: AttentionShape) -> Tensor<2> {
        match self {
            Kernels::Fused => Tensor::from_dispatch(Dispatch::k_attention(
                q.into_dispatch(),
                k.into_dispatch(),
                v.into_dispatch(),
                shape,
            )),
            Kernels::Plain => plain::attention(q, k, v, shape, |weights| weights),
        }
    }

    /// `residual` plus causal attention of x: x and residual are `[batch * seq, d_model]`, and four matrices without biases
    /// give queries, keys, values and what is added.
    pub fn self_attention(
        self,
        x: Tensor<2>,
        [wq, wk, wv, wo]: [Tensor<2>; 4],
        residual: Tensor<2>,
        shape: AttentionShape,
    ) -> Tensor<2> {
        match self {
            Kernels::Fused => Tensor::from_dispatch(Dispatch::k_self_attention(
                x.into_dispatch(),
                wq.into_dispatch(),
                wk.into_dispatch(),
                wv.into_dispatch(),
                wo.into_dispatch(),
                residual.into_dispatch(),
                shape,
            )),
            Kernels::Plain => {
                let mixed = self.attention(x.clone().matmul(wq), x.clone().matmul(wk), x.matmul(wv), shape);
                residual + mixed.matmul(wo)
            }
        }
    }

    /// residual + f(x up) down; x and residual are `[n, d]`.
    pub fn feed_forward(
        self,
        x: Tensor<2>,
        [up, down]: [Tensor<2>; 2],
        residual: Tensor<2>,
        f: Activation,
    ) -> Tensor<2> {
        match self {
            Kernels::Fused => Tensor::from_dispatch(Dispatch::k_feed_forward(
                x.into_dispatch(),
                up.into_dispatch(),
                down.into_dispatch(),
                residual.into_dispatch(),
                f,
            )),
            Kernels::Plain => residual + self.activate(x.matmul(up), f).matmul(down),
        }
    }

    /// residual + (f(x gate) x up) down; x and residual are `[n, d]`, and f(x gate) multiplies number by number.
    pub fn gated_feed_forward(
        self,
        x: Tensor<2>,
        [gate, up, down]: [Tensor<2>; 3],
        residual: Tensor<2>,
        f: Activation,
    ) -> Tensor<2> {
        match self {
            Kernels::Fused => Tensor::from_dispatch(Dispatch::k_gated_feed_forward(
                x.into_dispatch(),
                gate.into_dispatch(),
                up.into_dispatch(),
                down.into_dispatch(),
                residual.into_dispatch(),
                f,
            )),
            Kernels::Plain => residual + self.gate(x.clone().matmul(gate), x.matmul(up), f).matmul(down),
        }
    }

    /// The sum of squares of a tensor that is not recorded: `[1]`.
    pub fn sum_of_squares<const D: usize>(self, x: Tensor<D>) -> Tensor<1> {
        match self {
            Kernels::Fused => Tensor::from_dispatch(Dispatch::k_sum_of_squares(x.into_dispatch())),
            // Row by row first: one sum over millions of elements would depend on how threads share it.
            Kernels::Plain => x.square().sum_dim(D - 1).sum(),
        }
    }

    /// Negative log-likelihood of each target under softmax(x w^T): x is `[n, d]`, w `[vocab, d]`, targets and out `[n]`.
    pub fn nll(self, x: Tensor<2>, w: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        match self {
            Kernels::Fused => {
                let targets =
                    targets.into_data().convert::<i32>().try_into_vec::<i32>().expect("just converted to i32");
                Tensor::from_dispatch(Dispatch::k_nll(x.into_dispatch(), w.into_dispatch(), &targets))
            }
            Kernels::Plain => plain::nll(x, w, targets),
        }
    }
}

pub use plain::attention as attention_with;

/// A parameter and its moments after a step of AdamW, in one pass; on a device without autodiff.
pub fn adamw<const D: usize>(
    parameter: Tensor<D>,
    grad: Tensor<D>,
    moments: [Tensor<D>; 2],
    step: AdamWStep,
) -> (Tensor<D>, [Tensor<D>; 2]) {
    let [first, second] = moments.map(Tensor::into_dispatch);
    let (parameter, first, second) =
        Dispatch::k_adamw(parameter.into_dispatch(), grad.into_dispatch(), first, second, step);
    (Tensor::from_dispatch(parameter), [first, second].map(Tensor::from_dispatch))
}
