//! What every layer with a method does in its forward pass.

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};

use crate::geometry::LayerGeometry;
use crate::methods::Saved;
use crate::ops::{FrugalOps, recorder};
use crate::plan::MethodSlot;

/// Keeps what the method keeps of the input if the weight is trained, and applies the layer.
pub(super) fn forward<const D: usize, const W: usize>(
    slot: &MethodSlot,
    input: Tensor<D>,
    weight: Tensor<W>,
    bias: Option<Tensor<1>>,
    geometry: LayerGeometry,
) -> Tensor<D> {
    let plain = || input.clone().without_autodiff().into_dispatch();
    let input_tracked = input.is_tracked();
    let trained = weight.is_tracked();
    let bias_trained = bias.as_ref().is_some_and(Tensor::is_tracked);
    if trained || input_tracked || bias_trained {
        free_abandoned(slot, &input, &weight, bias.as_ref());
    }
    let saved = if trained {
        let values = || weight.to_data();
        slot.keep(plain(), &geometry, values)
    } else {
        Saved::Nothing
    };
    let saved_bytes = trained.then(|| saved.bytes());
    let step = slot.step(geometry);
    let output = <Dispatch as FrugalOps>::layer(
        input.clone().into_dispatch(),
        weight.into_dispatch(),
        bias.map(Tensor::into_dispatch).into(),
        saved,
        step,
    );
    let kept = saved_bytes.map(|bytes| if recorder::recomputed() { 0 } else { bytes });
    Tensor::from_dispatch(slot.observed(&plain, input_tracked, output, geometry, kept))
}

/// Frees what abandoned passes of this layer, and of others in their graphs, keep; if they are many.
pub(super) fn free_abandoned<const D: usize, const W: usize>(
    slot: &MethodSlot,
    input: &Tensor<D>,
    weight: &Tensor<W>,
    bias: Option<&Tensor<1>>,
) {
    if let Some(sweep) = slot.sweep(|| input.device().autodiff()) {
        sweep.reach(input);
        sweep.reach(weight);
        if let Some(bias) = bias {
            sweep.reach(bias);
        }
        sweep.run();
    }
}

/// Burn's own layers compute in floats with quantized parameters; so do ours.
pub(super) fn dequantized<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match tensor.dtype() {
        DType::QFloat(_) => tensor.dequantize(),
        _ => tensor,
    }
}
