//! The ordinary gradient of a convolution.

use burn::backend::tensor::FloatTensor;
use burn_frugal_kernels::ConvGeometry;

use super::Saved;
use crate::ops::FrugalOps;

/// Keeps the whole input.
pub(super) fn keep<B: FrugalOps>(input: FloatTensor<B>) -> Saved<B> {
    Saved::Full(B::own(input))
}

/// Elements of [`keep`]'s result.
pub(super) fn elements(geometry: &ConvGeometry) -> usize {
    geometry.input_len()
}

/// `dL/dW[o, c, i, j] = sum over n, h, w of dL/dy[n, o, h, w] * x[n, c, h s + i d - p, w s + j d - p]`.
pub(super) fn weight_gradient<B: FrugalOps>(
    input: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: ConvGeometry,
) -> FloatTensor<B> {
    B::convolution_weight_gradient(input, output_gradient, geometry)
}

/// The transposed convolution of the output's gradient with the weight.
pub(super) fn input_gradient<B: FrugalOps>(
    weight: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: ConvGeometry,
) -> FloatTensor<B> {
    B::convolution_input_gradient(weight, output_gradient, geometry)
}
