use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::ScheduleError;

/// Importance of each input channel of each layer, larger is more important.
///
/// Importances of different layers are compared as they are: divide them by something if the layers'
/// scales should not count. TraDy's divides the norm of a channel's gradient by what training the
/// channel costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    try_from = "BTreeMap<String, Vec<f64>>",
    into = "BTreeMap<String, Vec<f64>>"
)]
pub struct Importance {
    layers: BTreeMap<String, Vec<f64>>,
}

impl Importance {
    /// Importances by the layer's path, one a channel.
    ///
    /// # Errors
    /// When one is infinite, not a number or negative.
    pub fn new(mut layers: BTreeMap<String, Vec<f64>>) -> Result<Self, ScheduleError> {
        for (path, values) in &mut layers {
            for (channel, value) in values.iter_mut().enumerate() {
                if !value.is_finite() || *value < 0.0 {
                    return Err(ScheduleError::ImportanceValue {
                        path: path.clone(),
                        channel,
                        found: *value,
                    });
                }
                // `total_cmp` tells -0 from 0.
                *value = value.abs();
            }
        }
        Ok(Self { layers })
    }

    /// The layers' paths, sorted.
    pub fn layers(&self) -> impl Iterator<Item = &str> {
        self.layers.keys().map(String::as_str)
    }

    /// The importance of each channel of the layer at this path.
    pub fn of(&self, path: &str) -> Option<&[f64]> {
        self.layers.get(path).map(Vec::as_slice)
    }

    /// The fewest layers whose channels have together at least this share (0 to 1) of the importance
    /// of all, most important layer first; layers of the same importance are in the order of their
    /// paths. TraDy (arXiv 2510.19675) resamples the layers that cover 0.97.
    ///
    /// # Example
    /// ```
    /// use burn_frugal::plan::schedule::Importance;
    ///
    /// let layers = [("a", vec![1.0, 1.0]), ("b", vec![6.0]), ("c", vec![0.5, 1.5, 0.0])];
    /// let layers = layers.map(|(path, values)| (path.to_string(), values));
    /// let importance = Importance::new(layers.into())?;
    /// assert_eq!(importance.layers_covering(0.75), ["b", "a"]);
    /// # Ok::<(), burn_frugal::plan::schedule::ScheduleError>(())
    /// ```
    pub fn layers_covering(&self, share: f64) -> Vec<String> {
        let sums = self.layers.iter().map(|(path, values)| {
            let sum: f64 = values.iter().sum();
            (path, sum)
        });
        let mut sums: Vec<_> = sums.collect();
        sums.sort_by(|(_, left), (_, right)| right.total_cmp(left));

        // Summed in the same order as below, so that a share of 1 is reached.
        let total = sums.iter().fold(0.0, |total, (_, sum)| total + sum);
        let mut covered = 0.0;
        let needed = sums.into_iter().take_while(|(_, sum)| {
            let needed = covered < share * total;
            covered += sum;
            needed
        });
        needed.map(|(path, _)| path.clone()).collect()
    }
}

impl From<Importance> for BTreeMap<String, Vec<f64>> {
    fn from(importance: Importance) -> Self {
        importance.layers
    }
}

impl TryFrom<BTreeMap<String, Vec<f64>>> for Importance {
    type Error = ScheduleError;

    fn try_from(layers: BTreeMap<String, Vec<f64>>) -> Result<Self, ScheduleError> {
        Self::new(layers)
    }
}
