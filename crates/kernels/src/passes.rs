//! Each operation on the tensors of a backend: a forward pass that also returns what the backward pass needs, and the
//! backward pass.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;

use crate::attention::Saved;
use crate::host::Host;
use crate::matrix::{Matrix, Onto, multiply, room};
use crate::{Activation, AttentionShape, activation, attention, loss, norm};

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

pub(crate) fn rms_norm<B: Host>([x, gamma]: [FloatTensor<B>; 2]) -> (FloatTensor<B>, [FloatTensor<B>; 2]) {
    let shape = shape::<B>(&x);
    let (x_numbers, gamma_numbers) = (B::numbers(x.clone()), B::numbers(gamma.clone()));
    let mut y = rows_of(&x_numbers, &[&gamma_numbers]);
    norm::rms_forward(&x_numbers, &gamma_numbers, &mut y);
    (B::tensor(y, &shape), [x, gamma])
}

pub(crate) fn rms_norm_backward<B: Host>([x, gamma]: [FloatTensor<B>; 2], dy: FloatTensor<B>) -> [FloatTensor<B>; 2] {
    let (x, gamma, mut dy) = (B::numbers(x), B::numbers(gamma), B::numbers(dy));
    let mut dgamma = vec![0.0; gamma.len()];
    norm::rms_backward(&x, &gamma, &mut dy, &mut dgamma);
    [B::give_back(dy), B::tensor(dgamma, &[gamma.len()])]
}

pub(crate) fn layer_norm<B: Host>([x, gamma, beta]: [FloatTensor<B>; 3]) -> (FloatTensor<B>, [FloatTensor<B>; 2]) {
    let shape = shape::<B>(&x);
    let (x_numbers, gamma_numbers, beta) = (B::numbers(x.clone()), B::numbers(gamma.clone()), B::numbers(beta));
    let mut y = rows_of(&x_numbers, &[&gamma_numbers, &beta]);
    norm::layer_forward(&x_numbers, &gamma_numbers, &beta, &mut y);
    (B::tensor(y, &shape), [x, gamma])
}

pub(crate) fn layer_norm_backward<B: Host>([x, gamma]: [FloatTensor<B>; 2], dy: FloatTensor<B>) -> [FloatTensor<B>; 3] {
    let (x, gamma, mut dy) = (B::numbers(x), B::numbers(gamma), B::numbers(dy));
    let d = gamma.len();
    let (mut dgamma, mut dbeta, mut centered) = (vec![0.0; d], vec![0.0; d], vec![0.0; d]);
    norm::layer_backward(&x, &gamma, &mut dy, &mut dgamma, &mut dbeta, &mut centered);
    [B::give_back(dy), B::tensor(dgamma, &[d]), B::tensor(dbeta, &[d])]
}

pub(crate) fn dyt<B: Host>([x, alpha, gamma, beta]: [FloatTensor<B>; 4]) -> (FloatTensor<B>, [FloatTensor<B>; 3]) {
    let shape = shape::<B>(&x);
    let (x_numbers, alpha_numbers) = (B::numbers(x.clone()), B::numbers(alpha.clone()));
    let (gamma_numbers, beta) = (B::numbers(gamma.clone()), B::numbers(beta));
    let mut y = rows_of(&x_numbers, &[&gamma_numbers, &beta]);
    norm::dyt_forward(&x_numbers, alpha_numbers[0], &gamma_numbers, &beta, &mut y);
    (B::tensor(y, &shape), [x, alpha, gamma])
}

pub(crate) fn dyt_backward<B: Host>([x, alpha, gamma]: [FloatTensor<B>; 3], dy: FloatTensor<B>) -> [FloatTensor<B>; 4] {
    let (x, alpha, gamma, mut dy) = (B::numbers(x), B::numbers(alpha), B::numbers(gamma), B::numbers(dy));
    let d = gamma.len();
    let (mut dgamma, mut dbeta) = (vec![0.0; d], vec![0.0; d]);
    let dalpha = norm::dyt_backward(&x, alpha[0], &gamma, &mut dy, &mut dgamma, &mut dbeta);
    [B::give_back(dy), B::tensor(vec![dalpha as f32], &[1]), B::tensor(dgamma, &[d]), B::tensor(dbeta, &[d])]
}

pub(crate) fn activate<B: Host>(
    [x]: [FloatTensor<B>; 1],
    f: Activation,
) -> (FloatTensor<B>, (FloatTensor<B>, Activation)) {
    let shape = shape::<B>(&x);
    let numbers = B::numbers(x.clone());
    let mut y = room(numbers.len());
    activation::forward(f, &numbers, &mut y);
    (B::tensor(y, &shape), (x, f))
}

pub(crate) fn activate_backward<B: Host>(
    (x, f): (FloatTensor<B>, Activation),
    dy: FloatTensor<B>,
) -> [FloatTensor<B>; 1] {
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
pub(crate) struct Projection<const N: usize> {
    w: Vec<f32>,
    d: usize,
    widths: [usize; N],
}

impl<const N: usize> Projection<N> {
    /// Gradients of x and of each matrix, given that of the products side by side.
    fn backward<B: Host>(&self, x: FloatTensor<B>, dy: &[f32]) -> (FloatTensor<B>, [FloatTensor<B>; N]) {
        let x_shape = shape::<B>(&x);
        let (dx, dw) = product_backward(&B::numbers(x), &self.w, dy, self.d);
        (B::tensor(dx, &x_shape), apart::<B, N>(&dw, self.widths))
    }
}

/// Gradients of x `[n, d]` and w `[d, width]`, given that of their product.
fn product_backward(x: &[f32], w: &[f32], dy: &[f32], d: usize) -> (Vec<f32>, Vec<f32>) {
    let (n, width) = (x.len() / d, w.len() / d);
    let dy = Matrix::new(dy, width);
    let (mut dx, mut dw) = (room(n * d), room(d * width));
    multiply([n, width, d], dy, Matrix::new(w, width).transposed(), &mut dx, d, Onto::Replace);
    multiply([d, n, width], Matrix::new(x, d).transposed(), dy, &mut dw, width, Onto::Replace);
    (dx, dw)
}

pub(crate) type GateState = (Vec<f32>, usize, Activation);

pub(crate) fn gate_up<B: Host>([gate, up]: [FloatTensor<B>; 2], f: Activation) -> (FloatTensor<B>, GateState) {
    let shape = shape::<B>(&gate);
    let width = shape[shape.len() - 1];
    let (gate, up) = (B::numbers(gate), B::numbers(up));
    let (y, state) = gated(side_by_side(&[(&gate, width), (&up, width)]), width, f);
    (B::tensor(y, &shape), state)
}

/// f(gate) up of rows that hold both.
fn gated(packed: Vec<f32>, width: usize, f: Activation) -> (Vec<f32>, GateState) {
    let mut y = room(packed.len() / 2);
    activation::gated_forward(f, width, &packed, &mut y);
    (y, (packed, width, f))
}

pub(crate) fn gate_up_backward<B: Host>((mut packed, width, f): GateState, dy: FloatTensor<B>) -> [FloatTensor<B>; 2] {
    activation::gated_backward(f, width, &mut packed, &B::numbers(dy));
    apart::<B, 2>(&packed, [width; 2])
}

pub(crate) type ProjectAndGateState<B> = (FloatTensor<B>, Projection<2>, GateState);

pub(crate) fn project_and_gate<B: Host>(
    [x, wgate, wup]: [FloatTensor<B>; 3],
    f: Activation,
) -> (FloatTensor<B>, ProjectAndGateState<B>) {
    let (packed, projection) = project::<B, 2>(&B::numbers(x.clone()), [wgate, wup]);
    let width = projection.widths[0];
    let (y, state) = gated(packed, width, f);
    let n = y.len() / width;
    (B::tensor(y, &[n, width]), (x, projection, state))
}

pub(crate) fn project_and_gate_backward<B: Host>(
    (x, projection, (mut packed, width, f)): ProjectAndGateState<B>,
    dy: FloatTensor<B>,
) -> [FloatTensor<B>; 3] {
    activation::gated_backward(f, width, &mut packed, &B::numbers(dy));
    let (dx, [dgate, dup]) = projection.backward::<B>(x, &packed);
    [dx, dgate, dup]
}

pub(crate) type AttentionState = (Saved, AttentionShape);

pub(crate) fn attend<B: Host>(
    [q, k, v]: [FloatTensor<B>; 3],
    sizes: AttentionShape,
) -> (FloatTensor<B>, AttentionState) {
    let shape = shape::<B>(&q);
    let (q, k, v) = (B::numbers(q), B::numbers(k), B::numbers(v));
    let kv_width = sizes.kv_width();
    let packed = side_by_side(&[(&q, sizes.width()), (&k, kv_width), (&v, kv_width)]);
    let (y, saved) = attention::forward(&sizes, packed);
    (B::tensor(y, &shape), (saved, sizes))
}

pub(crate) fn attend_backward<B: Host>((saved, sizes): AttentionState, dy: FloatTensor<B>) -> [FloatTensor<B>; 3] {
    let kv_width = sizes.kv_width();
    let dqkv = attention::backward(&sizes, &saved, &B::numbers(dy));
    apart::<B, 3>(&dqkv, [sizes.width(), kv_width, kv_width])
}

pub(crate) type ProjectAndAttendState<B> = (FloatTensor<B>, Projection<3>, AttentionState);

pub(crate) fn project_and_attend<B: Host>(
    [x, wq, wk, wv]: [FloatTensor<B>; 4],
    sizes: AttentionShape,
) -> (FloatTensor<B>, ProjectAndAttendState<B>) {
    let (packed, projection) = project::<B, 3>(&B::numbers(x.clone()), [wq, wk, wv]);
    let (y, saved) = attention::forward(&sizes, packed);
    let y = B::tensor(y, &[sizes.batch * sizes.seq, sizes.width()]);
    (y, (x, projection, (saved, sizes)))
}

pub(crate) fn project_and_attend_backward<B: Host>(
    (x, projection, (saved, sizes)): ProjectAndAttendState<B>,
    dy: FloatTensor<B>,
) -> [FloatTensor<B>; 4] {
    let dqkv = attention::backward(&sizes, &saved, &B::numbers(dy));
    let (dx, [dq, dk, dv]) = projection.backward::<B>(x, &dqkv);
    [dx, dq, dk, dv]
}

/// residual + x w
pub(crate) fn project_and_add<B: Host>([x, w, residual]: [FloatTensor<B>; 3]) -> (FloatTensor<B>, [FloatTensor<B>; 2]) {
    let ([n, d], [_, width]) = (dims::<B>(&x), dims::<B>(&w));
    let mut y = B::numbers(residual);
    let (x_numbers, w_numbers) = (B::numbers(x.clone()), B::numbers(w.clone()));
    let (x_matrix, w_matrix) = (Matrix::new(&x_numbers, d), Matrix::new(&w_numbers, width));
    multiply([n, d, width], x_matrix, w_matrix, &mut y, width, Onto::Add);
    (B::give_back(y), [x, w])
}

pub(crate) fn project_and_add_backward<B: Host>(
    [x, w]: [FloatTensor<B>; 2],
    dy: FloatTensor<B>,
) -> [FloatTensor<B>; 3] {
    let ([n, d], [_, width]) = (dims::<B>(&x), dims::<B>(&w));
    let (dx, dw) = product_backward(&B::numbers(x), &B::numbers(w), &B::numbers(dy.clone()), d);
    [B::tensor(dx, &[n, d]), B::tensor(dw, &[d, width]), dy]
}

fn dims<B: Host>(tensor: &FloatTensor<B>) -> [usize; 2] {
    shape::<B>(tensor).try_into().expect("two axes")
}

pub(crate) type LossState<B> = ([FloatTensor<B>; 2], Vec<i32>, Option<Vec<f32>>);

pub(crate) fn nll<B: Host>([x, w]: [FloatTensor<B>; 2], targets: &[i32]) -> (FloatTensor<B>, LossState<B>) {
    let d = shape::<B>(&x)[1];
    let (x_numbers, w_numbers) = (B::numbers(x.clone()), B::numbers(w.clone()));
    let vocab = w_numbers.len() / d;
    let is_known = |&target: &i32| usize::try_from(target).is_ok_and(|target| target < vocab);
    assert!(!targets.is_empty() && targets.iter().all(is_known), "a target is no row of {vocab}");
    let (y, softmax) = loss::forward(&x_numbers, &w_numbers, targets, d);
    (B::tensor(y, &[targets.len()]), ([x, w], targets.to_vec(), softmax))
}

pub(crate) fn nll_backward<B: Host>(
    ([x, w], targets, softmax): LossState<B>,
    dy: FloatTensor<B>,
) -> [FloatTensor<B>; 2] {
    let (x_shape, w_shape) = (shape::<B>(&x), shape::<B>(&w));
    let (x, w, dy) = (B::numbers(x), B::numbers(w), B::numbers(dy));
    let (dx, dw) = loss::backward(&x, &w, &targets, x_shape[1], softmax, &dy);
    [B::tensor(dx, &x_shape), B::tensor(dw, &w_shape)]
}
