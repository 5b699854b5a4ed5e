//! Times forward pass, input gradient and weight gradient of single convolutions, ours and Burn's.

use burn::module::Module;
use burn::nn::conv as burn_conv;
use burn::tensor::{Device, Distribution, Tensor};
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal_benches::arguments::Common;
use burn_frugal_benches::convolutions::{Convolution, KERNELS};
use burn_frugal_benches::record::{Record, Report};
use burn_frugal_benches::timing::{medians, timed};
use burn_frugal_benches::upstream::with_gradient;
use clap::Parser;

/// Times convolutions of MobileNetV2, MCUNet and ResNet-18 with exact gradients: ours and Burn's own
/// on the same backend.
///
/// forward_ms: without autodiff. input_gradient_ms, weight_gradient_ms: a backward pass in which only
/// the input or only the weight is tracked.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    common: Common,
    /// Images.
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Only ours, or only Burn's.
    #[arg(long, value_parser = ["ours", "burn"])]
    side: Option<String>,
    /// Prints what is timed, as JSON, and stops.
    #[arg(long)]
    describe: bool,
}

fn main() {
    let args = Args::parse();
    args.common.prepare();
    if args.describe {
        println!("{}", serde_json::to_string(&KERNELS).expect("plain values"));
        return;
    }
    let mut report = Report::new(args.common.table);
    for convolution in KERNELS {
        for side in ["ours", "burn"] {
            if args.side.as_deref().is_some_and(|only| only != side) {
                continue;
            }
            let [forward, input_gradient, weight_gradient] = measure(side, &convolution, &args);
            report.add(
                Record::new()
                    .with("name", convolution.name)
                    .with("batch", args.batch)
                    .with("side", side)
                    .with("backend", args.common.backend.as_str())
                    .with("forward_ms", forward)
                    .with("input_gradient_ms", input_gradient)
                    .with("weight_gradient_ms", weight_gradient),
            );
        }
    }
    report.finish();
}

/// One convolution without bias, ours or Burn's.
#[derive(Clone, Debug)]
enum Layer {
    Ours(Conv2d),
    Burn(burn_conv::Conv2d),
}

impl Layer {
    fn new(side: &str, convolution: &Convolution, device: &Device) -> Self {
        let (channels, kernel) = (convolution.channels, [convolution.kernel; 2]);
        if side == "ours" {
            let config = Conv2dConfig::new(channels, kernel)
                .with_stride([convolution.stride; 2])
                .with_padding(convolution.padding())
                .with_groups(convolution.groups)
                .with_bias(false);
            Self::Ours(config.init(device))
        } else {
            let config = burn_conv::Conv2dConfig::new(channels, kernel)
                .with_stride([convolution.stride; 2])
                .with_padding(convolution.padding())
                .with_groups(convolution.groups)
                .with_bias(false);
            Self::Burn(config.init(device))
        }
    }

    fn frozen(self) -> Self {
        match self {
            Self::Ours(layer) => Self::Ours(layer.no_grad()),
            Self::Burn(layer) => Self::Burn(layer.no_grad()),
        }
    }

    fn weight(&self) -> Tensor<4> {
        match self {
            Self::Ours(layer) => layer.weight.val(),
            Self::Burn(layer) => layer.weight.val(),
        }
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Ours(layer) => layer.forward(input),
            Self::Burn(layer) => layer.forward(input),
        }
    }
}

/// Milliseconds of forward pass, input gradient and weight gradient.
fn measure(side: &str, convolution: &Convolution, args: &Args) -> [f64; 3] {
    let (plain, reps) = (args.common.device(), args.common.reps);
    let device = plain.clone().autodiff();
    let normal = |shape: [usize; 4], device: &Device| {
        Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), device)
    };
    let [channels, size] = [convolution.channels[0], convolution.size];
    let shape = [args.batch, channels, size, size];

    let layer = Layer::new(side, convolution, &plain);
    let input = normal(shape, &plain);
    let output = layer.forward(input.clone()).dims();
    let [forward] = medians(reps, || [timed(|| drop(layer.forward(input.clone()))).1]);

    let layer = Layer::new(side, convolution, &device);
    let weight = layer.weight();
    let gradient = normal(output, &device);
    let tracked = normal(shape, &device).require_grad();
    let constant = normal(shape, &device);
    let backward = |layer: &Layer, input: &Tensor<4>, of: &Tensor<4>| {
        let root = with_gradient(layer.forward(input.clone()), gradient.clone());
        let ((), time) = timed(|| {
            let gradients = root.backward();
            assert!(of.grad(&gradients).is_some(), "a gradient");
        });
        [time]
    };
    let [weight_gradient] = medians(reps, || backward(&layer, &constant, &weight));
    let layer = layer.frozen();
    let [input_gradient] = medians(reps, || backward(&layer, &tracked, &tracked));
    [forward, input_gradient, weight_gradient]
}
