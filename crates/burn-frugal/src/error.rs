use std::path::PathBuf;

use burn_frugal_kernels::GeometryError;

use crate::methods::Unsuitable;
use crate::plan::ScheduleError;

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
    #[error("{}: {source}", named(layer))]
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
    /// Text that is not what it should be.
    #[error("{origin} is not {expected}: {source}")]
    NotADocument {
        /// The file, or "the text".
        origin: String,
        /// "a plan", "a profile".
        expected: &'static str,
        /// Where it goes wrong.
        source: serde_json::Error,
    },
    /// Text written by a later version of this library.
    #[error(
        "{origin} is {what} of version {found}; this version of burn-frugal reads up to {expected}"
    )]
    NewerDocument {
        /// The file, or "the text".
        origin: String,
        /// "a plan", "a profile".
        what: &'static str,
        /// The version that it has.
        found: u64,
        /// The newest version that can be read.
        expected: u64,
    },
    /// The saved state of a training that cannot be read.
    #[error("{path} is not a saved training state: {problem}")]
    NotATrainingState {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Saved running values that do not suit the layer.
    #[error("{}: {problem}", named(layer))]
    LayerState {
        /// The layer's path in the model.
        layer: String,
        /// What is expected and what was found.
        problem: String,
    },
    /// What a measurement or calibration ran does not depend on a layer.
    #[error("{} took no part in what was run: nothing to measure", named(layer))]
    Unused {
        /// The layer's path in the model.
        layer: String,
    },
    /// A measured gradient, or an error of one, that is not a finite number.
    #[error("{}, {method}: the measured gradient error is {found}", named(layer))]
    NotFinite {
        /// The layer's path in the model.
        layer: String,
        /// The method that was measured.
        method: String,
        /// The error.
        found: f64,
    },
    /// A profile's layer without a candidate.
    #[error("layer `{layer}` of the profile has no candidate to choose from")]
    NoCandidate {
        /// The layer's path in the model.
        layer: String,
    },
    /// A budget that no choice of candidates meets.
    #[error("a budget of {budget} bytes is too small: the smallest plan keeps {smallest} bytes")]
    Budget {
        /// Bytes asked for.
        budget: usize,
        /// Bytes of the smallest plan.
        smallest: usize,
    },
    /// A limit on the operations of a step that no plan within the budget meets.
    #[error(
        "a limit of {limit} operations a pass is too low: the plan with the fewest takes {fewest}"
    )]
    FlopsLimit {
        /// The limit asked for.
        limit: u64,
        /// Operations of the plan with the fewest.
        fewest: u64,
    },
    /// An error bound that no choice of candidates meets.
    #[error("no plan has an error of at most {bound}: the smallest is {smallest}")]
    ErrorBound {
        /// The bound asked for.
        bound: f64,
        /// The smallest total error.
        smallest: f64,
    },
    /// A schedule of channels that does not fit together.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// A layer by its path, which is empty if the model itself is the layer.
fn named(path: &str) -> String {
    match path {
        "" => "the model itself".to_string(),
        path => format!("layer `{path}`"),
    }
}

/// At most eight names, so that a message stays readable.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let names: Vec<&str> = names
        .iter()
        .map(|name| match name.as_str() {
            "" => "`` (the model itself)",
            name => name,
        })
        .collect();
    match names.as_slice() {
        [] => "none".to_string(),
        names if names.len() <= SHOWN => names.join(", "),
        names => format!(
            "{}, ... ({} in all)",
            names[..SHOWN].join(", "),
            names.len()
        ),
    }
}
