//! The small vocabulary that methods are written in, as one Burn backend extension.

pub(crate) mod linear;
pub mod portable;
pub(crate) mod recorder;
mod waiting;

use burn::backend::{
    Backend, ExtensionType, TensorMetadata, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::{FloatDType, Shape};
use burn_frugal_kernels::{Activation, Bits, ConvGeometry, PoolGeometry, Tiles};

use crate::geometry::LayerGeometry;
use crate::methods::{Method, Saved};
pub(crate) use waiting::Passes;
pub use waiting::WaitingPass;

/// `Option<FloatTensor<B>>`, which `#[backend_extension]` does not understand as an argument.
#[derive(ExtensionType, Clone, Debug)]
pub enum MaybeFloat<B: Backend> {
    /// No tensor.
    None,
    /// A tensor.
    Some(FloatTensor<B>),
}

impl<B: Backend> From<Option<FloatTensor<B>>> for MaybeFloat<B> {
    fn from(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Self::None, Self::Some)
    }
}

impl<B: Backend> MaybeFloat<B> {
    /// The tensor, if there is one.
    pub fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::None => None,
            Self::Some(tensor) => Some(tensor),
        }
    }
}

/// A layer as the autodiff step sees it.
#[derive(Clone, Debug)]
pub struct LayerStep {
    /// All sizes.
    pub geometry: LayerGeometry,
    /// How gradients are computed.
    pub method: Method,
    /// Counts the forward pass for as long as it can be run backward.
    pub pass: WaitingPass,
}

/// What methods need and a backend can do better than Burn's own operations.
///
/// Every operation has a body made of Burn's operations ([`portable`]), so a backend that
/// overrides nothing is slow but right. Only [`layer`](Self::layer),
/// [`normalization`](Self::normalization), [`activation`](Self::activation),
/// [`max_pool`](Self::max_pool) and [`average_pool`](Self::average_pool) are differentiable with
/// gradients of ours; the others are what these are computed with.
#[backend_extension(
    NdArray: cfg(feature = "ndarray"),
    Flex: cfg(feature = "flex"),
    Autodiff,
)]
pub trait FrugalOps: Backend {
    /// A convolution or linear layer whose gradients are those of `step.method`, computed from
    /// `saved`.
    ///
    /// `saved` only matters to the autodiff backend: it must hold what the method keeps of `input`
    /// if `weight` is tracked.
    fn layer(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: MaybeFloat<Self>,
        #[extension_type] saved: Saved<Self>,
        step: LayerStep,
    ) -> FloatTensor<Self> {
        let _ = saved;
        forward::<Self>(input, weight, bias, &step.geometry)
    }

    /// The forward result, `[batch, channels_out, height_out, width_out]`.
    fn convolution(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: MaybeFloat<Self>,
        geometry: ConvGeometry,
    ) -> FloatTensor<Self> {
        portable::convolution::<Self>(input, weight, bias, &geometry)
    }

    /// The exact input gradient, `[batch, channels_in, height, width]`.
    fn convolution_input_gradient(
        weight: FloatTensor<Self>,
        output_gradient: FloatTensor<Self>,
        geometry: ConvGeometry,
    ) -> FloatTensor<Self> {
        portable::convolution_input_gradient::<Self>(weight, output_gradient, &geometry)
    }

    /// The exact weight gradient, `[channels_out, channels_in / groups, kernel, kernel]`.
    fn convolution_weight_gradient(
        input: FloatTensor<Self>,
        output_gradient: FloatTensor<Self>,
        geometry: ConvGeometry,
    ) -> FloatTensor<Self> {
        portable::convolution_weight_gradient::<Self>(input, output_gradient, &geometry)
    }

    /// The bias gradient: sums of `[batch, channels, height, width]` to `[channels]`.
    fn channel_sums(map: FloatTensor<Self>) -> FloatTensor<Self> {
        portable::channel_sums::<Self>(map)
    }

    /// Weighted sums over tiles: `[batch, channels, height, width]` to
    /// `[batch, channels, tile_rows, tile_columns]`.
    fn tile_sums(map: FloatTensor<Self>, tiles: Tiles) -> FloatTensor<Self> {
        portable::tile_sums::<Self>(map, &tiles)
    }

    /// Every pixel of a tile gets the tile's weighted value, a pixel in no tile gets 0:
    /// `[batch, channels, tile_rows, tile_columns]` to `[batch, channels, height, width]`, where
    /// `size` is `[height, width]`.
    fn tile_spread(values: FloatTensor<Self>, tiles: Tiles, size: [usize; 2]) -> FloatTensor<Self> {
        portable::tile_spread::<Self>(values, &tiles, size)
    }

    /// A tensor contracted along one of its axes with a factor `[size, rank]`:
    /// `out[.., r, ..] = sum over d of tensor[.., d, ..] * factor[d, r]`.
    fn mode_project(
        tensor: FloatTensor<Self>,
        factor: FloatTensor<Self>,
        mode: usize,
    ) -> FloatTensor<Self> {
        portable::mode_project::<Self>(tensor, factor, mode)
    }

    /// The other way: `out[.., d, ..] = sum over r of core[.., r, ..] * factor[d, r]`.
    fn mode_expand(
        core: FloatTensor<Self>,
        factor: FloatTensor<Self>,
        mode: usize,
    ) -> FloatTensor<Self> {
        portable::mode_expand::<Self>(core, factor, mode)
    }

    /// `X (X^T U)`, `[size, rank]`, with `X` the tensor unfolded along an axis, `[size, columns]`,
    /// and `U` a factor `[size, rank]`.
    fn subspace_product(
        tensor: FloatTensor<Self>,
        factor: FloatTensor<Self>,
        mode: usize,
    ) -> FloatTensor<Self> {
        portable::subspace_product::<Self>(tensor, factor, mode)
    }

    /// `X X^T`, `[size, size]`, in double precision where the backend has it.
    fn gram(tensor: FloatTensor<Self>, mode: usize) -> FloatTensor<Self> {
        portable::gram::<Self>(tensor, mode)
    }

    /// Orthonormal columns that span at least those of a matrix `[rows, columns]` with no more
    /// columns than rows: the Q of its thin QR decomposition.
    ///
    /// Finite and orthonormal whatever the matrix: directions that it lacks are arbitrary, and a
    /// matrix with a value that is not finite gives the first columns of the identity. The portable
    /// body reads the matrix back to the host.
    fn orthonormalize(matrix: FloatTensor<Self>) -> FloatTensor<Self> {
        portable::orthonormalize::<Self>(matrix)
    }

    /// Slices among zeros: a tensor with `size` elements along `axis`, zero but for the slices at
    /// `positions`, ascending, which are those of `values` in their order.
    fn place(
        values: FloatTensor<Self>,
        axis: usize,
        positions: Vec<usize>,
        size: usize,
    ) -> FloatTensor<Self> {
        portable::place::<Self>(values, axis, &positions, size)
    }

    /// An activation. Differentiable: between forward and backward it keeps the mask that
    /// [`activation_with_mask`](Self::activation_with_mask) returns.
    fn activation(input: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        portable::activation::<Self>(input, activation)
    }

    /// An activation, and which elements pass their gradient, in a form that only
    /// [`mask_gradient`](Self::mask_gradient) of the same backend reads.
    fn activation_with_mask(
        input: FloatTensor<Self>,
        activation: Activation,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        portable::activation_with_mask::<Self>(input, activation)
    }

    /// The gradient times the slope that the mask gives each element.
    fn mask_gradient(
        mask: IntTensor<Self>,
        gradient: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        portable::mask_gradient::<Self>(mask, gradient, activation)
    }

    /// `input * scale + shift` channel by channel, `[batch, channels, height, width]` and
    /// `[channels]`: batch normalization with fixed statistics.
    ///
    /// Differentiable in `input`, and in `gamma` and `beta`, on which the value does not depend here:
    /// `gamma`'s gradient is that of `step.method`, as the weight of a 1x1 convolution of each channel
    /// by itself, from what `saved` holds of the normalised input; `beta`'s is the bias'.
    fn normalization(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] saved: Saved<Self>,
        step: LayerStep,
    ) -> FloatTensor<Self> {
        let _ = (gamma, beta, saved);
        normalized::<Self>(input, scale, shift, &step.geometry)
    }

    /// The largest value of each window. Differentiable: between forward and backward it keeps the
    /// taps that [`max_pool_with_taps`](Self::max_pool_with_taps) returns.
    fn max_pool(input: FloatTensor<Self>, geometry: PoolGeometry) -> FloatTensor<Self> {
        portable::max_pool_with_taps::<Self>(input, &geometry).0
    }

    /// The largest value of each window and, a byte each, which element of the window it is: its row
    /// times the kernel's width plus its column, the first of equals.
    fn max_pool_with_taps(
        input: FloatTensor<Self>,
        geometry: PoolGeometry,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        portable::max_pool_with_taps::<Self>(input, &geometry)
    }

    /// Every output's gradient at the input that it was taken from.
    fn max_pool_input_gradient(
        taps: IntTensor<Self>,
        output_gradient: FloatTensor<Self>,
        geometry: PoolGeometry,
    ) -> FloatTensor<Self> {
        portable::max_pool_input_gradient::<Self>(taps, output_gradient, &geometry)
    }

    /// [`tile_sums`](Self::tile_sums) as a layer: differentiable, and keeps nothing.
    fn average_pool(map: FloatTensor<Self>, tiles: Tiles) -> FloatTensor<Self> {
        Self::tile_sums(map, tiles)
    }

    /// A tensor in rows of `row_len` elements as integers of a few bits and a scale a row, in a form
    /// that only [`dequantize_rows`](Self::dequantize_rows) of the same backend reads.
    fn quantize_rows(
        tensor: FloatTensor<Self>,
        bits: Bits,
        row_len: usize,
    ) -> (IntTensor<Self>, FloatTensor<Self>) {
        portable::quantize_rows::<Self>(tensor, bits, row_len)
    }

    /// The tensor of this shape and element type that [`quantize_rows`](Self::quantize_rows) stored.
    fn dequantize_rows(
        codes: IntTensor<Self>,
        scales: FloatTensor<Self>,
        bits: Bits,
        shape: Shape,
        dtype: FloatDType,
    ) -> FloatTensor<Self> {
        portable::dequantize_rows::<Self>(codes, scales, bits, shape, dtype)
    }

    /// The same tensor in a buffer of its own size: a view keeps the whole buffer of the tensor it
    /// was cut from alive. The portable body returns it as it is.
    fn own(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        tensor
    }
}

/// The forward result of [`FrugalOps::normalization`].
pub(crate) fn normalized<B: FrugalOps>(
    input: FloatTensor<B>,
    scale: FloatTensor<B>,
    shift: FloatTensor<B>,
    geometry: &LayerGeometry,
) -> FloatTensor<B> {
    forward::<B>(
        input,
        per_channel::<B>(scale),
        MaybeFloat::Some(shift),
        geometry,
    )
}

/// `[channels]` as the weight of a 1x1 convolution of each channel by itself.
pub(crate) fn per_channel<B: Backend>(scale: FloatTensor<B>) -> FloatTensor<B> {
    let [channels] = scale.shape().dims();
    B::float_reshape(scale, Shape::from([channels, 1, 1, 1]))
}

/// The forward result of a layer.
pub(crate) fn forward<B: FrugalOps>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: MaybeFloat<B>,
    geometry: &LayerGeometry,
) -> FloatTensor<B> {
    match geometry {
        LayerGeometry::Conv2d(conv) => B::convolution(input, weight, bias, *conv),
        LayerGeometry::Linear(_) => linear::forward::<B>(input, weight, bias.into_option()),
    }
}
