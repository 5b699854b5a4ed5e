//! What the CPU backends share: contiguous slices in, the kernels crate, new tensors out.

use burn::backend::{
    Backend, TensorMetadata,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::{DType, FloatDType, Shape};
use burn_frugal_kernels::{
    self as kernels, Activation, Bits, ConvGeometry, Element, PoolGeometry, Tiles, Unfolding,
};

use crate::ops::{MaybeFloat, portable};

/// A backend tensor whose elements can be reached as a slice of `E`.
pub(super) trait HostTensor<E>: TensorMetadata + Sized {
    /// The same values in row-major order without gaps.
    fn into_contiguous(self) -> Self;
    /// The elements of a contiguous tensor.
    ///
    /// # Panics
    /// When the elements are not of type `E`.
    fn as_elements(&self) -> &[E];
    /// The elements of a contiguous tensor for writing, if no other tensor sees them.
    fn as_unique(&mut self) -> Option<&mut [E]>;
    /// A tensor that owns `elements`.
    fn from_elements(elements: Vec<E>, shape: Shape) -> Self;
}

/// `$run` with `$element` the type of the elements, or `$portable` for the half-precision types,
/// which the kernels do not have.
macro_rules! by_dtype {
    ($tensor:expr, $element:ident => $run:expr, portable => $portable:expr) => {
        by_dtype!(of $tensor.dtype(), $element => $run, portable => $portable)
    };
    (of $dtype:expr, $element:ident => $run:expr, portable => $portable:expr) => {
        match $dtype {
            DType::F32 => {
                type $element = f32;
                $run
            }
            DType::F64 => {
                type $element = f64;
                $run
            }
            _ => $portable,
        }
    };
}

/// A tensor of the elements that `kernel` computes from those of `sources`.
fn computed<T: HostTensor<E>, E: Element, const N: usize>(
    sources: [T; N],
    shape: impl Into<Shape>,
    kernel: impl FnOnce([&[E]; N]) -> Vec<E>,
) -> T {
    let sources = sources.map(T::into_contiguous);
    let elements = kernel(sources.each_ref().map(T::as_elements));
    T::from_elements(elements, shape.into())
}

/// A tensor whose elements `kernel` changes, in its own memory if nothing else uses that; and what
/// the kernel returns.
fn changed<T: HostTensor<E>, E: Element, R>(
    tensor: T,
    kernel: impl FnOnce(&mut [E]) -> R,
) -> (T, R) {
    let mut tensor = tensor.into_contiguous();
    if let Some(elements) = tensor.as_unique() {
        let result = kernel(elements);
        return (tensor, result);
    }
    let mut elements = tensor.as_elements().to_vec();
    let result = kernel(&mut elements);
    (T::from_elements(elements, tensor.shape()), result)
}

pub(super) fn convolution<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: MaybeFloat<B>,
    geometry: &ConvGeometry,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let [height, width] = geometry.output();
    let shape = [geometry.batch, geometry.output_channels, height, width];
    by_dtype!(input, E => match bias {
        MaybeFloat::Some(bias) => computed([input, weight, bias], shape, |[x, w, b]: [&[E]; 3]| {
            kernels::conv2d(geometry, x, w, Some(b))
        }),
        MaybeFloat::None => computed([input, weight], shape, |[x, w]: [&[E]; 2]| {
            kernels::conv2d(geometry, x, w, None)
        }),
    }, portable => portable::convolution::<B>(input, weight, bias, geometry))
}

pub(super) fn convolution_input_gradient<B: Backend>(
    weight: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: &ConvGeometry,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let [height, width] = geometry.input;
    let shape = [geometry.batch, geometry.input_channels, height, width];
    by_dtype!(output_gradient, E => {
        computed([weight, output_gradient], shape, |[w, gy]: [&[E]; 2]| {
            kernels::conv2d_input_gradient(geometry, w, gy)
        })
    }, portable => portable::convolution_input_gradient::<B>(weight, output_gradient, geometry))
}

pub(super) fn convolution_weight_gradient<B: Backend>(
    input: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: &ConvGeometry,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let [rows, columns] = geometry.kernel;
    let group_channels = geometry.input_channels / geometry.groups;
    let shape = [geometry.output_channels, group_channels, rows, columns];
    by_dtype!(output_gradient, E => {
        computed([input, output_gradient], shape, |[x, gy]: [&[E]; 2]| {
            kernels::conv2d_weight_gradient(geometry, x, gy)
        })
    }, portable => portable::convolution_weight_gradient::<B>(input, output_gradient, geometry))
}

pub(super) fn channel_sums<B: Backend>(map: FloatTensor<B>) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let [batch, channels, height, width] = map.shape().dims();
    by_dtype!(map, E => computed([map], [channels], |[map]: [&[E]; 1]| {
        kernels::channel_sums(batch, channels, height * width, map)
    }), portable => portable::channel_sums::<B>(map))
}

pub(super) fn tile_sums<B: Backend>(map: FloatTensor<B>, tiles: &Tiles) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let [batch, channels, height, width] = map.shape().dims();
    let shape = [batch, channels, tiles.rows.len(), tiles.columns.len()];
    by_dtype!(map, E => computed([map], shape, |[map]: [&[E]; 1]| {
        kernels::tile_sums(tiles, batch * channels, [height, width], map)
    }), portable => portable::tile_sums::<B>(map, tiles))
}

pub(super) fn tile_spread<B: Backend>(
    values: FloatTensor<B>,
    tiles: &Tiles,
    size: [usize; 2],
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let [batch, channels, _, _] = values.shape().dims();
    let shape = [batch, channels, size[0], size[1]];
    by_dtype!(values, E => computed([values], shape, |[values]: [&[E]; 1]| {
        kernels::tile_spread(tiles, batch * channels, size, values)
    }), portable => portable::tile_spread::<B>(values, tiles, size))
}

pub(super) fn mode_project<B: Backend>(
    tensor: FloatTensor<B>,
    factor: FloatTensor<B>,
    mode: usize,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let mut shape = tensor.shape();
    let unfolding = Unfolding::new(shape.as_slice(), mode);
    let rank = factor.shape()[1];
    shape[mode] = rank;
    by_dtype!(tensor, E => computed([tensor, factor], shape, |[x, u]: [&[E]; 2]| {
        kernels::mode_project(&unfolding, rank, x, u)
    }), portable => portable::mode_project::<B>(tensor, factor, mode))
}

pub(super) fn mode_expand<B: Backend>(
    core: FloatTensor<B>,
    factor: FloatTensor<B>,
    mode: usize,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let mut shape = core.shape();
    let [size, rank] = factor.shape().dims();
    shape[mode] = size;
    let unfolding = Unfolding::new(shape.as_slice(), mode);
    by_dtype!(core, E => computed([core, factor], shape, |[core, u]: [&[E]; 2]| {
        kernels::mode_expand(&unfolding, rank, core, u)
    }), portable => portable::mode_expand::<B>(core, factor, mode))
}

pub(super) fn subspace_product<B: Backend>(
    tensor: FloatTensor<B>,
    factor: FloatTensor<B>,
    mode: usize,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let unfolding = Unfolding::new(tensor.shape().as_slice(), mode);
    let [size, rank] = factor.shape().dims();
    let shape = Shape::from([size, rank]);
    by_dtype!(tensor, E => computed([tensor, factor], shape, |[x, u]: [&[E]; 2]| {
        kernels::subspace_product(&unfolding, rank, x, u)
    }), portable => portable::subspace_product::<B>(tensor, factor, mode))
}

pub(super) fn gram<B: Backend>(tensor: FloatTensor<B>, mode: usize) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let unfolding = Unfolding::new(tensor.shape().as_slice(), mode);
    let shape = Shape::from([unfolding.size, unfolding.size]);
    by_dtype!(tensor, E => {
        let tensor = HostTensor::<E>::into_contiguous(tensor);
        let gram = kernels::gram::<E>(&unfolding, tensor.as_elements());
        HostTensor::<f64>::from_elements(gram, shape)
    }, portable => portable::gram::<B>(tensor, mode))
}

pub(super) fn orthonormalize<B: Backend>(matrix: FloatTensor<B>) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let [rows, columns] = matrix.shape().dims();
    let shape = matrix.shape();
    by_dtype!(matrix, E => computed([matrix], shape, |[matrix]: [&[E]; 1]| {
        let mut orthonormal = matrix.to_vec();
        kernels::orthonormalize(rows, columns, &mut orthonormal);
        orthonormal
    }), portable => portable::orthonormalize::<B>(matrix))
}

pub(super) fn place<B: Backend>(
    values: FloatTensor<B>,
    axis: usize,
    positions: &[usize],
    size: usize,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let mut shape = values.shape();
    shape[axis] = size;
    let unfolding = Unfolding::new(shape.as_slice(), axis);
    by_dtype!(values, E => computed([values], shape, |[values]: [&[E]; 1]| {
        kernels::place(&unfolding, positions, values)
    }), portable => portable::place::<B>(values, axis, positions, size))
}

pub(super) fn activation<B: Backend>(
    input: FloatTensor<B>,
    activation: Activation,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    by_dtype!(input, E => {
        changed(input, |x: &mut [E]| kernels::activate(activation, x)).0
    }, portable => portable::activation::<B>(input, activation))
}

pub(super) fn activation_with_mask<B: Backend>(
    input: FloatTensor<B>,
    activation: Activation,
) -> (FloatTensor<B>, IntTensor<B>)
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
    IntTensor<B>: HostTensor<u8>,
{
    by_dtype!(input, E => {
        let kernel = |x: &mut [E]| kernels::activate_with_mask(activation, x);
        let (output, mask) = changed(input, kernel);
        let bytes = Shape::from([mask.len()]);
        (output, HostTensor::<u8>::from_elements(mask, bytes))
    }, portable => portable::activation_with_mask::<B>(input, activation))
}

pub(super) fn mask_gradient<B: Backend>(
    mask: IntTensor<B>,
    gradient: FloatTensor<B>,
    activation: Activation,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
    IntTensor<B>: HostTensor<u8>,
{
    by_dtype!(gradient, E => {
        changed(gradient, |gradient: &mut [E]| {
            kernels::mask_gradient(activation, mask.as_elements(), gradient)
        }).0
    }, portable => portable::mask_gradient::<B>(mask, gradient, activation))
}

pub(super) fn max_pool<B: Backend>(input: FloatTensor<B>, geometry: &PoolGeometry) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let shape = pooled_shape(&input.shape(), geometry.output);
    by_dtype!(input, E => computed([input], shape, |[x]: [&[E]; 1]| {
        kernels::max_pool2d(geometry, x)
    }), portable => portable::max_pool_with_taps::<B>(input, geometry).0)
}

pub(super) fn max_pool_with_taps<B: Backend>(
    input: FloatTensor<B>,
    geometry: &PoolGeometry,
) -> (FloatTensor<B>, IntTensor<B>)
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
    IntTensor<B>: HostTensor<u8>,
{
    let shape = pooled_shape(&input.shape(), geometry.output);
    by_dtype!(input, E => {
        let input = HostTensor::<E>::into_contiguous(input);
        let (output, taps) = kernels::max_pool2d_with_taps::<E>(geometry, input.as_elements());
        let output = HostTensor::<E>::from_elements(output, shape.clone());
        (output, HostTensor::<u8>::from_elements(taps, shape))
    }, portable => portable::max_pool_with_taps::<B>(input, geometry))
}

pub(super) fn max_pool_input_gradient<B: Backend>(
    taps: IntTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: &PoolGeometry,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
    IntTensor<B>: HostTensor<u8>,
{
    let shape = pooled_shape(&output_gradient.shape(), geometry.input);
    by_dtype!(output_gradient, E => computed([output_gradient], shape, |[gy]: [&[E]; 1]| {
        kernels::max_pool2d_input_gradient(geometry, taps.as_elements(), gy)
    }), portable => portable::max_pool_input_gradient::<B>(taps, output_gradient, geometry))
}

fn pooled_shape(map: &Shape, [height, width]: [usize; 2]) -> Shape {
    Shape::from([map[0], map[1], height, width])
}

pub(super) fn quantize_rows<B: Backend>(
    tensor: FloatTensor<B>,
    bits: Bits,
    row_len: usize,
) -> (IntTensor<B>, FloatTensor<B>)
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
    IntTensor<B>: HostTensor<u8>,
{
    let rows = tensor.shape().num_elements() / row_len.max(1);
    by_dtype!(tensor, E => {
        let tensor = HostTensor::<E>::into_contiguous(tensor);
        let (codes, scales) = kernels::quantize::<E>(bits, row_len, tensor.as_elements());
        let codes = HostTensor::<u8>::from_elements(codes, [rows, bits.row_bytes(row_len)].into());
        (codes, HostTensor::<E>::from_elements(scales, [rows].into()))
    }, portable => portable::quantize_rows::<B>(tensor, bits, row_len))
}

pub(super) fn dequantize_rows<B: Backend>(
    codes: IntTensor<B>,
    scales: FloatTensor<B>,
    bits: Bits,
    shape: Shape,
    dtype: FloatDType,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
    IntTensor<B>: HostTensor<u8>,
{
    let rows = scales.shape().num_elements();
    let row_len = shape.num_elements() / rows.max(1);
    // half precision has scales in single precision too
    by_dtype!(of DType::from(dtype), E => computed([scales], shape, |[scales]: [&[E]; 1]| {
        kernels::dequantize(bits, row_len, codes.as_elements(), scales)
    }), portable => portable::dequantize_rows::<B>(codes, scales, bits, shape, dtype))
}

/// Implements [`FrugalOps`](crate::ops::FrugalOps) for a backend whose tensor is a [`HostTensor`].
macro_rules! impl_with_kernels {
    ($backend:ty, own($tensor:ident) => $own:expr) => {
        impl crate::ops::FrugalOps for $backend {
            fn convolution(
                input: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                bias: crate::ops::MaybeFloat<Self>,
                geometry: ConvGeometry,
            ) -> FloatTensor<Self> {
                cpu::convolution::<Self>(input, weight, bias, &geometry)
            }

            fn convolution_input_gradient(
                weight: FloatTensor<Self>,
                output_gradient: FloatTensor<Self>,
                geometry: ConvGeometry,
            ) -> FloatTensor<Self> {
                cpu::convolution_input_gradient::<Self>(weight, output_gradient, &geometry)
            }

            fn convolution_weight_gradient(
                input: FloatTensor<Self>,
                output_gradient: FloatTensor<Self>,
                geometry: ConvGeometry,
            ) -> FloatTensor<Self> {
                cpu::convolution_weight_gradient::<Self>(input, output_gradient, &geometry)
            }

            fn channel_sums(map: FloatTensor<Self>) -> FloatTensor<Self> {
                cpu::channel_sums::<Self>(map)
            }

            fn tile_sums(map: FloatTensor<Self>, tiles: Tiles) -> FloatTensor<Self> {
                cpu::tile_sums::<Self>(map, &tiles)
            }

            fn tile_spread(
                values: FloatTensor<Self>,
                tiles: Tiles,
                size: [usize; 2],
            ) -> FloatTensor<Self> {
                cpu::tile_spread::<Self>(values, &tiles, size)
            }

            fn mode_project(
                tensor: FloatTensor<Self>,
                factor: FloatTensor<Self>,
                mode: usize,
            ) -> FloatTensor<Self> {
                cpu::mode_project::<Self>(tensor, factor, mode)
            }

            fn mode_expand(
                core: FloatTensor<Self>,
                factor: FloatTensor<Self>,
                mode: usize,
            ) -> FloatTensor<Self> {
                cpu::mode_expand::<Self>(core, factor, mode)
            }

            fn subspace_product(
                tensor: FloatTensor<Self>,
                factor: FloatTensor<Self>,
                mode: usize,
            ) -> FloatTensor<Self> {
                cpu::subspace_product::<Self>(tensor, factor, mode)
            }

            fn gram(tensor: FloatTensor<Self>, mode: usize) -> FloatTensor<Self> {
                cpu::gram::<Self>(tensor, mode)
            }

            fn orthonormalize(matrix: FloatTensor<Self>) -> FloatTensor<Self> {
                cpu::orthonormalize::<Self>(matrix)
            }

            fn place(
                values: FloatTensor<Self>,
                axis: usize,
                positions: Vec<usize>,
                size: usize,
            ) -> FloatTensor<Self> {
                cpu::place::<Self>(values, axis, &positions, size)
            }

            fn activation(input: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
                cpu::activation::<Self>(input, activation)
            }

            fn activation_with_mask(
                input: FloatTensor<Self>,
                activation: Activation,
            ) -> (FloatTensor<Self>, IntTensor<Self>) {
                cpu::activation_with_mask::<Self>(input, activation)
            }

            fn mask_gradient(
                mask: IntTensor<Self>,
                gradient: FloatTensor<Self>,
                activation: Activation,
            ) -> FloatTensor<Self> {
                cpu::mask_gradient::<Self>(mask, gradient, activation)
            }

            fn max_pool(input: FloatTensor<Self>, geometry: PoolGeometry) -> FloatTensor<Self> {
                cpu::max_pool::<Self>(input, &geometry)
            }

            fn max_pool_with_taps(
                input: FloatTensor<Self>,
                geometry: PoolGeometry,
            ) -> (FloatTensor<Self>, IntTensor<Self>) {
                cpu::max_pool_with_taps::<Self>(input, &geometry)
            }

            fn max_pool_input_gradient(
                taps: IntTensor<Self>,
                output_gradient: FloatTensor<Self>,
                geometry: PoolGeometry,
            ) -> FloatTensor<Self> {
                cpu::max_pool_input_gradient::<Self>(taps, output_gradient, &geometry)
            }

            fn quantize_rows(
                tensor: FloatTensor<Self>,
                bits: Bits,
                row_len: usize,
            ) -> (IntTensor<Self>, FloatTensor<Self>) {
                cpu::quantize_rows::<Self>(tensor, bits, row_len)
            }

            fn dequantize_rows(
                codes: IntTensor<Self>,
                scales: FloatTensor<Self>,
                bits: Bits,
                shape: Shape,
                dtype: FloatDType,
            ) -> FloatTensor<Self> {
                cpu::dequantize_rows::<Self>(codes, scales, bits, shape, dtype)
            }

            fn own($tensor: FloatTensor<Self>) -> FloatTensor<Self> {
                $own
            }
        }
    };
}
pub(super) use impl_with_kernels;
