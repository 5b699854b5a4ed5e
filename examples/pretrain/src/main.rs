//! Trains the quickstart's small network on CIFAR-10 from nothing and writes its weights.
//!
//! `cargo run --release -p pretrain -- --data DIR`, where DIR holds `train/<class>/*` and
//! `test/<class>/*` with images of 32x32 pixels (JPEG or PNG).

mod augment;
mod folder;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{
    GradientsAccumulator, GradientsParams, SgdConfig, decay::WeightDecayConfig,
    momentum::MomentumConfig,
};
use burn::tensor::{DType, Device};
use burn_frugal::files;
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig, ImageSet};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

/// Trains the quickstart's network on CIFAR-10 and writes its weights in half precision.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Folder with train/CLASS/* and test/CLASS/*, images of 32x32 pixels.
    #[arg(long)]
    data: PathBuf,
    /// Where the weights go (safetensors, half precision).
    #[arg(long, default_value = "small32-cifar10.safetensors")]
    out: PathBuf,
    /// Passes over the training images.
    #[arg(long, default_value_t = 20)]
    epochs: usize,
    /// Images in a batch.
    #[arg(long, default_value_t = 128)]
    batch: usize,
    /// Highest learning rate, reached after a fifth of the steps.
    #[arg(long, default_value_t = 0.2)]
    learning_rate: f64,
    /// Seed of the weights, the order and the augmentation.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads that share each batch; batch normalization sees a thread's part.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Stop after this many steps (to try things out).
    #[arg(long)]
    steps: Option<usize>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let device = Device::default().autodiff();
    device.seed(args.seed);

    let train = folder::load(&args.data.join("train"))?;
    let test = folder::load(&args.data.join("test"))?;
    println!("{} training and {} test images", train.len(), test.len());

    let config = BottleneckNetConfig::small32();
    let network = config.clone().with_batch_norm(true).init(&device);
    println!("{}: {} parameters", config.name, network.num_params());

    fit(network, &config, &train, &test, &args, &device)?;

    // what the file holds, not what it was made from
    let written = config.init(&device).load_safetensors(&args.out)?.0;
    let accuracy = written.accuracy(&test, &config.input, args.batch, &device);
    println!(
        "{}: test accuracy {:.2} %",
        args.out.display(),
        100.0 * accuracy
    );
    Ok(())
}

/// Writes the weights after every epoch.
fn fit(
    mut network: BottleneckNet,
    config: &BottleneckNetConfig,
    train: &ImageSet,
    test: &ImageSet,
    args: &Args,
    device: &Device,
) -> Result<(), Box<dyn Error>> {
    let mut optimizer = SgdConfig::new()
        .with_momentum(Some(
            MomentumConfig::new()
                .with_momentum(0.9)
                .with_dampening(0.0)
                .with_nesterov(true),
        ))
        .with_weight_decay(Some(WeightDecayConfig::new(3e-4)))
        .with_gradient_clipping(Some(GradientClippingConfig::Norm(5.0)))
        .init();
    let mut rng = StdRng::seed_from_u64(args.seed);
    let mut order: Vec<usize> = (0..train.len()).collect();

    let steps_per_epoch = train.len() / args.batch;
    let all_steps = args.epochs * steps_per_epoch;
    let last_step = args.steps.map_or(all_steps, |steps| steps.min(all_steps));
    let bar = ProgressBar::new(last_step as u64);
    let style = "{bar:32} {pos}/{len} {elapsed} left {eta} {msg}";
    bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));

    let mut step = 0;
    for epoch in 1..=args.epochs {
        let start = Instant::now();
        let (mut losses, first_step) = (0.0, step);
        order.shuffle(&mut rng);
        for indices in order.chunks_exact(args.batch).take(last_step - step) {
            let batch = augment::cropped_and_flipped(train, indices, &mut rng);
            let (value, gradients) = gradients(&network, config, &batch, args.threads, device);
            losses += value;
            let rate = args.learning_rate * one_cycle(step as f64 / all_steps as f64);
            network = optimizer.step(rate, network, gradients);
            step += 1;
            bar.inc(1);
        }
        // `valid` takes the network off the training device, where folding needs no graph
        let folded = network.valid().fold_batch_norm();
        files::replace(&args.out, &folded.to_safetensors(DType::F16)?)?;
        let accuracy = folded.accuracy(test, &config.input, args.batch, device);
        // printed also where no bar is drawn
        bar.suspend(|| {
            println!(
                "epoch {epoch}: loss {:.3}, test accuracy {:.2} %, {:.0} s",
                losses / (step - first_step) as f64,
                100.0 * accuracy,
                start.elapsed().as_secs_f64()
            )
        });
        if step == last_step {
            break;
        }
    }
    bar.finish();
    Ok(())
}

/// Loss and gradients of a batch, a part of it on each thread: Burn's element-wise operations use
/// one core each.
fn gradients(
    network: &BottleneckNet,
    config: &BottleneckNetConfig,
    batch: &ImageSet,
    threads: usize,
    device: &Device,
) -> (f64, GradientsParams) {
    let part = |indices: &[usize]| {
        let loss = CrossEntropyLossConfig::new()
            .with_smoothing(Some(0.05))
            .init(device);
        let (images, classes) = batch.batch(indices, &config.input, device);
        let share = indices.len() as f64 / batch.len() as f64;
        let loss = loss.forward(network.forward(images), classes) * share;
        let value = loss.clone().into_scalar::<f64>();
        (value, GradientsParams::from_grads(loss.backward(), network))
    };
    let indices: Vec<usize> = (0..batch.len()).collect();
    let parts: Vec<_> = std::thread::scope(|scope| {
        let parts = indices.chunks(batch.len().div_ceil(threads));
        let workers: Vec<_> = parts
            .map(|indices| scope.spawn(move || part(indices)))
            .collect();
        let results = workers.into_iter().map(|worker| worker.join());
        results
            .map(|result| result.expect("a step does not panic"))
            .collect()
    });
    // Running statistics are kept a thread and merged on `valid`; without it the next step's new
    // threads would start from those of the last epoch.
    drop(network.valid());
    let mut accumulator = GradientsAccumulator::new();
    let mut loss = 0.0;
    for (value, gradients) in parts {
        loss += value;
        accumulator.accumulate(network, gradients);
    }
    (loss, accumulator.grads())
}

/// Share of the highest learning rate at this share of the training: up for a fifth, down to 0.
fn one_cycle(progress: f64) -> f64 {
    const PEAK: f64 = 0.2;
    if progress < PEAK {
        progress / PEAK
    } else {
        (1.0 - progress) / (1.0 - PEAK)
    }
}
