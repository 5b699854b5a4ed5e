//! Fine-tunes a pretrained network three times from the same start, and shows what each way costs.
//!
//! `cargo run --release -p quickstart`; nothing is read from outside the program.

mod data;
mod error;
mod report;
mod tune;

use burn::tensor::Device;
use burn_frugal::memory::CountingAllocator;
use burn_frugal::plan::Plan;
use burn_frugal::{Method, backends};
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig};
use clap::{Parser, builder::PossibleValuesParser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::PathBuf;
use std::process::ExitCode;

use error::Error;
use tune::{Data, Recipe, Run};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The network's weights, trained on CIFAR-10 (see `assets/small32`).
const WEIGHTS: &[u8] = include_bytes!("../assets/small32/small32-cifar10.safetensors");

/// Convolutions that are tuned, with the head.
const TUNED: usize = 4;

/// Fine-tunes a small network, pretrained on CIFAR-10, to clothes (a sample of Fashion-MNIST): the
/// last 4 convolutions and a new head, once with exact gradients and once with gradient filtering
/// at patch 2 and 4, from the same start. Prints accuracy, memory and time of each, and writes
/// plan.json and accuracy.svg. Network and images are part of the program.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Backend that computes.
    #[arg(long, value_parser = PossibleValuesParser::new(backend_names()), default_value = backend_names()[0])]
    backend: String,
    /// Seed of the new head's weights and of the order of the images. The same seed gives the same
    /// numbers on the same backend and number of threads.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Optimizer steps of each run.
    #[arg(long, default_value_t = 240)]
    steps: usize,
    /// Images a step.
    #[arg(long, default_value_t = 50)]
    batch: usize,
    /// Learning rate of the first step; it falls to 0 along a cosine.
    #[arg(long, default_value_t = 0.05)]
    learning_rate: f64,
    /// Folder for plan.json and accuracy.svg; it is made if it is not there.
    #[arg(long, default_value = "quickstart-out")]
    out: PathBuf,
}

fn backend_names() -> Vec<&'static str> {
    backends::compiled()
        .into_iter()
        .map(|(name, _)| name)
        .collect()
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<(), Error> {
    let config = BottleneckNetConfig::small32();
    let data = Data {
        train: data::train()?,
        test: data::test()?,
        input: config.input,
    };
    let recipe = recipe(args, &data)?;
    std::fs::create_dir_all(&args.out).map_err(|source| Error::File {
        path: args.out.clone(),
        source,
    })?;
    let device = device(&args.backend);
    device.seed(args.seed);
    let start = pretrained(&config, &device)?.with_classes(data::CLASSES, &device);
    println!(
        "{} on {} training and {} test images of Fashion-MNIST, backend {}:",
        config.name,
        data.train.len(),
        data.test.len(),
        args.backend
    );
    println!(
        "the last {TUNED} convolutions and the head, {} steps of {} images\n",
        recipe.steps, recipe.batch
    );

    let methods = [
        Method::Exact,
        Method::gradient_filter(2),
        Method::gradient_filter(4),
    ];
    let progress = progress_bar(methods.len() * recipe.steps);
    let mut runs: Vec<(String, Run)> = Vec::new();
    let mut plan = Plan::default();
    for method in methods {
        progress.set_message(method.to_string());
        plan = Plan::builder().last_convs(TUNED, method).build(&start)?;
        let network = plan.apply(start.clone())?;
        let network = plan.freeze_rest(network, &["classifier"])?;
        let run = tune::fine_tune(network, &data, &recipe, &device, &ALLOCATOR, &progress);
        runs.push((method.to_string(), run));
    }
    progress.finish_and_clear();

    print!("{}", report::table(&runs));
    println!(
        "\nkept: bytes between forward and backward; both byte counts are an allocator's, beyond"
    );
    println!(
        "weights and images. Frozen layers keep nothing; what exact keeps more is the inputs of"
    );
    println!("the tuned convolutions.\n");

    let plan_path = args.out.join("plan.json");
    plan.save(&plan_path)?;
    println!(
        "{}  the last run's method of each tuned layer",
        plan_path.display()
    );
    let picture_path = args.out.join("accuracy.svg");
    report::picture(&runs, &picture_path)?;
    println!("{}  accuracy against steps", picture_path.display());
    Ok(())
}

/// Checks what the types of the arguments do not.
fn recipe(args: &Args, data: &Data) -> Result<Recipe, Error> {
    let argument = |name, expected: String, found: String| {
        Err(Error::Argument {
            name,
            expected,
            found,
        })
    };
    if args.steps == 0 {
        return argument("steps", "at least 1".to_string(), "0".to_string());
    }
    let images = data.train.len();
    if args.batch == 0 || args.batch > images {
        let expected = format!("1 to {images} images");
        return argument("batch", expected, args.batch.to_string());
    }
    if !(args.learning_rate.is_finite() && args.learning_rate > 0.0) {
        let found = args.learning_rate.to_string();
        return argument("learning-rate", "a positive number".to_string(), found);
    }
    Ok(Recipe {
        steps: args.steps,
        batch: args.batch,
        learning_rate: args.learning_rate,
        interval: args.steps.div_ceil(10),
        seed: args.seed,
    })
}

fn device(backend: &str) -> Device {
    let mut compiled = backends::compiled().into_iter();
    let (_, device) = compiled
        .find(|(name, _)| *name == backend)
        .expect("the argument's parser knows the backends");
    device.autodiff()
}

fn pretrained(config: &BottleneckNetConfig, device: &Device) -> Result<BottleneckNet, Error> {
    let network = config.try_init(device)?;
    let (network, _) = network.load_safetensors_bytes(WEIGHTS)?;
    Ok(network)
}

/// On standard error, and only drawn when that is a terminal.
fn progress_bar(steps: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg:26} {bar:32} {pos}/{len}, {eta} left");
    bar.with_style(style.expect("a valid template"))
}
