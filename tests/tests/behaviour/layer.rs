//! Guards the layer by itself: its records, its conversion to and from Burn's, optimizer state, and
//! the errors of its configuration and of its inputs.

use burn::module::{Module, Quantizer};
use burn::nn::PaddingConfig2d;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn::tensor::{DType, Device, Tensor};
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal::{Error, Method};
use burn_frugal_tests::{
    assert_close, assert_contains, autodiff_devices, devices, panic_message, random, values,
};

use crate::user_model::{conv, filter, plan_with};

#[derive(Module, Debug)]
struct Ours {
    conv: Conv2d,
}

#[derive(Module, Debug)]
struct Burns {
    conv: burn::nn::conv::Conv2d,
}

#[test]
fn burns_records_load_and_ours_load_back() {
    for (name, device) in devices() {
        let burns = Burns {
            conv: burn::nn::conv::Conv2dConfig::new([4, 4], [3, 3]).init(&device),
        };
        let (weight, id) = (values(burns.conv.weight.val()), burns.conv.weight.id);

        let plan = plan_with("conv", filter(2));
        let ours = plan
            .apply(Ours {
                conv: conv(&device),
            })
            .expect("its layer");
        let ours = ours.load_record(burns.into_record());
        assert_eq!(values(ours.conv.weight.val()), weight, "{name}");
        assert_eq!(
            ours.conv.weight.id, id,
            "{name}: optimizer state goes by id"
        );
        assert_eq!(
            ours.conv.method.method(),
            filter(2),
            "{name}: a record has no method"
        );

        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("layer.bpk");
        ours.save_file(&path).expect("a writable folder");
        let burns = Burns {
            conv: burn::nn::conv::Conv2dConfig::new([4, 4], [3, 3]).init(&device),
        };
        let burns = burns.load_file(&path);
        assert_eq!(values(burns.conv.weight.val()), weight, "{name}");
        assert_eq!(burns.conv.weight.id, id, "{name}");
    }
}

#[test]
fn layers_convert_both_ways_without_a_copy() {
    for (name, device) in devices() {
        let config = burn::nn::conv::Conv2dConfig::new([6, 4], [3, 5])
            .with_groups(2)
            .with_stride([2, 1])
            .with_dilation([1, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 2, 0, 3));
        let burns = config.init(&device);
        let id = burns.weight.id;
        let ours = Conv2d::from(burns);
        assert!(
            !ours.weight.is_initialized(),
            "{name}: the parameters only move"
        );
        assert_eq!(ours.weight.id, id, "{name}");
        let weight = values(ours.weight.val());
        let back = burn::nn::conv::Conv2d::from(ours);
        assert_eq!(back.weight.id, id, "{name}");
        assert_eq!(back.to_string(), config.init(&device).to_string(), "{name}");
        assert_eq!(values(back.weight.val()), weight, "{name}");
    }
}

/// Three steps with momentum; `between` gets the model after the first.
fn train(
    device: &Device,
    start: &Ours,
    between: impl FnOnce(Ours, &mut ModuleOptimizer) -> Ours,
) -> Vec<f64> {
    let momentum = MomentumConfig::new().with_momentum(0.9);
    let mut optimizer = SgdConfig::new().with_momentum(Some(momentum)).init();
    let mut model = start.clone();
    let mut between = Some(between);
    for step in 0..3 {
        let x = random(step, [1, 4, 6, 6], device);
        let gradients = model.conv.forward(x).powi_scalar(2).mean().backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = optimizer.step(0.1, model, gradients);
        if let Some(between) = between.take() {
            model = between(model, &mut optimizer);
        }
    }
    values(model.conv.weight.val())
}

#[test]
fn optimizer_state_survives_a_plan() {
    for (name, device) in autodiff_devices() {
        let start = Ours {
            conv: conv(&device),
        };
        start.conv.weight.val();
        let straight = train(&device, &start, |model, _| model);

        // patch 1 computes the exact gradient: only a lost momentum could make a difference
        let plan = plan_with("conv", filter(1));
        let planned = train(&device, &start, |model, optimizer| {
            let before = optimizer.to_record().len();
            let model = plan.apply(model).expect("its layer");
            assert_eq!(optimizer.to_record().len(), before, "{name}");
            model
        });
        assert_eq!(planned, straight, "{name}");

        let forgetful = train(&device, &start, |model, optimizer| {
            let momentum = MomentumConfig::new().with_momentum(0.9);
            *optimizer = SgdConfig::new().with_momentum(Some(momentum)).init();
            model
        });
        assert_ne!(forgetful, straight, "{name}: the momentum matters here");
    }
}

#[test]
fn a_clone_is_independent() {
    let original = conv(&Device::default());
    let clone = original.clone().with_method(filter(2)).expect("suitable");
    assert_eq!(original.method.method(), Method::Exact);
    assert_eq!(clone.method.method(), filter(2));
    assert_eq!(clone.weight.id, original.weight.id);
}

#[test]
fn a_layer_shows_its_method() {
    let conv = conv(&Device::default())
        .with_method(filter(2))
        .expect("suitable");
    let shown = conv.to_string();
    assert!(shown.contains("gradient filter, patch 2"), "{shown}");
    assert!(shown.contains("ch_in: 4"), "{shown}");
}

#[test]
fn a_valid_model_trains_with_its_method_again() {
    for (name, device) in autodiff_devices() {
        let conv = conv(&device).with_method(filter(2)).expect("suitable");
        let weight_gradient = |conv: &Conv2d| {
            // Burn's `train()` goes back to autodiff without checkpointing
            let x = random(1, [1, 4, 8, 8], &conv.weight.val().device());
            let gradients = conv.forward(x).powi_scalar(2).sum().backward();
            conv.weight.val().grad(&gradients).map(values)
        };
        let before = weight_gradient(&conv);
        assert!(before.is_some(), "{name}");
        assert_eq!(weight_gradient(&conv.valid().train()), before, "{name}");
    }
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    let config = || Conv2dConfig::new([4, 6], [3, 3]);
    let wrong = [
        (
            config().with_groups(4),
            "input channels (4) and output channels (6)",
        ),
        (config().with_groups(3), "groups (3)"),
        (config().with_groups(0), "groups must be at least 1"),
        (config().with_stride([0, 1]), "stride [0, 1]"),
        (config().with_dilation([1, 0]), "dilation [1, 0]"),
        (Conv2dConfig::new([4, 6], [3, 0]), "kernel [3, 0]"),
    ];
    for (config, reason) in wrong {
        let error = config.try_init(&Device::default()).unwrap_err();
        assert!(matches!(error, Error::Convolution { .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains(reason), "{message}");
        assert!(message.contains("[4, 6]"), "{message}: which layer?");
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
        let conv = Conv2dConfig::new([4, 6], [3, 5])
            .with_groups(2)
            .init(&device);
        let forward = |shape: [usize; 4]| {
            let message = panic_message(|| conv.forward(Tensor::zeros(shape, &device)));
            let message = message.unwrap_or_else(|| panic!("{name}: {shape:?} is accepted"));
            let shapes = [format!("{shape:?}"), "[6, 2, 3, 5]".to_string()];
            for part in ["Conv2d::forward"]
                .into_iter()
                .chain(shapes.iter().map(String::as_str))
            {
                assert!(
                    message.contains(part),
                    "{name}: `{part}` is not in: {message}"
                );
            }
            message
        };
        assert!(forward([1, 3, 8, 8]).contains("3 channels"));
        assert!(forward([1, 2, 8, 8]).contains("needs 4"));
        assert!(forward([1, 4, 2, 8]).contains("spans 3 pixels of height"));
        assert!(forward([1, 4, 8, 4]).contains("spans 5 pixels of width"));
    }
}

#[test]
fn sizes_that_no_memory_holds_are_errors() {
    let dilated = Conv2dConfig::new([4, 6], [3, 3]).with_dilation([usize::MAX, 1]);
    let many = Conv2dConfig::new([1 << 40, 1 << 40], [1, 1]);
    for config in [dilated, many] {
        let error = config.try_init(&Device::default()).unwrap_err();
        assert!(matches!(error, Error::Convolution { .. }), "{error}");
        assert_contains(&error.to_string(), &["than memory can hold"]);
    }
    let padding = PaddingConfig2d::Explicit(usize::MAX, 0, usize::MAX, 0);
    let padded = Conv2dConfig::new([4, 6], [3, 3]).with_padding(padding);
    let device = Device::default();
    let conv = padded.init(&device);
    let message = panic_message(|| conv.forward(Tensor::zeros([1, 4, 8, 8], &device)));
    let message = message.expect("refused");
    assert_contains(&message, &["Conv2d::forward", "than memory can hold"]);
}

#[test]
fn a_convolution_has_channels() {
    for channels in [[0, 8], [8, 0]] {
        let error = Conv2dConfig::new(channels, [3, 3]).try_init(&Device::default());
        let error = error.unwrap_err();
        assert!(matches!(error, Error::NoChannels { .. }), "{error}");
        assert_contains(&error.to_string(), &["0", "8", "at least 1"]);
    }
}

#[test]
fn another_element_type_panics_with_both() {
    for (name, device) in devices() {
        let input = Tensor::<4>::zeros([1, 4, 8, 8], (&device, DType::F64));
        let message = panic_message(|| conv(&device).forward(input));
        let message = message.unwrap_or_else(|| panic!("{name}: accepted"));
        assert_contains(&message, &["Conv2d::forward", "[1, 4, 8, 8]", "F64", "F32"]);
    }
}

#[test]
fn configurations_convert_both_ways() {
    let ours = Conv2dConfig::new([4, 6], [3, 5])
        .with_stride([2, 1])
        .with_dilation([1, 2])
        .with_groups(2)
        .with_padding(PaddingConfig2d::Same)
        .with_bias(false);
    let burns = burn::nn::conv::Conv2dConfig::from(ours.clone());
    assert_eq!(Conv2dConfig::from(burns).to_string(), ours.to_string());
}

#[test]
fn a_quantized_layer_does_what_burns_does() {
    // Burn's ndarray backend does not have this kind of quantization
    let devices = devices().into_iter().filter(|(name, _)| *name != "ndarray");
    for (name, device) in devices {
        let ours = conv(&device);
        let burns = burn::nn::conv::Conv2d::from(ours.clone());
        let quantizer = || Quantizer::new(Calibration::MinMax, QuantScheme::default());
        let ours = ours.quantize_weights(&mut quantizer());
        let burns = burns.quantize_weights(&mut quantizer());
        let input = random(1, [2, 4, 8, 8], &device);
        let (found, expected) = (ours.forward(input.clone()), burns.forward(input));
        assert_close(name, &values(found), &values(expected), 1e-6);
    }
}
