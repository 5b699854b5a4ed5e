//! Guards the predictions for shortcuts, by hand.
#![allow(
    clippy::identity_op,
    reason = "sizes of 1 are part of the arithmetic that a reader checks"
)]

use burn_frugal::kernels::ConvGeometry;
use burn_frugal::methods::ActivationShortcut;
use burn_frugal::{LinearGeometry, Method};

use super::{
    DENSE, DENSE_GRADIENT, DEPTHWISE, DEPTHWISE_GRADIENT, LINEAR_GRADIENT, POINTWISE,
    POINTWISE_GRADIENT, RANKS, assert_elements, assert_flops, linear,
};

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
