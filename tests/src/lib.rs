//! Shared pieces of the tests: the compiled backends, tensors with reproducible values, and how
//! results are compared.

pub mod channels;
pub mod layers;
pub mod sparse_network;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_frugal::nn::{Conv2d, Linear};

/// Every compiled backend, without autodiff, by name: the library's own list.
pub use burn_frugal::backends::compiled as devices;

/// Every compiled backend with autodiff, once for each of Burn's checkpointing strategies.
pub fn autodiff_devices() -> Vec<(String, Device)> {
    let both = |(name, device): (&str, Device)| {
        let plain = device.autodiff();
        let recomputing = plain.clone().gradient_checkpointing();
        [
            (name.to_string(), plain),
            (format!("{name} with checkpointing"), recomputing),
        ]
    };
    devices().into_iter().flat_map(both).collect()
}

/// Values in -1..1 that depend on the seed only: a failure is the same on every run and backend.
pub fn random<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    random_dtype(seed, shape, device, DType::F32)
}

/// [`random`] in another precision. All of them have the same values, which `f32` can represent.
pub fn random_dtype<const D: usize>(
    seed: u64,
    shape: [usize; D],
    device: &Device,
    dtype: DType,
) -> Tensor<D> {
    // Knuth's MMIX generator; its high bits are good enough for test data
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    let data = TensorData::new(values, shape).convert_dtype(dtype);
    Tensor::from_data(data, (device, dtype))
}

/// The values of a tensor of any float type, in row-major order.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// `|found - expected| / |expected|` in the Euclidean norm; the plain distance if `expected` is
/// zero, infinite if the lengths differ or a value is not finite.
pub fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let distance = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    let size = norm(&mut expected.iter().copied());
    let error = if size == 0.0 {
        distance
    } else {
        distance / size
    };
    // NaN would pass every `error > tolerance`
    if error.is_nan() { f64::INFINITY } else { error }
}

/// Fails if two lists of values differ by more than `tolerance` in [`relative_error`].
#[track_caller]
pub fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    let error = relative_error(found, expected);
    assert!(
        error <= tolerance,
        "{what}: relative error {error:e}, allowed {tolerance:e}"
    );
}

/// Fails if a message lacks one of `parts`.
#[track_caller]
pub fn assert_contains(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

/// What a forward and a backward pass through a layer give; `None` for what is not tracked.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    /// The output.
    pub output: Vec<f64>,
    /// The input's gradient.
    pub input: Option<Vec<f64>>,
    /// The weight's gradient.
    pub weight: Option<Vec<f64>>,
    /// The bias's gradient.
    pub bias: Option<Vec<f64>>,
}

impl Pass {
    /// Runs a copy of `conv`, whose running values stay as they are, on `input`, then backward from
    /// the output's gradient `upstream`.
    pub fn run(conv: &Conv2d, input: Tensor<4>, upstream: Tensor<4>) -> Self {
        Self::step(&conv.clone(), input, upstream)
    }

    /// Runs `conv` itself.
    pub fn step(conv: &Conv2d, input: Tensor<4>, upstream: Tensor<4>) -> Self {
        let output = conv.forward(input.clone());
        Self::backward(input, output, upstream, &conv.weight, conv.bias.as_ref())
    }

    /// Runs `linear` on `input`, then backward from the output's gradient `upstream`.
    pub fn run_linear<const D: usize>(
        linear: &Linear,
        input: Tensor<D>,
        upstream: Tensor<D>,
    ) -> Self {
        let output = linear.forward(input.clone());
        let bias = linear.bias.as_ref();
        Self::backward(input, output, upstream, &linear.weight, bias)
    }

    fn backward<const D: usize, const W: usize>(
        input: Tensor<D>,
        output: Tensor<D>,
        upstream: Tensor<D>,
        weight: &Param<Tensor<W>>,
        bias: Option<&Param<Tensor<1>>>,
    ) -> Self {
        let gradients = (output.clone() * upstream).sum().backward();
        let bias = bias.map(|bias| bias.val());
        Self {
            output: values(output),
            input: input.grad(&gradients).map(values),
            weight: weight.val().grad(&gradients).map(values),
            bias: bias.and_then(|bias| bias.grad(&gradients)).map(values),
        }
    }

    /// The tensors by name; an untracked one has no values.
    pub fn tensors(&self) -> [(&'static str, &[f64]); 4] {
        fn present(values: &Option<Vec<f64>>) -> &[f64] {
            values.as_deref().unwrap_or_default()
        }
        [
            ("output", &self.output),
            ("input gradient", present(&self.input)),
            ("weight gradient", present(&self.weight)),
            ("bias gradient", present(&self.bias)),
        ]
    }

    /// Fails if a tensor differs by more than `tolerance` in [`relative_error`].
    #[track_caller]
    pub fn assert_close(&self, what: &str, expected: &Self, tolerance: f64) {
        for ((name, found), (_, expected)) in self.tensors().into_iter().zip(expected.tensors()) {
            assert_close(&format!("{what}, {name}"), found, expected, tolerance);
        }
    }
}

/// The message with which `run` panics, `None` if it returns.
pub fn panic_message<R>(run: impl FnOnce() -> R) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(run)).err()?;
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| text.to_string()));
    Some(text.unwrap_or_else(|| "a panic without a message".to_string()))
}
