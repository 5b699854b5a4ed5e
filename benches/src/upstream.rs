//! A given gradient for a tensor. Burn starts a backward pass with ones, which would have to be made
//! within the time that is measured, and which no loss gives.

use burn::backend::{
    Autodiff, AutodiffBackend, Backend,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    backend_extension,
    tensor::FloatTensor,
};
use burn::backend::{Dispatch, TensorMetadata};
use burn::tensor::{Shape, Tensor};

/// The operation behind [`with_gradient`].
#[backend_extension(
    NdArray: cfg(feature = "ndarray"),
    Flex: cfg(feature = "flex"),
    Autodiff,
)]
pub trait Upstream: Backend {
    /// A zero whose gradient with respect to `output` is `gradient`.
    fn with_gradient(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let _ = gradient;
        Self::float_zeros(Shape::from([1]), &output.device(), output.dtype().into())
    }
}

#[cfg(feature = "flex")]
impl Upstream for burn::backend::Flex {}

#[cfg(feature = "ndarray")]
impl Upstream for burn::backend::NdArray {}

#[derive(Debug)]
struct UpstreamBackward;

impl<B: Upstream> Backward<B, 1> for UpstreamBackward {
    type State = FloatTensor<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [output] = ops.parents;
        gradients.consume::<B>(&ops.node);
        if let Some(node) = output {
            gradients.register::<B>(node.id, ops.state);
        }
    }
}

impl<B: Upstream, C: CheckpointStrategy> Upstream for Autodiff<B, C> {
    fn with_gradient(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let gradient = <Self as AutodiffBackend>::inner(gradient);
        let (output, node) = output.into_parts();
        let zero = B::with_gradient(output, gradient.clone());
        match UpstreamBackward
            .prepare::<C>([node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prepared) => prepared.finish(gradient, zero),
            OpsKind::UnTracked(prepared) => prepared.finish(zero),
        }
    }
}

/// A tensor to call `backward()` on, so that the pass starts with `gradient` at `output`.
pub fn with_gradient(output: Tensor<4>, gradient: Tensor<4>) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as Upstream>::with_gradient(
        output.into_dispatch(),
        gradient.into_dispatch(),
    ))
}
