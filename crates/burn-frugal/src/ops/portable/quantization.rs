use burn::backend::{
    Backend, TensorMetadata,
    tensor::{BoolTensor, FloatTensor, IntTensor},
};
use burn::tensor::{FloatDType, IntDType, Shape};
use burn_frugal_kernels::Bits;

use super::bools;

/// See [`FrugalOps::quantize_rows`](crate::ops::FrugalOps::quantize_rows). The codes are `[rows, row_len]`, a
/// byte each, also those of four bits, shifted so that none is negative; the scale, in single
/// precision, of a row with negative values is negative.
pub fn quantize_rows<B: Backend>(
    tensor: FloatTensor<B>,
    bits: Bits,
    row_len: usize,
) -> (IntTensor<B>, FloatTensor<B>) {
    let rows = tensor.shape().num_elements() / row_len.max(1);
    let device = tensor.device();
    if rows * row_len == 0 {
        return (
            B::int_zeros(Shape::from([rows, row_len]), &device, IntDType::U8),
            B::float_zeros(Shape::from([rows, 1]), &device, FloatDType::F32),
        );
    }
    let (signed, unsigned) = bits.largest();
    let [signed, unsigned] = [signed, unsigned].map(i32::from);
    let values = B::float_cast(
        B::float_reshape(tensor, Shape::from([rows, row_len])),
        FloatDType::F32,
    );
    let lowest = B::float_neg(B::float_max_dim(B::float_neg(values.clone()), 1));
    let negative = B::float_lower_elem(lowest, 0.into(), bools());
    let most = B::float_max_dim(B::float_abs(values.clone()), 1);
    let step = B::float_mask_where(
        B::float_div_scalar(most.clone(), unsigned.into()),
        negative.clone(),
        B::float_div_scalar(most, signed.into()),
    );
    // a row of zeros
    let divisor = B::float_mask_fill(
        step.clone(),
        B::float_equal_elem(step.clone(), 0.into(), bools()),
        1.into(),
    );
    let codes = B::float_round(B::float_div(values, divisor));
    let shifted = B::float_add_scalar(codes.clone(), (signed + 1).into());
    let codes = B::float_mask_where(codes, expanded::<B>(negative.clone(), row_len), shifted);
    let codes = B::float_clamp(codes, 0.into(), unsigned.into());
    let scales = B::float_mask_where(step.clone(), negative, B::float_neg(step));
    (B::float_into_int(codes, IntDType::U8), scales)
}

/// See [`FrugalOps::dequantize_rows`](crate::ops::FrugalOps::dequantize_rows).
pub fn dequantize_rows<B: Backend>(
    codes: IntTensor<B>,
    scales: FloatTensor<B>,
    bits: Bits,
    shape: Shape,
    dtype: FloatDType,
) -> FloatTensor<B> {
    let [_, row_len] = codes.shape().dims();
    let signed = i32::from(bits.largest().0);
    if shape.num_elements() == 0 {
        return B::float_zeros(shape, &scales.device(), dtype);
    }
    let codes = B::int_into_float(codes, FloatDType::F32);
    let negative = B::float_lower_elem(scales.clone(), 0.into(), bools());
    let shifted = B::float_sub_scalar(codes.clone(), (signed + 1).into());
    let codes = B::float_mask_where(codes, expanded::<B>(negative, row_len), shifted);
    let values = B::float_mul(codes, B::float_abs(scales));
    B::float_cast(B::float_reshape(values, shape), dtype)
}

/// One truth a row for all its elements.
fn expanded<B: Backend>(rows: BoolTensor<B>, row_len: usize) -> BoolTensor<B> {
    let [count, _] = rows.shape().dims();
    B::bool_expand(rows, Shape::from([count, row_len]))
}
