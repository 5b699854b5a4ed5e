//! One fine-tuning run, with what it costs.

use burn::grad_clipping::GradientClippingConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::Device;
use burn_frugal::memory::CountingAllocator;
use burn_frugal::plan::{self, Schedule, TrainingState};
use burn_frugal_models::{BottleneckNet, ImageSet, InputConfig};
use indicatif::ProgressBar;
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::time::{Duration, Instant};

use crate::error::Error;

/// Images that are scored at once.
const EVALUATION_BATCH: usize = 100;

/// How to fine-tune.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Optimizer steps.
    pub steps: usize,
    /// Images a step.
    pub batch: usize,
    /// Learning rate of the first step; it falls to 0 along a cosine.
    pub learning_rate: f64,
    /// Steps between two measurements of the accuracy.
    pub interval: usize,
    /// Seed of the order of the images.
    pub seed: u64,
}

/// The images and how the network wants them.
pub struct Data {
    /// Images to train on.
    pub train: ImageSet,
    /// Images to measure accuracy on.
    pub test: ImageSet,
    /// Normalisation.
    pub input: InputConfig,
}

/// What a run showed.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Steps taken and test accuracy then, from before the first step to after the last.
    pub curve: Vec<(usize, f64)>,
    /// Bytes that live from the end of a forward pass to the start of its backward pass, beyond
    /// those before the forward pass: the median step. With the factors that an activation shortcut
    /// holds from step to step.
    pub kept_bytes: usize,
    /// The most bytes that live at any moment of a step, beyond those before it: the median step.
    pub peak_bytes: usize,
    /// The median step: forward, backward and optimizer.
    pub step: Duration,
}

impl Run {
    /// Test accuracy before the first step.
    pub fn before(&self) -> f64 {
        self.curve.first().map_or(0.0, |&(_, accuracy)| accuracy)
    }

    /// Test accuracy after the last step.
    pub fn after(&self) -> f64 {
        self.curve.last().map_or(0.0, |&(_, accuracy)| accuracy)
    }
}

/// Fine-tunes what is not frozen of `network`; a schedule chooses the channels of channel-sparse
/// layers.
pub fn fine_tune(
    mut network: BottleneckNet,
    mut schedule: Option<Schedule>,
    data: &Data,
    recipe: &Recipe,
    device: &Device,
    allocator: &CountingAllocator,
    progress: &ProgressBar,
) -> Result<Run, Error> {
    let mut optimizer = SgdConfig::new()
        .with_gradient_clipping(Some(GradientClippingConfig::Norm(2.0)))
        .init();
    let loss = CrossEntropyLossConfig::new().init(device);
    let mut batches = Batches::new(data.train.len(), recipe);
    let accuracy = |network: &BottleneckNet| {
        network.accuracy(&data.test, &data.input, EVALUATION_BATCH, device)
    };

    let mut curve = vec![(0, accuracy(&network))];
    let (mut kept, mut peak, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..recipe.steps {
        let (images, classes) = data.train.batch(batches.next(), &data.input, device);
        if let Some(schedule) = &mut schedule {
            network = schedule.apply(network)?;
            schedule.advance();
        }

        let start = Instant::now();
        let before = allocator.live_bytes();
        allocator.reset_peak();
        // a copy stays until the count: otherwise what is kept could hide in the place of the images
        let value = loss.forward(network.forward(images.clone()), classes);
        kept.push(allocator.live_bytes().saturating_sub(before));
        drop(images);
        let gradients = GradientsParams::from_grads(value.backward(), &network);
        network = plan::step(&mut optimizer, recipe.rate(step), network, gradients);
        peak.push(allocator.peak_bytes().saturating_sub(before));
        times.push(start.elapsed());

        progress.inc(1);
        let done = step + 1;
        if done % recipe.interval == 0 || done == recipe.steps {
            curve.push((done, accuracy(&network)));
        }
    }
    Ok(Run {
        curve,
        kept_bytes: median(kept) + TrainingState::of(&network).factor_bytes(),
        peak_bytes: median(peak),
        step: median(times),
    })
}

impl Recipe {
    fn rate(&self, step: usize) -> f64 {
        let progress = step as f64 / self.steps as f64;
        self.learning_rate * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
    }
}

/// Batches of indices, in a new order each time all images were seen.
struct Batches {
    order: Vec<usize>,
    next: usize,
    batch: usize,
    rng: StdRng,
}

impl Batches {
    fn new(images: usize, recipe: &Recipe) -> Self {
        Self {
            order: (0..images).collect(),
            next: images,
            batch: recipe.batch,
            rng: StdRng::seed_from_u64(recipe.seed),
        }
    }

    fn next(&mut self) -> &[usize] {
        if self.next + self.batch > self.order.len() {
            self.order.shuffle(&mut self.rng);
            self.next = 0;
        }
        let start = self.next;
        self.next += self.batch;
        &self.order[start..self.next]
    }
}

fn median<T: Ord + Copy + Default>(mut values: Vec<T>) -> T {
    values.sort();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
