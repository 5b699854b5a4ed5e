//! The ways to fine-tune that are compared.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Tensor};
use burn_frugal::Method;
use burn_frugal::plan::schedule::{Amount, SparseLayer};
use burn_frugal::plan::{Candidate, Candidates, Plan, Planner, Profile, Schedule};
use burn_frugal_models::BottleneckNet;

use crate::TUNED;
use crate::error::Error;
use crate::tune::{Data, Recipe};

/// The share of the channels that the channel-sparse run trains at a time.
const RATIO: f64 = 0.25;
/// The energy that the low-rank runs keep in every mode.
const ENERGY: f64 = 0.8;
/// Bytes that the planned run may keep of the inputs of the tuned convolutions.
const BUDGET: usize = 500_000;

/// One way to fine-tune.
pub struct Job {
    /// Its row in the table.
    pub name: String,
    /// The method of each tuned layer.
    pub plan: Plan,
    /// Which channels a channel-sparse method trains when.
    pub schedule: Option<Schedule>,
}

/// The frozen network with a new head to compare with, one job for each method, and one whose methods
/// a planner chooses, layer by layer.
pub fn jobs(
    start: &BottleneckNet,
    data: &Data,
    recipe: &Recipe,
    device: &Device,
) -> Result<Vec<Job>, Error> {
    let same = |method: Method| -> Result<Job, Error> {
        Ok(Job {
            name: method.to_string(),
            plan: Plan::builder().last_convs(TUNED, method).build(start)?,
            schedule: None,
        })
    };
    let sparse = same(Method::channel_sparse(RATIO))?;
    let epoch = data.train.len() / recipe.batch;
    let layers = SparseLayer::of(&sparse.plan.apply(start.clone())?);
    let schedule = Schedule::resampled(layers, Amount::PerLayer, epoch, recipe.seed)?;

    let profile = profile(start, data, recipe, device)?;
    let planned = Planner::new(&profile).least_error(BUDGET)?;
    Ok(vec![
        Job {
            name: "head only".to_string(),
            plan: Plan::default(),
            schedule: None,
        },
        same(Method::Exact)?,
        same(Method::Recomputed)?,
        same(Method::quantized(8))?,
        same(Method::gradient_filter(2))?,
        same(Method::gradient_filter(4))?,
        Job {
            schedule: Some(schedule),
            ..sparse
        },
        Job {
            name: format!("shortcut, energy {ENERGY}"),
            plan: shortcuts(start, &profile)?,
            schedule: None,
        },
        same(Method::hosvd(ENERGY))?,
        Job {
            name: format!("planned for {} kB", BUDGET / 1000),
            plan: planned.plan,
            schedule: None,
        },
    ])
}

/// What the candidates of each tuned layer keep and get wrong on the first images.
fn profile(
    start: &BottleneckNet,
    data: &Data,
    recipe: &Recipe,
    device: &Device,
) -> Result<Profile, Error> {
    // the images are sorted by class
    let stride = data.train.len() / recipe.batch;
    let spread: Vec<usize> = (0..recipe.batch).map(|index| index * stride).collect();
    let (images, classes) = data.train.batch(&spread, &data.input, device);
    let loss = CrossEntropyLossConfig::new().init(device);
    let candidates = [
        Candidate::ShortcutAtEnergy(ENERGY),
        Candidate::ShortcutAtEnergy(0.5),
        Candidate::ShortcutAtEnergy(0.65),
        Candidate::ShortcutAtEnergy(0.9),
        Method::Exact.into(),
        Method::quantized(8).into(),
        Method::quantized(4).into(),
        Method::gradient_filter(2).into(),
        Method::gradient_filter(4).into(),
    ];
    let candidates = Candidates::new().last_convs(TUNED, candidates);
    let loss = |network: &BottleneckNet| -> Tensor<1> {
        loss.forward(network.forward(images.clone()), classes.clone())
    };
    Ok(Profile::measure(start, &candidates, loss)?)
}

/// The activation shortcut in every layer, with the ranks that were measured for the first candidate.
fn shortcuts(start: &BottleneckNet, profile: &Profile) -> Result<Plan, Error> {
    let layers = profile.layers().iter();
    let builder = layers.fold(Plan::builder(), |builder, layer| {
        builder.layer(&layer.path, layer.candidates[0].method)
    });
    Ok(builder.build(start)?)
}
