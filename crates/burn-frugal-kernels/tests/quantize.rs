//! Numbers in few bits against the definition, and how far they may be off.

mod common;

use burn_frugal_kernels::{Bits, Element, dequantize, quantize};
use common::{numbers, with_threads};
use proptest::prelude::*;

const BOTH: [Bits; 2] = [Bits::Four, Bits::Eight];

/// The largest code of a row with negative values, and of one without.
fn largest_code(bits: Bits, signed: bool) -> i32 {
    match (bits, signed) {
        (Bits::Four, true) => 7,
        (Bits::Four, false) => 15,
        (Bits::Eight, true) => 127,
        (Bits::Eight, false) => 255,
    }
}

/// The code at a column of a row.
fn code(bits: Bits, signed: bool, row: &[u8], column: usize) -> i32 {
    let (code, modulus) = match bits {
        Bits::Eight => (i32::from(row[column]), 256),
        Bits::Four => (i32::from(row[column / 2] >> (4 * (column % 2)) & 15), 16),
    };
    if signed && code >= modulus / 2 {
        code - modulus
    } else {
        code
    }
}

/// Compares rows with the definition.
fn check<T: Element>(bits: Bits, row_len: usize, values: &[T]) {
    let rows = values.len().checked_div(row_len).unwrap_or(0);
    let (codes, scales) = quantize(bits, row_len, values);
    let row_bytes = bits.row_bytes(row_len);
    assert_eq!(codes.len(), rows * row_bytes);
    assert_eq!(scales.len(), rows);
    let found = dequantize(bits, row_len, &codes, &scales);
    assert_eq!(found.len(), values.len());

    for (row, scale) in scales.iter().map(|scale| scale.to_f64()).enumerate() {
        let at = format!("{bits:?}, row {row} of {rows} of {row_len}");
        let values = &values[row * row_len..][..row_len];
        let found = &found[row * row_len..][..row_len];
        let codes = &codes[row * row_bytes..][..row_bytes];
        if values.iter().any(|value| !value.to_f64().is_finite()) {
            assert!(scale.is_nan(), "{at}: scale {scale:e}");
            assert!(found.iter().all(|value| value.to_f64().is_nan()), "{at}");
            continue;
        }
        let signed = values.iter().any(|value| value.to_f64() < 0.0);
        let most = largest_code(bits, signed);
        let largest = values
            .iter()
            .fold(0.0, |largest: f64, value| largest.max(value.to_f64().abs()));
        assert_eq!(scale < 0.0, signed, "{at}: the sign of scale {scale:e}");
        let step = scale.abs();
        let expected = largest / f64::from(most);
        let bound = 2e-6 * expected + T::LEAST.to_f64();
        assert!(
            (step - expected).abs() <= bound,
            "{at}: step {step:e} for {expected:e}"
        );
        if largest == 0.0 {
            assert_eq!(step.to_bits(), 0, "{at}: a row of zeros");
            assert!(codes.iter().all(|&code| code == 0), "{at}: a row of zeros");
        }
        for (column, (value, found)) in values.iter().zip(found).enumerate() {
            let at = format!("{at}, column {column}, {value:?}");
            let code = code(bits, signed, codes, column);
            assert!(code.abs() <= most, "{at}: code {code}");
            assert_eq!(
                *found,
                T::from_f64(f64::from(code)) * T::from_f64(step),
                "{at}"
            );
            let found = found.to_f64();
            assert!(found.is_finite(), "{at}: {found}");
            let error = (found - value.to_f64()).abs();
            assert!(
                error <= 0.5 * (1.0 + 1e-4) * step,
                "{at}: {found:e}, step {step:e}"
            );
        }
        if bits == Bits::Four && row_len % 2 == 1 {
            assert_eq!(
                codes[row_bytes - 1] >> 4,
                0,
                "{at}: bits past the last element"
            );
        }
    }
}

/// Every third row has no negative value, the others have, and their sizes differ.
fn values<T: Element>(rows: usize, row_len: usize) -> Vec<T> {
    let mut values: Vec<T> = numbers(rows * row_len, 1);
    for (index, value) in values.iter_mut().enumerate() {
        let row = index / row_len;
        let scaled = value.to_f64() * (1.0 + row as f64);
        *value = T::from_f64(if row.is_multiple_of(3) {
            scaled.abs()
        } else {
            scaled
        });
    }
    values
}

fn check_sizes<T: Element>() {
    for (rows, row_len) in [
        (0, 0),
        (0, 5),
        (1, 1),
        (5, 1),
        (7, 2),
        (4, 15),
        (4, 16),
        (4, 17),
        (5000, 16),
        (3000, 7),
        (3, 1000),
        (2, 16_383),
        (3, 16_384),
        (3, 16_385),
        (2, 16_386),
        (4, 40_001),
        (1, 100_000),
    ] {
        for bits in BOTH {
            check(bits, row_len, &values::<T>(rows, row_len));
        }
    }
}

#[test]
fn codes_and_scales_match_the_definition() {
    for threads in [1, 2, 5] {
        with_threads(threads, || {
            check_sizes::<f32>();
            check_sizes::<f64>();
        });
    }
}

#[test]
fn rows_of_any_kind_keep_to_themselves() {
    fn check_rows<T: Element>(least: T, most: T) {
        let t = T::from_f64;
        let tiny = |count: f64| t(count * least.to_f64());
        let rows = [
            [t(0.0); 3],
            [t(-0.0), t(0.0), t(-0.0)],
            [t(-1.0), t(-0.5), t(-2.0)],
            [t(0.5), t(f64::NAN), t(1.0)],
            [t(0.5), t(1.0), t(f64::INFINITY)],
            [t(f64::NEG_INFINITY), t(1.0), t(0.0)],
            [t(1.0), t(0.25), t(0.0)],
            [tiny(1.0), t(0.0), t(0.0)],
            [tiny(-1.0), t(0.0), tiny(1.0)],
            [tiny(300.0), tiny(100.0), tiny(1.0)],
            [tiny(-300.0), tiny(100.0), tiny(1.0)],
            [tiny(50_000.0), tiny(-77.0), tiny(1234.0)],
            [most, t(1.0), t(0.0)],
            [most, t(0.0) - most, t(0.0)],
            [t(1.0), t(1e-30), t(-1e-30)],
        ];
        for bits in BOTH {
            check(bits, 3, rows.as_flattened());
            for row in &rows {
                check(bits, 3, row);
                for value in row {
                    check(bits, 1, &[*value]);
                    // neither at the front of a row nor among what fills a register
                    for position in [0, 17, 20_000] {
                        let mut long = vec![T::ZERO; 20_001];
                        long[position] = *value;
                        check(bits, 20_001, &long);
                    }
                }
            }
        }
    }
    check_rows(f32::LEAST, f32::MAX);
    check_rows(f64::LEAST, f64::MAX);
}

#[test]
fn negative_zero_is_not_negative() {
    let (_, scales) = quantize(Bits::Eight, 2, &[-0.0_f32, 255.0]);
    assert_eq!(scales, [1.0]);
}

#[test]
fn known_codes() {
    let values = [0.0, 5.0, 15.0, -7.0, 3.0, 1.0];
    let (codes, scales) = quantize(Bits::Four, 3, &values);
    assert_eq!(codes, [0x50, 0x0f, 0x39, 0x01]);
    assert_eq!(scales, [1.0, -1.0]);
    assert_eq!(dequantize(Bits::Four, 3, &codes, &scales), values);
    let (codes, scales) = quantize(Bits::Eight, 3, &[0.0, 5.0, 255.0, -127.0, 3.0, 1.0]);
    assert_eq!(codes, [0, 5, 255, 129, 3, 1]);
    assert_eq!(scales, [1.0, -1.0]);
}

#[test]
fn rows_of_nothing_are_fine() {
    for bits in BOTH {
        assert_eq!(quantize::<f32>(bits, 0, &[]), (vec![], vec![]));
        assert_eq!(dequantize(bits, 0, &[], &[1.0_f32, 2.0]), []);
        assert_eq!(dequantize::<f32>(bits, 3, &[], &[]), []);
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for (rows, row_len) in [(3000, 17), (3, 40_001), (1, 200_000)] {
        let values = values::<f32>(rows, row_len);
        for bits in BOTH {
            let run = |threads| {
                with_threads(threads, || {
                    let (codes, scales) = quantize(bits, row_len, &values);
                    let values = dequantize(bits, row_len, &codes, &scales);
                    (codes, scales, values)
                })
            };
            assert_eq!(run(1), run(2));
        }
    }
}

#[test]
#[should_panic(expected = "quantize: values must have 4 elements, found 5")]
fn part_of_a_row_is_refused() {
    quantize(Bits::Eight, 2, &[0.0_f32; 5]);
}

#[test]
#[should_panic(expected = "quantize: values must have 0 elements, found 5")]
fn values_in_empty_rows_are_refused() {
    quantize(Bits::Eight, 0, &[0.0_f32; 5]);
}

#[test]
#[should_panic(expected = "dequantize: codes must have 4 elements, found 3")]
fn missing_codes_are_refused() {
    dequantize(Bits::Four, 3, &[0; 3], &[1.0_f32; 2]);
}

/// A row length, and some rows of numbers of every size.
fn rows() -> impl Strategy<Value = (usize, Vec<f32>)> {
    let number = any::<f32>().prop_filter("finite", |value| value.is_finite());
    let alike = (-100.0_f32..100.0, -44_i32..38, 0.0_f32..1.0)
        .prop_map(|(base, power, part)| base * part * 10_f32.powi(power).clamp(1e-38, 1e36));
    (0_usize..70, 0_usize..6).prop_flat_map(move |(row_len, rows)| {
        let len = row_len * rows;
        let mixed = prop::collection::vec(number.clone(), len);
        let alike = prop::collection::vec(alike.clone(), len);
        let positive = prop::collection::vec(0.0_f32..1.0, len);
        (Just(row_len), prop_oneof![mixed, alike, positive])
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_rows_are_within_half_a_step((row_len, values) in rows()) {
        let wide = common::widen(&values);
        for bits in BOTH {
            check(bits, row_len, &values);
            check(bits, row_len, &wide);
        }
    }
}
