//! Max pooling and its gradient against the definition.

mod common;

use burn_frugal_kernels::{
    Element, GeometryError, PoolGeometry, max_pool2d, max_pool2d_input_gradient,
    max_pool2d_with_taps,
};
use common::{numbers, with_threads};
use proptest::prelude::*;

/// A pooling with square windows and symmetric padding, its outputs rounded down.
fn square(
    maps: usize,
    input: [usize; 2],
    kernel: usize,
    stride: usize,
    padding: usize,
) -> PoolGeometry {
    PoolGeometry {
        maps,
        input,
        output: input.map(|size| (size + 2 * padding - kernel) / stride + 1),
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [(padding, padding); 2],
        dilation: [1, 1],
    }
}

/// What a tap of an output reads along one axis, unless it is padding.
fn read(g: &PoolGeometry, axis: usize, output: usize, tap: usize) -> Option<usize> {
    let position = g.stride[axis] * output + g.dilation[axis] * tap;
    let position = position.checked_sub(g.padding[axis].0)?;
    (position < g.input[axis]).then_some(position)
}

/// The tap of the maximum of each output, and the element of the input it reads.
fn winners<T: Element>(g: &PoolGeometry, input: &[T]) -> Vec<(u8, usize)> {
    let mut winners = Vec::new();
    for map in 0..g.maps {
        for p in 0..g.output[0] {
            for q in 0..g.output[1] {
                let mut winner: Option<(u8, usize)> = None;
                for i in 0..g.kernel[0] {
                    for j in 0..g.kernel[1] {
                        let (Some(y), Some(x)) = (read(g, 0, p, i), read(g, 1, q, j)) else {
                            continue;
                        };
                        let index = (map * g.input[0] + y) * g.input[1] + x;
                        let value = input[index].to_f64();
                        let wins = winner.is_none_or(|(_, index)| {
                            let most = input[index].to_f64();
                            !most.is_nan() && (value > most || value.is_nan())
                        });
                        if wins {
                            winner = Some(((i * g.kernel[1] + j) as u8, index));
                        }
                    }
                }
                winners.push(winner.expect("a window holds a pixel"));
            }
        }
    }
    winners
}

fn bits<T: Element>(values: &[T]) -> Vec<u64> {
    // any NaN is as good as another
    let bits = |value: f64| if value.is_nan() { f64::NAN } else { value }.to_bits();
    values.iter().map(|value| bits(value.to_f64())).collect()
}

fn check<T: Element>(g: &PoolGeometry, input: &[T]) {
    assert_eq!(g.check(), Ok(()), "{g:?}");
    let winners = winners(g, input);
    let expected: Vec<T> = winners.iter().map(|&(_, index)| input[index]).collect();
    assert_eq!(bits(&max_pool2d(g, input)), bits(&expected), "{g:?}");
    let (maxima, taps) = max_pool2d_with_taps(g, input);
    assert_eq!(bits(&maxima), bits(&expected), "{g:?}");
    assert!(
        taps.iter().eq(winners.iter().map(|(tap, _)| tap)),
        "{g:?}: taps"
    );

    let upstream: Vec<T> = numbers(g.output_len(), 2);
    let mut gradient = vec![T::ZERO; g.input_len()];
    for (&(_, index), &value) in winners.iter().zip(&upstream) {
        gradient[index] += value;
    }
    let found = max_pool2d_input_gradient(g, &taps, &upstream);
    assert_eq!(found, gradient, "{g:?}");
}

/// Few different numbers, so that many are equal, with infinities and NaN among them.
fn crowded<T: Element>(len: usize) -> Vec<T> {
    let numbers = numbers::<f64>(len, 3);
    let crowd = numbers.into_iter().map(|value| match value {
        _ if value < -0.4 => f64::NEG_INFINITY,
        _ if value > 0.99 => f64::INFINITY,
        _ if value > 0.96 => f64::NAN,
        _ => (3.0 * value).round(),
    });
    crowd.map(T::from_f64).collect()
}

fn check_all<T: Element>(g: &PoolGeometry) {
    let len = g.input_len();
    check::<T>(g, &numbers(len, 1));
    check::<T>(g, &crowded(len));
    for value in [f64::NEG_INFINITY, f64::NAN, -1.0] {
        check(g, &vec![T::from_f64(value); len]);
    }
}

#[test]
fn usual_poolings_match_the_definition() {
    for threads in [1, 2, 5] {
        with_threads(threads, || {
            for geometry in [
                square(3, [64, 64], 2, 2, 0),
                square(2, [112, 112], 3, 2, 1),
                square(5, [17, 35], 3, 2, 1),
                square(4, [56, 56], 3, 1, 1),
                square(9, [13, 13], 3, 2, 0),
                square(7, [28, 30], 3, 3, 0),
                square(2, [40, 41], 5, 4, 2),
                square(300, [7, 7], 7, 7, 0),
                square(300, [7, 9], 3, 2, 1),
                square(1, [200, 180], 3, 2, 1),
                square(2, [20, 24], 16, 3, 8),
                square(40_000, [1, 1], 1, 1, 0),
                square(0, [8, 8], 2, 2, 0),
            ] {
                check_all::<f32>(&geometry);
                check_all::<f64>(&geometry);
            }
        });
    }
}

#[test]
fn windows_may_run_over_the_end() {
    // 3 outputs instead of 2 along each axis, of which the last reads one pixel
    let geometry = PoolGeometry {
        output: [3, 3],
        ..square(2, [5, 5], 2, 2, 0)
    };
    check_all::<f32>(&geometry);
    let input: Vec<f32> = (0..50_u8).map(f32::from).collect();
    let (maxima, taps) = max_pool2d_with_taps(&geometry, &input);
    assert_eq!(
        maxima[..9],
        [6.0, 8.0, 9.0, 16.0, 18.0, 19.0, 21.0, 23.0, 24.0]
    );
    assert_eq!(taps[..9], [3, 3, 2, 3, 3, 2, 1, 1, 0]);
}

#[test]
fn padding_never_wins() {
    let geometry = square(1, [2, 2], 3, 1, 1);
    let (maxima, taps) = max_pool2d_with_taps(&geometry, &[f64::NEG_INFINITY; 4]);
    assert_eq!(maxima, [f64::NEG_INFINITY; 4]);
    assert_eq!(taps, [4, 3, 1, 0]);
}

#[test]
fn the_first_nan_wins() {
    let geometry = square(1, [2, 2], 2, 2, 0);
    let input = [1.0, f32::NAN, f32::INFINITY, f32::NAN];
    let (maxima, taps) = max_pool2d_with_taps(&geometry, &input);
    assert!(maxima[0].is_nan());
    assert_eq!(taps, [1]);
    assert!(max_pool2d(&geometry, &input)[0].is_nan());
}

#[test]
fn one_and_two_threads_give_the_same_bits() {
    let geometry = square(50, [30, 31], 3, 2, 1);
    let input: Vec<f32> = numbers(geometry.input_len(), 1);
    let run = |threads| {
        with_threads(threads, || {
            let (maxima, taps) = max_pool2d_with_taps(&geometry, &input);
            let gradient = max_pool2d_input_gradient(&geometry, &taps, &maxima);
            (max_pool2d(&geometry, &input), maxima, taps, gradient)
        })
    };
    assert_eq!(run(1), run(2));
}

#[test]
fn what_is_no_pooling_is_refused() {
    let good = square(2, [8, 10], 3, 2, 1);
    assert_eq!(good.check(), Ok(()));
    assert_eq!(
        (good.input_len(), good.output_len()),
        (2 * 8 * 10, 2 * 4 * 5)
    );
    for (name, geometry) in [
        (
            "input",
            PoolGeometry {
                input: [0, 3],
                ..good
            },
        ),
        (
            "output",
            PoolGeometry {
                output: [3, 0],
                ..good
            },
        ),
        (
            "kernel",
            PoolGeometry {
                kernel: [0, 3],
                ..good
            },
        ),
        (
            "stride",
            PoolGeometry {
                stride: [1, 0],
                ..good
            },
        ),
        (
            "dilation",
            PoolGeometry {
                dilation: [0, 1],
                ..good
            },
        ),
    ] {
        let error = geometry.check().expect_err("a size is 0");
        assert!(error.to_string().starts_with(name), "{error}");
        assert!(matches!(error, GeometryError::ZeroSize { .. }));
    }
    let taps = |kernel| PoolGeometry {
        kernel,
        ..square(1, [300, 300], 1, 1, 0)
    };
    assert_eq!(taps([16, 16]).check(), Ok(()));
    assert_eq!(taps([1, PoolGeometry::MOST_TAPS]).check(), Ok(()));
    for kernel in [[1, 257], [usize::MAX, 2]] {
        let expected = Err(GeometryError::TooManyTaps { kernel });
        assert_eq!(taps(kernel).check(), expected);
    }
    let error = PoolGeometry {
        output: [4, 7],
        ..good
    }
    .check();
    let expected = GeometryError::EmptyWindow {
        axis: "width",
        output: 6,
    };
    assert_eq!(error, Err(expected));
    assert_eq!(
        expected.to_string(),
        "the window of output 6 along width holds no pixel of the input, only padding"
    );
    // a tap on each side of the input, and none in it
    let straddling = PoolGeometry {
        kernel: [2, 2],
        stride: [1, 1],
        padding: [(1, 1); 2],
        dilation: [4, 4],
        ..square(1, [3, 3], 1, 1, 0)
    };
    let expected = GeometryError::EmptyWindow {
        axis: "height",
        output: 0,
    };
    assert_eq!(straddling.check(), Err(expected));
    let large = PoolGeometry {
        maps: usize::MAX,
        ..good
    };
    assert!(matches!(
        large.check(),
        Err(GeometryError::TooLarge {
            tensor: "input",
            ..
        })
    ));
    let far = PoolGeometry {
        padding: [(usize::MAX, 0), (1, 1)],
        ..good
    };
    assert!(matches!(
        far.check(),
        Err(GeometryError::EmptyWindow { axis: "height", .. })
    ));
}

#[test]
#[should_panic(expected = "max_pool2d: the window of output 9 along width holds no pixel")]
fn an_empty_window_panics() {
    let geometry = PoolGeometry {
        output: [4, 10],
        ..square(1, [8, 17], 2, 2, 0)
    };
    max_pool2d(&geometry, &[0.0_f32; 8 * 17]);
}

#[test]
#[should_panic(expected = "max_pool2d_with_taps: input must have 16 elements, found 15")]
fn a_short_input_is_refused() {
    max_pool2d_with_taps(&square(1, [4, 4], 2, 2, 0), &[0.0_f32; 15]);
}

#[test]
#[should_panic(expected = "max_pool2d_input_gradient: taps must have 4 elements, found 3")]
fn missing_taps_are_refused() {
    max_pool2d_input_gradient(&square(1, [4, 4], 2, 2, 0), &[0; 3], &[0.0_f32; 4]);
}

#[test]
#[should_panic(expected = "out of bounds")]
fn a_tap_outside_the_kernel_panics() {
    max_pool2d_input_gradient(&square(1, [4, 4], 2, 2, 0), &[0, 0, 4, 0], &[1.0_f32; 4]);
}

/// Input size, output size, kernel, stride, padding and dilation of one axis, all windows with a pixel.
fn axis(
    sizes: usize,
) -> impl Strategy<Value = (usize, usize, usize, usize, (usize, usize), usize)> {
    (
        1..sizes,
        1_usize..6,
        1_usize..5,
        (0_usize..5, 0_usize..5),
        1_usize..4,
        0_usize..3,
    )
        .prop_filter_map(
            "windows",
            |(input, kernel, stride, padding, dilation, left_out)| {
                let has_pixel = |output: &usize| {
                    let start = stride * output;
                    let mut taps = (0..kernel).map(|tap| start + dilation * tap);
                    taps.any(|position| (padding.0..padding.0 + input).contains(&position))
                };
                let outputs = (0_usize..).take_while(has_pixel).count();
                let output = outputs.checked_sub(left_out).filter(|&output| output > 0)?;
                Some((input, output, kernel, stride, padding, dilation))
            },
        )
}

fn pooling() -> impl Strategy<Value = PoolGeometry> {
    (0_usize..5, axis(12), axis(50)).prop_map(|(maps, vertical, horizontal)| PoolGeometry {
        maps,
        input: [vertical.0, horizontal.0],
        output: [vertical.1, horizontal.1],
        kernel: [vertical.2, horizontal.2],
        stride: [vertical.3, horizontal.3],
        padding: [vertical.4, horizontal.4],
        dilation: [vertical.5, horizontal.5],
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn random_poolings_match_the_definition(geometry in pooling()) {
        check_all::<f32>(&geometry);
        check_all::<f64>(&geometry);
    }
}
