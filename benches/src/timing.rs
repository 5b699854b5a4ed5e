//! Medians of wall-clock times.

use std::time::{Duration, Instant};

/// Median milliseconds of each part of something that is done once to warm up and then `reps` times.
/// `run` returns the time of each part, measured with [`timed`]; what it does besides is not counted.
pub fn medians<const N: usize>(reps: u32, mut run: impl FnMut() -> [Duration; N]) -> [f64; N] {
    run();
    let mut times = [const { Vec::new() }; N];
    for _ in 0..reps {
        for (times, time) in times.iter_mut().zip(run()) {
            times.push(time.as_secs_f64() * 1e3);
        }
    }
    times.map(median)
}

/// What `run` returns, and how long it takes. The time does not include dropping the result.
pub fn timed<R>(run: impl FnOnce() -> R) -> (R, Duration) {
    let start = Instant::now();
    let result = run();
    (result, start.elapsed())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}
