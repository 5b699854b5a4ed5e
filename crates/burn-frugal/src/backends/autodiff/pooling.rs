use burn::backend::{
    Autodiff, TensorMetadata,
    autodiff::checkpoint::strategy::CheckpointStrategy,
    tensor::{FloatTensor, IntTensor},
};
use burn_frugal_kernels::{PoolGeometry, Tiles};

use super::recomputation;
use super::unary::{self, Reverse};
use crate::ops::FrugalOps;

#[derive(Clone, Debug)]
struct Taps<B: FrugalOps> {
    taps: IntTensor<B>,
    geometry: PoolGeometry,
}

impl<B: FrugalOps> Reverse<B> for Taps<B> {
    fn input_gradient(self, output_gradient: FloatTensor<B>) -> FloatTensor<B> {
        B::max_pool_input_gradient(self.taps, output_gradient, self.geometry)
    }
}

pub(super) fn max_pool<B: FrugalOps, C: CheckpointStrategy>(
    input: FloatTensor<Autodiff<B, C>>,
    geometry: PoolGeometry,
) -> FloatTensor<Autodiff<B, C>> {
    recomputation::forget();
    unary::apply::<B, C, _>(
        input,
        |input| {
            let (output, taps) = B::max_pool_with_taps(input, geometry);
            (output, Taps { taps, geometry })
        },
        |input| B::max_pool(input, geometry),
    )
}

/// Tiles of an input of this height and width.
#[derive(Clone, Debug)]
struct Spread {
    tiles: Tiles,
    size: [usize; 2],
}

impl<B: FrugalOps> Reverse<B> for Spread {
    fn input_gradient(self, output_gradient: FloatTensor<B>) -> FloatTensor<B> {
        B::tile_spread(output_gradient, self.tiles, self.size)
    }
}

pub(super) fn average_pool<B: FrugalOps, C: CheckpointStrategy>(
    map: FloatTensor<Autodiff<B, C>>,
    tiles: Tiles,
) -> FloatTensor<Autodiff<B, C>> {
    recomputation::forget();
    let [_, _, height, width] = map.shape().dims();
    let spread = Spread {
        tiles: tiles.clone(),
        size: [height, width],
    };
    unary::apply::<B, C, _>(
        map,
        |map| (B::tile_sums(map, spread.tiles.clone()), spread),
        |map| B::tile_sums(map, tiles),
    )
}
