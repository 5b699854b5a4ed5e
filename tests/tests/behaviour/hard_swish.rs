//! Guards hard swish: Burn's values, and its gradient as closely as a byte an element allows.

use burn::nn::activation::HardSwish as BurnHardSwish;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_frugal::nn::HardSwish;
use burn_frugal_tests::layers::cut_out;
use burn_frugal_tests::{autodiff_devices, devices, random_dtype, values};

/// Relative rounding of a few operations.
const PRECISIONS: [(DType, f64); 4] = [
    (DType::F32, 1e-6),
    (DType::F64, 1e-15),
    (DType::F16, 2e-3),
    (DType::BF16, 1.6e-2),
];

const SHAPE: [usize; 4] = [2, 3, 8, 25];

/// Numbers from -6 to 6 and some where something changes.
fn input(device: &Device, dtype: DType) -> Tensor<4> {
    let edges = [
        0.0, -0.0, 3.0, -3.0, -1.5, 1.5, 2.99, -2.99, 3.01, -3.01, 1e4, -1e4, 6e4,
    ];
    let mut numbers = values(random_dtype::<4>(1, SHAPE, device, dtype) * 6.0);
    for (number, edge) in numbers.iter_mut().step_by(11).zip(edges) {
        *number = edge;
    }
    let data = TensorData::new(numbers, SHAPE).convert_dtype(dtype);
    Tensor::from_data(data, (device, dtype))
}

/// `x min(max(x + 3, 0), 6) / 6`
fn value(x: f64) -> f64 {
    x * (x + 3.0).clamp(0.0, 6.0) / 6.0
}

/// Its derivative, where it has one.
fn slope(x: f64) -> Option<f64> {
    match x {
        x if x < -3.0 => Some(0.0),
        x if x > 3.0 => Some(1.0),
        x if x > -3.0 && x < 3.0 => Some((2.0 * x + 3.0) / 6.0),
        _ => None,
    }
}

fn for_each(check: impl Fn(&str, Tensor<4>, f64)) {
    for (device_name, device) in autodiff_devices() {
        for (dtype, rounding) in PRECISIONS {
            if device.supports_dtype(dtype) {
                let name = format!("{dtype:?} ({device_name})");
                check(&name, input(&device, dtype), rounding);
            }
        }
    }
}

#[test]
fn values_are_burns_to_rounding() {
    for_each(|name, x, rounding| {
        let found = values(HardSwish::new().forward(x.clone()));
        let burns = values(BurnHardSwish::new().forward(x.clone()));
        for ((x, found), burns) in values(x).into_iter().zip(found).zip(burns) {
            let allowed = rounding * value(x).abs().max(x.abs());
            assert!(
                (found - value(x)).abs() <= allowed,
                "{name}: {found} at {x}"
            );
            // Burn's has 1/6 in single precision
            let allowed = 2.0 * allowed + 1e-7 * x.abs();
            assert!(
                (found - burns).abs() <= allowed,
                "{name}: {found}, {burns} at {x}"
            );
        }
    });
}

#[test]
fn gradients_are_within_half_a_step_of_burns_and_exact_outside() {
    for_each(|name, x, rounding| {
        let leaf = x.clone().require_grad();
        let upstream = random_dtype(2, SHAPE, &leaf.device(), leaf.dtype());
        let run = |output: Tensor<4>| {
            let gradients = (output * upstream.clone()).sum().backward();
            values(leaf.grad(&gradients).expect("tracked"))
        };
        let found = run(HardSwish::new().forward(leaf.clone()));
        let burns = run(BurnHardSwish::new().forward(leaf.clone()));
        let mut inside = 0;
        let numbers = values(x).into_iter().zip(values(upstream.clone()));
        for ((x, upstream), (found, burns)) in numbers.zip(found.into_iter().zip(burns)) {
            let Some(slope) = slope(x) else {
                // between the slopes on both sides
                let most = (1.5 + 1.0 / 254.0 + 2.0 * rounding) * upstream.abs();
                assert!(found.abs() <= most, "{name}: {found} at {x}");
                continue;
            };
            let at = format!("{name}: {found} at {x}, upstream {upstream}");
            if x.abs() > 3.0 {
                assert_eq!(found, slope * upstream, "{at}");
                continue;
            }
            inside += 1;
            let allowed = (1.0 / 254.0 + 2.0 * rounding) * upstream.abs();
            assert!((found - slope * upstream).abs() <= allowed, "{at}");
            let allowed = (1.0 / 254.0 + 4.0 * rounding + 1e-7) * upstream.abs();
            assert!((found - burns).abs() <= allowed, "{at}, Burn's {burns}");
        }
        assert!(inside > 400, "{name}: {inside}");
    });
}

/// Steps of training see a gradient that is right on average.
#[test]
fn errors_of_the_gradient_cancel() {
    for (name, device) in autodiff_devices() {
        let shape = [4, 4, 32, 32];
        let leaf = (random_dtype(1, shape, &device, DType::F64) * 3.0)
            .detach()
            .require_grad();
        let gradients = HardSwish::new().forward(leaf.clone()).sum().backward();
        let found = values(leaf.grad(&gradients).expect("tracked"));
        let slopes = values(leaf).into_iter().map(|x| slope(x).expect("inside"));
        let off: f64 = found
            .iter()
            .zip(slopes)
            .map(|(found, slope)| found - slope)
            .sum();
        let mean = off / found.len() as f64;
        assert!(mean.abs() < 1e-4, "{name}: {mean:e}");
    }
}

#[test]
fn values_that_are_not_finite_stay() {
    for (name, device) in autodiff_devices() {
        for (dtype, _) in PRECISIONS {
            if !device.supports_dtype(dtype) {
                continue;
            }
            let numbers = TensorData::from([f64::NAN, f64::INFINITY, 1.0]).convert_dtype(dtype);
            let leaf = Tensor::<1>::from_data(numbers, (&device, dtype)).require_grad();
            let output = HardSwish::new().forward(leaf.clone());
            let found = values(output.clone());
            assert!(found[0].is_nan(), "{name}, {dtype:?}: {found:?}");
            assert_eq!(found[1], f64::INFINITY, "{name}, {dtype:?}");
            let gradients = output.sum().backward();
            let gradient = values(leaf.grad(&gradients).expect("tracked"));
            assert_eq!(gradient[1], 1.0, "{name}, {dtype:?}");
        }
    }
}

/// The result takes the input's memory only where nothing else uses it.
#[test]
fn other_users_of_the_input_see_it_unchanged() {
    let all = devices()
        .into_iter()
        .map(|(name, device)| (name.to_string(), device));
    for (name, device) in all.chain(autodiff_devices()) {
        let x = input(&device, DType::F32);
        let before = values(x.clone());
        let expected = values(BurnHardSwish::new().forward(x.clone()));
        let close =
            |found: Vec<f64>| burn_frugal_tests::assert_close(&name, &found, &expected, 1e-6);
        close(values(HardSwish::new().forward(x.clone())));
        assert_eq!(values(x.clone()), before, "{name}, a clone");
        for axis in 0..4 {
            let whole = cut_out(x.clone(), axis);
            close(values(HardSwish::new().forward(whole.clone())));
            assert_eq!(values(whole), before, "{name}, cut out along {axis}");
        }
        drop(HardSwish::new().forward(x.clone().narrow(0, 0, 1)));
        assert_eq!(values(x), before, "{name}, a part");
    }
}

#[test]
fn no_elements_have_no_gradient() {
    for (name, device) in autodiff_devices() {
        for (dtype, _) in PRECISIONS {
            if !device.supports_dtype(dtype) {
                continue;
            }
            let leaf = Tensor::<3>::zeros([0, 3, 4], (&device, dtype)).require_grad();
            let gradients = HardSwish::new().forward(leaf.clone()).sum().backward();
            let gradient = leaf.grad(&gradients).expect("tracked");
            assert_eq!(gradient.dims(), [0, 3, 4], "{name}, {dtype:?}");
        }
    }
}
