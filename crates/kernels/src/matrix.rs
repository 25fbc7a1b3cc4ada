//! Matrix products over strided views, without copies.

use std::time::Instant;

use gemm::Parallelism;

/// Room for numbers that the caller writes, all of them, before any is read: to fill it with zeros first would be a pass over
/// memory.
pub(crate) fn room(n: usize) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(n);
    // SAFETY: the capacity is there, and what lies in it is not read: each caller hands it to a kernel that writes as many numbers
    // as the shapes say, which are checked in `passes.rs` and `attention.rs`.
    #[allow(clippy::uninit_vec, reason = "see above")]
    unsafe {
        numbers.set_len(n);
    }
    numbers
}

/// A matrix in a slice: element (i, j) at `i * row_stride + j * column_stride`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row_stride: usize,
    pub(crate) column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows `stride` apart.
    pub(crate) fn new(data: &'a [f32], stride: usize) -> Self {
        Matrix { data, row_stride: stride, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        Matrix { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    fn holds(&self, n_rows: usize, n_columns: usize) -> bool {
        (n_rows - 1) * self.row_stride + (n_columns - 1) * self.column_stride < self.data.len()
    }
}

/// What happens to what a product's place holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Onto {
    Replace,
    Add,
}

/// out = a b, or out += a b, with `out` in rows `stride` apart; a is `[m, k]` and b `[k, n]`.
///
/// Each element is summed over k in one order whatever the number of threads.
pub(crate) fn multiply([m, k, n]: [usize; 3], a: Matrix, b: Matrix, out: &mut [f32], stride: usize, onto: Onto) {
    if m == 0 || k == 0 || n == 0 {
        if onto == Onto::Replace {
            for row in out.chunks_mut(stride.max(1)).take(m) {
                row[..n].fill(0.0);
            }
        }
        return;
    }
    assert!(a.holds(m, k) && b.holds(k, n) && (m - 1) * stride + n <= out.len(), "a matrix is out of bounds");
    // Below this many products, sharing them costs more than it saves.
    let parallelism = if m * k * n < 1 << 22 || rayon::current_num_threads() == 1 {
        Parallelism::None
    } else {
        Parallelism::Rayon(0)
    };
    // SAFETY: the three matrices lie within their slices.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride as isize,
            onto == Onto::Add,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Floating-point operations per second of the fastest of some products of `[1024, 512]` and `[512, 512]`: what a step of
/// nothing but matrices could reach.
pub fn matrix_peak() -> f64 {
    let [m, k, n] = [1024, 512, 512];
    let (a, b, mut out) = (vec![1.0; m * k], vec![1.0; k * n], room(m * n));
    let seconds = (0..20).map(|_| {
        let start = Instant::now();
        multiply([m, k, n], Matrix::new(&a, k), Matrix::new(&b, n), &mut out, n, Onto::Replace);
        start.elapsed().as_secs_f64()
    });
    2.0 * (m * k * n) as f64 / seconds.fold(f64::INFINITY, f64::min)
}
