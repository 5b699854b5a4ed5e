//! Products along a mode against their definitions.

mod common;

use burn_frugal_kernels::{Element, Unfolding, gram, mode_expand, mode_project, subspace_product};
use common::{numbers, tolerance, widen, with_threads};
use proptest::prelude::*;

fn unfolding(outer: usize, size: usize, inner: usize) -> Unfolding {
    Unfolding { outer, size, inner }
}

fn project_by_definition(u: &Unfolding, rank: usize, tensor: &[f64], factor: &[f64]) -> Vec<f64> {
    let mut projected = vec![0.0; u.outer * rank * u.inner];
    for o in 0..u.outer {
        for r in 0..rank {
            for d in 0..u.size {
                for i in 0..u.inner {
                    projected[(o * rank + r) * u.inner + i] +=
                        tensor[(o * u.size + d) * u.inner + i] * factor[d * rank + r];
                }
            }
        }
    }
    projected
}

fn expand_by_definition(u: &Unfolding, rank: usize, core: &[f64], factor: &[f64]) -> Vec<f64> {
    let mut expanded = vec![0.0; u.len()];
    for o in 0..u.outer {
        for d in 0..u.size {
            for r in 0..rank {
                for i in 0..u.inner {
                    expanded[(o * u.size + d) * u.inner + i] +=
                        core[(o * rank + r) * u.inner + i] * factor[d * rank + r];
                }
            }
        }
    }
    expanded
}

/// `sum over columns of left[l, column] * right[r, column]` for two unfoldings that differ in their size only.
fn contract_by_definition(u: &Unfolding, left: &[f64], right: &[f64], columns: usize) -> Vec<f64> {
    let mut product = vec![0.0; u.size * columns];
    for o in 0..u.outer {
        for d in 0..u.size {
            for c in 0..columns {
                for i in 0..u.inner {
                    product[d * columns + c] += left[(o * u.size + d) * u.inner + i]
                        * right[(o * columns + c) * u.inner + i];
                }
            }
        }
    }
    product
}

/// The definitions of all four products, in the order of [`Results`].
fn by_definition(u: &Unfolding, rank: usize, case: &Case<f64>) -> [Vec<f64>; 4] {
    let projected = project_by_definition(u, rank, &case.tensor, &case.factor);
    let product = contract_by_definition(u, &case.tensor, &projected, rank);
    [
        projected,
        expand_by_definition(u, rank, &case.core, &case.factor),
        product,
        contract_by_definition(u, &case.tensor, &case.tensor, u.size),
    ]
}

struct Case<T> {
    tensor: Vec<T>,
    core: Vec<T>,
    factor: Vec<T>,
}

impl<T: Element> Case<T> {
    fn new(u: &Unfolding, rank: usize) -> Self {
        Self {
            tensor: numbers(u.len(), 1),
            core: numbers(u.columns() * rank, 2),
            factor: numbers(u.size * rank, 3),
        }
    }

    fn map(&self, change: impl Fn(f64) -> f64) -> Case<f64> {
        let map = |values: &[T]| widen(values).into_iter().map(&change).collect();
        Case {
            tensor: map(&self.tensor),
            core: map(&self.core),
            factor: map(&self.factor),
        }
    }

    fn run(&self, u: &Unfolding, rank: usize) -> Results<T> {
        let (tensor, factor) = (&self.tensor, &self.factor);
        Results {
            projected: mode_project(u, rank, tensor, factor),
            expanded: mode_expand(u, rank, &self.core, factor),
            product: subspace_product(u, rank, tensor, factor),
            gram: gram(u, tensor),
        }
    }
}

#[derive(Debug, PartialEq)]
struct Results<T> {
    projected: Vec<T>,
    expanded: Vec<T>,
    product: Vec<T>,
    gram: Vec<f64>,
}

impl<T: Element> Results<T> {
    fn widened(&self) -> [(&'static str, f64, Vec<f64>); 4] {
        let bound = tolerance::<T>();
        [
            ("projected", bound, widen(&self.projected)),
            ("expanded", bound, widen(&self.expanded)),
            ("product", bound, widen(&self.product)),
            ("gram", 1e-12, self.gram.clone()),
        ]
    }
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Checks everything for each number of threads.
fn check<T: Element>(u: &Unfolding, rank: usize, threads: &[usize]) {
    let case = Case::<T>::new(u, rank);
    let expected = by_definition(u, rank, &case.map(|value| value));
    // Sums of signed numbers cancel: compare with what was summed, not with what is left.
    let sizes = by_definition(u, rank, &case.map(f64::abs));
    for &threads in threads {
        let results = with_threads(threads, || case.run(u, rank));
        for (((name, bound, found), expected), sizes) in
            results.widened().iter().zip(&expected).zip(&sizes)
        {
            let difference = found
                .iter()
                .zip(expected)
                .map(|(found, expected)| found - expected);
            let error = norm(difference);
            assert!(
                error <= bound * norm(sizes.iter().copied()),
                "{name} of {u:?}, rank {rank}, {threads} threads: error {error:e}"
            );
        }
        for row in 0..u.size {
            for column in 0..row {
                let gram = |row, column| results.gram[row * u.size + column];
                assert_eq!(gram(row, column), gram(column, row), "{u:?}");
            }
        }
    }
}

/// Shapes with several chunks, of each layout, and Gram matrices with several blocks of rows.
const LARGE: [(Unfolding, usize); 8] = [
    (
        Unfolding {
            outer: 1,
            size: 32,
            inner: 3000,
        },
        8,
    ),
    (
        Unfolding {
            outer: 3,
            size: 150,
            inner: 200,
        },
        40,
    ),
    (
        Unfolding {
            outer: 7,
            size: 130,
            inner: 64,
        },
        70,
    ),
    (
        Unfolding {
            outer: 8,
            size: 150,
            inner: 49,
        },
        20,
    ),
    (
        Unfolding {
            outer: 700,
            size: 14,
            inner: 14,
        },
        4,
    ),
    (
        Unfolding {
            outer: 700,
            size: 7,
            inner: 7,
        },
        5,
    ),
    (
        Unfolding {
            outer: 9000,
            size: 14,
            inner: 1,
        },
        4,
    ),
    (
        Unfolding {
            outer: 900,
            size: 7,
            inner: 1,
        },
        7,
    ),
];

#[test]
fn large_tensors_on_several_threads() {
    for (u, rank) in &LARGE {
        check::<f32>(u, *rank, &[1, 2, 5]);
        check::<f64>(u, *rank, &[1, 2, 5]);
    }
}

#[test]
fn two_runs_give_the_same_bits() {
    for threads in [1, 2, 5] {
        with_threads(threads, || {
            for (u, rank) in &LARGE {
                let case = Case::<f32>::new(u, *rank);
                assert_eq!(case.run(u, *rank), case.run(u, *rank), "{u:?}");
            }
        });
    }
}

fn small_unfolding() -> impl Strategy<Value = Unfolding> {
    let inner = prop_oneof![0_usize..5, 5_usize..20, 60_usize..70, Just(150)];
    (0_usize..40, 0_usize..20, inner).prop_map(|(outer, size, inner)| Unfolding {
        outer,
        size,
        inner,
    })
}

/// The ways to a Gram matrix: blocks, rows and products, with their remainders.
#[test]
fn short_and_few_rows() {
    for (u, rank) in [
        (unfolding(5000, 4, 1), 1),
        (unfolding(5003, 8, 1), 2),
        (unfolding(1001, 16, 1), 3),
        (unfolding(777, 4, 4), 1),
        (unfolding(777, 2, 4), 2),
        (unfolding(3001, 1, 2), 1),
        (unfolding(777, 7, 1), 7),
        (unfolding(1, 32, 5003), 9),
        (unfolding(300, 8, 8), 2),
        (unfolding(301, 9, 13), 3),
        (unfolding(3, 33, 129), 20),
        (unfolding(2, 64, 100), 16),
        (unfolding(2, 65, 100), 40),
    ] {
        check::<f32>(&u, rank, &[1, 2, 5]);
        check::<f64>(&u, rank, &[1, 2, 5]);
    }
}

proptest! {
    #[test]
    fn random_shapes_match_the_definition(u in small_unfolding(), rank in 0_usize..12, threads in 1_usize..4) {
        check::<f32>(&u, rank, &[threads]);
        check::<f64>(&u, rank, &[threads]);
    }
}

#[test]
fn a_nan_spreads_as_in_the_definition() {
    for (u, rank) in [
        (unfolding(1, 9, 100), 3),
        (unfolding(5, 9, 70), 3),
        (unfolding(30, 9, 5), 2),
        (unfolding(90, 9, 1), 2),
        (unfolding(90, 3, 1), 2),
    ] {
        for threads in [1, 3] {
            let mut case = Case::<f32>::new(&u, rank);
            let (middle, last) = (u.len() / 2, case.core.len() - 1);
            case.tensor[middle] = f32::NAN;
            case.core[last] = f32::NAN;
            // A product with zero is still NaN.
            case.factor.fill(0.0);
            let results = with_threads(threads, || case.run(&u, rank));
            let expected = by_definition(&u, rank, &case.map(|value| value));
            for ((name, _, found), expected) in results.widened().iter().zip(&expected) {
                let is_nan = |values: &[f64]| -> Vec<bool> {
                    values.iter().map(|value| value.is_nan()).collect()
                };
                assert_eq!(is_nan(found), is_nan(expected), "{name} of {u:?}");
            }
        }
    }
}

#[test]
fn an_infinite_value_never_gives_a_finite_result() {
    let u = unfolding(30, 9, 5);
    let mut case = Case::<f32>::new(&u, 9);
    case.tensor[7] = f32::INFINITY;
    let results = case.run(&u, 9);
    assert!(results.product.iter().all(|value| !value.is_finite()));
}

#[test]
fn unfoldings_of_a_map() {
    let shape = [8, 576, 7, 5];
    assert_eq!(Unfolding::new(&shape, 0), unfolding(1, 8, 576 * 35));
    assert_eq!(Unfolding::new(&shape, 1), unfolding(8, 576, 35));
    assert_eq!(Unfolding::new(&shape, 3), unfolding(8 * 576 * 7, 5, 1));
    assert_eq!(Unfolding::new(&shape, 2).columns(), 8 * 576 * 5);
    assert_eq!(Unfolding::new(&shape, 2).len(), 8 * 576 * 35);
    assert!(Unfolding::new(&[3, 0, 2], 2).is_empty());
}

#[test]
#[should_panic(expected = "Unfolding: mode must be below the rank of [2, 3], found 2")]
fn a_mode_past_the_last_is_refused() {
    Unfolding::new(&[2, 3], 2);
}

#[test]
#[should_panic(expected = "mode_project: factor must have 6 elements, found 5")]
fn a_short_factor_is_refused() {
    mode_project(&unfolding(1, 3, 1), 2, &[0.0_f32; 3], &[0.0; 5]);
}

#[test]
#[should_panic(expected = "mode_expand: core must have 2 elements, found 3")]
fn a_long_core_is_refused() {
    mode_expand(&unfolding(1, 3, 1), 2, &[0.0_f32; 3], &[0.0; 6]);
}

#[test]
#[should_panic(expected = "subspace_product: factor must have 6 elements, found 4")]
fn a_short_factor_of_a_product_is_refused() {
    subspace_product(&unfolding(1, 3, 1), 2, &[0.0_f32; 3], &[0.0; 4]);
}

#[test]
#[should_panic(expected = "gram: tensor must have 3 elements, found 2")]
fn a_short_tensor_of_a_gram_matrix_is_refused() {
    gram(&unfolding(1, 3, 1), &[0.0_f32; 2]);
}
