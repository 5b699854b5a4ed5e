//! Slices among zeros, against the definition.

mod common;

use burn_frugal_kernels::{Unfolding, place};
use common::numbers;

#[test]
fn slices_are_placed_along_every_mode() {
    let shape = [3, 5, 4];
    let positions = [2, 0];
    for mode in 0..3 {
        let mut small = shape;
        small[mode] = positions.len();
        let values: Vec<f32> = numbers(small.iter().product(), 1);
        let placed = place(&Unfolding::new(&shape, mode), &positions, &values);
        let mut index = [0; 3];
        for (place, &found) in placed.iter().enumerate() {
            index = [place / 20, place / 4 % 5, place % 4];
            let source = positions
                .iter()
                .position(|&position| position == index[mode]);
            let expected = source.map_or(0.0, |source| {
                let mut from = index;
                from[mode] = source;
                values[(from[0] * small[1] + from[1]) * small[2] + from[2]]
            });
            assert_eq!(found, expected, "mode {mode}, {index:?}");
        }
        assert_eq!(index, [2, 4, 3]);
    }
}

#[test]
fn nothing_placed_is_zero() {
    let unfolding = Unfolding::new(&[2, 3], 1);
    assert_eq!(place::<f64>(&unfolding, &[], &[]), [0.0; 6]);
    assert!(place::<f32>(&Unfolding::new(&[0, 3], 1), &[1], &[]).is_empty());
}

#[test]
#[should_panic(expected = "place: values must have 4 elements, found 3")]
fn a_wrong_length_panics() {
    place(&Unfolding::new(&[2, 3], 1), &[0, 1], &[1.0_f32; 3]);
}
