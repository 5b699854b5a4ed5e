//! Guards methods on linear layers: how plans reach and refuse them, and each method's gradients
//! against plain definitions, for every number of axes of the input.

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_frugal::methods::{ActivationShortcut, LayerKind, Unsuitable};
use burn_frugal::nn::{Conv2d, Linear, LinearConfig};
use burn_frugal::plan::{Plan, TrainingState};
use burn_frugal::{Error, Method, PerMode};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{
    Pass, assert_close, assert_contains, autodiff_devices, devices, panic_message, random,
    random_dtype, relative_error, values,
};

use crate::user_model::{expected, plan_with};

/// Convolutions, whose map becomes tokens, and linear layers before, between and after them.
#[derive(Module, Debug)]
struct Network {
    colours: Linear,
    stem: Conv2d,
    tokens: Vec<Linear>,
    mixer: Conv2d,
    head: Linear,
}

fn network(device: &Device) -> Network {
    let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
    Network {
        colours: linear(3, 4),
        stem: same([4, 6], 3).init(device),
        tokens: vec![linear(6, 8), linear(8, 6)],
        mixer: same([6, 6], 3).init(device),
        head: linear(6, 3),
    }
}

impl Network {
    /// Images with their colours last, `[batch, 6, 6, 3]`, to `[batch, 3]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let map = self.colours.forward(images).permute([0, 3, 1, 2]);
        let map = relu(self.stem.forward(map));
        let [batch, channels, height, width] = map.dims();
        let mut tokens = map
            .clone()
            .reshape([batch, channels, height * width])
            .swap_dims(1, 2);
        for linear in &self.tokens {
            tokens = relu(linear.forward(tokens));
        }
        let mixed = tokens
            .swap_dims(1, 2)
            .reshape([batch, channels, height, width])
            + map;
        let mixed = relu(self.mixer.forward(mixed));
        let pooled = mixed.reshape([batch, channels, height * width]).mean_dim(2);
        self.head.forward(pooled.squeeze_dim(2))
    }
}

const PATHS: [&str; 6] = ["colours", "stem", "tokens.0", "tokens.1", "mixer", "head"];

#[test]
fn linear_layers_have_paths_among_convolutions() {
    let layers = Plan::layers(&network(&Device::default()));
    let paths: Vec<&str> = layers.iter().map(|layer| layer.path.as_str()).collect();
    assert_eq!(paths, PATHS);
    let linear = |path: &str| !["stem", "mixer"].contains(&path);
    for layer in &layers {
        let is_linear = layer.shape.kind == LayerKind::Linear;
        assert_eq!(is_linear, linear(&layer.path), "{}", layer.path);
    }
    assert_eq!(layers[2].shape.channels, [6, 8]);
    assert_eq!(layers[2].shape.weight_len(), 48);
}

#[test]
fn the_last_convolutions_are_convolutions() {
    let network = network(&Device::default());
    let method = Method::gradient_filter(2);
    let plan = |count| Plan::builder().last_convs(count, method).build(&network);
    assert_eq!(
        plan(1).expect("there are two").methods(),
        &expected([("mixer", method)])
    );
    assert_eq!(
        plan(2).expect("there are two").methods(),
        &expected([("stem", method), ("mixer", method)])
    );
    let error = plan(3).unwrap_err();
    let both = Error::TooFewConvolutions {
        expected: 3,
        found: 2,
    };
    assert_eq!(error.to_string(), both.to_string());
}

#[test]
fn patterns_and_paths_reach_linear_layers() {
    let network = network(&Device::default());
    let [sparse, shortcut] = [
        Method::channel_sparse(0.5),
        Method::activation_shortcut([2, 4, 3]),
    ];
    let plan = Plan::builder()
        .pattern("o", sparse)
        .pattern(r"^tokens\.", shortcut)
        .layer("head", sparse)
        .build(&network)
        .expect("they suit");
    let methods = expected([
        ("colours", sparse),
        ("tokens.0", shortcut),
        ("tokens.1", shortcut),
        ("head", sparse),
    ]);
    assert_eq!(plan.methods(), &methods);
    let network = plan.apply(network).expect("its layers");
    assert_eq!(network.colours.method.method(), sparse);
    assert_eq!(network.tokens[1].method.method(), shortcut);
    assert_eq!(network.stem.method.method(), Method::Exact);
    assert_eq!(Plan::from_json(&plan.to_json()).expect("a plan"), plan);
}

#[test]
fn a_layer_refuses_what_it_has_no_use_for() {
    let network = network(&Device::default());
    let shortcut =
        |ranks: &[usize]| Method::activation_shortcut(PerMode::new(ranks).expect("2 to 4 ranks"));
    let only_convolutions = "convolutions only, found a linear layer";
    let refused = [
        ("head", Method::gradient_filter(2), only_convolutions),
        ("tokens.1", Method::gradient_filter(1), only_convolutions),
        (
            "head",
            Method::published_gradient_filter(2),
            only_convolutions,
        ),
        (
            "stem",
            shortcut(&[2, 4]),
            "expected 4 ranks, one a mode of the input, found 2: 2x4",
        ),
        ("mixer", shortcut(&[2, 4, 2]), "expected 4 ranks"),
        (
            "stem",
            shortcut(&[2, 5, 2, 2]),
            "rank 5 of the channel mode is above the layer's 4 input",
        ),
        (
            "tokens.0",
            shortcut(&[2, 7]),
            "rank 7 of the channel mode is above the layer's 6 input",
        ),
        (
            "tokens.1",
            shortcut(&[2, 4, 9]),
            "rank 9 of the channel mode is above the layer's 8",
        ),
        (
            "colours",
            shortcut(&[2, 2, 2, 4]),
            "rank 4 of the channel mode is above the layer's 3",
        ),
        (
            "head",
            shortcut(&[0, 4]),
            "every rank is at least 1, found 0x4",
        ),
        (
            "mixer",
            shortcut(&[1, 2, 0, 1]),
            "every rank is at least 1, found 1x2x0x1",
        ),
        (
            "head",
            Method::channel_sparse(0.0),
            "above 0 and at most 1, found 0",
        ),
        (
            "head",
            Method::channel_sparse(1.5),
            "above 0 and at most 1, found 1.5",
        ),
        ("head", Method::channel_sparse(f64::NAN), "found NaN"),
        ("head", Method::hosvd(0.0), "above 0 and at most 1, found 0"),
        (
            "head",
            Method::hosvd(1.01),
            "above 0 and at most 1, found 1.01",
        ),
    ];
    for (path, method, reason) in refused {
        let built = Plan::builder().layer(path, method).build(&network);
        let mut errors = vec![built.unwrap_err()];
        // JSON has no NaN
        if !matches!(method, Method::ChannelSparse(sparse) if sparse.ratio.is_nan()) {
            let applied = plan_with(path, method).apply(network.clone());
            errors.push(applied.unwrap_err());
        }
        for error in errors {
            assert!(
                matches!(&error, Error::Method { layer, .. } if layer == path),
                "{path}, {method}: {error}"
            );
            assert_contains(&error.to_string(), &[&format!("`{path}`"), reason]);
        }
    }
    // ranks above the sizes of other modes are clipped, and any number of rows may come
    for ranks in [&[999, 6][..], &[999, 999, 6], &[9, 9, 9, 6]] {
        let plan = Plan::builder().layer("tokens.0", shortcut(ranks));
        assert!(plan.build(&network).is_ok(), "{ranks:?}");
    }

    let filter = Method::gradient_filter(2);
    let error = network.head.with_method(filter).unwrap_err();
    assert!(
        matches!(&error, Error::Method { layer, source: Unsuitable::FilterOnLinear } if layer == "Linear"),
        "{error}"
    );
}

#[test]
fn freezing_the_rest_leaves_linear_layers_of_the_plan() {
    for (name, device) in autodiff_devices() {
        let network = network(&device);
        let plan = Plan::builder()
            .layer("tokens.1", Method::channel_sparse(0.5))
            .layer("mixer", Method::gradient_filter(2))
            .build(&network)
            .expect("they suit");
        let network = plan.apply(network).expect("its layers");
        let network = plan.freeze_rest(network, &["head.bias"]);
        let network = network.expect("parameters under them");
        let images = random(1, [2, 6, 6, 3], &device);
        let gradients = network.forward(images).powi_scalar(2).sum().backward();
        let linears = [
            ("colours", &network.colours, [false, false]),
            ("tokens.0", &network.tokens[0], [false, false]),
            ("tokens.1", &network.tokens[1], [true, true]),
            ("head", &network.head, [false, true]),
        ];
        for (path, linear, trained) in linears {
            let bias = linear.bias.as_ref().expect("a bias").val();
            let found = [
                linear.weight.val().grad(&gradients).is_some(),
                bias.grad(&gradients).is_some(),
            ];
            assert_eq!(found, trained, "{path} ({name}): weight, bias");
        }
        for (path, conv, trained) in [
            ("stem", &network.stem, false),
            ("mixer", &network.mixer, true),
        ] {
            let found = conv.weight.val().grad(&gradients).is_some();
            assert_eq!(found, trained, "{path} ({name})");
        }
        assert_eq!(
            network.tokens[0].method.channels(),
            None,
            "{name}: a frozen layer chooses nothing"
        );
    }
}

/// From 6 to 4 features, in double precision.
fn layer(device: &Device, method: Method) -> Linear {
    let mut linear = LinearConfig::new(6, 4).init(device);
    linear.weight = Param::from_tensor(random_dtype(11, [6, 4], device, DType::F64));
    linear.bias = Some(Param::from_tensor(random_dtype(
        12,
        [4],
        device,
        DType::F64,
    )));
    linear.with_method(method).expect("suitable")
}

fn input<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    random_dtype(1, shape, device, DType::F64)
}

fn upstream<const D: usize>(mut shape: [usize; D], device: &Device) -> Tensor<D> {
    shape[D - 1] = 4;
    random_dtype(2, shape, device, DType::F64)
}

/// `dL/dW[i, o] = sum over rows of x[row, i] dL/dy[row, o]`, 6 to 4 features.
fn weight_gradient(x: &[f64], gy: &[f64]) -> Vec<f64> {
    assert_eq!(x.len() / 6, gy.len() / 4);
    let mut gradient = vec![0.0; 24];
    for (x, gy) in x.chunks_exact(6).zip(gy.chunks_exact(4)) {
        for (row, x) in gradient.chunks_exact_mut(4).zip(x) {
            for (sum, gy) in row.iter_mut().zip(gy) {
                *sum += x * gy;
            }
        }
    }
    gradient
}

/// The input with every column of its unfolding along a mode replaced by `U U^T` of it.
fn projected(x: &[f64], shape: &[usize], mode: usize, factor: &Tensor<2>) -> Vec<f64> {
    let [size, rank] = factor.dims();
    assert_eq!(size, shape[mode]);
    let factor = values(factor.clone());
    let inner: usize = shape[mode + 1..].iter().product();
    let mut found = vec![0.0; x.len()];
    for slab in (0..x.len()).step_by(size * inner) {
        for column in 0..inner {
            let at = |row: usize| slab + row * inner + column;
            for r in 0..rank {
                let dot: f64 = (0..size).map(|d| factor[d * rank + r] * x[at(d)]).sum();
                for d in 0..size {
                    found[at(d)] += factor[d * rank + r] * dot;
                }
            }
        }
    }
    found
}

#[track_caller]
fn assert_orthonormal(what: &str, factor: Tensor<2>) {
    let [size, rank] = factor.dims();
    let factor = values(factor);
    for a in 0..rank {
        for b in 0..rank {
            let dot: f64 = (0..size)
                .map(|d| factor[d * rank + a] * factor[d * rank + b])
                .sum();
            let expected = if a == b { 1.0 } else { 0.0 };
            assert!((dot - expected).abs() < 1e-12, "{what}: {a}, {b}: {dot}");
        }
    }
}

/// Calls `check` with the pass of each method and the exact one, after checking that all but the
/// weight's gradient is exact.
fn for_each_pass<const D: usize>(
    shape: [usize; D],
    methods: &[Method],
    check: impl Fn(&str, &Linear, &[f64], &[f64], &[f64]),
) {
    for (device_name, device) in autodiff_devices() {
        let x = input(shape, &device);
        let gy = upstream(shape, &device);
        let run = |linear: &Linear| Pass::run_linear(linear, x.clone().require_grad(), gy.clone());
        let exact = run(&layer(&device, Method::Exact));
        let (x_values, gy_values) = (values(x.clone()), values(gy.clone()));
        let plain = weight_gradient(&x_values, &gy_values);
        let exact_weight = exact.weight.as_deref().expect("trained");
        assert_close(&device_name, exact_weight, &plain, 1e-12);
        for &method in methods {
            let name = format!("{method}, {shape:?} ({device_name})");
            let linear = layer(&device, method);
            let found = run(&linear);
            assert_eq!(found.output, exact.output, "{name}");
            assert_eq!(found.input, exact.input, "{name}");
            assert_eq!(found.bias, exact.bias, "{name}");
            let weight = found.weight.as_deref().expect("trained");
            check(&name, &linear, &x_values, &gy_values, weight);
        }
    }
}

/// As many channels as the ratio says, those with the largest weights; their rows are exact.
fn check_sparse<const D: usize>(shape: [usize; D]) {
    let cases = [(0.01, 1), (0.5, 3), (0.67, 4), (1.0, 6)];
    let methods = cases.map(|(ratio, _)| Method::channel_sparse(ratio));
    for_each_pass(shape, &methods, |name, linear, x, gy, weight| {
        let Method::ChannelSparse(sparse) = linear.method.method() else {
            panic!("{name}: another method")
        };
        let expected = cases.iter().find(|(ratio, _)| *ratio == sparse.ratio);
        let (_, count) = expected.expect("one of the cases");
        let weights = values(linear.weight.val());
        let norm = |row: &[f64]| row.iter().map(|weight| weight * weight).sum::<f64>();
        let norms: Vec<f64> = weights.chunks_exact(4).map(norm).collect();
        let larger = |norm: f64| norms.iter().filter(|other| **other > norm).count();
        let chosen: Vec<usize> = (0..6)
            .filter(|&channel| larger(norms[channel]) < *count)
            .collect();
        assert_eq!(linear.method.channels(), Some(chosen.clone()), "{name}");

        let mut expected = weight_gradient(x, gy);
        for (channel, row) in expected.chunks_exact_mut(4).enumerate() {
            if !chosen.contains(&channel) {
                row.fill(0.0);
            }
        }
        assert_close(name, weight, &expected, 1e-12);
        for (found, expected) in weight.iter().zip(&expected) {
            assert_eq!(*found == 0.0, *expected == 0.0, "{name}");
        }
    });
}

#[test]
fn channel_sparse_has_exact_rows() {
    check_sparse([9, 6]);
    check_sparse([3, 5, 6]);
    check_sparse([2, 3, 4, 6]);
    check_sparse([2, 1, 2, 3, 6]);
}

#[test]
fn channel_sparse_trains_the_channels_that_it_is_given() {
    for (name, device) in autodiff_devices() {
        for channels in [vec![], vec![4], vec![0, 2, 5], vec![0, 1, 2, 3, 4, 5]] {
            let state = TrainingState::default().with_channels("", channels.clone());
            let linear = layer(&device, Method::channel_sparse(0.5));
            let linear = state.restore(linear).expect("its channels");
            let (x, gy) = (input([3, 5, 6], &device), upstream([3, 5, 6], &device));
            let found = Pass::run_linear(&linear, x.clone(), gy.clone());
            let mut expected = weight_gradient(&values(x), &values(gy));
            for (channel, row) in expected.chunks_exact_mut(4).enumerate() {
                if !channels.contains(&channel) {
                    row.fill(0.0);
                }
            }
            let name = format!("{channels:?} ({name})");
            assert_close(&name, &found.weight.expect("trained"), &expected, 1e-12);
        }
    }
}

fn shortcuts(ranks: impl Into<PerMode>) -> [Method; 3] {
    let shortcut = ActivationShortcut::new(ranks);
    [
        shortcut.into(),
        shortcut.sequential().into(),
        shortcut.frozen().into(),
    ]
}

/// The exact gradient of the input projected onto the factors, which have the ranks that were asked
/// for; `modes` is the input's shape as the method sees it.
fn check_shortcut<const D: usize>(
    shape: [usize; D],
    modes: &[usize],
    ranks: impl Into<PerMode>,
    differs: bool,
) {
    let ranks = ranks.into();
    for_each_pass(shape, &shortcuts(ranks), |name, linear, x, gy, weight| {
        let Method::ActivationShortcut(shortcut) = linear.method.method() else {
            panic!("{name}: another method")
        };
        let frozen = shortcut == shortcut.frozen();
        let mut approximate = x.to_vec();
        for mode in 0..PerMode::MOST {
            let factor = linear.method.factor(mode);
            let expected = modes.get(mode).and_then(|&size| {
                let rank = match frozen {
                    // samples change from batch to batch
                    true if mode == 0 => size,
                    true => ranks[mode].min(size),
                    false => ranks[mode].min(size).min(x.len() / size),
                };
                let compressed = rank < size;
                compressed.then_some([size, rank])
            });
            let dims = factor.as_ref().map(Tensor::dims);
            assert_eq!(dims, expected, "{name}, mode {mode}");
            if let Some(factor) = factor {
                assert_orthonormal(name, factor.clone());
                approximate = projected(&approximate, modes, mode, &factor);
            }
        }
        assert_close(name, weight, &weight_gradient(&approximate, gy), 1e-11);
        let error = relative_error(weight, &weight_gradient(x, gy));
        if differs {
            assert!(error > 0.05, "{name}: {error}");
        } else {
            assert!(error < 1e-12, "{name}: {error}");
        }
    });
}

#[test]
fn a_shortcut_has_the_gradient_of_the_projected_input() {
    check_shortcut([5, 6], &[5, 6], [2, 3], true);
    check_shortcut([3, 7, 6], &[3, 7, 6], [2, 3, 2], true);
    check_shortcut([3, 4, 5, 6], &[3, 4, 5, 6], [2, 2, 3, 4], true);
    // only the features, only the rows
    check_shortcut([3, 7, 6], &[3, 7, 6], [3, 7, 2], true);
    check_shortcut([3, 7, 6], &[3, 7, 6], [3, 2, 6], true);
}

#[test]
fn ranks_as_large_as_the_input_are_exact() {
    check_shortcut([5, 6], &[5, 6], [5, 6], false);
    check_shortcut([3, 7, 6], &[3, 7, 6], [99, 99, 6], false);
}

/// More samples than features: still none of them is compressed with frozen factors, which a first
/// batch would make for all others.
#[test]
fn frozen_factors_leave_a_large_batch_alone() {
    check_shortcut([9, 6], &[9, 6], [2, 3], true);
    check_shortcut([9, 6], &[9, 6], [9, 6], false);
    for (name, device) in autodiff_devices() {
        let method = ActivationShortcut::new([9, 6]).frozen();
        let linear = layer(&device, method.into());
        for seed in 0..3 {
            let x = random_dtype(seed, [9, 6], &device, DType::F64);
            let gy = random_dtype(seed + 10, [9, 4], &device, DType::F64);
            let found = Pass::run_linear(&linear, x.clone(), gy.clone());
            let expected = weight_gradient(&values(x), &values(gy));
            let name = format!("batch {seed} ({name})");
            assert_close(&name, &found.weight.expect("trained"), &expected, 1e-11);
        }
    }
}

/// Of more than 4 axes the surplus ones at the front count as one, of a vector's the missing one.
#[test]
fn surplus_axes_at_the_front_merge() {
    check_shortcut([2, 3, 4, 5, 6], &[6, 4, 5, 6], [3, 2, 3, 4], true);
    for (name, device) in autodiff_devices() {
        for method in shortcuts([3, 2, 3, 4]) {
            let [five, four] = [layer(&device, method), layer(&device, method)];
            let (x, gy) = (
                input([2, 3, 4, 5, 6], &device),
                upstream([2, 3, 4, 5, 6], &device),
            );
            let found = Pass::run_linear(&five, x.clone().require_grad(), gy.clone());
            let (x, gy) = (x.reshape([6, 4, 5, 6]), gy.reshape([6, 4, 5, 4]));
            let expected = Pass::run_linear(&four, x.require_grad(), gy);
            found.assert_close(&format!("{method} ({name})"), &expected, 1e-12);
        }
        let three = layer(&device, Method::activation_shortcut([3, 2, 3]));
        let message = panic_message(|| three.forward(input([2, 3, 4, 5, 6], &device)));
        assert_contains(&message.expect("refused"), &["3 ranks", "4 modes"]);
    }
}

#[test]
fn a_vector_is_one_row() {
    check_shortcut([6], &[1, 6], [1, 2], false);
    check_shortcut([6], &[1, 6], [4, 6], false);
    check_sparse([6]);
}

#[test]
fn another_number_of_axes_than_ranks_panics_with_both() {
    for (device_name, device) in autodiff_devices() {
        for method in shortcuts([2, 3, 2]) {
            let linear = layer(&device, method);
            let name = format!("{method} ({device_name})");
            let refused = [
                panic_message(|| linear.forward(input([9, 6], &device))),
                panic_message(|| linear.forward(input([3, 4, 5, 6], &device))),
            ];
            for (message, parts) in refused.into_iter().zip([
                ["3 ranks (2x3x2)", "9x6", "2 modes"],
                ["3 ranks (2x3x2)", "3x4x5x6", "4 modes"],
            ]) {
                let message = message.unwrap_or_else(|| panic!("{name}: accepted"));
                assert_contains(&message, &parts);
            }

            // the panic left the layer as it was
            linear.forward(input([3, 5, 6], &device));
            // nothing is kept, so nothing is compressed
            linear.valid().forward(input([9, 6], &device));
            linear.no_grad().forward(input([9, 6], &device));
        }
    }
}

/// Orthonormal vectors of this size: cosines.
fn basis(size: usize, index: usize) -> Vec<f64> {
    let angle = std::f64::consts::PI * index as f64 / size as f64;
    let scale = if index == 0 { 1.0 } else { 2.0 };
    let scale = f64::sqrt(scale / size as f64);
    (0..size)
        .map(|place| scale * (angle * (place as f64 + 0.5)).cos())
        .collect()
}

/// The sum of `terms` products of orthonormal vectors, one an axis: with 4 terms the singular values
/// of every unfolding are 4, 2, 1 and 0.5, and fewer terms are its truncated HOSVD.
fn sum_of_products(shape: &[usize], terms: usize) -> Vec<f64> {
    let elements: usize = shape.iter().product();
    let mut sum = vec![0.0; elements];
    for term in 0..terms {
        let size = 4.0 * 0.5_f64.powi(term as i32);
        let mut product = vec![size];
        for &axis in shape {
            let vector = basis(axis, term);
            let outer = product
                .iter()
                .flat_map(|a| vector.iter().map(move |b| a * b));
            product = outer.collect();
        }
        for (sum, value) in sum.iter_mut().zip(product) {
            *sum += value;
        }
    }
    sum
}

/// The energies of the first terms are 75.3 %, 94.1 %, 98.8 % and 100 %.
fn check_hosvd<const D: usize>(shape: [usize; D]) {
    for (device_name, device) in autodiff_devices() {
        let x = sum_of_products(&shape, 4);
        let gy = upstream(shape, &device);
        let cases = [
            (0.1, 1),
            (0.75, 1),
            (0.76, 2),
            (0.94, 2),
            (0.95, 3),
            (0.99, 4),
        ];
        for (energy, terms) in cases {
            let data = TensorData::new(x.clone(), shape);
            let x = Tensor::<D>::from_data(data, (&device, DType::F64));
            let linear = layer(&device, Method::hosvd(energy));
            let found = Pass::run_linear(&linear, x, gy.clone());
            let kept = sum_of_products(&shape, terms);
            let expected = weight_gradient(&kept, &values(gy.clone()));
            let name = format!("energy {energy}, {shape:?} ({device_name})");
            assert_close(&name, &found.weight.expect("trained"), &expected, 1e-10);
        }
    }
}

#[test]
fn hosvd_has_the_gradient_of_the_fewest_terms_with_its_energy() {
    check_hosvd([5, 6]);
    check_hosvd([4, 5, 6]);
    check_hosvd([5, 4, 4, 6]);
}

/// The input's error is at most what the modes leave out, and the gradient's at most that times the
/// norm of the output's.
#[test]
fn hosvd_of_noise_is_within_the_bound_of_its_energy() {
    let energies = [0.3, 0.6, 0.9];
    let methods = energies.map(Method::hosvd);
    let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    for_each_pass([6, 7, 6], &methods, |name, linear, x, gy, weight| {
        let Method::Hosvd(hosvd) = linear.method.method() else {
            panic!("{name}: another method")
        };
        let exact = weight_gradient(x, gy);
        let error: Vec<f64> = weight.iter().zip(&exact).map(|(a, b)| a - b).collect();
        let bound = (3.0 * (1.0 - hosvd.energy)).sqrt() * norm(x) * norm(gy);
        assert!(norm(&error) <= bound, "{name}: {} > {bound}", norm(&error));
        assert!(norm(&error) > 0.01 * norm(&exact), "{name}: exact");
    });
}

#[test]
fn hosvd_with_all_energy_is_exact() {
    for shape in [[12, 7, 6], [3, 5, 6]] {
        for_each_pass(shape, &[Method::hosvd(1.0)], |name, _, x, gy, weight| {
            assert_close(name, weight, &weight_gradient(x, gy), 1e-12);
        });
    }
}

/// An input of low rank loses nothing, whatever its form between forward and backward.
#[test]
fn an_input_of_low_rank_has_exact_gradients() {
    for (device_name, device) in autodiff_devices() {
        let along = |size: usize, axis: usize| {
            let mut shape = [1, 1, 1];
            shape[axis] = size;
            random_dtype::<3>(20 + axis as u64, shape, &device, DType::F64)
        };
        // rank 1 in every mode
        let x = along(5, 0) * along(7, 1) * along(6, 2);
        let gy = upstream([5, 7, 6], &device);
        let expected = weight_gradient(&values(x.clone()), &values(gy.clone()));
        let methods = [&shortcuts([1, 1, 1])[..], &[Method::hosvd(0.5)]].concat();
        for method in methods {
            let linear = layer(&device, method);
            let found = Pass::run_linear(&linear, x.clone(), gy.clone());
            let name = format!("{method} ({device_name})");
            assert_close(&name, &found.weight.expect("trained"), &expected, 1e-10);
        }
    }
}

/// One method of each kind, for inputs with 3 axes.
fn methods() -> Vec<Method> {
    let others = [
        Method::Exact,
        Method::channel_sparse(0.5),
        Method::hosvd(0.7),
    ];
    [&others[..], &shortcuts([2, 3, 4])].concat()
}

#[test]
fn plain_and_tracked_inputs_mix() {
    for (device_name, device) in autodiff_devices() {
        let plain = device.clone().without_autodiff();
        let gy = upstream([3, 5, 6], &device);
        let x = || input([3, 5, 6], &device);
        for method in methods() {
            let name = format!("{method} ({device_name})");
            let run = |linear: Linear, x: Tensor<3>| Pass::run_linear(&linear, x, gy.clone());
            let all = run(layer(&device, method), x().require_grad());
            let constant = Pass {
                input: None,
                ..all.clone()
            };
            let from_plain = run(layer(&device, method), input([3, 5, 6], &plain));
            assert_eq!(from_plain, constant, "{name}, plain input");
            assert_eq!(
                run(layer(&device, method), x()),
                constant,
                "{name}, constant input"
            );

            let untrained = Pass {
                weight: None,
                bias: None,
                ..all.clone()
            };
            let frozen = layer(&device, method).no_grad();
            assert_eq!(run(frozen, x().require_grad()), untrained, "{name}, frozen");
            let plain_layer = layer(&plain, method);
            let found = run(plain_layer, x().require_grad());
            assert_eq!(found, untrained, "{name}, plain layer");

            let mut only_weight = layer(&device, method);
            only_weight.bias = only_weight.bias.map(|bias| bias.set_require_grad(false));
            let expected = Pass {
                bias: None,
                ..constant.clone()
            };
            assert_eq!(run(only_weight, x()), expected, "{name}, only the weight");
        }
    }
}

/// A strided input is what it shows, not what its buffer holds.
#[test]
fn strided_inputs_are_read_as_they_are() {
    for (device_name, device) in autodiff_devices() {
        let swapped = random_dtype::<3>(1, [6, 5, 3], &device, DType::F64).swap_dims(0, 2);
        let contiguous = Tensor::from_data(swapped.to_data(), (&device, DType::F64));
        let gy = upstream([3, 5, 6], &device);
        for method in methods() {
            let run = |x: Tensor<3>| {
                Pass::run_linear(&layer(&device, method), x.require_grad(), gy.clone())
            };
            let name = format!("{method} ({device_name})");
            run(swapped.clone()).assert_close(&name, &run(contiguous.clone()), 1e-12);
        }
    }
}

/// Gives every parameter values that depend on its place only, and trains the weights of linear
/// layers alone: biases and convolutions would lower a loss by themselves.
struct LinearWeights(u64);

impl ModuleMapper for LinearWeights {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1;
        param.map(|tensor| {
            let values = random(self.0, tensor.dims(), &tensor.device()) * 0.4;
            values.set_require_grad(D == 2)
        })
    }
}

const STEPS: usize = 15;

/// Mean squared error before and after some steps of a network whose linear layers have a method.
fn train(device: &Device, method: impl Fn(usize) -> Method) -> [f64; 2] {
    let network = network(device).map(&mut LinearWeights(0));
    let plan = Plan::builder()
        .layer("colours", method(4))
        .pattern(r"^tokens\.", method(3))
        .layer("head", method(2))
        .build(&network)
        .expect("it suits");
    let mut network = plan.apply(network).expect("its layers");
    let images = random(1, [4, 4, 4, 3], device);
    let targets = random(2, [4, 3], device);
    let loss = |network: &Network| {
        let error = network.forward(images.clone()) - targets.clone();
        error.powi_scalar(2).mean()
    };
    let before = values(loss(&network.valid()))[0];
    let mut optimizer = SgdConfig::new().init();
    for _ in 0..STEPS {
        let gradients = GradientsParams::from_grads(loss(&network).backward(), &network);
        network = optimizer.step(0.2, network, gradients);
    }
    [before, values(loss(&network.valid()))[0]]
}

#[test]
fn a_network_trains_with_every_method_on_its_linear_layers() {
    let shortcut = |axes| {
        let ranks = [4, 4, 4, 2];
        ActivationShortcut::new(PerMode::new(&ranks[4 - axes..]).expect("2 to 4 ranks"))
    };
    type Make<'a> = &'a dyn Fn(usize) -> Method;
    let methods: [Make; 6] = [
        &|_| Method::Exact,
        &|_| Method::channel_sparse(0.5),
        &|axes| shortcut(axes).into(),
        &|axes| shortcut(axes).sequential().into(),
        &|axes| shortcut(axes).frozen().into(),
        &|_| Method::hosvd(0.7),
    ];
    // the strategy of checkpointing changes no gradient
    for (name, device) in devices() {
        let device = device.autodiff();
        for method in methods {
            let [before, after] = train(&device, method);
            let shown = method(3);
            assert!(
                after < 0.9 * before,
                "{shown} ({name}): {before} became {after}"
            );
        }
    }
}
