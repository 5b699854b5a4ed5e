//! Guards the predictions of `Method::bytes` and `Method::flops`: by hand where sizes are small.

mod properties;
mod shortcuts;

use burn_frugal::kernels::ConvGeometry;
use burn_frugal::methods::{ActivationShortcut, Flops};
use burn_frugal::{LayerGeometry, LinearGeometry, Method};

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

/// Forward pools the input; the weight's gradient pools the output's and multiplies on tiles; the input's,
/// from the same pooled values, sums the kernels, multiplies, and spreads to the input.
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
        let input_gradient = kernels + on_tiles + input;
        assert_flops(filter, DENSE, [input, output + on_tiles, input_gradient]);
        assert_elements(filter, DENSE, 2 * 4 * (4 * 5));
    }
    let filter = Method::gradient_filter(2);
    // a kernel of one tap is its own sum
    let input_gradient = on_tiles + input;
    assert_flops(
        filter,
        POINTWISE,
        [input, output + on_tiles, input_gradient],
    );
    assert_elements(filter, POINTWISE, 2 * 4 * (4 * 5));

    // an output of 4 x 5 pixels has 2 x 3 tiles, the last ones clipped, and a channel sees itself
    let (output, on_tiles, kernels) = (2 * 4 * 20, 2 * (2 * 4 * 2 * 3), 4 * 9);
    let input_gradient = kernels + on_tiles + input;
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
