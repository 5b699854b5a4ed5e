//! Numbers in 8 or 4 bits, with one scale a row.

mod codes;
mod extent;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::Element;
use crate::fresh::in_parallel;
use crate::invariant::expect_len;
use crate::parts::PARALLEL_ELEMENTS;
use codes::{decode, encode};
use extent::Extent;

/// Elements of a piece of a long row. Even, so that a piece is whole bytes.
const PIECE: usize = PARALLEL_ELEMENTS.next_multiple_of(2);

/// Bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// Two codes share a byte, the first in its low half.
    Four,
    /// A byte a code.
    Eight,
}

impl Bits {
    /// Bytes of a row of codes. Each row starts on its own byte.
    pub fn row_bytes(self, row_len: usize) -> usize {
        match self {
            Self::Four => row_len.div_ceil(2),
            Self::Eight => row_len,
        }
    }

    /// The largest code of a row with negative values, and of one without.
    pub fn largest(self) -> (u8, u8) {
        match self {
            Self::Four => (7, 15),
            Self::Eight => (127, 255),
        }
    }
}

/// Rounds rows of numbers to few bits: the codes, and a scale a row.
///
/// `values` has shape `[rows, row_len]`, the codes have shape `[rows, row_bytes]` (see [`Bits::row_bytes`]), and the
/// scales have shape `[rows]`. A value is nearly its code times the absolute value of its row's scale, within half that
/// scale.
///
/// In a row without negative values, codes run from 0 to 255 (15), and the scale is the largest value over 255 (15). In
/// any other row, codes run from -127 to 127 (-7 to 7), in two's complement, and the scale is the largest absolute
/// value over 127 (7), negated: its sign says how to read the codes. Half of an odd row's last byte is 0.
///
/// A row of zeros has scale 0. A row with NaN or an infinity has scale NaN and codes 0.
///
/// # Panics
///
/// If `values` is not whole rows.
pub fn quantize<T: Element>(bits: Bits, row_len: usize, values: &[T]) -> (Vec<u8>, Vec<T>) {
    let rows = values.len().checked_div(row_len).unwrap_or(0);
    expect_len("quantize", "values", rows * row_len, values.len());
    let row_bytes = bits.row_bytes(row_len);
    let mut codes = vec![0; rows * row_bytes];
    let mut scales = vec![T::ZERO; rows];
    if rows == 0 {
        return (codes, scales);
    }
    let arch = Arch::new();
    let job = PARALLEL_ELEMENTS.div_ceil(row_len);
    values
        .par_chunks(job * row_len)
        .zip(codes.par_chunks_mut(job * row_bytes))
        .zip(scales.par_chunks_mut(job))
        .for_each(|((values, codes), scales)| {
            if row_len > PIECE {
                scales[0] = quantize_long(arch, bits, values, codes);
            } else {
                arch.dispatch(QuantizeRows {
                    bits,
                    row_len,
                    values,
                    codes,
                    scales,
                });
            }
        });
    (codes, scales)
}

/// As [`quantize`], for one row that is worth splitting. Returns its scale.
fn quantize_long<T: Element>(arch: Arch, bits: Bits, values: &[T], codes: &mut [u8]) -> T {
    let scale = values
        .par_chunks(PIECE)
        .map(|values| arch.dispatch(|| Extent::of(values)))
        .reduce(|| Extent::NOTHING, Extent::join)
        .scale(bits);
    values
        .par_chunks(PIECE)
        .zip(codes.par_chunks_mut(bits.row_bytes(PIECE)))
        .for_each(|(values, codes)| arch.dispatch(|| encode(bits, scale, values, codes)));
    scale
}

struct QuantizeRows<'a, T> {
    bits: Bits,
    row_len: usize,
    values: &'a [T],
    /// Zero at first.
    codes: &'a mut [u8],
    scales: &'a mut [T],
}

impl<T: Element> WithSimd for QuantizeRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let values = self.values.chunks_exact(self.row_len);
        let codes = self
            .codes
            .chunks_exact_mut(self.bits.row_bytes(self.row_len));
        for ((values, codes), scale) in values.zip(codes).zip(self.scales) {
            *scale = Extent::of(values).scale(self.bits);
            encode(self.bits, *scale, values, codes);
        }
    }
}

/// Numbers from the codes and scales that [`quantize`] returns.
///
/// `codes` has shape `[rows, row_bytes]` (see [`Bits::row_bytes`]), `scales` has shape `[rows]`, and the result has
/// shape `[rows, row_len]`. Where the scale is NaN, so is the whole row.
///
/// # Panics
///
/// If `codes` does not have the length of its shape.
pub fn dequantize<T: Element>(bits: Bits, row_len: usize, codes: &[u8], scales: &[T]) -> Vec<T> {
    let bytes = scales.len() * bits.row_bytes(row_len);
    expect_len("dequantize", "codes", bytes, codes.len());
    let job = if row_len > PIECE || row_len == 0 {
        PIECE
    } else {
        PARALLEL_ELEMENTS.next_multiple_of(row_len)
    };
    let arch = Arch::new();
    in_parallel(scales.len() * row_len, job, |index, values| {
        arch.dispatch(Dequantize {
            bits,
            row_len,
            codes,
            scales,
            first: index * job,
            values,
        });
    })
}

struct Dequantize<'a, T> {
    bits: Bits,
    row_len: usize,
    codes: &'a [u8],
    scales: &'a [T],
    /// Position of the first value among those of all rows.
    first: usize,
    /// May start and stop within a row.
    values: &'a mut [T],
}

impl<T: Element> WithSimd for Dequantize<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let row_bytes = self.bits.row_bytes(self.row_len);
        let mut column = self.first % self.row_len;
        let mut row = self.first / self.row_len;
        let mut rest = self.values;
        while !rest.is_empty() {
            let len = rest.len().min(self.row_len - column);
            let (values, others) = rest.split_at_mut(len);
            let codes = &self.codes[row * row_bytes..][..row_bytes];
            decode(self.bits, self.scales[row], codes, column, values);
            (row, column, rest) = (row + 1, 0, others);
        }
    }
}
