//! Guards HOSVD: its ranks, its error and its gradients against plain loops in double precision. The
//! plain tensors here serve the tests of the activation shortcut too.

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_frugal::nn::LinearConfig;
use burn_frugal::plan::{Candidate, Candidates, Plan, Profile};
use burn_frugal::{Error, Method};
use burn_frugal_tests::layers::{layer, same, with};
use burn_frugal_tests::{
    Pass, assert_close, assert_contains, devices, random_dtype, relative_error, values,
};

use crate::shortcut::{Config, Layer, kinds, per_mode, settings};
use crate::user_model::network;

/// A matrix as its rows.
pub type Matrix = Vec<Vec<f64>>;

/// A tensor in double precision, with plain loops.
#[derive(Clone, Debug, PartialEq)]
pub struct Plain {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

impl Plain {
    pub fn filled(shape: &[usize], value: f64) -> Self {
        Self {
            shape: shape.to_vec(),
            values: vec![value; shape.iter().product()],
        }
    }

    /// White noise.
    pub fn random(seed: u64, shape: &[usize]) -> Self {
        let count = shape.iter().product();
        Self {
            shape: shape.to_vec(),
            values: values(random_dtype(seed, [count], &Device::default(), DType::F32)),
        }
    }

    /// The product of a vector a mode: every unfolding has rank 1.
    pub fn rank_one(seed: u64, shape: &[usize]) -> Self {
        (0..shape.len()).fold(Self::filled(shape, 1.0), |plain, mode| {
            let vector = Self::random(seed + mode as u64, &[shape[mode]]).values;
            plain.map_along(mode, |place, value| value * vector[place])
        })
    }

    /// Products of vectors, each half as large as the one before: singular values that fall.
    pub fn falling(seed: u64, shape: &[usize]) -> Self {
        let terms = (0..8).map(|term| {
            let part = Self::rank_one(seed + 100 * term, shape);
            part.scaled(0.5_f64.powi(term as i32))
        });
        terms.fold(Self::filled(shape, 0.0), |sum, part| sum.plus(&part))
    }

    pub fn scaled(&self, factor: f64) -> Self {
        self.map_along(0, |_, value| value * factor)
    }

    pub fn plus(&self, other: &Self) -> Self {
        assert_eq!(self.shape, other.shape);
        let pairs = self.values.iter().zip(&other.values);
        Self {
            shape: self.shape.clone(),
            values: pairs.map(|(a, b)| a + b).collect(),
        }
    }

    pub fn minus(&self, other: &Self) -> Self {
        self.plus(&other.scaled(-1.0))
    }

    /// Every value from its place along a mode and its value.
    pub fn map_along(&self, mode: usize, change: impl Fn(usize, f64) -> f64) -> Self {
        let inner: usize = self.shape[mode + 1..].iter().product();
        let values = self.values.iter().enumerate();
        Self {
            shape: self.shape.clone(),
            values: values
                .map(|(index, &value)| change(index / inner % self.shape[mode], value))
                .collect(),
        }
    }

    /// The sum of all squares.
    pub fn energy(&self) -> f64 {
        self.values.iter().map(|value| value * value).sum()
    }

    /// `X X^T` of the unfolding along a mode.
    pub fn gram(&self, mode: usize) -> Matrix {
        let size = self.shape[mode];
        let inner: usize = self.shape[mode + 1..].iter().product();
        let mut gram = vec![vec![0.0; size]; size];
        for block in self.values.chunks(size * inner) {
            for a in 0..size {
                for b in 0..size {
                    gram[a][b] += (0..inner)
                        .map(|i| block[a * inner + i] * block[b * inner + i])
                        .sum::<f64>();
                }
            }
        }
        gram
    }

    /// Every column of the unfolding multiplied by a matrix.
    pub fn multiplied(&self, mode: usize, matrix: &Matrix) -> Self {
        let size = self.shape[mode];
        let inner: usize = self.shape[mode + 1..].iter().product();
        let mut shape = self.shape.clone();
        shape[mode] = matrix.len();
        let mut values = Vec::new();
        for block in self.values.chunks(size * inner) {
            for row in matrix {
                let mut sums = vec![0.0; inner];
                for (weight, slice) in row.iter().zip(block.chunks(inner)) {
                    for (sum, value) in sums.iter_mut().zip(slice) {
                        *sum += weight * value;
                    }
                }
                values.extend(sums);
            }
        }
        Self { shape, values }
    }

    /// Every column of the unfolding projected onto the columns of a factor.
    pub fn projected(&self, mode: usize, factor: &Matrix) -> Self {
        self.multiplied(mode, &transposed(factor))
            .multiplied(mode, factor)
    }

    /// Projected onto the leading singular vectors of every mode.
    pub fn truncated(&self, ranks: &[usize]) -> Self {
        ranks
            .iter()
            .enumerate()
            .fold(self.clone(), |left, (mode, &rank)| {
                let (_, vectors) = eigen(self.gram(mode));
                left.projected(mode, &leading(&vectors, rank))
            })
    }

    pub fn tensor<const D: usize>(&self, device: &Device, dtype: DType) -> Tensor<D> {
        let shape: [usize; D] = self.shape.as_slice().try_into().expect("D axes");
        let data = TensorData::new(self.values.clone(), shape).convert_dtype(dtype);
        Tensor::from_data(data, (device, dtype))
    }
}

pub fn transposed(matrix: &Matrix) -> Matrix {
    let columns = matrix.first().map_or(0, Vec::len);
    let column = |c: usize| matrix.iter().map(|row| row[c]).collect();
    (0..columns).map(column).collect()
}

pub fn product(a: &Matrix, b: &Matrix) -> Matrix {
    let b = transposed(b);
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum();
    a.iter()
        .map(|row| b.iter().map(|column| dot(row, column)).collect())
        .collect()
}

/// The first columns.
pub fn leading(matrix: &Matrix, columns: usize) -> Matrix {
    matrix.iter().map(|row| row[..columns].to_vec()).collect()
}

/// The projector onto the columns: the same for every basis of one space.
pub fn projector(factor: &Matrix) -> Vec<f64> {
    product(factor, &transposed(factor)).concat()
}

/// Orthonormal columns that span those of a matrix: Gram and Schmidt's process, twice.
pub fn orthonormal(matrix: &Matrix) -> Matrix {
    let mut columns = transposed(matrix);
    for _ in 0..2 {
        for index in 0..columns.len() {
            let (before, rest) = columns.split_at_mut(index);
            let column = &mut rest[0];
            for other in before.iter() {
                let dot: f64 = column.iter().zip(other).map(|(a, b)| a * b).sum();
                column
                    .iter_mut()
                    .zip(other)
                    .for_each(|(a, b)| *a -= dot * b);
            }
            let norm = column.iter().map(|a| a * a).sum::<f64>().sqrt();
            column.iter_mut().for_each(|a| *a /= norm);
        }
    }
    transposed(&columns)
}

/// Eigenvalues, descending, and eigenvectors as columns of a symmetric matrix: Jacobi's rotations.
pub fn eigen(mut matrix: Matrix) -> (Vec<f64>, Matrix) {
    let size = matrix.len();
    let unit = |row: usize| (0..size).map(move |column| f64::from(row == column));
    let mut vectors: Matrix = (0..size).map(|row| unit(row).collect()).collect();
    let most = matrix
        .concat()
        .iter()
        .fold(0.0, |most: f64, value| most.max(value.abs()));
    for _sweep in 0..30 {
        for p in 0..size {
            for q in p + 1..size {
                if matrix[p][q].abs() <= 1e-15 * most {
                    continue;
                }
                let angle = 0.5 * (2.0 * matrix[p][q]).atan2(matrix[q][q] - matrix[p][p]);
                let (sin, cos) = angle.sin_cos();
                let rotate = |row: &mut Vec<f64>| {
                    (row[p], row[q]) = (cos * row[p] - sin * row[q], sin * row[p] + cos * row[q]);
                };
                matrix.iter_mut().for_each(rotate);
                let (above, below) = matrix.split_at_mut(q);
                for (a, b) in above[p].iter_mut().zip(&mut below[0]) {
                    (*a, *b) = (cos * *a - sin * *b, sin * *a + cos * *b);
                }
                vectors.iter_mut().for_each(rotate);
            }
        }
    }
    let mut order: Vec<usize> = (0..size).collect();
    order.sort_by(|&a, &b| matrix[b][b].total_cmp(&matrix[a][a]));
    let sorted = |row: &Vec<f64>| order.iter().map(|&column| row[column]).collect();
    (
        order.iter().map(|&index| matrix[index][index]).collect(),
        vectors.iter().map(sorted).collect(),
    )
}

/// The plain loops themselves.
#[test]
fn the_plain_eigenvectors_are_eigenvectors() {
    let gram = Plain::random(1, &[7, 3, 5]).gram(0);
    let (values, vectors) = eigen(gram.clone());
    assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
    let found = product(&gram, &vectors).concat();
    let scaled = |row: &Vec<f64>| {
        let pairs = row.iter().zip(&values);
        pairs.map(|(vector, value)| vector * value).collect()
    };
    let expected: Matrix = vectors.iter().map(scaled).collect();
    assert_close("G V = V E", &found, &expected.concat(), 1e-12);
    let unit = product(&transposed(&vectors), &vectors);
    for (row, values) in unit.iter().enumerate() {
        for (column, value) in values.iter().enumerate() {
            assert!((value - f64::from(row == column)).abs() < 1e-13);
        }
    }
}

/// The smallest rank of each mode whose leading squared singular values reach the energy.
fn ranks_at(input: &Plain, energy: f64) -> Vec<usize> {
    let rank = |mode: usize| {
        let (values, _) = eigen(input.gram(mode));
        let total: f64 = values.iter().sum();
        let reached = |rank: &usize| values[..*rank].iter().sum::<f64>() >= energy * total;
        (1..=values.len())
            .find(reached)
            .expect("all of them reach it")
    };
    (0..input.shape.len()).map(rank).collect()
}

#[test]
fn energy_one_is_the_exact_gradient_bit_for_bit() {
    for setting in settings() {
        for kind in kinds() {
            let layer = Layer::new(&kind.config, &setting);
            let input = Plain::random(1, kind.input);
            let exact = layer.with(Method::Exact).step(&input);
            let found = layer.with(Method::hosvd(1.0)).step(&input);
            assert_eq!(found, exact, "{} ({})", kind.name, setting.name);
        }
    }
}

#[test]
fn the_gradient_is_the_exact_one_of_the_truncated_input() {
    for kind in kinds() {
        let input = Plain::falling(1, kind.input);
        let ranks = ranks_at(&input, 0.85);
        let truncated = input.truncated(&ranks);
        assert!(relative_error(&truncated.values, &input.values) > 0.1);
        for setting in settings() {
            let layer = Layer::new(&kind.config, &setting).with(Method::hosvd(0.85));
            let name = format!("{}, ranks {ranks:?} ({})", kind.name, setting.name);
            let expected = layer.exact(&truncated);
            for step in 0..2 {
                let found = layer.step(&input);
                // the gap between singular values enlarges rounding
                assert_close(&name, &found, &expected, 50.0 * setting.tolerance);
                assert_eq!(layer.factor_dims(), [None; 4], "{name}, step {step}");
                layer.step(&Plain::random(5, kind.input));
            }
        }
    }
}

/// An activation whose singular values are known, each mode's other ones: orthonormal factors
/// around a core whose slices share no place.
fn with_known_spectra(shape: &[usize; 4]) -> Plain {
    let entries = [
        ([0, 0, 0, 0], 4.0),
        ([1, 1, 0, 1], 3.0),
        ([0, 1, 1, 2], 2.0),
        ([1, 0, 1, 3], 1.0),
    ];
    let mut core = Plain::filled(&[2, 2, 2, 4], 0.0);
    for ([a, b, c, d], value) in entries {
        core.values[((a * 2 + b) * 2 + c) * 4 + d] = value;
    }
    let factor = |mode: usize| {
        let [rows, columns] = [shape[mode], core.shape[mode]];
        let numbers = Plain::random(mode as u64, &[rows, columns]).values;
        orthonormal(&numbers.chunks(columns).map(<[f64]>::to_vec).collect())
    };
    (0..4).fold(core.clone(), |left, mode| {
        left.multiplied(mode, &factor(mode))
    })
}

/// The ranks that a layer needs for an energy.
fn measured_ranks(config: &Config, input: &Plain, energy: f64, device: &Device) -> Vec<Method> {
    let dtype = DType::F32;
    let candidates = Candidates::new().layer("", [Candidate::ShortcutAtEnergy(energy)]);
    let profile = match config {
        Config::Conv(config) => {
            let conv = layer(config, device, dtype);
            let x = input.tensor(device, dtype);
            Profile::measure(&conv, &candidates, |conv| conv.forward(x.clone()).sum())
        }
        Config::Linear([inputs, outputs]) => {
            let linear = LinearConfig::new(*inputs, *outputs).init(device);
            let x = input.tensor::<3>(device, dtype);
            Profile::measure(&linear, &candidates, |linear| {
                linear.forward(x.clone()).sum()
            })
        }
    };
    let profile = profile.expect("the loss depends on the layer");
    let candidates = &profile.layers()[0].candidates;
    candidates.iter().map(|measured| measured.method).collect()
}

#[test]
fn ranks_are_the_smallest_that_reach_the_energy() {
    // squared singular values: 20, 10; 17, 13; 25, 5; 16, 9, 4, 1; of 30
    let expected = [
        (0.01, [1, 1, 1, 1]),
        (0.53, [1, 1, 1, 1]),
        (0.54, [1, 1, 1, 2]),
        (0.6, [1, 2, 1, 2]),
        (0.7, [2, 2, 1, 2]),
        (0.85, [2, 2, 2, 3]),
        (0.97, [2, 2, 2, 4]),
        (0.9999, [2, 2, 2, 4]),
    ];
    let input = with_known_spectra(&[5, 4, 6, 7]);
    let conv = Config::Conv(same([4, 3], 3));
    // of 3 modes: the first two put together
    let joined = Plain {
        shape: vec![20, 6, 7],
        ..input.clone()
    };
    let linear = Config::Linear([7, 3]);
    for (name, device) in devices() {
        let device = device.autodiff();
        for (energy, ranks) in expected {
            let found = measured_ranks(&conv, &input, energy, &device);
            let wanted = Method::activation_shortcut(ranks);
            assert_eq!(found, [wanted], "energy {energy} ({name})");

            let ranks = ranks_at(&joined, energy);
            let found = measured_ranks(&linear, &joined, energy, &device);
            let wanted = Method::activation_shortcut(per_mode(&ranks));
            assert_eq!(found, [wanted], "energy {energy}, linear ({name})");
            assert_eq!(ranks[2], expected_last(energy), "the plain rule");
        }
    }
}

/// How many of 16, 9, 4 and 1 it takes.
fn expected_last(energy: f64) -> usize {
    match energy * 30.0 {
        ..=16.0 => 1,
        ..=25.0 => 2,
        ..=29.0 => 3,
        _ => 4,
    }
}

/// An energy that is reached to the last bit is reached.
#[test]
fn an_energy_that_is_reached_exactly_is_enough() {
    // squares 16, 9, 4, 1, 1, 1 of 32
    let mut input = Plain::filled(&[6; 4], 0.0);
    for (place, value) in [4.0, 3.0, 2.0, 1.0, 1.0, 1.0].into_iter().enumerate() {
        input.values[place * (216 + 36 + 6 + 1)] = value;
    }
    let conv = Config::Conv(same([6, 3], 3));
    for (name, device) in devices() {
        for (energy, rank) in [
            (0.5, 1),
            (0.50001, 2),
            (0.78125, 2),
            (0.90625, 3),
            (0.9375, 4),
        ] {
            let found = measured_ranks(&conv, &input, energy, &device.clone().autodiff());
            let wanted = Method::activation_shortcut([rank; 4]);
            assert_eq!(found, [wanted], "energy {energy} ({name})");
        }
    }
}

/// The input as a layer kept it. With one output a pixel and the identity as the output's gradient,
/// the weight's gradient is the input.
fn kept(input: &Plain, method: Method, device: &Device, dtype: DType) -> Plain {
    let &[images, channels, height, width] = input.shape.as_slice() else {
        panic!("a map")
    };
    let pixels = images * height * width;
    let conv = with(&layer(&same([channels, pixels], 1), device, dtype), method);
    let mut upstream = Plain::filled(&[images, pixels, height, width], 0.0);
    for n in 0..images {
        for place in 0..height * width {
            let pixel = n * height * width + place;
            upstream.values[(n * pixels + pixel) * height * width + place] = 1.0;
        }
    }
    let x = input.tensor(device, dtype);
    let pass = Pass::run(&conv, x, upstream.tensor(device, dtype));
    let gradient = pass.weight.expect("tracked");
    // [pixels, channels]
    let mut kept = Plain::filled(&input.shape, 0.0);
    for (index, value) in kept.values.iter_mut().enumerate() {
        let place = index % (height * width);
        let channel = index / (height * width) % channels;
        let n = index / (height * width) / channels;
        *value = gradient[(n * height * width + place) * channels + channel];
    }
    kept
}

/// `|A - A~|^2 <= sum of the tail energies <= modes (1 - energy) |A|^2`
#[test]
fn the_error_is_at_most_the_tails() {
    const SHAPE: [usize; 4] = [3, 4, 5, 6];
    let inputs = [Plain::random(1, &SHAPE), Plain::falling(1, &SHAPE)];
    for setting in settings() {
        let (device, dtype) = (&setting.device, setting.dtype);
        for input in &inputs {
            let exact = kept(input, Method::Exact, device, dtype);
            assert_close("the layer", &exact.values, &input.values, 1e-6);
            for energy in [0.3, 0.6, 0.8, 0.95, 0.999] {
                let found = kept(input, Method::hosvd(energy), device, dtype);
                let error = input.minus(&found).energy();
                let ranks = ranks_at(input, energy);
                let tails = ranks.iter().enumerate().map(|(mode, &rank)| {
                    let (values, _) = eigen(input.gram(mode));
                    values[rank..].iter().sum::<f64>()
                });
                let tails: f64 = tails.sum();
                let name = format!("energy {energy}, ranks {ranks:?} ({})", setting.name);
                let rounding = 1e-10 * input.energy();
                assert!(error <= tails + rounding, "{name}: {error}, tails {tails}");
                let bound = 4.0 * (1.0 - energy) * input.energy();
                assert!(error <= bound + rounding, "{name}: {error}, bound {bound}");
                // not better than the best of one mode either: something was left out
                let largest = ranks.iter().enumerate().map(|(mode, &rank)| {
                    let (values, _) = eigen(input.gram(mode));
                    values[rank..].iter().sum::<f64>()
                });
                let largest = largest.fold(0.0, f64::max);
                assert!(error >= largest - rounding, "{name}: {error}, {largest}");
            }
        }
    }
}

#[test]
fn inputs_of_low_rank_lose_nothing() {
    const SHAPE: [usize; 4] = [3, 4, 5, 6];
    let inputs = [
        ("zero", Plain::filled(&SHAPE, 0.0)),
        ("constant", Plain::filled(&SHAPE, -2.5)),
        ("rank 1", Plain::rank_one(1, &SHAPE)),
        ("huge rank 1", Plain::rank_one(1, &SHAPE).scaled(1e15)),
        ("tiny rank 1", Plain::rank_one(1, &SHAPE).scaled(1e-15)),
    ];
    for setting in settings() {
        let layer = Layer::new(&Config::Conv(same([4, 6], 3)), &setting);
        for (what, input) in &inputs {
            for energy in [0.01, 0.5, 0.99] {
                let found = layer.with(Method::hosvd(energy)).step(input);
                let name = format!("{what}, energy {energy} ({})", setting.name);
                assert_close(&name, &found, &layer.exact(input), setting.tolerance);
            }
        }
    }
}

/// There is no decomposition of it: the input stays whole.
#[test]
fn a_value_that_is_not_finite_reaches_what_it_reaches_exactly() {
    let finite =
        |values: Vec<f64>| -> Vec<bool> { values.into_iter().map(f64::is_finite).collect() };
    for kind in kinds() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut input = Plain::random(1, kind.input);
            input.values[0] = bad;
            let exact = finite(Layer::new(&kind.config, &settings()[0]).exact(&input));
            assert!(exact.contains(&false), "{}", kind.name);
            for setting in settings() {
                let layer = Layer::new(&kind.config, &setting).with(Method::hosvd(0.8));
                let name = format!("{bad}, {} ({})", kind.name, setting.name);
                assert_eq!(finite(layer.step(&input)), exact, "{name}");
            }
        }
    }
}

#[test]
fn an_energy_that_is_no_share_is_refused_by_the_layers_name() {
    let network = network(&Device::default());
    for energy in [0.0, -0.0, -0.5, 1.0 + 1e-15, 2.0, f64::INFINITY, f64::NAN] {
        let method = Method::hosvd(energy);
        let plan = Plan::builder()
            .layer("blocks.1.side", method)
            .build(&network);
        let candidates = Candidates::new().layer("blocks.1.side", [method]);
        let at_energy = Candidate::ShortcutAtEnergy(energy);
        let ranked = Candidates::new().layer("blocks.1.side", [at_energy]);
        let measured = [candidates, ranked].map(|candidates| {
            Profile::measure(&network, &candidates, |_| unreachable!("refused before"))
        });
        let [a, b] = measured.map(Result::unwrap_err);
        for error in [plan.unwrap_err(), a, b] {
            assert!(
                matches!(&error, Error::Method { layer, .. } if layer == "blocks.1.side"),
                "{error}"
            );
            let found = format!("found {energy}");
            assert_contains(&error.to_string(), &["blocks.1.side", "energy", &found]);
        }
        let linear = LinearConfig::new(4, 4).init(&Device::default());
        let error = linear.with_method(method).unwrap_err();
        assert_contains(&error.to_string(), &["Linear", "energy"]);
    }
}
