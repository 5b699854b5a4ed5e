use burn::backend::{
    Backend, ExtensionType, TensorMetadata,
    tensor::{FloatTensor, IntTensor},
};

use super::low_rank::{self, LowRank};
use crate::geometry::PerMode;

/// What a layer keeps of its input between forward and backward.
///
/// A [`Method`](super::Method) makes it from the plain input and later turns it, with the output's
/// gradient, into the weight's gradient. The variant *is* the memory of the method: nothing else
/// of the input stays alive.
#[derive(ExtensionType, Clone, Debug)]
#[non_exhaustive]
pub enum Saved<B: Backend> {
    /// Nothing: the weight gets no gradient.
    Nothing,
    /// The whole input, `[batch, channels_in, height, width]` or `[.., features_in]`.
    Full(FloatTensor<B>),
    /// One weighted sum a tile, `[batch, channels_in, tile_rows, tile_columns]`.
    Tiles(FloatTensor<B>),
    /// Some of the input channels, as a copy.
    Channels {
        /// The input with only these channels.
        input: FloatTensor<B>,
        /// The channels, ascending. The input is empty if there are none.
        channels: Vec<usize>,
    },
    /// A core and factors whose product is near the input.
    LowRank(#[extension_type] LowRank<B>),
    /// Integers and the scale of each row of them, in the form of the backend's
    /// [`quantize_rows`](crate::ops::FrugalOps::quantize_rows).
    Quantized {
        /// The integers.
        codes: IntTensor<B>,
        /// The scales.
        scales: FloatTensor<B>,
    },
}

impl<B: Backend> Saved<B> {
    /// Bytes of all elements that are kept.
    pub fn bytes(&self) -> usize {
        let bytes = |tensor: &FloatTensor<B>| tensor.shape().num_elements() * tensor.dtype().size();
        match self {
            Self::Nothing => 0,
            Self::Full(input) | Self::Tiles(input) | Self::Channels { input, .. } => bytes(input),
            Self::LowRank(low_rank) => {
                let (core, factors) = low_rank.clone().into_parts();
                bytes(&core) + factors.iter().flatten().map(bytes).sum::<usize>()
            }
            Self::Quantized { codes, scales } => {
                codes.shape().num_elements() * codes.dtype().size() + bytes(scales)
            }
        }
    }

    /// The rank of each mode, if this is a low-rank form.
    pub fn ranks(&self) -> Option<PerMode> {
        match self {
            Self::LowRank(low_rank) => Some(low_rank::sizes::<B>(&low_rank.core)),
            _ => None,
        }
    }
}
