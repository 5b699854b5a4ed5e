//! Guards global average pooling: the values and gradients of Burn's adaptive pooling to one pixel.

use burn::nn::pool::AdaptiveAvgPool2dConfig;
use burn::tensor::{DType, Tensor};
use burn_frugal::nn::GlobalAveragePool2d;
use burn_frugal_tests::layers::cut_out;
use burn_frugal_tests::{assert_close, autodiff_devices, devices, random_dtype, values};

const PRECISIONS: [(DType, f64); 4] = [
    (DType::F32, 1e-6),
    (DType::F64, 1e-14),
    (DType::F16, 3e-3),
    (DType::BF16, 2e-2),
];

fn burns(map: Tensor<4>) -> Tensor<2> {
    let [batch, channels, ..] = map.dims();
    let pool = AdaptiveAvgPool2dConfig::new([1, 1]).init();
    pool.forward(map).reshape([batch, channels])
}

fn ours(map: Tensor<4>) -> Tensor<2> {
    GlobalAveragePool2d::new().forward(map)
}

/// Output and input gradient.
fn pass(forward: fn(Tensor<4>) -> Tensor<2>, input: Tensor<4>) -> [Vec<f64>; 2] {
    let leaf = input.detach().require_grad();
    let output = forward(leaf.clone());
    let upstream = random_dtype(2, output.dims(), &leaf.device(), leaf.dtype());
    let gradients = (output.clone() * upstream).sum().backward();
    [
        values(output),
        values(leaf.grad(&gradients).expect("tracked")),
    ]
}

#[test]
fn values_and_gradients_are_burns() {
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in PRECISIONS {
            if !device.supports_dtype(dtype) {
                continue;
            }
            for shape in [[2, 3, 5, 7], [1, 1, 1, 1], [3, 40, 1, 6], [1, 2, 33, 64]] {
                let x = random_dtype(1, shape, &device, dtype) + 0.25;
                let name = format!("{shape:?}, {dtype:?} ({device_name})");
                let (found, expected) = (pass(ours, x.clone()), pass(burns, x));
                for (found, expected) in found.iter().zip(&expected) {
                    assert_close(&name, found, expected, tolerance);
                }
            }
        }
    }
}

#[test]
fn strided_maps_are_read_as_they_are() {
    for (device_name, device) in autodiff_devices() {
        let map = random_dtype(1, [2, 3, 5, 7], &device, DType::F64);
        let last = random_dtype(1, [2, 5, 7, 3], &device, DType::F64).permute([0, 3, 1, 2]);
        let cut = (0..4).map(|axis| cut_out(map.clone(), axis));
        for x in cut.chain([map.clone().swap_dims(2, 3), last]) {
            let (found, expected) = (pass(ours, x.clone()), pass(burns, x));
            for (found, expected) in found.iter().zip(&expected) {
                assert_close(&device_name, found, expected, 1e-14);
            }
        }
    }
}

#[test]
fn a_device_without_autodiff_gives_the_same_values() {
    for (name, device) in devices() {
        let x = random_dtype(1, [2, 3, 5, 7], &device, DType::F64);
        let output = ours(x.clone());
        assert!(!output.is_autodiff(), "{name}");
        assert_close(name, &values(output), &values(burns(x)), 1e-14);
    }
}

#[test]
fn no_images_have_no_means() {
    for (name, device) in autodiff_devices() {
        let x = Tensor::<4>::zeros([0, 3, 4, 4], &device).require_grad();
        let output = ours(x.clone());
        assert_eq!(output.dims(), [0, 3], "{name}");
        let gradients = output.sum().backward();
        assert_eq!(
            x.grad(&gradients).expect("tracked").dims(),
            [0, 3, 4, 4],
            "{name}"
        );
    }
}
