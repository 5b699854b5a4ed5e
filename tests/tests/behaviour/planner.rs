//! Guards plans within a budget: no other choice is better, and what is promised is what is kept.

use std::time::{Duration, Instant};

use burn::module::{Module, Param};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use burn_frugal::methods::Flops;
use burn_frugal::nn::Conv2d;
use burn_frugal::plan::{
    Candidate, Candidates, ErrorMeasure, LayerProfile, Measured, Planner, Profile, Solution,
};
use burn_frugal::{Error, Method};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{assert_close, assert_contains, autodiff_devices, devices, random, values};
use proptest::prelude::*;

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

/// Two convolutions on a map of 8 by 8.
#[derive(Module, Debug)]
struct Network {
    wide: Conv2d,
    narrow: Conv2d,
}

const IMAGES: [usize; 4] = [2, 4, 8, 8];

fn network(device: &Device) -> Network {
    let conv = |seed: u64, channels: [usize; 2]| {
        let mut conv = same(channels, 3).init(device);
        conv.weight = Param::from_tensor(random(seed, conv.weight.dims(), device));
        conv
    };
    Network {
        wide: conv(1, [4, 8]),
        narrow: conv(2, [8, 3]),
    }
}

impl Network {
    fn loss(&self, images: &Tensor<4>) -> Tensor<1> {
        let x = relu(self.wide.forward(images.clone()));
        self.narrow.forward(x).powi_scalar(2).mean()
    }

    /// Bytes that the two layers keep with the methods that they have.
    fn bytes(&self) -> usize {
        let wide = self.wide.geometry(IMAGES);
        let narrow = self.narrow.geometry([IMAGES[0], 8, IMAGES[2], IMAGES[3]]);
        self.wide.method.method().bytes(wide, 4) + self.narrow.method.method().bytes(narrow, 4)
    }

    fn gradients(&self, images: &Tensor<4>) -> [Vec<f64>; 2] {
        let gradients = self.loss(images).backward();
        [&self.wide, &self.narrow].map(|conv| {
            let gradient = conv.weight.val().grad(&gradients);
            values(gradient.expect("the weight is trained"))
        })
    }
}

/// Methods whose bytes do not depend on the values.
fn candidates() -> Candidates {
    let fixed = [
        Method::Exact,
        Method::channel_sparse(0.25),
        Method::channel_sparse(0.5),
        Method::channel_sparse(0.75),
        Method::activation_shortcut([1, 2, 3, 3]),
    ];
    let fixed = fixed.map(Candidate::from).into_iter();
    let energies = [0.5, 0.7, 0.9, 0.99].map(Candidate::ShortcutAtEnergy);
    Candidates::new().last_convs(2, fixed.chain(energies))
}

/// Every budget is kept by the model that the plan is applied to, and a larger one has a smaller
/// error; the methods of this model give exact input gradients, so the errors of ordinary training
/// are those that were measured.
#[test]
fn a_planned_model_keeps_its_budget() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (network(&device), random(3, IMAGES, &device));
        let loss = |network: &Network| network.loss(&images);
        let profile = Profile::measure(&network, &candidates(), loss).expect("used layers");
        let planner = Planner::new(&profile);
        let smallest = planner
            .fewest_bytes(f64::INFINITY)
            .expect("some plan")
            .bytes;
        let exact = network.gradients(&images);
        let mut last = f64::INFINITY;
        let mut plans = Vec::new();
        for step in 0..=8 {
            let budget = smallest + (network.bytes() - smallest) * step / 8;
            let solution = planner.least_error(budget).expect("enough");
            let planned = solution.plan.apply(network.clone()).expect("its own plan");
            assert_eq!(planned.bytes(), solution.bytes, "{name}, {budget} bytes");
            assert!(solution.bytes <= budget, "{name}, {budget} bytes");
            assert!(solution.error <= last, "{name}, {budget} bytes");
            last = solution.error;
            if !plans.contains(&solution.plan) {
                let converse = planner.fewest_bytes(solution.error).expect("this one");
                assert_eq!(converse.plan, solution.plan, "{name}, {budget} bytes");
                assert_trained(&name, &planned, &exact, &solution, &images);
                plans.push(solution.plan);
            }
        }
        assert!(plans.len() >= 5, "{name}: only {} plans", plans.len());
        assert_eq!(last, 0.0, "{name}: there is room for the exact gradient");
    }
}

/// Training a planned model has the planned errors; a shortcut that follows the data comes near that
/// of the decomposition that its ranks are from.
fn assert_trained(
    name: &str,
    planned: &Network,
    exact: &[Vec<f64>; 2],
    solution: &Solution,
    images: &Tensor<4>,
) {
    for _warm_up in 0..3 {
        planned.loss(images);
    }
    let found = planned.gradients(images);
    for ((found, exact), layer) in found.iter().zip(exact).zip(&solution.layers) {
        let difference = found.iter().zip(exact).map(|(a, b)| (a - b) * (a - b));
        let error = difference.sum::<f64>().sqrt();
        let name = format!("{name}, {}, {}", layer.path, layer.method);
        match layer.method {
            Method::ActivationShortcut(_) => {
                let size = exact.iter().map(|x| x * x).sum::<f64>().sqrt();
                assert!((error - layer.error).abs() < 0.1 * size, "{name}: {error}");
            }
            _ => assert_close(&name, &[error], &[layer.error], 1e-4),
        }
    }
}

/// A gradient of zero has no relative error, but an absolute one.
#[test]
fn an_error_relative_to_nothing_is_not_planned_with() {
    let device = devices().remove(0).1.autodiff();
    let conv: Conv2d = same([1, 1], 1).init(&device);
    let images = Tensor::<4>::from_floats([[[[1.0, 0.0], [0.0, 0.0]]]], &device);
    let upstream = Tensor::<4>::from_floats([[[[0.0, 1.0], [0.0, 0.0]]]], &device);
    let loss = |conv: &Conv2d| (conv.forward(images.clone()) * upstream.clone()).sum();
    let candidates = Candidates::new().layer("", [Method::gradient_filter(2)]);
    let profile = Profile::measure(&conv, &candidates, loss).expect("a used layer");
    let layer = &profile.layers()[0];
    assert_eq!(layer.gradient_norm, 0.0);
    assert_eq!(layer.candidates[0].error, 0.25);

    let solution = Planner::new(&profile).least_error(100).expect("enough");
    assert_eq!(solution.error, 0.25);
    let relative = Planner::new(&profile).measure(ErrorMeasure::Relative);
    let error = relative.least_error(100).expect_err("infinite");
    assert!(matches!(error, Error::NotFinite { .. }), "{error}");
    // JSON has no infinity, but the profile is worth saving
    let again = Profile::from_json(&profile.to_json()).expect("what was written");
    assert_eq!(again, profile);
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
