use crate::GeometryError;
use crate::geometry::{Reach, check_elements, check_not_zero};

/// Sizes of one 2-D max pooling. Pairs are `[height, width]`.
///
/// Output `p` of an axis with padding `(before, after)`, kernel size `k`, dilation `d` and stride `s` is the maximum
/// over the inputs `s p + d i - before` for every tap `i < k`, those outside the input left out. The number of outputs
/// is free: windows may run over the padding at the end, as they do when it is rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolGeometry {
    /// Number of maps, over all images and channels. May be 0.
    pub maps: usize,
    /// Input height and width.
    pub input: [usize; 2],
    /// Output height and width.
    pub output: [usize; 2],
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// Input pixels from one window to the next.
    pub stride: [usize; 2],
    /// Pixels `(before, after)` the input: `[(top, bottom), (left, right)]`. Those after it follow from the output.
    pub padding: [(usize, usize); 2],
    /// Input pixels from one tap of a window to the next.
    pub dilation: [usize; 2],
}

impl PoolGeometry {
    /// Taps of the largest window: a byte tells them apart.
    pub const MOST_TAPS: usize = 256;

    /// Whether the sizes describe a pooling in which every output has a maximum.
    ///
    /// # Errors
    ///
    /// When a size other than the number of maps is 0, when a window has more than [`MOST_TAPS`](Self::MOST_TAPS) taps
    /// or no pixel of the input, or when a tensor has more elements than memory can hold.
    pub fn check(&self) -> Result<(), GeometryError> {
        let Self { input, output, .. } = *self;
        check_not_zero(&[
            ("input", input),
            ("output", output),
            ("kernel", self.kernel),
            ("stride", self.stride),
            ("dilation", self.dilation),
        ])?;
        if self.kernel[0].saturating_mul(self.kernel[1]) > Self::MOST_TAPS {
            return Err(GeometryError::TooManyTaps {
                kernel: self.kernel,
            });
        }
        check_elements("input", [self.maps, 1, input[0], input[1]])?;
        check_elements("output", [self.maps, 1, output[0], output[1]])?;
        for (axis, name) in ["height", "width"].into_iter().enumerate() {
            if let Some(output) = (0..output[axis]).find(|&output| self.is_empty(axis, output)) {
                return Err(GeometryError::EmptyWindow { axis: name, output });
            }
        }
        Ok(())
    }

    /// Elements of the input, `[maps, height, width]`.
    pub fn input_len(&self) -> usize {
        self.maps * self.input_pixels()
    }

    /// Elements of the output, `[maps, height, width]`.
    pub fn output_len(&self) -> usize {
        self.maps * self.output_pixels()
    }

    /// Panics on a geometry without meaning.
    #[track_caller]
    pub(super) fn expect_valid(&self, operation: &str) {
        if let Err(error) = self.check() {
            panic!("{operation}: {error}");
        }
    }

    pub(super) fn input_pixels(&self) -> usize {
        self.input[0] * self.input[1]
    }

    pub(super) fn output_pixels(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Whether the window of an output holds no pixel of the input along an axis.
    fn is_empty(&self, axis: usize, output: usize) -> bool {
        let before = self.padding[axis].0;
        let start = self.stride[axis].saturating_mul(output);
        let tap = before.saturating_sub(start).div_ceil(self.dilation[axis]);
        let read = start.saturating_add(self.dilation[axis].saturating_mul(tap));
        tap >= self.kernel[axis] || read - before >= self.input[axis]
    }

    /// What each tap of a window reads along one axis.
    pub(super) fn reach(&self, axis: usize) -> Vec<Reach> {
        (0..self.kernel[axis])
            .map(|tap| {
                Reach::new(
                    self.dilation[axis].saturating_mul(tap),
                    self.padding[axis].0,
                    self.input[axis],
                    self.stride[axis],
                    self.output[axis],
                )
            })
            .collect()
    }
}
