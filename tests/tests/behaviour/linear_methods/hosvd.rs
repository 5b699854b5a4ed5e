//! Guards HOSVD on linear layers: inputs whose decomposition is known, and the bound of its energy.

use burn::tensor::{DType, Tensor, TensorData};
use burn_frugal::Method;
use burn_frugal_tests::{Pass, assert_close, autodiff_devices, values};

use super::{for_each_pass, layer, upstream, weight_gradient};

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
