//! From a profile and a budget to a plan.

use std::fmt;

use super::choice::{self, Alternative, Choice};
use super::{LayerProfile, Measured, Plan, Profile};
use crate::error::Error;
use crate::methods::Method;

/// Chooses one measured candidate for every layer of a [`Profile`].
///
/// The choice is exact: no other one has a smaller total error within the budget (arXiv 2505.05086
/// enumerates all of them; this merges Pareto fronts, layer by layer).
///
/// # Example
/// ```no_run
/// use burn_frugal::plan::{ErrorMeasure, Planner, Profile};
///
/// let profile = Profile::load("profile.json")?;
/// let planner = Planner::new(&profile).measure(ErrorMeasure::Relative);
/// let solution = planner.least_error(2 << 20)?;
/// println!("{solution}");
/// # Ok::<(), burn_frugal::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Planner<'a> {
    profile: &'a Profile,
    measure: ErrorMeasure,
}

/// Which error of the gradient is summed over the layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorMeasure {
    /// The Frobenius norm of the error, as in arXiv 2505.05086: layers with large gradients weigh
    /// more.
    #[default]
    Absolute,
    /// The error relative to each layer's exact gradient.
    Relative,
}

impl ErrorMeasure {
    /// A candidate's error.
    pub(super) fn of(self, measured: &Measured) -> f64 {
        match self {
            Self::Absolute => measured.error,
            Self::Relative => measured.relative_error,
        }
    }

    /// Checks that one of a layer's candidates can be chosen.
    pub(super) fn check(self, layer: &LayerProfile) -> Result<(), Error> {
        if layer.candidates.is_empty() {
            return Err(Error::NoCandidate {
                layer: layer.path.clone(),
            });
        }
        let errors = layer
            .candidates
            .iter()
            .map(|measured| (measured, self.of(measured)));
        match errors.into_iter().find(|(_, error)| !error.is_finite()) {
            None => Ok(()),
            Some((measured, found)) => Err(Error::NotFinite {
                layer: layer.path.clone(),
                method: measured.method.to_string(),
                found,
            }),
        }
    }
}

/// The best choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// A method for every layer of the profile.
    pub plan: Plan,
    /// Bytes that the layers keep together between forward and backward, as measured.
    pub bytes: usize,
    /// The summed error.
    pub error: f64,
    /// The choice layer by layer, in the profile's order.
    pub layers: Vec<PlannedLayer>,
}

/// What one layer got.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedLayer {
    /// The layer's path in the model.
    pub path: String,
    /// Its method.
    pub method: Method,
    /// Bytes that it keeps.
    pub bytes: usize,
    /// Its error.
    pub error: f64,
}

/// A table: one line a layer, then the sums.
impl fmt::Display for Solution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = "sum".to_string();
        let (mut paths, mut methods) = (sum.len(), 0);
        for layer in &self.layers {
            paths = paths.max(layer.path.len());
            methods = methods.max(layer.method.to_string().len());
        }
        for layer in &self.layers {
            let PlannedLayer {
                path,
                method,
                bytes,
                error,
            } = layer;
            let method = method.to_string();
            writeln!(
                f,
                "{path:paths$}  {method:methods$}  {bytes:>12}  {error:>11.4e}"
            )?;
        }
        let (bytes, error) = (self.bytes, self.error);
        write!(
            f,
            "{sum:paths$}  {:methods$}  {bytes:>12}  {error:>11.4e}",
            ""
        )
    }
}

impl<'a> Planner<'a> {
    /// A planner that sums absolute errors.
    pub fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            measure: ErrorMeasure::default(),
        }
    }

    /// Sums another error.
    pub fn measure(self, measure: ErrorMeasure) -> Self {
        Self { measure, ..self }
    }

    /// The plan with the smallest total error of those that keep at most `budget` bytes; of several,
    /// one with the fewest bytes.
    ///
    /// # Errors
    /// [`Error::Budget`] with the smallest budget that would do; an error when the profile has a
    /// layer without a candidate or a measurement that is not finite.
    pub fn least_error(&self, budget: usize) -> Result<Solution, Error> {
        let choice = choice::least_loss(&self.alternatives()?, budget as f64);
        let choice = choice.map_err(|infeasible| Error::Budget {
            budget,
            smallest: infeasible.smallest as usize,
        })?;
        Ok(self.solution(&choice))
    }

    /// The plan that keeps the fewest bytes of those with a total error of at most `bound`; of
    /// several, one with the smallest error.
    ///
    /// # Errors
    /// [`Error::ErrorBound`] with the smallest bound that would do; otherwise as
    /// [`least_error`](Self::least_error).
    pub fn fewest_bytes(&self, bound: f64) -> Result<Solution, Error> {
        // nothing is at most NaN
        let limit = if bound.is_nan() {
            f64::NEG_INFINITY
        } else {
            bound
        };
        let choice = choice::least_cost(&self.alternatives()?, limit);
        let choice = choice.map_err(|infeasible| Error::ErrorBound {
            bound,
            smallest: infeasible.smallest,
        })?;
        Ok(self.solution(&choice))
    }

    fn alternatives(&self) -> Result<Vec<Vec<Alternative>>, Error> {
        let layers = self.profile.layers().iter().map(|layer| {
            self.measure.check(layer)?;
            let alternatives = layer.candidates.iter().map(|measured| Alternative {
                cost: measured.bytes as f64,
                loss: self.measure.of(measured),
            });
            Ok(alternatives.collect())
        });
        layers.collect()
    }

    fn solution(&self, choice: &Choice) -> Solution {
        let pairs = self.profile.layers().iter().zip(&choice.options);
        let layers: Vec<PlannedLayer> = pairs
            .map(|(layer, &option)| {
                let measured = &layer.candidates[option];
                PlannedLayer {
                    path: layer.path.clone(),
                    method: measured.method,
                    bytes: measured.bytes,
                    error: self.measure.of(measured),
                }
            })
            .collect();
        let methods = layers
            .iter()
            .map(|layer| (layer.path.clone(), layer.method));
        Solution {
            plan: Plan {
                methods: methods.collect(),
            },
            bytes: choice.cost as usize,
            error: choice.loss,
            layers,
        }
    }
}
