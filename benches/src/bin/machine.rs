//! Measures what bounds every other figure: products and memory of this machine.

use burn_frugal::kernels::{ConvGeometry, conv2d};
use burn_frugal_benches::arguments::Common;
use burn_frugal_benches::record::{Record, Report};
use burn_frugal_benches::timing::{medians, timed};
use clap::Parser;
use std::hint::black_box;

/// Bytes that the threads read or write together: far more than any cache has.
const BYTES: usize = 512 << 20;

/// Measures matrix products (four of 512 x 512 x 2400, f32, into new memory) and streaming reads and writes on all threads.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    common: Common,
}

fn main() {
    let args = Args::parse();
    args.common.prepare();
    let named = std::env::var("RAYON_NUM_THREADS").ok();
    let named = named.and_then(|number| number.parse().ok());
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = named.filter(|&number| number > 0).unwrap_or_else(all);
    let reps = args.common.reps;
    let mut report = Report::new(args.common.table);
    report.add(
        Record::new()
            .with("cpu", cpu())
            .with("threads", threads)
            .with("product_gflops", products(reps))
            .with(
                "read_gbs",
                each_thread(threads, reps, |memory| {
                    black_box(sum(memory));
                }),
            )
            .with(
                "write_gbs",
                each_thread(threads, reps, |memory| memory.fill(1.0)),
            ),
    );
    report.finish();
}

/// The processor's name, where the system tells it.
fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split(':').nth(1));
    name.unwrap_or("unknown").trim().to_string()
}

/// A 1x1 convolution is a plain product.
fn products(reps: u32) -> f64 {
    let geometry = ConvGeometry {
        batch: 4,
        input_channels: 512,
        output_channels: 512,
        input: [40, 60],
        kernel: [1, 1],
        stride: [1, 1],
        padding: [(0, 0), (0, 0)],
        dilation: [1, 1],
        groups: 1,
    };
    let input = vec![0.5_f32; geometry.input_len()];
    let weight = vec![0.5_f32; geometry.weight_len()];
    let [milliseconds] = medians(reps, || {
        [timed(|| drop(conv2d(&geometry, &input, &weight, None))).1]
    });
    2e-6 * geometry.macs() as f64 / milliseconds
}

/// Gigabytes a second of `work` on memory of its own for every thread.
fn each_thread(threads: usize, reps: u32, work: impl Fn(&mut [f32]) + Sync) -> f64 {
    let share = BYTES / threads;
    let mut memories = vec![vec![0.5_f32; share / size_of::<f32>()]; threads];
    let [milliseconds] = medians(reps, || {
        let run = || {
            std::thread::scope(|scope| {
                for memory in &mut memories {
                    scope.spawn(|| work(memory));
                }
            });
        };
        [timed(run).1]
    });
    1e-6 * (threads * share) as f64 / milliseconds
}

fn sum(memory: &[f32]) -> f32 {
    let mut lanes = [0.0; 64];
    for block in memory.as_chunks::<64>().0 {
        for (lane, &value) in lanes.iter_mut().zip(block) {
            *lane += value;
        }
    }
    lanes.iter().sum()
}
