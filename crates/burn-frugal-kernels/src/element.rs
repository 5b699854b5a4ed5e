use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use crate::scratch::Scratch;

/// A number the kernels work on: `f32` or `f64`.
///
/// Sealed: matrix products exist for these two types only.
pub trait Element:
    Scratch
    + Copy
    + Send
    + Sync
    + Default
    + Debug
    + PartialEq
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + From<u8>
    + From<i8>
    + 'static
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The least number above zero.
    const LEAST: Self;

    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;

    /// The value as `f64`, without loss.
    fn to_f64(self) -> f64;

    /// Whether the value is neither infinite nor NaN.
    fn is_finite(self) -> bool;

    /// Whether the value is NaN.
    fn is_nan(self) -> bool;

    /// The nearest whole number modulo 256; of two that are as near, the even one.
    ///
    /// The value must lie between -2^21 and 2^21, or the result is unspecified.
    fn nearest_byte(self) -> u8;
}

macro_rules! element {
    ($type:ty) => {
        impl Element for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LEAST: Self = Self::from_bits(1);

            fn from_f64(value: f64) -> Self {
                value as Self
            }

            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            fn is_finite(self) -> bool {
                self.is_finite()
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                self.is_nan()
            }

            #[inline(always)]
            fn nearest_byte(self) -> u8 {
                // Next to this number, neighbouring values are 1 apart and their bits count up from 0.
                const WHOLE: $type = 1.5 * (1_u64 << (<$type>::MANTISSA_DIGITS - 1)) as $type;
                (self + WHOLE).to_bits() as u8
            }
        }
    };
}

element!(f32);
element!(f64);
