//! What the scale of a row depends on.

use super::Bits;
use crate::Element;
use crate::sums::LANES;

/// The least and the largest of some values and 0, and whether all of them are finite.
#[derive(Clone, Copy)]
pub(super) struct Extent<T> {
    least: T,
    largest: T,
    /// 0 if all are finite, NaN if not.
    finite: T,
}

impl<T: Element> Extent<T> {
    /// The extent of no values.
    pub(super) const NOTHING: Self = Self {
        least: T::ZERO,
        largest: T::ZERO,
        finite: T::ZERO,
    };

    #[inline(always)]
    pub(super) fn of(values: &[T]) -> Self {
        let (blocks, rest) = values.as_chunks::<LANES>();
        let mut lanes = [Self::NOTHING; LANES];
        for block in blocks {
            for (lane, &value) in lanes.iter_mut().zip(block) {
                *lane = lane.with(value);
            }
        }
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] = lanes[lane].join(lanes[lane + half]);
            }
            half /= 2;
        }
        rest.iter()
            .fold(lanes[0], |extent, &value| extent.with(value))
    }

    #[inline(always)]
    fn with(self, value: T) -> Self {
        self.join(Self {
            least: value,
            largest: value,
            // 0 times infinity is NaN
            finite: value * T::ZERO,
        })
    }

    /// The extent of the values of both. Does not depend on their order.
    #[inline(always)]
    pub(super) fn join(self, other: Self) -> Self {
        Self {
            least: if other.least < self.least {
                other.least
            } else {
                self.least
            },
            largest: if other.largest > self.largest {
                other.largest
            } else {
                self.largest
            },
            finite: self.finite + other.finite,
        }
    }

    /// The scale that the values need, as [`quantize`](super::quantize) describes it.
    #[inline(always)]
    pub(super) fn scale(self, bits: Bits) -> T {
        let (signed, unsigned) = bits.largest();
        if self.finite.is_nan() {
            T::from_f64(f64::NAN)
        } else if self.least < T::ZERO {
            let negated = T::ZERO - self.least;
            let largest = if negated > self.largest {
                negated
            } else {
                self.largest
            };
            T::ZERO - step(largest, T::from(signed))
        } else {
            step(self.largest, T::from(unsigned))
        }
    }
}

/// `largest / codes`, such that the largest code neither overflows nor falls short of a tiny value.
#[inline(always)]
fn step<T: Element>(largest: T, codes: T) -> T {
    let step = largest / codes;
    if step * codes < largest {
        // Does nothing to a step that is not tiny, whose rounding does not matter.
        step + T::LEAST
    } else if (step * codes).is_finite() {
        step
    } else {
        step * T::from_f64(1.0 - 1e-6)
    }
}
