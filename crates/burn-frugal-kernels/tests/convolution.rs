//! Every convolution kernel against its definition, on a table of layers.

mod common;

use burn_frugal_kernels::{
    ConvGeometry, Element, conv2d, conv2d_input_gradient, conv2d_weight_gradient,
};
use common::{Case, geometry, with_threads};

/// Layers of every kind that networks use, and the edges between kinds.
fn layers() -> Vec<(&'static str, ConvGeometry)> {
    let g = geometry;
    vec![
        (
            "same",
            g([2, 5, 8, 8], 4, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "odd map",
            g([2, 4, 13, 9], 6, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "pointwise",
            g([3, 6, 7, 7], 10, [1, 1], [1, 1], [0, 0], [1, 1], 1),
        ),
        (
            "pointwise, large map",
            g([3, 5, 11, 13], 7, [1, 1], [1, 1], [0, 0], [1, 1], 1),
        ),
        (
            "pointwise, one image",
            g([1, 17, 3, 3], 5, [1, 1], [1, 1], [0, 0], [1, 1], 1),
        ),
        (
            "pointwise, many small maps",
            g([70, 17, 4, 4], 5, [1, 1], [1, 1], [0, 0], [1, 1], 1),
        ),
        (
            "pointwise, grouped",
            g([2, 6, 9, 9], 9, [1, 1], [1, 1], [0, 0], [1, 1], 3),
        ),
        (
            "pointwise, padded",
            g([2, 3, 9, 9], 5, [1, 1], [1, 1], [1, 2], [1, 1], 1),
        ),
        (
            "pointwise, stride 2",
            g([2, 6, 8, 8], 4, [1, 1], [2, 2], [0, 0], [1, 1], 1),
        ),
        (
            "pointwise, many single pixels",
            g([70, 17, 1, 1], 5, [1, 1], [1, 1], [0, 0], [1, 1], 1),
        ),
        (
            "pointwise, groups of few pixels",
            g([37, 12, 2, 3], 8, [1, 1], [1, 1], [0, 0], [1, 1], 2),
        ),
        // more than a million multiply-accumulates each: these are spread over threads
        (
            "few pixels, rows shared by threads",
            g([2, 120, 3, 3], 120, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "few pixels, shares that cross groups",
            g([3, 72, 4, 4], 105, [3, 3], [1, 1], [1, 1], [1, 1], 3),
        ),
        (
            "uneven jobs",
            g([37, 8, 6, 6], 12, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "one large image, groups shared by threads",
            g([1, 40, 20, 20], 40, [3, 3], [1, 1], [1, 1], [1, 1], 5),
        ),
        (
            "one large image",
            g([1, 16, 14, 14], 40, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "pointwise, large",
            g([7, 32, 12, 12], 36, [1, 1], [1, 1], [0, 0], [1, 1], 1),
        ),
        (
            "pointwise, large, grouped",
            g([7, 32, 16, 16], 80, [1, 1], [1, 1], [0, 0], [1, 1], 4),
        ),
        (
            "pointwise, one large image",
            g([1, 32, 32, 32], 33, [1, 1], [1, 1], [0, 0], [1, 1], 1),
        ),
        (
            "depthwise, huge dilation",
            g(
                [2, 4, 6, 6],
                4,
                [3, 3],
                [1, 1],
                [4000, 4000],
                [4000, 4000],
                4,
            ),
        ),
        (
            "one weight a channel",
            g([3, 5, 9, 7], 5, [1, 1], [1, 1], [0, 0], [1, 1], 5),
        ),
        (
            "one weight a channel, single pixels",
            g([70, 90, 1, 1], 90, [1, 1], [1, 1], [0, 0], [1, 1], 90),
        ),
        (
            "one weight a channel, many maps",
            g([40, 90, 5, 5], 90, [1, 1], [1, 1], [0, 0], [1, 1], 90),
        ),
        (
            "one weight a channel, stride 2",
            g([3, 5, 9, 7], 5, [1, 1], [2, 2], [0, 0], [1, 1], 5),
        ),
        (
            "two weights a channel",
            g([3, 5, 9, 7], 10, [1, 1], [1, 1], [0, 0], [1, 1], 5),
        ),
        (
            "stride 2",
            g([2, 4, 14, 14], 6, [3, 3], [2, 2], [1, 1], [1, 1], 1),
        ),
        (
            "stride 2, odd map",
            g([1, 3, 15, 13], 8, [3, 3], [2, 2], [1, 1], [1, 1], 1),
        ),
        (
            "stride 2 x 1",
            g([2, 4, 10, 7], 4, [3, 3], [2, 1], [1, 1], [1, 1], 1),
        ),
        (
            "stride 3, kernel 5",
            g([1, 9, 17, 16], 3, [5, 5], [3, 3], [1, 1], [1, 1], 1),
        ),
        (
            "depthwise",
            g([2, 6, 7, 7], 6, [3, 3], [1, 1], [1, 1], [1, 1], 6),
        ),
        (
            "depthwise, kernel 5, stride 2",
            g([2, 8, 9, 9], 8, [5, 5], [2, 2], [2, 2], [1, 1], 8),
        ),
        (
            "depthwise, multiplier",
            g([2, 4, 6, 6], 8, [3, 3], [1, 1], [1, 1], [1, 1], 4),
        ),
        (
            "depthwise, multiplier, stride 2",
            g([3, 5, 9, 6], 15, [3, 3], [2, 2], [1, 1], [1, 1], 5),
        ),
        (
            "depthwise, stride 3 x 2",
            g([2, 3, 11, 12], 3, [3, 5], [3, 2], [1, 2], [1, 1], 3),
        ),
        (
            "depthwise, dilated",
            g([2, 3, 11, 12], 3, [3, 3], [1, 1], [2, 3], [2, 3], 3),
        ),
        (
            "depthwise, stride 2, dilation 3",
            g([2, 3, 15, 14], 3, [3, 3], [2, 2], [3, 3], [3, 3], 3),
        ),
        (
            "depthwise, 1x1",
            g([2, 3, 5, 4], 6, [1, 1], [1, 1], [0, 0], [1, 1], 3),
        ),
        (
            "depthwise, many tiny maps",
            g([65, 7, 4, 4], 7, [3, 3], [1, 1], [1, 1], [1, 1], 7),
        ),
        (
            "depthwise, two channels",
            g([9, 2, 8, 8], 2, [3, 3], [1, 1], [1, 1], [1, 1], 2),
        ),
        (
            "depthwise, taller than a block",
            g([1, 2, 150, 230], 2, [5, 3], [1, 1], [2, 1], [1, 1], 2),
        ),
        (
            "depthwise, stride 2, taller than a block",
            g([1, 2, 251, 231], 2, [3, 3], [2, 2], [1, 1], [1, 1], 2),
        ),
        (
            "depthwise, stride beyond the kernel",
            g([2, 3, 17, 16], 3, [2, 2], [5, 7], [1, 0], [1, 1], 3),
        ),
        (
            "groups",
            g([2, 6, 8, 8], 9, [3, 3], [1, 1], [1, 1], [1, 1], 3),
        ),
        (
            "groups, many small maps",
            g([40, 6, 4, 4], 4, [3, 3], [1, 1], [1, 1], [1, 1], 2),
        ),
        (
            "valid",
            g([2, 3, 12, 12], 5, [5, 5], [1, 1], [0, 0], [1, 1], 1),
        ),
        (
            "kernel 3x1",
            g([2, 4, 9, 8], 4, [3, 1], [1, 1], [1, 0], [1, 1], 1),
        ),
        (
            "kernel 1x7",
            g([1, 4, 6, 14], 4, [1, 7], [1, 1], [0, 3], [1, 1], 1),
        ),
        (
            "kernel 2x2 of 4x4",
            g([2, 3, 7, 7], 3, [4, 4], [2, 2], [1, 1], [1, 1], 1),
        ),
        (
            "dilated",
            g([1, 4, 12, 12], 4, [3, 3], [1, 1], [2, 2], [2, 2], 1),
        ),
        (
            "stride 2, dilation 2",
            g([1, 4, 13, 13], 4, [3, 3], [2, 2], [2, 2], [2, 2], 1),
        ),
        (
            "asymmetric padding",
            ConvGeometry {
                padding: [(0, 1), (0, 1)],
                ..g([2, 4, 8, 8], 4, [3, 3], [2, 2], [0, 0], [1, 1], 1)
            },
        ),
        (
            "asymmetric padding, depthwise",
            ConvGeometry {
                padding: [(0, 3), (2, 0)],
                ..g([2, 4, 8, 6], 4, [3, 3], [2, 1], [0, 0], [1, 1], 4)
            },
        ),
        (
            "padding beyond the kernel",
            g([2, 3, 5, 4], 2, [3, 3], [2, 1], [6, 5], [1, 1], 1),
        ),
        (
            "padding beyond the kernel, depthwise",
            g([2, 3, 5, 4], 6, [3, 3], [2, 1], [6, 5], [1, 1], 3),
        ),
        (
            "patches",
            g([2, 3, 16, 16], 8, [4, 4], [4, 4], [0, 0], [1, 1], 1),
        ),
        (
            "dropped tail",
            g([1, 2, 11, 10], 3, [4, 4], [4, 4], [0, 0], [1, 1], 1),
        ),
        (
            "dropped tail, depthwise",
            g([1, 2, 11, 10], 2, [4, 4], [4, 4], [0, 0], [1, 1], 2),
        ),
        (
            "kernel 1, stride 14",
            g([2, 3, 28, 28], 4, [1, 1], [14, 14], [0, 0], [1, 1], 1),
        ),
        (
            "kernel 1, stride 14, depthwise",
            g([2, 3, 28, 28], 3, [1, 1], [14, 14], [0, 0], [1, 1], 3),
        ),
        (
            "one pixel",
            g([3, 5, 1, 1], 4, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "one pixel, depthwise",
            g([3, 5, 1, 1], 5, [3, 3], [1, 1], [1, 1], [1, 1], 5),
        ),
        (
            "one channel",
            g([2, 1, 6, 6], 1, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "one channel to many",
            g([2, 1, 6, 6], 9, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "wide",
            g([1, 3, 1, 257], 4, [1, 3], [1, 1], [0, 1], [1, 1], 1),
        ),
        (
            "odd channels 3 to 5",
            g([2, 3, 9, 9], 5, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "odd channels 7 to 17",
            g([2, 7, 9, 9], 17, [3, 3], [2, 2], [1, 1], [1, 1], 1),
        ),
        (
            "several runs of channels",
            g([2, 130, 9, 20], 3, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "several blocks of rows",
            g([2, 9, 70, 41], 3, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "no batch",
            g([0, 4, 8, 8], 6, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "no batch, depthwise",
            g([0, 4, 8, 8], 4, [3, 3], [1, 1], [1, 1], [1, 1], 4),
        ),
        (
            "no batch, one weight a channel",
            g([0, 4, 8, 8], 4, [1, 1], [1, 1], [0, 0], [1, 1], 4),
        ),
        (
            "no batch, pointwise",
            g([0, 4, 8, 8], 4, [1, 1], [1, 1], [0, 0], [1, 1], 1),
        ),
        (
            "kernel does not fit",
            g([2, 4, 2, 8], 4, [3, 3], [1, 1], [0, 0], [1, 1], 1),
        ),
        (
            "kernel does not fit, depthwise",
            g([2, 4, 2, 8], 4, [3, 3], [1, 1], [0, 0], [1, 1], 4),
        ),
        (
            "no input pixels",
            g([2, 4, 0, 3], 4, [3, 3], [1, 1], [2, 1], [1, 1], 1),
        ),
        (
            "no input pixels, depthwise",
            g([2, 4, 3, 0], 4, [3, 3], [1, 1], [1, 2], [1, 1], 4),
        ),
        (
            "no input channels",
            g([2, 0, 4, 3], 4, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
        (
            "no output channels",
            g([2, 4, 4, 3], 0, [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ),
    ]
}

fn check_layers<T: Element>(threads: usize) {
    with_threads(threads, || {
        for (name, geometry) in layers() {
            Case::<T>::new(geometry).check(&format!("{name}, {threads} threads"));
        }
    });
}

#[test]
fn f32_matches_the_definition_on_one_thread() {
    check_layers::<f32>(1);
}

#[test]
fn f32_matches_the_definition_on_two_threads() {
    check_layers::<f32>(2);
}

#[test]
fn f32_matches_the_definition_on_five_threads() {
    check_layers::<f32>(5);
}

#[test]
fn f64_matches_the_definition_on_one_thread() {
    check_layers::<f64>(1);
}

#[test]
fn f64_matches_the_definition_on_two_threads() {
    check_layers::<f64>(2);
}

#[test]
fn f64_matches_the_definition_on_five_threads() {
    check_layers::<f64>(5);
}

#[test]
fn pytorch_25101_stride_3_kernel_5() {
    let layer = geometry([2, 9, 32, 32], 3, [5, 5], [3, 3], [1, 1], [1, 1], 1);
    Case::<f32>::new(layer).check("pytorch#25101");
    Case::<f64>::new(layer).check("pytorch#25101");
}

#[test]
fn pytorch_50042_depthwise_stride_2() {
    let layer = geometry([2, 24, 6, 6], 24, [3, 3], [2, 2], [1, 1], [1, 1], 24);
    Case::<f32>::new(layer).check("pytorch#50042");
    Case::<f64>::new(layer).check("pytorch#50042");
}

#[test]
fn burn_3511_groups_with_stride_2() {
    let layer = geometry([2, 36, 8, 8], 48, [3, 3], [2, 2], [1, 1], [1, 1], 12);
    assert_eq!(layer.weight_len(), 48 * 3 * 3 * 3);
    Case::<f32>::new(layer).check("burn#3511");
    Case::<f64>::new(layer).check("burn#3511");
}

#[test]
fn two_runs_give_the_same_bits() {
    for threads in [1, 2, 5] {
        with_threads(threads, || {
            for (name, geometry) in layers() {
                let case = Case::<f32>::new(geometry);
                assert_eq!(case.run(), case.run(), "{name}, {threads} threads");
            }
        });
    }
}

/// A non-finite value reaches exactly the results whose definition reads it.
#[test]
fn non_finite_values_stay_where_they_belong() {
    for (name, geometry) in layers() {
        let reference = Case::<f64>::new(geometry);
        for bad in [f64::NAN, f64::INFINITY] {
            for position in [
                0,
                geometry.input_len() / 2,
                geometry.input_len().saturating_sub(1),
            ] {
                let mut case = Case::<f64>::new(geometry);
                let Some(value) = case.input.get_mut(position) else {
                    continue;
                };
                *value = bad;
                let found = case.run();
                let expected =
                    common::conv2d(&geometry, &case.input, &case.weight, Some(&case.bias));
                assert_same_finite(name, &found.output, &expected);
                let expected =
                    common::conv2d_weight_gradient(&geometry, &case.input, &case.output_gradient);
                assert_same_finite(name, &found.weight_gradient, &expected);
            }
            for position in [
                0,
                geometry.weight_len() / 2,
                geometry.weight_len().saturating_sub(1),
            ] {
                let mut case = Case::<f64>::new(geometry);
                let Some(value) = case.weight.get_mut(position) else {
                    continue;
                };
                *value = bad;
                let found = case.run();
                let expected =
                    common::conv2d_input_gradient(&geometry, &case.weight, &case.output_gradient);
                assert_same_finite(name, &found.input_gradient, &expected);
            }
            for position in [
                0,
                geometry.output_len() / 2,
                geometry.output_len().saturating_sub(1),
            ] {
                let mut case = Case::<f64>::new(geometry);
                let Some(value) = case.output_gradient.get_mut(position) else {
                    continue;
                };
                *value = bad;
                let found = case.run();
                let expected = common::conv2d_input_gradient(
                    &geometry,
                    &reference.weight,
                    &case.output_gradient,
                );
                assert_same_finite(name, &found.input_gradient, &expected);
                let expected = common::conv2d_weight_gradient(
                    &geometry,
                    &reference.input,
                    &case.output_gradient,
                );
                // A padded position counts as zero times the gradient: only what is finite must agree.
                for (found, expected) in found.weight_gradient.iter().zip(&expected) {
                    assert!(
                        !found.is_finite() || expected.is_finite(),
                        "{name}: a non-finite value was lost"
                    );
                }
            }
        }
    }
}

#[track_caller]
fn assert_same_finite(name: &str, found: &[f64], expected: &[f64]) {
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(
            found.is_finite(),
            expected.is_finite(),
            "{name}: at {index}, {found} for {expected}"
        );
    }
}

fn small() -> ConvGeometry {
    geometry([1, 2, 3, 3], 2, [2, 2], [1, 1], [0, 0], [1, 1], 1)
}

#[test]
#[should_panic(expected = "conv2d: input must have 18 elements, found 17")]
fn a_short_input_is_refused() {
    conv2d(&small(), &[0.0_f32; 17], &[0.0; 16], None);
}

#[test]
#[should_panic(expected = "conv2d_input_gradient: output gradient must have 8 elements, found 9")]
fn a_long_output_gradient_is_refused() {
    conv2d_input_gradient(&small(), &[0.0_f64; 16], &[0.0; 9]);
}

#[test]
#[should_panic(expected = "conv2d_weight_gradient: input must have 18 elements, found 16")]
fn a_short_input_of_the_weight_gradient_is_refused() {
    conv2d_weight_gradient(&small(), &[0.0_f32; 16], &[0.0; 8]);
}

#[test]
#[should_panic(expected = "conv2d: stride [0, 1] (height, width) must be at least 1")]
fn a_zero_stride_is_refused() {
    let geometry = ConvGeometry {
        stride: [0, 1],
        ..small()
    };
    conv2d(&geometry, &[0.0_f32; 18], &[0.0; 16], None);
}
