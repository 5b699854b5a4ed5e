//! Guards gradients from inputs that are computed again: they are the exact ones to the bit, whatever
//! is between the layers, and weights that change later do not matter.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::tensor::{Device, Tensor, activation};
use burn_frugal::Method;
use burn_frugal::nn::{
    BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, HardSwish, Linear, LinearConfig, Relu6,
};
use burn_frugal::plan::Plan;
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig};
use burn_frugal_tests::{autodiff_devices, random, values};

/// A chain of more layers than are recomputed, with everything that may be between two of them.
#[derive(Module, Debug)]
struct Chain {
    first: Conv2d,
    norm: BatchNorm,
    second: Conv2d,
    third: Conv2d,
    fourth: Conv2d,
    head: Linear,
}

impl Chain {
    fn new(device: &Device) -> Self {
        let conv = |channels: [usize; 2], kernel: usize, groups: usize| {
            Conv2dConfig::new(channels, [kernel, kernel])
                .with_padding(PaddingConfig2d::Same)
                .with_groups(groups)
                .init(device)
        };
        Self {
            first: conv([3, 8], 3, 1),
            norm: BatchNormConfig::new(8).init(device).freeze(),
            second: conv([8, 8], 5, 8),
            third: conv([8, 6], 1, 1),
            fourth: conv([6, 6], 3, 2),
            head: LinearConfig::new(7, 4).init(device),
        }
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let map = Relu6::new().forward(self.norm.forward(self.first.forward(input)));
        let map = HardSwish::new().forward(self.second.forward(map));
        let map = self.third.forward(map);
        // Burn's own operation: the next layer cannot look behind it
        let map = activation::tanh(map);
        let map = self.fourth.forward(map);
        self.head.forward(map)
    }
}

/// All parameters' gradients, and the input's.
fn gradients(model: &Chain, input: &Tensor<4>) -> Vec<Vec<f64>> {
    let input = input.clone().require_grad();
    let gradients = model.forward(input.clone()).powi_scalar(2).sum().backward();
    let of = |conv: &Conv2d| {
        let bias = conv.bias.as_ref().expect("a bias").val();
        [
            values(conv.weight.val().grad(&gradients).expect("trained")),
            values(bias.grad(&gradients).expect("trained")),
        ]
    };
    let convolutions = [&model.first, &model.second, &model.third, &model.fourth];
    let mut all: Vec<Vec<f64>> = convolutions.into_iter().flat_map(of).collect();
    all.push(values(
        model.head.weight.val().grad(&gradients).expect("trained"),
    ));
    all.push(values(input.grad(&gradients).expect("tracked")));
    all
}

fn everywhere<M: Module>(model: M, method: Method) -> M {
    let plan = Plan::builder().pattern(".*", method).build(&model);
    plan.and_then(|plan| plan.apply(model)).expect("suitable")
}

#[test]
fn a_chain_has_the_exact_gradients_to_the_bit() {
    for (name, device) in autodiff_devices() {
        let model = Chain::new(&device);
        let input = random(1, [3, 3, 9, 7], &device);
        let expected = gradients(&everywhere(model.clone(), Method::Exact), &input);
        let model = everywhere(model, Method::Recomputed);
        assert_eq!(gradients(&model, &input), expected, "{name}");
        // one more step: nothing is left of the first
        assert_eq!(gradients(&model, &input), expected, "{name}, again");
    }
}

#[test]
fn layers_of_other_methods_break_a_chain() {
    for (name, device) in autodiff_devices() {
        let model = Chain::new(&device);
        let input = random(1, [2, 3, 9, 7], &device);
        for exact in ["first", "second", "third"] {
            let expected = gradients(&everywhere(model.clone(), Method::Exact), &input);
            let plan = Plan::builder()
                .pattern(".*", Method::Recomputed)
                .layer(exact, Method::Exact)
                .build(&model);
            let mixed = plan
                .and_then(|plan| plan.apply(model.clone()))
                .expect("suitable");
            assert_eq!(gradients(&mixed, &input), expected, "{name}, {exact} exact");
        }
    }
}

#[test]
fn a_frozen_layer_in_a_chain_is_no_source() {
    for (name, device) in autodiff_devices() {
        let mut model = Chain::new(&device);
        model.second = model.second.no_grad();
        let input = random(1, [2, 3, 9, 7], &device);
        let weights = |model: &Chain| {
            let gradients = model.forward(input.clone()).powi_scalar(2).sum().backward();
            [&model.first, &model.third, &model.fourth]
                .map(|conv| values(conv.weight.val().grad(&gradients).expect("trained")))
        };
        let expected = weights(&everywhere(model.clone(), Method::Exact));
        assert_eq!(
            weights(&everywhere(model, Method::Recomputed)),
            expected,
            "{name}"
        );
    }
}

/// A value that two layers read is not the last one when the second of them reads it.
#[test]
fn a_value_that_is_read_twice_has_the_exact_gradients() {
    for (name, device) in autodiff_devices() {
        let conv = |seed: usize| {
            let conv = Conv2dConfig::new([4, 4], [3, 3]).with_padding(PaddingConfig2d::Same);
            let _ = seed;
            conv.init(&device)
        };
        let layers = vec![conv(0), conv(1), conv(2)];
        let input = random(1, [2, 4, 6, 6], &device);
        let weights = |layers: &Vec<Conv2d>| {
            let shared = Relu6::new().forward(layers[0].forward(input.clone()));
            let left = layers[1].forward(shared.clone());
            let right = layers[2].forward(shared.clone());
            let again = layers[1].forward(right.clone() + shared);
            let gradients = (left * right + again).sum().backward();
            layers
                .iter()
                .map(|conv| values(conv.weight.val().grad(&gradients).expect("trained")))
                .collect::<Vec<_>>()
        };
        let expected = weights(&everywhere(layers.clone(), Method::Exact));
        let found = weights(&everywhere(layers, Method::Recomputed));
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_network_has_the_exact_gradients_to_the_bit() {
    for (name, device) in autodiff_devices() {
        let network = BottleneckNetConfig::mcunet_5fps()
            .with_classes(5)
            .init(&device);
        let images = random(1, [2, 3, 32, 32], &device);
        let weights = |network: &BottleneckNet| {
            let gradients = network
                .forward(images.clone())
                .powi_scalar(2)
                .sum()
                .backward();
            let block = &network.blocks[5];
            let mut all = vec![values(
                network.first_conv.weight.val().grad(&gradients).expect("a"),
            )];
            for conv in [
                block.pointwise1.as_ref().expect("it expands"),
                &block.depthwise,
                &block.pointwise2,
            ] {
                all.push(values(conv.weight.val().grad(&gradients).expect("trained")));
            }
            all
        };
        let expected = weights(&everywhere(network.clone(), Method::Exact));
        assert_eq!(
            weights(&everywhere(network, Method::Recomputed)),
            expected,
            "{name}"
        );
    }
}
