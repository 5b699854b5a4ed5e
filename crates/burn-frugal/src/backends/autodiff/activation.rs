use burn::backend::{
    Autodiff,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind, unary},
    },
    tensor::{FloatTensor, IntTensor},
};
use burn_frugal_kernels::Activation;

use super::{constant, recomputation, record_backward};
use crate::ops::FrugalOps;

#[derive(Debug)]
struct ActivationBackward;

impl<B: FrugalOps> Backward<B, 1> for ActivationBackward {
    /// The mask.
    type State = (IntTensor<B>, Activation);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        record_backward(&ops);
        let (mask, activation) = ops.state;
        unary::<B, _>(ops.parents, ops.node, gradients, |gradient| {
            B::mask_gradient(mask, gradient, activation)
        });
    }
}

pub(super) fn forward<B: FrugalOps, C: CheckpointStrategy>(
    input: FloatTensor<Autodiff<B, C>>,
    activation: Activation,
) -> FloatTensor<Autodiff<B, C>> {
    let source = recomputation::take::<B>(input.id().value);
    let (input, node) = input.into_parts();
    let output = match ActivationBackward
        .prepare::<C>([node])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prepared) => {
            let (output, mask) = B::activation_with_mask(input, activation);
            prepared.finish((mask, activation), output)
        }
        OpsKind::UnTracked(_) => constant::<B, C>(B::activation(input, activation)),
    };
    recomputation::note_activation(source, output.id().value, activation);
    output
}
