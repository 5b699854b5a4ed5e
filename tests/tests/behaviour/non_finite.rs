//! Guards non-finite values: a NaN or an infinity reaches what its window reaches, and no more.

use burn::tensor::{DType, Tensor, TensorData};
use burn_frugal::kernels::ConvGeometry;
use burn_frugal::nn::Conv2dConfig;
use burn_frugal_tests::layers::{layer, same};
use burn_frugal_tests::{Pass, devices, random, values};

/// Whether output `output` reads pixel `pixel` along an axis.
fn reads(geometry: &ConvGeometry, axis: usize, output: usize, pixel: usize) -> bool {
    (0..geometry.kernel[axis]).any(|tap| {
        let shifted = geometry.stride[axis] * output + geometry.dilation[axis] * tap;
        shifted == pixel + geometry.padding[axis].0
    })
}

/// For each output, whether its window contains input `[image, channel, row, column]`.
fn reached(geometry: &ConvGeometry, [image, channel, row, column]: [usize; 4]) -> Vec<bool> {
    let [height, width] = geometry.output();
    let group = |channel: usize, channels: usize| channel * geometry.groups / channels;
    let mut reached = Vec::with_capacity(geometry.output_len());
    for n in 0..geometry.batch {
        for o in 0..geometry.output_channels {
            let connected = n == image
                && group(o, geometry.output_channels) == group(channel, geometry.input_channels);
            for p in 0..height {
                for q in 0..width {
                    let window = reads(geometry, 0, p, row) && reads(geometry, 1, q, column);
                    reached.push(connected && window);
                }
            }
        }
    }
    reached
}

/// Dense, strided, depthwise, grouped, pointwise, dilated, large and unpadded: each takes another
/// way through the kernels.
fn kinds_of_layer() -> Vec<Conv2dConfig> {
    vec![
        same([4, 6], 3),
        same([4, 6], 3).with_stride([2, 2]),
        same([4, 4], 5).with_groups(4),
        same([4, 8], 3).with_groups(4).with_stride([2, 1]),
        same([4, 6], 3).with_groups(2),
        same([4, 6], 1),
        same([4, 6], 1).with_stride([2, 2]),
        same([4, 6], 3).with_dilation([2, 2]),
        Conv2dConfig::new([4, 32], [3, 3]),
        Conv2dConfig::new([4, 6], [4, 4]).with_stride([4, 4]),
    ]
}

const PIXELS: [[usize; 4]; 4] = [[0, 0, 0, 0], [1, 3, 3, 4], [1, 1, 9, 10], [0, 2, 5, 0]];

/// burn 5394: one bad pixel reaches the outputs whose window contains it, and no other. A kernel
/// that multiplies it by a zero elsewhere spreads it.
#[test]
fn burn_5394_a_non_finite_pixel_stays_in_its_window() {
    const SHAPE: [usize; 4] = [2, 4, 10, 11];
    for (device_name, device) in devices() {
        for config in kinds_of_layer() {
            let conv = layer(&config, &device, DType::F32);
            let geometry = conv.geometry(SHAPE);
            for pixel in PIXELS {
                for bad in [f32::NAN, f32::INFINITY] {
                    let x = with_value(random(1, SHAPE, &device), pixel, bad);
                    let output = values(conv.forward(x));
                    let found: Vec<bool> = output.iter().map(|value| !value.is_finite()).collect();
                    let expected = reached(&geometry, pixel);
                    assert!(
                        found == expected,
                        "{bad} at {pixel:?}, {config} ({device_name})"
                    );
                }
            }
        }
    }
}

/// The same backwards: one bad output gradient reaches the pixels of its window.
#[test]
fn burn_5394_a_non_finite_output_gradient_stays_in_its_window() {
    const SHAPE: [usize; 4] = [2, 4, 10, 11];
    for (device_name, device) in devices() {
        let device = device.autodiff();
        for config in kinds_of_layer() {
            let conv = layer(&config, &device, DType::F32);
            let geometry = conv.geometry(SHAPE);
            let [height, width] = geometry.output();
            let output = [1, geometry.output_channels - 1, height / 2, width - 1];
            let shape = [SHAPE[0], geometry.output_channels, height, width];
            let upstream = with_value(random(2, shape, &device), output, f32::NAN);
            let x = random(1, SHAPE, &device).require_grad();
            let pass = Pass::run(&conv, x, upstream);
            for (index, value) in pass.input.expect("tracked").iter().enumerate() {
                let expected = reached(&geometry, position(index, SHAPE))[flat(output, shape)];
                let what = format!("input {index}, {config} ({device_name})");
                assert_eq!(value.is_nan(), expected, "{what}");
            }
        }
    }
}

fn flat([n, c, y, x]: [usize; 4], [_, channels, height, width]: [usize; 4]) -> usize {
    ((n * channels + c) * height + y) * width + x
}

fn position(index: usize, [_, channels, height, width]: [usize; 4]) -> [usize; 4] {
    let (row, x) = (index / width, index % width);
    let (plane, y) = (row / height, row % height);
    [plane / channels, plane % channels, y, x]
}

fn with_value(map: Tensor<4>, at: [usize; 4], value: f32) -> Tensor<4> {
    let (device, shape) = (map.device(), map.dims());
    let mut numbers: Vec<f32> = map.into_data().iter::<f32>().collect();
    numbers[flat(at, shape)] = value;
    Tensor::from_data(TensorData::new(numbers, shape), &device)
}
