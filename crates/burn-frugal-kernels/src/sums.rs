use rayon::prelude::*;

use crate::Element;
use crate::invariant::expect_len;
use crate::parts::PARALLEL_ELEMENTS;

/// Independent partial sums: enough for the compiler to fill vector registers.
pub(crate) const LANES: usize = 16;

/// Sums a map over batch and pixels: the gradient of a convolution's bias.
///
/// `sums[c] = sum over n, p of map[n, c, p]`, with `map` of shape `[batch, channels, pixels]` and `sums` of shape
/// `[channels]`.
///
/// # Panics
///
/// If a slice does not have the length of its shape.
pub fn channel_sums<T: Element>(batch: usize, channels: usize, pixels: usize, map: &[T]) -> Vec<T> {
    expect_len("channel_sums", "map", batch * channels * pixels, map.len());
    let work_per_channel = (batch * pixels).max(1);
    let mut sums = vec![T::ZERO; channels];
    sums.par_iter_mut()
        .with_min_len(PARALLEL_ELEMENTS.div_ceil(work_per_channel))
        .enumerate()
        .for_each(|(channel, total)| {
            for image in 0..batch {
                *total += sum(&map[(image * channels + channel) * pixels..][..pixels]);
            }
        });
    sums
}

/// Sum of a slice.
pub(crate) fn sum<T: Element>(values: &[T]) -> T {
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [T::ZERO; LANES];
    for block in blocks {
        for (lane, &value) in lanes.iter_mut().zip(block) {
            *lane += value;
        }
    }
    let mut total = T::ZERO;
    if !blocks.is_empty() {
        total = fold(&mut lanes);
    }
    for &value in rest {
        total += value;
    }
    total
}

/// Sum of a power-of-two number of lanes, by halves.
pub(crate) fn fold<T: Element>(lanes: &mut [T]) -> T {
    debug_assert!(lanes.len().is_power_of_two());
    let mut half = lanes.len() / 2;
    while half > 0 {
        for lane in 0..half {
            let other = lanes[lane + half];
            lanes[lane] += other;
        }
        half /= 2;
    }
    lanes[0]
}
