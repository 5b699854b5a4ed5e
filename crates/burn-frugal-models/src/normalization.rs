//! Batch normalization that is there, or folded away.

use burn::tensor::Tensor;
use burn_frugal::nn::{BatchNorm, Conv2d, Relu6};

pub(crate) fn relu6(map: Tensor<4>) -> Tensor<4> {
    Relu6::new().forward(map)
}

pub(crate) fn normalized(norm: &Option<BatchNorm>, map: Tensor<4>) -> Tensor<4> {
    match norm {
        Some(norm) => norm.forward(map),
        None => map,
    }
}

/// The convolution with the normalization moved into it.
pub(crate) fn fold(conv: Conv2d, norm: Option<BatchNorm>) -> Conv2d {
    match norm {
        Some(norm) => norm.fold_into(conv),
        None => conv,
    }
}
