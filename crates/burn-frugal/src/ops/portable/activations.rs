use burn::backend::{
    Backend, TensorMetadata,
    tensor::{BoolTensor, FloatTensor, IntTensor},
};
use burn::tensor::IntDType;
use burn_frugal_kernels::Activation;

use super::bools;

/// See [`FrugalOps::activation`](crate::ops::FrugalOps::activation).
pub fn activation<B: Backend>(input: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
    match activation {
        Activation::Relu => B::relu(input),
        Activation::Relu6 => B::float_clamp(input, 0.into(), 6.into()),
        Activation::HardSwish => {
            let gate = B::float_clamp(
                B::float_add_scalar(input.clone(), 3.into()),
                0.into(),
                6.into(),
            );
            // the factor that is 1 above 3 first: half precision overflows early
            B::float_mul(input, B::float_div_scalar(gate, 6.into()))
        }
    }
}

/// See [`FrugalOps::activation_with_mask`](crate::ops::FrugalOps::activation_with_mask). The mask has
/// a byte an element, in the input's shape.
pub fn activation_with_mask<B: Backend>(
    input: FloatTensor<B>,
    kind: Activation,
) -> (FloatTensor<B>, IntTensor<B>) {
    let below = |limit: i32| B::float_lower_elem(input.clone(), limit.into(), bools());
    let above = |limit: i32| B::float_greater_elem(input.clone(), limit.into(), bools());
    let passing = |stopped: BoolTensor<B>| B::bool_into_int(B::bool_not(stopped), IntDType::U8);
    let mask = match kind {
        Activation::Relu => passing(B::float_lower_equal_elem(input.clone(), 0.into(), bools())),
        Activation::Relu6 => passing(B::bool_or(below(0), above(6))),
        Activation::HardSwish => {
            let inside =
                B::float_add_scalar(B::float_mul_scalar(input.clone(), 2.into()), 3.into());
            let slope = B::float_div_scalar(inside, 6.into());
            let slope = B::float_mask_fill(slope, below(-3), 0.into());
            let slope = B::float_mask_fill(slope, above(3), 1.into());
            // a byte has no NaN: the value shows it
            let slope =
                B::float_mask_fill(slope, B::float_is_nan(input.clone(), bools()), 1.into());
            let code = B::float_add_scalar(
                B::float_mul_scalar(slope, Activation::SLOPE_STEPS.into()),
                Activation::SLOPE_ZERO.into(),
            );
            let code = B::float_clamp(B::float_round(code), 0.into(), 255.into());
            B::float_into_int(code, IntDType::U8)
        }
    };
    (activation::<B>(input, kind), mask)
}

/// See [`FrugalOps::mask_gradient`](crate::ops::FrugalOps::mask_gradient).
pub fn mask_gradient<B: Backend>(
    mask: IntTensor<B>,
    gradient: FloatTensor<B>,
    activation: Activation,
) -> FloatTensor<B> {
    match activation {
        Activation::Relu | Activation::Relu6 => {
            let stopped = B::int_equal_elem(mask, 0.into(), bools());
            B::float_mask_fill(gradient, stopped, 0.into())
        }
        Activation::HardSwish => {
            let code = B::int_into_float(mask, gradient.dtype().into());
            let slope = B::float_div_scalar(
                B::float_sub_scalar(code, Activation::SLOPE_ZERO.into()),
                Activation::SLOPE_STEPS.into(),
            );
            B::float_mul(gradient, slope)
        }
    }
}
