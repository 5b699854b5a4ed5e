//! Quantized inputs: integers of a few bits with a scale a row, and the exact gradient of what they
//! stand for. None of the papers behind the other methods compares with it.
//!
//! A row is one channel of one sample, `[height, width]`, or one sample where a map has fewer than
//! [`FEWEST_PIXELS`] pixels and scales would be a large part of what is kept; for a linear layer it is
//! the features of one sample. Values are rounded to the nearest of 255 (15) steps from 0 to the row's
//! largest value, or, if the row has negative ones, of 127 (7) steps to either side of 0. Input
//! gradients are exact.

use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_frugal_kernels::Bits;
use serde::{Deserialize, Serialize};

use super::{Flops, Saved, Unsuitable, exact};
use crate::geometry::LayerGeometry;
use crate::ops::FrugalOps;

/// Maps with fewer pixels share their sample's scale.
const FEWEST_PIXELS: usize = 8;

/// The input as integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantized {
    /// Bits of an element, 8 or 4.
    pub bits: u8,
}

impl Quantized {
    pub(super) fn check(&self) -> Result<(), Unsuitable> {
        self.width()
            .map(|_| ())
            .ok_or(Unsuitable::Bits { found: self.bits })
    }

    fn width(&self) -> Option<Bits> {
        match self.bits {
            8 => Some(Bits::Eight),
            4 => Some(Bits::Four),
            _ => None,
        }
    }

    fn checked_width(&self) -> Bits {
        self.width()
            .unwrap_or_else(|| panic!("{}", Unsuitable::Bits { found: self.bits }))
    }

    /// Bytes of [`keep`](Self::keep)'s result.
    pub(super) fn bytes(&self, geometry: &LayerGeometry, element_size: usize) -> usize {
        let row_len = row_len(geometry);
        let rows = geometry.input_len() / row_len.max(1);
        // scales of half precision are in single
        let scale = element_size.max(size_of::<f32>());
        rows * (self.checked_width().row_bytes(row_len) + scale)
    }

    /// The largest magnitude and a rounded quotient an element; a product to come back.
    pub(super) fn flops(&self, geometry: &LayerGeometry) -> Flops {
        let exact = exact::flops(geometry);
        let elements = geometry.input_len() as u64;
        Flops {
            forward: 2 * elements,
            weight_gradient: exact.weight_gradient + elements,
            ..exact
        }
    }

    pub(super) fn keep<B: FrugalOps>(
        &self,
        input: FloatTensor<B>,
        geometry: &LayerGeometry,
    ) -> Saved<B> {
        let (codes, scales) = B::quantize_rows(input, self.checked_width(), row_len(geometry));
        Saved::Quantized { codes, scales }
    }

    /// The exact gradient of the dequantized input.
    pub(super) fn weight_gradient<B: FrugalOps>(
        &self,
        codes: IntTensor<B>,
        scales: FloatTensor<B>,
        output_gradient: FloatTensor<B>,
        geometry: &LayerGeometry,
    ) -> FloatTensor<B> {
        let shape = match geometry {
            LayerGeometry::Conv2d(_) => geometry.modes().as_slice().to_vec(),
            // as a matrix: the input may have had more axes than modes
            LayerGeometry::Linear(linear) => vec![linear.rows(), linear.input_features()],
        };
        let dtype = output_gradient.dtype().into();
        let input = B::dequantize_rows(codes, scales, self.checked_width(), shape.into(), dtype);
        exact::weight_gradient::<B>(input, output_gradient, geometry)
    }
}

/// Elements that share a scale.
fn row_len(geometry: &LayerGeometry) -> usize {
    match geometry {
        LayerGeometry::Conv2d(conv) => {
            let pixels = conv.input[0] * conv.input[1];
            if pixels < FEWEST_PIXELS {
                pixels * conv.input_channels
            } else {
                pixels
            }
        }
        LayerGeometry::Linear(linear) => linear.input_features(),
    }
}
