//! The products of a linear layer, for inputs that Burn's own operations do not take: vectors, and
//! inputs without rows (its CPU backends divide by their number or read past the end).

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::Shape;

/// `input weight + bias`, `[.., features_out]`.
pub(crate) fn forward<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let shape = with_last(input.shape(), weight.shape()[1]);
    match matrix::<B>(input) {
        None => zeros::<B>(&weight, shape),
        Some(input) => B::float_reshape(B::linear(input, weight, bias), shape),
    }
}

/// `output_gradient weight^T`, `[.., features_in]`.
pub(crate) fn input_gradient<B: Backend>(
    weight: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let shape = with_last(output_gradient.shape(), weight.shape()[0]);
    match matrix::<B>(output_gradient) {
        None => zeros::<B>(&weight, shape),
        Some(gradient) => B::float_reshape(B::linear_x_backward(weight, gradient), shape),
    }
}

/// `input^T output_gradient`, `[features_in, features_out]`.
pub(crate) fn weight_gradient<B: Backend>(
    input: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let last = |tensor: &FloatTensor<B>| tensor.shape().as_slice().last().copied().unwrap_or(1);
    let shape = Shape::from([last(&input), last(&output_gradient)]);
    match (matrix::<B>(input), matrix::<B>(output_gradient.clone())) {
        (Some(input), Some(gradient)) => B::linear_weight_backward(input, gradient),
        _ => zeros::<B>(&output_gradient, shape),
    }
}

/// The sum of the rows, `[features_out]`.
pub(crate) fn bias_gradient<B: Backend>(output_gradient: FloatTensor<B>) -> FloatTensor<B> {
    let features = output_gradient.shape().as_slice().last().copied();
    let shape = Shape::from([features.unwrap_or(1)]);
    match matrix::<B>(output_gradient.clone()) {
        None => zeros::<B>(&output_gradient, shape),
        Some(gradient) => B::float_reshape(B::float_sum_dim(gradient, 0), shape),
    }
}

/// All rows in one matrix; `None` if there are none.
fn matrix<B: Backend>(tensor: FloatTensor<B>) -> Option<FloatTensor<B>> {
    let shape = tensor.shape();
    let (elements, features) = (shape.num_elements(), *shape.as_slice().last()?);
    (elements > 0).then(|| B::float_reshape(tensor, Shape::from([elements / features, features])))
}

fn with_last(mut shape: Shape, features: usize) -> Shape {
    let last = shape.num_dims() - 1;
    shape[last] = features;
    shape
}

fn zeros<B: Backend>(like: &FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
    B::float_zeros(shape, &like.device(), like.dtype().into())
}
