use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::budget::{Budget, Channel};
use super::{Importance, ScheduleError, SparseLayer};

/// A budget with the importance of each of its channels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub(super) struct Scored {
    budget: Budget,
    /// Of the budget's layers and no others, with as many values as channels.
    importance: Importance,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    budget: Budget,
    importance: Importance,
}

impl TryFrom<Unchecked> for Scored {
    type Error = ScheduleError;

    fn try_from(unchecked: Unchecked) -> Result<Self, ScheduleError> {
        Self::new(unchecked.budget, &unchecked.importance)
    }
}

impl Scored {
    pub(super) fn new(budget: Budget, importance: &Importance) -> Result<Self, ScheduleError> {
        let mut layers = BTreeMap::new();
        for layer in budget.layers() {
            let path = layer.path.clone();
            match importance.of(&path) {
                None => return Err(ScheduleError::NoImportance { path }),
                Some(values) if values.len() != layer.channels => {
                    return Err(ScheduleError::ImportanceLength {
                        path,
                        expected: layer.channels,
                        found: values.len(),
                    });
                }
                Some(values) => layers.insert(path, values.to_vec()),
            };
        }
        let importance = Importance::new(layers)?;
        Ok(Self { budget, importance })
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The layers with their channels' importances.
    pub(super) fn layers(&self) -> impl Iterator<Item = (&SparseLayer, &[f64])> {
        self.budget.layers().iter().map(|layer| {
            let values = self.importance.of(&layer.path);
            (layer, values.expect("`new` checks every layer"))
        })
    }

    /// All channels, most important first; those of the same importance are in the order of the
    /// layers, then of the channels.
    pub(super) fn ranked(&self) -> Vec<Channel> {
        let channels = self.layers().enumerate().flat_map(|(layer, (_, values))| {
            let values = values.iter().enumerate();
            values.map(move |(channel, value)| (*value, Channel { layer, channel }))
        });
        let mut channels: Vec<_> = channels.collect();
        // Stable, which is what orders ties.
        channels.sort_by(|(left, _), (right, _)| right.total_cmp(left));
        channels.into_iter().map(|(_, channel)| channel).collect()
    }
}
