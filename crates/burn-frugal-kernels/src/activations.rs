//! Activations whose gradient needs one bit or one byte an element.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::Element;
use crate::hard_swish;
use crate::invariant::expect_len;
use crate::parts::PARALLEL_ELEMENTS;

/// Elements that share a byte of a mask of bits.
const BITS: usize = 8;

/// Elements of one job, whole bytes of a mask.
const JOB: usize = PARALLEL_ELEMENTS.next_multiple_of(BITS);

/// An activation whose gradient needs little of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `max(0, x)`. The gradient passes unless `x <= 0`.
    Relu,
    /// `min(max(0, x), 6)`. The gradient passes unless `x < 0` or `x > 6`.
    Relu6,
    /// `x * min(max(x + 3, 0), 6) / 6`. The gradient is multiplied by 0 if `x < -3`, by 1 if `x > 3`, and by
    /// `(2 x + 3) / 6` in between, rounded to a multiple of 1/127. At NaN it is multiplied by 1: the value shows it.
    HardSwish,
}

impl Activation {
    /// Codes from one slope in the mask of [`HardSwish`](Self::HardSwish) to the slope that is 1 steeper: slopes from
    /// -0.5 to 1.5 fill a byte.
    pub const SLOPE_STEPS: f64 = 127.0;

    /// The code of slope 0.
    pub const SLOPE_ZERO: f64 = 64.0;

    /// Bytes of the mask of so many elements: a bit an element for [`Relu`](Self::Relu) and [`Relu6`](Self::Relu6), a
    /// byte an element for [`HardSwish`](Self::HardSwish).
    pub fn mask_len(self, elements: usize) -> usize {
        match self {
            Self::Relu | Self::Relu6 => elements.div_ceil(BITS),
            Self::HardSwish => elements,
        }
    }
}

/// The value, and whether the gradient passes. NaN stays NaN and passes.
#[inline(always)]
fn relu<T: Element>(x: T) -> (T, bool) {
    let zero = x <= T::ZERO;
    (if zero { T::ZERO } else { x }, !zero)
}

/// As [`relu`].
#[inline(always)]
fn relu6<T: Element>(x: T) -> (T, bool) {
    let six = T::from_f64(6.0);
    let (low, high) = (x < T::ZERO, x > six);
    let value = if low { T::ZERO } else { x };
    (if high { six } else { value }, !(low || high))
}

/// Applies an activation in place.
pub fn activate<T: Element>(activation: Activation, values: &mut [T]) {
    let arch = Arch::new();
    values.par_chunks_mut(JOB).for_each(|values| {
        arch.dispatch(Activate { activation, values });
    });
}

/// As [`activate`], and returns what the gradient needs, [`mask_len`](Activation::mask_len) bytes.
///
/// For [`Relu`](Activation::Relu) and [`Relu6`](Activation::Relu6), it says which elements pass their gradient: element
/// `i` is bit `i % 8` of byte `i / 8`, the lowest bit first. Bits past the last element are 0. For
/// [`HardSwish`](Activation::HardSwish), byte `i` is 64 plus 127 times the slope at element `i`, rounded.
pub fn activate_with_mask<T: Element>(activation: Activation, values: &mut [T]) -> Vec<u8> {
    let arch = Arch::new();
    let mut mask = vec![0; activation.mask_len(values.len())];
    values
        .par_chunks_mut(JOB)
        .zip(mask.par_chunks_mut(activation.mask_len(JOB)))
        .for_each(|(values, mask)| {
            arch.dispatch(ActivateWithMask {
                activation,
                values,
                mask,
            });
        });
    mask
}

/// Multiplies in place by what the mask says, 0 for what does not pass: the gradient of an activation. `mask` is what
/// [`activate_with_mask`] returns.
///
/// # Panics
///
/// If the mask does not have [`mask_len`](Activation::mask_len) bytes.
pub fn mask_gradient<T: Element>(activation: Activation, mask: &[u8], gradient: &mut [T]) {
    let bytes = activation.mask_len(gradient.len());
    expect_len("mask_gradient", "mask", bytes, mask.len());
    let arch = Arch::new();
    gradient
        .par_chunks_mut(JOB)
        .zip(mask.par_chunks(activation.mask_len(JOB)))
        .for_each(|(gradient, mask)| {
            arch.dispatch(MaskGradient {
                activation,
                mask,
                gradient,
            });
        });
}

struct Activate<'a, T> {
    activation: Activation,
    values: &'a mut [T],
}

impl<T: Element> WithSimd for Activate<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // One loop an activation: the compiler does not take the choice out of the loop by itself.
        match self.activation {
            Activation::Relu => {
                for value in self.values {
                    *value = relu(*value).0;
                }
            }
            Activation::Relu6 => {
                for value in self.values {
                    *value = relu6(*value).0;
                }
            }
            Activation::HardSwish => {
                for value in self.values {
                    *value = hard_swish::value(*value);
                }
            }
        }
    }
}

struct ActivateWithMask<'a, T> {
    activation: Activation,
    values: &'a mut [T],
    mask: &'a mut [u8],
}

impl<T: Element> WithSimd for ActivateWithMask<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        match self.activation {
            Activation::Relu => activate_bits(relu, self.values, self.mask),
            Activation::Relu6 => activate_bits(relu6, self.values, self.mask),
            Activation::HardSwish => {
                for (value, code) in self.values.iter_mut().zip(self.mask) {
                    *code = hard_swish::slope_code(*value);
                    *value = hard_swish::value(*value);
                }
            }
        }
    }
}

#[inline(always)]
fn activate_bits<T: Element>(apply: impl Fn(T) -> (T, bool), values: &mut [T], mask: &mut [u8]) {
    let (blocks, rest) = values.as_chunks_mut::<BITS>();
    let (bytes, last) = mask.split_at_mut(blocks.len());
    for (block, byte) in blocks.iter_mut().zip(bytes) {
        let mut bits = 0;
        for (position, value) in block.iter_mut().enumerate() {
            let (activated, passes) = apply(*value);
            *value = activated;
            bits |= u8::from(passes) << position;
        }
        *byte = bits;
    }
    if let Some(byte) = last.first_mut() {
        for (position, value) in rest.iter_mut().enumerate() {
            let (activated, passes) = apply(*value);
            *value = activated;
            *byte |= u8::from(passes) << position;
        }
    }
}

struct MaskGradient<'a, T> {
    activation: Activation,
    mask: &'a [u8],
    gradient: &'a mut [T],
}

impl<T: Element> WithSimd for MaskGradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        match self.activation {
            Activation::Relu | Activation::Relu6 => keep_bits(self.mask, self.gradient),
            Activation::HardSwish => {
                for (value, &code) in self.gradient.iter_mut().zip(self.mask) {
                    *value = *value * hard_swish::slope(code);
                }
            }
        }
    }
}

#[inline(always)]
fn keep_bits<T: Element>(mask: &[u8], gradient: &mut [T]) {
    let keep = |value: T, byte: u8, position: usize| {
        if byte >> position & 1 == 1 {
            value
        } else {
            T::ZERO
        }
    };
    let (blocks, rest) = gradient.as_chunks_mut::<BITS>();
    for (block, &byte) in blocks.iter_mut().zip(mask) {
        for (position, value) in block.iter_mut().enumerate() {
            *value = keep(*value, byte, position);
        }
    }
    if let Some(&byte) = mask.get(blocks.len()) {
        for (position, value) in rest.iter_mut().enumerate() {
            *value = keep(*value, byte, position);
        }
    }
}
