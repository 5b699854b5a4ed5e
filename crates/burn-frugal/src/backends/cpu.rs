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

/// Runs `$run::<f32 or f64>(..)` by the dtype of the first argument, or the portable body for the
/// half-precision types, which the kernels do not have.
macro_rules! by_dtype {
    ($dtype:expr, $kernel:ident => $run:expr, portable => $portable:expr) => {
        match $dtype {
            DType::F32 => {
                type $kernel = f32;
                $run
            }
            DType::F64 => {
                type $kernel = f64;
                $run
            }
            _ => $portable,
        }
    };
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
    fn run<B: Backend, E: Element>(
        input: FloatTensor<B>,
        weight: FloatTensor<B>,
        bias: MaybeFloat<B>,
        geometry: &ConvGeometry,
    ) -> FloatTensor<B>
    where
        FloatTensor<B>: HostTensor<E>,
    {
        let (input, weight) = (input.into_contiguous(), weight.into_contiguous());
        let bias = match bias {
            MaybeFloat::Some(bias) => Some(bias.into_contiguous()),
            MaybeFloat::None => None,
        };
        let bias = bias.as_ref().map(HostTensor::as_elements);
        let [height, width] = geometry.output();
        let shape = [geometry.batch, geometry.output_channels, height, width];
        filled(shape, |output| {
            kernels::conv2d(geometry, input.as_elements(), weight.as_elements(), bias, output)
        })
    }
    by_dtype!(input.dtype(), E => run::<B, E>(input, weight, bias, geometry),
        portable => portable::convolution::<B>(input, weight, bias, geometry))
}

pub(super) fn convolution_input_gradient<B: Backend>(
    weight: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: &ConvGeometry,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    fn run<T: HostTensor<E>, E: Element>(
        weight: T,
        output_gradient: T,
        geometry: &ConvGeometry,
    ) -> T {
        let (weight, gradient) = (weight.into_contiguous(), output_gradient.into_contiguous());
        let [height, width] = geometry.input;
        let shape = [geometry.batch, geometry.input_channels, height, width];
        filled(shape, |input_gradient| {
            kernels::conv2d_input_gradient(
                geometry,
                weight.as_elements(),
                gradient.as_elements(),
                input_gradient,
            )
        })
    }
    by_dtype!(output_gradient.dtype(), E => run::<_, E>(weight, output_gradient, geometry),
        portable => portable::convolution_input_gradient::<B>(weight, output_gradient, geometry))
}

pub(super) fn convolution_weight_gradient<B: Backend>(
    input: FloatTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: &ConvGeometry,
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    fn run<T: HostTensor<E>, E: Element>(
        input: T,
        output_gradient: T,
        geometry: &ConvGeometry,
    ) -> T {
        let (input, gradient) = (input.into_contiguous(), output_gradient.into_contiguous());
        let [rows, columns] = geometry.kernel;
        let group_channels = geometry.input_channels / geometry.groups;
        let shape = [geometry.output_channels, group_channels, rows, columns];
        filled(shape, |weight_gradient| {
            kernels::conv2d_weight_gradient(
                geometry,
                input.as_elements(),
                gradient.as_elements(),
                weight_gradient,
            )
        })
    }
    by_dtype!(output_gradient.dtype(), E => run::<_, E>(input, output_gradient, geometry),
        portable => portable::convolution_weight_gradient::<B>(input, output_gradient, geometry))
}

pub(super) fn channel_sums<B: Backend>(map: FloatTensor<B>) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    fn run<T: HostTensor<E>, E: Element>(map: T) -> T {
        let [batch, channels, height, width] = map.shape().dims();
        let map = map.into_contiguous();
        filled([channels], |sums| {
            kernels::channel_sums(batch, channels, height * width, map.as_elements(), sums)
        })
    }
    by_dtype!(map.dtype(), E => run::<_, E>(map), portable => portable::channel_sums::<B>(map))
}

pub(super) fn tile_sums<B: Backend>(map: FloatTensor<B>, tiles: &Tiles) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    fn run<T: HostTensor<E>, E: Element>(map: T, tiles: &Tiles) -> T {
        let [batch, channels, height, width] = map.shape().dims();
        let map = map.into_contiguous();
        let shape = [batch, channels, tiles.rows.len(), tiles.columns.len()];
        filled(shape, |sums| {
            kernels::tile_sums(tiles, batch * channels, [height, width], map.as_elements(), sums)
        })
    }
    by_dtype!(map.dtype(), E => run::<_, E>(map, tiles),
        portable => portable::tile_sums::<B>(map, tiles))
}

pub(super) fn tile_spread<B: Backend>(
    values: FloatTensor<B>,
    tiles: &Tiles,
    size: [usize; 2],
) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    fn run<T: HostTensor<E>, E: Element>(values: T, tiles: &Tiles, size: [usize; 2]) -> T {
        let [batch, channels, ..] = values.shape().dims::<4>();
        let values = values.into_contiguous();
        filled([batch, channels, size[0], size[1]], |map| {
            kernels::tile_spread(tiles, batch * channels, size, values.as_elements(), map)
        })
    }
    by_dtype!(values.dtype(), E => run::<_, E>(values, tiles, size),
        portable => portable::tile_spread::<B>(values, tiles, size))
}

/// A new tensor whose elements `kernel` writes.
fn filled<T: HostTensor<E>, E: Element, const D: usize>(
    shape: [usize; D],
    kernel: impl FnOnce(&mut [E]),
) -> T {
    let mut elements = vec![E::ZERO; shape.iter().product()];
    kernel(&mut elements);
    T::from_elements(elements, Shape::from(shape))
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
