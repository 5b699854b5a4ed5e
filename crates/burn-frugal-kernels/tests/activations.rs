//! Activations in place, and their masks, against the definition.

mod common;

use burn_frugal_kernels::{Activation, Element, activate, activate_with_mask, mask_gradient};
use common::{numbers, with_threads};

const BOTH: [Activation; 2] = [Activation::Relu, Activation::Relu6];

/// Value, and whether the gradient passes.
fn by_definition(activation: Activation, x: f64) -> (f64, bool) {
    match activation {
        _ if x.is_nan() => (x, true),
        Activation::Relu => (if x > 0.0 { x } else { 0.0 }, x > 0.0),
        Activation::Relu6 => (x.clamp(0.0, 6.0), (0.0..=6.0).contains(&x)),
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
            let upstream: Vec<T> = numbers(len, 2);
            let mut gradient = upstream.clone();
            mask_gradient(&mask, &mut gradient);

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
    mask_gradient(&[0], &mut [0.0_f32; 9]);
}
