//! Logits and cross-entropy in one: the logits of a large vocabulary are never all there at once.

use rayon::prelude::*;

use crate::math::{exp, simd};
use crate::matrix::{Matrix, Onto, multiply, room};
use crate::rows::ROWS;

/// Logits that are kept for the backward pass at most, and that are there at a time where they are not kept.
const MOST_LOGITS: usize = 1 << 22;

/// Negative log-likelihood of each target under softmax(x w^T): x is `[n, d]`, w `[vocab, d]`. Returns the softmax with it
/// if it is small enough to keep.
pub(crate) fn forward(x: &[f32], w: &[f32], targets: &[i32], d: usize) -> (Vec<f32>, Option<Vec<f32>>) {
    let (n, vocab) = (targets.len(), w.len() / d);
    let mut nll = room(n);
    let rows = rows_at_a_time(n, vocab);
    let mut logits = room(rows * vocab);
    for (i, nll) in nll.chunks_mut(rows).enumerate() {
        let first = i * rows;
        let logits = &mut logits[..nll.len() * vocab];
        product(&x[first * d..], w, d, logits);
        softmax_nll(logits, &targets[first..first + nll.len()], nll);
    }
    (nll, (rows == n).then_some(logits))
}

/// Gradients of x and w, given those of the likelihoods; `kept` is the softmax if it was kept.
pub(crate) fn backward(
    x: &[f32],
    w: &[f32],
    targets: &[i32],
    d: usize,
    kept: Option<Vec<f32>>,
    dnll: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let (n, vocab) = (targets.len(), w.len() / d);
    let (mut dx, mut dw) = (room(x.len()), vec![0.0; w.len()]);
    let is_kept = kept.is_some();
    let rows = if is_kept { n } else { rows_at_a_time(n, vocab) };
    let mut probabilities = kept.unwrap_or_else(|| room(rows * vocab));
    let mut unused = room(rows);
    for (i, dx) in dx.chunks_mut(rows * d).enumerate() {
        let (first, here) = (i * rows, dx.len() / d);
        let probabilities = &mut probabilities[..here * vocab];
        let (x, targets) = (&x[first * d..(first + here) * d], &targets[first..first + here]);
        if !is_kept {
            product(x, w, d, probabilities);
            softmax_nll(probabilities, targets, &mut unused[..here]);
        }
        less_target(probabilities, targets, &dnll[first..first + here]);
        let dlogits = Matrix::new(probabilities, vocab);
        multiply([here, vocab, d], dlogits, Matrix::new(w, d), dx, d, Onto::Replace);
        multiply([vocab, here, d], dlogits.transposed(), Matrix::new(x, d), &mut dw, d, Onto::Add);
    }
    (dx, dw)
}

fn rows_at_a_time(n: usize, vocab: usize) -> usize {
    if n * vocab <= MOST_LOGITS { n } else { (MOST_LOGITS / vocab).max(1) }
}

/// x w^T for as many rows of x as there is room for.
fn product(x: &[f32], w: &[f32], d: usize, logits: &mut [f32]) {
    let vocab = w.len() / d;
    multiply(
        [logits.len() / vocab, d, vocab],
        Matrix::new(x, d),
        Matrix::new(w, d).transposed(),
        logits,
        vocab,
        Onto::Replace,
    );
}

fn softmax_nll(logits: &mut [f32], targets: &[i32], nll: &mut [f32]) {
    let vocab = logits.len() / targets.len();
    (logits.par_chunks_mut(vocab * ROWS), targets.par_chunks(ROWS), nll.par_chunks_mut(ROWS))
        .into_par_iter()
        .for_each(|(logits, targets, nll)| softmax_nll_rows(logits, targets, nll));
}

fn less_target(probabilities: &mut [f32], targets: &[i32], dnll: &[f32]) {
    let vocab = probabilities.len() / targets.len();
    (probabilities.par_chunks_mut(vocab * ROWS), targets.par_chunks(ROWS), dnll.par_chunks(ROWS))
        .into_par_iter()
        .for_each(|(probabilities, targets, dnll)| less_target_rows(probabilities, targets, dnll));
}

simd! {
    /// Softmax in the place of the logits, and the negative log-likelihood of each row's target.
    fn softmax_nll_rows<F>(logits: &mut [f32], targets: &[i32], nll: &mut [f32]) {
        let vocab = logits.len() / targets.len();
        for ((row, &target), nll) in logits.chunks_exact_mut(vocab).zip(targets).zip(nll) {
            let logit = row[target as usize];
            let mut strands = [f32::NEG_INFINITY; 16];
            let parts = row.chunks_exact(16);
            // Not-a-number may be passed over here; it stays in the row, and so comes into the sum.
            let larger = f32::max;
            let mut highest = parts.remainder().iter().copied().fold(f32::NEG_INFINITY, larger);
            for part in parts {
                for i in 0..16 {
                    strands[i] = larger(strands[i], part[i]);
                }
            }
            highest = strands.into_iter().fold(highest, larger);
            let mut sums = [0.0; 16];
            let mut parts = row.chunks_exact_mut(16);
            for part in &mut parts {
                for i in 0..16 {
                    part[i] = exp::<F>(part[i] - highest);
                    sums[i] += part[i];
                }
            }
            let mut sum = 0.0f32;
            for x in parts.into_remainder() {
                *x = exp::<F>(*x - highest);
                sum += *x;
            }
            sum += sums.into_iter().sum::<f32>();
            *nll = sum.ln() + (highest - logit);
            let scale = 1.0 / sum;
            for x in row.iter_mut() {
                *x *= scale;
            }
        }
    }

    /// (softmax - one at the target) times the gradient of the likelihood, in the place of the softmax.
    fn less_target_rows<F>(probabilities: &mut [f32], targets: &[i32], dnll: &[f32]) {
        let vocab = probabilities.len() / targets.len();
        for ((row, &target), &dnll) in probabilities.chunks_exact_mut(vocab).zip(targets).zip(dnll) {
            row[target as usize] -= 1.0;
            for x in row.iter_mut() {
                *x *= dnll;
            }
        }
    }
}
