//! Convolution with one weight a channel: products of pixels and numbers.

use rayon::prelude::*;

use super::PARALLEL_MACS;
use crate::fresh::in_parallel;
use crate::sums::{LANES, fold};
use crate::{ConvGeometry, Element};

/// `Y[n, c] = w[c] X[n, c] + b[c]`.
pub(super) fn forward<T: Element>(
    geometry: &ConvGeometry,
    input: &[T],
    weight: &[T],
    bias: Option<&[T]>,
) -> Vec<T> {
    each_image(geometry, |first, output| {
        let input = &input[first..][..output.len()];
        each_channel(geometry, output, input, |channel, output, input| {
            let (weight, bias) = (weight[channel], bias.map_or(T::ZERO, |bias| bias[channel]));
            for (output, &input) in output.iter_mut().zip(input) {
                *output = bias + weight * input;
            }
        });
    })
}

/// `GX[n, c] = w[c] GY[n, c]`.
pub(super) fn input_gradient<T: Element>(
    geometry: &ConvGeometry,
    weight: &[T],
    output_gradient: &[T],
) -> Vec<T> {
    each_image(geometry, |first, input_gradient| {
        let output_gradient = &output_gradient[first..][..input_gradient.len()];
        each_channel(
            geometry,
            input_gradient,
            output_gradient,
            |channel, input_gradient, output_gradient| {
                for (target, &gradient) in input_gradient.iter_mut().zip(output_gradient) {
                    *target = weight[channel] * gradient;
                }
            },
        );
    })
}

/// `gw[c] = sum over n of <X[n, c], GY[n, c]>`.
pub(super) fn weight_gradient<T: Element>(
    geometry: &ConvGeometry,
    input: &[T],
    output_gradient: &[T],
    weight_gradient: &mut [T],
) {
    let (channels, pixels) = (geometry.groups, geometry.input_pixels());
    let part = PARALLEL_MACS.div_ceil(geometry.batch * pixels);
    weight_gradient
        .par_chunks_mut(part)
        .enumerate()
        .for_each(|(index, totals)| {
            for image in 0..geometry.batch {
                let start = (image * channels + index * part) * pixels;
                let range = start..start + totals.len() * pixels;
                let (input, gradient) = (&input[range.clone()], &output_gradient[range]);
                if pixels == 1 {
                    for ((total, &input), &gradient) in totals.iter_mut().zip(input).zip(gradient) {
                        *total += input * gradient;
                    }
                    continue;
                }
                let planes = input
                    .chunks_exact(pixels)
                    .zip(gradient.chunks_exact(pixels));
                for (total, (input, gradient)) in totals.iter_mut().zip(planes) {
                    *total += dot(input, gradient);
                }
            }
        });
}

/// Sum of the products of two slices.
fn dot<T: Element>(left: &[T], right: &[T]) -> T {
    let (left_blocks, left_rest) = left.as_chunks::<LANES>();
    let (right_blocks, right_rest) = right.as_chunks::<LANES>();
    let mut total = T::ZERO;
    if !left_blocks.is_empty() {
        let mut lanes = [T::ZERO; LANES];
        for (left, right) in left_blocks.iter().zip(right_blocks) {
            for lane in 0..LANES {
                lanes[lane] += left[lane] * right[lane];
            }
        }
        total = fold(&mut lanes);
    }
    for (&left, &right) in left_rest.iter().zip(right_rest) {
        total += left * right;
    }
    total
}

/// A map of the input's shape; `work(first, part)` computes some images of it, the first element of which is `first`.
fn each_image<T: Element>(
    geometry: &ConvGeometry,
    work: impl Fn(usize, &mut [T]) + Sync,
) -> Vec<T> {
    let image = geometry.groups * geometry.input_pixels();
    let part = image * PARALLEL_MACS.div_ceil(image);
    in_parallel(geometry.input_len(), part, |index, map| {
        work(index * part, map);
    })
}

/// Calls `work(channel, target plane, source plane)` for every plane of some images.
fn each_channel<T: Element>(
    geometry: &ConvGeometry,
    target: &mut [T],
    source: &[T],
    work: impl Fn(usize, &mut [T], &[T]),
) {
    let pixels = geometry.input_pixels();
    let planes = target
        .chunks_exact_mut(pixels)
        .zip(source.chunks_exact(pixels));
    for ((target, source), channel) in planes.zip((0..geometry.groups).cycle()) {
        work(channel, target, source);
    }
}
