//! The sizes of a layer for one input: what every method's memory and work follow from.

use burn_frugal_kernels::ConvGeometry;
use serde::{Deserialize, Serialize};
use std::fmt;

/// All sizes of one layer for one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerGeometry {
    /// A 2D convolution.
    Conv2d(ConvGeometry),
    /// A linear layer.
    Linear(LinearGeometry),
}

/// All sizes of a linear layer for one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearGeometry {
    /// The input as methods see it, `[.., features_in]` with 2 to 4 axes.
    pub input: PerMode,
    /// Features of the output.
    pub output_features: usize,
}

impl LinearGeometry {
    /// The geometry for an input of this shape. A vector counts as one row; of more than 4 axes the
    /// surplus ones at the front count as one.
    ///
    /// # Panics
    /// When the shape is empty.
    pub fn new(input: &[usize], output_features: usize) -> Self {
        let input = match *input {
            [] => panic!("a linear layer's input has at least one axis"),
            [features] => PerMode::from([1, features]),
            [.., rows, columns, features] if input.len() > PerMode::MOST => {
                let merged = input[..input.len() - 3].iter().product();
                PerMode::from([merged, rows, columns, features])
            }
            ref modes => PerMode::new(modes).expect("2 to 4 axes"),
        };
        Self {
            input,
            output_features,
        }
    }

    /// Features of the input.
    pub fn input_features(&self) -> usize {
        self.input.as_slice()[self.input.len() - 1]
    }

    /// Vectors that go through the layer.
    pub fn rows(&self) -> usize {
        self.input.as_slice()[..self.input.len() - 1]
            .iter()
            .product()
    }
}

impl LayerGeometry {
    /// The input's shape, mode by mode.
    pub fn modes(&self) -> PerMode {
        match self {
            Self::Conv2d(conv) => {
                let [height, width] = conv.input;
                PerMode::from([conv.batch, conv.input_channels, height, width])
            }
            Self::Linear(linear) => linear.input,
        }
    }

    /// The mode of the input that holds its channels (or features).
    pub fn channel_mode(&self) -> usize {
        match self {
            Self::Conv2d(_) => 1,
            Self::Linear(linear) => linear.input.len() - 1,
        }
    }

    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        self.modes().product()
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        match self {
            Self::Conv2d(conv) => conv.output_len(),
            Self::Linear(linear) => linear.rows() * linear.output_features,
        }
    }

    /// Channels (or features) of the output.
    pub(crate) fn output_channels(&self) -> usize {
        match self {
            Self::Conv2d(conv) => conv.output_channels,
            Self::Linear(linear) => linear.output_features,
        }
    }

    /// Elements of the weight.
    pub fn weight_len(&self) -> usize {
        match self {
            Self::Conv2d(conv) => conv.weight_len(),
            Self::Linear(linear) => linear.input_features() * linear.output_features,
        }
    }

    /// The same layer for a batch of `to` samples instead of `from`. The first mode of a linear
    /// layer's input is its batch, or a multiple of it.
    pub(crate) fn with_batch(self, from: usize, to: usize) -> Self {
        match self {
            Self::Conv2d(conv) => Self::Conv2d(ConvGeometry { batch: to, ..conv }),
            Self::Linear(linear) => Self::Linear(LinearGeometry {
                input: linear.input.with(0, linear.input[0] / from.max(1) * to),
                ..linear
            }),
        }
    }

    /// Products of the forward pass, which are also those of each exact gradient. Taps on padding
    /// count as if they were computed.
    pub fn products(&self) -> u64 {
        match self {
            Self::Conv2d(conv) => conv.macs(),
            Self::Linear(linear) => self.output_len() as u64 * linear.input_features() as u64,
        }
    }
}

impl From<ConvGeometry> for LayerGeometry {
    fn from(geometry: ConvGeometry) -> Self {
        Self::Conv2d(geometry)
    }
}

impl From<LinearGeometry> for LayerGeometry {
    fn from(geometry: LinearGeometry) -> Self {
        Self::Linear(geometry)
    }
}

/// One number for each mode (axis) of an activation, of which there are 2 to 4: sizes or ranks.
///
/// # Example
/// ```
/// use burn_frugal::PerMode;
///
/// let ranks = PerMode::from([1, 8, 4, 4]);
/// assert_eq!(ranks.as_slice(), [1, 8, 4, 4]);
/// assert_eq!(ranks.to_string(), "1x8x4x4");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<usize>", into = "Vec<usize>")]
pub struct PerMode {
    /// Those beyond `count` are 1.
    values: [usize; Self::MOST],
    count: usize,
}

impl PerMode {
    /// The most modes that there can be.
    pub const MOST: usize = 4;
    /// The fewest modes that there can be.
    pub const FEWEST: usize = 2;

    /// One number for each mode; `None` if there are not 2 to 4.
    pub fn new(modes: &[usize]) -> Option<Self> {
        if !(Self::FEWEST..=Self::MOST).contains(&modes.len()) {
            return None;
        }
        let mut values = [1; Self::MOST];
        values[..modes.len()].copy_from_slice(modes);
        Some(Self {
            values,
            count: modes.len(),
        })
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[usize] {
        &self.values[..self.count]
    }

    /// How many modes there are.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.count
    }

    /// The product of all numbers.
    pub fn product(&self) -> usize {
        self.values.iter().product()
    }

    /// The larger number of each mode.
    ///
    /// # Panics
    /// When there are not as many modes.
    pub(crate) fn max(self, other: Self) -> Self {
        (0..self.count).fold(self, |larger, mode| {
            larger.with(mode, self[mode].max(other[mode]))
        })
    }

    /// The same with the number of one mode replaced.
    pub(crate) fn with(mut self, mode: usize, value: usize) -> Self {
        assert!(mode < self.count, "mode {mode} of {self}");
        self.values[mode] = value;
        self
    }
}

macro_rules! from_array {
    ($($count:literal)*) => {$(
        impl From<[usize; $count]> for PerMode {
            fn from(modes: [usize; $count]) -> Self {
                Self::new(&modes).expect("2 to 4 modes")
            }
        }
    )*};
}
from_array!(2 3 4);

impl TryFrom<Vec<usize>> for PerMode {
    type Error = String;

    fn try_from(modes: Vec<usize>) -> Result<Self, String> {
        Self::new(&modes).ok_or_else(|| {
            let [fewest, most] = [Self::FEWEST, Self::MOST];
            let found = modes.len();
            format!("expected {fewest} to {most} numbers, one a mode, found {found}")
        })
    }
}

impl From<PerMode> for Vec<usize> {
    fn from(modes: PerMode) -> Self {
        modes.as_slice().to_vec()
    }
}

impl std::ops::Index<usize> for PerMode {
    type Output = usize;

    fn index(&self, mode: usize) -> &usize {
        &self.as_slice()[mode]
    }
}

impl fmt::Debug for PerMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// `2x5x8x8`.
impl fmt::Display for PerMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (mode, value) in self.as_slice().iter().enumerate() {
            let separator = if mode == 0 { "" } else { "x" };
            write!(f, "{separator}{value}")?;
        }
        Ok(())
    }
}
