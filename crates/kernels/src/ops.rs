//! The kernels as operations of burn's backends.
//!
//! Names start with `k_`, for some without it are burn's own. `KernelOps` is there once for all backends whose tensors lie in
//! memory, and once for recording: each operation is a forward function that also returns what its backward function needs.

use std::fmt::{self, Debug, Formatter};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};

use crate::attention::Saved;
use crate::host::Host;
use crate::matrix::{Matrix, Onto, multiply, room};
use crate::{Activation, AdamWStep, AttentionShape, activation, adamw, attention, loss, norm};

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

    fn k_project_and_attend(
        x: FloatTensor<Self>,
        wq: FloatTensor<Self>,
        wk: FloatTensor<Self>,
        wv: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self>;

    fn k_project_and_gate(
        x: FloatTensor<Self>,
        wgate: FloatTensor<Self>,
        wup: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self>;

    fn k_project_and_add(x: FloatTensor<Self>, w: FloatTensor<Self>, residual: FloatTensor<Self>) -> FloatTensor<Self>;

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

    fn k_project_and_attend(
        x: FloatTensor<B>,
        wq: FloatTensor<B>,
        wk: FloatTensor<B>,
        wv: FloatTensor<B>,
        shape: AttentionShape,
    ) -> FloatTensor<B> {
        project_and_attend::<B>([x, wq, wk, wv], shape).0
    }

    fn k_project_and_gate(
        x: FloatTensor<B>,
        wgate: FloatTensor<B>,
        wup: FloatTensor<B>,
        activation: Activation,
    ) -> FloatTensor<B> {
        project_and_gate::<B>([x, wgate, wup], activation).0
    }

    fn k_project_and_add(x: FloatTensor<B>, w: FloatTensor<B>, residual: FloatTensor<B>) -> FloatTensor<B> {
        project_and_add::<B>([x, w, residual]).0
    }

    fn k_sum_of_squares(x: FloatTensor<B>) -> FloatTensor<B> {
        B::tensor(vec![adamw::sum_of_squares(&B::numbers(x)) as f32], &[1])
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
        adamw::update(&step, &mut parameter, &grad, &mut first, &mut second);
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
        record::<B, C, _, _>([gate, up], |inputs| gate_up::<B>(inputs, activation), gate_up_backward::<B>)
    }

    fn k_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self> {
        record::<B, C, _, _>([q, k, v], |inputs| attend::<B>(inputs, shape), attend_backward::<B>)
    }

    fn k_project_and_attend(
        x: FloatTensor<Self>,
        wq: FloatTensor<Self>,
        wk: FloatTensor<Self>,
        wv: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self> {
        let forward = |inputs| project_and_attend::<B>(inputs, shape);
        record::<B, C, _, _>([x, wq, wk, wv], forward, project_and_attend_backward::<B>)
    }

    fn k_project_and_gate(
        x: FloatTensor<Self>,
        wgate: FloatTensor<Self>,
        wup: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        let forward = |inputs| project_and_gate::<B>(inputs, activation);
        record::<B, C, _, _>([x, wgate, wup], forward, project_and_gate_backward::<B>)
    }

    fn k_project_and_add(x: FloatTensor<Self>, w: FloatTensor<Self>, residual: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<B, C, _, _>([x, w, residual], project_and_add::<B>, project_and_add_backward::<B>)
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

fn shape<B: Host>(tensor: &FloatTensor<B>) -> Vec<usize> {
    tensor.shape().iter().copied().collect()
}

/// Room for as many rows as `x` has, each as long as the vectors that are applied to it.
fn rows_of(x: &[f32], vectors: &[&[f32]]) -> Vec<f32> {
    let d = vectors[0].len();
    assert!(d > 0 && x.len().is_multiple_of(d), "{} numbers are no rows of {d}", x.len());
    assert!(vectors.iter().all(|vector| vector.len() == d), "gain and bias differ in length");
    room(x.len())
}

fn rms_norm<B: Host>([x, gamma]: [FloatTensor<B>; 2]) -> (FloatTensor<B>, [FloatTensor<B>; 2]) {
    let shape = shape::<B>(&x);
    let (x_numbers, gamma_numbers) = (B::numbers(x.clone()), B::numbers(gamma.clone()));
    let mut y = rows_of(&x_numbers, &[&gamma_numbers]);
    norm::rms_forward(&x_numbers, &gamma_numbers, &mut y);
    (B::tensor(y, &shape), [x, gamma])
}

fn rms_norm_backward<B: Host>([x, gamma]: [FloatTensor<B>; 2], dy: FloatTensor<B>) -> [FloatTensor<B>; 2] {
    let (x, gamma, mut dy) = (B::numbers(x), B::numbers(gamma), B::numbers(dy));
    let mut dgamma = vec![0.0; gamma.len()];
    norm::rms_backward(&x, &gamma, &mut dy, &mut dgamma);
    [B::give_back(dy), B::tensor(dgamma, &[gamma.len()])]
}

fn layer_norm<B: Host>([x, gamma, beta]: [FloatTensor<B>; 3]) -> (FloatTensor<B>, [FloatTensor<B>; 2]) {
    let shape = shape::<B>(&x);
    let (x_numbers, gamma_numbers, beta) = (B::numbers(x.clone()), B::numbers(gamma.clone()), B::numbers(beta));
    let mut y = rows_of(&x_numbers, &[&gamma_numbers, &beta]);
    norm::layer_forward(&x_numbers, &gamma_numbers, &beta, &mut y);
    (B::tensor(y, &shape), [x, gamma])
}

fn layer_norm_backward<B: Host>([x, gamma]: [FloatTensor<B>; 2], dy: FloatTensor<B>) -> [FloatTensor<B>; 3] {
    let (x, gamma, mut dy) = (B::numbers(x), B::numbers(gamma), B::numbers(dy));
    let d = gamma.len();
    let (mut dgamma, mut dbeta, mut centered) = (vec![0.0; d], vec![0.0; d], vec![0.0; d]);
    norm::layer_backward(&x, &gamma, &mut dy, &mut dgamma, &mut dbeta, &mut centered);
    [B::give_back(dy), B::tensor(dgamma, &[d]), B::tensor(dbeta, &[d])]
}

fn dyt<B: Host>([x, alpha, gamma, beta]: [FloatTensor<B>; 4]) -> (FloatTensor<B>, [FloatTensor<B>; 3]) {
    let shape = shape::<B>(&x);
    let (x_numbers, alpha_numbers) = (B::numbers(x.clone()), B::numbers(alpha.clone()));
    let (gamma_numbers, beta) = (B::numbers(gamma.clone()), B::numbers(beta));
    let mut y = rows_of(&x_numbers, &[&gamma_numbers, &beta]);
    norm::dyt_forward(&x_numbers, alpha_numbers[0], &gamma_numbers, &beta, &mut y);
    (B::tensor(y, &shape), [x, alpha, gamma])
}

fn dyt_backward<B: Host>([x, alpha, gamma]: [FloatTensor<B>; 3], dy: FloatTensor<B>) -> [FloatTensor<B>; 4] {
    let (x, alpha, gamma, mut dy) = (B::numbers(x), B::numbers(alpha), B::numbers(gamma), B::numbers(dy));
    let d = gamma.len();
    let (mut dgamma, mut dbeta) = (vec![0.0; d], vec![0.0; d]);
    let dalpha = norm::dyt_backward(&x, alpha[0], &gamma, &mut dy, &mut dgamma, &mut dbeta);
    [B::give_back(dy), B::tensor(vec![dalpha as f32], &[1]), B::tensor(dgamma, &[d]), B::tensor(dbeta, &[d])]
}

fn activate<B: Host>([x]: [FloatTensor<B>; 1], f: Activation) -> (FloatTensor<B>, (FloatTensor<B>, Activation)) {
    let shape = shape::<B>(&x);
    let numbers = B::numbers(x.clone());
    let mut y = room(numbers.len());
    activation::forward(f, &numbers, &mut y);
    (B::tensor(y, &shape), (x, f))
}

fn activate_backward<B: Host>((x, f): (FloatTensor<B>, Activation), dy: FloatTensor<B>) -> [FloatTensor<B>; 1] {
    let (x, mut dy) = (B::numbers(x), B::numbers(dy));
    activation::backward(f, &x, &mut dy);
    [B::give_back(dy)]
}

/// Rows side by side: row i of the result is row i of each part after the other. Parts are (numbers, length of a row).
fn side_by_side(parts: &[(&[f32], usize)]) -> Vec<f32> {
    let rows = |&(numbers, width): &(&[f32], usize)| numbers.len() / width;
    assert!(parts.iter().all(|part| rows(part) == rows(&parts[0])), "parts have other numbers of rows");
    let mut packed = Vec::with_capacity(parts.iter().map(|(numbers, _)| numbers.len()).sum());
    for row in 0..rows(&parts[0]) {
        for (numbers, width) in parts {
            packed.extend_from_slice(&numbers[row * width..(row + 1) * width]);
        }
    }
    packed
}

/// The reverse of [`side_by_side`], as tensors `[n, width]`.
fn apart<B: Host, const N: usize>(packed: &[f32], widths: [usize; N]) -> [FloatTensor<B>; N] {
    let row = widths.iter().sum::<usize>();
    let mut before = 0;
    widths.map(|width| {
        let at = before..before + width;
        before += width;
        let mut numbers = Vec::with_capacity(packed.len() / row * width);
        packed.chunks_exact(row).for_each(|row| numbers.extend_from_slice(&row[at.clone()]));
        B::tensor(numbers, &[packed.len() / row, width])
    })
}

/// x by several matrices at once. Returns the products side by side, the matrices side by side, and their widths.
fn project<B: Host, const N: usize>(x: &[f32], ws: [FloatTensor<B>; N]) -> (Vec<f32>, Projection<N>) {
    let dims = ws.each_ref().map(|w| shape::<B>(w));
    let (d, widths) = (dims[0][0], dims.map(|dims| dims[1]));
    let numbers = ws.map(B::numbers);
    let parts: Vec<(&[f32], usize)> = numbers.iter().zip(widths).map(|(w, width)| (&**w, width)).collect();
    let w = side_by_side(&parts);
    let (n, row) = (x.len() / d, widths.iter().sum());
    let mut y = room(n * row);
    multiply([n, d, row], Matrix::new(x, d), Matrix::new(&w, row), &mut y, row, Onto::Replace);
    (y, Projection { w, d, widths })
}

/// Matrices `[d, width]` side by side.
#[derive(Clone, Debug)]
struct Projection<const N: usize> {
    w: Vec<f32>,
    d: usize,
    widths: [usize; N],
}

impl<const N: usize> Projection<N> {
    /// Gradients of x and of each matrix, given that of the products side by side.
    fn backward<B: Host>(&self, x: FloatTensor<B>, dy: &[f32]) -> (FloatTensor<B>, [FloatTensor<B>; N]) {
        let x_shape = shape::<B>(&x);
        let x = B::numbers(x);
        let row: usize = self.widths.iter().sum();
        let (n, d) = (dy.len() / row, self.d);
        let dy = Matrix::new(dy, row);
        let mut dx = room(n * d);
        multiply([n, row, d], dy, Matrix::new(&self.w, row).transposed(), &mut dx, d, Onto::Replace);
        let mut dw = room(d * row);
        multiply([d, n, row], Matrix::new(&x, d).transposed(), dy, &mut dw, row, Onto::Replace);
        (B::tensor(dx, &x_shape), apart::<B, N>(&dw, self.widths))
    }
}

type GateState = (Vec<f32>, usize, Activation);

fn gate_up<B: Host>([gate, up]: [FloatTensor<B>; 2], f: Activation) -> (FloatTensor<B>, GateState) {
    let shape = shape::<B>(&gate);
    let width = shape[shape.len() - 1];
    let (gate, up) = (B::numbers(gate), B::numbers(up));
    let packed = side_by_side(&[(&gate, width), (&up, width)]);
    let mut y = room(gate.len());
    activation::gated_forward(f, width, &packed, &mut y);
    (B::tensor(y, &shape), (packed, width, f))
}

fn gate_up_backward<B: Host>((mut packed, width, f): GateState, dy: FloatTensor<B>) -> [FloatTensor<B>; 2] {
    activation::gated_backward(f, width, &mut packed, &B::numbers(dy));
    apart::<B, 2>(&packed, [width; 2])
}

type ProjectAndGateState<B> = (FloatTensor<B>, Projection<2>, GateState);

fn project_and_gate<B: Host>(
    [x, wgate, wup]: [FloatTensor<B>; 3],
    f: Activation,
) -> (FloatTensor<B>, ProjectAndGateState<B>) {
    let (packed, projection) = project::<B, 2>(&B::numbers(x.clone()), [wgate, wup]);
    let width = projection.widths[0];
    let mut y = room(packed.len() / 2);
    activation::gated_forward(f, width, &packed, &mut y);
    (B::tensor(y, &[packed.len() / (2 * width), width]), (x, projection, (packed, width, f)))
}

fn project_and_gate_backward<B: Host>(
    (x, projection, (mut packed, width, f)): ProjectAndGateState<B>,
    dy: FloatTensor<B>,
) -> [FloatTensor<B>; 3] {
    activation::gated_backward(f, width, &mut packed, &B::numbers(dy));
    let (dx, [dgate, dup]) = projection.backward::<B>(x, &packed);
    [dx, dgate, dup]
}

type AttentionState = (Saved, AttentionShape);

fn attend<B: Host>([q, k, v]: [FloatTensor<B>; 3], sizes: AttentionShape) -> (FloatTensor<B>, AttentionState) {
    let shape = shape::<B>(&q);
    let (q, k, v) = (B::numbers(q), B::numbers(k), B::numbers(v));
    let kv_width = sizes.kv_width();
    let packed = side_by_side(&[(&q, sizes.width()), (&k, kv_width), (&v, kv_width)]);
    let (y, saved) = attention::forward(&sizes, packed);
    (B::tensor(y, &shape), (saved, sizes))
}

fn attend_backward<B: Host>((saved, sizes): AttentionState, dy: FloatTensor<B>) -> [FloatTensor<B>; 3] {
    let kv_width = sizes.kv_width();
    let dqkv = attention::backward(&sizes, &saved, &B::numbers(dy));
    apart::<B, 3>(&dqkv, [sizes.width(), kv_width, kv_width])
}

type ProjectAndAttendState<B> = (FloatTensor<B>, Projection<3>, AttentionState);

fn project_and_attend<B: Host>(
    [x, wq, wk, wv]: [FloatTensor<B>; 4],
    sizes: AttentionShape,
) -> (FloatTensor<B>, ProjectAndAttendState<B>) {
    let (packed, projection) = project::<B, 3>(&B::numbers(x.clone()), [wq, wk, wv]);
    let (y, saved) = attention::forward(&sizes, packed);
    let y = B::tensor(y, &[sizes.batch * sizes.seq, sizes.width()]);
    (y, (x, projection, (saved, sizes)))
}

fn project_and_attend_backward<B: Host>(
    (x, projection, (saved, sizes)): ProjectAndAttendState<B>,
    dy: FloatTensor<B>,
) -> [FloatTensor<B>; 4] {
    let dqkv = attention::backward(&sizes, &saved, &B::numbers(dy));
    let (dx, [dq, dk, dv]) = projection.backward::<B>(x, &dqkv);
    [dx, dq, dk, dv]
}

/// residual + x w
fn project_and_add<B: Host>([x, w, residual]: [FloatTensor<B>; 3]) -> (FloatTensor<B>, [FloatTensor<B>; 2]) {
    let ([n, d], [_, width]) = (dims::<B>(&x), dims::<B>(&w));
    let mut y = B::numbers(residual);
    let (x_numbers, w_numbers) = (B::numbers(x.clone()), B::numbers(w.clone()));
    let (x_matrix, w_matrix) = (Matrix::new(&x_numbers, d), Matrix::new(&w_numbers, width));
    multiply([n, d, width], x_matrix, w_matrix, &mut y, width, Onto::Add);
    (B::give_back(y), [x, w])
}

fn project_and_add_backward<B: Host>([x, w]: [FloatTensor<B>; 2], dy: FloatTensor<B>) -> [FloatTensor<B>; 3] {
    let ([n, d], [_, width]) = (dims::<B>(&x), dims::<B>(&w));
    let (x, w, dy_numbers) = (B::numbers(x), B::numbers(w), B::numbers(dy.clone()));
    let dy_matrix = Matrix::new(&dy_numbers, width);
    let mut dx = room(n * d);
    multiply([n, width, d], dy_matrix, Matrix::new(&w, width).transposed(), &mut dx, d, Onto::Replace);
    let mut dw = room(d * width);
    multiply([d, n, width], Matrix::new(&x, d).transposed(), dy_matrix, &mut dw, width, Onto::Replace);
    [B::tensor(dx, &[n, d]), B::tensor(dw, &[d, width]), dy]
}

fn dims<B: Host>(tensor: &FloatTensor<B>) -> [usize; 2] {
    shape::<B>(tensor).try_into().expect("two axes")
}

type LossState<B> = ([FloatTensor<B>; 2], Vec<i32>, Option<Vec<f32>>);

fn nll<B: Host>([x, w]: [FloatTensor<B>; 2], targets: &[i32]) -> (FloatTensor<B>, LossState<B>) {
    let d = shape::<B>(&x)[1];
    let (x_numbers, w_numbers) = (B::numbers(x.clone()), B::numbers(w.clone()));
    let vocab = w_numbers.len() / d;
    let is_known = |&target: &i32| usize::try_from(target).is_ok_and(|target| target < vocab);
    assert!(!targets.is_empty() && targets.iter().all(is_known), "a target is no row of {vocab}");
    let (y, softmax) = loss::forward(&x_numbers, &w_numbers, targets, d);
    (B::tensor(y, &[targets.len()]), ([x, w], targets.to_vec(), softmax))
}

fn nll_backward<B: Host>(([x, w], targets, softmax): LossState<B>, dy: FloatTensor<B>) -> [FloatTensor<B>; 2] {
    let (x_shape, w_shape) = (shape::<B>(&x), shape::<B>(&w));
    let (x, w, dy) = (B::numbers(x), B::numbers(w), B::numbers(dy));
    let (dx, dw) = loss::backward(&x, &w, &targets, x_shape[1], softmax, &dy);
    [B::tensor(dx, &x_shape), B::tensor(dw, &w_shape)]
}
