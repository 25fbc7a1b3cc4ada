//! The operations on the tensors of a backend, but for the branches of a block: a forward pass that also returns what the
//! backward pass needs, and the backward pass.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use rayon::prelude::*;

use crate::attention::Saved;
use crate::clock::{Part, timed};
use crate::host::Host;
use crate::matrix::room;
use crate::rows::{ROWS, summed};
use crate::{Activation, AttentionShape, activation, attention, loss, norm};

pub(crate) fn shape<B: Host>(tensor: &FloatTensor<B>) -> Vec<usize> {
    tensor.shape().iter().copied().collect()
}

/// y row by row, as many at a time as a task takes; `vectors` are applied to each row.
fn normed<B: Host>(x: &FloatTensor<B>, vectors: &[&[f32]], f: impl Fn(&[f32], &mut [f32]) + Sync) -> FloatTensor<B> {
    let (shape, x, d) = (shape::<B>(x), B::numbers(x.clone()), vectors[0].len());
    assert!(d > 0 && x.len().is_multiple_of(d), "{} numbers are no rows of {d}", x.len());
    assert!(vectors.iter().all(|vector| vector.len() == d), "gain and bias differ in length");
    let mut y = room(x.len());
    timed(Part::Norm, || {
        (x.par_chunks(ROWS * d), y.par_chunks_mut(ROWS * d)).into_par_iter().for_each(|(x, y)| f(x, y));
    });
    B::tensor(y, &shape)
}

/// dx from dy, and the gradients of `N` vectors of `d` numbers, which `f` adds to.
fn normed_backward<B: Host, const N: usize>(
    d: usize,
    x: FloatTensor<B>,
    dy: FloatTensor<B>,
    f: impl Fn(&[f32], &mut [f32], &mut [Vec<f32>; N]) + Sync,
) -> (FloatTensor<B>, [Vec<f32>; N]) {
    let (x, mut dy) = (B::numbers(x), B::numbers(dy));
    let sums = timed(Part::Norm, || summed(d, &x, &mut dy, f));
    (B::give_back(dy), sums)
}

fn vector<B: Host>(numbers: Vec<f32>) -> FloatTensor<B> {
    let n = numbers.len();
    B::tensor(numbers, &[n])
}

pub(crate) fn rms_norm<B: Host>([x, gamma]: [FloatTensor<B>; 2]) -> (FloatTensor<B>, [FloatTensor<B>; 2]) {
    let g = B::numbers(gamma.clone());
    (normed::<B>(&x, &[&g], |x, y| norm::rms_forward(x, &g, y)), [x, gamma])
}

pub(crate) fn rms_norm_backward<B: Host>([x, gamma]: [FloatTensor<B>; 2], dy: FloatTensor<B>) -> [FloatTensor<B>; 2] {
    let g = B::numbers(gamma);
    let (dx, [dgamma]) =
        normed_backward::<B, 1>(g.len(), x, dy, |x, dy, [dgamma]| norm::rms_backward(x, &g, dy, dgamma));
    [dx, vector::<B>(dgamma)]
}

pub(crate) fn layer_norm<B: Host>([x, gamma, beta]: [FloatTensor<B>; 3]) -> (FloatTensor<B>, [FloatTensor<B>; 2]) {
    let (g, b) = (B::numbers(gamma.clone()), B::numbers(beta));
    (normed::<B>(&x, &[&g, &b], |x, y| norm::layer_forward(x, &g, &b, y)), [x, gamma])
}

pub(crate) fn layer_norm_backward<B: Host>([x, gamma]: [FloatTensor<B>; 2], dy: FloatTensor<B>) -> [FloatTensor<B>; 3] {
    let g = B::numbers(gamma);
    let (dx, [dgamma, dbeta]) = normed_backward::<B, 2>(g.len(), x, dy, |x, dy, [dgamma, dbeta]| {
        norm::layer_backward(x, &g, dy, dgamma, dbeta)
    });
    [dx, vector::<B>(dgamma), vector::<B>(dbeta)]
}

pub(crate) fn dyt<B: Host>([x, alpha, gamma, beta]: [FloatTensor<B>; 4]) -> (FloatTensor<B>, [FloatTensor<B>; 3]) {
    let (a, g, b) = (B::numbers(alpha.clone())[0], B::numbers(gamma.clone()), B::numbers(beta));
    (normed::<B>(&x, &[&g, &b], |x, y| norm::dyt_forward(x, a, &g, &b, y)), [x, alpha, gamma])
}

pub(crate) fn dyt_backward<B: Host>([x, alpha, gamma]: [FloatTensor<B>; 3], dy: FloatTensor<B>) -> [FloatTensor<B>; 4] {
    let (a, g) = (B::numbers(alpha)[0], B::numbers(gamma));
    let (dx, [dgamma, dbeta, dalpha]) = normed_backward::<B, 3>(g.len(), x, dy, |x, dy, [dgamma, dbeta, dalpha]| {
        norm::dyt_backward(x, a, &g, dy, dgamma, dbeta, dalpha)
    });
    let dalpha: f64 = dalpha.into_iter().map(f64::from).sum();
    [dx, vector::<B>(vec![dalpha as f32]), vector::<B>(dgamma), vector::<B>(dbeta)]
}

pub(crate) fn activate<B: Host>(
    [x]: [FloatTensor<B>; 1],
    f: Activation,
) -> (FloatTensor<B>, (FloatTensor<B>, Activation)) {
    let (shape, numbers) = (shape::<B>(&x), B::numbers(x.clone()));
    let mut y = room(numbers.len());
    timed(Part::Activation, || activation::forward(f, &numbers, &mut y));
    (B::tensor(y, &shape), (x, f))
}

pub(crate) fn activate_backward<B: Host>(
    (x, f): (FloatTensor<B>, Activation),
    dy: FloatTensor<B>,
) -> [FloatTensor<B>; 1] {
    let (mut x, mut dy) = (B::numbers(x), B::numbers(dy));
    timed(Part::Activation, || activation::backward(f, &mut x, &mut dy));
    [B::give_back(x)]
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

/// Gates and what they multiply, side by side, and the width of each.
pub(crate) type GateState = (Vec<f32>, usize, Activation);

pub(crate) fn gate_up<B: Host>([gate, up]: [FloatTensor<B>; 2], f: Activation) -> (FloatTensor<B>, GateState) {
    let shape = shape::<B>(&gate);
    let width = shape[shape.len() - 1];
    let packed = side_by_side(&[(&B::numbers(gate), width), (&B::numbers(up), width)]);
    let mut y = room(packed.len() / 2);
    timed(Part::Activation, || activation::gated_forward(f, width, &packed, &mut y));
    (B::tensor(y, &shape), (packed, width, f))
}

pub(crate) fn gate_backward<B: Host>((mut packed, width, f): GateState, dy: FloatTensor<B>) -> [FloatTensor<B>; 2] {
    let mut dy = B::numbers(dy);
    timed(Part::Activation, || activation::gated_backward(f, width, &mut packed, &mut dy));
    apart::<B, 2>(&packed, [width; 2])
}

pub(crate) type AttentionState = (Saved, AttentionShape);

pub(crate) fn attend<B: Host>(
    [q, k, v]: [FloatTensor<B>; 3],
    sizes: AttentionShape,
) -> (FloatTensor<B>, AttentionState) {
    let (shape, kv_width) = (shape::<B>(&q), sizes.kv_width());
    let packed =
        side_by_side(&[(&B::numbers(q), sizes.width()), (&B::numbers(k), kv_width), (&B::numbers(v), kv_width)]);
    let (y, saved) = timed(Part::Attention, || attention::forward(&sizes, packed));
    (B::tensor(y, &shape), (saved, sizes))
}

pub(crate) fn attend_backward<B: Host>((saved, sizes): AttentionState, dy: FloatTensor<B>) -> [FloatTensor<B>; 3] {
    let (dy, kv_width) = (B::numbers(dy), sizes.kv_width());
    let dqkv = timed(Part::Attention, || attention::backward(&sizes, &saved, &dy));
    apart::<B, 3>(&dqkv, [sizes.width(), kv_width, kv_width])
}

/// x and w, targets, and the softmax if it was kept.
pub(crate) type LossState<B> = ([FloatTensor<B>; 2], Vec<i32>, Option<Vec<f32>>);

pub(crate) fn nll<B: Host>([x, w]: [FloatTensor<B>; 2], targets: &[i32]) -> (FloatTensor<B>, LossState<B>) {
    let d = shape::<B>(&x)[1];
    let (x_numbers, w_numbers) = (B::numbers(x.clone()), B::numbers(w.clone()));
    let vocab = w_numbers.len() / d;
    let is_known = |&target: &i32| usize::try_from(target).is_ok_and(|target| target < vocab);
    assert!(!targets.is_empty() && targets.iter().all(is_known), "a target is no row of {vocab}");
    let (y, softmax) = timed(Part::Loss, || loss::forward(&x_numbers, &w_numbers, targets, d));
    (B::tensor(y, &[targets.len()]), ([x, w], targets.to_vec(), softmax))
}

pub(crate) fn nll_backward<B: Host>(
    ([x, w], targets, softmax): LossState<B>,
    dy: FloatTensor<B>,
) -> [FloatTensor<B>; 2] {
    let (x_shape, w_shape) = (shape::<B>(&x), shape::<B>(&w));
    let (x, w, dy) = (B::numbers(x), B::numbers(w), B::numbers(dy));
    let (dx, dw) = timed(Part::Loss, || loss::backward(&x, &w, &targets, x_shape[1], softmax, &dy));
    [B::tensor(dx, &x_shape), B::tensor(dw, &w_shape)]
}
