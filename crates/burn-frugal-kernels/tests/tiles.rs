//! Tile sums, spreads and channel sums against their definitions.

mod common;

use burn_frugal_kernels::{Element, Span, Tiles, channel_sums, tile_spread, tile_sums};
use common::{assert_close, dot, numbers, widen, with_threads};
use proptest::prelude::*;

fn span(start: usize, stop: usize, weight: f64) -> Span {
    Span {
        start,
        stop,
        weight,
    }
}

fn sums_by_definition(
    tiles: &Tiles,
    planes: usize,
    [height, width]: [usize; 2],
    map: &[f64],
) -> Vec<f64> {
    let mut sums = Vec::new();
    for plane in 0..planes {
        for rows in &tiles.rows {
            for columns in &tiles.columns {
                let mut sum = 0.0;
                for y in rows.start..rows.stop {
                    for x in columns.start..columns.stop {
                        sum += map[(plane * height + y) * width + x];
                    }
                }
                sums.push(if sum == 0.0 {
                    0.0
                } else {
                    rows.weight * columns.weight * sum
                });
            }
        }
    }
    sums
}

fn spread_by_definition(
    tiles: &Tiles,
    planes: usize,
    [height, width]: [usize; 2],
    values: &[f64],
) -> Vec<f64> {
    let mut map = vec![0.0; planes * height * width];
    for plane in 0..planes {
        for (u, rows) in tiles.rows.iter().enumerate() {
            for (v, columns) in tiles.columns.iter().enumerate() {
                let value = values[(plane * tiles.rows.len() + u) * tiles.columns.len() + v];
                for y in rows.start..rows.stop {
                    for x in columns.start..columns.stop {
                        map[(plane * height + y) * width + x] =
                            rows.weight * columns.weight * value;
                    }
                }
            }
        }
    }
    map
}

fn check<T: Element>(tiles: &Tiles, planes: usize, size: [usize; 2]) {
    let count = planes * tiles.rows.len() * tiles.columns.len();
    let map: Vec<T> = numbers(planes * size[0] * size[1], 1);
    let values: Vec<T> = numbers(count, 2);
    let sums = tile_sums(tiles, planes, size, &map);
    let spread = tile_spread(tiles, planes, size, &values);
    let expected = sums_by_definition(tiles, planes, size, &widen(&map));
    let scale = widen(&map).iter().map(|value| value.abs()).sum::<f64>();
    let weight = tiles
        .rows
        .iter()
        .chain(&tiles.columns)
        .fold(1.0_f64, |most, span| most.max(span.weight.abs()));
    for (found, expected) in sums.iter().zip(&expected) {
        let bound = common::tolerance::<T>() * scale * weight * weight;
        assert!(
            (found.to_f64() - expected).abs() <= bound,
            "{found:?} for {expected}"
        );
    }
    assert_close(
        "spread",
        &spread,
        &spread_by_definition(tiles, planes, size, &widen(&values)),
    );
    // Transposes of each other: <sums(map), values> = <map, spread(values)>.
    let difference = dot(&sums, &values) - dot(&map, &spread);
    assert!(difference.abs() <= common::tolerance::<T>() * scale * weight * weight * 10.0);
}

fn spans() -> impl Strategy<Value = (Vec<Span>, usize)> {
    (
        prop::collection::vec((0_usize..3, 0_usize..5, -2.0_f64..2.0), 0..5),
        0_usize..3,
    )
        .prop_map(|(parts, tail)| {
            let mut position = 0;
            let spans = parts
                .into_iter()
                .map(|(gap, len, weight)| {
                    let start = position + gap;
                    position = start + len;
                    span(start, position, weight)
                })
                .collect();
            (spans, position + tail)
        })
}

proptest! {
    #[test]
    fn tiles_match_their_definition((rows, height) in spans(), (columns, width) in spans(), planes in 0_usize..6) {
        let tiles = Tiles { rows, columns };
        check::<f32>(&tiles, planes, [height, width]);
        check::<f64>(&tiles, planes, [height, width]);
    }
}

#[test]
fn large_maps_on_several_threads() {
    let rows = (0..57).map(|u| span(4 * u, 4 * u + 4, 0.25)).collect();
    let columns = (0..32).map(|v| span(7 * v, 7 * v + 7, 1.0)).collect();
    let tiles = Tiles { rows, columns };
    for threads in [1, 2, 5] {
        with_threads(threads, || check::<f32>(&tiles, 5, [228, 224]));
    }
}

/// Spans of one length and weight.
fn even(size: usize, len: usize, weight: f64) -> Vec<Span> {
    let spans = (0..size / len).map(|index| span(index * len, (index + 1) * len, weight));
    spans.collect()
}

#[test]
fn grids_of_equal_tiles() {
    for (size, tile) in [
        ([1, 1], [1, 1]),
        ([4, 4], [2, 2]),
        ([8, 8], [4, 4]),
        ([6, 4], [3, 2]),
        ([7, 14], [7, 7]),
        ([10, 30], [5, 10]),
        ([3, 16], [1, 8]),
        ([12, 16], [2, 1]),
        ([3, 3], [3, 3]),
        ([5, 5], [5, 5]),
        ([4, 40], [2, 4]),
        // not all of the map
        ([9, 8], [2, 2]),
        ([8, 9], [2, 2]),
    ] {
        let tiles = Tiles {
            rows: even(size[0], tile[0], 0.75),
            columns: even(size[1], tile[1], -0.5),
        };
        for planes in [1, 5, 3000] {
            for threads in [1, 2, 5] {
                with_threads(threads, || {
                    check::<f32>(&tiles, planes, size);
                    check::<f64>(&tiles, planes, size);
                });
            }
        }
    }
}

#[test]
fn means_of_an_uneven_grid() {
    let tiles = Tiles {
        rows: vec![span(0, 1, 1.0), span(1, 3, 0.5)],
        columns: vec![span(0, 2, 0.5), span(2, 2, f64::INFINITY)],
    };
    let map = [1.0_f32, 3.0, 5.0, 7.0, 9.0, 11.0];
    let sums = tile_sums(&tiles, 1, [3, 2], &map);
    assert_eq!(sums, [2.0, 0.0, 8.0, 0.0]);
    let spread = tile_spread(&tiles, 1, [3, 2], &[4.0_f32, 1.0, 8.0, 1.0]);
    assert_eq!(spread, [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
}

#[test]
fn a_nan_stays_in_its_tile() {
    let tiles = Tiles {
        rows: vec![span(0, 2, 1.0), span(2, 4, 1.0)],
        columns: vec![span(0, 2, 1.0), span(2, 4, 1.0)],
    };
    let mut map = [1.0_f64; 16];
    map[2 * 4 + 1] = f64::NAN;
    let sums = tile_sums(&tiles, 1, [4, 4], &map);
    let is_nan: Vec<bool> = sums.into_iter().map(f64::is_nan).collect();
    assert_eq!(is_nan, [false, false, true, false]);
}

#[test]
fn channel_sums_match_their_definition() {
    for (batch, channels, pixels) in [
        (0, 3, 4),
        (1, 1, 1),
        (2, 3, 0),
        (5, 7, 1),
        (3, 5, 16),
        (64, 17, 49),
        (2, 1, 5000),
    ] {
        let map: Vec<f32> = numbers(batch * channels * pixels, 1);
        let sums = channel_sums(batch, channels, pixels, &map);
        assert_eq!(sums.len(), channels);
        for (channel, &sum) in sums.iter().enumerate() {
            let expected: f64 = (0..batch)
                .flat_map(|image| &map[(image * channels + channel) * pixels..][..pixels])
                .map(|&value| f64::from(value))
                .sum();
            let bound = 1e-6 * (batch * pixels) as f64;
            assert!(
                (f64::from(sum) - expected).abs() <= bound,
                "{batch} x {channels} x {pixels}"
            );
        }
    }
}

#[test]
#[should_panic(
    expected = "tile_sums: columns must be ascending, disjoint and at most 4, found 1..3 after 2"
)]
fn overlapping_tiles_are_refused() {
    let tiles = Tiles {
        rows: vec![span(0, 1, 1.0)],
        columns: vec![span(0, 2, 1.0), span(1, 3, 1.0)],
    };
    tile_sums(&tiles, 1, [1, 4], &[0.0_f32; 4]);
}

#[test]
#[should_panic(expected = "tile_spread: values must have 1 elements, found 2")]
fn too_many_values_are_refused() {
    let tiles = Tiles {
        rows: vec![span(0, 1, 1.0)],
        columns: vec![span(0, 4, 1.0)],
    };
    tile_spread(&tiles, 1, [1, 4], &[0.0_f32; 2]);
}
