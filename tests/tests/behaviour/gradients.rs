//! Guards the layer inside Burn's graph: mixed and frozen inputs, empty batches, a layer that is
//! used twice, and where a method's gradients are the exact ones and where they are not.

use burn::module::Module;
use burn::tensor::{DType, Tensor, TensorData};
use burn_frugal::Method;
use burn_frugal::methods::{ActivationShortcut, FactorUpdate};
use burn_frugal::nn::Conv2d;
use burn_frugal_tests::layers::{
    INPUT, for_each_layer, layer, methods, same, tracked_input, upstream, with,
};
use burn_frugal_tests::{
    Pass, assert_close, autodiff_devices, random, random_dtype, relative_error, values,
};

#[test]
fn plain_and_tracked_inputs_mix() {
    for_each_layer(|name, device, conv| {
        let plain = device.clone().without_autodiff();
        let all = Pass::run(&conv, tracked_input(device), upstream(device));

        let constant = Pass {
            input: None,
            ..all.clone()
        };
        for (what, x) in [
            ("plain", random(1, INPUT, &plain)),
            ("constant", random(1, INPUT, device)),
        ] {
            let found = Pass::run(&conv, x, upstream(device));
            assert_eq!(found, constant, "{name}, {what} input");
        }

        let method = conv.method.method();
        let frozen = Pass {
            weight: None,
            bias: None,
            ..all.clone()
        };
        let plain_conv = with(&layer(&same([4, 6], 3), &plain, DType::F32), method);
        for (what, conv) in [
            ("plain", plain_conv.clone()),
            ("frozen", conv.clone().no_grad()),
        ] {
            let found = Pass::run(&conv, tracked_input(device), upstream(device));
            assert_eq!(found, frozen, "{name}, {what} layer");
        }

        let output = plain_conv.forward(random(1, INPUT, &plain));
        assert!(
            !output.is_autodiff(),
            "{name}: nothing was on an autodiff device"
        );
        assert_eq!(values(output), all.output, "{name}, all plain");
    });
}

#[test]
fn each_parameter_can_be_frozen_by_itself() {
    for_each_layer(|name, device, conv| {
        let all = Pass::run(&conv, tracked_input(device), upstream(device));

        let mut only_bias = conv.clone();
        only_bias.weight = only_bias.weight.set_require_grad(false);
        let found = Pass::run(&only_bias, random(1, INPUT, device), upstream(device));
        let expected = Pass {
            input: None,
            weight: None,
            ..all.clone()
        };
        assert_eq!(found, expected, "{name}, only the bias is trained");

        let mut only_weight = conv.clone();
        only_weight.bias = only_weight.bias.map(|bias| bias.set_require_grad(false));
        let found = Pass::run(&only_weight, random(1, INPUT, device), upstream(device));
        let expected = Pass {
            input: None,
            bias: None,
            ..all.clone()
        };
        assert_eq!(found, expected, "{name}, only the weight is trained");

        let without_bias = Conv2d { bias: None, ..conv };
        let found = Pass::run(&without_bias, tracked_input(device), upstream(device));
        assert_eq!(
            (found.input, found.weight),
            (all.input, all.weight),
            "{name}, no bias"
        );
    });
}

/// Gradients through a model that is not trained (of its input, say) are exact.
#[test]
fn a_valid_model_has_exact_input_gradients() {
    for_each_layer(|name, device, conv| {
        let exact = Pass::run(
            &with(&conv, Method::Exact),
            tracked_input(device),
            upstream(device),
        );
        let found = Pass::run(&conv.valid(), tracked_input(device), upstream(device));
        assert_eq!(found.input, exact.input, "{name}");
    });
}

/// NNlib.jl 763: the weight gradient of no images is zero, not what happened to be in memory.
#[test]
fn no_images_give_zero_gradients() {
    for_each_layer(|name, device, conv| {
        let empty = |shape| Tensor::from_data(TensorData::new(Vec::<f32>::new(), shape), device);
        let x: Tensor<4> = empty([0, 4, 7, 9]).require_grad();
        let pass = Pass::run(&conv, x, empty([0, 6, 7, 9]));
        assert_eq!(pass.output, [0.0; 0], "{name}");
        assert_eq!(pass.input, Some(vec![]), "{name}");
        assert_eq!(pass.weight, Some(vec![0.0; 6 * 4 * 9]), "{name}");
        assert_eq!(pass.bias, Some(vec![0.0; 6]), "{name}");
    });
}

/// Whether the same input gives other gradients at the next step.
fn follows_the_data(method: Method) -> bool {
    matches!(
        method,
        Method::ActivationShortcut(ActivationShortcut {
            factors: FactorUpdate::EveryStep,
            ..
        })
    )
}

/// Patch 1 means "off".
#[test]
fn patch_one_is_the_exact_gradient_bit_for_bit() {
    for (device_name, device) in autodiff_devices() {
        for config in [
            same([4, 6], 3),
            same([4, 4], 5).with_groups(4).with_stride([2, 2]),
        ] {
            let conv = layer(&config, &device, DType::F32);
            let run = |method| {
                let conv = with(&conv, method);
                let x = tracked_input(&device);
                let shape = conv.forward(x.clone()).dims();
                Pass::run(&conv, x, random(2, shape, &device))
            };
            let exact = run(Method::Exact);
            for method in [
                Method::gradient_filter(1),
                Method::published_gradient_filter(1),
            ] {
                assert_eq!(run(method), exact, "{method} ({device_name})");
            }
        }
    }
}

/// A patch larger than any map is one tile.
#[test]
fn a_huge_patch_is_one_tile() {
    for (name, device) in autodiff_devices() {
        for stride in [1, 2] {
            let config = same([4, 4], 3).with_stride([stride, stride]);
            let conv = config.init(&device);
            let gradient = |method| {
                let conv = with(&conv, method);
                let x = random(1, [1, 4, 6, 6], &device);
                let gradients = conv.forward(x).powi_scalar(2).sum().backward();
                values(conv.weight.val().grad(&gradients).expect("tracked"))
            };
            for make in [Method::gradient_filter, Method::published_gradient_filter] {
                let one_tile = gradient(make(6));
                assert_eq!(
                    gradient(make(usize::MAX)),
                    one_tile,
                    "stride {stride} ({name})"
                );
            }
        }
    }
}

/// The proof that a method's own backward pass runs: white noise is where it is coarsest.
#[test]
fn a_method_changes_its_gradients_and_nothing_else() {
    for_each_layer(|name, device, conv| {
        let run = |conv| Pass::run(&conv, tracked_input(device), upstream(device));
        let exact = run(with(&conv, Method::Exact));
        let found = run(conv.clone());
        assert_eq!(found.output, exact.output, "{name}");
        // a filter sums its means, in another order
        let [found_bias, exact_bias] =
            [&found.bias, &exact.bias].map(|bias| bias.as_deref().expect("tracked"));
        assert_close(name, found_bias, exact_bias, 1e-6);
        let far = |found: &Option<Vec<f64>>, exact: &Option<Vec<f64>>| {
            let [found, exact] = [found, exact].map(|it| it.as_deref().expect("tracked"));
            relative_error(found, exact) > 0.05
        };
        let method = conv.method.method();
        let filtered = matches!(method, Method::GradientFilter(_));
        assert_eq!(far(&found.input, &exact.input), filtered, "{name}");
        if !filtered {
            assert_eq!(found.input, exact.input, "{name}");
        }
        let exact_weight = method == Method::Exact;
        assert_eq!(far(&found.weight, &exact.weight), !exact_weight, "{name}");
    });
}

/// The layer twice in one graph: its gradients add up.
#[test]
fn a_layer_that_is_used_twice_gets_both_gradients() {
    for (device_name, device) in autodiff_devices() {
        for method in methods() {
            if follows_the_data(method) {
                // the second use is another step of the subspace iteration
                continue;
            }
            let conv = with(&layer(&same([4, 4], 3), &device, DType::F64), method);
            let x = random_dtype(1, INPUT, &device, DType::F64).require_grad();
            let up = random_dtype(2, INPUT, &device, DType::F64);
            let once = Pass::run(&conv, x.clone(), up.clone());
            let twice = (conv.forward(x.clone()) * up.clone()).sum()
                + (conv.forward(x.clone()) * up).sum() * 2.0;
            let gradients = twice.backward();
            let tripled = |values: Option<Vec<f64>>| -> Vec<f64> {
                values
                    .expect("tracked")
                    .iter()
                    .map(|value| 3.0 * value)
                    .collect()
            };
            let name = format!("{method} ({device_name})");
            let input = values(x.grad(&gradients).expect("tracked"));
            assert_close(&name, &input, &tripled(once.input), 1e-12);
            let weight = values(conv.weight.val().grad(&gradients).expect("tracked"));
            assert_close(&name, &weight, &tripled(once.weight), 1e-12);
        }
    }
}
