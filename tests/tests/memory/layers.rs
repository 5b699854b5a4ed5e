//! Guards what layers keep that have no convolution in them, and what the operations between layers
//! do not keep.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::tensor::{Device, Tensor};
use burn_frugal::Method;
use burn_frugal::methods::ActivationShortcut;
use burn_frugal::nn::{
    BatchNorm, BatchNormConfig, GlobalAveragePool2d, HardSwish, MaxPool2d, MaxPool2dConfig,
};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{autodiff_devices, random};

use super::{
    GRAPH_BYTES, MEASURABLE_BYTES, alone, assert_promise, fewer_with_checkpointing, kept_bytes,
    leaf,
};

/// `[batch, channels, height, width]`; even 4 bits of it are worth keeping.
const MAP: [usize; 4] = [8, 32, 40, 44];

fn elements() -> usize {
    MAP.iter().product()
}

/// The graph, and a scale a channel.
const NORMALIZATION_BYTES: usize = GRAPH_BYTES + MAP[1] * size_of::<f32>();

/// With running statistics; gamma and beta are trained.
fn fixed(method: Method, device: &Device) -> BatchNorm {
    let norm = BatchNormConfig::new(MAP[1]).init(device);
    let norm = norm.with_method(method).expect("suitable");
    BatchNorm {
        training: norm.training.clone().with_value(false),
        ..norm
    }
}

fn methods() -> Vec<Method> {
    let shortcut = ActivationShortcut::new([8, 24, 20, 22]);
    vec![
        Method::Exact,
        Method::quantized(8),
        Method::quantized(4),
        Method::gradient_filter(2),
        Method::channel_sparse(0.5),
        shortcut.into(),
        shortcut.sequential().into(),
    ]
}

#[test]
fn normalization_keeps_what_the_method_of_a_trained_gamma_promises() {
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            let x = leaf(MAP, &device);
            let like = same([MAP[1], MAP[1]], 1).with_groups(MAP[1]).init(&device);
            for &method in fewer_with_checkpointing(&device_name, &methods()) {
                let name = format!("{method} ({device_name})");
                let norm = fixed(method, &device);
                let promised = method.bytes(like.geometry(MAP), size_of::<f32>());
                assert!(promised >= MEASURABLE_BYTES, "{name}: {promised} bytes");
                let kept = kept_bytes(&norm, |norm| norm.forward(x.clone() * 2.0));
                assert_promise(&name, kept, promised);
            }
        }
    });
}

#[test]
fn normalization_with_a_frozen_gamma_keeps_nothing() {
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            let x = leaf(MAP, &device);
            let plain = random(1, MAP, &device.clone().without_autodiff());
            for method in methods() {
                let name = format!("{method} ({device_name})");
                let norm = fixed(method, &device);
                let frozen = norm.clone().freeze();
                let kept = kept_bytes(&frozen, |norm| norm.forward(x.clone() * 2.0));
                assert!(kept <= NORMALIZATION_BYTES, "{name}: {kept} bytes");

                let mut only_beta = norm.clone();
                only_beta.gamma = only_beta.gamma.set_require_grad(false);
                let kept = kept_bytes(&only_beta, |norm| norm.forward(x.clone() * 2.0));
                assert!(
                    kept <= NORMALIZATION_BYTES,
                    "{name}, only beta: {kept} bytes"
                );

                let valid = norm.valid();
                let kept = kept_bytes(&valid, |norm| norm.forward(plain.clone() * 2.0));
                assert!(kept <= NORMALIZATION_BYTES, "{name}, valid: {kept} bytes");
            }
            // other numbers of axes go through views
            let rows = leaf([512, MAP[1]], &device);
            let frozen = fixed(Method::Exact, &device).freeze();
            let kept = kept_bytes(&frozen, |norm| norm.forward(rows.clone() * 2.0));
            assert!(
                kept <= 2 * NORMALIZATION_BYTES,
                "{device_name}, rows: {kept} bytes"
            );
        }
    });
}

#[test]
fn max_pooling_keeps_a_byte_an_output() {
    alone(|| {
        let pools: [MaxPool2d; 3] = [
            MaxPool2dConfig::new([2, 2]).init(),
            MaxPool2dConfig::new([3, 3])
                .with_strides([1, 1])
                .with_padding(PaddingConfig2d::Same)
                .init(),
            MaxPool2dConfig::new([3, 2])
                .with_strides([1, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 0, 1, 0))
                .init(),
        ];
        let shape = [16, 32, 56, 60];
        for (device_name, device) in autodiff_devices() {
            let x = leaf(shape, &device);
            for pool in &pools {
                let outputs = pool.geometry(shape).output_len();
                let name = format!("{pool} ({device_name})");
                assert!(outputs >= MEASURABLE_BYTES, "{name}: {outputs} outputs");
                let kept = kept_bytes(pool, |pool| pool.forward(x.clone() * 2.0));
                assert_promise(&name, kept, outputs);
                let constant = random(1, shape, &device);
                let kept = kept_bytes(pool, |pool| pool.forward(constant.clone() * 2.0));
                assert!(kept <= GRAPH_BYTES, "{name}, not tracked: {kept} bytes");
            }
        }
    });
}

#[test]
fn hard_swish_keeps_a_byte_an_element() {
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            let x = leaf(MAP, &device);
            let kept = kept_bytes(&(), |()| HardSwish::new().forward(x.clone() * 2.0));
            assert_promise(&device_name, kept, elements());
        }
    });
}

#[test]
fn global_average_pooling_keeps_nothing() {
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            let x = leaf(MAP, &device);
            let kept = kept_bytes(&(), |()| {
                GlobalAveragePool2d::new().forward(x.clone() * 2.0)
            });
            assert!(kept <= 2 * GRAPH_BYTES, "{device_name}: {kept} bytes");
        }
    });
}

/// Burn's own operations between layers, as this library's documentation counts them.
#[test]
fn sums_and_views_between_layers_keep_nothing() {
    type Between = fn(Tensor<4>) -> Tensor<4>;
    let operations: [(&str, Between); 3] = [
        ("a residual sum", |x| x.clone() * 2.0 + x * 3.0),
        ("flattened and back", |x| {
            let shape = x.dims();
            (x * 2.0).flatten::<2>(1, 3).reshape(shape)
        }),
        ("scaled", |x| x * 2.0),
    ];
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            let x = leaf(MAP, &device);
            for (name, operation) in operations {
                let kept = kept_bytes(&(), |()| operation(x.clone()));
                assert!(
                    kept <= 2 * GRAPH_BYTES,
                    "{name} ({device_name}): {kept} bytes"
                );
            }
        }
    });
}
