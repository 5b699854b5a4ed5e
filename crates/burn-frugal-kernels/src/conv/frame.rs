//! Planes padded and split by the stride, so that every tap of a kernel reads them at a fixed offset.

use std::ops::Range;

use super::columns::{add_strided, copy_strided};
use crate::rows::Rows;
use crate::{ConvGeometry, Element};

/// Positions handled together: fills a few vector registers.
pub(super) const LANES: usize = 32;

/// Bytes of a frame to aim for: taller maps are cut into blocks of rows.
const FRAME_BYTES: usize = 128 << 10;

/// How the planes of a convolution lie in their frames.
///
/// The frame of an input plane holds one sub-plane for each remainder of rows and columns by the stride, padding
/// included, each with rows of `pitch` elements. The frame of an output plane has the same pitch.
#[derive(Debug)]
pub(super) struct Frame {
    /// Rows of the output, handled in blocks.
    pub(super) blocks: Vec<Block>,
    /// Elements of a sub-plane.
    pub(super) sub_plane: usize,
    /// For each tap, where output pixel 0 reads; output position `i` reads `i` elements further.
    pub(super) offsets: Vec<usize>,
    axes: [Axis; 2],
    output_width: usize,
    /// Output rows of the largest block.
    rows: usize,
    pitch: usize,
    /// For each remainder of the columns, those inside the input.
    columns: Vec<Inside>,
}

/// Output rows handled together.
#[derive(Debug)]
pub(super) struct Block {
    rows: Range<usize>,
    /// For each remainder of the rows, those of the frame inside the input.
    inside: Vec<Inside>,
}

/// The positions of a sub-plane along one axis that fall inside the input, and where the first of them falls.
#[derive(Clone, Debug)]
struct Inside {
    frame: Range<usize>,
    input: usize,
}

/// The frame along one axis.
#[derive(Debug)]
struct Axis {
    input: usize,
    stride: usize,
    before: usize,
    /// The distinct remainders of the taps' shifts by the stride: the only input positions ever read.
    remainders: Vec<usize>,
    /// For each tap, which remainder it reads and how many strides further.
    taps: Vec<(usize, usize)>,
    /// The largest number of strides.
    halo: usize,
}

impl Axis {
    fn new(geometry: &ConvGeometry, axis: usize) -> Self {
        let stride = geometry.stride[axis];
        let shifts = (0..geometry.kernel[axis]).map(|tap| geometry.dilation[axis] * tap);
        let mut remainders: Vec<usize> = shifts.clone().map(|shift| shift % stride).collect();
        remainders.sort_unstable();
        remainders.dedup();
        let taps: Vec<_> = shifts
            .map(|shift| {
                (
                    remainders.partition_point(|&r| r < shift % stride),
                    shift / stride,
                )
            })
            .collect();
        Self {
            input: geometry.input[axis],
            stride,
            before: geometry.padding[axis].0,
            remainders,
            halo: taps.last().map_or(0, |&(_, strides)| strides),
            taps,
        }
    }

    /// For each remainder, what of the input lies in `0..len` when the frame starts `start` strides into the padded
    /// input.
    fn inside(&self, start: usize, len: usize) -> Vec<Inside> {
        let inside = |&remainder: &usize| {
            let shift = self.stride * start + remainder;
            let first = self.before.saturating_sub(shift).div_ceil(self.stride);
            let rest = (self.input + self.before).saturating_sub(shift);
            let stop = rest.div_ceil(self.stride).min(len);
            if first < stop {
                Inside {
                    frame: first..stop,
                    input: self.stride * first + shift - self.before,
                }
            } else {
                Inside {
                    frame: 0..0,
                    input: 0,
                }
            }
        };
        self.remainders.iter().map(inside).collect()
    }
}

impl Frame {
    /// The output must not be empty.
    pub(super) fn new<T: Element>(geometry: &ConvGeometry) -> Self {
        let axes = [Axis::new(geometry, 0), Axis::new(geometry, 1)];
        let [output_height, output_width] = geometry.output();
        let [vertical, horizontal] = &axes;
        let pitch = output_width + horizontal.halo;
        let sub_planes = vertical.remainders.len() * horizontal.remainders.len();
        let fitting = FRAME_BYTES / (sub_planes * pitch * size_of::<T>());
        let rows = fitting
            .saturating_sub(vertical.halo)
            .clamp(1, output_height);
        let height = rows + vertical.halo;
        let sub_plane = height * pitch;
        let mut offsets = Vec::with_capacity(geometry.taps());
        for &(row, down) in &vertical.taps {
            for &(column, right) in &horizontal.taps {
                offsets.push(
                    (row * horizontal.remainders.len() + column) * sub_plane + down * pitch + right,
                );
            }
        }
        let blocks: Vec<Block> = (0..output_height)
            .step_by(rows)
            .map(|row| Block {
                rows: row..(row + rows).min(output_height),
                inside: vertical.inside(row, height),
            })
            .collect();
        let columns = horizontal.inside(0, pitch);
        Self {
            blocks,
            sub_plane,
            offsets,
            axes,
            output_width,
            rows,
            pitch,
            columns,
        }
    }

    pub(super) fn sub_planes(&self) -> usize {
        self.axes[0].remainders.len() * self.axes[1].remainders.len()
    }

    /// The largest offset of a tap within its sub-plane.
    pub(super) fn largest_offset(&self) -> usize {
        self.axes[0].halo * self.pitch + self.axes[1].halo
    }

    /// Elements of a framed input plane, with room to read a block of lanes past its end.
    pub(super) fn input_len(&self) -> usize {
        self.sub_plane * self.sub_planes() + LANES
    }

    /// Elements of a framed block of output rows, a whole number of lanes.
    pub(super) fn output_len(&self) -> usize {
        (self.rows * self.pitch).next_multiple_of(LANES)
    }

    /// Positions from the first to the last output of a block, as a whole number of lanes.
    pub(super) fn run(&self, block: &Block) -> usize {
        (block.rows.len() * self.pitch - self.axes[1].halo).next_multiple_of(LANES)
    }

    /// Copies what a block reads from an input plane into a frame, which must be zero wherever no block has been
    /// loaded.
    pub(super) fn load<T: Element>(&self, plane: &[T], block: &Block, frame: &mut [T]) {
        let [vertical, horizontal] = &self.axes;
        for (start, rows, columns) in self.each_sub_plane(block) {
            let frame = &mut frame[start..start + self.sub_plane];
            if self.blocks.len() > 1 {
                frame[..rows.frame.start * self.pitch].fill(T::ZERO);
                frame[rows.frame.end * self.pitch..].fill(T::ZERO);
            }
            if columns.frame.is_empty() || rows.frame.is_empty() {
                continue;
            }
            let frame = &mut frame
                [rows.frame.start * self.pitch + columns.frame.start..rows.frame.end * self.pitch];
            let plane = &plane[rows.input * horizontal.input + columns.input..];
            let (pitch, width) = (vertical.stride * horizontal.input, columns.frame.len());
            if horizontal.stride == 1 {
                Rows {
                    count: rows.frame.len(),
                    width,
                }
                .copy(plane, pitch, frame, self.pitch);
            } else {
                let reach = (width - 1) * horizontal.stride + 1;
                for (target, source) in frame.chunks_mut(self.pitch).zip(plane.chunks(pitch)) {
                    copy_strided(&source[..reach], horizontal.stride, &mut target[..width]);
                }
            }
        }
    }

    /// Writes a block's frame to the input plane it frames: the transpose of [`load`](Self::load). Unless the frame
    /// covers the input, the plane must be zero before the first block.
    pub(super) fn store<T: Element>(&self, frame: &[T], block: &Block, plane: &mut [T]) {
        let [vertical, horizontal] = &self.axes;
        for (start, rows, columns) in self.each_sub_plane(block) {
            if columns.frame.is_empty() || rows.frame.is_empty() {
                continue;
            }
            let frame = &frame[start..start + self.sub_plane];
            let frame = &frame
                [rows.frame.start * self.pitch + columns.frame.start..rows.frame.end * self.pitch];
            let plane = &mut plane[rows.input * horizontal.input + columns.input..];
            let (pitch, width) = (vertical.stride * horizontal.input, columns.frame.len());
            if self.blocks.len() > 1 {
                // Blocks overlap where taps of several output rows read the same input row.
                for (target, source) in plane.chunks_mut(pitch).zip(frame.chunks(self.pitch)) {
                    add_strided(&source[..width], horizontal.stride, target);
                }
            } else if horizontal.stride == 1 {
                Rows {
                    count: rows.frame.len(),
                    width,
                }
                .copy(frame, self.pitch, plane, pitch);
            } else {
                for (target, source) in plane.chunks_mut(pitch).zip(frame.chunks(self.pitch)) {
                    for (target, &value) in target
                        .iter_mut()
                        .step_by(horizontal.stride)
                        .zip(&source[..width])
                    {
                        *target = value;
                    }
                }
            }
        }
    }

    /// Copies a block's rows of an output plane to the frame's pitch. What lies between rows stays as it is, what
    /// follows the last is zero if it was or was written by another block.
    pub(super) fn load_output<T: Element>(&self, plane: &[T], block: &Block, target: &mut [T]) {
        let (width, rows) = (self.output_width, &block.rows);
        let (used, rest) = target.split_at_mut(rows.len() * self.pitch);
        Rows {
            count: rows.len(),
            width,
        }
        .copy(
            &plane[rows.start * width..rows.end * width],
            width,
            used,
            self.pitch,
        );
        if self.blocks.len() > 1 {
            rest.fill(T::ZERO);
        }
    }

    /// Copies a block's rows from the frame's pitch to an output plane.
    pub(super) fn store_output<T: Element>(&self, source: &[T], block: &Block, plane: &mut [T]) {
        let (width, rows) = (self.output_width, &block.rows);
        let target = &mut plane[rows.start * width..rows.end * width];
        Rows {
            count: rows.len(),
            width,
        }
        .copy(source, self.pitch, target, width);
    }

    /// Where each sub-plane starts in the frame, and which of its rows and columns lie inside the input.
    fn each_sub_plane<'a>(
        &'a self,
        block: &'a Block,
    ) -> impl Iterator<Item = (usize, &'a Inside, &'a Inside)> {
        let pairs = block
            .inside
            .iter()
            .flat_map(|rows| self.columns.iter().map(move |columns| (rows, columns)));
        pairs
            .enumerate()
            .map(|(index, (rows, columns))| (index * self.sub_plane, rows, columns))
    }
}

/// The lanes of a frame from `start` on.
#[inline(always)]
pub(super) fn lanes_at<T>(source: &[T], start: usize) -> &[T; LANES] {
    source[start..]
        .first_chunk()
        .expect("frames have room for a block past their end")
}
