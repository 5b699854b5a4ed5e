//! Guards saved training states: a resumed run takes the same steps to the last bit, and what does
//! not suit the model or is no state is refused.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn::module::{Module, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_frugal::nn::{Conv2d, Linear, LinearConfig};
use burn_frugal::plan::schedule::{Amount, SparseLayer};
use burn_frugal::plan::{Plan, Schedule, TrainingState, step};
use burn_frugal::{Error, Method};
use burn_frugal_tests::layers::{layer, same};
use burn_frugal_tests::{
    assert_contains, autodiff_devices, devices, panic_message, random, random_dtype, values,
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// A layer of each kind of running values.
#[derive(Module, Debug)]
struct Network {
    shortcut: Conv2d,
    sparse: Linear,
}

fn plan() -> Plan {
    let model = network(&Device::default(), DType::F32);
    let plan = Plan::builder()
        .layer("shortcut", Method::activation_shortcut([2, 2, 3, 4]))
        .layer("sparse", Method::channel_sparse(0.4));
    plan.build(&model).expect("its layers")
}

fn network(device: &Device, dtype: DType) -> Network {
    let mut sparse = LinearConfig::new(6, 5).with_bias(false).init(device);
    sparse.weight = Param::from_tensor(random_dtype(13, [6, 5], device, dtype));
    Network {
        shortcut: layer(&same([4, 6], 3), device, dtype),
        sparse,
    }
}

impl Network {
    fn loss(&self, seed: u64, dtype: DType) -> Tensor<1> {
        let device = self.sparse.weight.val().device();
        let map = self
            .shortcut
            .forward(random_dtype(seed, [4, 4, 5, 6], &device, dtype));
        let [batch, channels, ..] = map.dims();
        let features = map
            .powi_scalar(2)
            .mean_dims(&[2, 3])
            .reshape([batch, channels]);
        self.sparse.forward(features).powi_scalar(2).mean()
    }

    fn numbers(&self) -> Vec<Vec<f64>> {
        let bias = self.shortcut.bias.as_ref().expect("a bias");
        vec![
            values(self.shortcut.weight.val()),
            values(bias.val()),
            values(self.sparse.weight.val()),
        ]
    }

    fn factors(&self) -> Vec<Vec<f64>> {
        let factors = (0..4).filter_map(|mode| self.shortcut.method.factor(mode));
        factors.map(values).collect()
    }
}

/// All that changes from step to step.
struct Run {
    model: Network,
    optimizer: ModuleOptimizer,
    schedule: Schedule,
}

fn optimizer() -> ModuleOptimizer {
    let momentum = MomentumConfig::new().with_momentum(0.9);
    SgdConfig::new().with_momentum(Some(momentum)).init()
}

impl Run {
    fn new(device: &Device, dtype: DType) -> Self {
        let model = plan().apply(network(device, dtype)).expect("its layers");
        let layers = SparseLayer::of(&model);
        // steps 5 and 6 are of one draw
        let schedule = Schedule::resampled(layers, Amount::PerLayer, 4, 7);
        let schedule = schedule.expect("a schedule");
        Self {
            model: schedule.apply(model).expect("its layers"),
            optimizer: optimizer(),
            schedule,
        }
    }

    fn take(mut self, steps: std::ops::Range<u64>, dtype: DType) -> Self {
        for seed in steps {
            let gradients = self.model.loss(seed, dtype).backward();
            let gradients = GradientsParams::from_grads(gradients, &self.model);
            self.model = step(&mut self.optimizer, 0.05, self.model, gradients);
            self.schedule.advance();
            self.model = self.schedule.apply(self.model).expect("its layers");
        }
        self
    }

    fn save(&self, folder: &Path) {
        let saved = self.model.clone().save_file(folder.join("model.bpk"));
        saved.expect("a writable folder");
        let saved = self.optimizer.save(folder.join("optimizer.bpk"));
        saved.expect("a writable folder");
        let state = TrainingState::of(&self.model).with_schedule(&self.schedule);
        state
            .save(folder.join("state.safetensors"))
            .expect("a writable folder");
    }

    fn load(folder: &Path, device: &Device, dtype: DType) -> Self {
        let model = network(device, dtype).load_file(folder.join("model.bpk"));
        let optimizer = optimizer().load(folder.join("optimizer.bpk"));
        let state = TrainingState::load(folder.join("state.safetensors")).expect("a state");
        let model = plan().apply(model).expect("its layers");
        Self {
            model: state.restore(model).expect("its layers"),
            optimizer: optimizer.expect("a record"),
            schedule: state.schedule().cloned().expect("a schedule"),
        }
    }
}

#[test]
fn a_resumed_run_takes_the_same_steps_to_the_last_bit() {
    for (name, device) in autodiff_devices() {
        for dtype in [DType::F32, DType::F64] {
            let name = format!("{dtype:?} ({name})");
            let folder = tempfile::tempdir().expect("a temporary folder");
            let half = Run::new(&device, dtype).take(0..5, dtype);
            half.save(folder.path());
            let [factors, channels] = [half.model.factors().len(), {
                let channels = half.model.sparse.method.channels();
                channels.expect("the schedule's").len()
            }];
            assert_eq!((factors, channels), (4, 2), "{name}");
            let optimizer_after_five = half.optimizer.clone();
            let straight = half.take(5..10, dtype);

            let mut resumed = Run::load(folder.path(), &device, dtype);
            assert_eq!(resumed.schedule.steps(), 5, "{name}");
            if dtype == DType::F64 {
                // burn-optim 0.22.1 loads a record in the device's default precision
                resumed.optimizer = optimizer_after_five;
            }
            let resumed = resumed.take(5..10, dtype);
            assert_eq!(resumed.model.numbers(), straight.model.numbers(), "{name}");
            assert_eq!(resumed.model.factors(), straight.model.factors(), "{name}");
            assert_eq!(resumed.schedule, straight.schedule, "{name}");
        }
    }
}

type Forget = fn(Run) -> Run;

/// Each part of the state matters: without it the run takes other steps.
#[test]
fn a_run_that_forgets_a_part_takes_other_steps() {
    let dtype = DType::F32;
    for (name, device) in autodiff_devices() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let half = Run::new(&device, dtype).take(0..5, dtype);
        half.save(folder.path());
        let straight = half.take(5..10, dtype).model.numbers();
        let forget: [(&str, Forget); 3] = [
            ("factors", |run| Run {
                model: Network {
                    shortcut: anew(run.model.shortcut),
                    ..run.model
                },
                ..run
            }),
            ("channels", |run| {
                let channels = run.model.sparse.method.channels().expect("chosen");
                let others = (0..6).filter(|channel| !channels.contains(channel)).take(2);
                let state = TrainingState::of(&run.model).with_channels("sparse", others.collect());
                Run {
                    model: state.restore(run.model).expect("its layers"),
                    ..run
                }
            }),
            ("momentum", |run| Run {
                optimizer: optimizer(),
                ..run
            }),
        ];
        for (what, forget) in forget {
            let resumed = forget(Run::load(folder.path(), &device, dtype));
            let resumed = resumed.take(5..10, dtype).model.numbers();
            assert_ne!(resumed, straight, "{what} ({name})");
        }
    }
}

/// The layer without its factors.
fn anew(conv: Conv2d) -> Conv2d {
    let method = conv.method.method();
    let conv = conv.with_method(Method::Exact).expect("suitable");
    conv.with_method(method).expect("suitable")
}

/// A state from one backend continues a run on another.
#[test]
fn a_state_does_not_depend_on_the_backend() {
    for (from, source) in devices() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("state");
        let run = Run::new(&source.autodiff(), DType::F32).take(0..2, DType::F32);
        TrainingState::of(&run.model)
            .save(&path)
            .expect("a writable folder");
        for (to, device) in devices() {
            let model = network(&device.clone().autodiff(), DType::F32);
            let model = plan().apply(model).expect("its layers");
            let state = TrainingState::load(&path).expect("a state");
            assert!(state.schedule().is_none(), "{from}: none was given");
            let model = state.restore(model).expect("its layers");
            assert_eq!(model.factors(), run.model.factors(), "{from} to {to}");
            let channels = model.sparse.method.channels();
            assert_eq!(
                channels,
                run.model.sparse.method.channels(),
                "{from} to {to}"
            );
            let factor = model.shortcut.method.factor(1).expect("restored");
            assert!(!factor.is_autodiff(), "{to}: a constant");
            model.loss(3, DType::F32).backward();
        }
    }
}

/// Half precision too.
#[test]
fn factors_of_every_float_type_survive_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state");
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let numbers = vec![1.0, 0.0, 0.0, 0.5, -0.25, 2.0];
        let factor = TensorData::new(numbers, [3, 2]).convert_dtype(dtype);
        let state = TrainingState::default().with_factor("conv", 2, factor.clone());
        state.save(&path).expect("a writable folder");
        let bytes = std::fs::read(&path).expect("a file");
        let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
        let found = tensors.tensor("conv/factor.2").expect("the factor");
        assert_eq!(found.shape(), [3, 2], "{dtype:?}");
        assert_eq!(found.data(), factor.as_bytes(), "{dtype:?}");
        // what was loaded is what is saved again
        TrainingState::load(&path)
            .expect("a state")
            .save(&path)
            .expect("a writable folder");
        assert_eq!(std::fs::read(&path).expect("a file"), bytes, "{dtype:?}");
    }
}

#[test]
fn restoring_clears_the_layers_that_the_state_does_not_name() {
    for (name, device) in autodiff_devices() {
        let run = Run::new(&device, DType::F32).take(0..2, DType::F32);
        let cleared = TrainingState::default().restore(run.model.clone());
        let cleared = cleared.expect("nothing to refuse");
        assert!(cleared.factors().is_empty(), "{name}");
        assert_eq!(cleared.sparse.method.channels(), None, "{name}");
        assert_eq!(
            cleared.numbers(),
            run.model.numbers(),
            "{name}: weights stay"
        );

        let only = TrainingState::default().with_channels("sparse", vec![0, 5]);
        let restored = only.restore(run.model.clone()).expect("its layer");
        assert!(restored.factors().is_empty(), "{name}");
        assert_eq!(
            restored.sparse.method.channels(),
            Some(vec![0, 5]),
            "{name}"
        );
        assert_eq!(run.model.factors().len(), 4, "{name}: a clone was changed");
    }
}

/// A model whose layers have not trained has no state.
#[test]
fn a_model_that_has_not_trained_has_an_empty_state() {
    let model = network(&Device::default().autodiff(), DType::F32);
    let model = plan().apply(model).expect("its layers");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state");
    TrainingState::of(&model)
        .save(&path)
        .expect("a writable folder");
    let state = TrainingState::load(&path).expect("a state");
    assert!(state.schedule().is_none());
    let restored = state.restore(model).expect("nothing to refuse");
    assert!(restored.factors().is_empty());
    assert_eq!(restored.sparse.method.channels(), None);
}

fn factor(rows: usize, columns: usize) -> TensorData {
    random(1, [rows, columns], &Device::default()).into_data()
}

#[test]
fn a_state_that_does_not_suit_the_model_is_refused_by_the_layers_name() {
    let device = Device::default().autodiff();
    let state = TrainingState::default;
    let cases = [
        (
            state().with_channels("sparse", vec![1, 6]),
            "sparse",
            "below 6",
        ),
        (
            state().with_channels("sparse", vec![3, 1]),
            "sparse",
            "ascending",
        ),
        (
            state().with_channels("sparse", vec![2, 2]),
            "sparse",
            "ascending",
        ),
        (
            state().with_factor("shortcut", 0, factor(2, 3)),
            "shortcut",
            "[2, 3]",
        ),
        (
            state().with_factor("shortcut", 4, factor(3, 2)),
            "shortcut",
            "mode 4",
        ),
        (
            state().with_factor("shortcut", 1, TensorData::new(vec![1.0_f32; 4], [4])),
            "shortcut",
            "[4]",
        ),
    ];
    for (state, path, reason) in cases {
        let model = plan()
            .apply(network(&device, DType::F32))
            .expect("its layers");
        let error = state.restore(model).unwrap_err();
        assert!(
            matches!(&error, Error::LayerState { layer, .. } if layer == path),
            "{error}"
        );
        assert_contains(&error.to_string(), &[path, reason]);
    }
    for unknown in ["head", "", "sparse.weight"] {
        let state = state().with_channels(unknown, vec![1]);
        let error = state.restore(network(&device, DType::F32)).unwrap_err();
        assert!(
            matches!(&error, Error::UnknownLayer { path, .. } if path == unknown),
            "{error}"
        );
        assert_contains(&error.to_string(), &["shortcut, sparse"]);
    }
}

/// The channels of a convolution are known: a factor for others is not one of this layer.
#[test]
fn a_factor_for_other_channels_is_refused() {
    let device = Device::default().autodiff();
    let model = plan()
        .apply(network(&device, DType::F32))
        .expect("its layers");
    let state = TrainingState::default().with_factor("shortcut", 1, factor(7, 2));
    let refused = matches!(state.restore(model), Err(Error::LayerState { .. }));
    assert!(refused, "the layer has 4 channels");
}

/// Other programs write factors in double precision.
#[test]
fn a_factor_of_another_precision_is_refused_or_used() {
    for (name, device) in autodiff_devices() {
        for (layers, factors) in [(DType::F32, DType::F64), (DType::F64, DType::F32)] {
            let model = plan().apply(network(&device, layers)).expect("its layers");
            let data = factor(4, 2).convert_dtype(factors);
            let state = TrainingState::default().with_factor("shortcut", 1, data);
            let Ok(model) = state.restore(model) else {
                continue;
            };
            let panic = panic_message(|| model.loss(1, layers).backward());
            assert_eq!(panic, None, "{factors:?} for {layers:?} ({name})");
        }
    }
}

/// A file with this metadata and a tensor of this name and type.
fn write(path: &Path, key: &str, header: &str, tensor: Option<(&str, Dtype)>) {
    let bytes = [0_u8; 48];
    let tensors = tensor.map(|(name, dtype)| {
        let view = TensorView::new(dtype, vec![3, 2], &bytes[..6 * dtype.bitsize() / 8]);
        (name, view.expect("3 x 2 elements"))
    });
    let metadata = HashMap::from([(key.to_string(), header.to_string())]);
    let bytes = safetensors::serialize(tensors, Some(metadata)).expect("one tensor");
    std::fs::write(path, bytes).expect("a writable folder");
}

const HEADER: &str = r#"{"version": 1, "channels": {}, "schedule": null}"#;

/// Fails unless loading says that the file is no state, and why.
#[track_caller]
fn assert_no_state(path: &Path, reasons: &[&str]) {
    let error = TrainingState::load(path).expect_err("no state");
    assert!(
        matches!(&error, Error::NotATrainingState { path: found, .. } if found == path),
        "{error}"
    );
    let name = path.file_name().expect("a file").to_string_lossy();
    assert_contains(&error.to_string(), &[&name]);
    assert_contains(&error.to_string(), reasons);
}

#[test]
fn a_file_that_is_no_state_is_named_in_the_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| -> PathBuf { folder.path().join(name) };

    let missing = path("missing");
    let error = TrainingState::load(&missing).unwrap_err();
    assert!(
        matches!(&error, Error::File { path, .. } if *path == missing),
        "{error}"
    );
    assert_contains(&error.to_string(), &["missing"]);
    let error = TrainingState::load(folder.path()).unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error}");

    for (name, content) in [
        ("empty", b"".as_slice()),
        ("text", b"{\"version\": 1}"),
        ("noise", &[0xff; 64]),
        (
            "huge header",
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x7b],
        ),
    ] {
        std::fs::write(path(name), content).expect("a writable folder");
        assert_no_state(&path(name), &[]);
    }

    let good = path("good");
    write(
        &good,
        "burn-frugal",
        HEADER,
        Some(("a.b/factor.2", Dtype::F32)),
    );
    TrainingState::load(&good).expect("a state by hand");

    let wrong = path("wrong");
    let factor = Some(("a/factor.0", Dtype::F32));
    let newer = r#"{"version": 2, "channels": {}, "schedule": null, "more": 1}"#;
    let cases = [
        ("other", HEADER, factor, "no metadata `burn-frugal`"),
        (
            "burn-frugal",
            newer,
            factor,
            "version 2, this library reads 1",
        ),
        ("burn-frugal", "{}", factor, "version none"),
        ("burn-frugal", "not JSON", factor, ""),
        ("burn-frugal", r#"{"version": 1}"#, factor, "channels"),
        (
            "burn-frugal",
            r#"{"version": 1, "channels": {"a": [-1]}, "schedule": null}"#,
            factor,
            "-1",
        ),
        (
            "burn-frugal",
            r#"{"version": 1, "channels": {}, "schedule": null, "surplus": 1}"#,
            factor,
            "surplus",
        ),
        (
            "burn-frugal",
            HEADER,
            Some(("weight", Dtype::F32)),
            "`weight`",
        ),
        (
            "burn-frugal",
            HEADER,
            Some(("a/factor.x", Dtype::F32)),
            "`a/factor.x`",
        ),
        (
            "burn-frugal",
            HEADER,
            Some(("a/factor.-1", Dtype::F32)),
            "`a/factor.-1`",
        ),
        (
            "burn-frugal",
            HEADER,
            Some(("a/factor.0", Dtype::I32)),
            "I32",
        ),
    ];
    for (key, header, tensor, reason) in cases {
        write(&wrong, key, header, tensor);
        assert_no_state(&wrong, &[reason]);
    }
}

#[test]
fn a_file_that_was_cut_off_is_refused_wherever_it_was_cut() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state");
    let run = Run::new(&Device::default().autodiff(), DType::F32).take(0..1, DType::F32);
    let state = TrainingState::of(&run.model).with_schedule(&run.schedule);
    state.save(&path).expect("a writable folder");
    let bytes = std::fs::read(&path).expect("a file");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    assert!(header < bytes.len(), "it has factors");
    for length in [0, 7, 8, 9, header - 1, header, header + 1, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).expect("a writable folder");
        assert_no_state(&path, &[]);
    }
    std::fs::write(&path, [bytes.as_slice(), &[0]].concat()).expect("a writable folder");
    assert_no_state(&path, &[]);
}

/// A schedule that does not fit together was not written by this library.
#[test]
fn a_schedule_that_does_not_fit_together_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state");
    let run = Run::new(&Device::default().autodiff(), DType::F32);
    let mut schedule = serde_json::to_value(&run.schedule).expect("JSON");
    let good = |schedule: &serde_json::Value| {
        format!(r#"{{"version": 1, "channels": {{}}, "schedule": {schedule}}}"#)
    };
    write(&path, "burn-frugal", &good(&schedule), None);
    let state = TrainingState::load(&path).expect("a state");
    assert_eq!(state.schedule(), Some(&run.schedule));
    // a layer that trains more channels than it has
    let text = schedule
        .to_string()
        .replace("\"selected\":2", "\"selected\":9");
    schedule = serde_json::from_str(&text).expect("JSON");
    write(&path, "burn-frugal", &good(&schedule), None);
    assert_no_state(&path, &["9"]);
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

#[test]
fn a_failed_save_leaves_the_old_state() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state");
    let state = |channel| TrainingState::default().with_channels("a", vec![channel]);
    state(1).save(&path).expect("a writable folder");
    let old = std::fs::read(&path).expect("a file");
    state(2).save(&path).expect("a writable folder");
    assert_ne!(std::fs::read(&path).expect("a file"), old);
    state(1).save(&path).expect("a writable folder");
    assert_eq!(std::fs::read(&path).expect("a file"), old, "the same state");
    assert_eq!(
        names_in(folder.path()),
        ["state"],
        "no temporary file stays"
    );

    // a file where the folder should be, and a folder where the file should be
    let below = path.join("state");
    let taken = folder.path().join("taken");
    std::fs::create_dir(&taken).expect("a writable folder");
    for wrong in [folder.path().join("nowhere/state"), below, taken] {
        let error = state(2).save(&wrong).unwrap_err();
        assert!(
            matches!(&error, Error::File { path, .. } if *path == wrong),
            "{error}"
        );
    }
    assert_eq!(std::fs::read(&path).expect("a file"), old);
    let mut names = names_in(folder.path());
    names.sort();
    assert_eq!(names, ["state", "taken"], "no temporary file stays");
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_keeps_its_state() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state");
    let state = |channel| TrainingState::default().with_channels("a", vec![channel]);
    state(1).save(&path).expect("a writable folder");
    let old = std::fs::read(&path).expect("a file");
    let allow = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), permissions).expect("my own folder");
    };
    allow(0o555);
    let saved = state(2).save(&path);
    let found = std::fs::read(&path).expect("one of the two");
    allow(0o755);
    // the administrator may write everywhere
    match saved {
        Ok(()) => assert_ne!(found, old),
        Err(error) => {
            assert!(matches!(error, Error::File { .. }), "{error}");
            assert_eq!(found, old);
        }
    }
    assert_eq!(names_in(folder.path()), ["state"]);
}
