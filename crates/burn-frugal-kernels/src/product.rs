//! Matrix products on strided slices: a safe face for the `gemm` crate.

use std::ops::Range;

use gemm::Parallelism;

use crate::Element;

/// A matrix inside a slice: element `(r, c)` lies at `r * row_stride + c * column_stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A matrix whose rows are contiguous, `row_stride` elements apart.
    pub(crate) fn new(data: &'a [T], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride: 1,
        }
    }

    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Some of the rows.
    pub(crate) fn rows(self, range: Range<usize>) -> Self {
        Self {
            data: &self.data[range.start * self.row_stride..],
            rows: range.len(),
            ..self
        }
    }
}

/// Where a product goes: contiguous rows, `row_stride` elements apart.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a, T> {
    pub(crate) data: &'a mut [T],
    pub(crate) row_stride: usize,
}

/// Whether a product replaces what is there or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Replace,
    Add,
}

impl Store {
    /// `Add` if `condition`, else `Replace`.
    pub(crate) fn add_if(condition: bool) -> Self {
        if condition { Self::Add } else { Self::Replace }
    }
}

/// Elements from the first to just past the last of a strided matrix.
fn extent(rows: usize, columns: usize, row_stride: usize, column_stride: usize) -> usize {
    if rows == 0 || columns == 0 {
        0
    } else {
        (rows - 1) * row_stride + (columns - 1) * column_stride + 1
    }
}

fn signed(stride: usize) -> isize {
    isize::try_from(stride).expect("matrix product: stride too large")
}

/// `target = left x right`, or `target += left x right`.
///
/// Panics if the shapes do not match or a matrix leaves its slice.
pub(crate) fn multiply<T: Element>(
    left: Matrix<'_, T>,
    right: Matrix<'_, T>,
    target: MatrixMut<'_, T>,
    store: Store,
    parallelism: Parallelism,
) {
    let (rows, depth, columns) = (left.rows, left.columns, right.columns);
    assert_eq!(depth, right.rows, "matrix product: inner sizes differ");
    for matrix in [left, right] {
        let needed = extent(
            matrix.rows,
            matrix.columns,
            matrix.row_stride,
            matrix.column_stride,
        );
        assert!(
            needed <= matrix.data.len(),
            "matrix product: operand leaves its slice"
        );
    }
    assert!(
        rows <= 1 || target.row_stride >= columns,
        "matrix product: target rows overlap"
    );
    assert!(
        extent(rows, columns, target.row_stride, 1) <= target.data.len(),
        "matrix product: target leaves its slice"
    );
    // SAFETY: T is f32 or f64 (Element is sealed), which `gemm` supports. Strides are non-negative, so every element
    // of the three matrices lies between the first and the last, which lie inside the slices (asserted above; empty
    // matrices are never read). The target's elements are distinct, because its rows do not overlap (asserted above),
    // and it aliases neither operand, because it is a unique borrow.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            target.data.as_mut_ptr(),
            1,
            signed(target.row_stride),
            store == Store::Add,
            left.data.as_ptr(),
            signed(left.column_stride),
            signed(left.row_stride),
            right.data.as_ptr(),
            signed(right.column_stride),
            signed(right.row_stride),
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            parallelism,
        );
    }
}
