use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

use super::{Amount, ScheduleError, SparseLayer};

/// An input channel of a layer of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Channel {
    /// Position of the layer in the schedule.
    pub(super) layer: usize,
    /// Position of the channel in the layer.
    pub(super) channel: usize,
}

/// The layers of a schedule, and how many of their channels are trained at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub(super) struct Budget {
    layers: Vec<SparseLayer>,
    amount: Amount,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    layers: Vec<SparseLayer>,
    amount: Amount,
}

impl TryFrom<Unchecked> for Budget {
    type Error = ScheduleError;

    fn try_from(unchecked: Unchecked) -> Result<Self, ScheduleError> {
        Self::new(unchecked.layers, unchecked.amount)
    }
}

impl Budget {
    pub(super) fn new(layers: Vec<SparseLayer>, amount: Amount) -> Result<Self, ScheduleError> {
        let mut paths = BTreeSet::new();
        for layer in &layers {
            if !paths.insert(&layer.path) {
                return Err(ScheduleError::DuplicateLayer {
                    path: layer.path.clone(),
                });
            }
            if !(1..=layer.channels).contains(&layer.selected) {
                return Err(ScheduleError::Selected {
                    path: layer.path.clone(),
                    selected: layer.selected,
                    channels: layer.channels,
                });
            }
        }
        let smallest = layers.iter().map(|layer| layer.weights_per_channel).min();
        let smallest = smallest.ok_or(ScheduleError::NoLayers)?;
        match amount {
            Amount::TotalWeights(found) if found < smallest => {
                Err(ScheduleError::TotalTooSmall { found, smallest })
            }
            _ => Ok(Self { layers, amount }),
        }
    }

    pub(super) fn layers(&self) -> &[SparseLayer] {
        &self.layers
    }

    pub(super) fn amount(&self) -> Amount {
        self.amount
    }

    /// The channels of `order` that are trained together, first come first served, and those that
    /// are left, both in that order.
    pub(super) fn fill(&self, order: &[Channel]) -> (Vec<Channel>, Vec<Channel>) {
        let mut room = Room::new(self);
        order.iter().partition(|channel| room.take(channel))
    }

    /// These channels, ascending, by the path of their layer.
    pub(super) fn by_path(&self, channels: &[Channel]) -> BTreeMap<String, Vec<usize>> {
        let mut by_layer = vec![Vec::new(); self.layers.len()];
        for channel in channels {
            by_layer[channel.layer].push(channel.channel);
        }
        for channels in &mut by_layer {
            channels.sort_unstable();
        }
        let paths = self.layers.iter().map(|layer| layer.path.clone());
        paths.zip(by_layer).collect()
    }
}

/// What is left of a budget.
enum Room<'a> {
    /// Channels of each layer.
    Channels(Vec<usize>),
    /// Weights of all layers together.
    Weights(usize, &'a [SparseLayer]),
}

impl<'a> Room<'a> {
    fn new(budget: &'a Budget) -> Self {
        match budget.amount {
            Amount::PerLayer => {
                let selected = budget.layers.iter().map(|layer| layer.selected);
                Self::Channels(selected.collect())
            }
            Amount::TotalWeights(total) => Self::Weights(total, &budget.layers),
        }
    }

    /// Makes room for a channel; `false` when it does not fit.
    fn take(&mut self, channel: &Channel) -> bool {
        let (left, needed) = match self {
            Self::Channels(left) => (&mut left[channel.layer], 1),
            Self::Weights(left, layers) => (left, layers[channel.layer].weights_per_channel),
        };
        match left.checked_sub(needed) {
            Some(rest) => {
                *left = rest;
                true
            }
            None => false,
        }
    }
}
