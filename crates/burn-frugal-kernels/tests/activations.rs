//! Activations in place, and their masks, against the definition.

mod common;

use burn_frugal_kernels::{Activation, Element, activate, activate_with_mask, mask_gradient};
use common::{numbers, with_threads};

/// Those with a bit an element.
const BOTH: [Activation; 2] = [Activation::Relu, Activation::Relu6];

/// Value, and whether the gradient passes.
fn by_definition(activation: Activation, x: f64) -> (f64, bool) {
    match activation {
        _ if x.is_nan() => (x, true),
        Activation::Relu => (if x > 0.0 { x } else { 0.0 }, x > 0.0),
        Activation::Relu6 => (x.clamp(0.0, 6.0), (0.0..=6.0).contains(&x)),
        Activation::HardSwish => unreachable!("has slopes"),
    }
}

/// Numbers from -9 to 9, with those in between where something changes.
fn inputs<T: Element>(len: usize) -> Vec<T> {
    let edges = [
        0.0,
        -0.0,
        6.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -1e-30,
        1e-30,
    ];
    let mut values: Vec<T> = numbers::<T>(len, 1)
        .into_iter()
        .map(|value| T::from_f64(9.0 * value.to_f64()))
        .collect();
    for (index, edge) in edges.into_iter().enumerate() {
        if let Some(value) = values.get_mut(3 * index) {
            *value = T::from_f64(edge);
        }
    }
    values
}

fn same<T: Element>(found: T, expected: f64) -> bool {
    let found = found.to_f64();
    // bits tell the zeros apart
    found.is_nan() && expected.is_nan() || found.to_bits() == expected.to_bits()
}

fn check<T: Element>() {
    for len in [0, 1, 7, 8, 9, 15, 64, 100, 16 << 10, (16 << 10) + 3, 50_001] {
        for activation in BOTH {
            let inputs = inputs::<T>(len);
            let mut plain = inputs.clone();
            activate(activation, &mut plain);
            let mut masked = inputs.clone();
            let mask = activate_with_mask(activation, &mut masked);
            assert_eq!(mask.len(), len.div_ceil(8));
            assert_eq!(mask.len(), activation.mask_len(len));
            let upstream: Vec<T> = numbers(len, 2);
            let mut gradient = upstream.clone();
            mask_gradient(activation, &mask, &mut gradient);

            for (index, &x) in inputs.iter().enumerate() {
                let (value, passes) = by_definition(activation, x.to_f64());
                let at = format!("{activation:?} of {x:?}, element {index} of {len}");
                assert!(same(plain[index], value), "{at}: {:?}", plain[index]);
                assert!(same(masked[index], value), "{at}: {:?}", masked[index]);
                assert_eq!(mask[index / 8] >> (index % 8) & 1 == 1, passes, "{at}");
                let expected = if passes {
                    upstream[index].to_f64()
                } else {
                    0.0
                };
                assert!(same(gradient[index], expected), "{at}: gradient");
            }
            if len % 8 > 0 {
                assert_eq!(mask[len / 8] >> (len % 8), 0, "bits past the last element");
            }
        }
    }
}

#[test]
fn values_masks_and_gradients_match_the_definition() {
    for threads in [1, 2, 5] {
        with_threads(threads, || {
            check::<f32>();
            check::<f64>();
        });
    }
}

#[test]
#[should_panic(expected = "mask_gradient: mask must have 2 elements, found 1")]
fn a_short_mask_is_refused() {
    mask_gradient(Activation::Relu, &[0], &mut [0.0_f32; 9]);
}

#[test]
#[should_panic(expected = "mask_gradient: mask must have 9 elements, found 2")]
fn a_mask_of_bits_is_refused_where_bytes_are_needed() {
    mask_gradient(Activation::HardSwish, &[0; 2], &mut [0.0_f32; 9]);
}

/// Value and slope of hard swish.
fn hard_swish(x: f64) -> (f64, f64) {
    let slope = match x {
        _ if x < -3.0 => 0.0,
        _ if x <= 3.0 => (2.0 * x + 3.0) / 6.0,
        _ => 1.0,
    };
    (x * ((x + 3.0).clamp(0.0, 6.0) / 6.0), slope)
}

fn check_hard_swish<T: Element>() {
    let activation = Activation::HardSwish;
    let epsilon = common::tolerance::<T>();
    for len in [0, 1, 7, 31, 100, 16 << 10, (16 << 10) + 3, 50_001] {
        let mut inputs = inputs::<T>(len);
        for (index, edge) in [-3.0, 3.0, -3.001, 3.001, -1.5, 1e30, -1e30]
            .iter()
            .enumerate()
        {
            if let Some(value) = inputs.get_mut(3 * index + 1) {
                *value = T::from_f64(*edge);
            }
        }
        let mut plain = inputs.clone();
        activate(activation, &mut plain);
        let mut masked = inputs.clone();
        let mask = activate_with_mask(activation, &mut masked);
        assert_eq!(mask.len(), len);
        assert_eq!(mask.len(), activation.mask_len(len));
        let upstream: Vec<T> = numbers(len, 2);
        let mut gradient = upstream.clone();
        mask_gradient(activation, &mask, &mut gradient);

        for (index, &x) in inputs.iter().enumerate() {
            let at = format!("{x:?}, element {index} of {len}");
            let (x, upstream) = (x.to_f64(), upstream[index].to_f64());
            let (value, slope) = hard_swish(x);
            assert!(same(masked[index], plain[index].to_f64()), "{at}");
            let found = plain[index].to_f64();
            let is_close = (found - value).abs() <= epsilon * value.abs();
            let is_same = found == value || found.is_nan() && value.is_nan();
            assert!(is_close || is_same, "{at}: {found} for {value}");
            let found = gradient[index].to_f64();
            let bound = (1.0 / 254.0 + epsilon) * upstream.abs();
            assert!(
                (found - slope * upstream).abs() <= bound,
                "{at}: gradient {found}"
            );
            if slope == 0.0 || slope == 1.0 {
                assert_eq!(found, slope * upstream, "{at}: an exact gradient");
            }
        }
    }
}

#[test]
fn hard_swish_matches_the_definition() {
    for threads in [1, 2, 5] {
        with_threads(threads, || {
            check_hard_swish::<f32>();
            check_hard_swish::<f64>();
        });
    }
}

#[test]
fn slopes_of_hard_swish_fill_a_byte() {
    let mut values = [-4.0, -3.0, -1.5, 0.0, 1.5, 3.0, 4.0, f64::NAN];
    let mask = activate_with_mask(Activation::HardSwish, &mut values);
    assert_eq!(mask, [64, 0, 64, 128, 191, 254, 191, 191]);
    let mut gradient = [1.0; 8];
    mask_gradient(Activation::HardSwish, &mask, &mut gradient);
    let close = [0.0_f64, -0.5, 0.0, 0.5, 1.0, 1.5, 1.0, 1.0];
    for (found, expected) in gradient.into_iter().zip(close) {
        assert!((found - expected).abs() <= 1.0 / 254.0 + 1e-12);
    }
    assert!(values[7].is_nan());
    assert_eq!(values[6], 4.0);
    assert_eq!(values[0], 0.0);
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let mut values = [f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY];
    activate(Activation::HardSwish, &mut values);
    assert_eq!(values[..3], [f32::MAX, 0.0, f32::INFINITY]);
    assert!(values[3].is_nan(), "infinity times 0, as in the definition");
}
