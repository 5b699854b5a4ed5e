use std::path::PathBuf;

use burn_frugal_kernels::GeometryError;

use crate::methods::Unsuitable;

/// What can be wrong with a layer's configuration, a plan or a plan's file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A convolution whose sizes do not fit together.
    #[error("{layer}: {source}")]
    Convolution {
        /// The layer.
        layer: String,
        /// Which sizes, and why.
        source: GeometryError,
    },
    /// A convolution without input or output channels.
    #[error("{layer}: {} input and {} output channels, expected at least 1 of each", channels[0], channels[1])]
    NoChannels {
        /// The layer.
        layer: String,
        /// Input and output channels.
        channels: [usize; 2],
    },
    /// A method that a layer cannot use.
    #[error("layer `{layer}`: {source}")]
    Method {
        /// The layer's path in the model.
        layer: String,
        /// What is wrong.
        source: Unsuitable,
    },
    /// A plan names a layer that the model does not have.
    #[error(
        "the model has no layer `{path}` of burn_frugal::nn (Burn's own layers have no method); it \
         has {}",
        listed(layers)
    )]
    UnknownLayer {
        /// The path in the plan.
        path: String,
        /// The layers that the model has.
        layers: Vec<String>,
    },
    /// A pattern of a plan matches no layer.
    #[error(
        "the pattern `{pattern}` matches no layer; the model has {}",
        listed(layers)
    )]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// The layers that the model has.
        layers: Vec<String>,
    },
    /// A pattern of a plan is not a regular expression.
    #[error("the pattern `{pattern}` is not a regular expression: {source}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Where it goes wrong.
        source: regex::Error,
    },
    /// A plan asks for more convolutions than the model has.
    #[error(
        "a plan for the last {expected} convolutions, but the model has {found} of burn_frugal::nn"
    )]
    TooFewConvolutions {
        /// Convolutions asked for.
        expected: usize,
        /// Convolutions in the model.
        found: usize,
    },
    /// A module path that holds no parameter.
    #[error("the model has no parameter under `{path}`")]
    NoParameter {
        /// The path.
        path: String,
    },
    /// Text that is not a plan.
    #[error("{origin} is not a plan: {source}")]
    NotAPlan {
        /// The file, or "the text".
        origin: String,
        /// Where it goes wrong.
        source: serde_json::Error,
    },
    /// A plan written by a later version of this library.
    #[error(
        "{origin} is a plan of version {found}; this version of burn-frugal reads up to {expected}"
    )]
    NewerPlan {
        /// The file, or "the text".
        origin: String,
        /// The version that the plan has.
        found: u64,
        /// The newest version that can be read.
        expected: u64,
    },
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// At most eight names, so that a message stays readable.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    match names {
        [] => "none".to_string(),
        names if names.len() <= SHOWN => names.join(", "),
        names => format!(
            "{}, ... ({} in all)",
            names[..SHOWN].join(", "),
            names.len()
        ),
    }
}
