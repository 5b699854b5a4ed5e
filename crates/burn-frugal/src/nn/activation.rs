use burn::backend::Dispatch;
use burn::module::Module;
use burn::tensor::Tensor;
use burn_frugal_kernels::Activation;

use super::layer::dequantized;
use crate::ops::FrugalOps;

/// `max(0, x)`, with the value and gradient of Burn's [`Relu`](burn::nn::Relu) (but for the sign of a
/// zero, in which Burn's backends differ).
///
/// On the CPU backends, in single and double precision, it keeps one bit an element between forward and
/// backward, where Burn's keeps the output, and writes the result over its input if nothing else uses
/// that. Elsewhere it keeps a byte an element.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_frugal::nn::Relu;
///
/// let device = Device::default();
/// let output = Relu::new().forward(Tensor::<1>::from_data([-1.0, 2.0], &device));
/// assert_eq!(output.into_data().iter::<f32>().collect::<Vec<_>>(), [0.0, 2.0]);
/// ```
#[derive(Module, Debug, Default)]
pub struct Relu;

impl Relu {
    /// Creates the module.
    pub fn new() -> Self {
        Self
    }

    /// Applies the activation to every element.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        forward(input, Activation::Relu)
    }
}

/// `min(max(0, x), 6)`, with the value and gradient of Burn's [`Relu6`](burn::nn::activation::Relu6).
///
/// Keeps what [`Relu`] keeps.
#[derive(Module, Debug, Default)]
pub struct Relu6;

impl Relu6 {
    /// Creates the module.
    pub fn new() -> Self {
        Self
    }

    /// Applies the activation to every element.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        forward(input, Activation::Relu6)
    }
}

/// `x min(max(x + 3, 0), 6) / 6` (arXiv 1905.02244, section 5.2), with the value of Burn's
/// [`HardSwish`](burn::nn::activation::HardSwish) and its gradient to within 1/254 of the output's:
/// between forward and backward it keeps the slope of each element in 8 bits, where Burn's keeps two
/// maps. Slopes 0 and 1, outside -3..3, are exact.
///
/// Writes over its input as [`Relu`] does.
#[derive(Module, Debug, Default)]
pub struct HardSwish;

impl HardSwish {
    /// Creates the module.
    pub fn new() -> Self {
        Self
    }

    /// Applies the activation to every element.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        forward(input, Activation::HardSwish)
    }
}

fn forward<const D: usize>(input: Tensor<D>, activation: Activation) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as FrugalOps>::activation(
        dequantized(input).into_dispatch(),
        activation,
    ))
}
