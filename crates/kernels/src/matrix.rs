//! Matrix products over strided views, without copies.

use gemm::Parallelism;

/// Room for numbers that are all written before any is read: to fill it with zeros first would be a pass over memory.
pub(crate) fn room(n: usize) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(n);
    // SAFETY: any bits are a number, and the capacity is there.
    #[allow(clippy::uninit_vec)]
    unsafe {
        numbers.set_len(n);
    }
    numbers
}

/// A matrix in a slice: element (i, j) at `i * rows + j * columns`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl<'a> Matrix<'a> {
    /// Rows `stride` apart.
    pub(crate) fn new(data: &'a [f32], stride: usize) -> Self {
        Matrix { data, rows: stride, columns: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        Matrix { rows: self.columns, columns: self.rows, ..self }
    }

    fn holds(&self, n_rows: usize, n_columns: usize) -> bool {
        (n_rows - 1) * self.rows + (n_columns - 1) * self.columns < self.data.len()
    }
}

/// What happens to what a product's place holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Into {
    Replace,
    Add,
}

/// out = a b, or out += a b, with `out` in rows `stride` apart; a is `[m, k]` and b `[k, n]`.
///
/// Each element is summed over k in one order whatever the number of threads.
pub(crate) fn multiply([m, k, n]: [usize; 3], a: Matrix, b: Matrix, out: &mut [f32], stride: usize, into: Into) {
    if m == 0 || k == 0 || n == 0 {
        if into == Into::Replace {
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
            into == Into::Add,
            a.data.as_ptr(),
            a.columns as isize,
            a.rows as isize,
            b.data.as_ptr(),
            b.columns as isize,
            b.rows as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}
