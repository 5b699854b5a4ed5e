//! Guards the linear layer by itself: it computes what Burn's computes, converts to and from it,
//! shares its records and PyTorch's files, and refuses what does not fit with words.

use std::collections::BTreeMap;

use burn::module::{Module, Param, Quantizer};
use burn::nn::{Initializer, LinearLayout};
use burn::store::{ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore};
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_frugal::methods::LayerShape;
use burn_frugal::nn::{Linear, LinearConfig};
use burn_frugal::{Error, Method};
use burn_frugal_tests::{
    Pass, assert_close, assert_contains, autodiff_devices, devices, panic_message, random,
    random_dtype, values,
};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const FEATURES: [usize; 2] = [6, 4];
const PRECISIONS: [(DType, f64); 2] = [(DType::F32, 1e-5), (DType::F64, 1e-12)];

/// A layer from 6 to 4 features with reproducible parameters.
fn layer(device: &Device, dtype: DType) -> Linear {
    let [inputs, outputs] = FEATURES;
    let mut linear = LinearConfig::new(inputs, outputs).init(device);
    linear.weight = Param::from_tensor(random_dtype(11, FEATURES, device, dtype));
    linear.bias = Some(Param::from_tensor(random_dtype(
        12,
        [outputs],
        device,
        dtype,
    )));
    linear
}

/// [`Pass::run_linear`] for Burn's layer.
fn run_burns<const D: usize>(
    linear: &burn::nn::Linear,
    input: Tensor<D>,
    upstream: Tensor<D>,
) -> Pass {
    let output = linear.forward(input.clone());
    let gradients = (output.clone() * upstream).sum().backward();
    let bias = linear.bias.as_ref().map(|bias| bias.val());
    Pass {
        output: values(output),
        input: input.grad(&gradients).map(values),
        weight: linear.weight.val().grad(&gradients).map(values),
        bias: bias.and_then(|bias| bias.grad(&gradients)).map(values),
    }
}

/// The shape of the output.
fn output_shape<const D: usize>(mut input: [usize; D]) -> [usize; D] {
    input[D - 1] = FEATURES[1];
    input
}

#[track_caller]
fn assert_burns<const D: usize>(what: &str, ours: &Linear, input: &Tensor<D>, tolerance: f64) {
    let upstream = random_dtype(
        2,
        output_shape(input.dims()),
        &input.device(),
        input.dtype(),
    );
    let found = Pass::run_linear(ours, input.clone(), upstream.clone());
    let burns = burn::nn::Linear::from(ours.clone());
    let expected = run_burns(&burns, input.clone(), upstream);
    let present = |pass: &Pass| {
        [&pass.input, &pass.weight, &pass.bias].map(|gradient: &Option<_>| gradient.is_some())
    };
    assert_eq!(present(&found), present(&expected), "{what}");
    found.assert_close(what, &expected, tolerance);
}

fn assert_burns_everywhere<const D: usize>(shape: [usize; D]) {
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in PRECISIONS {
            let ours = layer(&device, dtype);
            let input = random_dtype(1, shape, &device, dtype).require_grad();
            let name = format!("{shape:?}, {dtype:?} ({device_name})");
            assert_burns(&name, &ours, &input, tolerance);
            let ours = Linear { bias: None, ..ours };
            assert_burns(&format!("{name}, no bias"), &ours, &input, tolerance);
        }
    }
}

#[test]
fn every_rank_of_input_has_burns_gradients() {
    assert_burns_everywhere([5, 6]);
    assert_burns_everywhere([1, 6]);
    assert_burns_everywhere([3, 5, 6]);
    assert_burns_everywhere([2, 3, 5, 6]);
    assert_burns_everywhere([2, 1, 3, 5, 6]);
}

#[test]
fn a_vector_has_burns_gradients() {
    assert_burns_everywhere([6]);
}

/// A bias that was added to a gradient, or a sum over the wrong axes, has a definition to answer to
/// besides Burn's layer, which computes with the same operations.
#[test]
fn gradients_are_sums_over_rows() {
    for (name, device) in autodiff_devices() {
        let ours = layer(&device, DType::F64);
        let [inputs, outputs] = FEATURES;
        let x = random_dtype(1, [2, 3, inputs], &device, DType::F64);
        let upstream = random_dtype(2, [2, 3, outputs], &device, DType::F64);
        let found = Pass::run_linear(&ours, x.clone().require_grad(), upstream.clone());
        let (x, gy, w) = (values(x), values(upstream), values(ours.weight.val()));
        let b = values(ours.bias.as_ref().expect("a bias").val());
        let mut expected = Pass {
            output: vec![0.0; 6 * outputs],
            input: Some(vec![0.0; x.len()]),
            weight: Some(vec![0.0; w.len()]),
            bias: Some(vec![0.0; outputs]),
        };
        let [gx, gw, gb] = [
            &mut expected.input,
            &mut expected.weight,
            &mut expected.bias,
        ]
        .map(|gradient| gradient.as_mut().expect("set above"));
        for row in 0..6 {
            for o in 0..outputs {
                let gradient = gy[row * outputs + o];
                gb[o] += gradient;
                expected.output[row * outputs + o] += b[o];
                for i in 0..inputs {
                    let (value, weight) = (x[row * inputs + i], w[i * outputs + o]);
                    expected.output[row * outputs + o] += value * weight;
                    gx[row * inputs + i] += gradient * weight;
                    gw[i * outputs + o] += gradient * value;
                }
            }
        }
        found.assert_close(&name, &expected, 1e-12);
    }
}

#[test]
fn strided_inputs_and_gradients_are_read_as_they_are() {
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in PRECISIONS {
            let ours = layer(&device, dtype);
            let make = |shape| random_dtype::<3>(1, shape, &device, dtype);
            let views = [
                ("swapped", make([6, 5, 3]).swap_dims(0, 2)),
                ("features first", make([3, 6, 5]).swap_dims(1, 2)),
                ("cut out", make([3, 9, 6]).narrow(1, 2, 5)),
                ("cut features", make([3, 5, 9]).narrow(2, 2, 6)),
                (
                    "repeated",
                    make([1, 5, 6]).expand([3, 5, 6]) + make([3, 1, 6]).expand([3, 5, 6]) * 0.5,
                ),
                ("one row", make([1, 1, 6]).expand([3, 5, 6])),
            ];
            for (view_name, view) in views {
                let name = format!("{view_name}, {dtype:?} ({device_name})");
                assert_eq!(view.dims(), [3, 5, 6], "{name}");
                assert_burns(&name, &ours, &view.clone().require_grad(), tolerance);

                // the output's gradient is as strided as what the output becomes
                let upstream = random_dtype(2, [4, 5, 3], &device, dtype);
                let plain = upstream.clone().swap_dims(0, 2);
                let expected = Pass::run_linear(&ours, view.clone(), plain);
                let output = ours.forward(view).swap_dims(0, 2);
                let gradients = (output * upstream).sum().backward();
                let weight = values(ours.weight.val().grad(&gradients).expect("trained"));
                let bias = ours.bias.as_ref().expect("a bias").val();
                let bias = values(bias.grad(&gradients).expect("trained"));
                let [expected_weight, expected_bias] =
                    [expected.weight, expected.bias].map(|it| it.expect("trained"));
                assert_close(&name, &weight, &expected_weight, tolerance);
                assert_close(&name, &bias, &expected_bias, tolerance);
            }
        }
    }
}

fn assert_empty<const D: usize>(shape: [usize; D]) {
    for (device_name, device) in autodiff_devices() {
        let ours = layer(&device, DType::F32);
        let empty = |shape: [usize; D]| {
            Tensor::<D>::from_data(TensorData::new(Vec::<f32>::new(), shape), &device)
        };
        let x = empty(shape).require_grad();
        assert_eq!(ours.forward(x.clone()).dims(), output_shape(shape));
        let pass = Pass::run_linear(&ours, x, empty(output_shape(shape)));
        let name = format!("{shape:?} ({device_name})");
        assert_eq!(pass.output, [0.0; 0], "{name}");
        assert_eq!(pass.input, Some(vec![]), "{name}");
        assert_eq!(pass.weight, Some(vec![0.0; 24]), "{name}");
        assert_eq!(pass.bias, Some(vec![0.0; 4]), "{name}");
    }
}

#[test]
fn no_rows_give_zero_gradients() {
    assert_empty([0, 6]);
    assert_empty([0, 5, 6]);
    assert_empty([3, 0, 6]);
    assert_empty([2, 3, 0, 6]);
}

#[test]
fn what_is_frozen_or_plain_gets_no_gradient() {
    for (device_name, device) in autodiff_devices() {
        let ours = layer(&device, DType::F32);
        let x = random(1, [3, 5, 6], &device);
        let tracked = x.clone().require_grad();
        let upstream = random(2, [3, 5, 4], &device);
        let all = Pass::run_linear(&ours, tracked.clone(), upstream.clone());

        let mut frozen_weight = ours.clone();
        frozen_weight.weight = frozen_weight.weight.set_require_grad(false);
        let mut frozen_bias = ours.clone();
        frozen_bias.bias = frozen_bias.bias.map(|bias| bias.set_require_grad(false));
        let plain = device.clone().without_autodiff();
        let plain_layer = layer(&plain, DType::F32);
        let plain_x = random(1, [3, 5, 6], &plain);
        let only = |input: bool, weight: bool, bias: bool| Pass {
            output: all.output.clone(),
            input: all.input.clone().filter(|_| input),
            weight: all.weight.clone().filter(|_| weight),
            bias: all.bias.clone().filter(|_| bias),
        };
        let cases = [
            (
                "frozen weight",
                &frozen_weight,
                &tracked,
                only(true, false, true),
            ),
            (
                "only the bias",
                &frozen_weight,
                &x,
                only(false, false, true),
            ),
            (
                "frozen bias",
                &frozen_bias,
                &tracked,
                only(true, true, false),
            ),
            (
                "only the weight",
                &frozen_bias,
                &x,
                only(false, true, false),
            ),
            ("untracked input", &ours, &x, only(false, true, true)),
            ("plain input", &ours, &plain_x, only(false, true, true)),
            (
                "plain layer",
                &plain_layer,
                &tracked,
                only(true, false, false),
            ),
        ];
        for (name, linear, input, expected) in cases {
            let found = Pass::run_linear(linear, input.clone(), upstream.clone());
            assert_eq!(found, expected, "{name} ({device_name})");
        }

        let output = plain_layer.forward(plain_x);
        assert!(!output.is_autodiff(), "{device_name}: nothing was tracked");
        assert_eq!(values(output), all.output, "{device_name}, all plain");
    }
}

#[test]
fn layers_convert_both_ways_without_a_copy() {
    for (name, device) in devices() {
        for bias in [true, false] {
            let config = burn::nn::LinearConfig::new(6, 4).with_bias(bias);
            let burns = config.init(&device);
            let ids = (burns.weight.id, burns.bias.as_ref().map(|bias| bias.id));
            let ours = Linear::from(burns);
            // without a bias, only the weight itself says which of its sizes is which
            assert!(
                !bias || !ours.weight.is_initialized(),
                "{name}: the parameters only move"
            );
            assert_eq!(ours.method.method(), Method::Exact, "{name}");
            assert_eq!(ours.method.layer(), LayerShape::linear(6, 4), "{name}");
            let ours = ours.with_method(Method::channel_sparse(0.5));
            let ours = ours.expect("suitable");
            let back = burn::nn::Linear::from(ours);
            assert!(!bias || !back.weight.is_initialized(), "{name}");
            let back_ids = (back.weight.id, back.bias.as_ref().map(|bias| bias.id));
            assert_eq!(back_ids, ids, "{name}");
            assert_eq!(back.to_string(), config.init(&device).to_string(), "{name}");

            let weight = values(back.weight.val());
            let ours = Linear::from(back);
            assert_eq!(values(ours.weight.val()), weight, "{name}");
        }
    }
}

#[test]
fn configurations_convert_both_ways() {
    let ours = LinearConfig::new(6, 4)
        .with_bias(false)
        .with_initializer(Initializer::Constant { value: 0.25 })
        .with_layout(LinearLayout::Col);
    let burns = burn::nn::LinearConfig::from(ours.clone());
    let own = burn::nn::LinearConfig::new(6, 4)
        .with_bias(false)
        .with_initializer(Initializer::Constant { value: 0.25 })
        .with_layout(LinearLayout::Col);
    assert_eq!(burns.to_string(), own.to_string());
    assert_eq!(LinearConfig::from(burns).to_string(), ours.to_string());
}

#[test]
fn defaults_are_burns() {
    let burns = burn::nn::LinearConfig::new(6, 4);
    let ours = burn::nn::LinearConfig::from(LinearConfig::new(6, 4));
    assert_eq!(ours.to_string(), burns.to_string());
}

#[derive(Module, Debug)]
struct Ours {
    linear: Linear,
}

#[derive(Module, Debug)]
struct Burns {
    linear: burn::nn::Linear,
}

fn ours(layout: LinearLayout, device: &Device) -> Ours {
    let config = LinearConfig::new(6, 4).with_layout(layout);
    Ours {
        linear: config.init(device),
    }
}

fn burns(layout: LinearLayout, device: &Device) -> Burns {
    let config = burn::nn::LinearConfig::new(6, 4).with_layout(layout);
    Burns {
        linear: config.init(device),
    }
}

const LAYOUTS: [LinearLayout; 2] = [LinearLayout::Row, LinearLayout::Col];

/// Fails if a layer has not these parameters, or another output than they give.
fn assert_same_parameters(what: &str, burns: &burn::nn::Linear, ours: &Linear) {
    assert_eq!(ours.weight.id, burns.weight.id, "{what}");
    assert_eq!(
        values(ours.weight.val()),
        values(burns.weight.val()),
        "{what}"
    );
    let bias = |bias: &Option<Param<Tensor<1>>>| values(bias.as_ref().expect("a bias").val());
    assert_eq!(bias(&ours.bias), bias(&burns.bias), "{what}");
    let x = random(1, [3, 6], &ours.weight.val().device());
    let (found, expected) = (ours.forward(x.clone()), burns.forward(x));
    assert_close(what, &values(found), &values(expected), 1e-6);
}

#[test]
fn burns_records_load_and_ours_load_back() {
    for (device_name, device) in devices() {
        for layout in LAYOUTS {
            let name = format!("{layout:?} ({device_name})");
            let original = burns(layout, &device);
            let method = Method::channel_sparse(0.5);
            let mut target = ours(layout, &device);
            target.linear = target.linear.with_method(method).expect("suitable");
            let loaded = target.load_record(original.clone().into_record());
            assert_same_parameters(&name, &original.linear, &loaded.linear);
            assert_eq!(
                loaded.linear.method.method(),
                method,
                "{name}: a record has no method"
            );

            let back = burns(layout, &device).load_record(loaded.clone().into_record());
            assert_same_parameters(&format!("{name}, back"), &back.linear, &loaded.linear);

            let folder = tempfile::tempdir().expect("a temporary folder");
            let [ours_path, burns_path] =
                ["ours.bpk", "burns.bpk"].map(|name| folder.path().join(name));
            loaded
                .clone()
                .save_file(&ours_path)
                .expect("a writable folder");
            let read = burns(layout, &device).load_file(&ours_path);
            assert_same_parameters(&format!("{name}, our file"), &read.linear, &loaded.linear);
            original
                .clone()
                .save_file(&burns_path)
                .expect("a writable folder");
            let read = ours(layout, &device).load_file(&burns_path);
            assert_same_parameters(
                &format!("{name}, Burn's file"),
                &original.linear,
                &read.linear,
            );
        }
    }
}

/// A file with PyTorch's layout: the weight is `[out, in]`.
fn pytorch_file(weight: &[f32], bias: &[f32]) -> Vec<u8> {
    let bytes = |values: &[f32]| -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    };
    let (weight, bias) = (bytes(weight), bytes(bias));
    let view = |shape: &[usize], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes);
    let tensors = BTreeMap::from([
        ("linear.weight", view(&[4, 6], &weight).expect("24 values")),
        ("linear.bias", view(&[4], &bias).expect("4 values")),
    ]);
    safetensors::serialize(tensors, None).expect("two tensors")
}

#[test]
fn a_pytorch_weight_is_transposed_as_for_burns_layer() {
    let weight: Vec<f32> = (0..24).map(|value| value as f32).collect();
    let bias = [0.5, 1.5, 2.5, 3.5];
    let file = pytorch_file(&weight, &bias);
    let store =
        || SafetensorsStore::from_bytes(Some(file.clone())).with_from_adapter(PyTorchToBurnAdapter);
    for (name, device) in devices() {
        let mut found = ours(LinearLayout::Row, &device);
        let result = found.load_from(&mut store()).expect("both tensors fit");
        assert_eq!(result.applied.len(), 2, "{name}");
        let mut expected = burns(LinearLayout::Row, &device);
        expected.load_from(&mut store()).expect("both tensors fit");
        let found_weight = values(found.linear.weight.val());
        assert_eq!(found_weight, values(expected.linear.weight.val()), "{name}");
        let transposed: Vec<f64> = (0..24)
            .map(|index| f64::from(weight[index % 4 * 6 + index / 4]))
            .collect();
        assert_eq!(found_weight, transposed, "{name}");
        let found_bias = values(found.linear.bias.expect("a bias").val());
        assert_eq!(found_bias, bias.map(f64::from), "{name}");
    }
}

/// The parameter is `[d_input, d_output]` for both layouts; only its memory and records differ.
#[test]
fn a_column_layout_computes_the_same() {
    for (device_name, device) in autodiff_devices() {
        let config = LinearConfig::new(6, 4).with_layout(LinearLayout::Col);
        let columns = config.init(&device);
        assert_eq!(columns.weight.val().dims(), [6, 4], "{device_name}");
        let input = random(1, [3, 5, 6], &device).require_grad();
        assert_burns(&device_name, &columns, &input, 1e-5);
        // converted after initialisation
        let again = Linear::from(burn::nn::Linear::from(columns));
        assert_eq!(again.method.layer(), LayerShape::linear(6, 4));
        assert_burns(&device_name, &again, &input, 1e-5);
    }
}

/// Burn's lazy parameter of the other layout says that it is `[d_output, d_input]`.
#[test]
fn a_column_layout_has_the_layers_own_shape() {
    let device = Device::default().autodiff();
    let config = LinearConfig::new(6, 4).with_layout(LinearLayout::Col);
    let linear = config.init(&device);
    assert_eq!(linear.method.layer(), LayerShape::linear(6, 4));
    for bias in [true, false] {
        let config = burn::nn::LinearConfig::from(config.clone()).with_bias(bias);
        let found = Linear::from(config.init(&device)).method.layer();
        assert_eq!(found, LayerShape::linear(6, 4), "bias: {bias}");
    }

    // rank 6 is all features, and 3 of 6 features are trained
    let shortcut = linear
        .clone()
        .with_method(Method::activation_shortcut([2, 6]));
    assert!(shortcut.is_ok(), "{:?}", shortcut.err());
    let sparse = linear.with_method(Method::channel_sparse(0.5));
    let sparse = sparse.expect("suitable");
    sparse.forward(random(1, [3, 6], &device));
    assert_eq!(sparse.method.channels().map(|it| it.len()), Some(3));
}

#[test]
fn a_layer_has_features() {
    for [inputs, outputs] in [[0, 8], [8, 0], [0, 0]] {
        let config = LinearConfig::new(inputs, outputs);
        let error = config.try_init(&Device::default()).unwrap_err();
        assert!(
            matches!(&error, Error::NoChannels { channels, .. } if *channels == [inputs, outputs]),
            "{error}"
        );
        let message = error.to_string();
        let shape = format!("Linear [{inputs}, {outputs}]");
        assert_contains(&message, &[&shape, "at least 1"]);
        let panic = panic_message(|| config.init(&Device::default()));
        assert_eq!(panic, Some(message));
    }
}

#[test]
fn a_wrong_input_panics_with_the_operation_and_the_shapes() {
    for (name, device) in devices()
        .into_iter()
        .flat_map(|(name, device)| [(name, device.clone()), (name, device.autodiff())])
    {
        let linear = layer(&device, DType::F32);
        let refused = |message: Option<String>| {
            message.unwrap_or_else(|| panic!("{name}: a wrong input is accepted"))
        };
        let parts = |shape| ["Linear::forward", "5 features", "[6, 4]", "needs 6", shape];
        let vector = panic_message(|| linear.forward(Tensor::<1>::zeros([5], &device)));
        assert_contains(&refused(vector), &parts("input [5]"));
        let rows = panic_message(|| linear.forward(Tensor::<3>::zeros([2, 6, 5], &device)));
        assert_contains(&refused(rows), &parts("input [2, 6, 5]"));
        // as many elements as a matrix with 6 features
        let turned = panic_message(|| linear.forward(Tensor::<2>::zeros([6, 5], &device)));
        assert_contains(&refused(turned), &parts("input [6, 5]"));
        let none = panic_message(|| linear.forward(Tensor::<2>::zeros([6, 0], &device)));
        assert_contains(
            &refused(none),
            &["Linear::forward", "input [6, 0]", "0 features"],
        );
    }
}

#[test]
fn another_element_type_panics_with_both() {
    for (name, device) in devices() {
        let single = layer(&device, DType::F32);
        let mut mixed = layer(&device, DType::F64);
        mixed.bias.clone_from(&single.bias);
        let input = || Tensor::<2>::zeros([3, 6], (&device, DType::F64));
        for (what, linear) in [("weight", single), ("bias", mixed)] {
            let message = panic_message(|| linear.forward(input()));
            let message = message.unwrap_or_else(|| panic!("{name}, {what}: accepted"));
            assert_contains(
                &message,
                &["Linear::forward", "[3, 6]", "[6, 4]", "F64", "F32"],
            );
        }
    }
}

#[test]
fn a_layer_shows_its_features_and_its_method() {
    let linear = layer(&Device::default(), DType::F32);
    let linear = linear.with_method(Method::activation_shortcut([2, 3, 4]));
    let shown = linear.expect("suitable").to_string();
    let parts = ["d_input: 6", "d_output: 4", "shortcut, ranks 2x3x4"];
    assert_contains(&shown, &parts);
}

#[test]
fn a_quantized_layer_does_what_burns_does() {
    // Burn's ndarray backend does not have this kind of quantization
    let devices = devices().into_iter().filter(|(name, _)| *name != "ndarray");
    for (name, device) in devices {
        let ours = layer(&device, DType::F32);
        let exact = values(ours.forward(random(1, [3, 5, 6], &device)));
        let burns = burn::nn::Linear::from(ours.clone());
        let quantizer = || Quantizer::new(Calibration::MinMax, QuantScheme::default());
        let ours = ours.quantize_weights(&mut quantizer());
        let burns = burns.quantize_weights(&mut quantizer());
        assert!(
            matches!(ours.weight.val().dtype(), DType::QFloat(_)),
            "{name}"
        );
        let input = random(1, [3, 5, 6], &device);
        let (found, expected) = (ours.forward(input.clone()), burns.forward(input));
        let (found, expected) = (values(found), values(expected));
        assert_close(name, &found, &expected, 1e-6);
        assert_ne!(found, exact, "{name}: quantizing changes the values");
    }
}
