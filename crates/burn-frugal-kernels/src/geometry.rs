use std::ops::Range;

use thiserror::Error;

/// Sizes of one 2-D convolution. Pairs are `[height, width]`.
///
/// With input size `L`, padding `(before, after)`, kernel size `k`, dilation `d` and stride `s`, an axis has
/// `(L + before + after - d (k - 1) - 1) / s + 1` outputs (rounded down). Output `p` reads input `s p + d i - before`
/// for every tap `i < k`; positions outside the input count as zero. Group `q` connects the `q`-th equal share of the
/// input channels to the `q`-th equal share of the output channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvGeometry {
    /// Number of images. May be 0.
    pub batch: usize,
    /// Channels of the input, over all groups.
    pub input_channels: usize,
    /// Channels of the output, over all groups.
    pub output_channels: usize,
    /// Input height and width.
    pub input: [usize; 2],
    /// Kernel height and width.
    pub kernel: [usize; 2],
    /// Input pixels from one output to the next.
    pub stride: [usize; 2],
    /// Zeros `(before, after)` the input: `[(top, bottom), (left, right)]`.
    pub padding: [(usize, usize); 2],
    /// Input pixels from one kernel tap to the next.
    pub dilation: [usize; 2],
    /// Number of independent groups of channels.
    pub groups: usize,
}

/// Why a [`ConvGeometry`] describes no convolution, or a [`PoolGeometry`](crate::PoolGeometry) no pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// A size that must be at least 1 is 0.
    #[error("{name} {size:?} (height, width) must be at least 1")]
    ZeroSize {
        /// Which size.
        name: &'static str,
        /// Its height and width.
        size: [usize; 2],
    },
    /// There are no groups.
    #[error("groups must be at least 1, found 0")]
    ZeroGroups,
    /// The channels do not split evenly into the groups.
    #[error(
        "input channels ({input_channels}) and output channels ({output_channels}) must both be multiples of groups \
         ({groups})"
    )]
    UnevenGroups {
        /// Channels of the input.
        input_channels: usize,
        /// Channels of the output.
        output_channels: usize,
        /// Number of groups.
        groups: usize,
    },
    /// A tensor with more elements than a computer can address.
    #[error("the {tensor}, {sizes:?}, has more elements than memory can hold")]
    TooLarge {
        /// `"input"`, `"weight"` or `"output"`.
        tensor: &'static str,
        /// Its sizes along all axes.
        sizes: [usize; 4],
    },
    /// The dilated kernel is larger than the padded input.
    #[error(
        "the dilated kernel spans {kernel} pixels of {axis}, the padded input has only {input}"
    )]
    KernelTooLarge {
        /// `"height"` or `"width"`.
        axis: &'static str,
        /// Pixels the dilated kernel spans.
        kernel: usize,
        /// Pixels of the padded input.
        input: usize,
    },
    /// A pooling window with more taps than a byte can tell apart.
    #[error("the kernel {kernel:?} (height, width) of a pooling must have at most 256 taps")]
    TooManyTaps {
        /// Height and width of the kernel.
        kernel: [usize; 2],
    },
    /// A pooling window without a pixel of the input.
    #[error("the window of output {output} along {axis} holds no pixel of the input, only padding")]
    EmptyWindow {
        /// `"height"` or `"width"`.
        axis: &'static str,
        /// Position of the output along that axis.
        output: usize,
    },
}

impl ConvGeometry {
    /// Whether the sizes describe a convolution with at least one output pixel.
    ///
    /// # Errors
    ///
    /// When a stride, dilation, kernel size or the number of groups is 0, when the channels do not split evenly into
    /// the groups, when the padded input is smaller than the dilated kernel, or when a tensor has more elements than
    /// memory can hold.
    pub fn check(&self) -> Result<(), GeometryError> {
        self.check_sizes()?;
        for (axis, name) in ["height", "width"].into_iter().enumerate() {
            let (kernel, input) = (self.kernel_extent(axis), self.padded(axis));
            if input < kernel {
                return Err(GeometryError::KernelTooLarge {
                    axis: name,
                    kernel,
                    input,
                });
            }
        }
        let [height, width] = self.output();
        for (tensor, sizes) in [
            (
                "input",
                [
                    self.batch,
                    self.input_channels,
                    self.input[0],
                    self.input[1],
                ],
            ),
            (
                "weight",
                [
                    self.output_channels,
                    self.group_inputs(),
                    self.kernel[0],
                    self.kernel[1],
                ],
            ),
            ("output", [self.batch, self.output_channels, height, width]),
        ] {
            check_elements(tensor, sizes)?;
        }
        Ok(())
    }

    /// Output height and width; 0 along an axis where the dilated kernel does not fit in the padded input.
    pub fn output(&self) -> [usize; 2] {
        [0, 1].map(
            |axis| match self.padded(axis).checked_sub(self.kernel_extent(axis)) {
                Some(last) if self.stride[axis] > 0 => (last / self.stride[axis]).saturating_add(1),
                _ => 0,
            },
        )
    }

    /// Elements of the input, `[batch, input_channels, height, width]`.
    pub fn input_len(&self) -> usize {
        self.batch * self.input_channels * self.input_pixels()
    }

    /// Elements of the weight, `[output_channels, input_channels / groups, kernel height, kernel width]`.
    pub fn weight_len(&self) -> usize {
        self.output_channels * self.group_inputs() * self.taps()
    }

    /// Elements of the output, `[batch, output_channels, height, width]`.
    pub fn output_len(&self) -> usize {
        self.batch * self.output_channels * self.output_pixels()
    }

    /// Multiply-accumulates of the forward pass, those with padding included.
    pub fn macs(&self) -> u64 {
        self.output_len() as u64 * (self.group_inputs() * self.taps()) as u64
    }

    fn check_sizes(&self) -> Result<(), GeometryError> {
        check_not_zero(&[
            ("stride", self.stride),
            ("dilation", self.dilation),
            ("kernel", self.kernel),
        ])?;
        let Self {
            input_channels,
            output_channels,
            groups,
            ..
        } = *self;
        if groups == 0 {
            return Err(GeometryError::ZeroGroups);
        }
        if input_channels % groups != 0 || output_channels % groups != 0 {
            return Err(GeometryError::UnevenGroups {
                input_channels,
                output_channels,
                groups,
            });
        }
        Ok(())
    }

    /// Panics on a geometry without meaning. A kernel that does not fit is fine here: there are no outputs then.
    #[track_caller]
    pub(crate) fn expect_sizes(&self, operation: &str) {
        if let Err(error) = self.check_sizes() {
            panic!("{operation}: {error}");
        }
    }

    fn padded(&self, axis: usize) -> usize {
        self.input[axis]
            .saturating_add(self.padding[axis].0)
            .saturating_add(self.padding[axis].1)
    }

    fn kernel_extent(&self, axis: usize) -> usize {
        self.dilation[axis]
            .saturating_mul(self.kernel[axis].saturating_sub(1))
            .saturating_add(1)
    }

    pub(crate) fn input_pixels(&self) -> usize {
        self.input[0] * self.input[1]
    }

    pub(crate) fn output_pixels(&self) -> usize {
        let [height, width] = self.output();
        height * width
    }

    pub(crate) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    pub(crate) fn group_inputs(&self) -> usize {
        self.input_channels / self.groups.max(1)
    }

    pub(crate) fn group_outputs(&self) -> usize {
        self.output_channels / self.groups.max(1)
    }

    /// What each tap of the kernel reads along one axis.
    pub(crate) fn reach(&self, axis: usize) -> Vec<Reach> {
        let outputs = self.output()[axis];
        (0..self.kernel[axis])
            .map(|tap| {
                Reach::new(
                    self.dilation[axis] * tap,
                    self.padding[axis].0,
                    self.input[axis],
                    self.stride[axis],
                    outputs,
                )
            })
            .collect()
    }
}

/// Refuses pairs with a 0 in them.
pub(crate) fn check_not_zero(pairs: &[(&'static str, [usize; 2])]) -> Result<(), GeometryError> {
    for &(name, size) in pairs {
        if size.contains(&0) {
            return Err(GeometryError::ZeroSize { name, size });
        }
    }
    Ok(())
}

/// Refuses a tensor with more elements than a computer can address.
pub(crate) fn check_elements(tensor: &'static str, sizes: [usize; 4]) -> Result<(), GeometryError> {
    // an empty batch must not hide a map that is too large
    let elements = sizes
        .iter()
        .try_fold(1usize, |elements, &size| elements.checked_mul(size.max(1)));
    if elements.is_none_or(|elements| elements > isize::MAX as usize / size_of::<f64>()) {
        return Err(GeometryError::TooLarge { tensor, sizes });
    }
    Ok(())
}

/// The outputs along one axis for which a tap reads the input and not the padding.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// Outputs whose tap falls inside the input; may be empty.
    pub(crate) outputs: Range<usize>,
    /// Input position that the first of them reads; each next one reads a stride further.
    pub(crate) first: usize,
}

impl Reach {
    /// Of `outputs` outputs, those whose tap, `shift` pixels into a window, falls into an input of `size` pixels with
    /// `before` pixels of padding in front.
    pub(crate) fn new(
        shift: usize,
        before: usize,
        size: usize,
        stride: usize,
        outputs: usize,
    ) -> Self {
        // Output p reads input stride * p + shift - before: keep those p that read 0..size.
        let start = before.saturating_sub(shift).div_ceil(stride);
        let stop = size
            .saturating_add(before)
            .saturating_sub(shift)
            .div_ceil(stride)
            .min(outputs);
        if start < stop {
            Self {
                outputs: start..stop,
                first: stride * start + shift - before,
            }
        } else {
            Self {
                outputs: 0..0,
                first: 0,
            }
        }
    }

    /// The same, restricted to the outputs in `range`.
    pub(crate) fn within(&self, range: &Range<usize>, stride: usize) -> Self {
        let start = self.outputs.start.max(range.start);
        let stop = self.outputs.end.min(range.end);
        if start < stop {
            Self {
                outputs: start..stop,
                first: self.first + stride * (start - self.outputs.start),
            }
        } else {
            Self {
                outputs: 0..0,
                first: 0,
            }
        }
    }
}
