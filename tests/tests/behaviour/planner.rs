//! Guards plans within a budget: what is chosen, which limits are refused, and that it is quick.

mod choices;
mod models;

use std::time::{Duration, Instant};

use burn_frugal::methods::Flops;
use burn_frugal::plan::{ErrorMeasure, LayerProfile, Measured, Planner, Profile};
use burn_frugal::{Error, Method};
use burn_frugal_tests::{assert_contains, devices, random, values};

fn profile(layers: &[LayerProfile]) -> Profile {
    let json = serde_json::json!({ "version": 1, "layers": layers });
    Profile::from_json(&json.to_string()).expect("a profile")
}

/// Layers with candidates of these bytes, errors and relative errors, each with a method of its own.
fn layers(candidates: &[&[(usize, f64, f64)]]) -> Vec<LayerProfile> {
    let measured =
        |(place, &(bytes, error, relative_error)): (usize, &(usize, f64, f64))| Measured {
            method: Method::gradient_filter(place + 1),
            bytes,
            flops: Flops::default(),
            error,
            relative_error,
        };
    let layer = |(place, candidates): (usize, &&[(usize, f64, f64)])| LayerProfile {
        // the plan's order of paths is not the profile's
        path: format!("layer{}", 99 - place),
        gradient_norm: 1.0,
        candidates: candidates.iter().enumerate().map(measured).collect(),
    };
    candidates.iter().enumerate().map(layer).collect()
}

/// Layers whose relative errors are the errors the other way round.
fn absolute(candidates: &[&[(usize, f64)]]) -> Vec<LayerProfile> {
    let with_relative: Vec<Vec<(usize, f64, f64)>> = candidates
        .iter()
        .map(|layer| {
            layer
                .iter()
                .map(|&(b, error)| (b, error, 10.0 - error))
                .collect()
        })
        .collect();
    let slices: Vec<&[(usize, f64, f64)]> = with_relative.iter().map(Vec::as_slice).collect();
    layers(&slices)
}

/// Steps with the most error for their bytes first: 4 bytes for 5, and then no room for 6 and 4.
#[test]
fn a_greedy_choice_is_not_enough() {
    let layers = absolute(&[
        &[(0, 5.0), (4, 0.0)],
        &[(0, 3.5), (3, 0.0)],
        &[(0, 3.5), (3, 0.0)],
    ]);
    let profile = profile(&layers);
    let solution = Planner::new(&profile).least_error(6).expect("enough");
    assert_eq!((solution.bytes, solution.error), (6, 5.0));
    let chosen: Vec<usize> = solution.layers.iter().map(|layer| layer.bytes).collect();
    assert_eq!(chosen, [0, 3, 3]);
}

#[test]
fn of_equal_errors_the_fewest_bytes_are_kept() {
    let layers = absolute(&[
        &[(9, 1.0), (3, 1.0), (3, 2.0), (5, 1.0)],
        &[(4, 1.0), (2, 2.0), (2, 1.0)],
    ]);
    let profile = profile(&layers);
    let solution = Planner::new(&profile).least_error(100).expect("enough");
    assert_eq!((solution.bytes, solution.error), (5, 2.0));
    // and of equal bytes the smallest error
    let solution = Planner::new(&profile).fewest_bytes(100.0).expect("enough");
    assert_eq!((solution.bytes, solution.error), (5, 2.0));
}

#[test]
fn the_measure_of_the_error_decides() {
    let layers = layers(&[
        &[(1, 8.0, 0.1), (2, 0.0, 0.0)],
        &[(1, 0.5, 0.9), (2, 0.0, 0.0)],
    ]);
    let profile = profile(&layers);
    let planned = |planner: Planner| {
        let solution = planner.least_error(3).expect("enough");
        let bytes = solution.layers.iter().map(|layer| layer.bytes);
        (bytes.collect::<Vec<_>>(), solution.error)
    };
    let planner = Planner::new(&profile);
    assert_eq!(planned(planner.clone()), (vec![2, 1], 0.5));
    let absolute = planner.clone().measure(ErrorMeasure::Absolute);
    assert_eq!(planned(absolute), (vec![2, 1], 0.5));
    let relative = planner.measure(ErrorMeasure::Relative);
    assert_eq!(planned(relative), (vec![1, 2], 0.1));
}

#[test]
fn a_limit_that_cannot_be_met_says_which_can() {
    let layers = absolute(&[&[(20, 1.25), (30, 0.5)], &[(7, 1.0), (9, 0.25)]]);
    let profile = profile(&layers);
    let planner = Planner::new(&profile);
    let error = planner.least_error(26).expect_err("too little");
    assert!(matches!(
        error,
        Error::Budget {
            budget: 26,
            smallest: 27
        }
    ));
    let message = "a budget of 26 bytes is too small: the smallest plan keeps 27 bytes";
    assert_eq!(error.to_string(), message);
    assert_eq!(planner.least_error(27).expect("enough").bytes, 27);

    let error = planner.fewest_bytes(0.5).expect_err("too little");
    let numbers =
        matches!(error, Error::ErrorBound { bound, smallest } if bound == 0.5 && smallest == 0.75);
    assert!(numbers, "{error}");
    let message = "no plan has an error of at most 0.5: the smallest is 0.75";
    assert_eq!(error.to_string(), message);
    assert_eq!(planner.fewest_bytes(0.75).expect("enough").error, 0.75);
    for bound in [-1.0, f64::NEG_INFINITY] {
        assert!(planner.fewest_bytes(bound).is_err(), "{bound}");
    }
}

#[test]
fn without_a_limit_the_best_is_chosen() {
    let layers = absolute(&[&[(20, 1.25), (30, 0.5)], &[(7, 1.0), (9, 0.25)]]);
    let profile = profile(&layers);
    let planner = Planner::new(&profile);
    let best = planner.least_error(usize::MAX).expect("enough");
    assert_eq!((best.bytes, best.error), (39, 0.75));
    let smallest = planner.fewest_bytes(f64::INFINITY).expect("enough");
    assert_eq!((smallest.bytes, smallest.error), (27, 2.25));
}

#[test]
fn a_bound_that_is_not_a_number_is_an_error() {
    let profile = profile(&absolute(&[&[(20, 1.25), (30, 0.5)]]));
    let error = Planner::new(&profile).fewest_bytes(f64::NAN);
    let error = error.expect_err("nothing is at most NaN");
    assert!(matches!(error, Error::ErrorBound { .. }), "{error}");
}

/// There is nothing to choose, and nothing is kept.
#[test]
fn a_profile_without_layers_gives_a_plan_without_layers() {
    let profile = Profile::default();
    for planned in [
        Planner::new(&profile).least_error(0),
        Planner::new(&profile).fewest_bytes(0.0),
    ] {
        let solution = planned.expect("the empty plan");
        assert_eq!((solution.bytes, solution.error), (0, 0.0));
        assert!(solution.layers.is_empty() && solution.plan.methods().is_empty());
    }
    assert!(Planner::new(&profile).fewest_bytes(-0.5).is_err());
}

#[test]
fn a_layer_without_a_candidate_is_an_error() {
    let profile = profile(&absolute(&[&[(1, 1.0)], &[], &[(1, 1.0)]]));
    for planned in [
        Planner::new(&profile).least_error(100),
        Planner::new(&profile).fewest_bytes(100.0),
    ] {
        let error = planned.expect_err("nothing to choose from");
        assert!(
            matches!(&error, Error::NoCandidate { layer } if layer == "layer98"),
            "{error}"
        );
        assert_contains(&error.to_string(), &["`layer98`"]);
    }
}

/// A guard, not a measurement: an implementation without bounds would take minutes.
#[test]
fn a_large_model_is_planned_quickly() {
    const LAYERS: usize = 60;
    const CANDIDATES: usize = 12;
    let device = devices().remove(0).1;
    let numbers = values(random::<2>(9, [2, LAYERS * CANDIDATES], &device));
    let (bytes, errors) = numbers.split_at(LAYERS * CANDIDATES);
    let candidates: Vec<Vec<(usize, f64, f64)>> = (0..LAYERS)
        .map(|layer| {
            let part = layer * CANDIDATES..(layer + 1) * CANDIDATES;
            let size = 10.0_f64.powi(5 - layer as i32 % 3);
            let mut bytes: Vec<usize> = bytes[part.clone()]
                .iter()
                .map(|x| ((x + 1.0) * size) as usize)
                .collect();
            let mut errors: Vec<f64> = errors[part].iter().map(|x| x + 1.0).collect();
            bytes.sort_unstable();
            errors.sort_by(|a, b| b.total_cmp(a));
            let pairs = bytes.into_iter().zip(errors);
            pairs.map(|(bytes, error)| (bytes, error, error)).collect()
        })
        .collect();
    let slices: Vec<&[(usize, f64, f64)]> = candidates.iter().map(Vec::as_slice).collect();
    let profile = profile(&layers(&slices));
    let planner = Planner::new(&profile);
    let smallest = planner
        .fewest_bytes(f64::INFINITY)
        .expect("some plan")
        .bytes;
    let start = Instant::now();
    for factor in [1.1, 1.5, 2.0, 4.0] {
        let budget = (smallest as f64 * factor) as usize;
        let solution = planner.least_error(budget).expect("enough");
        assert!(solution.bytes <= budget);
        let converse = planner.fewest_bytes(solution.error).expect("this one");
        assert_eq!(converse.bytes, solution.bytes);
    }
    let taken = start.elapsed();
    assert!(taken < Duration::from_secs(20), "{taken:?}");
}
