//! Hard swish, and its slope in a byte an element.

use crate::{Activation, Element};

const STEPS: f64 = Activation::SLOPE_STEPS;
const LEVEL: f64 = Activation::SLOPE_ZERO;

/// `x * min(max(x + 3, 0), 6) / 6`. NaN stays NaN.
#[inline(always)]
pub(crate) fn value<T: Element>(x: T) -> T {
    let six = T::from_f64(6.0);
    let shifted = x + T::from_f64(3.0);
    let cut = if shifted < T::ZERO { T::ZERO } else { shifted };
    let cut = if cut > six { six } else { cut };
    // The factor that is 1 above 3 comes first, so that the largest numbers do not overflow.
    x * (cut / six)
}

/// The code of the slope at `x`; of slope 1 at NaN.
#[inline(always)]
pub(crate) fn slope_code<T: Element>(x: T) -> u8 {
    let three = T::from_f64(3.0);
    let inside = (x + x + three) / T::from_f64(6.0);
    let slope = if x <= three { inside } else { T::ONE };
    let slope = if x < T::ZERO - three { T::ZERO } else { slope };
    (slope * T::from_f64(STEPS) + T::from_f64(LEVEL)).nearest_byte()
}

/// The slope of a code. Slopes 0 and 1 come back exactly.
#[inline(always)]
pub(crate) fn slope<T: Element>(code: u8) -> T {
    (T::from(code) - T::from_f64(LEVEL)) * T::from_f64(1.0 / STEPS)
}
