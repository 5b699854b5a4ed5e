use rand::Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::budget::{Budget, Channel};
use super::draws::Draws;

/// Uniformly random channels, drawn anew every so many steps.
///
/// TraDy (arXiv 2510.19675) draws channels like this every epoch, from the layers that
/// [`layers_covering`](super::Importance::layers_covering) names, and stops at a budget of weights
/// and kept activations; here the budget is of weights, or of channels in each layer. A layer's
/// random numbers depend on the seed, the number of the draw and the layer's path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResampledSchedule {
    budget: Budget,
    draws: Draws,
}

impl ResampledSchedule {
    pub(super) fn new(budget: Budget, draws: Draws) -> Self {
        Self { budget, draws }
    }

    pub(super) fn selection(&self) -> BTreeMap<String, Vec<usize>> {
        let (selected, _) = self.budget.fill(&self.drawn());
        self.budget.by_path(&selected)
    }

    /// All channels in the order in which they are drawn: that of a random number for each.
    fn drawn(&self) -> Vec<Channel> {
        let mut channels = Vec::new();
        for (layer, of_layer) in self.budget.layers().iter().enumerate() {
            let mut generator = self.draws.generator(&of_layer.path);
            for channel in 0..of_layer.channels {
                channels.push((generator.random::<u64>(), Channel { layer, channel }));
            }
        }
        channels.sort_by_key(|(number, _)| *number);
        channels.into_iter().map(|(_, channel)| channel).collect()
    }

    pub(super) fn advance(&mut self) {
        self.draws.advance();
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(super) fn steps(&self) -> u64 {
        self.draws.steps()
    }
}
