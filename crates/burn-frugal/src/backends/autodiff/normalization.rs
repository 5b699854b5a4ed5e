use burn::backend::{
    Autodiff, TensorMetadata,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    tensor::FloatTensor,
};
use burn::tensor::Shape;

use super::{constant, recomputation, record_backward};
use crate::methods::{Method, Saved};
use crate::ops::{self, FrugalOps, LayerStep};

#[derive(Clone, Debug)]
struct NormalizationState<B: FrugalOps> {
    /// What stays of the normalised input if gamma is tracked.
    saved: Saved<B>,
    /// `Some` if the input is tracked; a number a channel.
    scale: Option<FloatTensor<B>>,
    step: LayerStep,
}

#[derive(Debug)]
struct NormalizationBackward;

impl<B: FrugalOps> Backward<B, 3> for NormalizationBackward {
    type State = NormalizationState<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        record_backward(&ops);
        let [input, gamma, beta] = ops.parents;
        let output_gradient = gradients.consume::<B>(&ops.node);
        let NormalizationState {
            saved,
            scale,
            step: LayerStep {
                geometry, method, ..
            },
        } = ops.state;
        if gamma.is_some() || beta.is_some() {
            let upstream = method.upstream::<B>(output_gradient.clone(), &geometry);
            if let Some(node) = beta {
                let gradient = method.bias_gradient::<B>(upstream.clone(), &geometry);
                gradients.register::<B>(node.id, gradient);
            }
            if let Some(node) = gamma {
                let gradient = method.weight_gradient::<B>(saved, upstream, &geometry);
                let channels = Shape::from([gradient.shape().num_elements()]);
                gradients.register::<B>(node.id, B::float_reshape(gradient, channels));
            }
        }
        if let (Some(node), Some(scale)) = (input, scale) {
            // exact whatever the method: it needs nothing of the input
            let weight = ops::per_channel::<B>(scale);
            let gradient = Method::Exact.input_gradient::<B>(weight, output_gradient, &geometry);
            gradients.register::<B>(node.id, gradient);
        }
    }
}

pub(super) fn forward<B: FrugalOps, C: CheckpointStrategy>(
    input: FloatTensor<Autodiff<B, C>>,
    [scale, shift]: [FloatTensor<B>; 2],
    [gamma, beta]: [FloatTensor<Autodiff<B, C>>; 2],
    saved: Saved<B>,
    step: LayerStep,
) -> FloatTensor<Autodiff<B, C>> {
    let source = recomputation::take::<B>(input.id().value);
    let input_tracked = input.is_tracked();
    let (input, input_node) = input.into_parts();
    let nodes = [input_node, gamma.node(), beta.node()];
    let geometry = step.geometry;
    let affine = [scale.clone(), shift.clone()];
    let output = match NormalizationBackward
        .prepare::<C>(nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prepared) => {
            let state = NormalizationState {
                saved,
                scale: input_tracked.then(|| scale.clone()),
                step,
            };
            prepared.finish(state, ops::normalized::<B>(input, scale, shift, &geometry))
        }
        OpsKind::UnTracked(_) => {
            constant::<B, C>(ops::normalized::<B>(input, scale, shift, &geometry))
        }
    };
    recomputation::note_normalization(source, output.id().value, affine, geometry);
    output
}
