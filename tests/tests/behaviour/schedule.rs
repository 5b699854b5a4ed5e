//! Guards what every schedule promises, and the order of the fixed and the cyclic one.

mod draws;
mod errors;
mod importance;
mod json;
mod layers;

use burn_frugal::plan::schedule::{Amount, Schedule, SparseLayer};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

use layers::{Selection, any_case, any_network, importance, layer, schedules, selections, weights};

/// The channels of a layer, most important first.
fn sorted_by_importance(values: &[f64]) -> Vec<usize> {
    let mut channels: Vec<usize> = (0..values.len()).collect();
    channels.sort_by(|&left, &right| {
        let descending = values[right].partial_cmp(&values[left]).expect("numbers");
        descending.then(left.cmp(&right))
    });
    channels
}

/// The channels of a selection with their layers.
fn pairs(selection: &Selection) -> Vec<(&str, usize)> {
    let layers = selection.iter();
    let pairs = layers.flat_map(|(path, channels)| {
        channels
            .iter()
            .map(move |channel| (path.as_str(), *channel))
    });
    pairs.collect()
}

fn is_within(layers: &[SparseLayer], selection: &Selection) -> bool {
    selection.len() == layers.len()
        && layers.iter().all(|layer| {
            let channels = &selection[&layer.path];
            channels.is_sorted_by(|left, right| left < right)
                && channels.iter().all(|channel| *channel < layer.channels)
        })
}

proptest! {
    #[test]
    fn selections_are_sorted_unique_and_in_range(
        (network, amount) in any_case(),
        seed in any::<u64>(),
    ) {
        for schedule in schedules(&network, amount, seed) {
            for selection in selections(&schedule, 8) {
                prop_assert!(is_within(&network.layers, &selection), "{:?}", selection);
            }
        }
    }

    #[test]
    fn each_layer_trains_as_many_channels_as_its_method_says(
        network in any_network(),
        seed in any::<u64>(),
    ) {
        for schedule in schedules(&network, Amount::PerLayer, seed) {
            let may_be_fewer = matches!(schedule, Schedule::Cyclic(_));
            for selection in selections(&schedule, 8) {
                for layer in &network.layers {
                    let found = selection[&layer.path].len();
                    prop_assert!(
                        found == layer.selected || may_be_fewer && (1..layer.selected).contains(&found)
                    );
                }
            }
        }
    }

    #[test]
    fn a_total_is_filled(
        (network, amount) in any_case(),
        seed in any::<u64>(),
    ) {
        let Amount::TotalWeights(total) = amount else { return Ok(()) };
        for schedule in schedules(&network, amount, seed) {
            for selection in selections(&schedule, 8) {
                let used = weights(&network.layers, &selection);
                prop_assert!(used <= total);
                // What does not fit the last window of a cycle was trained in an earlier one.
                if matches!(schedule, Schedule::Cyclic(_)) {
                    continue;
                }
                for layer in &network.layers {
                    let all = selection[&layer.path].len() == layer.channels;
                    prop_assert!(all || layer.weights_per_channel > total - used);
                }
            }
        }
    }

    #[test]
    fn a_cycle_visits_every_channel_exactly_once((network, amount) in any_case()) {
        let Amount::TotalWeights(_) = amount else { return Ok(()) };
        let schedule = Schedule::cyclic(network.layers.clone(), &network.importance, amount);
        let schedule = schedule.expect("a schedule");
        let channels: usize = network.layers.iter().map(|layer| layer.channels).sum();

        let found = selections(&schedule, 2 * channels + 1);
        let mut visited = BTreeSet::new();
        let mut length = 0;
        while visited.len() < channels {
            let window = pairs(&found[length]);
            prop_assert!(!window.is_empty());
            for channel in window {
                prop_assert!(visited.insert(channel), "{:?} twice", channel);
            }
            length += 1;
        }
        for (step, selection) in found.iter().enumerate() {
            prop_assert_eq!(selection, &found[step % length]);
        }
    }

    #[test]
    fn each_layer_cycles_by_itself(network in any_network()) {
        let schedule =
            Schedule::cyclic(network.layers.clone(), &network.importance, Amount::PerLayer);
        let found = selections(&schedule.expect("a schedule"), 25);
        for layer in &network.layers {
            let values = network.importance.of(&layer.path).expect("importances");
            let sorted = sorted_by_importance(values);
            let windows = sorted.chunks(layer.selected).cycle();
            for (selection, window) in found.iter().zip(windows) {
                let mut window = window.to_vec();
                window.sort_unstable();
                prop_assert_eq!(&selection[&layer.path], &window);
            }
        }
    }

    #[test]
    fn the_fixed_channels_are_the_first_window((network, amount) in any_case()) {
        let fixed = Schedule::fixed(network.layers.clone(), &network.importance, amount);
        let fixed = fixed.expect("a schedule");
        let cyclic = Schedule::cyclic(network.layers, &network.importance, amount);
        let first = cyclic.expect("a schedule").selection();
        for selection in selections(&fixed, 4) {
            prop_assert_eq!(&selection, &first);
        }
    }

    #[test]
    fn steps_are_counted((network, amount) in any_case(), steps in 0_u64..50) {
        for mut schedule in schedules(&network, amount, 0) {
            for step in 0..steps {
                prop_assert_eq!(schedule.steps(), step);
                schedule.advance();
            }
            prop_assert_eq!(schedule.steps(), steps);
        }
    }
}

fn selection<const N: usize>(layers: [(&str, &[usize]); N]) -> Selection {
    let layers = layers.map(|(path, channels)| (path.to_string(), channels.to_vec()));
    BTreeMap::from(layers)
}

#[test]
fn a_channel_that_does_not_fit_is_passed_over() {
    let layers = vec![layer("wide", 2, 10, 1), layer("narrow", 3, 4, 1)];
    let importance = importance([("wide", &[9.0, 7.0]), ("narrow", &[8.0, 1.0, 6.0])]);

    let fixed = Schedule::fixed(layers.clone(), &importance, Amount::TotalWeights(19));
    let expected = selection([("wide", &[0]), ("narrow", &[0, 2])]);
    assert_eq!(fixed.expect("a schedule").selection(), expected);

    let cyclic = Schedule::cyclic(layers, &importance, Amount::TotalWeights(19));
    let second = selection([("wide", &[1]), ("narrow", &[1])]);
    assert_eq!(
        selections(&cyclic.expect("a schedule"), 3),
        [expected.clone(), second, expected]
    );
}

#[test]
fn a_channel_that_never_fits_is_never_fixed() {
    let layers = vec![layer("wide", 1, 10, 1), layer("narrow", 1, 4, 1)];
    let importance = importance([("wide", &[9.0]), ("narrow", &[0.0])]);
    let fixed = Schedule::fixed(layers, &importance, Amount::TotalWeights(9));
    let expected = selection([("wide", &[]), ("narrow", &[0])]);
    assert_eq!(fixed.expect("a schedule").selection(), expected);
}

/// Zero has two signs; they are the same importance.
#[test]
fn ties_go_to_the_earlier_layer_then_to_the_lower_channel() {
    let layers = vec![layer("b", 2, 1, 1), layer("a", 3, 1, 1)];
    let importance = importance([("a", &[0.0, -0.0, 0.0]), ("b", &[-0.0, 0.0])]);
    let cyclic = Schedule::cyclic(layers, &importance, Amount::TotalWeights(1));
    let found = selections(&cyclic.expect("a schedule"), 5);
    let found: Vec<_> = found.iter().flat_map(pairs).collect();
    assert_eq!(found, [("b", 0), ("b", 1), ("a", 0), ("a", 1), ("a", 2)]);
}
