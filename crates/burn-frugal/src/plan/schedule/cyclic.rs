use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::budget::{Budget, Channel};
use super::scored::Scored;
use super::{Amount, ScheduleError};

/// Windows over the channels sorted by importance, one a step: every channel is visited exactly once
/// a cycle, the most important ones first, then it starts over. The last windows of a cycle may be
/// smaller.
///
/// With [`Amount::PerLayer`] each layer has windows of its `selected` channels and cycles by itself.
/// With [`Amount::TotalWeights`] there is one cycle of the channels of all layers, whose importances
/// are compared as they are; a window is filled with the most important channels that are left, and
/// those that do not fit any more wait for the next one.
///
/// This is our reconstruction of dynamic gradient sparse update (arXiv 2503.17959), whose full text
/// and code we could not find; not a reproduction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct CyclicSchedule {
    scored: Scored,
    steps: u64,
    /// Follows from `scored`.
    #[serde(skip_serializing)]
    cycles: Vec<Cycle>,
}

/// Windows that are trained one after the other.
type Cycle = Vec<Vec<Channel>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    scored: Scored,
    steps: u64,
}

impl TryFrom<Unchecked> for CyclicSchedule {
    type Error = ScheduleError;

    fn try_from(unchecked: Unchecked) -> Result<Self, ScheduleError> {
        let schedule = Self::new(unchecked.scored)?;
        let steps = unchecked.steps;
        Ok(Self { steps, ..schedule })
    }
}

impl CyclicSchedule {
    pub(super) fn new(scored: Scored) -> Result<Self, ScheduleError> {
        Ok(Self {
            cycles: cycles(&scored)?,
            scored,
            steps: 0,
        })
    }

    pub(super) fn selection(&self) -> BTreeMap<String, Vec<usize>> {
        let windows = self.cycles.iter().flat_map(|windows| {
            let window = self.steps % windows.len() as u64;
            &windows[window as usize]
        });
        let selected: Vec<_> = windows.copied().collect();
        self.scored.budget().by_path(&selected)
    }

    pub(super) fn advance(&mut self) {
        self.steps = self.steps.saturating_add(1);
    }

    pub(super) fn budget(&self) -> &Budget {
        self.scored.budget()
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }
}

fn cycles(scored: &Scored) -> Result<Vec<Cycle>, ScheduleError> {
    let budget = scored.budget();
    let ranked = scored.ranked();
    match budget.amount() {
        Amount::PerLayer => {
            let mut layers = vec![Vec::new(); budget.layers().len()];
            for channel in ranked {
                layers[channel.layer].push(channel);
            }
            let cycles = layers.into_iter().map(|channels| cycle(budget, channels));
            Ok(cycles.collect())
        }
        Amount::TotalWeights(total) => {
            let mut layers = budget.layers().iter();
            match layers.find(|layer| layer.weights_per_channel > total) {
                Some(layer) => Err(ScheduleError::ChannelTooLarge {
                    path: layer.path.clone(),
                    weights: layer.weights_per_channel,
                    total,
                }),
                None => Ok(vec![cycle(budget, ranked)]),
            }
        }
    }
}

/// Each of these channels once. Each of them fits the budget alone, so every window has one.
fn cycle(budget: &Budget, channels: Vec<Channel>) -> Cycle {
    let mut windows = Vec::new();
    let mut left = channels;
    while !left.is_empty() {
        let (window, rest) = budget.fill(&left);
        windows.push(window);
        left = rest;
    }
    windows
}
