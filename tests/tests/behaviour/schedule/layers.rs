//! Layers, importances and schedules for the tests of schedules.

use burn_frugal::plan::schedule::{Amount, Importance, Schedule, SparseLayer};
use proptest::prelude::*;
use std::collections::BTreeMap;

pub type Selection = BTreeMap<String, Vec<usize>>;

/// The layers of a schedule and what can be said of their channels.
#[derive(Clone, Debug)]
pub struct Network {
    pub layers: Vec<SparseLayer>,
    pub importance: Importance,
}

pub fn layer(
    path: &str,
    channels: usize,
    weights_per_channel: usize,
    selected: usize,
) -> SparseLayer {
    SparseLayer {
        path: path.to_string(),
        channels,
        weights_per_channel,
        selected,
    }
}

pub fn importance<const N: usize>(layers: [(&str, &[f64]); N]) -> Importance {
    let layers = layers.map(|(path, values)| (path.to_string(), values.to_vec()));
    Importance::new(layers.into()).expect("importances")
}

/// Each kind of schedule that the amount allows; the random ones draw every 3 steps.
pub fn schedules(network: &Network, amount: Amount, seed: u64) -> Vec<Schedule> {
    let Network { layers, importance } = network;
    let schedules = [
        Schedule::fixed(layers.clone(), importance, amount),
        Schedule::cyclic(layers.clone(), importance, amount),
        Schedule::resampled(layers.clone(), amount, 3, seed),
        Schedule::weighted(layers.clone(), importance, amount, 3, seed),
    ];
    schedules
        .map(|schedule| schedule.expect("a schedule"))
        .into()
}

/// The selections of this many steps, from the schedule's next one on.
pub fn selections(schedule: &Schedule, steps: usize) -> Vec<Selection> {
    let mut schedule = schedule.clone();
    let selections = (0..steps).map(|_| {
        let selection = schedule.selection();
        schedule.advance();
        selection
    });
    selections.collect()
}

/// The weights of the selected channels.
pub fn weights(layers: &[SparseLayer], selection: &Selection) -> usize {
    let weights = layers
        .iter()
        .map(|layer| selection[&layer.path].len() * layer.weights_per_channel);
    weights.sum()
}

/// Few different values, so that there are ties, and now and then any.
fn any_importance() -> impl Strategy<Value = f64> {
    let any =
        any::<f64>().prop_filter_map("finite", |value| value.is_finite().then_some(value.abs()));
    prop_oneof![
        4 => (0_u8..4).prop_map(f64::from),
        1 => any,
    ]
}

fn any_layer() -> impl Strategy<Value = (usize, usize, usize, Vec<f64>)> {
    (1_usize..10, 1_usize..20).prop_flat_map(|(channels, weights)| {
        let values = prop::collection::vec(any_importance(), channels);
        (Just(channels), Just(weights), 1..=channels, values)
    })
}

pub fn any_network() -> impl Strategy<Value = Network> {
    prop::collection::vec(any_layer(), 1..5).prop_map(|parts| {
        let mut layers = Vec::new();
        let mut values = BTreeMap::new();
        for (index, (channels, weights, selected, of_layer)) in parts.into_iter().enumerate() {
            // The order of the paths is not that of the layers.
            let path = format!("blocks.{}", 9 - index);
            layers.push(layer(&path, channels, weights, selected));
            values.insert(path, of_layer);
        }
        let importance = Importance::new(values).expect("importances");
        Network { layers, importance }
    })
}

/// A network and an amount that suits every schedule.
pub fn any_case() -> impl Strategy<Value = (Network, Amount)> {
    any_network().prop_flat_map(|network| {
        let weights = network.layers.iter().map(|layer| layer.weights_per_channel);
        let largest = weights.max().expect("a layer");
        let all = network
            .layers
            .iter()
            .map(|layer| layer.channels * layer.weights_per_channel);
        let all: usize = all.sum();
        let amount = prop_oneof![
            Just(Amount::PerLayer),
            (largest..=all).prop_map(Amount::TotalWeights),
        ];
        (Just(network), amount)
    })
}
