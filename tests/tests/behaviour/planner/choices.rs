//! Guards that no other choice is better: plans against every choice there is.

use burn_frugal::Error;
use burn_frugal::plan::{ErrorMeasure, LayerProfile, Measured, Planner, Solution};
use proptest::prelude::{Strategy, any, prop, proptest};

use super::{layers, profile};

fn error_of(measured: &Measured, measure: ErrorMeasure) -> f64 {
    match measure {
        ErrorMeasure::Absolute => measured.error,
        ErrorMeasure::Relative => measured.relative_error,
    }
}

/// Bytes and error of every choice, summed in the order of the layers.
fn all_choices(layers: &[LayerProfile], measure: ErrorMeasure) -> Vec<(usize, f64)> {
    layers.iter().fold(vec![(0, 0.0)], |choices, layer| {
        let extended = choices.iter().flat_map(|&(bytes, error)| {
            let candidates = layer.candidates.iter();
            candidates
                .map(move |measured| (bytes + measured.bytes, error + error_of(measured, measure)))
        });
        extended.collect()
    })
}

/// The smallest error within the budget, then the fewest bytes.
fn least_error(choices: &[(usize, f64)], budget: usize) -> Option<(usize, f64)> {
    let affordable = choices
        .iter()
        .copied()
        .filter(|(bytes, _)| *bytes <= budget);
    affordable.min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))
}

/// The fewest bytes within the bound, then the smallest error.
fn fewest_bytes(choices: &[(usize, f64)], bound: f64) -> Option<(usize, f64)> {
    let good = choices.iter().copied().filter(|(_, error)| *error <= bound);
    good.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
}

/// A solution names the profile's layers and no others, with one of their candidates each, and its
/// sums are those of its layers.
fn assert_consistent(solution: &Solution, layers: &[LayerProfile], measure: ErrorMeasure) {
    assert_eq!(solution.layers.len(), layers.len());
    assert_eq!(solution.plan.methods().len(), layers.len());
    let (mut bytes, mut error) = (0, 0.0);
    for (planned, layer) in solution.layers.iter().zip(layers) {
        assert_eq!(planned.path, layer.path);
        assert_eq!(solution.plan.methods()[&layer.path], planned.method);
        let chosen = (layer.candidates.iter())
            .find(|measured| measured.method == planned.method)
            .expect("one of the layer's candidates");
        assert_eq!(planned.bytes, chosen.bytes);
        assert_eq!(planned.error, error_of(chosen, measure));
        bytes += planned.bytes;
        error += planned.error;
    }
    assert_eq!((solution.bytes, solution.error), (bytes, error));
}

/// Compares with every choice, to the last bit.
fn check(layers: &[LayerProfile], budget: usize, bound: f64) {
    let profile = profile(layers);
    for measure in [ErrorMeasure::Absolute, ErrorMeasure::Relative] {
        let planner = Planner::new(&profile).measure(measure);
        let choices = all_choices(layers, measure);
        match (planner.least_error(budget), least_error(&choices, budget)) {
            (Ok(solution), Some(best)) => {
                assert_eq!((solution.bytes, solution.error), best, "{measure:?}");
                assert_consistent(&solution, layers, measure);
            }
            (
                Err(Error::Budget {
                    budget: asked,
                    smallest,
                }),
                None,
            ) => {
                assert_eq!(asked, budget);
                assert!(planner.least_error(smallest).is_ok());
                assert!(planner.least_error(smallest - 1).is_err());
            }
            (found, best) => panic!("{measure:?}: {found:?} instead of {best:?}"),
        }
        match (planner.fewest_bytes(bound), fewest_bytes(&choices, bound)) {
            (Ok(solution), Some(best)) => {
                assert_eq!((solution.bytes, solution.error), best, "{measure:?}");
                assert_consistent(&solution, layers, measure);
            }
            (
                Err(Error::ErrorBound {
                    bound: asked,
                    smallest,
                }),
                None,
            ) => {
                assert_eq!(asked, bound);
                assert!(planner.fewest_bytes(smallest).is_ok());
                assert!(planner.fewest_bytes(smallest.next_down()).is_err());
            }
            (found, best) => panic!("{measure:?}: {found:?} instead of {best:?}"),
        }
    }
}

/// Up to five layers of up to four candidates, whose bytes and errors are multiples of `units`.
fn any_layers(units: (usize, f64)) -> impl Strategy<Value = Vec<LayerProfile>> {
    let (bytes, error) = units;
    let candidate = (0..=12_usize, 0..=12_u8, 0..=12_u8)
        .prop_map(move |(b, e, r)| (b * bytes, error * f64::from(e), error * f64::from(r)));
    let layer = prop::collection::vec(candidate, 1..=4);
    prop::collection::vec(layer, 1..=5).prop_map(|candidates| {
        let slices: Vec<&[(usize, f64, f64)]> = candidates.iter().map(Vec::as_slice).collect();
        layers(&slices)
    })
}

/// Bytes as layers have them, errors of any size: gradients differ by orders of magnitude.
fn uneven_layers() -> impl Strategy<Value = Vec<LayerProfile>> {
    let error = (-9.0..3.0_f64).prop_map(|exponent| 10.0_f64.powf(exponent));
    let candidate = (1..=1_usize << 30, error.clone(), error);
    let layer = prop::collection::vec(candidate, 1..=4);
    prop::collection::vec(layer, 1..=5).prop_map(|candidates| {
        let slices: Vec<&[(usize, f64, f64)]> = candidates.iter().map(Vec::as_slice).collect();
        layers(&slices)
    })
}

proptest! {
    #[test]
    fn no_other_choice_is_better(
        layers in any_layers((1, 0.25)), budget in 0..=60_usize, bound in 0..=60_u8,
    ) {
        check(&layers, budget, 0.25 * f64::from(bound));
    }

    /// The sums of these errors depend on their order.
    #[test]
    fn no_other_choice_is_better_in_decimals(
        layers in any_layers((100, 0.1)), budget in 0..=6_000_usize, bound in 0.0..=6.0_f64,
    ) {
        check(&layers, budget, bound);
    }

    #[test]
    fn no_other_choice_is_better_whatever_the_sizes(
        layers in uneven_layers(), share in 0.0..=1.0_f64, pick in any::<prop::sample::Index>(),
    ) {
        let largest = |layer: &LayerProfile| layer.candidates.iter().map(|c| c.bytes).max();
        let all: usize = layers.iter().filter_map(largest).sum();
        let choices = all_choices(&layers, ErrorMeasure::Absolute);
        let (bytes, error) = *pick.get(&choices);
        check(&layers, (share * all as f64) as usize, error);
        check(&layers, bytes, error.next_down());
    }
}
