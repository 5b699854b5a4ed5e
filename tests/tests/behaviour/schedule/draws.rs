//! Guards the random schedules: what their draws depend on, and how often a channel is drawn.

use burn_frugal::plan::schedule::{Amount, Importance, Schedule};
use proptest::prelude::*;

use super::layers::{Network, any_case, any_network, importance, layer, selections};

const DRAWS: usize = 2_000;

fn random(network: &Network, amount: Amount, period: usize, seed: u64) -> [Schedule; 2] {
    let Network { layers, importance } = network;
    let schedules = [
        Schedule::resampled(layers.clone(), amount, period, seed),
        Schedule::weighted(layers.clone(), importance, amount, period, seed),
    ];
    schedules.map(|schedule| schedule.expect("a schedule"))
}

/// 32 channels of one layer, all of the same importance.
fn wide_network() -> Network {
    Network {
        layers: vec![layer("wide", 32, 9, 8)],
        importance: importance([("wide", &[1.0; 32])]),
    }
}

/// How often each channel of the layer `a` is selected, in draws of one step.
fn counts(schedule: Schedule, channels: usize) -> Vec<usize> {
    let mut counts = vec![0; channels];
    for selection in selections(&schedule, DRAWS) {
        for channel in &selection["a"] {
            counts[*channel] += 1;
        }
    }
    counts
}

fn weighted_counts(values: &[f64], selected: usize) -> Vec<usize> {
    let layers = vec![layer("a", values.len(), 1, selected)];
    let importance = importance([("a", values)]);
    let schedule = Schedule::weighted(layers, &importance, Amount::PerLayer, 1, 11);
    counts(schedule.expect("a schedule"), values.len())
}

/// Within five standard deviations of what this probability gives.
fn assert_count(found: usize, probability: f64) {
    let expected = DRAWS as f64 * probability;
    let deviation = (expected * (1.0 - probability)).sqrt();
    let distance = (found as f64 - expected).abs();
    assert!(
        distance < 5.0 * deviation,
        "{found} draws, expected {expected:.0} (standard deviation {deviation:.0})"
    );
}

proptest! {
    #[test]
    fn a_draw_holds_for_its_period(
        (network, amount) in any_case(),
        period in 1_usize..6,
        seed in any::<u64>(),
    ) {
        let every_step = random(&network, amount, 1, seed);
        let every_period = random(&network, amount, period, seed);
        for (every_step, every_period) in every_step.iter().zip(&every_period) {
            let draws = selections(every_step, 4);
            for (step, selection) in selections(every_period, 4 * period).iter().enumerate() {
                prop_assert_eq!(selection, &draws[step / period]);
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_selections((network, amount) in any_case(), seed in any::<u64>()) {
        let first = random(&network, amount, 1, seed);
        let second = random(&network, amount, 1, seed);
        for (first, second) in first.iter().zip(&second) {
            prop_assert_eq!(selections(first, 6), selections(second, 6));
        }
    }

    #[test]
    fn another_seed_gives_other_selections(seed in any::<u64>(), other in any::<u64>()) {
        prop_assume!(seed != other);
        let network = wide_network();
        let first = random(&network, Amount::PerLayer, 1, seed);
        let second = random(&network, Amount::PerLayer, 1, other);
        for (first, second) in first.iter().zip(&second) {
            prop_assert_ne!(selections(first, 8), selections(second, 8));
        }
    }

    #[test]
    fn a_layers_draw_does_not_depend_on_the_others(network in any_network(), seed in any::<u64>()) {
        let alone = Network {
            layers: network.layers[..1].to_vec(),
            importance: network.importance.clone(),
        };
        let path = &network.layers[0].path;
        let alone = random(&alone, Amount::PerLayer, 1, seed);
        let together = random(&network, Amount::PerLayer, 1, seed);
        for (alone, together) in alone.iter().zip(&together) {
            for (alone, together) in selections(alone, 6).iter().zip(&selections(together, 6)) {
                prop_assert_eq!(&alone[path], &together[path]);
            }
        }
    }

    #[test]
    fn zero_importance_is_drawn_only_when_nothing_else_is_left(
        (network, amount) in any_case(),
        seed in any::<u64>(),
    ) {
        let [_, weighted] = random(&network, amount, 1, seed);
        let is_zero = |path: &str, channel: &usize| {
            network.importance.of(path).expect("importances")[*channel] == 0.0
        };
        for selection in selections(&weighted, 6) {
            // With a total, another layer's channels can be left because they are too large.
            for layer in &network.layers {
                let selected = &selection[&layer.path];
                let any_zero = selected.iter().any(|channel| is_zero(&layer.path, channel));
                let mut others = (0..layer.channels).filter(|channel| !is_zero(&layer.path, channel));
                prop_assert!(!any_zero || others.all(|channel| selected.contains(&channel)));
            }
        }
    }
}

#[test]
fn draws_differ() {
    for schedule in random(&wide_network(), Amount::PerLayer, 1, 3) {
        let found = selections(&schedule, 50);
        for pair in found.windows(2) {
            assert_ne!(pair[0], pair[1]);
        }
    }
}

/// Layers of the same width do not train the same channels.
#[test]
fn layers_differ() {
    let layers = vec![layer("a", 32, 9, 8), layer("b", 32, 9, 8)];
    let importance = importance([("a", &[1.0; 32]), ("b", &[1.0; 32])]);
    let network = Network { layers, importance };
    for schedule in random(&network, Amount::PerLayer, 1, 3) {
        for selection in selections(&schedule, 50) {
            assert_ne!(selection["a"], selection["b"]);
        }
    }
}

#[test]
fn resampling_is_uniform() {
    let layers = vec![layer("a", 20, 1, 5)];
    let schedule = Schedule::resampled(layers, Amount::PerLayer, 1, 11);
    for count in counts(schedule.expect("a schedule"), 20) {
        assert_count(count, 5.0 / 20.0);
    }
}

#[test]
fn a_channel_of_ten_times_the_importance_is_drawn_ten_times_as_often() {
    let mut values = [0.5; 20];
    values[3] = 5.0;
    let counts = weighted_counts(&values, 1);
    for (channel, count) in counts.into_iter().enumerate() {
        assert_count(count, if channel == 3 { 10.0 } else { 1.0 } / 29.0);
    }
}

/// The probabilities of the definition: the channel is drawn first, or second after either other.
#[test]
fn channels_are_drawn_without_replacement() {
    let counts = weighted_counts(&[1.0, 2.0, 3.0], 2);
    let both = |first: f64, second: f64| first / 6.0 * second / (6.0 - first);
    let pairs = [(1.0, 2.0), (1.0, 3.0), (2.0, 3.0)];
    let [low, middle, high] = pairs.map(|(left, right)| both(left, right) + both(right, left));
    assert_count(counts[0], low + middle);
    assert_count(counts[1], low + high);
    assert_count(counts[2], middle + high);
}

#[test]
fn channels_without_importance_share_what_is_left() {
    let counts = weighted_counts(&[0.0, 1e-300, 0.0, 1e300], 3);
    assert_eq!([counts[1], counts[3]], [DRAWS, DRAWS]);
    assert_count(counts[0], 0.5);
    assert_count(counts[2], 0.5);
}

#[test]
fn extreme_importances_keep_their_order() {
    let smallest = f64::from_bits(1);
    let counts = weighted_counts(&[smallest, f64::MAX, smallest], 1);
    assert_eq!(counts, [0, DRAWS, 0]);
    let counts = weighted_counts(&[smallest, smallest], 1);
    assert_count(counts[0], 0.5);
    let counts = weighted_counts(&[f64::MAX, f64::MAX, f64::MAX], 1);
    assert_count(counts[0], 1.0 / 3.0);
}

/// With a total, channels of all layers are drawn together.
#[test]
fn a_total_draws_from_all_layers() {
    let layers = vec![layer("a", 2, 5, 1), layer("b", 1, 5, 1)];
    let values = [("a", vec![1.0, 1.0]), ("b", vec![6.0])];
    let values = values.map(|(path, values)| (path.to_string(), values));
    let importance = Importance::new(values.into()).expect("importances");
    let amount = Amount::TotalWeights(5);

    let resampled = Schedule::resampled(layers.clone(), amount, 1, 11);
    for count in counts(resampled.expect("a schedule"), 2) {
        assert_count(count, 1.0 / 3.0);
    }
    let weighted = Schedule::weighted(layers, &importance, amount, 1, 11);
    for count in counts(weighted.expect("a schedule"), 2) {
        assert_count(count, 1.0 / 8.0);
    }
}

/// A training that is resumed has to draw what it would have drawn: an update of `rand` or a change
/// here that alters these channels alters every saved schedule.
#[test]
fn draws_are_stable() {
    let [resampled, weighted] = random(&wide_network(), Amount::PerLayer, 1, 7);
    let channels = |schedule| -> Vec<_> {
        let found = selections(schedule, 2).into_iter();
        found.map(|selection| selection["wide"].clone()).collect()
    };
    assert_eq!(
        channels(&resampled),
        [
            [6, 9, 14, 17, 23, 24, 25, 26],
            [4, 5, 15, 21, 23, 24, 26, 30]
        ]
    );
    assert_eq!(
        channels(&weighted),
        [
            [1, 3, 12, 18, 22, 28, 30, 31],
            [2, 6, 11, 19, 25, 28, 29, 31]
        ]
    );
}
