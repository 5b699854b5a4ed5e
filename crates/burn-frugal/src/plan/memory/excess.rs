use std::fmt;

use super::StepMemory;

/// Bytes that a step keeps beyond what was predicted, between one layer and the next: something there
/// that is not of [`burn_frugal::nn`](crate::nn) keeps a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The path of the layer before which it happens; after the last one, "the end of the pass".
    pub layer: String,
    /// The path of the layer after which it happens; `None` at the start of the pass.
    pub after: Option<String>,
    /// Bytes that live at the layer beyond the predicted ones, less those that did at the layer
    /// before.
    pub bytes: usize,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            layer,
            after,
            bytes,
        } = self;
        match after {
            Some(after) => write!(
                f,
                "between `{after}` and `{layer}`: {bytes} bytes more than predicted are kept"
            ),
            None => write!(
                f,
                "before or in `{layer}`: {bytes} bytes more than predicted are kept"
            ),
        }
    }
}

/// What differs without a reason to look at it: a few of the graph's objects.
const UNREMARKABLE: usize = 4 << 10;

impl StepMemory {
    /// Where this counted step keeps more than the predicted one: by more than 2 % of all that is
    /// predicted to be kept, and 4 KiB. Both must be of the same model, plan and batch.
    ///
    /// # Example
    /// ```no_run
    /// # fn run(predicted: burn_frugal::plan::StepMemory, counted: burn_frugal::plan::StepMemory) {
    /// for excess in counted.excess(&predicted) {
    ///     eprintln!("{excess}");
    /// }
    /// # }
    /// ```
    pub fn excess(&self, predicted: &Self) -> Vec<Excess> {
        let remarkable = UNREMARKABLE.max(predicted.kept / 50);
        let layers = self.layers.iter().zip(&predicted.layers);
        let mut points: Vec<(String, isize)> = layers
            .map(|(counted, predicted)| {
                let beyond = counted.live as isize - predicted.live as isize;
                (counted.path.clone(), beyond)
            })
            .collect();
        points.push((
            "the end of the pass".to_string(),
            self.kept as isize - predicted.kept as isize,
        ));
        let mut found = Vec::new();
        let (mut before, mut after) = (0, None);
        for (layer, beyond) in points {
            let bytes = (beyond - before).max(0) as usize;
            if bytes > remarkable {
                found.push(Excess {
                    layer: layer.clone(),
                    after: after.clone(),
                    bytes,
                });
            }
            // what is only late in being freed is no excess of the next one
            before = before.max(beyond);
            after = Some(layer);
        }
        found
    }
}
