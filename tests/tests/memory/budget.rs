//! Guards the budget: a plan for the whole step, when it is run, never exceeds it.

use burn::module::Module;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::Device;
use burn_frugal::kernels::{working_memory, working_memory_for};
use burn_frugal::methods::ActivationShortcut;
use burn_frugal::plan::{self, Network, Profile, StepPlanner};
use burn_frugal::{Error, Method};
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig};
use burn_frugal_tests::autodiff_devices;
use rayon::ThreadPoolBuilder;
use serde_json::json;
use std::thread;

use crate::networks::{Batch, convolutions, network, networks, quarters};
use crate::{ALLOCATOR, alone};

const BATCH: usize = 8;

/// A profile with made-up errors: later layers have larger gradients, and each method loses a share.
fn profile(model: &BottleneckNet, network: &Network) -> Profile {
    let layers = convolutions(model).into_iter().enumerate();
    let layers: Vec<_> = layers
        .map(|(place, layer)| {
            let norm = 1.0 + place as f64 / 10.0;
            let modes = network.input(&layer.path, BATCH).expect("it was traced");
            let candidates: [(Method, f64); 5] = [
                (Method::Exact, 0.0),
                (Method::quantized(8), 0.01),
                (ActivationShortcut::new(quarters(modes)).into(), 0.2),
                (Method::gradient_filter(2), 0.3),
                (Method::channel_sparse(0.1), 0.8),
            ];
            let candidates = candidates.map(|(method, share)| {
                json!({
                    "method": method,
                    "bytes": 0,
                    "flops": {"forward": 0, "weight_gradient": 0, "input_gradient": 0},
                    "error": share * norm,
                    "relative_error": share,
                })
            });
            json!({"path": layer.path, "gradient_norm": norm, "candidates": candidates})
        })
        .collect();
    let document = json!({"version": 1, "layers": layers});
    Profile::from_json(&document.to_string()).expect("a profile")
}

/// Bytes of everything at the worst moment of a step, the optimizer's included.
/// `others` is working memory of threads that have nothing to do with it.
fn measured(model: BottleneckNet, batch: &Batch, others: usize) -> usize {
    let parameters = model.num_params() * size_of::<f32>();
    let mut optimizer = SgdConfig::new().init();
    // working memory is counted apart: first on every thread that may need it
    for _ in 0..3 {
        drop(batch.loss(&model.clone()).backward());
    }
    let before = ALLOCATOR.live_bytes();
    ALLOCATOR.reset_peak();
    let gradients = batch.loss(&model).backward();
    let gradients = GradientsParams::from_grads(gradients, &model);
    drop(plan::step(&mut optimizer, 0.01, model, gradients));
    let step = ALLOCATOR.peak_bytes() - before;
    parameters + batch.image_bytes() + working_memory() - others + step
}

#[test]
fn a_planned_step_stays_within_its_budget() {
    alone(|| {
        let (_, device) = autodiff_devices().remove(0);
        for config in networks() {
            // threads of its own: working memory of another network must not count
            let pool = ThreadPoolBuilder::new()
                .num_threads(2)
                .build()
                .expect("two threads");
            let before = working_memory();
            let others = before - working_memory_for(0);
            pool.install(|| check(&config, &device, others));
            drop(pool);
            while working_memory() > before {
                thread::yield_now();
            }
        }
    });
}

fn check(config: &BottleneckNetConfig, device: &Device, others: usize) {
    const BUDGETS: usize = 20;
    let model = config.init(device).fold_batch_norm();
    let traced = network(&model, device);
    let profile = profile(&model, &traced);
    let planner = StepPlanner::new(&profile, &traced, BATCH)
        .also("classifier")
        .most_passes(BATCH);
    let all = planner.solve(usize::MAX).expect("no limit").bytes;
    let Err(Error::Budget { smallest, .. }) = planner.solve(0) else {
        panic!("{}: no bytes are enough", config.name);
    };
    let mut errors = Vec::new();
    for step in 0..BUDGETS {
        let budget = smallest + (all - smallest) * step / (BUDGETS - 1);
        let solution = planner.solve(budget).expect("the smallest fits");
        assert!(solution.bytes <= budget, "{}: {solution}", config.name);
        let plan = &solution.training.plan;
        let planned = plan.apply(model.clone()).expect("suitable");
        let planned = plan.freeze_rest(planned, &["classifier"]).expect("a head");
        let batch = Batch::new(solution.training.batch, device);
        let found = measured(planned, &batch, others);
        assert!(
            found <= budget,
            "{}: {found} bytes of {budget}, predicted {}:\n{solution}",
            config.name,
            solution.bytes
        );
        errors.push(solution.error);
    }
    // more memory does not make it worse, but for what a bisection leaves open
    let improves = |pair: &[f64]| pair[1] <= 1.05 * pair[0];
    assert!(
        errors.windows(2).all(improves),
        "{}: {errors:?}",
        config.name
    );
    assert_eq!(errors.last(), Some(&0.0), "{}", config.name);
}

/// A batch that does not fit is cut into parts; of plans for the whole batch the larger budget's is
/// the better one.
#[test]
fn a_batch_that_is_too_large_is_cut_into_parts() {
    alone(|| {
        let (_, device) = autodiff_devices().remove(0);
        let [config, ..] = networks();
        let model = config.init(&device).fold_batch_norm();
        let traced = network(&model, &device);
        let profile = profile(&model, &traced);
        let planner = |samples| StepPlanner::new(&profile, &traced, samples).also("classifier");
        let one = planner(1).solve(usize::MAX).expect("no limit");
        assert_eq!((one.micro_batches, one.training.batch), (1, 1));
        // as much as one sample with everything exact takes: not enough for 64 samples
        let many = planner(64).solve(one.bytes).expect("parts of the batch");
        assert!(many.micro_batches > 1, "{many}");
        let samples = many.micro_batches * many.training.batch;
        assert!((64..128).contains(&samples), "{many}");
        assert!(many.to_string().contains("passes of"), "{many}");
    });
}

#[test]
fn a_limit_on_operations_is_kept() {
    alone(|| {
        let (_, device) = autodiff_devices().remove(0);
        let [config, ..] = networks();
        let model = config.init(&device).fold_batch_norm();
        let traced = network(&model, &device);
        let profile = profile(&model, &traced);
        let planner = StepPlanner::new(&profile, &traced, BATCH).also("classifier");
        let all = planner.solve(usize::MAX).expect("no limit");
        let limit = all.memory.flops() * 3 / 4;
        let fewer = planner.clone().most_flops(limit).solve(usize::MAX);
        let fewer = fewer.expect("not everything has to be trained");
        assert!(
            fewer.memory.flops() <= limit && fewer.error > all.error,
            "{fewer}"
        );
        let none = planner.most_flops(1000).solve(usize::MAX);
        let message = none.expect_err("not even a forward pass").to_string();
        assert!(message.contains("a limit of 1000 operations"), "{message}");
    });
}
