//! Convolution and its gradients. Each kind of layer has its own path; all compute the same definition.

mod columns;
mod dense;
mod depthwise;
mod frame;
mod pointwise;
mod scale;

use crate::invariant::expect_len;
use crate::{ConvGeometry, Element};

/// How to compute a convolution fast.
enum Path {
    /// 1x1 taps on the input as it is: matrix products on the slices themselves.
    Pointwise,
    /// One weight a channel.
    Scale,
    /// One input channel per group: no channels to contract, so products would be too thin.
    Depthwise,
    /// Everything else: matrix products on copied columns.
    Dense,
}

/// How many times larger than its map a padded frame may be. Padding for a huge dilation makes it larger; columns,
/// which only have the pixels of the output, are then the better copy.
const FRAME_GROWTH: usize = 8;

/// Multiply-accumulates below which splitting work over threads costs more than it saves.
const PARALLEL_MACS: usize = 64 << 10;

/// Multiply-accumulates below which products are not worth a second thread: waking it takes longer.
const SHARED_MACS: u64 = 1 << 20;

/// Threads to spread the products of a convolution over.
fn product_threads(geometry: &ConvGeometry) -> usize {
    if geometry.macs() < SHARED_MACS {
        1
    } else {
        rayon::current_num_threads()
    }
}

/// Below this many pixels, a product per image is too small: images are gathered into one.
const POINTWISE_PIXELS: usize = 64;

fn path(geometry: &ConvGeometry) -> Path {
    let plain = is_plain(geometry);
    if geometry.group_inputs() == 1 && geometry.groups > 1 {
        if plain && geometry.group_outputs() == 1 {
            Path::Scale
        } else if padded_pixels(geometry) > FRAME_GROWTH * (geometry.input_pixels() + 64) {
            Path::Dense
        } else {
            Path::Depthwise
        }
    } else if plain && (geometry.input_pixels() >= POINTWISE_PIXELS || geometry.batch == 1) {
        Path::Pointwise
    } else {
        Path::Dense
    }
}

/// Whether every output pixel reads the input pixel at its own place.
fn is_plain(geometry: &ConvGeometry) -> bool {
    geometry.kernel == [1, 1] && geometry.stride == [1, 1] && geometry.padding == [(0, 0); 2]
}

/// Pixels of the input with its padding.
fn padded_pixels(geometry: &ConvGeometry) -> usize {
    let padded = |axis: usize| {
        let (before, after) = geometry.padding[axis];
        geometry.input[axis]
            .saturating_add(before)
            .saturating_add(after)
    };
    padded(0).saturating_mul(padded(1))
}

/// 2-D convolution (cross-correlation, as neural networks use the word).
///
/// `output[n, o, p, q] = bias[o] + sum over c, i, j of
/// weight[o, c, i, j] * input[n, c', stride_h p + dilation_h i - top, stride_w q + dilation_w j - left]`, where `c'` is
/// the `c`-th channel of the group of `o` and positions outside the input count as zero. `input` has shape `[batch,
/// input_channels, H, W]`, `weight` `[output_channels, input_channels / groups, KH, KW]`, `bias` `[output_channels]`,
/// the output `[batch, output_channels, HO, WO]`.
///
/// # Panics
///
/// If a slice does not have the length of its shape, or the geometry has a zero stride, dilation, kernel or number of
/// groups, or channels that do not split into the groups. A kernel that does not fit gives an empty output.
pub fn conv2d<T: Element>(
    geometry: &ConvGeometry,
    input: &[T],
    weight: &[T],
    bias: Option<&[T]>,
) -> Vec<T> {
    const NAME: &str = "conv2d";
    geometry.expect_sizes(NAME);
    expect_len(NAME, "input", geometry.input_len(), input.len());
    expect_len(NAME, "weight", geometry.weight_len(), weight.len());
    if let Some(bias) = bias {
        expect_len(NAME, "bias", geometry.output_channels, bias.len());
    }
    if geometry.output_len() == 0 {
        return Vec::new();
    }
    match path(geometry) {
        Path::Pointwise => pointwise::forward(geometry, input, weight, bias),
        Path::Scale => scale::forward(geometry, input, weight, bias),
        Path::Depthwise => depthwise::forward(geometry, input, weight, bias),
        Path::Dense => dense::forward(geometry, input, weight, bias),
    }
}

/// Gradient of [`conv2d`] with respect to its input.
///
/// `input_gradient[n, c, y, x] = sum of weight[o, c, i, j] * output_gradient[n, o, p, q]` over the outputs `(o, p, q)`
/// and taps `(i, j)` that read `(c, y, x)`; 0 for pixels that no tap reads. Shapes as in [`conv2d`].
///
/// # Panics
///
/// As [`conv2d`].
pub fn conv2d_input_gradient<T: Element>(
    geometry: &ConvGeometry,
    weight: &[T],
    output_gradient: &[T],
) -> Vec<T> {
    const NAME: &str = "conv2d_input_gradient";
    geometry.expect_sizes(NAME);
    expect_len(NAME, "weight", geometry.weight_len(), weight.len());
    expect_len(
        NAME,
        "output gradient",
        geometry.output_len(),
        output_gradient.len(),
    );
    if geometry.input_len() == 0 || output_gradient.is_empty() {
        return vec![T::ZERO; geometry.input_len()];
    }
    match path(geometry) {
        Path::Pointwise => pointwise::input_gradient(geometry, weight, output_gradient),
        Path::Scale => scale::input_gradient(geometry, weight, output_gradient),
        Path::Depthwise => depthwise::input_gradient(geometry, weight, output_gradient),
        Path::Dense => dense::input_gradient(geometry, weight, output_gradient),
    }
}

/// Gradient of [`conv2d`] with respect to its weight.
///
/// `weight_gradient[o, c, i, j] = sum over n, p, q of output_gradient[n, o, p, q] * input[n, c', stride_h p +
/// dilation_h i - top, stride_w q + dilation_w j - left]`, names and shapes as in [`conv2d`]. An empty batch gives
/// zeros.
///
/// # Panics
///
/// As [`conv2d`].
pub fn conv2d_weight_gradient<T: Element>(
    geometry: &ConvGeometry,
    input: &[T],
    output_gradient: &[T],
) -> Vec<T> {
    const NAME: &str = "conv2d_weight_gradient";
    geometry.expect_sizes(NAME);
    expect_len(NAME, "input", geometry.input_len(), input.len());
    expect_len(
        NAME,
        "output gradient",
        geometry.output_len(),
        output_gradient.len(),
    );
    let mut weight_gradient = vec![T::ZERO; geometry.weight_len()];
    if weight_gradient.is_empty() || input.is_empty() || output_gradient.is_empty() {
        return weight_gradient;
    }
    let target = &mut weight_gradient[..];
    match path(geometry) {
        Path::Pointwise => pointwise::weight_gradient(geometry, input, output_gradient, target),
        Path::Scale => scale::weight_gradient(geometry, input, output_gradient, target),
        Path::Depthwise => depthwise::weight_gradient(geometry, input, output_gradient, target),
        Path::Dense => dense::weight_gradient(geometry, input, output_gradient, target),
    }
    weight_gradient
}

/// Bytes of working memory a thread that a convolution and its gradients need; a larger one than 4 MiB is freed after
/// use.
pub fn conv2d_working_memory<T: Element>(geometry: &ConvGeometry) -> usize {
    if geometry.output_len() == 0 {
        return 0;
    }
    let elements = match path(geometry) {
        Path::Pointwise | Path::Scale => 0,
        Path::Depthwise => depthwise::working_elements::<T>(geometry),
        Path::Dense => dense::working_elements::<T>(geometry),
    };
    elements * size_of::<T>()
}

/// Sets every pixel of `output`, whole images of `[output_channels, pixels]`, to the bias of its channel.
fn fill_bias<T: Element>(bias: &[T], pixels: usize, output: &mut [T]) {
    for (channel, &bias) in output.chunks_exact_mut(pixels).zip(bias.iter().cycle()) {
        channel.fill(bias);
    }
}
