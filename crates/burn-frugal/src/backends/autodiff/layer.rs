use burn::backend::{
    Autodiff, AutodiffBackend,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    tensor::FloatTensor,
};

use super::recomputation::{self, Kept};
use super::{constant, record_backward};
use crate::methods::{Method, Saved};
use crate::ops::{self, FrugalOps, LayerStep, MaybeFloat, recorder};

/// What waits for the backward pass. Nothing is kept for a parent that is not tracked.
#[derive(Clone, Debug)]
struct LayerState<B: FrugalOps> {
    kept: Kept<B>,
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
        record_backward(&ops);
        // what was noted last would keep tensors of this step
        recomputation::forget();
        let [input, weight, bias] = ops.parents;
        let output_gradient = gradients.consume::<B>(&ops.node);
        let LayerState {
            kept,
            weight: weight_value,
            step: LayerStep {
                geometry, method, ..
            },
        } = ops.state;

        let upstream = method.upstream::<B>(output_gradient, &geometry);
        if let Some(node) = bias {
            let gradient = method.bias_gradient::<B>(upstream.clone(), &geometry);
            gradients.register::<B>(node.id, gradient);
        }
        if let Some(node) = weight {
            // first, so that what was saved is gone before the input gradient is allocated
            let gradient =
                method.weight_gradient::<B>(kept.into_saved(), upstream.clone(), &geometry);
            gradients.register::<B>(node.id, gradient);
        }
        if let (Some(node), Some(weight)) = (input, weight_value) {
            let gradient = method.input_gradient::<B>(weight, upstream, &geometry);
            gradients.register::<B>(node.id, gradient);
        }
    }
}

pub(super) fn forward<B: FrugalOps, C: CheckpointStrategy>(
    input: FloatTensor<Autodiff<B, C>>,
    weight: FloatTensor<Autodiff<B, C>>,
    bias: MaybeFloat<Autodiff<B, C>>,
    saved: Saved<B>,
    step: LayerStep,
) -> FloatTensor<Autodiff<B, C>> {
    // only what is trained recomputes: the first of a chain keeps its input anyway
    let recomputes = step.method == Method::Recomputed && weight.is_tracked();
    let source = recomputation::take_short::<B>(input.id().value).filter(|_| recomputes);
    let input_tracked = input.is_tracked();
    let (input, input_node) = input.into_parts();
    let (weight, weight_node) = weight.into_parts();
    let (bias, bias_node) = match bias {
        MaybeFloat::Some(bias) => {
            let (bias, node) = bias.into_parts();
            (MaybeFloat::Some(bias), node)
        }
        // Any untracked tensor stands in for the third parent, so that one `Backward` serves both
        // cases; the weight's is at hand.
        MaybeFloat::None => {
            let stand_in = <Autodiff<B, C> as AutodiffBackend>::from_inner(weight.clone());
            (MaybeFloat::None, stand_in.node())
        }
    };
    let nodes = [input_node, weight_node, bias_node];
    let geometry = step.geometry;
    recorder::set_recomputed(source.is_some());
    let kept = source.map_or(Kept::Saved(saved), Kept::Source);
    let note = recomputes.then(|| (kept.clone(), weight.clone(), bias.clone()));
    let output = match LayerBackward.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let state = LayerState {
                kept,
                weight: input_tracked.then(|| weight.clone()),
                step,
            };
            prepared.finish(state, ops::forward::<B>(input, weight, bias, &geometry))
        }
        OpsKind::UnTracked(_) => {
            constant::<B, C>(ops::forward::<B>(input, weight, bias, &geometry))
        }
    };
    if let Some((kept, weight, bias)) = note {
        recomputation::note_layer(output.id().value, kept, weight, bias, geometry);
    }
    output
}
