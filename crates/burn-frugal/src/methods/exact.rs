//! The ordinary gradient of a layer.

use burn::backend::tensor::FloatTensor;

use super::{Flops, Saved};
use crate::geometry::LayerGeometry;
use crate::ops::{FrugalOps, linear};

/// Keeps the whole input.
pub(super) fn keep<B: FrugalOps>(input: FloatTensor<B>) -> Saved<B> {
    Saved::Full(B::own(input))
}

/// Elements of [`keep`]'s result.
pub(super) fn elements(geometry: &LayerGeometry) -> usize {
    geometry.input_len()
}

pub(super) fn flops(geometry: &LayerGeometry) -> Flops {
    let gradient = 2 * geometry.products();
    Flops {
        forward: 0,
        weight_gradient: gradient,
        input_gradient: gradient,
    }
}

/// `dL/dW[o, c, i, j] = sum over n, h, w of dL/dy[n, o, h, w] * x[n, c, h s + i d - p, w s + j d - p]`;
/// for a linear layer `dL/dW[i, o] = sum over rows of x[row, i] * dL/dy[row, o]`.
pub(super) fn weight_gradient<B: FrugalOps>(
    input: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: &LayerGeometry,
) -> FloatTensor<B> {
    match geometry {
        LayerGeometry::Conv2d(conv) => {
            B::convolution_weight_gradient(input, output_gradient, *conv)
        }
        LayerGeometry::Linear(_) => linear::weight_gradient::<B>(input, output_gradient),
    }
}

/// The output's gradient summed over everything but its channels.
pub(super) fn bias_gradient<B: FrugalOps>(
    output_gradient: FloatTensor<B>,
    geometry: &LayerGeometry,
) -> FloatTensor<B> {
    match geometry {
        LayerGeometry::Conv2d(_) => B::channel_sums(output_gradient),
        LayerGeometry::Linear(_) => linear::bias_gradient::<B>(output_gradient),
    }
}

/// The transposed layer applied to the output's gradient.
pub(super) fn input_gradient<B: FrugalOps>(
    weight: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: &LayerGeometry,
) -> FloatTensor<B> {
    match geometry {
        LayerGeometry::Conv2d(conv) => {
            B::convolution_input_gradient(weight, output_gradient, *conv)
        }
        LayerGeometry::Linear(_) => linear::input_gradient::<B>(weight, output_gradient),
    }
}
