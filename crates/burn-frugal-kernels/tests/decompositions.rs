//! Orthonormal bases and eigenvectors: what defines them, on ordinary and degenerate matrices.

mod common;

use burn_frugal_kernels::{DecompositionError, Element, orthonormalize, symmetric_eigen};
use common::{numbers, tolerance, widen};
use proptest::prelude::*;

fn column(matrix: &[f64], columns: usize, index: usize) -> Vec<f64> {
    matrix
        .iter()
        .skip(index)
        .step_by(columns)
        .copied()
        .collect()
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter()
        .zip(right)
        .map(|(left, right)| left * right)
        .sum()
}

#[track_caller]
fn expect_orthonormal(columns: &[Vec<f64>], bound: f64) {
    for (j, left) in columns.iter().enumerate() {
        for (k, right) in columns.iter().enumerate() {
            let error = dot(left, right) - f64::from(j == k);
            assert!(error.abs() <= bound, "columns {j} and {k}: {error:e}");
        }
    }
}

/// Orthonormalizes a matrix and checks that the result is its `Q`: orthonormal, with `Q^T A` upper triangular, its
/// diagonal not negative, and `Q Q^T A = A`.
#[track_caller]
fn check<T: Element>(rows: usize, columns: usize, matrix: &[T]) {
    let mut basis = matrix.to_vec();
    orthonormalize(rows, columns, &mut basis);
    assert!(basis.iter().all(|value| value.is_finite()));
    let basis = widen(&basis);
    let basis: Vec<_> = (0..columns).map(|k| column(&basis, columns, k)).collect();
    let bound = tolerance::<T>();
    expect_orthonormal(&basis, bound);
    for k in 0..columns {
        let mut source = column(&widen(matrix), columns, k);
        let largest = source
            .iter()
            .fold(0.0_f64, |most, value| most.max(value.abs()));
        if largest == 0.0 {
            continue;
        }
        source.iter_mut().for_each(|value| *value /= largest);
        let norm = dot(&source, &source).sqrt();
        assert!(
            dot(&basis[k], &source) >= -bound * norm,
            "diagonal of column {k}"
        );
        for later in &basis[k + 1..] {
            assert!(
                dot(later, &source).abs() <= bound * norm,
                "below the diagonal of column {k}"
            );
        }
        let mut rest = source.clone();
        for direction in &basis[..=k] {
            let length = dot(direction, &source);
            for (rest, direction) in rest.iter_mut().zip(direction) {
                *rest -= length * direction;
            }
        }
        assert!(
            dot(&rest, &rest).sqrt() <= bound * norm,
            "column {k} is not spanned"
        );
    }
}

/// Both precisions, in several scales.
#[track_caller]
fn check_all(rows: usize, columns: usize, matrix: &[f64]) {
    let scaled = |scale: f64| matrix.iter().map(move |value| value * scale);
    for scale in [1.0, 1e18, 1e-30, 1e37] {
        let single: Vec<f32> = scaled(scale).map(|value| value as f32).collect();
        check(rows, columns, &single);
    }
    for scale in [1.0, 1e300, 1e-300] {
        check(rows, columns, &scaled(scale).collect::<Vec<_>>());
    }
}

#[test]
fn random_matrices() {
    for (rows, columns) in [
        (1, 1),
        (2, 1),
        (7, 7),
        (14, 4),
        (96, 24),
        (130, 130),
        (300, 70),
        (5, 0),
        (0, 0),
    ] {
        check_all(rows, columns, &numbers(rows * columns, 1));
    }
}

#[test]
fn dependent_columns() {
    for (rows, columns) in [(6, 3), (30, 12), (96, 40), (200, 90)] {
        let mut matrix: Vec<f64> = numbers(rows * columns, 2);
        for row in matrix.chunks_exact_mut(columns) {
            row[1] = row[0];
            row[columns - 1] = row[0] + row[2] * 0.5;
        }
        check_all(rows, columns, &matrix);
        for row in matrix.chunks_exact_mut(columns) {
            row[0] = 0.0;
            row[columns / 2] = 0.0;
        }
        check_all(rows, columns, &matrix);
        // Rank 2.
        let (left, right): (Vec<f64>, Vec<f64>) = (numbers(rows * 2, 3), numbers(columns * 2, 4));
        let product: Vec<f64> = (0..rows * columns)
            .map(|index| {
                let (row, column) = (index / columns, index % columns);
                left[2 * row] * right[2 * column] + left[2 * row + 1] * right[2 * column + 1]
            })
            .collect();
        check_all(rows, columns, &product);
    }
}

#[test]
fn constant_matrices() {
    for (rows, columns) in [(1, 1), (4, 4), (9, 2), (64, 64), (150, 50)] {
        for value in [0.0, 1.0, -3.0, f64::from(f32::MIN_POSITIVE)] {
            check_all(rows, columns, &vec![value; rows * columns]);
        }
    }
}

#[test]
fn columns_of_very_different_scales() {
    let (rows, columns) = (40, 6);
    let mut matrix: Vec<f32> = numbers(rows * columns, 5);
    for row in matrix.chunks_exact_mut(columns) {
        for (value, scale) in row.iter_mut().zip([1e18, 1e-30, 1.0, 1e30, 1e-38, 1e-44]) {
            *value *= scale;
        }
    }
    check(rows, columns, &matrix);
}

#[test]
fn an_orthonormal_basis_stays_what_it_is() {
    let (rows, columns) = (50, 12);
    let mut once: Vec<f64> = numbers(rows * columns, 6);
    orthonormalize(rows, columns, &mut once);
    let mut twice = once.clone();
    orthonormalize(rows, columns, &mut twice);
    common::assert_close("basis", &twice, &once);
}

/// `faer`'s QR decomposition in `f32` takes these columns for dependent.
#[test]
fn nearly_parallel_columns_keep_their_difference() {
    let rows = 600;
    let (first, second): (Vec<f64>, Vec<f64>) = (numbers(rows, 7), numbers(rows, 8));
    let mut matrix: Vec<f32> = first
        .iter()
        .zip(&second)
        .flat_map(|(&first, &second)| [first as f32, (first + 1e-4 * second) as f32])
        .collect();
    orthonormalize(rows, 2, &mut matrix);
    let found = column(&widen(&matrix), 2, 1);
    let along = dot(&first, &second) / dot(&first, &first);
    let difference: Vec<f64> = first
        .iter()
        .zip(&second)
        .map(|(first, second)| second - along * first)
        .collect();
    let cosine = dot(&found, &difference) / dot(&difference, &difference).sqrt();
    assert!(cosine > 0.9999, "{cosine}");
}

#[test]
fn a_matrix_that_is_not_finite_gives_a_basis_without_zeros() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut matrix = [1.0, 2.0, 3.0, value, 5.0, 6.0];
        orthonormalize(3, 2, &mut matrix);
        assert!(
            matrix
                .iter()
                .all(|value| value.is_finite() && *value != 0.0)
        );
    }
}

/// A subspace iteration on data that is zero in some places would never leave a basis of those places.
#[test]
fn missing_directions_are_not_rows_of_the_identity() {
    let mut zero = [0.0_f64; 12];
    orthonormalize(6, 2, &mut zero);
    assert!(zero.iter().all(|value| *value != 0.0), "{zero:?}");
    let mut one_missing = [1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0, 0.0_f64];
    orthonormalize(4, 2, &mut one_missing);
    assert!(
        one_missing.iter().all(|value| *value != 0.0),
        "{one_missing:?}"
    );
}

#[test]
#[should_panic(expected = "orthonormalize: columns must be at most rows, 2, found 3")]
fn more_columns_than_rows_are_refused() {
    orthonormalize(2, 3, &mut [0.0_f32; 6]);
}

fn symmetric(size: usize, seed: u64) -> Vec<f64> {
    let numbers: Vec<f64> = numbers(size * size, seed);
    (0..size * size)
        .map(|index| numbers[index] + numbers[index % size * size + index / size])
        .collect()
}

/// `A v = lambda v`, orthonormal vectors, descending values.
#[track_caller]
fn check_eigen(size: usize, matrix: &[f64]) {
    let (values, vectors) = symmetric_eigen(size, matrix).expect("a finite matrix");
    assert_eq!((values.len(), vectors.len()), (size, size * size));
    assert!(values.is_sorted_by(|left, right| left >= right));
    let columns: Vec<_> = (0..size).map(|k| column(&vectors, size, k)).collect();
    expect_orthonormal(&columns, 1e-12);
    let largest = matrix
        .iter()
        .fold(0.0_f64, |most, value| most.max(value.abs()));
    for (value, vector) in values.iter().zip(&columns) {
        for (row, entry) in matrix.chunks_exact(size).zip(vector) {
            let error = dot(row, vector) - value * entry;
            assert!(error.abs() <= 1e-12 * size as f64 * largest, "{error:e}");
        }
    }
}

#[test]
fn eigenvectors_of_symmetric_matrices() {
    for size in [0, 1, 2, 3, 14, 40, 129] {
        let matrix = symmetric(size, 9);
        for scale in [1.0, 1e-300, 1e300, -1e30] {
            let scaled: Vec<f64> = matrix.iter().map(|value| value * scale).collect();
            check_eigen(size, &scaled);
        }
        // Gram matrix of rank 2, identity, zero.
        let left: Vec<f64> = numbers(size * 2, 10);
        let of = |entry: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
            (0..size * size)
                .map(|index| entry(index / size, index % size))
                .collect()
        };
        check_eigen(
            size,
            &of(&|row, column| dot(&left[2 * row..][..2], &left[2 * column..][..2])),
        );
        check_eigen(size, &of(&|row, column| f64::from(row == column)));
        check_eigen(size, &of(&|_, _| 0.0));
        check_eigen(size, &of(&|_, _| 1.0));
    }
}

#[test]
fn eigenvalues_of_a_known_matrix() {
    let (values, vectors) = symmetric_eigen(2, &[2.0, 1.0, 1.0, 2.0]).expect("a finite matrix");
    common::assert_close("values", &values, &[3.0, 1.0]);
    let half = 0.5_f64.sqrt();
    assert!(
        vectors
            .iter()
            .all(|value| (value.abs() - half).abs() < 1e-15)
    );
    assert!(vectors[0] * vectors[2] > 0.0 && vectors[1] * vectors[3] < 0.0);
}

#[test]
fn a_matrix_that_is_not_finite_has_no_eigenvectors() {
    let mut matrix = symmetric(3, 11);
    matrix[5] = f64::NAN;
    assert_eq!(
        symmetric_eigen(3, &matrix),
        Err(DecompositionError::NotFinite { row: 1, column: 2 })
    );
}

#[test]
fn two_runs_give_the_same_bits() {
    let once = || {
        let mut matrix: Vec<f32> = numbers(200 * 60, 12);
        orthonormalize(200, 60, &mut matrix);
        (matrix, symmetric_eigen(60, &symmetric(60, 13)))
    };
    let first = once();
    assert_eq!(first, once());
    assert_eq!(first, common::with_threads(5, once));
}

proptest! {
    #[test]
    fn random_shapes(rows in 0_usize..40, columns in 0_usize..40, seed in 1_u64..1000, steps in 1_u32..4) {
        let (rows, columns) = (rows.max(columns), rows.min(columns));
        // Few distinct values make dependent columns likely.
        let matrix: Vec<f64> = numbers::<f64>(rows * columns, seed)
            .iter()
            .map(|value| (value * f64::from(steps)).round())
            .collect();
        check_all(rows, columns, &matrix);
        check_all(rows, columns, &numbers(rows * columns, seed));
    }
}
