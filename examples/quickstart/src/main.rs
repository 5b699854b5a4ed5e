//! Fine-tunes a pretrained network from the same start with every method, and shows what each costs.
//!
//! `cargo run --release -p quickstart`; nothing is read from outside the program.

mod data;
mod error;
mod jobs;
mod report;
mod tune;

use burn::tensor::Device;
use burn_frugal::memory::CountingAllocator;
use burn_frugal::{backends, files, prepare_process};
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig};
use clap::{Parser, builder::PossibleValuesParser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use error::Error;
use jobs::{Job, jobs};
use tune::{Data, Recipe, Run};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The network's weights, trained on CIFAR-10 (see `assets/small32`).
const WEIGHTS: &[u8] = include_bytes!("../assets/small32/small32-cifar10.safetensors");

/// Convolutions that are tuned, with the head.
const TUNED: usize = 4;

/// Fine-tunes a small network, pretrained on CIFAR-10, to clothes (a sample of Fashion-MNIST): the
/// last 4 convolutions and a new head, from the same start with exact gradients, recomputed and 8-bit inputs, gradient filtering,
/// channel-sparse updates, the activation shortcut, HOSVD, and what a planner chooses within a budget;
/// and the head alone, to compare with.
/// Prints accuracy, memory and time of each, and writes plan.json (the planner's) and accuracy.svg.
/// Network and images are part of the program. Takes under three minutes on two cores; `--steps 10`
/// for a first look.
#[derive(Parser)]
#[command(version, allow_negative_numbers = true)]
struct Args {
    /// Backend that computes.
    #[arg(long, value_parser = PossibleValuesParser::new(backend_names()), default_value = backend_names()[0])]
    backend: String,
    /// Seed of the new head's weights and of the order of the images. The same seed gives the same
    /// numbers on the same backend and number of threads.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Optimizer steps of each run.
    #[arg(long, default_value_t = 160)]
    steps: usize,
    /// Images a step.
    #[arg(long, default_value_t = 50)]
    batch: usize,
    /// Learning rate of the first step; it falls to 0 along a cosine.
    #[arg(long, default_value_t = 0.5)]
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
    prepare_process().expect("a process that nothing has set up");
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // whoever read the output has seen enough
        Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // nothing is left to tell if this fails too
            let _ = writeln!(stderr(), "error: {error}");
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
    let outputs = Outputs::prepare(&args.out)?;
    let device = device(&args.backend);
    device.seed(args.seed);
    let start = pretrained(&config, &device)?.with_classes(data::CLASSES, &device);

    let mut out = stdout().lock();
    writeln!(
        out,
        "{} on {} training and {} test images of Fashion-MNIST, backend {}:\n\
         the last {TUNED} convolutions and the head, {} steps of {} images\n",
        config.name,
        data.train.len(),
        data.test.len(),
        args.backend,
        recipe.steps,
        recipe.batch
    )?;
    let jobs = jobs(&start, &data, &recipe, &device)?;
    let progress = progress_bar(jobs.len() * recipe.steps);
    let mut runs: Vec<(String, Run)> = Vec::new();
    for Job {
        name,
        plan,
        schedule,
    } in &jobs
    {
        progress.set_message(name.clone());
        let network = plan.apply(start.clone())?;
        let network = plan.freeze_rest(network, &["classifier"])?;
        let schedule = schedule.clone();
        let run = tune::fine_tune(
            network, schedule, &data, &recipe, &device, &ALLOCATOR, &progress,
        )?;
        runs.push((name.clone(), run));
    }
    progress.finish_and_clear();

    // before anything is printed: the reader of the output may be gone
    let planned = jobs.last().expect("several jobs");
    planned.plan.save(&outputs.plan)?;
    report::picture(&runs, &outputs.picture)?;
    writeln!(out, "{}\n{NOTES}", report::table(&runs))?;
    writeln!(
        out,
        "{}  the last row's method of each tuned layer\n{}  accuracy against steps",
        outputs.plan.display(),
        outputs.picture.display()
    )?;
    Ok(())
}

/// What the numbers of the table are.
const NOTES: &str = "\
kept: live between forward and backward. peak: the most at any moment of a step. Both as an
allocator counts them, beyond weights and images. The frozen front keeps nothing; what it needs for
a moment in the forward pass makes the peak, and most of the time, of a network this small, so a
method for the last layers changes little of either.
";

/// The files that are written.
struct Outputs {
    plan: PathBuf,
    picture: PathBuf,
}

impl Outputs {
    /// Makes the folder and tries to write in it: now, not after minutes of training.
    fn prepare(folder: &Path) -> Result<Self, Error> {
        let outputs = Self {
            plan: folder.join("plan.json"),
            picture: folder.join("accuracy.svg"),
        };
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |source| Error::File { path, source }
        };
        std::fs::create_dir_all(folder).map_err(at(folder))?;
        let probe = folder.join(".quickstart");
        files::replace(&probe, &[]).map_err(at(folder))?;
        std::fs::remove_file(&probe).map_err(at(folder))?;
        for path in [&outputs.plan, &outputs.picture] {
            if path.is_dir() {
                return Err(at(path)(ErrorKind::IsADirectory.into()));
            }
        }
        Ok(outputs)
    }
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
        interval: args.steps.div_ceil(8),
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
    let (network, report) = network.load_safetensors_bytes(WEIGHTS)?;
    assert!(report.is_complete(), "the embedded weights: {report}");
    Ok(network)
}

/// On standard error, and only drawn when that is a terminal.
fn progress_bar(steps: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg:26} {bar:32} {pos}/{len}, {eta} left");
    bar.with_style(style.expect("a valid template"))
}
