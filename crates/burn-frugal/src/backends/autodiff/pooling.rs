use burn::backend::{
    Autodiff, TensorMetadata,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind, unary},
    },
    tensor::{FloatTensor, IntTensor},
};
use burn_frugal_kernels::{PoolGeometry, Tiles};

use super::{constant, recomputation, record_backward};
use crate::ops::FrugalOps;

#[derive(Debug)]
struct MaxPoolBackward;

impl<B: FrugalOps> Backward<B, 1> for MaxPoolBackward {
    /// The taps.
    type State = (IntTensor<B>, PoolGeometry);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        record_backward(&ops);
        let (taps, geometry) = ops.state;
        unary::<B, _>(ops.parents, ops.node, gradients, |gradient| {
            B::max_pool_input_gradient(taps, gradient, geometry)
        });
    }
}

pub(super) fn max_pool<B: FrugalOps, C: CheckpointStrategy>(
    input: FloatTensor<Autodiff<B, C>>,
    geometry: PoolGeometry,
) -> FloatTensor<Autodiff<B, C>> {
    recomputation::forget();
    let (input, node) = input.into_parts();
    match MaxPoolBackward
        .prepare::<C>([node])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prepared) => {
            let (output, taps) = B::max_pool_with_taps(input, geometry);
            prepared.finish((taps, geometry), output)
        }
        OpsKind::UnTracked(_) => constant::<B, C>(B::max_pool(input, geometry)),
    }
}

#[derive(Debug)]
struct AveragePoolBackward;

impl<B: FrugalOps> Backward<B, 1> for AveragePoolBackward {
    /// The tiles, and height and width of the input.
    type State = (Tiles, [usize; 2]);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        record_backward(&ops);
        let (tiles, size) = ops.state;
        unary::<B, _>(ops.parents, ops.node, gradients, |gradient| {
            B::tile_spread(gradient, tiles, size)
        });
    }
}

pub(super) fn average_pool<B: FrugalOps, C: CheckpointStrategy>(
    map: FloatTensor<Autodiff<B, C>>,
    tiles: Tiles,
) -> FloatTensor<Autodiff<B, C>> {
    recomputation::forget();
    let (map, node) = map.into_parts();
    let [_, _, height, width] = map.shape().dims();
    match AveragePoolBackward
        .prepare::<C>([node])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prepared) => {
            let output = B::tile_sums(map, tiles.clone());
            prepared.finish((tiles, [height, width]), output)
        }
        OpsKind::UnTracked(_) => constant::<B, C>(B::tile_sums(map, tiles)),
    }
}
