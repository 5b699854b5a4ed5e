//! Times a training step of a whole network, and counts what it keeps.

use burn::module::Module;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_frugal::Method;
use burn_frugal::memory::CountingAllocator;
use burn_frugal::plan::{Network, Plan, Training, TrainingState};
use burn_frugal_benches::arguments::Common;
use burn_frugal_benches::burn_network::BurnNetwork;
use burn_frugal_benches::method::MethodName;
use burn_frugal_benches::network::{self, NetworkTable};
use burn_frugal_benches::record::{Record, Report};
use burn_frugal_benches::timing::{medians, timed};
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use std::fmt;
use std::str::FromStr;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Classes to tell apart.
const CLASSES: usize = 10;

/// Times forward and backward pass of a network with random weights, the last convolutions and the
/// classifier trained.
///
/// step_ms: forward, loss and backward. forward_ms: the forward pass of a step. inference_ms: forward
/// without. kept_bytes: live between forward and backward, beyond weights and images, and the factors
/// that an activation shortcut carries from step to step. peak_bytes: the
/// most at any moment of a step, the same way. The predicted ones follow from the network's operations.
///
/// The shortcut's ranks are those that keep 0.8 of the energy of each mode with the published weights
/// and 32 images of CIFAR-10 at 128 pixels; random weights have none of that structure.
///
/// EfficientNet-Lite0 has its batch normalization folded, except for burn: Burn's layers run it, frozen
/// and with running statistics.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The network.
    #[arg(value_parser = PossibleValuesParser::new(network::NAMES))]
    model: String,
    #[command(flatten)]
    common: Common,
    /// Images a step.
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Side of the images in pixels.
    #[arg(long, default_value_t = 128)]
    size: usize,
    /// How many convolutions are trained, or `all`.
    #[arg(long, default_value = "4")]
    tune: Tune,
    /// burn (the same network from Burn's own layers), exact, filter2 (or another patch), sparse10 (or
    /// another percentage), shortcut (as published) or sequential (its cheaper form).
    #[arg(long, default_value = "exact")]
    method: Side,
    /// Prints the network's convolutions, as JSON, and stops.
    #[arg(long)]
    describe: bool,
}

#[derive(Clone, Copy)]
enum Tune {
    All,
    Last(usize),
}

impl FromStr for Tune {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let count = text.parse();
        count
            .map(Self::Last)
            .map_err(|_| "expected all or a number of convolutions".to_string())
    }
}

impl fmt::Display for Tune {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Last(count) => count.fmt(f),
        }
    }
}

/// Whose layers.
#[derive(Clone, Copy)]
enum Side {
    Burn,
    Ours(MethodName),
}

impl FromStr for Side {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "burn" => Ok(Self::Burn),
            _ => text
                .parse()
                .map(Self::Ours)
                .map_err(|error: String| format!("{error}; or burn")),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Burn => f.write_str("burn"),
            Self::Ours(method) => method.fmt(f),
        }
    }
}

fn main() {
    let args = Args::parse();
    args.common.prepare();
    let config = network::config(&args.model)
        .expect("the argument's parser knows the networks")
        .with_classes(CLASSES);
    let table = NetworkTable::new(&config, args.size);
    if args.describe {
        println!("{}", serde_json::to_string(&table).expect("plain values"));
        return;
    }
    let convolutions = table.convolutions().len();
    let tuned = match args.tune {
        Tune::All => convolutions,
        Tune::Last(count) => count.min(convolutions),
    };
    let figures = match args.method {
        Side::Burn => {
            let on = |device: &Device| BurnNetwork::new(&table, tuned, device);
            measure(&args, on, BurnNetwork::forward)
        }
        Side::Ours(method) => {
            let on = |device: &Device| ours(&config, &table, method, tuned, &args, device).0;
            let predicted = predicted(&config, &table, method, tuned, &args);
            Figures {
                predicted: Some(predicted),
                ..measure(&args, on, BottleneckNet::forward)
            }
        }
    };
    let mut report = Report::new(args.common.table);
    report.add(
        Record::new()
            .with("model", args.model.as_str())
            .with("batch", args.batch)
            .with("size", args.size)
            .with("tune", args.tune.to_string())
            .with("method", args.method.to_string())
            .with("backend", args.common.backend.as_str())
            .with("step_ms", figures.step)
            .with("forward_ms", figures.forward)
            .with("inference_ms", figures.inference)
            .with("kept_bytes", figures.kept)
            .with("peak_bytes", figures.peak)
            .with(
                "predicted_kept_bytes",
                figures.predicted.map(|(kept, _)| kept),
            )
            .with(
                "predicted_peak_bytes",
                figures.predicted.map(|(_, peak)| peak),
            ),
    );
    report.finish();
}

/// The network of our layers with a method on the last `tuned` convolutions, the others frozen.
fn ours(
    config: &BottleneckNetConfig,
    table: &NetworkTable,
    method: MethodName,
    tuned: usize,
    args: &Args,
    device: &Device,
) -> (BottleneckNet, Plan) {
    let network = config.init(device).fold_batch_norm();
    let measured = network::shortcut_plan(&args.model);
    let inputs = table.inputs(args.batch);
    let convolutions = table.convolutions();
    let mut plan = Plan::builder();
    let layers = convolutions.iter().zip(inputs);
    for (conv, input) in layers.skip(convolutions.len() - tuned) {
        let method = match (method, measured.methods()[&conv.name]) {
            (MethodName::Shortcut, measured) => measured,
            (MethodName::SequentialShortcut, Method::ActivationShortcut(shortcut)) => {
                shortcut.sequential().into()
            }
            (method, _) => method.method(input),
        };
        plan = plan.layer(conv.name.as_str(), method);
    }
    let plan = plan
        .build(&network)
        .expect("a plan of the network's own layers");
    let network = plan
        .apply(network)
        .expect("the plan was built for the network");
    let network = plan
        .freeze_rest(network, &["classifier"])
        .expect("the network has a classifier");
    (network, plan)
}

/// Kept and peak bytes as they follow from the network's operations on one image.
fn predicted(
    config: &BottleneckNetConfig,
    table: &NetworkTable,
    method: MethodName,
    tuned: usize,
    args: &Args,
) -> (usize, usize) {
    let device = args.common.device().autodiff();
    let (network, plan) = ours(config, table, method, tuned, args, &device);
    let image = Tensor::<4>::zeros([1, 3, args.size, args.size], &device);
    let class = Tensor::<1, Int>::from_data([0], &device);
    let loss = CrossEntropyLossConfig::new().init(&device);
    let traced = Network::of(&network, |network: &BottleneckNet| {
        loss.forward(network.forward(image.clone()), class.clone())
    });
    let training = Training {
        plan,
        also: vec!["classifier".to_string()],
        batch: args.batch,
    };
    let memory = traced.and_then(|traced| traced.predict(&training));
    let memory = memory.expect("the plan names the network's own layers");
    (memory.kept, memory.peak)
}

struct Figures {
    step: f64,
    forward: f64,
    inference: f64,
    kept: usize,
    peak: usize,
    /// Kept and peak bytes, for our layers.
    predicted: Option<(usize, usize)>,
}

fn measure<M: Module>(
    args: &Args,
    network: impl Fn(&Device) -> M,
    run: impl Fn(&M, Tensor<4>) -> Tensor<2>,
) -> Figures {
    let (plain, reps) = (args.common.device(), args.common.reps);
    let device = plain.clone().autodiff();
    let shape = [args.batch, 3, args.size, args.size];
    let images =
        |device: &Device| Tensor::<4>::random(shape, Distribution::Uniform(-1.0, 1.0), device);
    let classes: Vec<i64> = (0..args.batch)
        .map(|image| (image % CLASSES) as i64)
        .collect();

    // those of the last run: in the first ones the kernels' scratch buffers grow
    let (mut kept, mut peak) = (0, 0);
    let (step, forward, carried) = {
        let network = network(&device);
        let images = images(&device);
        let classes = Tensor::<1, Int>::from_data(classes.as_slice(), &device);
        let loss: CrossEntropyLoss = CrossEntropyLossConfig::new().init(&device);
        let [step, forward] = medians(reps, || {
            let before = ALLOCATOR.live_bytes();
            ALLOCATOR.reset_peak();
            let (scores, forward) = timed(|| run(&network, images.clone()));
            let (value, head) = timed(|| loss.forward(scores, classes.clone()));
            kept = ALLOCATOR.live_bytes().saturating_sub(before);
            let ((), backward) = timed(|| {
                let gradients = value.backward();
                peak = ALLOCATOR.peak_bytes().saturating_sub(before);
                drop(gradients);
            });
            [forward + head + backward, forward]
        });
        // they took the place of the last step's
        let carried = TrainingState::of(&network).factor_bytes();
        (step, forward, carried)
    };
    let network = network(&plain);
    let images = images(&plain);
    let [inference] = medians(reps, || [timed(|| drop(run(&network, images.clone()))).1]);
    Figures {
        step,
        forward,
        inference,
        kept: kept + carried,
        peak: peak + carried,
        predicted: None,
    }
}
