//! Guards what a pass and a measurement need for a moment.

use burn::tensor::Device;
use burn_frugal::Method;
use burn_frugal::PerMode;
use burn_frugal::nn::Conv2d;
use burn_frugal::plan::{Candidates, Profile};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{autodiff_devices, devices, random};

use super::{ALLOCATOR, alone, assert_promise, kept_bytes, shortcuts};

/// A map larger than what the kernels may keep as scratch (4 MB a thread): a hidden copy shows.
const LARGE: [usize; 4] = [8, 32, 112, 112];

/// The most bytes that `run` needs at once, those of its result included.
fn transient_bytes<R>(run: impl FnOnce() -> R) -> usize {
    let before = ALLOCATOR.live_bytes();
    ALLOCATOR.reset_peak();
    run();
    ALLOCATOR.peak_bytes().saturating_sub(before)
}

/// Neither pass of a shortcut needs a copy that is as large as the input: 2.2 to 2.4 MB forward beside
/// what is kept and the output, 2.1 to 5.4 MB backward with the output's gradients, of 12.8 MB. The
/// first pass of all also grows the kernels' scratch buffers and those of the matrix product, by about
/// 4 MB.
#[test]
fn a_shortcut_needs_no_copy_of_a_large_map() {
    alone(|| {
        let whole = LARGE.iter().product::<usize>() * size_of::<f32>();
        let ranks = PerMode::from([2, 8, 28, 28]);
        for (device_name, device) in devices() {
            let device = device.autodiff();
            let x = random(1, LARGE, &device);
            for kernel in [1, 3] {
                let conv = same([32, 4], kernel).init(&device);
                for method in shortcuts(ranks) {
                    let conv = conv.clone().with_method(method).expect("suitable");
                    let kept = method.bytes(conv.geometry(LARGE), size_of::<f32>());
                    let passes = || {
                        // its first step: it makes its start
                        let conv = conv.clone();
                        let mut output = None;
                        let forward = transient_bytes(|| output = Some(conv.forward(x.clone())));
                        let output = output.expect("set above");
                        let result = kept + output.shape().num_elements() * size_of::<f32>();
                        let loss = output.sum();
                        let backward = transient_bytes(|| loss.backward());
                        [forward - result, backward]
                    };
                    passes();
                    let [forward, backward] = passes();
                    let name = format!("{method}, {kernel}x{kernel} ({device_name})");
                    for (pass, bytes) in [("forward", forward), ("backward", backward)] {
                        assert!(
                            2 * bytes < whole,
                            "{name}, {pass}: {bytes} of the input's {whole} bytes"
                        );
                    }
                }
            }
        }
    });
}

/// Exact passes copy a bounded part of the batch at a time: beside the maps that go in and out they need
/// the same few megabytes whatever the batch, where all columns of a 3x3 kernel would be nine maps.
#[test]
fn an_exact_pass_needs_no_columns_of_the_whole_batch() {
    /// Scratch of the kernels and matrix products of one thread.
    const OF_A_THREAD: usize = 4 << 20;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let bounded = threads.max(2) * OF_A_THREAD;
    alone(|| {
        for (device_name, device) in devices() {
            let device = device.autodiff();
            for (groups, kernel) in [(1, 3), (1, 1), (32, 5)] {
                let conv = same([32, 32], kernel).with_groups(groups).init(&device);
                for batch in [4, 24] {
                    let shape = [batch, 32, 64, 64];
                    let map = shape.iter().product::<usize>() * size_of::<f32>();
                    let x = random(1, shape, &device).require_grad();
                    let passes = || {
                        let mut output = None;
                        let forward = transient_bytes(|| output = Some(conv.forward(x.clone())));
                        let loss = output.expect("set above").sum();
                        [forward, transient_bytes(|| loss.backward())]
                    };
                    passes();
                    // backward: the output's gradient as Burn makes it of a sum, and the input's
                    let needs = [("forward", 1), ("backward", 3)].into_iter();
                    for ((pass, maps), bytes) in needs.zip(passes()) {
                        assert!(
                            bytes < maps * map + bounded,
                            "{kernel}x{kernel}, {groups} groups, batch {batch}, {pass} \
                             ({device_name}): {bytes} bytes for maps of {map}"
                        );
                    }
                }
            }
        }
    });
}

/// As many convolutions, one after the other, as deep as the model is.
fn deep(layers: usize, device: &Device) -> Vec<Conv2d> {
    (0..layers)
        .map(|_| same([24, 24], 1).init(device))
        .collect()
}

/// A profile keeps one layer's input at a time, a training step all of them. On maps of one size the
/// profile peaks at 4 (the kept input, the output, which is a leaf, and two gradients on their way
/// back), whether there are 4 layers or 8, and a training step at one more than there are layers.
#[test]
fn a_profile_does_not_need_more_memory_for_more_layers() {
    alone(|| {
        const SHAPE: [usize; 4] = [4, 24, 48, 48];
        let one = SHAPE.iter().product::<usize>() * size_of::<f32>();
        for (device_name, device) in autodiff_devices() {
            let images = random(1, SHAPE, &device);
            let run = |model: &Vec<Conv2d>| {
                let mut layers = model.iter();
                let first = layers.next().expect("a layer");
                // nothing but the first layer keeps its input
                let map = first.forward(images.clone() * 2.0);
                layers.fold(map, |map, conv| conv.forward(map))
            };
            let peaks = [4, 8].map(|layers| {
                let name = format!("{layers} layers ({device_name})");
                let model = deep(layers, &device);
                let kept = kept_bytes(&model, |model| run(model));
                assert_promise(&name, kept, layers * one);
                let candidates = [
                    Method::Exact,
                    Method::gradient_filter(4),
                    Method::channel_sparse(0.25),
                ];
                let candidates = Candidates::new().last_convs(layers, candidates);
                let loss = |model: &Vec<Conv2d>| run(model).sum();
                let measure = || Profile::measure(&model, &candidates, loss).expect("all are used");
                let profile = transient_bytes(measure);
                let training = transient_bytes(|| loss(&model).backward());
                assert!(
                    5 * profile < 21 * one && profile < training,
                    "{name}: a profile peaks at {profile} bytes, a training step at {training}, an \
                 input has {one}"
                );
                profile
            });
            let [few, many] = peaks;
            assert!(
                many.abs_diff(few) <= one / 10,
                "{device_name}: {few} bytes became {many} with more layers"
            );
        }
    });
}
