use std::fmt::Debug;
use std::ops::{Add, AddAssign, Mul, Sub};

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
    + AddAssign
    + 'static
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;

    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;

    /// The value as `f64`, without loss.
    fn to_f64(self) -> f64;

    /// Whether the value is neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

macro_rules! element {
    ($type:ty) => {
        impl Element for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;

            fn from_f64(value: f64) -> Self {
                value as Self
            }

            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            fn is_finite(self) -> bool {
                self.is_finite()
            }
        }
    };
}

element!(f32);
element!(f64);
