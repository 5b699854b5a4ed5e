use burn::backend::{
    Autodiff,
    autodiff::checkpoint::strategy::CheckpointStrategy,
    tensor::{FloatTensor, IntTensor},
};
use burn_frugal_kernels::Activation;

use super::recomputation;
use super::unary::{self, Reverse};
use crate::ops::FrugalOps;

#[derive(Clone, Debug)]
struct Mask<B: FrugalOps> {
    mask: IntTensor<B>,
    activation: Activation,
}

impl<B: FrugalOps> Reverse<B> for Mask<B> {
    fn input_gradient(self, output_gradient: FloatTensor<B>) -> FloatTensor<B> {
        B::mask_gradient(self.mask, output_gradient, self.activation)
    }
}

pub(super) fn forward<B: FrugalOps, C: CheckpointStrategy>(
    input: FloatTensor<Autodiff<B, C>>,
    activation: Activation,
) -> FloatTensor<Autodiff<B, C>> {
    let source = recomputation::take::<B>(input.id().value);
    let output = unary::apply::<B, C, _>(
        input,
        |input| {
            let (output, mask) = B::activation_with_mask(input, activation);
            (output, Mask { mask, activation })
        },
        |input| B::activation(input, activation),
    );
    recomputation::note_activation(source, output.id().value, activation);
    output
}
