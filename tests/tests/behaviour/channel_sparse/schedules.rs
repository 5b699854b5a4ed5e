//! Guards schedules on real models: which channels a step trains, and which schedules are refused.

use std::collections::{BTreeMap, BTreeSet};

use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::Device;
use burn_frugal::plan::schedule::{Amount, Importance, Schedule, SparseLayer};
use burn_frugal::plan::{self, Plan, ScheduleError};
use burn_frugal::{Error, Method};
use burn_frugal_tests::sparse_network::{Network, PATHS};
use burn_frugal_tests::{assert_contains, autodiff_devices, devices};

use super::{is_zero, split};
use crate::user_model::plan_with;

/// The channels that the network's layers train, by path.
fn chosen(network: &Network) -> BTreeMap<String, Vec<usize>> {
    let chosen = PATHS.iter().zip(network.slots());
    chosen
        .map(|(path, slot)| (path.to_string(), slot.channels().expect("chosen")))
        .collect()
}

/// One of each kind of schedule for a model.
fn schedules(model: &Network, amount: Amount) -> [Schedule; 4] {
    let layers = SparseLayer::of(model);
    let importance = Importance::weight_norm(model).expect("finite weights");
    [
        Schedule::fixed(layers.clone(), &importance, amount),
        Schedule::cyclic(layers.clone(), &importance, amount),
        Schedule::resampled(layers.clone(), amount, 2, 7),
        Schedule::weighted(layers, &importance, amount, 2, 7),
    ]
    .map(|schedule| schedule.expect("a schedule"))
}

/// A step of the optimizer with the schedule's channels: the weights' gradients and the model.
fn train_step(network: Network, schedule: &Schedule, seed: u64) -> ([Vec<f64>; 4], Network) {
    let network = schedule.apply(network).expect("its layers");
    let gradients = network.loss(seed).backward();
    let found = network.weight_gradients(&gradients);
    let gradients = GradientsParams::from_grads(gradients, &network);
    let mut optimizer = SgdConfig::new().init();
    (found, plan::step(&mut optimizer, 0.01, network, gradients))
}

#[test]
fn a_schedules_layers_are_the_channel_sparse_ones() {
    let device = devices().remove(0).1;
    let network = Network::new(&device);
    assert_eq!(SparseLayer::of(&network), []);
    let plan = Plan::builder()
        .layer("stem", Method::gradient_filter(2))
        .layer("blocks.0", Method::channel_sparse(0.5))
        .layer("blocks.1", Method::channel_sparse(0.2))
        .layer("head", Method::channel_sparse(0.9));
    let network = plan.build(&network).expect("suitable").apply(network);
    let layer = |path: &str, weights_per_channel, selected| SparseLayer {
        path: path.to_string(),
        channels: 6,
        weights_per_channel,
        selected,
    };
    assert_eq!(
        SparseLayer::of(&network.expect("its layers")),
        [
            layer("blocks.0", 9, 3),
            layer("blocks.1", 27, 1),
            layer("head", 5, 5)
        ]
    );
}

#[test]
fn every_schedule_decides_which_channels_are_trained() {
    for (name, device) in autodiff_devices() {
        let network = Network::sparse(&device, 1.0 / 3.0);
        for amount in [Amount::PerLayer, Amount::TotalWeights(100)] {
            for mut schedule in schedules(&network, amount) {
                let mut network = network.clone();
                let mut seen = BTreeSet::new();
                for step in 0..6 {
                    let found;
                    (found, network) = train_step(network, &schedule, step);
                    let selection = schedule.selection();
                    assert_eq!(chosen(&network), selection, "{name}, {schedule:?}");
                    let weights = network.channels_of_weights();
                    for (place, path) in PATHS.iter().enumerate() {
                        let (inside, outside) =
                            split(&weights[place], &found[place], &selection[*path]);
                        assert!(!inside.contains(&0.0), "{name}, {path}, {schedule:?}");
                        assert!(is_zero(&outside), "{name}, {path}, {schedule:?}");
                    }
                    seen.insert(selection);
                    schedule.advance();
                }
                let fixed = matches!(schedule, Schedule::Fixed(_));
                assert_eq!(seen.len() == 1, fixed, "{name}, {schedule:?}");
            }
        }
    }
}

#[test]
fn the_schedule_of_the_largest_weights_is_what_happens_without_one() {
    for (name, device) in autodiff_devices() {
        let network = Network::sparse(&device, 0.5);
        let [fixed, ..] = schedules(&network, Amount::PerLayer);
        network.loss(1);
        assert_eq!(chosen(&network), fixed.selection(), "{name}");
    }
}

#[test]
fn one_cycle_trains_every_weight_once() {
    for (name, device) in autodiff_devices() {
        // a third of the channels of each layer, and some total that does not divide them
        for (amount, length) in [
            (Amount::PerLayer, Some(3)),
            (Amount::TotalWeights(123), None),
        ] {
            let mut network = Network::sparse(&device, 1.0 / 3.0);
            let [_, mut cyclic, ..] = schedules(&network, amount);
            let mut visits = network
                .channels_of_weights()
                .map(|weights| vec![0; weights.len()]);
            let mut steps = 0;
            while visits.iter().flatten().any(|count| *count == 0) {
                assert!(steps < 24, "{name}, {amount:?}: no end");
                let gradients;
                (gradients, network) = train_step(network, &cyclic, steps);
                for (visits, gradient) in visits.iter_mut().zip(&gradients) {
                    for (count, value) in visits.iter_mut().zip(gradient) {
                        *count += usize::from(*value != 0.0);
                    }
                }
                cyclic.advance();
                steps += 1;
            }
            assert!(
                visits.iter().flatten().all(|count| *count == 1),
                "{name}, {amount:?}: a weight was trained twice"
            );
            assert!(
                length.is_none_or(|length| steps == length),
                "{name}: {steps} steps"
            );
        }
    }
}

#[test]
fn a_plans_patterns_give_layers_ratios_of_their_own() {
    for (name, device) in autodiff_devices() {
        let network = Network::new(&device);
        let plan = Plan::builder()
            .pattern("", Method::channel_sparse(0.5))
            .pattern(r"^blocks\.", Method::channel_sparse(1.0 / 3.0))
            .layer("head", Method::channel_sparse(1.0));
        let plan = plan.build(&network).expect("suitable");
        let network = plan.apply(network).expect("its layers");
        let [_, _, resampled, _] = schedules(&network, Amount::PerLayer);
        for schedule in [None, Some(resampled)] {
            let network = match &schedule {
                Some(schedule) => schedule.apply(network.clone()).expect("its layers"),
                None => network.clone(),
            };
            let found = network.weight_gradients(&network.loss(1).backward());
            let trained = found.map(|gradient| gradient.iter().filter(|it| **it != 0.0).count());
            // of 3 channels 2 (1.5 is rounded up), of 6 channels 2, 2 and 6
            assert_eq!(
                trained,
                [2 * 54, 2 * 9, 2 * 27, 6 * 5],
                "{name}, {schedule:?}"
            );
        }
    }
}

#[test]
fn a_total_is_never_exceeded() {
    for (name, device) in autodiff_devices() {
        let start = Network::sparse(&device, 1.0);
        for total in [54, 137, 400] {
            for mut schedule in schedules(&start, Amount::TotalWeights(total)) {
                let mut network = start.clone();
                for step in 0..4 {
                    let gradients;
                    (gradients, network) = train_step(network, &schedule, step);
                    let trained = gradients.iter().flatten().filter(|it| **it != 0.0).count();
                    assert!(
                        (1..=total).contains(&trained),
                        "{name}, {schedule:?}: {trained} weights of {total}"
                    );
                    schedule.advance();
                }
            }
        }
    }
}

#[test]
fn a_schedule_leaves_the_layers_alone_that_it_does_not_name() {
    for (name, device) in autodiff_devices() {
        let network = Network::sparse(&device, 0.5);
        network.loss(1);
        let before = chosen(&network);
        let [head] = &SparseLayer::of(&network)[3..] else {
            panic!("4 layers");
        };
        let schedule = Schedule::resampled(vec![head.clone()], Amount::TotalWeights(5), 1, 1);
        let network = schedule
            .expect("a schedule")
            .apply(network)
            .expect("its layer");
        let after = chosen(&network);
        assert_eq!(after["head"].len(), 1, "{name}");
        for path in &PATHS[..3] {
            assert_eq!(after[*path], before[*path], "{name}, {path}");
        }
    }
}

fn schedule_for(path: &str, channels: usize, selected: usize) -> Schedule {
    let layer = SparseLayer {
        path: path.to_string(),
        channels,
        weights_per_channel: 1,
        selected,
    };
    Schedule::resampled(vec![layer], Amount::PerLayer, 1, 0).expect("a schedule")
}

#[test]
fn a_schedule_for_another_model_is_an_error() {
    let network = Network::sparse(&Device::default(), 0.5);
    for path in ["blocks.2", "blocks", "", "head.weight"] {
        let error = schedule_for(path, 6, 2).apply(network.clone()).unwrap_err();
        assert!(matches!(&error, Error::UnknownLayer { path: found, .. } if found == path));
        assert_contains(&error.to_string(), &["stem, blocks.0, blocks.1, head"]);
    }
}

/// Not only once a channel is drawn that the layer lacks: the documentation of `Schedule::apply`
/// promises it, and the step that fails may be the thousandth.
#[test]
fn a_schedule_for_another_number_of_channels_is_an_error_from_the_start() {
    let network = Network::sparse(&Device::default(), 0.5);
    for channels in [5, 700] {
        let importance = [("head".to_string(), vec![1.0; channels])];
        let importance = Importance::new(importance.into()).expect("importances");
        let layer = SparseLayer {
            path: "head".to_string(),
            channels,
            weights_per_channel: 5,
            selected: 1,
        };
        // the first channel, which every layer has
        let schedule = Schedule::fixed(vec![layer], &importance, Amount::PerLayer);
        let error = schedule.expect("a schedule").apply(network.clone());
        let error = error.expect_err("another number of channels");
        assert_contains(&error.to_string(), &["head", "6", &channels.to_string()]);
    }
}

#[test]
fn a_schedule_for_a_layer_with_another_method_is_an_error() {
    let network = Network::new(&Device::default());
    let filter = plan_with("stem", Method::gradient_filter(2));
    let network = filter.apply(network).expect("its layer");
    for (path, method) in [("stem", "gradient filter, patch 2"), ("head", "exact")] {
        let error = schedule_for(path, 3, 1).apply(network.clone()).unwrap_err();
        let message = error.to_string();
        let Error::Schedule(ScheduleError::NotSparse { path: found, .. }) = error else {
            panic!("{message}");
        };
        assert_eq!(found, path);
        assert_contains(&message, &[path, method, "channel-sparse"]);
    }
}

/// A new ratio is another method: the layer starts anew. The same one goes on.
#[test]
fn channels_last_as_long_as_the_method() {
    let device = devices().remove(0).1.autodiff();
    let network = Network::sparse(&device, 0.5);
    let [.., weighted] = schedules(&network, Amount::PerLayer);
    let network = weighted.apply(network).expect("its layers");
    let again = plan_with("head", Method::channel_sparse(0.5)).apply(network.clone());
    let again = again.expect("its layer");
    let channels = again.head.method.channels();
    assert_eq!(channels, Some(weighted.selection()["head"].clone()));
    let other = plan_with("head", Method::channel_sparse(0.4)).apply(network);
    assert_eq!(other.expect("its layer").head.method.channels(), None);
}
