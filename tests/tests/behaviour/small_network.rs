//! A small network of the model family, and the content of weights files.

use std::collections::BTreeMap;

use burn::tensor::{DType, Device, Tensor};
use burn_frugal::Method;
use burn_frugal::plan::Plan;
use burn_frugal_models::{
    BottleneckNet, BottleneckNetConfig, InputConfig, InvertedBottleneckConfig, Padding,
};
use burn_frugal_tests::random;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// A network of the family with what every kind of block has, small enough to run everywhere.
pub fn small() -> BottleneckNetConfig {
    let block = |channels: [usize; 3], kernel, stride, residual| InvertedBottleneckConfig {
        input_channels: channels[0],
        expanded_channels: channels[1],
        output_channels: channels[2],
        kernel,
        stride,
        residual,
    };
    BottleneckNetConfig {
        name: "small".to_string(),
        input: InputConfig {
            size: 16,
            mean: 127.5,
            std: 127.5,
        },
        input_channels: 3,
        first_channels: 8,
        first_stride: 2,
        blocks: vec![
            block([8, 8, 8], 3, 1, false),
            block([8, 24, 12], 5, 2, false),
            block([12, 24, 12], 3, 1, true),
        ],
        last_channels: None,
        padding: Padding::Symmetric,
        classes: 5,
        batch_norm: false,
        batch_norm_epsilon: 1e-5,
    }
}

/// Images for it.
pub fn images(device: &Device) -> Tensor<4> {
    random(5, [2, 3, 16, 16], device)
}

/// The network with a filter on its last two convolutions.
pub fn with_filters(network: BottleneckNet) -> BottleneckNet {
    let plan = Plan::builder()
        .last_convs(2, Method::gradient_filter(2))
        .build(&network);
    plan.expect("two layers")
        .apply(network)
        .expect("its layers")
}

/// The content of a safetensors file: element type, shape and bytes by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights(pub BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>);

impl Weights {
    /// What a network would write.
    pub fn of(network: &BottleneckNet) -> Self {
        Self::read(&network.to_safetensors(DType::F32).expect("readable values"))
    }

    pub fn read(bytes: &[u8]) -> Self {
        let file = SafeTensors::deserialize(bytes).expect("a safetensors file");
        let tensor = |(name, view): (&str, TensorView)| {
            let parts = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
            (name.to_string(), parts)
        };
        Self(file.iter().map(tensor).collect())
    }

    pub fn bytes(&self) -> Vec<u8> {
        let view = |(name, (dtype, shape, data)): (&String, &(Dtype, Vec<usize>, Vec<u8>))| {
            let view = TensorView::new(*dtype, shape.clone(), data.clone().leak());
            (name.clone(), view.expect("bytes of this shape"))
        };
        safetensors::serialize(self.0.iter().map(view), None).expect("a safetensors file")
    }

    pub fn reshape(&mut self, name: &str, shape: &[usize]) {
        self.0.get_mut(name).expect("a tensor of the network").1 = shape.to_vec();
    }
}
