use burn_frugal::Error as LayerError;

/// What can be wrong with a network's configuration or its weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A layer that cannot be built.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A configuration that describes no network.
    #[error("{field}: expected {expected}, found {found}")]
    Config {
        /// The field of the configuration.
        field: String,
        /// What it has to be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// Weights that cannot be read: no such file, truncated, not safetensors.
    #[error("{origin}: {problem}")]
    Weights {
        /// The file, or "the bytes".
        origin: String,
        /// What is wrong.
        problem: String,
    },
    /// Weights that do not fit the network.
    #[error("{origin}: not the weights of this network: {}", problems.join("; "))]
    Mismatch {
        /// The file, or "the bytes".
        origin: String,
        /// One line a tensor: its name, what was expected and what was found.
        problems: Vec<String>,
    },
}
