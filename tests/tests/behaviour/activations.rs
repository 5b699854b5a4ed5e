//! Guards the activations: Burn's values and gradients, and nobody else's memory written over.

use burn::nn::activation::{Relu as BurnRelu, Relu6 as BurnRelu6};
#[cfg(feature = "flex")]
use burn::tensor::quantization::QuantScheme;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_frugal::nn::{Relu, Relu6};
use burn_frugal_tests::layers::cut_out;
use burn_frugal_tests::{autodiff_devices, devices, random, random_dtype, values};

type Function = fn(Tensor<4>) -> Tensor<4>;

/// Ours, Burn's, and the name.
const PAIRS: [(&str, Function, Function); 2] = [
    (
        "relu",
        |x| Relu::new().forward(x),
        |x| BurnRelu::new().forward(x),
    ),
    (
        "relu6",
        |x| Relu6::new().forward(x),
        |x| BurnRelu6::new().forward(x),
    ),
];

const SHAPE: [usize; 4] = [2, 3, 5, 7];

/// Numbers from -9 to 9, some of them where something changes.
fn input(device: &Device, dtype: DType) -> Tensor<4> {
    let edges = [0.0, -0.0, 6.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let mut numbers = values(random_dtype::<4>(1, SHAPE, device, dtype) * 9.0);
    for (number, edge) in numbers.iter_mut().step_by(11).zip(edges) {
        *number = edge;
    }
    let data = TensorData::new(numbers, SHAPE).convert_dtype(dtype);
    Tensor::from_data(data, (device, dtype))
}

/// Values that can be compared, NaN too. The sign of a zero goes: Burn's backends differ in it.
fn bits(tensor: Tensor<4>) -> Vec<u64> {
    let numbers = values(tensor).into_iter();
    numbers.map(|number| (number + 0.0).to_bits()).collect()
}

/// Output and gradient of a function for a leaf.
fn pass(function: Function, leaf: Tensor<4>) -> (Vec<u64>, Vec<u64>) {
    let leaf = leaf.detach().require_grad();
    let output = function(leaf.clone());
    let found = output.clone();
    let upstream = random::<4>(2, SHAPE, &leaf.device()).cast(leaf.dtype());
    let gradients = (output * upstream).sum().backward();
    let gradient = leaf.grad(&gradients).expect("a tracked leaf");
    (bits(found), bits(gradient))
}

#[test]
fn values_and_gradients_are_burns() {
    for (device_name, device) in autodiff_devices() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            if !device.supports_dtype(dtype) {
                continue;
            }
            for (name, ours, burns) in PAIRS {
                let x = input(&device, dtype);
                let (found, expected) = (pass(ours, x.clone()), pass(burns, x));
                assert_eq!(found, expected, "{name} on {device_name}, {dtype:?}");
            }
        }
    }
}

#[test]
fn a_device_without_autodiff_gives_the_same_values() {
    for (device_name, device) in devices() {
        for (name, ours, burns) in PAIRS {
            let x = input(&device, DType::F32);
            let (found, expected) = (bits(ours(x.clone())), bits(burns(x)));
            assert_eq!(found, expected, "{name} on {device_name}");
        }
    }
}

/// The result takes the input's memory only where nothing else uses it.
#[test]
fn other_users_of_the_input_see_it_unchanged() {
    let all = devices()
        .into_iter()
        .map(|(name, device)| (name.to_string(), device));
    for (device_name, device) in all.chain(autodiff_devices()) {
        for (name, ours, burns) in PAIRS {
            let at = format!("{name} on {device_name}");
            let x = input(&device, DType::F32);
            let before = bits(x.clone());

            let output = ours(x.clone());
            assert_eq!(bits(x.clone()), before, "a clone, {at}");

            for axis in 0..4 {
                let whole = cut_out(x.clone(), axis);
                let found = bits(ours(whole.clone()));
                assert_eq!(found, bits(burns(x.clone())), "cut out along {axis}, {at}");
                assert_eq!(bits(whole), before, "cut out along {axis}, {at}");
            }
            let half = x.clone().narrow(0, 0, 1);
            drop(ours(half));
            assert_eq!(bits(x.clone()), before, "a part of it, {at}");
            let row = x.clone().narrow(2, 2, 1);
            drop(ours(row.expand(SHAPE)));
            assert_eq!(bits(x), before, "an expanded part, {at}");
            drop(output);
        }
    }
}

/// The gradient of a sum goes to both terms.
#[test]
fn a_gradient_that_others_use_is_not_written_over() {
    for (device_name, device) in autodiff_devices() {
        for (name, ours, burns) in PAIRS {
            let run = |function: Function| {
                let leaf = (random::<4>(1, SHAPE, &device) * 9.0)
                    .detach()
                    .require_grad();
                let other = random::<4>(3, SHAPE, &device).require_grad();
                // the gradient of the sum is handed to each term
                let sum = function(leaf.clone()) + other.clone();
                let gradients = (sum.clone() * sum).sum().backward();
                let of = |tensor: &Tensor<4>| bits(tensor.grad(&gradients).expect("tracked"));
                (of(&leaf), of(&other))
            };
            assert_eq!(run(ours), run(burns), "{name} on {device_name}");
        }
    }
}

/// Quantized activations, where the backend has them, are computed in floats, as by Burn's layers.
#[cfg(feature = "flex")]
#[test]
fn a_quantized_input_is_dequantized() {
    let device = Device::flex();
    let x = input(&device, DType::F32).clamp(-9.0, 9.0);
    let x = x.clone().mask_fill(x.is_nan(), 1.0);
    let quantized = x.quantize_dynamic(&QuantScheme::default());
    for (name, ours, burns) in PAIRS {
        let expected = bits(burns(quantized.clone().dequantize()));
        assert_eq!(bits(ours(quantized.clone())), expected, "{name}");
    }
}
