//! Maxima of the windows of whole maps, for a few neighbouring outputs at a time.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::PoolGeometry;
use super::blocks::{block, block_mut};
use super::phases::Phases;
use crate::Element;
use crate::geometry::Reach;
use crate::scratch::with_scratch;

/// What the windows of a geometry read.
pub(super) struct Windows {
    geometry: PoolGeometry,
    phases: Phases,
    /// What each row of taps reads.
    rows: Vec<Reach>,
    /// What each column of taps reads.
    columns: Vec<Reach>,
    /// Position in a row, dealt out, that each column of taps reads for column 0 of outputs. May wrap around below 0.
    positions: Vec<usize>,
    /// Columns of outputs whose windows hold no padding at the left and right.
    inside: Range<usize>,
}

impl Windows {
    /// The geometry must be valid.
    pub(super) fn new(geometry: &PoolGeometry) -> Self {
        let columns = geometry.reach(1);
        let (mut start, mut stop) = (0, geometry.output[1]);
        for reach in &columns {
            start = start.max(reach.outputs.start);
            stop = stop.min(reach.outputs.end);
        }
        let phases = Phases::new(geometry);
        let positions = columns.iter().map(|reach| {
            phases
                .position(reach.first)
                .wrapping_sub(reach.outputs.start)
        });
        Self {
            geometry: *geometry,
            phases,
            positions: positions.collect(),
            rows: geometry.reach(0),
            columns,
            inside: start.min(stop)..stop,
        }
    }

    /// The maxima of some maps, and their taps if there is room for them.
    pub(super) fn pool<T: Element>(
        &self,
        arch: Arch,
        input: &[T],
        maxima: &mut [T],
        taps: Option<&mut [u8]>,
    ) {
        let scratch_len = if self.phases.is_single() {
            0
        } else {
            self.geometry.input[0] * self.phases.row_len()
        };
        with_scratch(scratch_len, |scratch| {
            arch.dispatch(PoolMaps {
                windows: self,
                input,
                scratch,
                maxima,
                taps,
            });
        });
    }
}

/// The passes of [`Windows::pool`].
struct PoolMaps<'a, T> {
    windows: &'a Windows,
    input: &'a [T],
    /// Room for the phases of a map, if it has to be dealt out.
    scratch: &'a mut [T],
    maxima: &'a mut [T],
    taps: Option<&'a mut [u8]>,
}

impl<T: Element> WithSimd for PoolMaps<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        let windows = self.windows;
        let pixels = windows.geometry.input_pixels();
        let [height, width] = windows.geometry.output;
        for (index, maxima) in self.maxima.chunks_exact_mut(height * width).enumerate() {
            let mut map = &self.input[index * pixels..][..pixels];
            if !windows.phases.is_single() {
                windows.phases.deal(map, self.scratch);
                map = self.scratch;
            }
            for (row, maxima) in maxima.chunks_exact_mut(width).enumerate() {
                let strip = Strip {
                    windows,
                    map,
                    row,
                    taps: taps_inside(&windows.rows, row),
                };
                // Apart, so that what only taps need is compiled out of the other.
                match &mut self.taps {
                    Some(taps) => {
                        let taps = &mut taps[(index * height + row) * width..][..width];
                        strip.pool(maxima, Some(taps));
                    }
                    None => strip.pool(maxima, None),
                }
            }
        }
    }
}

/// The windows of a row of outputs.
struct Strip<'a, T> {
    windows: &'a Windows,
    /// Dealt out to its phases.
    map: &'a [T],
    row: usize,
    /// Rows of taps that are not padding.
    taps: Range<usize>,
}

impl<T: Element> Strip<'_, T> {
    #[inline(always)]
    fn pool(&self, maxima: &mut [T], mut taps: Option<&mut [u8]>) {
        let inside = self.windows.inside.clone();
        for column in (0..inside.start).chain(inside.end..maxima.len()) {
            let columns = taps_inside(&self.windows.columns, column);
            self.pool_block::<1>(columns, column, maxima, &mut taps);
        }
        match inside.len() {
            0..4 => self.pool_inside::<1>(maxima, &mut taps),
            4..8 => self.pool_inside::<4>(maxima, &mut taps),
            8..16 => self.pool_inside::<8>(maxima, &mut taps),
            _ => self.pool_inside::<16>(maxima, &mut taps),
        }
    }

    #[inline(always)]
    fn pool_inside<const LANES: usize>(&self, maxima: &mut [T], taps: &mut Option<&mut [u8]>) {
        let inside = self.windows.inside.clone();
        let columns = 0..self.windows.columns.len();
        for start in inside.clone().step_by(LANES) {
            // The last block is whole, and computes some maxima again.
            let start = start.min(inside.end - LANES);
            self.pool_block::<LANES>(columns.clone(), start, maxima, taps);
        }
    }

    /// The maxima of the outputs from `start` on, over some columns of taps that are not padding for any of them.
    #[inline(always)]
    fn pool_block<const LANES: usize>(
        &self,
        columns: Range<usize>,
        start: usize,
        maxima: &mut [T],
        taps: &mut Option<&mut [u8]>,
    ) {
        let Windows {
            geometry,
            phases,
            positions,
            ..
        } = self.windows;
        let kernel_width = geometry.kernel[1];
        // A window of nothing but negative infinity gets its first tap.
        let mut most = [T::from_f64(f64::NEG_INFINITY); LANES];
        // As wide as what is compared, or the compiler would not use vector registers.
        let mut most_taps = [(self.taps.start * kernel_width + columns.start) as u32; LANES];
        for tap_row in self.taps.clone() {
            let y = read(&self.windows.rows[tap_row], geometry.stride[0], self.row);
            let line = &self.map[y * phases.row_len()..][..phases.row_len()];
            for tap_column in columns.clone() {
                let position = positions[tap_column].wrapping_add(start);
                let values: [T; LANES] = *block(&line[position..]);
                let tap = (tap_row * kernel_width + tap_column) as u32;
                for lane in 0..LANES {
                    let (value, before) = (values[lane], most[lane]);
                    // A larger value wins, and the first NaN.
                    let wins = (value > before) | (value.is_nan() & !before.is_nan());
                    most[lane] = if wins { value } else { before };
                    most_taps[lane] = if wins { tap } else { most_taps[lane] };
                }
            }
        }
        *block_mut(&mut maxima[start..]) = most;
        if let Some(taps) = taps {
            *block_mut(&mut taps[start..]) = most_taps.map(|tap| tap as u8);
        }
    }
}

/// The taps along one axis that are not padding in the window of an output.
fn taps_inside(reaches: &[Reach], output: usize) -> Range<usize> {
    let is_inside = |reach: &Reach| reach.outputs.contains(&output);
    let first = reaches.iter().position(is_inside).unwrap_or(0);
    let last = reaches.iter().rposition(is_inside);
    first..last.map_or(0, |last| last + 1)
}

/// The position that a tap reads for an output in its reach.
#[inline(always)]
fn read(reach: &Reach, stride: usize, output: usize) -> usize {
    reach.first + stride * (output - reach.outputs.start)
}
