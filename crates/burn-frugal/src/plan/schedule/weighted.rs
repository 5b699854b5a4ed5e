use rand::Rng;
use rand::distr::Open01;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::budget::{Budget, Channel};
use super::draws::Draws;
use super::scored::Scored;

/// Random channels, drawn in proportion to their importance and anew every so many steps.
///
/// Channels are drawn without replacement, each with a probability proportional to its importance
/// among those that are left; those of importance 0 come last, in random order. MeDyate (arXiv
/// 2510.20979) draws channels in this way between epochs; its ranking of layers is not here. The
/// importances of different layers are compared as they are.
///
/// A layer's random numbers depend on the seed, the number of the draw and the layer's path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightedSchedule {
    scored: Scored,
    draws: Draws,
}

impl WeightedSchedule {
    pub(super) fn new(scored: Scored, draws: Draws) -> Self {
        Self { scored, draws }
    }

    pub(super) fn selection(&self) -> BTreeMap<String, Vec<usize>> {
        let budget = self.scored.budget();
        let (selected, _) = budget.fill(&self.drawn());
        budget.by_path(&selected)
    }

    /// All channels in the order in which they are drawn.
    ///
    /// Efraimidis and Spirakis (2006): with u uniform in (0, 1), descending ln(u) / importance. The
    /// same order is ascending ln(-ln(u)) - ln(importance), which no importance overflows.
    fn drawn(&self) -> Vec<Channel> {
        let mut channels = Vec::new();
        for (layer, (of_layer, values)) in self.scored.layers().enumerate() {
            let mut generator = self.draws.generator(&of_layer.path);
            for (channel, value) in values.iter().enumerate() {
                let uniform: f64 = generator.sample(Open01);
                let is_last = *value == 0.0;
                let logarithm = if is_last { 0.0 } else { value.ln() };
                let key = (-uniform.ln()).ln() - logarithm;
                channels.push((is_last, key, Channel { layer, channel }));
            }
        }
        channels.sort_by(|(left_last, left, _), (right_last, right, _)| {
            left_last.cmp(right_last).then(left.total_cmp(right))
        });
        channels
            .into_iter()
            .map(|(_, _, channel)| channel)
            .collect()
    }

    pub(super) fn advance(&mut self) {
        self.draws.advance();
    }

    pub(super) fn budget(&self) -> &Budget {
        self.scored.budget()
    }

    pub(super) fn steps(&self) -> u64 {
        self.draws.steps()
    }
}
