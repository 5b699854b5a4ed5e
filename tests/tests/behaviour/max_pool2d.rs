//! Guards max pooling: it computes what Burn's layer computes, the first of equal values gets the
//! gradient, and sizes that leave a window empty are refused with words.

use burn::nn::PaddingConfig2d;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_frugal::nn::{MaxPool2d, MaxPool2dConfig};
use burn_frugal_tests::layers::cut_out;
use burn_frugal_tests::{
    assert_contains, autodiff_devices, devices, panic_message, random, random_dtype, values,
};
use proptest::prelude::*;

/// No two values are equal, and half precision has all of them.
fn distinct(seed: u64, shape: [usize; 4], device: &Device, dtype: DType) -> Tensor<4> {
    let order = values(random::<4>(seed, shape, &Device::default()));
    let mut places: Vec<usize> = (0..order.len()).collect();
    places.sort_by(|&a, &b| order[a].total_cmp(&order[b]));
    let mut numbers = vec![0.0; places.len()];
    for (rank, &place) in places.iter().enumerate() {
        numbers[place] = rank as f64 - places.len() as f64 / 2.0;
    }
    let data = TensorData::new(numbers, shape).convert_dtype(dtype);
    Tensor::from_data(data, (device, dtype))
}

/// Integers: their sums are exact in half precision too.
fn upstream(shape: [usize; 4], device: &Device, dtype: DType) -> Tensor<4> {
    (random_dtype(2, shape, device, dtype) * 8.0).round()
}

/// Output and input gradient, in which a NaN is equal to another.
fn pass(forward: impl Fn(Tensor<4>) -> Tensor<4>, input: Tensor<4>) -> [Vec<u64>; 2] {
    let leaf = input.detach().require_grad();
    let output = forward(leaf.clone());
    let shown = output.clone();
    let gradient = upstream(output.dims(), &leaf.device(), leaf.dtype());
    // a product would make a NaN of an infinity times 0
    let picked = output.clone().is_finite();
    let finite = output.clone().zeros_like().mask_where(picked, output);
    let gradients = (finite * gradient).sum().backward();
    let gradient = leaf.grad(&gradients).expect("a tracked leaf");
    [shown, gradient].map(bits)
}

fn bits(tensor: Tensor<4>) -> Vec<u64> {
    let numbers = values(tensor).into_iter();
    numbers.map(|number| (number + 0.0).to_bits()).collect()
}

fn burns(config: &MaxPool2dConfig) -> burn::nn::pool::MaxPool2d {
    burn::nn::pool::MaxPool2dConfig::from(config.clone()).init()
}

/// Every precision that the device has; the kernels have the first two.
fn precisions(device: &Device) -> Vec<DType> {
    let all = [DType::F32, DType::F64, DType::F16, DType::BF16];
    all.into_iter()
        .filter(|&dtype| device.supports_dtype(dtype))
        .collect()
}

fn padding() -> impl Strategy<Value = PaddingConfig2d> {
    let size = || 0_usize..4;
    prop_oneof![
        Just(PaddingConfig2d::Valid),
        Just(PaddingConfig2d::Same),
        (size(), size(), size(), size())
            .prop_map(|(a, b, c, d)| PaddingConfig2d::Explicit(a, b, c, d)),
        (size(), size()).prop_map(|(a, b)| PaddingConfig2d::Explicit(a, b, a, b)),
    ]
}

fn config() -> impl Strategy<Value = MaxPool2dConfig> {
    let pair = |range: std::ops::Range<usize>| [range.clone(), range];
    let sizes = (pair(1..6), pair(1..4), pair(1..3), padding(), any::<bool>());
    sizes.prop_map(|(kernel, stride, dilation, padding, ceil_mode)| {
        MaxPool2dConfig::new(kernel)
            .with_strides(stride)
            .with_dilation(dilation)
            .with_padding(padding)
            .with_ceil_mode(ceil_mode)
    })
}

/// Whether a window fits in the padded input (rounding up, one that lacks less than a stride does)
/// and is larger than the padding at each end, which PyTorch and ONNX ask for.
fn fits(pool: &MaxPool2d, shape: [usize; 4]) -> bool {
    let padding = pool.geometry(shape).padding;
    (0..2).all(|axis| {
        let (before, after) = padding[axis];
        let surplus = if pool.ceil_mode {
            pool.stride[axis] - 1
        } else {
            0
        };
        let extent = pool.dilation[axis] * (pool.kernel_size[axis] - 1) + 1;
        extent <= before + shape[2 + axis] + after + surplus && extent > before.max(after)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn values_and_gradients_are_burns(
        config in config(),
        maps in [1_usize..3, 1_usize..4],
        size in [1_usize..11, 1_usize..11],
    ) {
        let shape = [maps[0], maps[1], size[0], size[1]];
        for (device_name, device) in autodiff_devices() {
            for dtype in precisions(&device) {
                // bfloat16 has 8 bits: some of its values are equal
                if dtype == DType::BF16 && shape.iter().product::<usize>() > 250 {
                    continue;
                }
                let name = format!("{config}, {shape:?}, {dtype:?} ({device_name})");
                let x = distinct(1, shape, &device, dtype);
                let mut expected = None;
                let burns = burns(&config);
                let refused = panic_message(|| {
                    expected = Some(pass(|x| burns.forward(x), x.clone()));
                });
                if refused.is_some() {
                    continue;
                }
                let [output, gradient] = expected.expect("it returned");
                let mut found = None;
                let pool = config.init();
                let message = panic_message(|| found = Some(pass(|x| pool.forward(x), x)));
                let empty = output.contains(&f64::NEG_INFINITY.to_bits());
                if let Some(message) = message {
                    // rounding up, Burn has a window even where nothing was left over, and takes
                    // away two at an end with more padding than a window covers
                    let fits = fits(&pool, shape);
                    prop_assert!(empty || output.is_empty() || !fits, "{name}: {message}");
                    prop_assert!(message.contains("MaxPool2d::forward"), "{name}: {message}");
                    continue;
                }
                let found = found.expect("it returned");
                prop_assert!(!empty, "{name}: a window of nothing");
                prop_assert_eq!(found, [output, gradient], "{}", name);
            }
        }
    }
}

/// The definition: the first largest value of each window, or its first NaN, gets the gradient.
fn by_definition(pool: &MaxPool2d, input: &Tensor<4>) -> [Vec<u64>; 2] {
    let geometry = pool.geometry(input.dims());
    let [height, width] = geometry.input;
    let [rows, columns] = geometry.output;
    let [batch, channels, ..] = input.dims();
    let shape = [batch, channels, rows, columns];
    let upstream = values(upstream(shape, &input.device(), input.dtype()));
    let x = values(input.clone());
    let place = |axis: usize, output: usize, tap: usize| {
        let padded = output * geometry.stride[axis] + tap * geometry.dilation[axis];
        let place = padded.checked_sub(geometry.padding[axis].0)?;
        (place < geometry.input[axis]).then_some(place)
    };
    let (mut output, mut gradient) = (Vec::new(), vec![0.0; x.len()]);
    for map in 0..batch * channels {
        for row in 0..rows {
            for column in 0..columns {
                let mut most: Option<usize> = None;
                for i in 0..geometry.kernel[0] {
                    for j in 0..geometry.kernel[1] {
                        let (Some(y), Some(z)) = (place(0, row, i), place(1, column, j)) else {
                            continue;
                        };
                        let here = (map * height + y) * width + z;
                        let wins = |most: usize| {
                            x[here] > x[most] || x[here].is_nan() && !x[most].is_nan()
                        };
                        if most.is_none_or(wins) {
                            most = Some(here);
                        }
                    }
                }
                let most = most.expect("a pixel in every window");
                if x[most].is_finite() {
                    gradient[most] += upstream[output.len()];
                }
                output.push(x[most]);
            }
        }
    }
    [output, gradient].map(|numbers| numbers.iter().map(|it| (it + 0.0).to_bits()).collect())
}

/// Overlapping, apart, dilated, and with padding of every kind.
fn configs() -> Vec<MaxPool2dConfig> {
    let explicit = PaddingConfig2d::Explicit;
    let pool = |kernel, stride| MaxPool2dConfig::new(kernel).with_strides(stride);
    vec![
        MaxPool2dConfig::new([2, 2]),
        pool([3, 3], [2, 2]).with_padding(explicit(1, 1, 1, 1)),
        pool([3, 3], [1, 1]).with_padding(PaddingConfig2d::Same),
        pool([2, 3], [1, 2]).with_padding(explicit(0, 2, 1, 0)),
        pool([2, 2], [1, 1])
            .with_padding(explicit(1, 2, 2, 1))
            .with_dilation([2, 3]),
        pool([3, 3], [2, 2]).with_ceil_mode(true),
        pool([5, 4], [3, 3]).with_padding(explicit(2, 3, 2, 3)),
    ]
}

const SHAPE: [usize; 4] = [2, 3, 8, 10];

#[test]
fn of_equal_values_the_first_gets_the_gradient() {
    for (device_name, device) in autodiff_devices() {
        for dtype in precisions(&device) {
            let few = (random_dtype::<4>(1, SHAPE, &device, dtype) * 2.0).round();
            for x in [few.clone(), few.zeros_like()] {
                for config in configs() {
                    let pool = config.init();
                    let found = pass(|x| pool.forward(x), x.clone());
                    let expected = by_definition(&pool, &x);
                    assert_eq!(found, expected, "{config}, {dtype:?} ({device_name})");
                }
            }
        }
    }
}

/// Padding is not a value, not even where it is as small as everything else.
#[test]
fn negative_infinities_are_values() {
    for (device_name, device) in autodiff_devices() {
        for dtype in precisions(&device) {
            let x = random_dtype::<4>(1, SHAPE, &device, dtype);
            let most = x.clone().lower_elem(0.7);
            let all = x.clone().lower_elem(9.0);
            for hidden in [most, all] {
                let x = x.clone().mask_fill(hidden, f64::NEG_INFINITY);
                for config in configs() {
                    let pool = config.init();
                    let name = format!("{config}, {dtype:?} ({device_name})");
                    let found = pass(|x| pool.forward(x), x.clone());
                    assert_eq!(found, by_definition(&pool, &x), "{name}");
                    // a gradient of 1 stays inside the map, wherever it goes
                    let leaf = x.clone().detach().require_grad();
                    let gradients = pool.forward(leaf.clone()).backward();
                    let gradient = values(leaf.grad(&gradients).expect("tracked"));
                    let outputs = found[0].len() as f64;
                    assert_eq!(gradient.iter().sum::<f64>(), outputs, "{name}");
                }
            }
        }
    }
}

/// It shows in the values, whatever else is in the window.
#[test]
fn a_window_with_nan_gives_nan() {
    for (device_name, device) in autodiff_devices() {
        for dtype in precisions(&device) {
            let x = distinct(1, [1, 2, 8, 7], &device, dtype);
            let some = x.clone().greater_elem(40.0);
            let x = x.mask_fill(some, f64::NAN);
            for config in configs() {
                let pool = config.init();
                let name = format!("{config}, {dtype:?} ({device_name})");
                let [output, gradient] = pass(|x| pool.forward(x), x.clone());
                let [expected, expected_gradient] = by_definition(&pool, &x);
                assert_eq!(output, expected, "{name}");
                assert!(
                    output.iter().any(|it| f64::from_bits(*it).is_nan()),
                    "{name}"
                );
                assert_eq!(gradient, expected_gradient, "{name}");
            }
        }
    }
}

#[test]
fn the_first_nan_of_a_window_gets_the_gradient() {
    for (name, device) in autodiff_devices() {
        for dtype in [DType::F32, DType::F64] {
            let x = random_dtype::<4>(1, [1, 1, 2, 4], &device, dtype);
            let numbers = [1.0, f64::NAN, 3.0, f64::NAN, f64::NAN, 2.0, 5.0, f64::NAN];
            let x = Tensor::<4>::from_data(
                TensorData::new(numbers.to_vec(), x.dims()).convert_dtype(dtype),
                (&device, dtype),
            )
            .require_grad();
            let pool = MaxPool2dConfig::new([2, 2]).init();
            let gradients = pool.forward(x.clone()).backward();
            let found = values(x.grad(&gradients).expect("tracked"));
            assert_eq!(found, [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], "{name}");
        }
    }
}

#[test]
fn windows_that_no_byte_tells_apart_are_burns() {
    for (name, device) in autodiff_devices() {
        for kernel in [[16, 16], [17, 16], [1, 300]] {
            let config = MaxPool2dConfig::new(kernel).with_strides([3, 2]);
            let x = distinct(1, [1, 2, 20, 310], &device, DType::F64);
            let found = pass(|x| config.init().forward(x), x.clone());
            let expected = pass(|x| burns(&config).forward(x), x);
            assert_eq!(found, expected, "{kernel:?} ({name})");
        }
    }
}

#[test]
fn strided_inputs_are_read_as_they_are() {
    for (device_name, device) in autodiff_devices() {
        for dtype in [DType::F32, DType::F64] {
            let map = distinct(1, SHAPE, &device, dtype);
            let [a, b, c, d] = SHAPE;
            let swapped = distinct(2, [d, b, c, a], &device, dtype).swap_dims(0, 3);
            let last = distinct(3, [a, c, d, b], &device, dtype).permute([0, 3, 1, 2]);
            let cut = (0..4).map(|axis| cut_out(map.clone(), axis));
            for x in [swapped, last].into_iter().chain(cut) {
                let plain = Tensor::from_data(x.to_data(), (&device, dtype));
                for config in configs() {
                    let pool = config.init();
                    // the leaf is before the view
                    let found = values(pool.forward(x.clone()));
                    let expected = values(pool.forward(plain.clone()));
                    let name = format!("{config}, {dtype:?} ({device_name})");
                    assert_eq!(found, expected, "{name}");
                    let found = pass(|x| pool.forward(x), x.clone());
                    assert_eq!(found, by_definition(&pool, &x), "{name}");
                }
            }
        }
    }
}

/// The output's gradient is as strided as what the output becomes.
#[test]
fn strided_gradients_are_read_as_they_are() {
    for (name, device) in autodiff_devices() {
        let run = |swap: bool| {
            let x = distinct(1, SHAPE, &device, DType::F32).require_grad();
            let output = MaxPool2dConfig::new([3, 2]).init().forward(x.clone());
            let upstream = random::<4>(2, output.dims(), &device);
            let product = if swap {
                output.swap_dims(1, 3)
                    * Tensor::from_data(upstream.swap_dims(1, 3).to_data(), &device)
            } else {
                output * upstream
            };
            let gradients = product.sum().backward();
            values(x.grad(&gradients).expect("tracked"))
        };
        assert_eq!(run(true), run(false), "{name}");
    }
}

#[test]
fn a_device_without_autodiff_gives_the_same_values() {
    for (name, device) in devices() {
        for config in configs() {
            let x = distinct(1, SHAPE, &device, DType::F32);
            let found = values(config.init().forward(x.clone()));
            let expected = values(burns(&config).forward(x));
            assert_eq!(found, expected, "{config} ({name})");
        }
    }
}

#[test]
fn no_images_have_no_maxima() {
    for (name, device) in autodiff_devices() {
        for dtype in precisions(&device) {
            let x = Tensor::<4>::zeros([0, 3, 8, 8], (&device, dtype)).require_grad();
            let output = MaxPool2dConfig::new([2, 2]).init().forward(x.clone());
            assert_eq!(output.dims(), [0, 3, 4, 4], "{name}");
            let gradients = output.sum().backward();
            let gradient = x.grad(&gradients).expect("tracked");
            assert_eq!(gradient.dims(), [0, 3, 8, 8], "{name}");
        }
    }
}

#[test]
fn impossible_sizes_panic_with_the_sizes() {
    let explicit = PaddingConfig2d::Explicit;
    let pool = MaxPool2dConfig::new;
    let cases: [(MaxPool2dConfig, &[&str]); 8] = [
        (pool([9, 2]), &["[1, 2, 8, 6]", "output"]),
        (pool([2, 2]).with_dilation([1, 6]), &["output"]),
        (pool([2, 2]).with_strides([0, 1]), &["stride [0, 1]"]),
        (
            pool([2, 2])
                .with_strides([0, 1])
                .with_padding(PaddingConfig2d::Same),
            &["stride [0, 1]"],
        ),
        (pool([2, 2]).with_dilation([1, 0]), &["dilation [1, 0]"]),
        (pool([0, 2]).with_strides([1, 1]), &["kernel [0, 2]"]),
        (
            pool([2, 2]).with_padding(explicit(2, 0, 0, 0)),
            &["height", "0"],
        ),
        (pool([2, 2]).with_dilation([usize::MAX, 1]), &["output"]),
    ];
    for (name, device) in devices() {
        for (config, parts) in &cases {
            let x = Tensor::<4>::zeros([1, 2, 8, 6], &device);
            let message = panic_message(|| config.init().forward(x));
            let message = message.unwrap_or_else(|| panic!("{config}: accepted ({name})"));
            assert_contains(&message, &["MaxPool2d::forward", "[1, 2, 8, 6]"]);
            assert_contains(&message, parts);
        }
    }
}

#[test]
fn layers_and_configurations_convert_both_ways() {
    let ours = MaxPool2dConfig::new([3, 5])
        .with_strides([2, 1])
        .with_dilation([1, 2])
        .with_padding(PaddingConfig2d::Same)
        .with_ceil_mode(true);
    let config = burn::nn::pool::MaxPool2dConfig::from(ours.clone());
    assert_eq!(
        MaxPool2dConfig::from(config.clone()).to_string(),
        ours.to_string()
    );
    let layer = MaxPool2d::from(config.init());
    let shown =
        "kernel_size: [3, 5], stride: [2, 1], padding: Same, dilation: [1, 2], ceil_mode: true";
    assert_contains(&layer.to_string(), &["MaxPool2d", shown]);
    let back = burn::nn::pool::MaxPool2d::from(layer);
    assert_eq!(back.to_string(), config.init().to_string());
    let default = MaxPool2dConfig::new([3, 2]).init();
    assert_eq!(default.stride, [3, 2]);
}
