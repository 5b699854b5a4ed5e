//! The working memory that a convolution is said to need is what it takes.

mod common;

use burn_frugal_kernels::{
    ConvGeometry, Element, conv2d, conv2d_input_gradient, conv2d_weight_gradient,
    conv2d_working_memory, working_memory,
};
use common::numbers;
use std::thread;

fn geometries() -> Vec<ConvGeometry> {
    let mut geometries = Vec::new();
    for batch in [1, 4, 32] {
        for (channels, side, kernel, stride, groups) in [
            ([3, 16], 64, 3, 2, 1),
            ([48, 96], 3, 1, 1, 1),
            ([48, 96], 5, 1, 1, 1),
            ([16, 64], 16, 1, 1, 1),
            ([16, 32], 14, 3, 1, 1),
            ([8, 24], 9, 5, 2, 2),
            ([40, 40], 16, 5, 1, 40),
            ([40, 40], 33, 7, 2, 40),
            ([24, 48], 8, 3, 1, 24),
        ] {
            geometries.push(ConvGeometry {
                batch,
                input_channels: channels[0],
                output_channels: channels[1],
                input: [side, side],
                kernel: [kernel, kernel],
                stride: [stride, stride],
                padding: [(kernel / 2, kernel / 2); 2],
                dilation: [1, 1],
                groups,
            });
        }
    }
    geometries
}

/// On a new thread that is a pool by itself: nothing is there before, and everything goes with it.
fn taken<T: Element>(geometry: &ConvGeometry) -> usize {
    let geometry = *geometry;
    let passes = move || {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .use_current_thread();
        let pool = pool.build().expect("a pool of this thread");
        pool.install(|| {
            let before = working_memory();
            let input = numbers::<T>(geometry.input_len(), 1);
            let weight = numbers::<T>(geometry.weight_len(), 2);
            let gradient = numbers::<T>(geometry.output_len(), 3);
            conv2d(&geometry, &input, &weight, None);
            conv2d_input_gradient(&geometry, &weight, &gradient);
            conv2d_weight_gradient(&geometry, &input, &gradient);
            working_memory() - before
        })
    };
    thread::spawn(passes).join().expect("no panic")
}

fn check<T: Element>(geometry: &ConvGeometry) {
    let (taken, needed) = (taken::<T>(geometry), conv2d_working_memory::<T>(geometry));
    assert!(
        taken <= needed,
        "{taken} bytes, {needed} needed: {geometry:?}"
    );
    assert!(
        needed <= 2 * taken,
        "{taken} bytes, {needed} needed: {geometry:?}"
    );
}

#[test]
fn a_convolution_takes_the_working_memory_that_it_is_said_to_need() {
    for geometry in geometries() {
        check::<f32>(&geometry);
        check::<f64>(&geometry);
    }
}
