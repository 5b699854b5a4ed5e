//! The autodiff steps: where our operations' gradients enter Burn's graph, one file a kind.

mod activation;
mod layer;
mod normalization;
mod pooling;
mod recomputation;
mod unary;

use burn::backend::{
    Autodiff, AutodiffBackend, Backend, TensorMetadata,
    autodiff::{checkpoint::strategy::CheckpointStrategy, ops::Ops},
    tensor::FloatTensor,
};
use burn_frugal_kernels::{Activation, PoolGeometry, Tiles};

use crate::methods::Saved;
use crate::ops::recorder::{self, Operation};
use crate::ops::{FrugalOps, LayerStep, MaybeFloat};

impl<B: FrugalOps, C: CheckpointStrategy> FrugalOps for Autodiff<B, C> {
    fn layer(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: MaybeFloat<Self>,
        saved: Saved<Self>,
        step: LayerStep,
    ) -> FloatTensor<Self> {
        let operation = Operation::Layer {
            geometry: step.geometry,
            bias: matches!(bias, MaybeFloat::Some(_)),
        };
        recorded::<B, C>(operation, input, |input| {
            layer::forward::<B, C>(input, weight, bias, plain(saved), step)
        })
    }

    fn normalization(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        saved: Saved<Self>,
        step: LayerStep,
    ) -> FloatTensor<Self> {
        let operation = Operation::Normalization {
            geometry: step.geometry,
        };
        let affine = [scale, shift].map(|tensor| tensor.into_primitive());
        recorded::<B, C>(operation, input, |input| {
            normalization::forward::<B, C>(input, affine, [gamma, beta], plain(saved), step)
        })
    }

    fn activation(input: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        let elements = input.shape().num_elements();
        let operation = Operation::Activation {
            activation,
            elements,
        };
        recorded::<B, C>(operation, input, |input| {
            activation::forward::<B, C>(input, activation)
        })
    }

    fn max_pool(input: FloatTensor<Self>, geometry: PoolGeometry) -> FloatTensor<Self> {
        recorded::<B, C>(Operation::MaxPool { geometry }, input, |input| {
            pooling::max_pool::<B, C>(input, geometry)
        })
    }

    fn average_pool(map: FloatTensor<Self>, tiles: Tiles) -> FloatTensor<Self> {
        let [batch, channels, height, width] = map.shape().dims();
        let operation = Operation::AveragePool {
            elements: batch * channels * height * width,
            outputs: batch * channels * tiles.rows.len() * tiles.columns.len(),
        };
        recorded::<B, C>(operation, map, |map| {
            pooling::average_pool::<B, C>(map, tiles)
        })
    }
}

/// Runs an operation's forward pass and tells whoever records this thread.
fn recorded<B: FrugalOps, C: CheckpointStrategy>(
    operation: Operation,
    input: FloatTensor<Autodiff<B, C>>,
    forward: impl FnOnce(FloatTensor<Autodiff<B, C>>) -> FloatTensor<Autodiff<B, C>>,
) -> FloatTensor<Autodiff<B, C>> {
    let (element_size, input_id) = (input.dtype().size(), input.id().value);
    let output = forward(input);
    recorder::forward(operation, element_size, input_id, output.id().value);
    output
}

/// Tells whoever records this thread where the input of a backward step came from.
fn record_backward<S, const N: usize>(ops: &Ops<S, N>) {
    if let Some(input) = &ops.parents[0] {
        let parents = input.parents.iter().map(|parent| parent.id.value);
        recorder::backward(ops.node.id.value, parents);
    }
}

/// The result of an operation that no gradient goes through: a constant, without a node in the graph.
/// Burn's own operations register one.
fn constant<B: Backend, C: CheckpointStrategy>(
    output: FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>> {
    <Autodiff<B, C> as AutodiffBackend>::from_inner(output)
}

/// What was saved was computed outside the graph; dispatch lifted it into constants of the graph.
fn plain<B: Backend, C: CheckpointStrategy>(saved: Saved<Autodiff<B, C>>) -> Saved<B> {
    match saved {
        Saved::Nothing => Saved::Nothing,
        Saved::Full(input) => Saved::Full(input.into_primitive()),
        Saved::Tiles(sums) => Saved::Tiles(sums.into_primitive()),
        Saved::Channels { input, channels } => Saved::Channels {
            input: input.into_primitive(),
            channels,
        },
        Saved::LowRank(low_rank) => Saved::LowRank(low_rank.map(|tensor| tensor.into_primitive())),
        Saved::Quantized { codes, scales } => Saved::Quantized {
            codes,
            scales: scales.into_primitive(),
        },
    }
}
