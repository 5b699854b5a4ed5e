//! What the CPU backends share: contiguous slices in, the kernels crate, new tensors out.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{DType, Shape};
use burn_frugal_kernels::{self as kernels, ConvGeometry, Element, Tiles, Unfolding};

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
fn filled<T: HostTensor<E>, E: Element, const N: usize>(
    sources: [T; N],
    shape: impl Into<Shape>,
    kernel: impl FnOnce([&[E]; N], &mut [E]),
) -> T {
    let shape = shape.into();
    let sources = sources.map(T::into_contiguous);
    let mut elements = vec![E::ZERO; shape.num_elements()];
    kernel(sources.each_ref().map(T::as_elements), &mut elements);
    T::from_elements(elements, shape)
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
    by_dtype!(tensor, E => filled([tensor, factor], shape, |[x, u]: [&[E]; 2], projected| {
        kernels::mode_project(&unfolding, rank, x, u, projected)
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
    by_dtype!(core, E => filled([core, factor], shape, |[core, u]: [&[E]; 2], expanded| {
        kernels::mode_expand(&unfolding, rank, core, u, expanded)
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
    by_dtype!(tensor, E => filled([tensor, factor], shape, |[x, u]: [&[E]; 2], product| {
        kernels::subspace_product(&unfolding, rank, x, u, product)
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
        let mut gram = vec![0.0f64; shape.num_elements()];
        kernels::gram::<E>(&unfolding, tensor.as_elements(), &mut gram);
        HostTensor::<f64>::from_elements(gram, shape)
    }, portable => portable::gram::<B>(tensor, mode))
}

pub(super) fn orthonormalize<B: Backend>(matrix: FloatTensor<B>) -> FloatTensor<B>
where
    FloatTensor<B>: HostTensor<f32> + HostTensor<f64>,
{
    let [rows, columns] = matrix.shape().dims();
    let shape = matrix.shape();
    by_dtype!(matrix, E => filled([matrix], shape, |[matrix]: [&[E]; 1], orthonormal| {
        orthonormal.copy_from_slice(matrix);
        kernels::orthonormalize(rows, columns, orthonormal)
    }), portable => portable::orthonormalize::<B>(matrix))
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

            fn own($tensor: FloatTensor<Self>) -> FloatTensor<Self> {
                $own
            }
        }
    };
}
pub(super) use impl_with_kernels;
