//! Activations whose gradient needs one bit an element.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::Element;
use crate::invariant::expect_len;
use crate::parts::PARALLEL_ELEMENTS;

/// Elements that share a byte of a mask.
const BITS: usize = 8;

/// Elements of one job, whole bytes of a mask.
const JOB: usize = PARALLEL_ELEMENTS.next_multiple_of(BITS);

/// An activation that is the identity or constant, so that its gradient passes or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `max(0, x)`. The gradient passes unless `x <= 0`.
    Relu,
    /// `min(max(0, x), 6)`. The gradient passes unless `x < 0` or `x > 6`.
    Relu6,
}

impl Activation {
    /// The value, and whether the gradient passes. NaN stays NaN and passes.
    #[inline(always)]
    fn apply<T: Element>(self, x: T, six: T) -> (T, bool) {
        match self {
            Self::Relu => {
                let zero = x <= T::ZERO;
                (if zero { T::ZERO } else { x }, !zero)
            }
            Self::Relu6 => {
                let (low, high) = (x < T::ZERO, x > six);
                let value = if low { T::ZERO } else { x };
                (if high { six } else { value }, !(low || high))
            }
        }
    }
}

/// Applies an activation in place.
pub fn activate<T: Element>(activation: Activation, values: &mut [T]) {
    let arch = Arch::new();
    values.par_chunks_mut(JOB).for_each(|values| {
        arch.dispatch(Activate { activation, values });
    });
}

/// As [`activate`], and returns which elements pass their gradient: element `i` is bit `i % 8` of byte `i / 8`, the
/// lowest bit first. Bits past the last element are 0.
pub fn activate_with_mask<T: Element>(activation: Activation, values: &mut [T]) -> Vec<u8> {
    let arch = Arch::new();
    let mut mask = vec![0; values.len().div_ceil(BITS)];
    values
        .par_chunks_mut(JOB)
        .zip(mask.par_chunks_mut(JOB / BITS))
        .for_each(|(values, mask)| {
            arch.dispatch(ActivateWithMask {
                activation,
                values,
                mask,
            });
        });
    mask
}

/// Sets to zero in place what does not pass: the gradient of an activation. `mask` is what [`activate_with_mask`]
/// returns.
///
/// # Panics
///
/// If the mask does not have one bit an element, rounded up to bytes.
pub fn mask_gradient<T: Element>(mask: &[u8], gradient: &mut [T]) {
    let bytes = gradient.len().div_ceil(BITS);
    expect_len("mask_gradient", "mask", bytes, mask.len());
    let arch = Arch::new();
    gradient
        .par_chunks_mut(JOB)
        .zip(mask.par_chunks(JOB / BITS))
        .for_each(|(gradient, mask)| {
            arch.dispatch(MaskGradient { mask, gradient });
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
        let six = T::from_f64(6.0);
        // One loop an activation: the compiler does not take the choice out of the loop by itself.
        match self.activation {
            Activation::Relu => {
                for value in self.values {
                    *value = Activation::Relu.apply(*value, six).0;
                }
            }
            Activation::Relu6 => {
                for value in self.values {
                    *value = Activation::Relu6.apply(*value, six).0;
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
            Activation::Relu => activate_bytes(Activation::Relu, self.values, self.mask),
            Activation::Relu6 => activate_bytes(Activation::Relu6, self.values, self.mask),
        }
    }
}

#[inline(always)]
fn activate_bytes<T: Element>(activation: Activation, values: &mut [T], mask: &mut [u8]) {
    let six = T::from_f64(6.0);
    let (blocks, rest) = values.as_chunks_mut::<BITS>();
    let (bytes, last) = mask.split_at_mut(blocks.len());
    for (block, byte) in blocks.iter_mut().zip(bytes) {
        let mut bits = 0;
        for (position, value) in block.iter_mut().enumerate() {
            let (activated, passes) = activation.apply(*value, six);
            *value = activated;
            bits |= u8::from(passes) << position;
        }
        *byte = bits;
    }
    if let Some(byte) = last.first_mut() {
        for (position, value) in rest.iter_mut().enumerate() {
            let (activated, passes) = activation.apply(*value, six);
            *value = activated;
            *byte |= u8::from(passes) << position;
        }
    }
}

struct MaskGradient<'a, T> {
    mask: &'a [u8],
    gradient: &'a mut [T],
}

impl<T: Element> WithSimd for MaskGradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let keep = |value: T, byte: u8, position: usize| {
            if byte >> position & 1 == 1 {
                value
            } else {
                T::ZERO
            }
        };
        let (blocks, rest) = self.gradient.as_chunks_mut::<BITS>();
        for (block, &byte) in blocks.iter_mut().zip(self.mask) {
            for (position, value) in block.iter_mut().enumerate() {
                *value = keep(*value, byte, position);
            }
        }
        if let Some(&byte) = self.mask.get(blocks.len()) {
            for (position, value) in rest.iter_mut().enumerate() {
                *value = keep(*value, byte, position);
            }
        }
    }
}
