//! Times forward and backward of one very small layer: what every call costs beside the arithmetic.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv as burn_conv;
use burn::tensor::{Distribution, Tensor};
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal_benches::arguments::Common;
use burn_frugal_benches::method::MethodName;
use burn_frugal_benches::record::{Record, Report};
use burn_frugal_benches::timing::{medians, timed};
use burn_frugal_benches::upstream::with_gradient;
use clap::Parser;

/// The input of the layer, which has as many channels out as in and a 3x3 kernel.
const SHAPE: [usize; 4] = [1, 16, 8, 8];

/// Calls of which the mean is one measurement.
const CALLS: u32 = 500;

/// Times forward and backward of one 3x3 convolution of 16 channels on a single 8x8 map: Burn's own
/// layer and ours with each method, in microseconds.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    common: Common,
}

fn main() {
    let args = Args::parse();
    args.common.prepare();
    let device = args.common.device().autodiff();
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);

    let mut report = Report::new(args.common.table);
    let mut add = |method: &str, microseconds: f64| {
        report.add(
            Record::new()
                .with("method", method)
                .with("backend", args.common.backend.as_str())
                .with("step_us", microseconds),
        );
    };
    let layer: burn_conv::Conv2d = burn_conv::Conv2dConfig::new([16, 16], [3, 3])
        .with_padding(padding.clone())
        .init(&device);
    add(
        "burn",
        measure(&args.common, &layer, burn_conv::Conv2d::forward),
    );
    for method in ["exact", "filter2", "sparse10", "shortcut", "sequential"] {
        let name: MethodName = method.parse().expect("a method's name");
        let layer: Conv2d = Conv2dConfig::new([16, 16], [3, 3])
            .with_padding(padding.clone())
            .init(&device)
            .with_method(name.method(SHAPE))
            .expect("every method suits this layer");
        add(method, measure(&args.common, &layer, Conv2d::forward));
    }
    report.finish();
}

/// Microseconds of a forward and backward pass.
fn measure<M: Module>(
    common: &Common,
    layer: &M,
    forward: impl Fn(&M, Tensor<4>) -> Tensor<4>,
) -> f64 {
    let device = common.device().autodiff();
    let normal = || Tensor::<4>::random(SHAPE, Distribution::Normal(0.0, 1.0), &device);
    let input = normal().require_grad();
    let gradient = normal().without_autodiff();
    let [milliseconds] = medians(common.reps, || {
        let ((), time) = timed(|| {
            for _ in 0..CALLS {
                let output = forward(layer, input.clone());
                let gradients = with_gradient(output, gradient.clone()).backward();
                assert!(input.grad(&gradients).is_some(), "the input's gradient");
            }
        });
        [time]
    });
    1e3 * milliseconds / f64::from(CALLS)
}
