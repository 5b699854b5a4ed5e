//! Guards the predictions of `Method::bytes` and `Method::flops`: by hand where sizes are small, and
//! by what has to hold for all sizes.
#![allow(
    clippy::identity_op,
    reason = "sizes of 1 are part of the arithmetic that a reader checks"
)]

use burn_frugal::kernels::ConvGeometry;
use burn_frugal::methods::{ActivationShortcut, ChannelSparse, Flops};
use burn_frugal::{LayerGeometry, LinearGeometry, Method, PerMode};
use proptest::prelude::*;

/// 2 images of 8 x 10 pixels, 4 channels to 6, 3 x 3 taps: the output has 8 x 10 pixels as well.
const DENSE: ConvGeometry = ConvGeometry {
    batch: 2,
    input_channels: 4,
    output_channels: 6,
    input: [8, 10],
    kernel: [3, 3],
    stride: [1, 1],
    padding: [(1, 1), (1, 1)],
    dilation: [1, 1],
    groups: 1,
};

/// A group a channel, and every second pixel: the output has 4 x 5 pixels.
const DEPTHWISE: ConvGeometry = ConvGeometry {
    output_channels: 4,
    stride: [2, 2],
    groups: 4,
    ..DENSE
};

/// One tap.
const POINTWISE: ConvGeometry = ConvGeometry {
    kernel: [1, 1],
    padding: [(0, 0), (0, 0)],
    ..DENSE
};

/// 2 x 5 rows, 8 features to 3.
fn linear() -> LinearGeometry {
    LinearGeometry::new(&[2, 5, 8], 3)
}

/// The ranks of the examples with convolutions, half of each size of [2, 4, 8, 10].
const RANKS: [usize; 4] = [1, 2, 4, 5];

#[track_caller]
fn assert_flops(
    method: impl Into<Method>,
    geometry: impl Into<LayerGeometry>,
    [forward, weight_gradient, input_gradient]: [u64; 3],
) {
    let (method, geometry) = (method.into(), geometry.into());
    let expected = Flops {
        forward,
        weight_gradient,
        input_gradient,
    };
    assert_eq!(method.flops(geometry), expected, "{method}, {geometry:?}");
}

/// Bytes of this many elements of 1, 4 and 8 bytes.
#[track_caller]
fn assert_elements(method: impl Into<Method>, geometry: impl Into<LayerGeometry>, elements: usize) {
    let (method, geometry) = (method.into(), geometry.into());
    for size in [1, 4, 8] {
        let bytes = method.bytes(geometry, size);
        assert_eq!(bytes, elements * size, "{method}, {geometry:?}");
    }
}

/// Every element of the output takes a product a tap and channel of its group, and so does each of
/// its two gradients; a product and its addition are 2 operations.
const DENSE_GRADIENT: u64 = 2 * (2 * 6 * 8 * 10) * (3 * 3) * 4;
const DEPTHWISE_GRADIENT: u64 = 2 * (2 * 4 * 4 * 5) * (3 * 3);
const POINTWISE_GRADIENT: u64 = 2 * (2 * 6 * 8 * 10) * 4;
const LINEAR_GRADIENT: u64 = 2 * (2 * 5 * 3) * 8;

/// Elements of the inputs.
const CONV_INPUT: usize = 2 * 4 * 8 * 10;
const LINEAR_INPUT: usize = 2 * 5 * 8;

#[test]
fn exact_gradients_take_what_the_forward_pass_takes_each() {
    let off = [
        Method::Exact,
        Method::gradient_filter(1),
        Method::published_gradient_filter(1),
        Method::hosvd(1.0),
    ];
    for method in off {
        for (geometry, gradient) in [
            (DENSE, DENSE_GRADIENT),
            (DEPTHWISE, DEPTHWISE_GRADIENT),
            (POINTWISE, POINTWISE_GRADIENT),
        ] {
            assert_flops(method, geometry, [0, gradient, gradient]);
            assert_elements(method, geometry, CONV_INPUT);
        }
    }
    for method in [Method::Exact, Method::hosvd(1.0)] {
        assert_flops(method, linear(), [0, LINEAR_GRADIENT, LINEAR_GRADIENT]);
        assert_elements(method, linear(), LINEAR_INPUT);
    }
}

/// Forward pools the input; the weight's gradient pools the output's and multiplies on tiles; the
/// input's also pools the output's and sums the kernels, multiplies, and spreads to the input.
#[test]
fn a_gradient_filter_multiplies_on_tiles() {
    // 4 x 5 tiles of 2 x 2 pixels
    let (input, output) = (2 * 4 * 80, 2 * 6 * 80);
    let on_tiles = 2 * (2 * 6 * 4 * 5) * 4;
    for filter in [
        Method::gradient_filter(2),
        Method::published_gradient_filter(2),
    ] {
        let kernels = 6 * 4 * 9;
        let input_gradient = output + kernels + on_tiles + input;
        assert_flops(filter, DENSE, [input, output + on_tiles, input_gradient]);
        assert_elements(filter, DENSE, 2 * 4 * (4 * 5));
    }
    let filter = Method::gradient_filter(2);
    let kernels = 6 * 4;
    let input_gradient = output + kernels + on_tiles + input;
    assert_flops(
        filter,
        POINTWISE,
        [input, output + on_tiles, input_gradient],
    );
    assert_elements(filter, POINTWISE, 2 * 4 * (4 * 5));

    // an output of 4 x 5 pixels has 2 x 3 tiles, the last ones clipped, and a channel sees itself
    let (output, on_tiles, kernels) = (2 * 4 * 20, 2 * (2 * 4 * 2 * 3), 4 * 9);
    let input_gradient = output + kernels + on_tiles + input;
    assert_flops(
        filter,
        DEPTHWISE,
        [input, output + on_tiles, input_gradient],
    );
    assert_elements(filter, DEPTHWISE, 2 * 4 * (2 * 3));
}

#[test]
fn channel_sparse_takes_its_share_of_the_weight_gradient() {
    // of 4 channels; never none
    for (ratio, channels) in [(0.01, 1), (0.25, 1), (0.5, 2), (0.7, 3), (1.0, 4)] {
        for (geometry, gradient) in [
            (DENSE, DENSE_GRADIENT),
            (DEPTHWISE, DEPTHWISE_GRADIENT),
            (POINTWISE, POINTWISE_GRADIENT),
        ] {
            let method = Method::channel_sparse(ratio);
            assert_flops(method, geometry, [0, gradient / 4 * channels, gradient]);
            assert_elements(method, geometry, 2 * channels as usize * 8 * 10);
        }
    }
    // of 8 features
    for (ratio, features) in [(0.01, 1), (0.25, 2), (0.55, 4), (1.0, 8)] {
        let method = Method::channel_sparse(ratio);
        let weight_gradient = LINEAR_GRADIENT / 8 * features;
        assert_flops(method, linear(), [0, weight_gradient, LINEAR_GRADIENT]);
        assert_elements(method, linear(), 2 * 5 * features as usize);
    }
}

/// `X (X^T U)` is two products of `size * rank * columns` each, and the Householder QR of a matrix
/// `[size, rank]` with its thin Q takes `4 * size * rank^2`.
fn iteration([size, rank, columns]: [u64; 3]) -> u64 {
    2 * (2 * size * rank * columns) + 4 * size * rank * rank
}

/// One iteration a mode on the whole input, then the input is contracted along all modes: `n`
/// elements to rank `r` take `n * r` products, the cheapest order first. All ranks are half of their
/// sizes here, so the smallest rank goes first.
const PROJECTION: u64 = 640 + 320 * 2 + 160 * 4 + 80 * 5;

fn independent_forward() -> u64 {
    iteration([2, 1, 320])
        + iteration([4, 2, 160])
        + iteration([8, 4, 80])
        + iteration([10, 5, 64])
        + 2 * PROJECTION
}

/// Channels first, then the batch and the map, each on what is left.
fn sequential_forward() -> u64 {
    (iteration([4, 2, 160]) + 2 * 640 * 2)
        + (iteration([2, 1, 160]) + 2 * 320)
        + (iteration([8, 4, 20]) + 2 * 160 * 4)
        + (iteration([10, 5, 8]) + 2 * 80 * 5)
}

/// The factors are there and the batch is not compressed: contractions only, channels first.
const FROZEN_FORWARD: u64 = 2 * (640 * 2 + 320 * 4 + 160 * 5);

#[test]
fn a_shortcut_of_a_dense_convolution() {
    let shortcut = ActivationShortcut::new(RANKS);
    // The core of 1 x 2 x 4 x 5 is expanded to the width of 10, then to the height of 8. The output's
    // gradient is contracted to 1 image. The gradient of a convolution of 1 image with 2 channels is
    // left, and is expanded from 2 channels to 4.
    let expansion = 40 * 10 + 80 * 8;
    let contraction = (2 * 6 * 80) * 1;
    let gradient = (6 * 80) * 9 * 2;
    let channels = (6 * 2 * 9) * 4;
    let weight = 2 * (expansion + contraction + gradient + channels);
    assert!(3 * weight < DENSE_GRADIENT);
    assert_flops(
        shortcut,
        DENSE,
        [independent_forward(), weight, DENSE_GRADIENT],
    );
    let sequential = shortcut.sequential();
    assert_flops(
        sequential,
        DENSE,
        [sequential_forward(), weight, DENSE_GRADIENT],
    );
    let elements = 1 * 2 * 4 * 5 + (2 * 1 + 4 * 2 + 8 * 4 + 10 * 5);
    assert_elements(shortcut, DENSE, elements);
    assert_elements(sequential, DENSE, elements);

    // with both images in the core, nothing is contracted
    let expansion = 80 * 10 + 160 * 8;
    let gradient = (2 * 6 * 80) * 9 * 2;
    let weight = 2 * (expansion + gradient + channels);
    let frozen = shortcut.frozen();
    assert_flops(frozen, DENSE, [FROZEN_FORWARD, weight, DENSE_GRADIENT]);
    assert_flops(
        frozen.sequential(),
        DENSE,
        [FROZEN_FORWARD, weight, DENSE_GRADIENT],
    );
    assert_elements(frozen, DENSE, 2 * 2 * 4 * 5 + (4 * 2 + 8 * 4 + 10 * 5));
}

#[test]
fn a_shortcut_of_a_depthwise_convolution() {
    let shortcut = ActivationShortcut::new(RANKS);
    // Channels in groups have to be there, all 4: the core is expanded in the order of width, height,
    // channels. One image of the output's gradient, 4 x 5 pixels in 4 channels, is enough.
    let expansion = 40 * 10 + 80 * 8 + 160 * 4;
    let contraction = (2 * 4 * 20) * 1;
    let gradient = (4 * 20) * 9;
    let weight = 2 * (expansion + contraction + gradient);
    let forward = independent_forward();
    assert_flops(shortcut, DEPTHWISE, [forward, weight, DEPTHWISE_GRADIENT]);
    let sequential = sequential_forward();
    assert_flops(
        shortcut.sequential(),
        DEPTHWISE,
        [sequential, weight, DEPTHWISE_GRADIENT],
    );
    let expansion = 80 * 10 + 160 * 8 + 320 * 4;
    let frozen = 2 * (expansion + (2 * 4 * 20) * 9);
    assert_flops(
        shortcut.frozen(),
        DEPTHWISE,
        [FROZEN_FORWARD, frozen, DEPTHWISE_GRADIENT],
    );
    assert_elements(shortcut, DEPTHWISE, 40 + (2 + 8 + 32 + 50));
}

#[test]
fn a_shortcut_of_a_pointwise_convolution() {
    // as for the dense one, with 1 tap
    let weight = 2 * ((40 * 10 + 80 * 8) + (2 * 6 * 80) * 1 + (6 * 80) * 2 + (6 * 2) * 4);
    let shortcut = ActivationShortcut::new(RANKS);
    let forward = independent_forward();
    assert_flops(shortcut, POINTWISE, [forward, weight, POINTWISE_GRADIENT]);

    // With few outputs and ranks the map stays contracted as well: the output's gradient goes from
    // 10 columns to 1, 8 rows to 1 and 2 images to 1, and a product for 4 channels of rank 2 is left,
    // which is expanded to 4.
    let narrow = ConvGeometry {
        output_channels: 1,
        ..POINTWISE
    };
    let contraction = 2 * 8 * 10 + 2 * 8 + 2;
    let gradient = 1 * 2;
    let channels = 2 * 4;
    let weight = 2 * (contraction + gradient + channels);
    let found = Method::activation_shortcut([1, 2, 1, 1]).flops(narrow);
    assert_eq!(found.weight_gradient, weight);
}

#[test]
fn a_shortcut_of_a_linear_layer() {
    let shortcut = ActivationShortcut::new([1, 2, 3]);
    let iterations = iteration([2, 1, 40]) + iteration([5, 2, 16]) + iteration([8, 3, 10]);
    let projection = 80 * 1 + 40 * 2 + 16 * 3;
    // All stays contracted: the output's gradient of 2 x 5 x 3 goes to 1 x 5 x 3, then 1 x 2 x 3; the
    // gradient of 2 rows with 3 features is left, and is expanded from 3 to 8.
    let weight = 2 * ((30 * 1 + 15 * 2) + (2 * 3) * 3 + (3 * 3) * 8);
    let forward = iterations + 2 * projection;
    assert_flops(shortcut, linear(), [forward, weight, LINEAR_GRADIENT]);
    // features first
    let sequential = (iteration([8, 3, 10]) + 2 * 80 * 3)
        + (iteration([2, 1, 15]) + 2 * 30 * 1)
        + (iteration([5, 2, 3]) + 2 * 15 * 2);
    assert_flops(
        shortcut.sequential(),
        linear(),
        [sequential, weight, LINEAR_GRADIENT],
    );
    let elements = 1 * 2 * 3 + (2 * 1 + 5 * 2 + 8 * 3);
    assert_elements(shortcut, linear(), elements);
    assert_elements(shortcut.sequential(), linear(), elements);

    // both samples stay; 5 rows are contracted to 2
    let projection = 80 * 2 + 32 * 3;
    let weight = 2 * (30 * 2 + (2 * 2 * 3) * 3 + (3 * 3) * 8);
    let frozen = shortcut.frozen();
    assert_flops(frozen, linear(), [2 * projection, weight, LINEAR_GRADIENT]);
    assert_elements(frozen, linear(), 2 * 2 * 3 + (5 * 2 + 8 * 3));
}

/// Where the rank is near the size, `(X X^T) U` is cheaper.
#[test]
fn a_high_rank_is_iterated_with_a_gram_matrix() {
    let geometry = LinearGeometry::new(&[100, 8], 3);
    let gram = 2 * 8 * 8 * 100 + 2 * 8 * 8 * 7;
    let qr = 4 * 8 * 7 * 7;
    let projection = 2 * 800 * 7;
    // the rank of 100 rows is at most 8
    let shortcut = ActivationShortcut::new([100, 7]);
    let rows = iteration([100, 8, 8]);
    let projection_of_both = 2 * (800 * 8 + 64 * 7);
    let found = Method::from(shortcut).flops(geometry).forward;
    assert_eq!(found, gram + qr + rows + projection_of_both);
    let frozen = Method::from(shortcut.frozen()).flops(geometry).forward;
    assert_eq!(frozen, projection);
}

/// A Gram matrix a mode, `2 size^2 columns`, and its eigenvectors, about `9 size^3`. The ranks are not
/// known, so the gradient is that of full ranks, and bytes are the most that there can be: a core as
/// large as the input and square factors, or as wide as the unfolding.
#[test]
fn hosvd_decomposes_every_mode() {
    let mode = |size: u64, columns: u64| 2 * size * size * columns + 9 * size * size * size;
    let convolution = mode(2, 320) + mode(4, 160) + mode(8, 80) + mode(10, 64);
    let hosvd = Method::hosvd(0.8);
    for (geometry, gradient) in [
        (DENSE, DENSE_GRADIENT),
        (DEPTHWISE, DEPTHWISE_GRADIENT),
        (POINTWISE, POINTWISE_GRADIENT),
    ] {
        assert_flops(hosvd, geometry, [convolution, gradient, gradient]);
        assert_elements(hosvd, geometry, CONV_INPUT + (4 + 16 + 64 + 100));
    }
    let decompositions = mode(2, 40) + mode(5, 16) + mode(8, 10);
    assert_flops(
        hosvd,
        linear(),
        [decompositions, LINEAR_GRADIENT, LINEAR_GRADIENT],
    );
    assert_elements(hosvd, linear(), LINEAR_INPUT + (4 + 25 + 64));
    // 100 rows have 8 columns
    let tall = LinearGeometry::new(&[100, 8], 3);
    assert_elements(hosvd, tall, 800 + (100 * 8 + 8 * 8));
}

/// A vector is a row, and surplus axes at the front are one.
#[test]
fn geometries_of_linear_layers_have_two_to_four_modes() {
    let geometry = |shape: &[usize]| LinearGeometry::new(shape, 3);
    assert_eq!(geometry(&[8]), geometry(&[1, 8]));
    assert_eq!(geometry(&[2, 3, 4, 5, 8]), geometry(&[6, 4, 5, 8]));
    assert_eq!(geometry(&[2, 3, 2, 4, 5, 8]), geometry(&[12, 4, 5, 8]));
    assert_ne!(geometry(&[2, 5, 8]), geometry(&[10, 8]));
    let exact = Method::Exact;
    assert_eq!(
        exact.flops(geometry(&[2, 5, 8])),
        exact.flops(geometry(&[10, 8]))
    );
}

#[test]
fn totals_add_up() {
    let flops = |forward, weight_gradient, input_gradient| Flops {
        forward,
        weight_gradient,
        input_gradient,
    };
    let (a, b) = (flops(1, 20, 300), flops(4_000, 50_000, 600_000));
    assert_eq!(a.total(), 321);
    assert_eq!(a + b, flops(4_001, 50_020, 600_300));
    let mut sum = a;
    sum += b;
    assert_eq!(sum, a + b);
    assert_eq!(Flops::default().total(), 0);
}

/// A late and wide layer with a batch that fills a large machine: far beyond 32 bits.
#[test]
fn large_layers_do_not_overflow() {
    let geometry = ConvGeometry {
        batch: 256,
        input_channels: 1024,
        output_channels: 1024,
        input: [224, 224],
        ..DENSE
    };
    let elements = 256.0 * 1024.0 * 224.0 * 224.0;
    let gradient = 2.0 * elements * 9.0 * 1024.0;
    let linear = LinearGeometry::new(&[256, 224, 224, 1024], 1024);
    let shortcut = ActivationShortcut::new([128, 512, 112, 112]);
    let methods = [
        Method::Exact,
        Method::gradient_filter(2),
        Method::channel_sparse(0.5),
        shortcut.into(),
        shortcut.sequential().into(),
        shortcut.frozen().into(),
        Method::hosvd(0.9),
    ];
    for method in methods {
        let flops = method.flops(geometry);
        // no method takes much more than the exact gradients; a wrapped number is far from them
        let total = flops.total() as f64;
        assert!(total <= 4.0 * gradient, "{method}: {total:e}");
        let input = flops.input_gradient as f64;
        match method {
            Method::GradientFilter(_) => assert!(input > gradient / 100.0, "{method}: {input:e}"),
            _ => assert_eq!(input, gradient, "{method}"),
        }
        let bytes = method.bytes(geometry, 8) as f64;
        assert!(
            bytes > elements / 16.0 && bytes < 1.01 * 8.0 * elements,
            "{method}: {bytes:e} bytes"
        );
    }
    let products = Method::Exact.flops(linear).weight_gradient as f64;
    assert_eq!(products, 2.0 * elements * 1024.0);
    // 65 thousand features: 9 size^3 is 2.5e15
    let wide = LinearGeometry::new(&[4096, 1 << 16], 16);
    let decompositions = Method::hosvd(0.5).flops(wide).forward as f64;
    let size = f64::from(1 << 16);
    let expected = 2.0 * size * size * 4096.0
        + 9.0 * size.powi(3)
        + 2.0 * 4096.0 * 4096.0 * size
        + 9.0 * 4096.0_f64.powi(3);
    assert_eq!(decompositions, expected);
}

#[test]
fn no_images_cost_nothing() {
    let empty = ConvGeometry { batch: 0, ..DENSE };
    let shortcut = ActivationShortcut::new(RANKS);
    for method in [
        Method::Exact,
        Method::gradient_filter(2),
        Method::channel_sparse(0.5),
        shortcut.into(),
        shortcut.sequential().into(),
        shortcut.frozen().into(),
        Method::hosvd(0.5),
    ] {
        assert_eq!(method.flops(empty).weight_gradient, 0, "{method}");
        let bytes = method.bytes(empty, 4);
        match method {
            // its factors may stay, of frozen factors they are there whatever the batch
            Method::Hosvd(_) | Method::ActivationShortcut(_) => {
                assert!(bytes <= 4 * (16 + 64 + 100), "{method}: {bytes}");
            }
            _ => assert_eq!(bytes, 0, "{method}"),
        }
    }
}

/// Convolutions of any kind, dense, depthwise and grouped, and linear layers.
fn geometries() -> impl Strategy<Value = LayerGeometry> {
    let convolutions = (
        (1..5usize, 1..5usize, 1..5usize, 1..4usize),
        (4..13usize, 4..13usize),
        (1..4usize, 1..4usize),
        (1..3usize, 0..3usize, 0..3usize),
    );
    let convolutions = convolutions.prop_map(
        |((batch, inputs, outputs, groups), (height, width), (rows, columns), place)| {
            let (stride, before, after) = place;
            let conv = ConvGeometry {
                batch,
                input_channels: inputs * groups,
                output_channels: outputs * groups,
                input: [height, width],
                kernel: [rows, columns],
                stride: [stride, stride],
                padding: [(before, after), (after, before)],
                dilation: [1, 1],
                groups,
            };
            LayerGeometry::from(conv)
        },
    );
    let linear = (prop::collection::vec(1..20usize, 1..6), 1..30usize);
    let linear = linear.prop_map(|(shape, outputs)| LinearGeometry::new(&shape, outputs).into());
    prop_oneof![convolutions, linear]
}

/// A geometry with some rank for each mode; ranks above the sizes are possible.
fn with_ranks() -> impl Strategy<Value = (LayerGeometry, PerMode)> {
    geometries().prop_flat_map(|geometry| {
        let modes = geometry.modes();
        let ranks: Vec<_> = modes.as_slice().iter().map(|&size| 1..size + 3).collect();
        let ranks = ranks.prop_map(|ranks| PerMode::new(&ranks).expect("a rank a mode"));
        (Just(geometry), ranks)
    })
}

/// The largest rank that an unfolding `[size, columns]` can have.
fn clipped(modes: &[usize], ranks: &[usize]) -> Vec<usize> {
    let elements: usize = modes.iter().product();
    let pairs = modes.iter().zip(ranks);
    pairs
        .map(|(&size, &rank)| rank.min(size).min(elements / size))
        .collect()
}

/// The fewest products that take a tensor from one shape to another, in any order of its modes.
fn fewest_products(from: &[usize], to: &[usize]) -> u64 {
    let orders = (0..from.len()).filter(|&mode| from[mode] != to[mode]);
    let orders = orders.map(|mode| {
        let mut next = from.to_vec();
        next[mode] = to[mode];
        (from.iter().product::<usize>() * to[mode]) as u64 + fewest_products(&next, to)
    });
    orders.min().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_shortcut_keeps_its_core_and_the_factors_of_compressed_modes(
        (geometry, ranks) in with_ranks(),
    ) {
        let modes = geometry.modes();
        let elements = |ranks: &[usize]| {
            let pairs = modes.as_slice().iter().zip(ranks);
            let factors = pairs.filter(|(size, rank)| rank < size);
            ranks.iter().product::<usize>()
                + factors.map(|(size, rank)| size * rank).sum::<usize>()
        };
        let shortcut = ActivationShortcut::new(ranks);
        let every_step = clipped(modes.as_slice(), ranks.as_slice());
        for method in [shortcut, shortcut.sequential()] {
            prop_assert_eq!(Method::from(method).bytes(geometry, 4), 4 * elements(&every_step));
        }
        let pairs = modes.as_slice().iter().zip(ranks.as_slice());
        let mut frozen: Vec<usize> = pairs.map(|(&size, &rank)| rank.min(size)).collect();
        frozen[0] = modes[0];
        prop_assert_eq!(Method::from(shortcut.frozen()).bytes(geometry, 4), 4 * elements(&frozen));
    }

    #[test]
    fn a_shortcut_never_takes_more_than_expanding_everything((geometry, ranks) in with_ranks()) {
        let modes = geometry.modes();
        let exact = Method::Exact.flops(geometry);
        let ranks_used = clipped(modes.as_slice(), ranks.as_slice());
        let expansion = fewest_products(&ranks_used, modes.as_slice());
        let shortcut = ActivationShortcut::new(ranks);
        for method in [shortcut, shortcut.sequential()] {
            let found = Method::from(method).flops(geometry);
            prop_assert!(found.weight_gradient <= 2 * expansion + exact.weight_gradient);
            prop_assert_eq!(found.input_gradient, exact.input_gradient);
        }
        // the same ranks have the same gradient, however the factors were found
        prop_assert_eq!(
            Method::from(shortcut).flops(geometry).weight_gradient,
            Method::from(shortcut.sequential()).flops(geometry).weight_gradient
        );
    }

    #[test]
    fn full_ranks_are_the_exact_method(geometry in geometries()) {
        let modes = geometry.modes();
        let elements = modes.product();
        let full = (modes.as_slice().iter()).all(|&size| size <= elements / size);
        let shortcut = ActivationShortcut::new(modes);
        let methods = [shortcut, shortcut.sequential(), shortcut.frozen()];
        for method in methods.map(Method::from) {
            // a mode that is larger than all others together has no full rank, unless it is frozen
            let is_frozen = method == shortcut.frozen().into();
            if full || is_frozen {
                prop_assert_eq!(method.flops(geometry), Method::Exact.flops(geometry));
                prop_assert_eq!(method.bytes(geometry, 4), Method::Exact.bytes(geometry, 4));
            }
        }
    }

    /// On what channels leave, the other modes take less; but the contraction along channels comes
    /// first, with the whole input. It pays while the channels' rank is not the largest by far.
    #[test]
    fn sequential_truncation_takes_fewer_operations_at_low_ranks(
        (geometry, ranks) in with_ranks(),
    ) {
        let (modes, channels) = (geometry.modes(), geometry.channel_mode());
        let elements = modes.product();
        let mut halved: Vec<usize> = (modes.as_slice().iter().zip(ranks.as_slice()))
            .map(|(&size, &rank)| rank.min(size / 2).min(elements / size).max(1))
            .collect();
        let compressed = (0..modes.len()).filter(|&mode| halved[mode] < modes[mode]);
        let others: usize = compressed
            .filter(|&mode| mode != channels)
            .map(|mode| halved[mode])
            .sum();
        if others < 2 || modes[channels] < 2 {
            return Ok(());
        }
        halved[channels] = halved[channels].min(others / 2);
        let shortcut = ActivationShortcut::new(PerMode::new(&halved).expect("a rank a mode"));
        let independent = Method::from(shortcut).flops(geometry).forward;
        let sequential = Method::from(shortcut.sequential()).flops(geometry).forward;
        prop_assert!(sequential <= independent, "{} > {}", sequential, independent);
    }

    #[test]
    fn frozen_factors_take_no_iterations((geometry, ranks) in with_ranks()) {
        let modes = geometry.modes();
        let pairs = modes.as_slice().iter().zip(ranks.as_slice());
        let mut used: Vec<usize> = pairs.map(|(&size, &rank)| rank.min(size)).collect();
        used[0] = modes[0];
        let frozen = Method::from(ActivationShortcut::new(ranks).frozen());
        let expected = 2 * fewest_products(modes.as_slice(), &used);
        prop_assert_eq!(frozen.flops(geometry).forward, expected);
    }

    #[test]
    fn more_channels_cost_more(
        geometry in geometries(),
        (a, b) in (0.001..=1.0f64, 0.001..=1.0f64),
    ) {
        let [less, more] = [a.min(b), a.max(b)].map(Method::channel_sparse);
        prop_assert!(less.bytes(geometry, 4) <= more.bytes(geometry, 4));
        let [less, more] = [less, more].map(|method| method.flops(geometry));
        let exact = Method::Exact.flops(geometry);
        prop_assert!(less.weight_gradient <= more.weight_gradient);
        prop_assert!(more.weight_gradient <= exact.weight_gradient);
        prop_assert_eq!([less.forward, more.forward], [0, 0]);
        prop_assert_eq!(less.input_gradient, exact.input_gradient);
        let all = Method::channel_sparse(1.0);
        prop_assert_eq!(all.flops(geometry), exact);
        prop_assert_eq!(all.bytes(geometry, 4), Method::Exact.bytes(geometry, 4));
    }

    /// At least one, and no ratio misses the share by more than half a channel.
    #[test]
    fn a_ratio_is_rounded_to_channels(ratio in 0.001..=1.0f64, channels in 1..2000usize) {
        let found = ChannelSparse { ratio }.selected(channels);
        let share = ratio * channels as f64;
        prop_assert!((1..=channels).contains(&found));
        prop_assert!(found == 1 || (found as f64 - share).abs() <= 0.5 + 1e-9);
    }

    #[test]
    fn totals_are_sums((geometry, ranks) in with_ranks()) {
        let flops = Method::activation_shortcut(ranks).flops(geometry);
        let parts = flops.forward + flops.weight_gradient + flops.input_gradient;
        prop_assert_eq!(flops.total(), parts);
    }
}
