//! [`FrugalOps`](super::FrugalOps) in Burn's own operations: what a backend gets that overrides
//! nothing, and what the tests compare each override with.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{Shape, TensorData, ops::ConvOptions};
use burn_frugal_kernels::{ConvGeometry, Span, Tiles};

use super::MaybeFloat;

/// See [`FrugalOps::convolution`](super::FrugalOps::convolution).
pub fn convolution<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: MaybeFloat<B>,
    geometry: &ConvGeometry,
) -> FloatTensor<B> {
    let bias = match bias {
        MaybeFloat::Some(bias) => Some(bias),
        MaybeFloat::None => None,
    };
    B::conv2d(input, weight, bias, options(geometry))
}

/// See [`FrugalOps::convolution_input_gradient`](super::FrugalOps::convolution_input_gradient).
pub fn convolution_input_gradient<B: Backend>(
    weight: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: &ConvGeometry,
) -> FloatTensor<B> {
    let [height, width] = geometry.input;
    let shape = [geometry.batch, geometry.input_channels, height, width];
    if geometry.output_len() == 0 {
        return zeros_like::<B>(&output_gradient, shape);
    }
    // Burn reads the input's shape only
    let input = zeros_like::<B>(&output_gradient, shape);
    B::conv2d_x_backward(input, weight, output_gradient, options(geometry))
}

/// See [`FrugalOps::convolution_weight_gradient`](super::FrugalOps::convolution_weight_gradient).
pub fn convolution_weight_gradient<B: Backend>(
    input: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: &ConvGeometry,
) -> FloatTensor<B> {
    let [rows, columns] = geometry.kernel;
    let group_channels = geometry.input_channels / geometry.groups;
    let shape = [geometry.output_channels, group_channels, rows, columns];
    // Burn reads the weight's shape only
    let weight = zeros_like::<B>(&output_gradient, shape);
    if geometry.output_len() == 0 {
        return weight;
    }
    B::conv2d_weight_backward(input, weight, output_gradient, options(geometry))
}

/// See [`FrugalOps::channel_sums`](super::FrugalOps::channel_sums).
pub fn channel_sums<B: Backend>(map: FloatTensor<B>) -> FloatTensor<B> {
    let channels = map.shape()[1];
    let sums = B::float_sum_dim(B::float_sum_dim(B::float_sum_dim(map, 3), 2), 0);
    B::float_reshape(sums, Shape::from([channels]))
}

/// See [`FrugalOps::tile_sums`](super::FrugalOps::tile_sums).
///
/// Pooling along an axis is a product with a matrix that holds each span's weight:
/// `sums = R map C^T`.
pub fn tile_sums<B: Backend>(map: FloatTensor<B>, tiles: &Tiles) -> FloatTensor<B> {
    let [_, _, height, width] = map.shape().dims();
    let rows = pooling_matrix::<B>(&tiles.rows, height, &map);
    let columns = B::float_swap_dims(pooling_matrix::<B>(&tiles.columns, width, &map), 2, 3);
    B::float_matmul(B::float_matmul(rows, map), columns)
}

/// See [`FrugalOps::tile_spread`](super::FrugalOps::tile_spread): `map = R^T values C`.
pub fn tile_spread<B: Backend>(
    values: FloatTensor<B>,
    tiles: &Tiles,
    [height, width]: [usize; 2],
) -> FloatTensor<B> {
    let rows = B::float_swap_dims(pooling_matrix::<B>(&tiles.rows, height, &values), 2, 3);
    let columns = pooling_matrix::<B>(&tiles.columns, width, &values);
    B::float_matmul(B::float_matmul(rows, values), columns)
}

/// `[1, 1, spans, size]`: each span's weight on its pixels, 0 elsewhere.
fn pooling_matrix<B: Backend>(
    spans: &[Span],
    size: usize,
    like: &FloatTensor<B>,
) -> FloatTensor<B> {
    let mut matrix = vec![0.0f64; spans.len() * size];
    for (span, row) in spans.iter().zip(matrix.chunks_mut(size.max(1))) {
        row[span.start..span.stop].fill(span.weight);
    }
    let data = TensorData::new(matrix, [1, 1, spans.len(), size]).convert_dtype(like.dtype());
    B::float_from_data(data, &like.device())
}

fn zeros_like<B: Backend>(like: &FloatTensor<B>, shape: [usize; 4]) -> FloatTensor<B> {
    B::float_zeros(Shape::from(shape), &like.device(), like.dtype().into())
}

fn options(geometry: &ConvGeometry) -> ConvOptions<2> {
    ConvOptions::new_with_padding(
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.groups,
    )
}
