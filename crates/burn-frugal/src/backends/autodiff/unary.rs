use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::{
    Autodiff,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind, unary},
    },
    tensor::FloatTensor,
};

use super::record_backward;
use crate::ops::FrugalOps;

/// What an operation of one tensor keeps, and how its input's gradient comes from it.
pub(super) trait Reverse<B: FrugalOps>: Clone + Send + Debug + 'static {
    fn input_gradient(self, output_gradient: FloatTensor<B>) -> FloatTensor<B>;
}

#[derive(Debug)]
struct UnaryBackward<R>(PhantomData<fn() -> R>);

impl<B: FrugalOps, R: Reverse<B>> Backward<B, 1> for UnaryBackward<R> {
    type State = R;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        record_backward(&ops);
        let reverse = ops.state;
        unary::<B, _>(ops.parents, ops.node, gradients, |gradient| {
            reverse.input_gradient(gradient)
        });
    }
}

/// Runs `tracked` if the input is, else `untracked`, whose result is a constant, without a node in the
/// graph.
pub(super) fn apply<B: FrugalOps, C: CheckpointStrategy, R: Reverse<B>>(
    input: FloatTensor<Autodiff<B, C>>,
    tracked: impl FnOnce(FloatTensor<B>) -> (FloatTensor<B>, R),
    untracked: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>> {
    let (input, node) = input.into_parts();
    let step = UnaryBackward::<R>(PhantomData);
    match step.prepare::<C>([node]).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let (output, reverse) = tracked(input);
            prepared.finish(reverse, output)
        }
        OpsKind::UnTracked(_) => super::constant::<B, C>(untracked(input)),
    }
}
