//! Convolution of any geometry: matrix products on [`Columns`].

use std::ops::Range;

use gemm::Parallelism;
use rayon::prelude::*;

use super::columns::{Block, Columns};
use super::{is_plain, product_threads};
use crate::fresh::{in_parallel, in_turn};
use crate::parts::{share, sum_of_parts};
use crate::product::{Matrix, MatrixMut, Store, multiply};
use crate::rows::Rows;
use crate::scratch::with_scratch;
use crate::{ConvGeometry, Element};

/// Jobs per thread: a few, so that a slow one does not keep the others waiting.
const JOBS_PER_THREAD: usize = 4;

/// What it takes to sum up weight gradients of several threads, in passes over the weight.
const SUM_PASSES: usize = 4;

/// Columns of a job's product to aim for: with fewer, fetching the weight takes too large a part of the time.
const JOB_COLUMNS: usize = 192;

/// Part of a map that one job writes: one group (or every group) of some images.
struct Part<'a, T> {
    /// Images of the whole batch that the part covers.
    first_image: usize,
    images: usize,
    /// Elements from one image to the next in `data`.
    image_stride: usize,
    /// Starts at the group's channels in the first image.
    data: &'a mut [T],
}

/// `Y = W C` per group, with `C` the columns of a block.
pub(super) fn forward<T: Element>(
    geometry: &ConvGeometry,
    input: &[T],
    weight: &[T],
    bias: Option<&[T]>,
) -> Vec<T> {
    let plan = Columns::new::<T>(geometry);
    let channels = geometry.group_outputs();
    each_part(
        geometry,
        channels * plan.output_pixels,
        |group, parallelism, part| {
            let bias = bias.map(|bias| &bias[group * channels..][..channels]);
            forward_group(
                geometry,
                &plan,
                group,
                parallelism,
                input,
                weight,
                bias,
                part,
            );
        },
    )
}

#[expect(
    clippy::too_many_arguments,
    reason = "the operands of a convolution and where it runs"
)]
fn forward_group<T: Element>(
    geometry: &ConvGeometry,
    plan: &Columns,
    group: usize,
    parallelism: Parallelism,
    input: &[T],
    weight: &[T],
    bias: Option<&[T]>,
    part: Part<'_, T>,
) {
    let outputs = geometry.group_outputs();
    let depth = geometry.group_inputs() * plan.taps;
    let weight = &weight[group * outputs * depth..][..outputs * depth];
    with_scratch(plan.len() + outputs * plan.largest_pixels(), |scratch| {
        let (columns, gathered) = scratch.split_at_mut(plan.len());
        for block in plan.blocks(part.first_image..part.first_image + part.images) {
            let pixels = plan.pixels(&block);
            let start = (block.images.start - part.first_image) * part.image_stride
                + plan.first_pixel(&block);
            let single = block.images.len() == 1;
            let (target, row_stride) = if single {
                (&mut part.data[start..], plan.output_pixels)
            } else {
                (&mut gathered[..outputs * pixels], pixels)
            };
            if let Some(bias) = bias {
                for (row, &bias) in target.chunks_mut(row_stride).zip(bias) {
                    row[..pixels].fill(bias);
                }
            } else if depth == 0 {
                for row in target.chunks_mut(row_stride).take(outputs) {
                    row[..pixels].fill(T::ZERO);
                }
            }
            for run in plan.channel_runs() {
                let length = run.len() * plan.taps;
                let columns = &mut columns[..length * pixels];
                make_columns(
                    geometry,
                    plan,
                    group,
                    &block,
                    run.start,
                    input,
                    columns,
                    parallelism,
                );
                multiply(
                    Matrix::new(&weight[run.start * plan.taps..], outputs, length, depth),
                    Matrix::new(columns, length, pixels, pixels),
                    MatrixMut {
                        data: target,
                        row_stride,
                    },
                    Store::add_if(bias.is_some() || run.start > 0),
                    parallelism,
                );
            }
            if !single {
                let width = plan.image_pixels(&block);
                let count = block.images.len();
                let lines = gathered[..outputs * pixels].chunks_exact(pixels);
                for (row, line) in lines.enumerate() {
                    let target = &mut part.data[start + row * plan.output_pixels..];
                    Rows { count, width }.copy(line, width, target, part.image_stride);
                }
            }
        }
    });
}

/// `GC = W^T GY` per group, added to the pixels that the columns `C` of a block were copied from.
pub(super) fn input_gradient<T: Element>(
    geometry: &ConvGeometry,
    weight: &[T],
    output_gradient: &[T],
) -> Vec<T> {
    let plan = Columns::new::<T>(geometry);
    let pixels = geometry.input_pixels();
    let len = geometry.group_inputs() * pixels;
    each_part(geometry, len, |group, parallelism, part| {
        input_gradient_group(
            geometry,
            &plan,
            group,
            parallelism,
            weight,
            output_gradient,
            part,
        );
    })
}

fn input_gradient_group<T: Element>(
    geometry: &ConvGeometry,
    plan: &Columns,
    group: usize,
    parallelism: Parallelism,
    weight: &[T],
    output_gradient: &[T],
    part: Part<'_, T>,
) {
    let outputs = geometry.group_outputs();
    let depth = geometry.group_inputs() * plan.taps;
    let input_pixels = geometry.input_pixels();
    let weight = &weight[group * outputs * depth..][..outputs * depth];
    with_scratch(plan.len() + outputs * plan.largest_pixels(), |scratch| {
        let (columns, gathered) = scratch.split_at_mut(plan.len());
        for block in plan.blocks(part.first_image..part.first_image + part.images) {
            let (pixels, image_pixels) = (plan.pixels(&block), plan.image_pixels(&block));
            let channels = group * outputs..(group + 1) * outputs;
            let output_gradient =
                gather(geometry, plan, channels, &block, output_gradient, gathered);
            for run in plan.channel_runs() {
                let length = run.len() * plan.taps;
                let columns = &mut columns[..length * pixels];
                multiply(
                    Matrix::new(&weight[run.start * plan.taps..], outputs, length, depth)
                        .transposed(),
                    output_gradient,
                    MatrixMut {
                        data: columns,
                        row_stride: pixels,
                    },
                    Store::Replace,
                    parallelism,
                );
                if is_plain(geometry) && image_pixels == input_pixels {
                    let first = (block.images.start - part.first_image) * part.image_stride;
                    let rows = Rows {
                        count: block.images.len(),
                        width: input_pixels,
                    };
                    for (channel, line) in run.zip(columns.chunks_exact(pixels)) {
                        let target = &mut part.data[first + channel * input_pixels..];
                        rows.copy(line, input_pixels, target, part.image_stride);
                    }
                    continue;
                }
                for (index, image) in block.images.clone().enumerate() {
                    let start =
                        (image - part.first_image) * part.image_stride + run.start * input_pixels;
                    let planes = &mut part.data[start..][..run.len() * input_pixels];
                    let add = |(plane, columns): (&mut [T], &[T])| {
                        plan.add_to(plane, &block.rows, columns, pixels, index * image_pixels);
                    };
                    if let Parallelism::None = parallelism {
                        planes
                            .chunks_exact_mut(input_pixels)
                            .zip(columns.chunks_exact(plan.taps * pixels))
                            .for_each(add);
                    } else {
                        planes
                            .par_chunks_exact_mut(input_pixels)
                            .zip(columns.par_chunks_exact(plan.taps * pixels))
                            .for_each(add);
                    }
                }
            }
        }
    });
}

/// `GW = sum over blocks of GY C^T` per group.
pub(super) fn weight_gradient<T: Element>(
    geometry: &ConvGeometry,
    input: &[T],
    output_gradient: &[T],
    weight_gradient: &mut [T],
) {
    let plan = Columns::new::<T>(geometry);
    let outputs = geometry.group_outputs();
    let depth = geometry.group_inputs() * plan.taps;
    let blocks: Vec<Block> = plan.blocks(0..geometry.batch).collect();
    let threads = product_threads(geometry);
    let add = |blocks: &[Block], channels: Range<usize>, parallelism, rows: &mut [T]| {
        add_rows(
            geometry,
            &plan,
            blocks,
            channels,
            parallelism,
            input,
            output_gradient,
            rows,
        );
    };
    if threads > 1 && geometry.batch * plan.output_pixels < SUM_PASSES * outputs {
        // Few pixels: each thread makes all columns for its share of the rows.
        let rows = geometry.output_channels.div_ceil(threads);
        weight_gradient
            .par_chunks_mut(rows * depth)
            .enumerate()
            .for_each(|(index, part)| {
                let channels = index * rows..index * rows + part.len() / depth;
                add(&blocks, channels, Parallelism::None, part);
            });
        return;
    }
    // With too few blocks to go round, the threads share each product instead.
    let (parts, parallelism) = if blocks.len() < threads {
        (1, Parallelism::Rayon(0))
    } else {
        (threads, Parallelism::None)
    };
    sum_of_parts(parts, weight_gradient, |part, sums| {
        let blocks = &blocks[share(blocks.len(), part, parts)];
        add(blocks, 0..geometry.output_channels, parallelism, sums);
    });
}

/// The rows of the weight gradient of some output channels, summed over some blocks.
#[expect(
    clippy::too_many_arguments,
    reason = "the operands of a gradient, which part of it, and where it runs"
)]
fn add_rows<T: Element>(
    geometry: &ConvGeometry,
    plan: &Columns,
    blocks: &[Block],
    channels: Range<usize>,
    parallelism: Parallelism,
    input: &[T],
    output_gradient: &[T],
    rows: &mut [T],
) {
    let outputs = geometry.group_outputs();
    let depth = geometry.group_inputs() * plan.taps;
    rows.fill(T::ZERO);
    with_scratch(plan.len() + outputs * plan.largest_pixels(), |scratch| {
        let (columns, gathered) = scratch.split_at_mut(plan.len());
        for block in blocks {
            let pixels = plan.pixels(block);
            for group in channels.start / outputs..channels.end.div_ceil(outputs) {
                let first = channels.start.max(group * outputs);
                let last = channels.end.min((group + 1) * outputs);
                let rows = &mut rows[(first - channels.start) * depth..];
                let output_gradient = gather(
                    geometry,
                    plan,
                    first..last,
                    block,
                    output_gradient,
                    gathered,
                );
                for run in plan.channel_runs() {
                    let length = run.len() * plan.taps;
                    let columns = &mut columns[..length * pixels];
                    make_columns(
                        geometry,
                        plan,
                        group,
                        block,
                        run.start,
                        input,
                        columns,
                        parallelism,
                    );
                    multiply(
                        output_gradient,
                        Matrix::new(columns, length, pixels, pixels).transposed(),
                        MatrixMut {
                            data: &mut rows[run.start * plan.taps..],
                            row_stride: depth,
                        },
                        Store::Add,
                        parallelism,
                    );
                }
            }
        }
    });
}

/// The output gradient of some channels in a block as `[channels, pixels]`: in place for one image, else gathered.
fn gather<'a, T: Element>(
    geometry: &ConvGeometry,
    plan: &Columns,
    channels: Range<usize>,
    block: &Block,
    output_gradient: &'a [T],
    gathered: &'a mut [T],
) -> Matrix<'a, T> {
    let count = channels.len();
    let (pixels, image_pixels) = (plan.pixels(block), plan.image_pixels(block));
    let start = |image: usize, channel: usize| {
        (image * geometry.output_channels + channels.start + channel) * plan.output_pixels
            + plan.first_pixel(block)
    };
    if block.images.len() == 1 {
        return Matrix::new(
            &output_gradient[start(block.images.start, 0)..],
            count,
            pixels,
            plan.output_pixels,
        );
    }
    let gathered = &mut gathered[..count * pixels];
    let rows = Rows {
        count: block.images.len(),
        width: image_pixels,
    };
    let image_stride = geometry.output_channels * plan.output_pixels;
    for (channel, line) in gathered.chunks_exact_mut(pixels).enumerate() {
        let source = &output_gradient[start(block.images.start, channel)..];
        rows.copy(source, image_stride, line, image_pixels);
    }
    Matrix::new(gathered, count, pixels, pixels)
}

/// Writes the columns of a block for consecutive input channels of a group, the first of them `channel`:
/// `columns[channel, tap, pixel]`.
#[expect(
    clippy::too_many_arguments,
    reason = "which columns, from where, to where"
)]
fn make_columns<T: Element>(
    geometry: &ConvGeometry,
    plan: &Columns,
    group: usize,
    block: &Block,
    channel: usize,
    input: &[T],
    columns: &mut [T],
    parallelism: Parallelism,
) {
    let (pixels, image_pixels, input_pixels) = (
        plan.pixels(block),
        plan.image_pixels(block),
        geometry.input_pixels(),
    );
    let first = group * geometry.group_inputs() + channel;
    let plain = is_plain(geometry) && image_pixels == input_pixels;
    let copy = |(index, columns): (usize, &mut [T])| {
        if plain {
            let source =
                (block.images.start * geometry.input_channels + first + index) * input_pixels;
            let rows = Rows {
                count: block.images.len(),
                width: input_pixels,
            };
            let image_stride = geometry.input_channels * input_pixels;
            rows.copy(&input[source..], image_stride, columns, input_pixels);
            return;
        }
        for (position, image) in block.images.clone().enumerate() {
            let plane = &input[(image * geometry.input_channels + first + index) * input_pixels..]
                [..input_pixels];
            plan.copy_from(plane, &block.rows, columns, pixels, position * image_pixels);
        }
    };
    if let Parallelism::None = parallelism {
        columns
            .chunks_exact_mut(plan.taps * pixels)
            .enumerate()
            .for_each(copy);
    } else {
        columns
            .par_chunks_exact_mut(plan.taps * pixels)
            .enumerate()
            .for_each(copy);
    }
}

/// Images that one job takes: as many jobs as each thread should have, or fewer if their products would be too narrow,
/// but as many for each thread.
fn images_of_a_job(geometry: &ConvGeometry, threads: usize) -> usize {
    let batch = geometry.batch;
    let wide = JOB_COLUMNS.div_ceil(geometry.output_pixels());
    let jobs = (batch / wide).next_multiple_of(threads);
    batch.div_ceil(jobs.clamp(threads, threads * JOBS_PER_THREAD))
}

/// A map `[batch, groups, len]`, whose parts, zero at first, `work(group, parallelism, part)` computes.
///
/// Enough images: each job takes a run of them, with all groups. Else each job takes one group of one image; if these
/// are too few as well, they run one by one and the threads share the work inside.
fn each_part<T: Element>(
    geometry: &ConvGeometry,
    len: usize,
    work: impl Fn(usize, Parallelism, Part<'_, T>) + Sync,
) -> Vec<T> {
    let threads = product_threads(geometry);
    let (batch, groups) = (geometry.batch, geometry.groups);
    if batch >= threads {
        let images = images_of_a_job(geometry, threads);
        let image_stride = groups * len;
        let job = |job: usize, data: &mut [T]| {
            for group in 0..groups {
                let part = Part {
                    first_image: job * images,
                    images: data.len() / image_stride,
                    image_stride,
                    data: &mut data[group * len..],
                };
                work(group, Parallelism::None, part);
            }
        };
        let (len, job_len) = (batch * image_stride, images * image_stride);
        return if threads == 1 {
            in_turn(len, job_len, job)
        } else {
            in_parallel(len, job_len, job)
        };
    }
    let one = |unit: usize, parallelism: Parallelism, data: &mut [T]| {
        let part = Part {
            first_image: unit / groups,
            images: 1,
            image_stride: len,
            data,
        };
        work(unit % groups, parallelism, part);
    };
    if batch * groups >= threads {
        in_parallel(batch * groups * len, len, |unit, data| {
            one(unit, Parallelism::None, data)
        })
    } else {
        in_turn(batch * groups * len, len, |unit, data| {
            one(unit, Parallelism::Rayon(0), data)
        })
    }
}

/// The most elements of scratch that one of the three passes takes.
pub(super) fn working_elements<T: Element>(geometry: &ConvGeometry) -> usize {
    let plan = Columns::new::<T>(geometry);
    plan.len() + geometry.group_outputs() * plan.largest_pixels()
}
