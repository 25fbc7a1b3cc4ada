//! The two branches of a block, each from its input to the residual stream in one operation.
//!
//! Between its matrices a branch keeps only what it cannot make again cheaply: the backward pass computes the feed-forward's
//! hidden layer a second time, from the slopes' own pass over it.

use burn::backend::tensor::FloatTensor;

use crate::attention::Saved;
use crate::clock::{Part, timed};
use crate::host::Host;
use crate::matrix::{Matrix, Onto, multiply, room};
use crate::passes::shape;
use crate::{Activation, AttentionShape, activation, attention};

fn dims<B: Host>(tensor: &FloatTensor<B>) -> [usize; 2] {
    shape::<B>(tensor).try_into().expect("two axes")
}

/// x `[n, d]` by several matrices `[d, width]`, the products side by side.
fn project<B: Host>(x: &FloatTensor<B>, ws: &[FloatTensor<B>]) -> Vec<f32> {
    let ([n, d], row) = (dims::<B>(x), ws.iter().map(|w| dims::<B>(w)[1]).sum());
    assert!(ws.iter().all(|w| dims::<B>(w)[0] == d), "matrices for other rows than those of {d} numbers");
    let x = B::numbers(x.clone());
    let mut y = room(n * row);
    let mut before = 0;
    for w in ws {
        let ([_, width], w) = (dims::<B>(w), B::numbers(w.clone()));
        let (x, w) = (Matrix::new(&x, d), Matrix::new(&w, width));
        timed(Part::Matrices, || multiply([n, d, width], x, w, &mut y[before..], row, Onto::Replace));
        before += width;
    }
    y
}

/// Gradients of x and of each matrix, given that of the products side by side.
fn project_backward<B: Host, const N: usize>(
    x: FloatTensor<B>,
    ws: [FloatTensor<B>; N],
    dy: &[f32],
) -> (FloatTensor<B>, [FloatTensor<B>; N]) {
    let ([n, d], row) = (dims::<B>(&x), ws.iter().map(|w| dims::<B>(w)[1]).sum());
    let x = B::numbers(x);
    let mut dx = room(n * d);
    let mut before = 0;
    let dws = ws.map(|w| {
        let ([_, width], w) = (dims::<B>(&w), B::numbers(w));
        let dy = Matrix::new(&dy[before..], row);
        let onto = if before == 0 { Onto::Replace } else { Onto::Add };
        let mut dw = room(d * width);
        timed(Part::Matrices, || {
            multiply([n, width, d], dy, Matrix::new(&w, width).transposed(), &mut dx, d, onto);
            multiply([d, n, width], Matrix::new(&x, d).transposed(), dy, &mut dw, width, Onto::Replace);
        });
        before += width;
        B::tensor(dw, &[d, width])
    });
    (B::tensor(dx, &[n, d]), dws)
}

/// residual + x w, in the place of the residual if nothing else has it.
fn add_product<B: Host>(residual: FloatTensor<B>, x: &[f32], w: &FloatTensor<B>) -> FloatTensor<B> {
    let ([d, width], w) = (dims::<B>(w), B::numbers(w.clone()));
    let mut y = B::numbers(residual);
    assert_eq!(y.len() / width * d, x.len(), "a residual of another number of rows");
    let (x, w, n) = (Matrix::new(x, d), Matrix::new(&w, width), x.len() / d);
    timed(Part::Matrices, || multiply([n, d, width], x, w, &mut y, width, Onto::Add));
    B::give_back(y)
}

/// The gradient of x in x w, given that of the product.
fn before_product<B: Host>(dy: &[f32], w: &FloatTensor<B>) -> Vec<f32> {
    let ([d, width], w) = (dims::<B>(w), B::numbers(w.clone()));
    let n = dy.len() / width;
    let mut dx = room(n * d);
    let (dy, w) = (Matrix::new(dy, width), Matrix::new(&w, width).transposed());
    timed(Part::Matrices, || multiply([n, width, d], dy, w, &mut dx, d, Onto::Replace));
    dx
}

/// The gradient of a matrix of these dimensions in x w, given that of the product.
fn of_matrix<B: Host>(x: &[f32], dy: &[f32], [d, width]: [usize; 2]) -> FloatTensor<B> {
    let mut dw = room(d * width);
    let (n, x) = (x.len() / d, Matrix::new(x, d).transposed());
    let dy = Matrix::new(dy, width);
    timed(Part::Matrices, || multiply([d, n, width], x, dy, &mut dw, width, Onto::Replace));
    B::tensor(dw, &[d, width])
}

/// Input and last matrix, first matrices, what these give side by side.
pub(crate) type FeedForwardState<B, const N: usize> = ([FloatTensor<B>; 2], [FloatTensor<B>; N], Vec<f32>, Activation);

/// residual + f(x up) down; or with two first matrices, gate and up, residual + (f(x gate) x up) down.
fn forward<B: Host, const N: usize>(
    x: FloatTensor<B>,
    ws: [FloatTensor<B>; N],
    down: FloatTensor<B>,
    residual: FloatTensor<B>,
    f: Activation,
) -> (FloatTensor<B>, FeedForwardState<B, N>) {
    let (packed, width) = (project::<B>(&x, &ws), dims::<B>(&down)[0]);
    assert!(ws.iter().all(|w| dims::<B>(w)[1] == width), "a hidden width that is not that of the last matrix, {width}");
    let mut hidden = room(packed.len() / N);
    timed(Part::Activation, || match N {
        1 => activation::forward(f, &packed, &mut hidden),
        _ => activation::gated_forward(f, width, &packed, &mut hidden),
    });
    let y = add_product::<B>(residual, &hidden, &down);
    (y, ([x, down], ws, packed, f))
}

/// Gradients of the input, of the first matrices and of the last.
fn backward<B: Host, const N: usize>(
    ([x, down], ws, mut packed, f): FeedForwardState<B, N>,
    dy: &[f32],
) -> (FloatTensor<B>, [FloatTensor<B>; N], FloatTensor<B>) {
    let mut hidden = before_product::<B>(dy, &down);
    timed(Part::Activation, || match N {
        1 => activation::backward(f, &mut packed, &mut hidden),
        _ => activation::gated_backward(f, dims::<B>(&down)[0], &mut packed, &mut hidden),
    });
    let ddown = of_matrix::<B>(&hidden, dy, dims::<B>(&down));
    drop(hidden);
    let (dx, dws) = project_backward::<B, N>(x, ws, &packed);
    (dx, dws, ddown)
}

pub(crate) fn feed_forward<B: Host>(
    [x, up, down, residual]: [FloatTensor<B>; 4],
    f: Activation,
) -> (FloatTensor<B>, FeedForwardState<B, 1>) {
    forward::<B, 1>(x, [up], down, residual, f)
}

pub(crate) fn feed_forward_backward<B: Host>(state: FeedForwardState<B, 1>, dy: FloatTensor<B>) -> [FloatTensor<B>; 4] {
    let (dx, [dup], ddown) = backward::<B, 1>(state, &B::numbers(dy.clone()));
    [dx, dup, ddown, dy]
}

pub(crate) fn gated_feed_forward<B: Host>(
    [x, gate, up, down, residual]: [FloatTensor<B>; 5],
    f: Activation,
) -> (FloatTensor<B>, FeedForwardState<B, 2>) {
    forward::<B, 2>(x, [gate, up], down, residual, f)
}

pub(crate) fn gated_feed_forward_backward<B: Host>(
    state: FeedForwardState<B, 2>,
    dy: FloatTensor<B>,
) -> [FloatTensor<B>; 5] {
    let (dx, [dgate, dup], ddown) = backward::<B, 2>(state, &B::numbers(dy.clone()));
    [dx, dgate, dup, ddown, dy]
}

/// Input and last matrix, first matrices, what came out of the heads, what attention keeps.
pub(crate) type SelfAttentionState<B> = ([FloatTensor<B>; 2], [FloatTensor<B>; 3], Vec<f32>, Saved, AttentionShape);

/// residual + attention(x wq, x wk, x wv) wo
pub(crate) fn self_attention<B: Host>(
    [x, wq, wk, wv, wo, residual]: [FloatTensor<B>; 6],
    sizes: AttentionShape,
) -> (FloatTensor<B>, SelfAttentionState<B>) {
    let ws = [wq, wk, wv];
    let packed = project::<B>(&x, &ws);
    let (mixed, saved) = timed(Part::Attention, || attention::forward(&sizes, packed));
    let y = add_product::<B>(residual, &mixed, &wo);
    (y, ([x, wo], ws, mixed, saved, sizes))
}

pub(crate) fn self_attention_backward<B: Host>(
    ([x, wo], ws, mixed, saved, sizes): SelfAttentionState<B>,
    dy: FloatTensor<B>,
) -> [FloatTensor<B>; 6] {
    let numbers = B::numbers(dy.clone());
    let dwo = of_matrix::<B>(&mixed, &numbers, dims::<B>(&wo));
    drop(mixed);
    let dmixed = before_product::<B>(&numbers, &wo);
    let dqkv = timed(Part::Attention, || attention::backward(&sizes, &saved, &dmixed));
    let (dx, [dwq, dwk, dwv]) = project_backward::<B, 3>(x, ws, &dqkv);
    [dx, dwq, dwk, dwv, dwo, dy]
}
