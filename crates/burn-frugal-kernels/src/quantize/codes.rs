//! Codes of values under a scale that is known.

use super::Bits;
use crate::Element;

/// The codes of a row, or of a piece of one that starts on a byte. `codes` must be zero at first.
#[inline(always)]
pub(super) fn encode<T: Element>(bits: Bits, scale: T, values: &[T], codes: &mut [u8]) {
    let step = absolute(scale);
    if step.is_nan() || step == T::ZERO {
        return;
    }
    // Not times its inverse, which overflows where the step is tiny. Two's complement serves codes of both kinds.
    let code = |value: T| (value / step).nearest_byte();
    match bits {
        Bits::Eight => {
            for (byte, &value) in codes.iter_mut().zip(values) {
                *byte = code(value);
            }
        }
        Bits::Four => {
            let (pairs, last) = values.as_chunks::<2>();
            let (bytes, last_byte) = codes.split_at_mut(pairs.len());
            for (byte, &[low, high]) in bytes.iter_mut().zip(pairs) {
                *byte = code(low) & 15 | code(high) << 4;
            }
            if let ([value], [byte]) = (last, last_byte) {
                *byte = code(*value) & 15;
            }
        }
    }
}

/// The values of a row from `column` on.
#[inline(always)]
pub(super) fn decode<T: Element>(
    bits: Bits,
    scale: T,
    codes: &[u8],
    column: usize,
    values: &mut [T],
) {
    let step = absolute(scale);
    let signed = scale < T::ZERO;
    match bits {
        Bits::Eight => {
            let codes = &codes[column..];
            if signed {
                each(codes, values, |code| step * T::from(code as i8));
            } else {
                each(codes, values, |code| step * T::from(code));
            }
        }
        Bits::Four => {
            let codes = &codes[column / 2..];
            let odd = column % 2 == 1;
            if signed {
                each_half(codes, odd, values, |code| step * T::from(code as i8 >> 4));
            } else {
                each_half(codes, odd, values, |code| step * T::from(code >> 4));
            }
        }
    }
}

#[inline(always)]
fn each<T>(codes: &[u8], values: &mut [T], value_of: impl Fn(u8) -> T) {
    for (value, &code) in values.iter_mut().zip(codes) {
        *value = value_of(code);
    }
}

/// `value_of` gets a code in the high half of a byte, and in the low half what it must ignore. If `odd`, the first
/// value is the high half of the first code.
#[inline(always)]
fn each_half<T>(codes: &[u8], odd: bool, values: &mut [T], value_of: impl Fn(u8) -> T) {
    let (first, values) = values.split_at_mut(usize::from(odd));
    let (first_byte, codes) = codes.split_at(first.len());
    if let ([value], [code]) = (first, first_byte) {
        *value = value_of(*code);
    }
    let (pairs, last) = values.as_chunks_mut::<2>();
    let (bytes, last_byte) = codes.split_at(pairs.len());
    for ([low, high], &code) in pairs.iter_mut().zip(bytes) {
        (*low, *high) = (value_of(code << 4), value_of(code));
    }
    if let ([value], [code, ..]) = (last, last_byte) {
        *value = value_of(*code << 4);
    }
}

#[inline(always)]
fn absolute<T: Element>(scale: T) -> T {
    if scale < T::ZERO {
        T::ZERO - scale
    } else {
        scale
    }
}
