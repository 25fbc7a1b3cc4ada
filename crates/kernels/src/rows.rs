//! Work that threads share row by row.

use rayon::prelude::*;

/// Rows of a task. What is summed over rows is summed task by task, so that its bits depend on no number of threads.
pub(crate) const ROWS: usize = 64;

/// Numbers of a task where rows have no meaning.
pub(crate) const NUMBERS: usize = 1 << 14;

/// Calls `f` with rows of `d` of x, the same rows of y, and vectors of `d` zeros to add to. Returns the sums of the vectors.
pub(crate) fn summed<const N: usize>(
    d: usize,
    x: &[f32],
    y: &mut [f32],
    f: impl Fn(&[f32], &mut [f32], &mut [Vec<f32>; N]) + Sync,
) -> [Vec<f32>; N] {
    let zeros = || std::array::from_fn(|_| vec![0.0; d]);
    let task = |(x, y): (&[f32], &mut [f32])| {
        let mut sums = zeros();
        f(x, y, &mut sums);
        sums
    };
    let parts: Vec<[Vec<f32>; N]> =
        (x.par_chunks(ROWS * d), y.par_chunks_mut(ROWS * d)).into_par_iter().map(task).collect();
    let mut sums: [Vec<f32>; N] = zeros();
    for part in &parts {
        for (sum, part) in sums.iter_mut().zip(part) {
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
    }
    sums
}
