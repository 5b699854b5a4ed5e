//! Times forward and backward of the seven convolutions of the gradient filter's latency table.

use burn::nn::PaddingConfig2d;
use burn::tensor::{Distribution, Tensor};
use burn_frugal::memory::CountingAllocator;
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal_benches::arguments::Common;
use burn_frugal_benches::convolutions::SEVEN;
use burn_frugal_benches::method::MethodName;
use burn_frugal_benches::record::{Record, Report};
use burn_frugal_benches::timing::{medians, timed};
use burn_frugal_benches::upstream::with_gradient;
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Times the seven 3x3 convolutions of the gradient filter's latency table (arXiv 2301.00330).
///
/// forward_ms: what is kept is made within it. backward_ms: the gradients of input, weight and bias,
/// all of full size. kept_bytes: live between forward and backward, beyond input and output.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    common: Common,
    /// Images.
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// exact, filter2 (or another patch), sparse10 (or another percentage), shortcut or sequential; all of these
    /// without it.
    #[arg(long)]
    method: Option<MethodName>,
    /// One of the layers, 0 to 6; all of them without it.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..7))]
    layer: Option<u8>,
}

fn main() {
    let args = Args::parse();
    args.common.prepare();
    let methods = match args.method {
        Some(method) => vec![method],
        None => [
            "exact",
            "filter2",
            "filter4",
            "sparse10",
            "shortcut",
            "sequential",
        ]
        .map(|name| name.parse().expect("a method's name"))
        .to_vec(),
    };
    let mut report = Report::new(args.common.table);
    for (index, &(channels, [height, width])) in SEVEN.iter().enumerate() {
        if args.layer.is_some_and(|only| usize::from(only) != index) {
            continue;
        }
        let shape = [args.batch, channels, height, width];
        for &method in &methods {
            let Figures {
                forward,
                backward,
                kept,
            } = measure(shape, method, &args.common);
            report.add(
                Record::new()
                    .with("layer", index)
                    .with("channels", channels)
                    .with("map", vec![height, width])
                    .with("batch", args.batch)
                    .with("method", method.to_string())
                    .with("backend", args.common.backend.as_str())
                    .with("forward_ms", forward)
                    .with("backward_ms", backward)
                    .with("kept_bytes", kept),
            );
        }
    }
    report.finish();
}

struct Figures {
    forward: f64,
    backward: f64,
    kept: usize,
}

fn measure(shape: [usize; 4], method: MethodName, common: &Common) -> Figures {
    let device = common.device().autodiff();
    let normal = || Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device);
    let conv: Conv2d = Conv2dConfig::new([shape[1], shape[1]], [3, 3])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init(&device)
        .with_method(method.method(shape))
        .expect("every method suits these layers");
    let input = normal().require_grad();
    let gradient = normal().without_autodiff();
    let output_bytes = shape.iter().product::<usize>() * size_of::<f32>();

    // the least of the runs: in the first ones the kernels' scratch buffers grow
    let mut kept = usize::MAX;
    let [forward, backward] = medians(common.reps, || {
        let before = ALLOCATOR.live_bytes();
        let (output, forward) = timed(|| conv.forward(input.clone()));
        let live = ALLOCATOR.live_bytes().saturating_sub(before);
        kept = kept.min(live.saturating_sub(output_bytes));
        let root = with_gradient(output, gradient.clone());
        let ((), backward) = timed(|| {
            let gradients = root.backward();
            let bias = conv.bias.as_ref().expect("it has one").val();
            let complete = input.grad(&gradients).is_some()
                && conv.weight.val().grad(&gradients).is_some()
                && bias.grad(&gradients).is_some();
            assert!(complete, "all three gradients");
        });
        [forward, backward]
    });
    Figures {
        forward,
        backward,
        kept,
    }
}
