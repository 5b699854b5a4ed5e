//! Convolution with one input channel per group: direct loops.
//!
//! A plane is first copied into a padded [`Frame`], in which every tap reads at a fixed offset from the output pixel,
//! whatever the stride, dilation and padding. Each pass is then a few multiply-adds over long contiguous runs, without
//! checks inside. Runs cross from row to row over a few positions that are no output; their results are dropped, or
//! multiplied by zero.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::PARALLEL_MACS;
use super::frame::{Frame, LANES, lanes_at};
use crate::fresh::in_parallel;
use crate::geometry::Reach;
use crate::parts::{share, sum_of_parts};
use crate::scratch::with_scratch;
use crate::sums::{fold, sum};
use crate::{ConvGeometry, Element};

/// Direct convolution of every plane.
pub(super) fn forward<T: Element>(
    geometry: &ConvGeometry,
    input: &[T],
    weight: &[T],
    bias: Option<&[T]>,
) -> Vec<T> {
    let (arch, frame) = (Arch::new(), Frame::new::<T>(geometry));
    let (taps, multiplier) = (geometry.taps(), geometry.group_outputs());
    let (input_pixels, output_pixels) = (geometry.input_pixels(), geometry.output_pixels());
    each_plane(geometry, multiplier * output_pixels, |planes, output| {
        with_scratch(frame.input_len() + frame.output_len(), |scratch| {
            let (framed, result) = scratch.split_at_mut(frame.input_len());
            framed.fill(T::ZERO);
            let mut kernel: Vec<(usize, T)> = frame
                .offsets
                .iter()
                .map(|&offset| (offset, T::ZERO))
                .collect();
            for (unit, outputs) in planes.zip(output.chunks_exact_mut(multiplier * output_pixels)) {
                let plane = &input[unit * input_pixels..][..input_pixels];
                let first_channel = unit % geometry.groups * multiplier;
                for block in &frame.blocks {
                    frame.load(plane, block, framed);
                    let result = &mut result[..frame.run(block)];
                    for (index, output) in outputs.chunks_exact_mut(output_pixels).enumerate() {
                        let channel = first_channel + index;
                        for ((_, tap), &weight) in kernel.iter_mut().zip(&weight[channel * taps..])
                        {
                            *tap = weight;
                        }
                        arch.dispatch(Correlate {
                            kernel: &kernel,
                            start: bias.map_or(T::ZERO, |bias| bias[channel]),
                            source: framed,
                            target: result,
                        });
                        frame.store_output(result, block, output);
                    }
                }
            }
        });
    })
}

/// The most elements of scratch that one of the three passes takes.
pub(super) fn working_elements<T: Element>(geometry: &ConvGeometry) -> usize {
    let frame = Frame::new::<T>(geometry);
    let multiplier = geometry.group_outputs();
    let framed_gradient = frame.largest_offset() + frame.sub_plane.next_multiple_of(LANES);
    let weight_gradient = frame.output_len() + multiplier * geometry.taps() * LANES;
    frame.input_len() + weight_gradient.max(multiplier * framed_gradient)
}

/// Direct transpose of [`forward`].
pub(super) fn input_gradient<T: Element>(
    geometry: &ConvGeometry,
    weight: &[T],
    output_gradient: &[T],
) -> Vec<T> {
    let (arch, frame) = (Arch::new(), Frame::new::<T>(geometry));
    let (taps, multiplier) = (geometry.taps(), geometry.group_outputs());
    let (input_pixels, output_pixels) = (geometry.input_pixels(), geometry.output_pixels());
    // Every position of a sub-plane gathers from the outputs up to `reach` before it, so each framed output plane gets
    // that many zeros in front, and zeros behind up to the length of a sub-plane.
    let reach = frame.largest_offset();
    let result_len = frame.sub_plane.next_multiple_of(LANES);
    let framed_len = reach + result_len;
    // For each sub-plane, the taps that read it, as (tap, offset).
    let mut readers = vec![Vec::new(); frame.sub_planes()];
    for (tap, offset) in frame.offsets.iter().enumerate() {
        readers[offset / frame.sub_plane].push((tap, reach - offset % frame.sub_plane));
    }
    each_plane(geometry, input_pixels, |planes, input_gradient| {
        let gradient_len = multiplier * framed_len;
        with_scratch(gradient_len + frame.input_len(), |scratch| {
            let (framed, result) = scratch.split_at_mut(gradient_len);
            framed.fill(T::ZERO);
            let mut kernel = Vec::with_capacity(taps * multiplier);
            for (unit, input_gradient) in planes.zip(input_gradient.chunks_exact_mut(input_pixels))
            {
                let gradients = &output_gradient[unit * multiplier * output_pixels..]
                    [..multiplier * output_pixels];
                let weight =
                    &weight[unit % geometry.groups * multiplier * taps..][..multiplier * taps];
                for block in &frame.blocks {
                    let planes = framed.chunks_exact_mut(framed_len);
                    for (framed, gradient) in planes.zip(gradients.chunks_exact(output_pixels)) {
                        frame.load_output(gradient, block, &mut framed[reach..]);
                    }
                    for (index, readers) in readers.iter().enumerate() {
                        kernel.clear();
                        for (plane, weight) in weight.chunks_exact(taps).enumerate() {
                            let start = plane * framed_len;
                            kernel.extend(
                                readers
                                    .iter()
                                    .map(|&(tap, offset)| (start + offset, weight[tap])),
                            );
                        }
                        arch.dispatch(Correlate {
                            kernel: &kernel,
                            start: T::ZERO,
                            source: framed,
                            // The overhang past a sub-plane is overwritten by the next one.
                            target: &mut result[index * frame.sub_plane..][..result_len],
                        });
                    }
                    frame.store(result, block, input_gradient);
                }
                if !sum(input_gradient).is_finite() {
                    plane_input_gradient(geometry, weight, gradients, input_gradient);
                }
            }
        });
    })
}

/// Sums of products of framed planes.
pub(super) fn weight_gradient<T: Element>(
    geometry: &ConvGeometry,
    input: &[T],
    output_gradient: &[T],
    weight_gradient: &mut [T],
) {
    let (arch, frame) = (Arch::new(), Frame::new::<T>(geometry));
    let (taps, multiplier) = (geometry.taps(), geometry.group_outputs());
    let (input_pixels, output_pixels) = (geometry.input_pixels(), geometry.output_pixels());
    let threads = rayon::current_num_threads();
    // Groups are independent sums; only when they are too few, the images are split as well.
    let parts = if geometry.groups >= threads {
        1
    } else {
        threads.min(geometry.batch)
    };
    let macs_per_group = geometry.macs() as usize / (geometry.groups * parts);
    sum_of_parts(parts, weight_gradient, |part, weight_gradient| {
        let images = share(geometry.batch, part, parts);
        let one_group = |group: usize, weight_gradient: &mut [T]| {
            let planes = images.clone().map(|image| {
                let unit = image * geometry.groups + group;
                (
                    &input[unit * input_pixels..][..input_pixels],
                    &output_gradient[unit * multiplier * output_pixels..]
                        [..multiplier * output_pixels],
                )
            });
            let lanes_len = multiplier * taps * LANES;
            with_scratch(
                frame.input_len() + frame.output_len() + lanes_len,
                |scratch| {
                    scratch.fill(T::ZERO);
                    let (framed, rest) = scratch.split_at_mut(frame.input_len());
                    let (framed_gradient, lanes) = rest.split_at_mut(frame.output_len());
                    let (lanes, _) = lanes.as_chunks_mut::<LANES>();
                    for (plane, gradients) in planes.clone() {
                        for block in &frame.blocks {
                            frame.load(plane, block, framed);
                            let gradients = gradients.chunks_exact(output_pixels);
                            for (totals, gradient) in lanes.chunks_exact_mut(taps).zip(gradients) {
                                frame.load_output(gradient, block, framed_gradient);
                                arch.dispatch(AddProducts {
                                    offsets: &frame.offsets,
                                    source: framed,
                                    gradient: &framed_gradient[..frame.run(block)],
                                    totals,
                                });
                            }
                        }
                    }
                    for (total, lanes) in weight_gradient.iter_mut().zip(lanes) {
                        *total = fold(lanes);
                    }
                },
            );
            if !sum(weight_gradient).is_finite() {
                weight_gradient.fill(T::ZERO);
                for (plane, gradients) in planes {
                    add_plane_weight_gradient(geometry, plane, gradients, weight_gradient);
                }
            }
        };
        weight_gradient
            .par_chunks_exact_mut(multiplier * taps)
            .with_min_len(PARALLEL_MACS.div_ceil(macs_per_group.max(1)))
            .enumerate()
            .for_each(|(group, weight_gradient)| one_group(group, weight_gradient));
    });
}

/// `target[i] = start + sum over (offset, weight) of weight * source[offset + i]`, for a whole number of lanes.
///
struct Correlate<'a, T> {
    kernel: &'a [(usize, T)],
    start: T,
    source: &'a [T],
    target: &'a mut [T],
}

impl<T: Element> WithSimd for Correlate<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (blocks, _) = self.target.as_chunks_mut::<LANES>();
        for (index, block) in blocks.iter_mut().enumerate() {
            let mut totals = [self.start; LANES];
            for &(offset, weight) in self.kernel {
                let values: &[T; LANES] = lanes_at(self.source, offset + index * LANES);
                for (total, &value) in totals.iter_mut().zip(values) {
                    *total += weight * value;
                }
            }
            *block = totals;
        }
    }
}

/// `totals[t][i % LANES] += source[offsets[t] + i] * gradient[i]`, for a whole number of lanes.
struct AddProducts<'a, T> {
    offsets: &'a [usize],
    source: &'a [T],
    gradient: &'a [T],
    totals: &'a mut [[T; LANES]],
}

impl<T: Element> WithSimd for AddProducts<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (blocks, _) = self.gradient.as_chunks::<LANES>();
        for (&offset, kept) in self.offsets.iter().zip(self.totals) {
            let mut totals = *kept;
            for (index, block) in blocks.iter().enumerate() {
                let values: &[T; LANES] = lanes_at(self.source, offset + index * LANES);
                for lane in 0..LANES {
                    totals[lane] += values[lane] * block[lane];
                }
            }
            *kept = totals;
        }
    }
}

/// The definition, over exactly the products it has. Frames also multiply by zeros that are no part of it, which
/// gives NaN if the other factor is not finite; then the pass is repeated here.
fn plane_input_gradient<T: Element>(
    geometry: &ConvGeometry,
    weight: &[T],
    output_gradient: &[T],
    input_gradient: &mut [T],
) {
    input_gradient.fill(T::ZERO);
    each_product(geometry, |tap, output, input| {
        input_gradient[input] += weight[tap] * output_gradient[output];
    });
}

/// As [`plane_input_gradient`], for the weight.
fn add_plane_weight_gradient<T: Element>(
    geometry: &ConvGeometry,
    input: &[T],
    output_gradient: &[T],
    weight_gradient: &mut [T],
) {
    each_product(geometry, |tap, output, position| {
        weight_gradient[tap] += output_gradient[output] * input[position];
    });
}

/// Calls `visit(tap, output, input)` for every product of one group of one image: indices into the group's weights,
/// its output planes and its input plane.
fn each_product(geometry: &ConvGeometry, mut visit: impl FnMut(usize, usize, usize)) {
    let [vertical, horizontal] = [geometry.reach(0), geometry.reach(1)];
    let positions = |reach: &Reach, axis: usize| {
        let (first, stride) = (reach.first, geometry.stride[axis]);
        let outputs = reach.outputs.clone().enumerate();
        outputs.map(move |(index, output)| (output, first + stride * index))
    };
    let (pixels, width) = (geometry.output_pixels(), geometry.output()[1]);
    for plane in 0..geometry.group_outputs() {
        for (row, down) in vertical.iter().enumerate() {
            for (column, right) in horizontal.iter().enumerate() {
                let tap = (plane * vertical.len() + row) * horizontal.len() + column;
                for (output_row, y) in positions(down, 0) {
                    for (output_column, x) in positions(right, 1) {
                        let output = plane * pixels + output_row * width + output_column;
                        visit(tap, output, y * geometry.input[1] + x);
                    }
                }
            }
        }
    }
}

/// A map of `len` elements for every (image, group) unit; `work(units, part)` computes runs of consecutive ones, zero
/// at first.
fn each_plane<T: Element>(
    geometry: &ConvGeometry,
    len: usize,
    work: impl Fn(Range<usize>, &mut [T]) + Sync,
) -> Vec<T> {
    let units = geometry.batch * geometry.groups;
    let macs = geometry.group_outputs() * geometry.output_pixels() * geometry.taps();
    // Runs long enough to be worth a job, short enough that every thread gets a few.
    let balanced = units.div_ceil(4 * rayon::current_num_threads());
    let run = PARALLEL_MACS.div_ceil(macs.max(1)).max(balanced).min(units);
    in_parallel(units * len, run * len, |index, part| {
        work(index * run..index * run + part.len() / len, part);
    })
}
