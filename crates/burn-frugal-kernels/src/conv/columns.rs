//! Columns: the input pixels that each output pixel reads, copied next to each other so that a convolution becomes a
//! matrix product. Only a block of outputs and input channels is copied at a time.

use std::ops::Range;

use crate::geometry::Reach;
use crate::{ConvGeometry, Element};

/// Bytes of columns to aim for: they should stay in a core's cache between being written and being multiplied.
const COLUMN_BYTES: usize = 512 << 10;

/// Pixels below which a block makes for an inefficient product; fewer channels are copied at a time instead.
const BLOCK_PIXELS: usize = 256;

/// How a convolution is cut into blocks, and what each tap reads.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) taps: usize,
    pub(super) output_pixels: usize,
    input: [usize; 2],
    output: [usize; 2],
    stride: [usize; 2],
    reach: [Vec<Reach>; 2],
    group_inputs: usize,
    /// Input channels of a group whose columns are made at a time.
    channels: usize,
    rows: usize,
    images: usize,
}

/// Outputs whose columns are made together: whole images, or rows of one image.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) images: Range<usize>,
    pub(super) rows: Range<usize>,
}

impl Columns {
    /// Both gradients and the forward pass use the same blocks. The output must not be empty.
    pub(super) fn new<T: Element>(geometry: &ConvGeometry) -> Self {
        let output = geometry.output();
        let output_pixels = geometry.output_pixels();
        let group_inputs = geometry.group_inputs();
        let taps = geometry.taps();
        let elements = COLUMN_BYTES / size_of::<T>();
        let pixels = (elements / (taps * group_inputs).max(1)).max(BLOCK_PIXELS);
        let rows = (pixels / output[1]).clamp(1, output[0]);
        let images = (pixels / output_pixels).max(1);
        let block = (rows * output[1] * images).max(1);
        Self {
            taps,
            output_pixels,
            input: geometry.input,
            output,
            stride: geometry.stride,
            reach: [geometry.reach(0), geometry.reach(1)],
            group_inputs,
            channels: (elements / (taps * block)).clamp(1, group_inputs.max(1)),
            rows,
            images: images.min(geometry.batch.max(1)),
        }
    }

    /// Cuts the outputs of some images into blocks.
    pub(super) fn blocks(&self, images: Range<usize>) -> impl Iterator<Item = Block> + '_ {
        let (stop, height) = (images.end, self.output[0]);
        images.step_by(self.images).flat_map(move |image| {
            (0..height).step_by(self.rows).map(move |row| Block {
                images: image..(image + self.images).min(stop),
                rows: row..(row + self.rows).min(height),
            })
        })
    }

    /// Cuts the input channels of a group into the runs whose columns are made together.
    pub(super) fn channel_runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.group_inputs)
            .step_by(self.channels)
            .map(|start| start..(start + self.channels).min(self.group_inputs))
    }

    /// Output pixels of a block, over its images.
    pub(super) fn pixels(&self, block: &Block) -> usize {
        block.images.len() * self.image_pixels(block)
    }

    /// Output pixels of a block in each of its images.
    pub(super) fn image_pixels(&self, block: &Block) -> usize {
        block.rows.len() * self.output[1]
    }

    /// First output pixel of a block in its first image.
    pub(super) fn first_pixel(&self, block: &Block) -> usize {
        block.rows.start * self.output[1]
    }

    /// Elements of the largest block of columns.
    pub(super) fn len(&self) -> usize {
        self.channels * self.taps * self.largest_pixels()
    }

    /// Output pixels of the largest block.
    pub(super) fn largest_pixels(&self) -> usize {
        self.rows * self.output[1] * self.images
    }

    /// Writes the columns of one input channel of one image: `columns[tap][column + pixel]`, `pitch` elements from tap
    /// to tap.
    pub(super) fn copy_from<T: Element>(
        &self,
        plane: &[T],
        rows: &Range<usize>,
        columns: &mut [T],
        pitch: usize,
        column: usize,
    ) {
        let width = self.output[1];
        for (tap, line) in columns.chunks_mut(pitch).enumerate() {
            let (vertical, horizontal) = self.tap(tap, rows);
            let line = &mut line[column..][..rows.len() * width];
            let (before, rest) =
                line.split_at_mut(vertical.outputs.start.saturating_sub(rows.start) * width);
            let (inside, after) = rest.split_at_mut(vertical.outputs.len() * width);
            before.fill(T::ZERO);
            after.fill(T::ZERO);
            for (row, target) in inside.chunks_exact_mut(width).enumerate() {
                let source = &plane[(vertical.first + row * self.stride[0]) * self.input[1]..]
                    [..self.input[1]];
                let Range { start, end } = horizontal.outputs;
                target[..start].fill(T::ZERO);
                target[end..].fill(T::ZERO);
                if start < end {
                    copy_strided(
                        &source[horizontal.first..],
                        self.stride[1],
                        &mut target[start..end],
                    );
                }
            }
        }
    }

    /// Adds the gradient of one channel's columns to the gradient of its plane: the transpose of
    /// [`copy_from`](Self::copy_from).
    pub(super) fn add_to<T: Element>(
        &self,
        plane: &mut [T],
        rows: &Range<usize>,
        columns: &[T],
        pitch: usize,
        column: usize,
    ) {
        let width = self.output[1];
        for (tap, line) in columns.chunks(pitch).enumerate() {
            let (vertical, horizontal) = self.tap(tap, rows);
            let Range { start, end } = horizontal.outputs;
            if start == end {
                continue;
            }
            for (index, row) in vertical.outputs.clone().enumerate() {
                let source = &line[column + (row - rows.start) * width..][start..end];
                let position =
                    (vertical.first + index * self.stride[0]) * self.input[1] + horizontal.first;
                add_strided(source, self.stride[1], &mut plane[position..]);
            }
        }
    }

    fn tap(&self, tap: usize, rows: &Range<usize>) -> (Reach, &Reach) {
        let kernel_width = self.reach[1].len();
        (
            self.reach[0][tap / kernel_width].within(rows, self.stride[0]),
            &self.reach[1][tap % kernel_width],
        )
    }
}

/// `target[i] = source[stride * i]`.
pub(super) fn copy_strided<T: Element>(source: &[T], stride: usize, target: &mut [T]) {
    match stride {
        1 => target.copy_from_slice(&source[..target.len()]),
        2 => {
            // Pairs, so that the compiler can shuffle whole registers.
            let (pairs, rest) = source.as_chunks::<2>();
            let (inside, last) = target.split_at_mut(pairs.len().min(target.len()));
            for (target, pair) in inside.iter_mut().zip(pairs) {
                *target = pair[0];
            }
            if let Some(last) = last.first_mut() {
                *last = rest[0];
            }
        }
        _ => {
            for (target, &value) in target.iter_mut().zip(source.iter().step_by(stride)) {
                *target = value;
            }
        }
    }
}

/// `target[stride * i] += source[i]`.
pub(super) fn add_strided<T: Element>(source: &[T], stride: usize, target: &mut [T]) {
    if stride == 1 {
        for (target, &value) in target[..source.len()].iter_mut().zip(source) {
            *target += value;
        }
    } else {
        for (target, &value) in target.iter_mut().step_by(stride).zip(source) {
            *target += value;
        }
    }
}
