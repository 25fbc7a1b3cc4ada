//! The kernels as operations of burn's backends.
//!
//! Names start with `k_`, for some without it are burn's own. `KernelOps` is there once for all backends whose tensors lie in
//! memory, and once for recording.

use std::fmt::{self, Debug, Formatter};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, backend_extension};

use crate::branches::*;
use crate::clock::{Part, timed};
use crate::host::Host;
use crate::passes::*;
use crate::{Activation, AdamWStep, AttentionShape, adamw};

#[backend_extension(Autodiff, Flex: cfg(feature = "flex"), NdArray: cfg(feature = "ndarray"))]
pub trait KernelOps: Backend {
    fn k_rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>) -> FloatTensor<Self>;

    fn k_layer_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, beta: FloatTensor<Self>) -> FloatTensor<Self>;

    fn k_dyt(
        x: FloatTensor<Self>,
        alpha: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    fn k_activate(x: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self>;

    fn k_gate(gate: FloatTensor<Self>, up: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self>;

    fn k_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self>;

    fn k_self_attention(
        x: FloatTensor<Self>,
        wq: FloatTensor<Self>,
        wk: FloatTensor<Self>,
        wv: FloatTensor<Self>,
        wo: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self>;

    fn k_feed_forward(
        x: FloatTensor<Self>,
        up: FloatTensor<Self>,
        down: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self>;

    fn k_gated_feed_forward(
        x: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        down: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self>;

    fn k_nll(x: FloatTensor<Self>, w: FloatTensor<Self>, targets: &[i32]) -> FloatTensor<Self>;

    fn k_sum_of_squares(x: FloatTensor<Self>) -> FloatTensor<Self>;

    fn k_adamw(
        parameter: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        step: AdamWStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl<B: Host> KernelOps for B {
    fn k_rms_norm(x: FloatTensor<B>, gamma: FloatTensor<B>) -> FloatTensor<B> {
        rms_norm::<B>([x, gamma]).0
    }

    fn k_layer_norm(x: FloatTensor<B>, gamma: FloatTensor<B>, beta: FloatTensor<B>) -> FloatTensor<B> {
        layer_norm::<B>([x, gamma, beta]).0
    }

    fn k_dyt(x: FloatTensor<B>, alpha: FloatTensor<B>, gamma: FloatTensor<B>, beta: FloatTensor<B>) -> FloatTensor<B> {
        dyt::<B>([x, alpha, gamma, beta]).0
    }

    fn k_activate(x: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
        activate::<B>([x], activation).0
    }

    fn k_gate(gate: FloatTensor<B>, up: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
        gate_up::<B>([gate, up], activation).0
    }

    fn k_attention(q: FloatTensor<B>, k: FloatTensor<B>, v: FloatTensor<B>, shape: AttentionShape) -> FloatTensor<B> {
        attend::<B>([q, k, v], shape).0
    }

    fn k_self_attention(
        x: FloatTensor<B>,
        wq: FloatTensor<B>,
        wk: FloatTensor<B>,
        wv: FloatTensor<B>,
        wo: FloatTensor<B>,
        residual: FloatTensor<B>,
        shape: AttentionShape,
    ) -> FloatTensor<B> {
        self_attention::<B>([x, wq, wk, wv, wo, residual], shape).0
    }

    fn k_feed_forward(
        x: FloatTensor<B>,
        up: FloatTensor<B>,
        down: FloatTensor<B>,
        residual: FloatTensor<B>,
        activation: Activation,
    ) -> FloatTensor<B> {
        feed_forward::<B>([x, up, down, residual], activation).0
    }

    fn k_gated_feed_forward(
        x: FloatTensor<B>,
        gate: FloatTensor<B>,
        up: FloatTensor<B>,
        down: FloatTensor<B>,
        residual: FloatTensor<B>,
        activation: Activation,
    ) -> FloatTensor<B> {
        gated_feed_forward::<B>([x, gate, up, down, residual], activation).0
    }

    fn k_sum_of_squares(x: FloatTensor<B>) -> FloatTensor<B> {
        let x = B::numbers(x);
        B::tensor(vec![timed(Part::Optimizer, || adamw::sum_of_squares(&x)) as f32], &[1])
    }

    fn k_nll(x: FloatTensor<B>, w: FloatTensor<B>, targets: &[i32]) -> FloatTensor<B> {
        nll::<B>([x, w], targets).0
    }

    fn k_adamw(
        parameter: FloatTensor<B>,
        grad: FloatTensor<B>,
        first: FloatTensor<B>,
        second: FloatTensor<B>,
        step: AdamWStep,
    ) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
        let (mut parameter, grad) = (B::numbers(parameter), B::numbers(grad));
        let (mut first, mut second) = (B::numbers(first), B::numbers(second));
        timed(Part::Optimizer, || adamw::update(&step, &mut parameter, &grad, &mut first, &mut second));
        (B::give_back(parameter), B::give_back(first), B::give_back(second))
    }
}

impl<B: Host, C: CheckpointStrategy> KernelOps for Autodiff<B, C> {
    fn k_rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<B, C, _, _>([x, gamma], rms_norm::<B>, rms_norm_backward::<B>)
    }

    fn k_layer_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, beta: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<B, C, _, _>([x, gamma, beta], layer_norm::<B>, layer_norm_backward::<B>)
    }

    fn k_dyt(
        x: FloatTensor<Self>,
        alpha: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        record::<B, C, _, _>([x, alpha, gamma, beta], dyt::<B>, dyt_backward::<B>)
    }

    fn k_activate(x: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        record::<B, C, _, _>([x], |x| activate::<B>(x, activation), activate_backward::<B>)
    }

    fn k_gate(gate: FloatTensor<Self>, up: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        record::<B, C, _, _>([gate, up], |inputs| gate_up::<B>(inputs, activation), gate_backward::<B>)
    }

    fn k_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self> {
        record::<B, C, _, _>([q, k, v], |inputs| attend::<B>(inputs, shape), attend_backward::<B>)
    }

    fn k_self_attention(
        x: FloatTensor<Self>,
        wq: FloatTensor<Self>,
        wk: FloatTensor<Self>,
        wv: FloatTensor<Self>,
        wo: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self> {
        let forward = |inputs| self_attention::<B>(inputs, shape);
        record::<B, C, _, _>([x, wq, wk, wv, wo, residual], forward, self_attention_backward::<B>)
    }

    fn k_feed_forward(
        x: FloatTensor<Self>,
        up: FloatTensor<Self>,
        down: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        let forward = |inputs| feed_forward::<B>(inputs, activation);
        record::<B, C, _, _>([x, up, down, residual], forward, feed_forward_backward::<B>)
    }

    fn k_gated_feed_forward(
        x: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        down: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        let forward = |inputs| gated_feed_forward::<B>(inputs, activation);
        record::<B, C, _, _>([x, gate, up, down, residual], forward, gated_feed_forward_backward::<B>)
    }

    fn k_sum_of_squares(_: FloatTensor<Self>) -> FloatTensor<Self> {
        unreachable!("gradients are measured where nothing is recorded")
    }

    fn k_nll(x: FloatTensor<Self>, w: FloatTensor<Self>, targets: &[i32]) -> FloatTensor<Self> {
        record::<B, C, _, _>([x, w], |inputs| nll::<B>(inputs, targets), nll_backward::<B>)
    }

    fn k_adamw(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: AdamWStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("an optimizer's step is not recorded")
    }
}

/// Gradients of `N` inputs from what the forward pass left, and the gradient of the output.
type BackwardOf<B, S, const N: usize> = fn(S, FloatTensor<B>) -> [FloatTensor<B>; N];

/// An operation on the tape.
struct Recorded<B: Host, S, const N: usize>(BackwardOf<B, S, N>);

impl<B: Host, S, const N: usize> Debug for Recorded<B, S, N> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str("Recorded")
    }
}

impl<B: Host, S: Clone + Send + Debug + 'static, const N: usize> Backward<B, N> for Recorded<B, S, N> {
    type State = S;

    fn backward(self, ops: Ops<S, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        for (parent, grad) in ops.parents.into_iter().zip((self.0)(ops.state, dy)) {
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, grad);
            }
        }
    }
}

/// Runs `forward`, and puts `backward` on the tape if an input is on it.
fn record<B: Host, C: CheckpointStrategy, S: Clone + Send + Debug + 'static, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    forward: impl FnOnce([FloatTensor<B>; N]) -> (FloatTensor<B>, S),
    backward: BackwardOf<B, S, N>,
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = inputs.each_ref().map(|input| input.node());
    let (y, state) = forward(inputs.map(|input| input.into_primitive()));
    match Recorded(backward).prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(state, y),
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    }
}
