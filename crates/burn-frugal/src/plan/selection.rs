//! Naming layers of a model.

use regex::Regex;

use super::{Layer, walk};
use crate::error::Error;
use crate::methods::LayerKind;

/// Some layers of a model.
#[derive(Clone, Debug)]
pub(super) enum Selection {
    /// The layer at this path.
    Layer(String),
    /// Every layer whose path contains a match of this regular expression.
    Pattern(String),
    /// The last convolutions.
    LastConvs(usize),
}

impl Selection {
    /// The layers that it names, in the model's order.
    pub(super) fn select<'a>(&self, layers: &'a [Layer]) -> Result<Vec<&'a Layer>, Error> {
        match self {
            Self::Layer(path) => Ok(vec![walk::find(layers, path)?]),
            Self::Pattern(pattern) => {
                let regex = Regex::new(pattern).map_err(|source| Error::Pattern {
                    pattern: pattern.clone(),
                    source,
                })?;
                let matching = layers.iter().filter(|layer| regex.is_match(&layer.path));
                let matching: Vec<_> = matching.collect();
                if matching.is_empty() {
                    return Err(Error::NoMatch {
                        pattern: pattern.clone(),
                        layers: walk::paths(layers),
                    });
                }
                Ok(matching)
            }
            Self::LastConvs(count) => {
                let is_conv = |layer: &&Layer| layer.shape.kind == LayerKind::Conv2d;
                let convs: Vec<_> = layers.iter().filter(is_conv).collect();
                match convs.len().checked_sub(*count) {
                    Some(first) => Ok(convs[first..].to_vec()),
                    None => Err(Error::TooFewConvolutions {
                        expected: *count,
                        found: convs.len(),
                    }),
                }
            }
        }
    }
}
