//! Medians of wall-clock times.

use std::time::Instant;

/// Wall-clock milliseconds of one call. What the call returns is dropped within the time.
pub fn milliseconds<R>(run: impl FnOnce() -> R) -> f64 {
    let start = Instant::now();
    drop(run());
    start.elapsed().as_secs_f64() * 1e3
}

/// Median over `reps` calls, after one that is not counted, of the milliseconds that `measure`
/// returns.
pub fn median(reps: u32, mut measure: impl FnMut() -> f64) -> f64 {
    measure();
    let mut times: Vec<f64> = (0..reps).map(|_| measure()).collect();
    times.sort_by(f64::total_cmp);
    let middle = times.len() / 2;
    if times.len() % 2 == 1 {
        times[middle]
    } else {
        (times[middle - 1] + times[middle]) / 2.0
    }
}

/// Median milliseconds of `run`, see [`milliseconds`] and [`median`].
pub fn median_of<R>(reps: u32, mut run: impl FnMut() -> R) -> f64 {
    median(reps, || milliseconds(&mut run))
}
