//! The small vocabulary that methods are written in, as one Burn backend extension.

pub(crate) mod linear;
pub mod portable;

use burn::backend::{
    Backend, ExtensionType, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
use burn_frugal_kernels::{Activation, ConvGeometry, Tiles};

use crate::geometry::LayerGeometry;
use crate::methods::{Method, Saved};

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
#[derive(Clone, Copy, Debug)]
pub struct LayerStep {
    /// All sizes.
    pub geometry: LayerGeometry,
    /// How gradients are computed.
    pub method: Method,
}

/// What methods need and a backend can do better than Burn's own operations.
///
/// Every operation has a body made of Burn's operations ([`portable`]), so a backend that
/// overrides nothing is slow but right. Only [`layer`](Self::layer) and
/// [`activation`](Self::activation) are differentiable with gradients of ours; the others are what
/// these are computed with.
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

    /// The gradient where the mask lets it pass, 0 elsewhere.
    fn mask_gradient(mask: IntTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        portable::mask_gradient::<Self>(mask, gradient)
    }

    /// The same tensor in a buffer of its own size: a view keeps the whole buffer of the tensor it
    /// was cut from alive. The portable body returns it as it is.
    fn own(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        tensor
    }
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
