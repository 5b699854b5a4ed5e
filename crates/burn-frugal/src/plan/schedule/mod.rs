//! Which input channels of which layers are trained at which step.
//!
//! The weights of an input channel are those that multiply it. Training some of them at a time keeps
//! only those channels of the layer's input, and needs that share of the weight's gradient.

mod budget;
mod cyclic;
mod draws;
mod error;
mod fixed;
mod importance;
mod model;
mod resampled;
mod scored;
mod weighted;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use cyclic::CyclicSchedule;
pub use error::ScheduleError;
pub use fixed::FixedSchedule;
pub use importance::Importance;
pub use resampled::ResampledSchedule;
pub use weighted::WeightedSchedule;

use budget::Budget;
use draws::Draws;
use scored::Scored;

/// A layer as a schedule sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseLayer {
    /// The layer's path in the model, `blocks.3.depthwise` for example.
    pub path: String,
    /// Input channels of the layer.
    pub channels: usize,
    /// Weights that belong to one input channel.
    pub weights_per_channel: usize,
    /// Channels trained at a time, as the layer's method says: from 1 to `channels`. Only
    /// [`Amount::PerLayer`] uses it.
    pub selected: usize,
}

/// How many channels are trained at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// What each layer's method says: a ratio of its own for each layer or stage.
    PerLayer,
    /// As many channels of all layers together as have at most this many weights. A channel that
    /// does not fit is passed over for later ones that do.
    TotalWeights(usize),
}

/// Which channels are trained at which step.
///
/// Plain data: it is saved with the state of the training, and goes on after loading as if it had
/// not stopped. A saved schedule that does not fit together is an error when it is loaded.
///
/// The random schedules use [`rand::rngs::StdRng`], whose sequence another release series of `rand`
/// may change: a training is resumed to the same selections by the same series.
///
/// # Example
/// ```
/// use burn_frugal::plan::schedule::{Amount, Schedule, SparseLayer};
///
/// let layer = SparseLayer {
///     path: "blocks.3.project".to_string(),
///     channels: 96,
///     weights_per_channel: 24,
///     selected: 4,
/// };
/// let mut schedule = Schedule::resampled(vec![layer], Amount::PerLayer, 100, 7)?;
/// for _ in 0..200 {
///     let selection = schedule.selection();
///     assert_eq!(selection["blocks.3.project"].len(), 4);
///     // A step of the optimizer, with these channels trained.
///     schedule.advance();
/// }
/// # Ok::<(), burn_frugal::plan::schedule::ScheduleError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Schedule {
    /// The most important channels, at every step.
    Fixed(FixedSchedule),
    /// Every channel once a cycle, the most important ones first.
    Cyclic(CyclicSchedule),
    /// Channels drawn uniformly, anew every so many steps.
    Resampled(ResampledSchedule),
    /// Channels drawn in proportion to their importance, anew every so many steps.
    Weighted(WeightedSchedule),
}

impl Schedule {
    /// The most important channels, at every step: the "magnitude+" of MCUNetV3 (arXiv 2206.15472)
    /// when the importance is the norm of a channel's weights. See [`FixedSchedule`].
    ///
    /// # Errors
    /// When there are no layers or two of one path, a layer's `selected` is not from 1 to its
    /// channels, the importance of a layer is missing or of another number of channels, or no
    /// channel fits the amount.
    pub fn fixed(
        layers: Vec<SparseLayer>,
        importance: &Importance,
        amount: Amount,
    ) -> Result<Self, ScheduleError> {
        let scored = Scored::new(Budget::new(layers, amount)?, importance)?;
        Ok(Self::Fixed(FixedSchedule::new(scored)))
    }

    /// Every channel exactly once a cycle, the most important ones first: our reconstruction of
    /// dynamic gradient sparse update (arXiv 2503.17959), not a reproduction. See
    /// [`CyclicSchedule`].
    ///
    /// # Errors
    /// As [`fixed`](Self::fixed), and when a channel alone has more weights than the amount.
    pub fn cyclic(
        layers: Vec<SparseLayer>,
        importance: &Importance,
        amount: Amount,
    ) -> Result<Self, ScheduleError> {
        let scored = Scored::new(Budget::new(layers, amount)?, importance)?;
        Ok(Self::Cyclic(CyclicSchedule::new(scored)?))
    }

    /// Uniformly random channels, drawn anew every `period` steps: TraDy (arXiv 2510.19675), where
    /// the period is an epoch. See [`ResampledSchedule`].
    ///
    /// # Errors
    /// When there are no layers or two of one path, a layer's `selected` is not from 1 to its
    /// channels, no channel fits the amount, or the period is 0.
    pub fn resampled(
        layers: Vec<SparseLayer>,
        amount: Amount,
        period: usize,
        seed: u64,
    ) -> Result<Self, ScheduleError> {
        let budget = Budget::new(layers, amount)?;
        let draws = Draws::new(period, seed)?;
        Ok(Self::Resampled(ResampledSchedule::new(budget, draws)))
    }

    /// Random channels, drawn in proportion to their importance and anew every `period` steps, as
    /// in MeDyate (arXiv 2510.20979). See [`WeightedSchedule`].
    ///
    /// # Errors
    /// As [`fixed`](Self::fixed), and when the period is 0.
    pub fn weighted(
        layers: Vec<SparseLayer>,
        importance: &Importance,
        amount: Amount,
        period: usize,
        seed: u64,
    ) -> Result<Self, ScheduleError> {
        let scored = Scored::new(Budget::new(layers, amount)?, importance)?;
        let draws = Draws::new(period, seed)?;
        Ok(Self::Weighted(WeightedSchedule::new(scored, draws)))
    }

    /// The channels that are trained now, ascending, by the layer's path. Every layer of the
    /// schedule is present, with an empty list when none of its channels is selected.
    ///
    /// All schedules but the cyclic one sort their channels at each call.
    pub fn selection(&self) -> BTreeMap<String, Vec<usize>> {
        match self {
            Self::Fixed(schedule) => schedule.selection(),
            Self::Cyclic(schedule) => schedule.selection(),
            Self::Resampled(schedule) => schedule.selection(),
            Self::Weighted(schedule) => schedule.selection(),
        }
    }

    fn layers(&self) -> &[SparseLayer] {
        match self {
            Self::Fixed(schedule) => schedule.budget().layers(),
            Self::Cyclic(schedule) => schedule.budget().layers(),
            Self::Resampled(schedule) => schedule.budget().layers(),
            Self::Weighted(schedule) => schedule.budget().layers(),
        }
    }

    /// Goes on to the next optimizer step.
    pub fn advance(&mut self) {
        match self {
            Self::Fixed(schedule) => schedule.advance(),
            Self::Cyclic(schedule) => schedule.advance(),
            Self::Resampled(schedule) => schedule.advance(),
            Self::Weighted(schedule) => schedule.advance(),
        }
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        match self {
            Self::Fixed(schedule) => schedule.steps(),
            Self::Cyclic(schedule) => schedule.steps(),
            Self::Resampled(schedule) => schedule.steps(),
            Self::Weighted(schedule) => schedule.steps(),
        }
    }
}
