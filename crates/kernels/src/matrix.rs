//! Matrix products over strided views, without copies.

use std::time::Instant;

use gemm::Parallelism;

use crate::math::{fma, simd};

/// Room for numbers that the caller writes, all of them, before any is read: to fill it with zeros first would be a pass over
/// memory.
pub(crate) fn room(n: usize) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(n);
    // SAFETY: the capacity is there, and what lies in it is not read: each caller hands it to a kernel that writes as many numbers
    // as the shapes say, which are checked where a caller takes tensors.
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
    let fits = (m == 1 || stride >= n) && (m - 1) * stride + n <= out.len();
    assert!(a.holds(m, k) && b.holds(k, n) && fits, "a matrix is out of bounds");
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

simd! {
    /// The same as [`multiply`] where there is too little to multiply for packing to pay. The columns of b are next to each other.
    pub(crate) fn multiply_small<F>(
        sizes: &[usize; 3],
        a: Matrix<'_>,
        b: Matrix<'_>,
        out: &mut [f32],
        stride: usize,
        onto: Onto,
    ) {
        let [m, k, n] = *sizes;
        assert!(m > 0 && k > 0 && n > 0 && a.holds(m, k) && b.holds(k, n), "a matrix is out of bounds");
        let mut j = 0;
        while j < n {
            let columns = [16, 4, 1].into_iter().find(|&columns| columns <= n - j).expect("1 is at most any number");
            let b = Matrix { data: &b.data[j..], ..b };
            let mut i = 0;
            while i < m {
                let rows = if m - i >= 8 { 8 } else { 1 };
                let a = Matrix { data: &a.data[i * a.row_stride..], ..a };
                let out = &mut out[i * stride + j..];
                match (rows, columns) {
                    (8, 16) => block::<F, 8, 16>(k, a, b, out, stride, onto),
                    (8, 4) => block::<F, 8, 4>(k, a, b, out, stride, onto),
                    (8, _) => block::<F, 8, 1>(k, a, b, out, stride, onto),
                    (_, 16) => block::<F, 1, 16>(k, a, b, out, stride, onto),
                    (_, 4) => block::<F, 1, 4>(k, a, b, out, stride, onto),
                    _ => block::<F, 1, 1>(k, a, b, out, stride, onto),
                }
                i += rows;
            }
            j += columns;
        }
    }
}

/// The first `ROWS` rows and `COLUMNS` columns of a product: sums that stay in registers.
#[inline(always)]
fn block<const F: bool, const ROWS: usize, const COLUMNS: usize>(
    k: usize,
    a: Matrix,
    b: Matrix,
    out: &mut [f32],
    stride: usize,
    onto: Onto,
) {
    assert!(b.column_stride == 1 && a.holds(ROWS, k) && b.holds(k, COLUMNS), "a block is out of bounds");
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for p in 0..k {
        // SAFETY: element (k - 1, COLUMNS - 1) lies within the slice, and this row before it.
        let b = unsafe { b.data.as_ptr().add(p * b.row_stride).cast::<[f32; COLUMNS]>().read() };
        for i in 0..ROWS {
            // SAFETY: element (ROWS - 1, k - 1) lies within the slice, and this one before it.
            let a = unsafe { *a.data.get_unchecked(i * a.row_stride + p * a.column_stride) };
            for j in 0..COLUMNS {
                sums[i][j] = fma::<F>(a, b[j], sums[i][j]);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        for (out, &sum) in out[i * stride..][..COLUMNS].iter_mut().zip(sums) {
            *out = if onto == Onto::Add { *out + sum } else { sum };
        }
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
