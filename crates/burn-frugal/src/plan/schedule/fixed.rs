use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::budget::Budget;
use super::scored::Scored;

/// The most important channels, at every step.
///
/// With the norm of a channel's weights as importance this is the "magnitude+" of MCUNetV3 (arXiv
/// 2206.15472), whose channels never change either. Channels of the same importance are taken in the
/// order of the layers, then of the channels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedSchedule {
    scored: Scored,
    steps: u64,
}

impl FixedSchedule {
    pub(super) fn new(scored: Scored) -> Self {
        Self { scored, steps: 0 }
    }

    pub(super) fn selection(&self) -> BTreeMap<String, Vec<usize>> {
        let budget = self.scored.budget();
        let (selected, _) = budget.fill(&self.scored.ranked());
        budget.by_path(&selected)
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
