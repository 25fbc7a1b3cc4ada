//! Causal attention over several heads, with rotary positions and grouped queries.
//!
//! Scores are computed transposed, keys by queries, in tiles of 32 queries: the softmax then runs down the columns, 32 at a
//! time, and no tile above the diagonal is touched.

use std::sync::{Arc, Mutex};

use rayon::prelude::*;

use crate::math::{exp, fma, simd};
use crate::matrix::{Matrix, Onto, multiply_small, room};

/// Queries in a tile.
const TILE: usize = 32;

/// Sizes of an attention. Queries, keys and values of a position lie side by side in a row: n_heads, then n_kv_heads twice.
/// q by itself is `[batch * seq, n_heads * head_dim]`, k and v `[batch * seq, n_kv_heads * head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    pub batch: usize,
    pub seq: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// Base of the rotations of queries and keys, if they are rotated.
    pub theta: Option<f64>,
}

impl AttentionShape {
    /// Numbers of a position's queries, and of its output.
    pub(crate) fn width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Numbers of a position's queries, keys and values.
    pub(crate) fn row(&self) -> usize {
        self.width() + 2 * self.kv_width()
    }

    pub(crate) fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Numbers in the tiles of one head of one sequence: each has 32 columns and a row for each key up to its last query.
    fn tiles(&self) -> usize {
        (0..self.seq).step_by(TILE).map(|first| TILE * (first + TILE).min(self.seq)).sum()
    }

    /// Cosines and sines of each position, `[seq, head_dim / 2]` each.
    fn rotations(&self) -> Option<Arc<Rotations>> {
        let key = (self.seq, self.head_dim, self.theta?.to_bits());
        // A training run asks for the same ones all the time.
        static LAST: Mutex<Option<(Key, Arc<Rotations>)>> = Mutex::new(None);
        let mut last = LAST.lock().expect("nobody panics while holding it");
        match &*last {
            Some((known, rotations)) if *known == key => Some(rotations.clone()),
            _ => {
                let half = self.head_dim / 2;
                let frequency = |i: usize| f64::from_bits(key.2).powf(-((2 * i) as f64) / self.head_dim as f64);
                let frequencies: Vec<f64> = (0..half).map(frequency).collect();
                let angle = |index: usize| (index / half) as f64 * frequencies[index % half];
                let angles: Vec<f64> = (0..self.seq * half).map(angle).collect();
                let table = |f: fn(f64) -> f64| angles.iter().map(|&angle| f(angle) as f32).collect();
                let rotations = Arc::new(Rotations { cos: table(f64::cos), sin: table(f64::sin) });
                *last = Some((key, rotations.clone()));
                Some(rotations)
            }
        }
    }

    /// Rotates queries and keys of one sequence, by the opposite angle if `sign` is -1.
    fn rotate(&self, qkv: &mut [f32], rotations: &Rotations, sign: f32) {
        let turned = self.width() + self.kv_width();
        rotate(qkv, &[self.row(), turned, self.head_dim], &rotations.cos, &rotations.sin, sign);
    }

    /// Where a head's queries, keys and values begin in a row.
    fn columns(&self, head: usize) -> [usize; 3] {
        let kv = head / (self.n_heads / self.n_kv_heads) * self.head_dim;
        [head * self.head_dim, self.width() + kv, self.width() + self.kv_width() + kv]
    }
}

/// (seq, head_dim, bits of theta)
type Key = (usize, usize, u64);

struct Rotations {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// What the backward pass needs of the forward one.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    /// Queries, keys and values, the first two rotated.
    qkv: Vec<f32>,
    /// Attention weights, tile after tile.
    weights: Vec<f32>,
}

/// softmax(q k^T / sqrt(head_dim)) v, each position seeing itself and what came before: `[batch * seq, n_heads * head_dim]`.
pub(crate) fn forward(shape: &AttentionShape, mut qkv: Vec<f32>) -> (Vec<f32>, Saved) {
    let (seq, width, row) = (shape.seq, shape.width(), shape.row());
    assert!(seq > 0 && qkv.len() == shape.batch * seq * row, "{} numbers are not {shape:?}", qkv.len());
    let tiles = shape.tiles();
    let mut weights = room(shape.batch * shape.n_heads * tiles);
    let mut out = room(shape.batch * seq * width);
    let rotations = shape.rotations();
    let weights_of = weights.par_chunks_mut(shape.n_heads * tiles);
    let sequences = (qkv.par_chunks_mut(seq * row), weights_of, out.par_chunks_mut(seq * width));
    sequences.into_par_iter().for_each(|(qkv, weights, out)| {
        if let Some(rotations) = &rotations {
            shape.rotate(qkv, rotations, 1.0);
        }
        for (head, weights) in weights.chunks_exact_mut(tiles).enumerate() {
            forward_head(shape, head, qkv, weights, out);
        }
    });
    (out, Saved { qkv, weights })
}

fn forward_head(shape: &AttentionShape, head: usize, qkv: &[f32], weights: &mut [f32], out: &mut [f32]) {
    let (row, width, head_dim) = (shape.row(), shape.width(), shape.head_dim);
    let [q, k, v] = shape.columns(head);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let (keys, values) = (Matrix::new(&qkv[k..], row), Matrix::new(&qkv[v..], row));
    let mut queries = room(head_dim * TILE);
    let mut rest = weights;
    for first in (0..shape.seq).step_by(TILE) {
        let n = TILE.min(shape.seq - first);
        let (tile, after) = rest.split_at_mut((first + n) * TILE);
        rest = after;
        transpose(&qkv[first * row + q..], row, n, &mut queries);
        multiply_small(&[first + n, head_dim, TILE], keys, Matrix::new(&queries, TILE), tile, TILE, Onto::Replace);
        softmax(tile, first, n, scale);
        let weights = Matrix::new(tile, TILE).transposed();
        let out = &mut out[first * width + head * head_dim..];
        multiply_small(&[n, first + n, head_dim], weights, values, out, width, Onto::Replace);
    }
}

/// Gradients of queries, keys and values before their rotation, side by side, given that of the output.
pub(crate) fn backward(shape: &AttentionShape, saved: &Saved, dout: &[f32]) -> Vec<f32> {
    let (seq, width, row) = (shape.seq, shape.width(), shape.row());
    assert_eq!(dout.len(), shape.batch * seq * width, "a gradient of another shape than {shape:?}");
    let tiles = shape.tiles();
    let mut dqkv = room(saved.qkv.len());
    let rotations = shape.rotations();
    let given = (saved.qkv.par_chunks(seq * row), saved.weights.par_chunks(shape.n_heads * tiles));
    let sequences = (given.0, given.1, dout.par_chunks(seq * width), dqkv.par_chunks_mut(seq * row));
    sequences.into_par_iter().for_each(|(qkv, weights, dout, dqkv)| {
        // Heads that share keys and values add to their gradients.
        for row in dqkv.chunks_exact_mut(row) {
            row[width..].fill(0.0);
        }
        let mut tile = room(seq * TILE);
        for (head, weights) in weights.chunks_exact(tiles).enumerate() {
            backward_head(shape, head, (qkv, weights, dout), &mut tile, dqkv);
        }
        if let Some(rotations) = &rotations {
            shape.rotate(dqkv, rotations, -1.0);
        }
    });
    dqkv
}

/// `dweights` is room for a tile.
fn backward_head(
    shape: &AttentionShape,
    head: usize,
    (qkv, weights, dout): (&[f32], &[f32], &[f32]),
    dweights: &mut [f32],
    dqkv: &mut [f32],
) {
    let (row, width, head_dim) = (shape.row(), shape.width(), shape.head_dim);
    let [q, k, v] = shape.columns(head);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let (keys, values) = (Matrix::new(&qkv[k..], row), Matrix::new(&qkv[v..], row));
    let mut across = room(head_dim * TILE);
    let mut rest = weights;
    for first in (0..shape.seq).step_by(TILE) {
        let n = TILE.min(shape.seq - first);
        let n_keys = first + n;
        let (tile, after) = rest.split_at(n_keys * TILE);
        rest = after;
        let dweights = &mut dweights[..n_keys * TILE];
        let dout = &dout[first * width + head * head_dim..];
        transpose(dout, width, n, &mut across);
        multiply_small(&[n_keys, head_dim, TILE], values, Matrix::new(&across, TILE), dweights, TILE, Onto::Replace);
        softmax_backward(tile, dweights, scale);
        let (tile, dscores) = (Matrix::new(tile, TILE), Matrix::new(dweights, TILE));
        let (queries, dout) = (Matrix::new(&qkv[first * row + q..], row), Matrix::new(dout, width));
        let dqueries = &mut dqkv[first * row + q..];
        multiply_small(&[n, n_keys, head_dim], dscores.transposed(), keys, dqueries, row, Onto::Replace);
        multiply_small(&[n_keys, n, head_dim], tile, dout, &mut dqkv[v..], row, Onto::Add);
        multiply_small(&[n_keys, n, head_dim], dscores, queries, &mut dqkv[k..], row, Onto::Add);
    }
}

simd! {
    /// The first `n` rows, `stride` apart, as columns of a tile `[columns, 32]`; its other columns become 0.
    fn transpose<F>(x: &[f32], stride: usize, n: usize, tile: &mut [f32]) {
        for (i, row) in tile.chunks_exact_mut(TILE).enumerate() {
            for (c, y) in row.iter_mut().enumerate() {
                *y = if c < n { x[c * stride + i] } else { 0.0 };
            }
        }
    }

    /// Turns the first `turned` numbers of each row, a position, head by head: feature i with feature i + head_dim / 2.
    fn rotate<F>(rows: &mut [f32], sizes: &[usize; 3], cos: &[f32], sin: &[f32], sign: f32) {
        let [row, turned, head_dim] = *sizes;
        let half = head_dim / 2;
        let angles = cos.chunks_exact(half).zip(sin.chunks_exact(half));
        for (row, (cos, sin)) in rows.chunks_exact_mut(row).zip(angles) {
            for head in row[..turned].chunks_exact_mut(head_dim) {
                let (a, b) = head.split_at_mut(half);
                for (((a, b), &cos), &sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                    let (x, y, sin) = (*a, *b, sin * sign);
                    *a = fma::<F>(-y, sin, x * cos);
                    *b = fma::<F>(x, sin, y * cos);
                }
            }
        }
    }

    /// Softmax down the first `n` columns of a tile, whose column c may see keys up to `first + c`. Other columns become 0.
    fn softmax<F>(tile: &mut [f32], first: usize, n: usize, scale: f32) {
        let mut highest = [f32::NEG_INFINITY; TILE];
        let mut sum = [0.0; TILE];
        for (key, row) in tile.chunks_exact_mut(TILE).enumerate() {
            let seen = key.saturating_sub(first);
            for c in 0..TILE {
                let score = if c < seen || c >= n { f32::NEG_INFINITY } else { row[c] };
                row[c] = score;
                // Not-a-number may be passed over here; it stays in the row, and so comes into the sum.
                highest[c] = highest[c].max(score);
            }
        }
        for row in tile.chunks_exact_mut(TILE) {
            for c in 0..TILE {
                let weight = exp::<F>((row[c] - highest[c]) * scale);
                row[c] = if row[c] == f32::NEG_INFINITY { 0.0 } else { weight };
                sum[c] += row[c];
            }
        }
        for c in 0..TILE {
            sum[c] = if c < n { 1.0 / sum[c] } else { 0.0 };
        }
        for row in tile.chunks_exact_mut(TILE) {
            for c in 0..TILE {
                row[c] *= sum[c];
            }
        }
    }

    /// Gradient of the unscaled scores, in the place of that of the weights.
    fn softmax_backward<F>(weights: &[f32], dweights: &mut [f32], scale: f32) {
        let mut along = [0.0; TILE];
        for (weight, dweight) in weights.chunks_exact(TILE).zip(dweights.chunks_exact(TILE)) {
            for c in 0..TILE {
                along[c] = fma::<F>(weight[c], dweight[c], along[c]);
            }
        }
        for (weight, dweight) in weights.chunks_exact(TILE).zip(dweights.chunks_exact_mut(TILE)) {
            for c in 0..TILE {
                dweight[c] = weight[c] * (dweight[c] - along[c]) * scale;
            }
        }
    }
}
