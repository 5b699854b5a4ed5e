//! The small vocabulary that methods are written in, as one Burn backend extension.

pub mod portable;

use burn::backend::{Backend, ExtensionType, backend_extension, tensor::FloatTensor};
use burn_frugal_kernels::{ConvGeometry, Tiles};

use crate::methods::{Method, Saved};

/// `Option<FloatTensor<B>>`, which `#[backend_extension]` does not understand as an argument.
#[derive(ExtensionType, Clone, Debug)]
pub enum MaybeFloat<B: Backend> {
    /// No tensor.
    None,
    /// A tensor.
    Some(FloatTensor<B>),
}

/// A convolution as the autodiff step sees it.
#[derive(Clone, Copy, Debug)]
pub struct ConvStep {
    /// All sizes.
    pub geometry: ConvGeometry,
    /// How gradients are computed.
    pub method: Method,
}

/// What methods need and a backend can do better than Burn's own operations.
///
/// Every operation has a body made of Burn's operations ([`portable`]), so a backend that
/// overrides nothing is slow but right. Only [`conv2d`](Self::conv2d) is differentiable with
/// gradients of ours; the others are what its gradients are computed with.
#[backend_extension(
    NdArray: cfg(feature = "ndarray"),
    Flex: cfg(feature = "flex"),
    Autodiff,
)]
pub trait FrugalOps: Backend {
    /// A convolution whose gradients are those of `step.method`, computed from `saved`.
    ///
    /// `saved` only matters to the autodiff backend: it must hold what the method keeps of `input`
    /// if `weight` is tracked.
    fn conv2d(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: MaybeFloat<Self>,
        #[extension_type] saved: Saved<Self>,
        step: ConvStep,
    ) -> FloatTensor<Self> {
        let _ = saved;
        Self::convolution(input, weight, bias, step.geometry)
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

    /// The same tensor in a buffer of its own size: a view keeps the whole buffer of the tensor it
    /// was cut from alive. The portable body returns it as it is.
    fn own(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        tensor
    }
}
