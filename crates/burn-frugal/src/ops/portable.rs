//! [`FrugalOps`](super::FrugalOps) in Burn's own operations: what a backend gets that overrides
//! nothing, and what the tests compare each override with.

mod activations;
mod pooling;
mod quantization;

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{
    BoolDType, BoolStore, DType, FloatDType, IndexingUpdateOp, Shape, TensorData, ops::ConvOptions,
    try_read_sync,
};
use burn_frugal_kernels::{self as kernels, ConvGeometry, Span, Tiles, Unfolding};

use super::MaybeFloat;
pub use activations::{activation, activation_with_mask, mask_gradient};
pub use pooling::{max_pool_input_gradient, max_pool_with_taps};
pub use quantization::{dequantize_rows, quantize_rows};

/// See [`FrugalOps::convolution`](super::FrugalOps::convolution).
pub fn convolution<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: MaybeFloat<B>,
    geometry: &ConvGeometry,
) -> FloatTensor<B> {
    B::conv2d(input, weight, bias.into_option(), options(geometry))
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

/// See [`FrugalOps::mode_project`](super::FrugalOps::mode_project).
pub fn mode_project<B: Backend>(
    tensor: FloatTensor<B>,
    factor: FloatTensor<B>,
    mode: usize,
) -> FloatTensor<B> {
    let transposed = B::float_swap_dims(factor, 0, 1);
    along_mode::<B>(tensor, transposed, mode)
}

/// See [`FrugalOps::mode_expand`](super::FrugalOps::mode_expand).
pub fn mode_expand<B: Backend>(
    core: FloatTensor<B>,
    factor: FloatTensor<B>,
    mode: usize,
) -> FloatTensor<B> {
    along_mode::<B>(core, factor, mode)
}

/// Every column of the unfolding multiplied by a matrix `[size_out, size_in]`.
fn along_mode<B: Backend>(
    tensor: FloatTensor<B>,
    matrix: FloatTensor<B>,
    mode: usize,
) -> FloatTensor<B> {
    let mut shape = tensor.shape();
    let [rows, columns] = matrix.shape().dims();
    let matrix = B::float_reshape(matrix, Shape::from([1, rows, columns]));
    shape[mode] = rows;
    B::float_reshape(B::float_matmul(matrix, slabs::<B>(tensor, mode)), shape)
}

/// See [`FrugalOps::subspace_product`](super::FrugalOps::subspace_product).
pub fn subspace_product<B: Backend>(
    tensor: FloatTensor<B>,
    factor: FloatTensor<B>,
    mode: usize,
) -> FloatTensor<B> {
    let (tensor, factor) = (single::<B>(tensor), single::<B>(factor));
    let projected = mode_project::<B>(tensor.clone(), factor, mode);
    summed_product::<B>(slabs::<B>(tensor, mode), slabs::<B>(projected, mode))
}

/// See [`FrugalOps::gram`](super::FrugalOps::gram).
pub fn gram<B: Backend>(tensor: FloatTensor<B>, mode: usize) -> FloatTensor<B> {
    let slabs = slabs::<B>(single::<B>(tensor), mode);
    summed_product::<B>(slabs.clone(), slabs)
}

/// `sum over o of left[o] right[o]^T`.
fn summed_product<B: Backend>(left: FloatTensor<B>, right: FloatTensor<B>) -> FloatTensor<B> {
    let [_, rows, _] = left.shape().dims();
    let [_, columns, _] = right.shape().dims();
    let products = B::float_matmul(left, B::float_swap_dims(right, 1, 2));
    B::float_reshape(B::float_sum_dim(products, 0), Shape::from([rows, columns]))
}

/// See [`FrugalOps::orthonormalize`](super::FrugalOps::orthonormalize).
pub fn orthonormalize<B: Backend>(matrix: FloatTensor<B>) -> FloatTensor<B> {
    let [rows, columns] = matrix.shape().dims();
    let (dtype, device) = (matrix.dtype(), matrix.device());
    let data = try_read_sync(B::float_into_data(matrix));
    let data = data.expect("this platform reads tensors synchronously");
    let data = data.unwrap_or_else(|error| panic!("reading a matrix: {error}"));
    let mut elements: Vec<f64> = data.iter::<f64>().collect();
    kernels::orthonormalize(rows, columns, &mut elements);
    let data = TensorData::new(elements, [rows, columns]).convert_dtype(dtype);
    B::float_from_data(data, &device)
}

/// See [`FrugalOps::place`](super::FrugalOps::place).
pub fn place<B: Backend>(
    values: FloatTensor<B>,
    axis: usize,
    positions: &[usize],
    size: usize,
) -> FloatTensor<B> {
    let (device, dtype) = (values.device(), values.dtype());
    let mut shape = values.shape();
    shape[axis] = size;
    let zeros = B::float_zeros(shape, &device, dtype.into());
    if positions.is_empty() {
        return zeros;
    }
    let positions: Vec<i32> = positions.iter().map(|&position| position as i32).collect();
    let count = positions.len();
    let positions = B::int_from_data(TensorData::new(positions, [count]), &device);
    B::float_select_assign(zeros, axis, positions, values, IndexingUpdateOp::Add)
}

/// A tensor along one of its axes: `[outer, size, inner]`.
fn slabs<B: Backend>(tensor: FloatTensor<B>, mode: usize) -> FloatTensor<B> {
    let unfolding = Unfolding::new(tensor.shape().as_slice(), mode);
    let shape = Shape::from([unfolding.outer, unfolding.size, unfolding.inner]);
    B::float_reshape(tensor, shape)
}

/// Half precision overflows and rounds too soon for sums over a whole activation.
fn single<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => B::float_cast(tensor, FloatDType::F32),
        _ => tensor,
    }
}

/// The element type of truths.
fn bools() -> BoolDType {
    DType::Bool(BoolStore::Native).into()
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
