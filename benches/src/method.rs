//! Methods by the names that the programs take.

use burn_frugal::Method;
use burn_frugal::methods::ActivationShortcut;
use std::fmt;
use std::str::FromStr;

/// The share of each mode's size that an activation shortcut's ranks are. The benchmarks' random
/// inputs have no low-rank structure to measure ranks from.
const RANK_SHARE: f64 = 0.125;

/// A method without the numbers that depend on a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodName {
    /// The exact gradient.
    Exact,
    /// The gradient filter with this patch.
    Filter(usize),
    /// The channel-sparse update with this percentage of the channels.
    Sparse(usize),
    /// The exact gradient, inputs computed again where that is possible.
    Recomputed,
    /// The input in this many bits.
    Quantized(u8),
    /// The activation shortcut as published, each rank an eighth of the mode's size.
    Shortcut,
    /// The same with every mode's iteration on what the modes before it left.
    SequentialShortcut,
}

impl MethodName {
    /// The method for a layer with this input, `[batch, channels, height, width]`.
    pub fn method(self, input: [usize; 4]) -> Method {
        let ranks = || input.map(|size| ((size as f64 * RANK_SHARE).round() as usize).max(1));
        match self {
            Self::Exact => Method::Exact,
            Self::Filter(patch) => Method::gradient_filter(patch),
            Self::Sparse(percent) => Method::channel_sparse(percent as f64 / 100.0),
            Self::Recomputed => Method::Recomputed,
            Self::Quantized(bits) => Method::quantized(bits),
            Self::Shortcut => ActivationShortcut::new(ranks()).into(),
            Self::SequentialShortcut => ActivationShortcut::new(ranks()).sequential().into(),
        }
    }
}

impl FromStr for MethodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |name: &str| text.strip_prefix(name)?.parse::<usize>().ok();
        match text {
            "exact" => Ok(Self::Exact),
            "shortcut" => Ok(Self::Shortcut),
            "sequential" => Ok(Self::SequentialShortcut),
            "recomputed" => Ok(Self::Recomputed),
            "bits8" => Ok(Self::Quantized(8)),
            "bits4" => Ok(Self::Quantized(4)),
            _ => match (number("filter"), number("sparse")) {
                (Some(patch), _) if patch > 0 => Ok(Self::Filter(patch)),
                (_, Some(percent)) if (1..=100).contains(&percent) => Ok(Self::Sparse(percent)),
                _ => Err(
                    "expected exact, recomputed, filter2 (or another patch), sparse10 (or another \
                     percentage), bits8, bits4, shortcut or sequential"
                        .to_string(),
                ),
            },
        }
    }
}

impl fmt::Display for MethodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Filter(patch) => write!(f, "filter{patch}"),
            Self::Sparse(percent) => write!(f, "sparse{percent}"),
            Self::Recomputed => f.write_str("recomputed"),
            Self::Quantized(bits) => write!(f, "bits{bits}"),
            Self::Shortcut => f.write_str("shortcut"),
            Self::SequentialShortcut => f.write_str("sequential"),
        }
    }
}
