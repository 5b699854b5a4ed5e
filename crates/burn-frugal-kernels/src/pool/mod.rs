//! Max pooling that remembers a byte an output.

mod blocks;
mod geometry;
mod maxima;
mod phases;

use pulp::Arch;
use rayon::prelude::*;

use crate::Element;
use crate::fresh::in_parallel;
use crate::invariant::expect_len;
use crate::parts::PARALLEL_ELEMENTS;
pub use geometry::PoolGeometry;
use maxima::Windows;

/// The maximum of every window.
///
/// `input` has shape `[maps, input height, input width]`, the result has shape `[maps, output height, output width]`. A
/// window with NaN gives NaN.
///
/// # Panics
///
/// If the geometry [has no meaning](PoolGeometry::check), or the input does not have the length of its shape.
pub fn max_pool2d<T: Element>(geometry: &PoolGeometry, input: &[T]) -> Vec<T> {
    geometry.expect_valid("max_pool2d");
    expect_len("max_pool2d", "input", geometry.input_len(), input.len());
    let windows = Windows::new(geometry);
    let (pixels, outputs) = (geometry.input_pixels(), geometry.output_pixels());
    let job = maps_of_a_job(geometry);
    let arch = Arch::new();
    in_parallel(geometry.output_len(), job * outputs, |index, maxima| {
        let input = &input[index * job * pixels..][..maxima.len() / outputs * pixels];
        windows.pool(arch, input, maxima, None);
    })
}

/// As [`max_pool2d`], and returns which tap of its window gave each maximum: its row times the kernel width plus its
/// column. Of equal values it is the first, in a window with NaN the first NaN. It is never padding.
///
/// Both results have shape `[maps, output height, output width]`.
///
/// # Panics
///
/// As [`max_pool2d`].
pub fn max_pool2d_with_taps<T: Element>(geometry: &PoolGeometry, input: &[T]) -> (Vec<T>, Vec<u8>) {
    geometry.expect_valid("max_pool2d_with_taps");
    let (pixels, outputs) = (geometry.input_pixels(), geometry.output_pixels());
    expect_len(
        "max_pool2d_with_taps",
        "input",
        geometry.input_len(),
        input.len(),
    );
    let windows = Windows::new(geometry);
    let mut maxima = vec![T::ZERO; geometry.output_len()];
    let mut taps = vec![0; geometry.output_len()];
    let job = maps_of_a_job(geometry);
    let arch = Arch::new();
    input
        .par_chunks(job * pixels)
        .zip(maxima.par_chunks_mut(job * outputs))
        .zip(taps.par_chunks_mut(job * outputs))
        .for_each(|((input, maxima), taps)| {
            windows.pool(arch, input, maxima, Some(taps));
        });
    (maxima, taps)
}

/// Gives every pixel the gradients of the outputs whose maximum it is: the gradient of [`max_pool2d`].
///
/// `taps`, which [`max_pool2d_with_taps`] returns, and `output_gradient` have shape `[maps, output height, output
/// width]`, the result has shape `[maps, input height, input width]`.
///
/// # Panics
///
/// If the geometry [has no meaning](PoolGeometry::check), a slice does not have the length of its shape, or a tap lies
/// outside the map. Other taps of padding are read as pixels of a row next to it.
pub fn max_pool2d_input_gradient<T: Element>(
    geometry: &PoolGeometry,
    taps: &[u8],
    output_gradient: &[T],
) -> Vec<T> {
    let operation = "max_pool2d_input_gradient";
    geometry.expect_valid(operation);
    let len = geometry.output_len();
    expect_len(operation, "taps", len, taps.len());
    expect_len(operation, "output_gradient", len, output_gradient.len());
    let (pixels, outputs) = (geometry.input_pixels(), geometry.output_pixels());
    let offsets = tap_offsets(geometry);
    let job = maps_of_a_job(geometry);
    in_parallel(geometry.input_len(), job * pixels, |index, gradient| {
        let maps = index * job..;
        let taps = taps[maps.start * outputs..].chunks_exact(outputs);
        let sources = output_gradient[maps.start * outputs..].chunks_exact(outputs);
        for ((gradient, taps), sources) in gradient.chunks_exact_mut(pixels).zip(taps).zip(sources)
        {
            scatter(geometry, &offsets, taps, sources, gradient);
        }
    })
}

/// Adds the gradients of the outputs of one map.
fn scatter<T: Element>(
    geometry: &PoolGeometry,
    offsets: &[usize; PoolGeometry::MOST_TAPS],
    taps: &[u8],
    output_gradient: &[T],
    gradient: &mut [T],
) {
    let (width, stride) = (geometry.output[1], geometry.stride);
    let rows = taps
        .chunks_exact(width)
        .zip(output_gradient.chunks_exact(width));
    for (row, (taps, sources)) in rows.enumerate() {
        let mut window = stride[0].wrapping_mul(row).wrapping_mul(geometry.input[1]);
        for (&tap, &source) in taps.iter().zip(sources) {
            gradient[window.wrapping_add(offsets[usize::from(tap)])] += source;
            window = window.wrapping_add(stride[1]);
        }
    }
}

/// Pixels from the start of a window without padding to each of its taps with it. Wraps around below 0.
fn tap_offsets(geometry: &PoolGeometry) -> [usize; PoolGeometry::MOST_TAPS] {
    let PoolGeometry {
        input,
        kernel,
        dilation,
        padding,
        ..
    } = *geometry;
    // What is no tap of the kernel lies outside any map.
    let mut offsets = [isize::MAX as usize; PoolGeometry::MOST_TAPS];
    for (tap, offset) in offsets[..kernel[0] * kernel[1]].iter_mut().enumerate() {
        let [row, column] = [tap / kernel[1], tap % kernel[1]];
        let row = dilation[0].wrapping_mul(row).wrapping_sub(padding[0].0);
        let column = dilation[1].wrapping_mul(column).wrapping_sub(padding[1].0);
        *offset = row.wrapping_mul(input[1]).wrapping_add(column);
    }
    offsets
}

/// Maps that one job works on, so that it is worth splitting off.
fn maps_of_a_job(geometry: &PoolGeometry) -> usize {
    PARALLEL_ELEMENTS.div_ceil(geometry.input_pixels().max(geometry.output_pixels()))
}
