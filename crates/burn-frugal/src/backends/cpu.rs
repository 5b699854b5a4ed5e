//! What the CPU backends share: contiguous slices in, the kernels crate, new tensors out.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{DType, Shape};
use burn_frugal_kernels::{self as kernels, ConvGeometry, Element, Tiles};

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
    /// A tensor that owns `elements`.
    fn from_elements(elements: Vec<E>, shape: Shape) -> Self;
}

/// `$run` with `$element` the type of the elements, or `$portable` for the half-precision types,
/// which the kernels do not have.
macro_rules! by_dtype {
    ($tensor:expr, $element:ident => $run:expr, portable => $portable:expr) => {
        match $tensor.dtype() {
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

/// A new tensor that `kernel` fills from the elements of `sources`.
fn filled<T: HostTensor<E>, E: Element, const N: usize, const D: usize>(
    sources: [T; N],
    shape: [usize; D],
    kernel: impl FnOnce([&[E]; N], &mut [E]),
) -> T {
    let sources = sources.map(T::into_contiguous);
    let mut elements = vec![E::ZERO; shape.iter().product()];
    kernel(sources.each_ref().map(T::as_elements), &mut elements);
    T::from_elements(elements, Shape::from(shape))
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
        MaybeFloat::Some(bias) => filled([input, weight, bias], shape, |[x, w, b]: [&[E]; 3], y| {
            kernels::conv2d(geometry, x, w, Some(b), y)
        }),
        MaybeFloat::None => filled([input, weight], shape, |[x, w]: [&[E]; 2], y| {
            kernels::conv2d(geometry, x, w, None, y)
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
        filled([weight, output_gradient], shape, |[w, gy]: [&[E]; 2], gx| {
            kernels::conv2d_input_gradient(geometry, w, gy, gx)
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
        filled([input, output_gradient], shape, |[x, gy]: [&[E]; 2], gw| {
            kernels::conv2d_weight_gradient(geometry, x, gy, gw)
        })
    }, portable => portable::convolution_weight_gradient::<B>(input, output_gradient, geometry))
}

pub(super) fn channel_sums<B: Backend>(map: FloatTensor<B>) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let [batch, channels, height, width] = map.shape().dims();
    by_dtype!(map, E => filled([map], [channels], |[map]: [&[E]; 1], sums| {
        kernels::channel_sums(batch, channels, height * width, map, sums)
    }), portable => portable::channel_sums::<B>(map))
}

pub(super) fn tile_sums<B: Backend>(map: FloatTensor<B>, tiles: &Tiles) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let [batch, channels, height, width] = map.shape().dims();
    let shape = [batch, channels, tiles.rows.len(), tiles.columns.len()];
    by_dtype!(map, E => filled([map], shape, |[map]: [&[E]; 1], sums| {
        kernels::tile_sums(tiles, batch * channels, [height, width], map, sums)
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
    by_dtype!(values, E => filled([values], shape, |[values]: [&[E]; 1], map| {
        kernels::tile_spread(tiles, batch * channels, size, values, map)
    }), portable => portable::tile_spread::<B>(values, tiles, size))
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

            fn own($tensor: FloatTensor<Self>) -> FloatTensor<Self> {
                $own
            }
        }
    };
}
pub(super) use impl_with_kernels;
