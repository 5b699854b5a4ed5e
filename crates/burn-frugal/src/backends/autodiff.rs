//! The autodiff steps: every layer's and activation's gradients enter Burn's graph here.

use burn::backend::{
    Autodiff, AutodiffBackend,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    tensor::{FloatTensor, IntTensor},
};
use burn_frugal_kernels::Activation;

use crate::methods::Saved;
use crate::ops::{self, FrugalOps, LayerStep, MaybeFloat};

/// What waits for the backward pass. Nothing is kept for a parent that is not tracked.
#[derive(Clone, Debug)]
struct LayerState<B: FrugalOps> {
    saved: Saved<B>,
    /// `Some` if the input is tracked. A parameter is alive anyway, so this costs nothing.
    weight: Option<FloatTensor<B>>,
    step: LayerStep,
}

#[derive(Debug)]
struct LayerBackward;

impl<B: FrugalOps> Backward<B, 3> for LayerBackward {
    type State = LayerState<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [input, weight, bias] = ops.parents;
        let output_gradient = gradients.consume::<B>(&ops.node);
        let LayerState {
            saved,
            weight: weight_value,
            step: LayerStep { geometry, method },
        } = ops.state;

        let upstream = method.upstream::<B>(output_gradient, &geometry);
        if let Some(node) = bias {
            let gradient = method.bias_gradient::<B>(upstream.clone(), &geometry);
            gradients.register::<B>(node.id, gradient);
        }
        if let Some(node) = weight {
            // first, so that what was saved is gone before the input gradient is allocated
            let gradient = method.weight_gradient::<B>(saved, upstream.clone(), &geometry);
            gradients.register::<B>(node.id, gradient);
        }
        if let (Some(node), Some(weight)) = (input, weight_value) {
            let gradient = method.input_gradient::<B>(weight, upstream, &geometry);
            gradients.register::<B>(node.id, gradient);
        }
    }
}

#[derive(Debug)]
struct ActivationBackward;

impl<B: FrugalOps> Backward<B, 1> for ActivationBackward {
    /// The mask.
    type State = IntTensor<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [input] = ops.parents;
        let gradient = gradients.consume::<B>(&ops.node);
        if let Some(node) = input {
            gradients.register::<B>(node.id, B::mask_gradient(ops.state, gradient));
        }
    }
}

impl<B: FrugalOps, C: CheckpointStrategy> FrugalOps for Autodiff<B, C> {
    fn activation(input: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        let (input, node) = input.into_parts();
        match ActivationBackward
            .prepare::<C>([node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prepared) => {
                let (output, mask) = B::activation_with_mask(input, activation);
                prepared.finish(mask, output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::activation(input, activation)),
        }
    }

    fn layer(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: MaybeFloat<Self>,
        saved: Saved<Self>,
        step: LayerStep,
    ) -> FloatTensor<Self> {
        let saved = plain(saved);
        let input_tracked = input.is_tracked();
        let (input, input_node) = input.into_parts();
        let (weight, weight_node) = weight.into_parts();
        let (bias, bias_node) = match bias {
            MaybeFloat::Some(bias) => {
                let (bias, node) = bias.into_parts();
                (MaybeFloat::Some(bias), node)
            }
            // Any untracked tensor stands in for the third parent, so that one `Backward` serves
            // both cases; the weight's is at hand.
            MaybeFloat::None => {
                let stand_in = <Self as AutodiffBackend>::from_inner(weight.clone());
                (MaybeFloat::None, stand_in.node())
            }
        };
        let nodes = [input_node, weight_node, bias_node];
        match LayerBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let state = LayerState {
                    saved,
                    weight: input_tracked.then(|| weight.clone()),
                    step,
                };
                prepared.finish(
                    state,
                    ops::forward::<B>(input, weight, bias, &step.geometry),
                )
            }
            OpsKind::UnTracked(prepared) => {
                prepared.finish(ops::forward::<B>(input, weight, bias, &step.geometry))
            }
        }
    }
}

/// What was saved was computed outside the graph; dispatch lifted it into constants of the graph.
fn plain<B: FrugalOps, C: CheckpointStrategy>(saved: Saved<Autodiff<B, C>>) -> Saved<B> {
    match saved {
        Saved::Nothing => Saved::Nothing,
        Saved::Full(input) => Saved::Full(input.into_primitive()),
        Saved::Tiles(sums) => Saved::Tiles(sums.into_primitive()),
        Saved::Channels { input, channels } => Saved::Channels {
            input: input.into_primitive(),
            channels,
        },
        Saved::LowRank(low_rank) => Saved::LowRank(low_rank.map(|tensor| tensor.into_primitive())),
    }
}
