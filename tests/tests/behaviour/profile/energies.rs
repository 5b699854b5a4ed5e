//! Guards shortcuts at an energy: they have the ranks and the error of HOSVD.

use burn::tensor::Tensor;
use burn_frugal::methods::{ActivationShortcut, Flops};
use burn_frugal::plan::{Candidate, Candidates, Measured};
use burn_frugal::{LayerGeometry, Method, PerMode};
use burn_frugal_tests::autodiff_devices;

use super::{Network, PATHS, geometry, images, measure, network};

/// One method's pair: HOSVD as measured, and the shortcut with its ranks.
fn at_energy(network: &Network, path: &str, energy: f64, images: &Tensor<4>) -> [Measured; 2] {
    let candidates = [
        Method::hosvd(energy).into(),
        Candidate::ShortcutAtEnergy(energy),
    ];
    let candidates = Candidates::new().layer(path, candidates);
    let profile = measure(network, &candidates, images);
    let layer = &profile.layers()[0];
    layer.candidates.clone().try_into().expect("two candidates")
}

#[test]
fn a_shortcut_at_an_energy_has_the_ranks_and_the_error_of_hosvd() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (network(&device), images(&device));
        for path in PATHS {
            let geometry = geometry(&network, path);
            for energy in [0.3, 0.6, 0.8] {
                let name = format!("{path}, energy {energy} ({name})");
                let [hosvd, shortcut] = at_energy(&network, path, energy, &images);
                assert_eq!(hosvd.method, Method::hosvd(energy), "{name}");
                let Method::ActivationShortcut(found) = shortcut.method else {
                    panic!("{name}: {}", shortcut.method);
                };
                assert_eq!(found, ActivationShortcut::new(found.ranks), "{name}");
                assert_eq!(shortcut.bytes, hosvd.bytes, "{name}");
                assert_eq!(shortcut.bytes, shortcut.method.bytes(geometry, 4), "{name}");
                assert_eq!(shortcut.flops, shortcut.method.flops(geometry), "{name}");
                assert_eq!(shortcut.error, hosvd.error, "{name}");
                assert_eq!(hosvd.flops, hosvd_flops(geometry, found.ranks), "{name}");
            }
            let [_, whole] = at_energy(&network, path, 1.0, &images);
            assert_eq!(whole.method, Method::Exact, "{path} ({name})");
        }
    }
}

/// Gram matrices, decompositions and the core; then the gradient of the shortcut with these ranks.
fn hosvd_flops(geometry: LayerGeometry, ranks: PerMode) -> Flops {
    let modes = geometry.modes();
    let elements = modes.product() as u64;
    let decompositions = modes.as_slice().iter().map(|&size| {
        let size = size as u64;
        2 * size * elements + 9 * size * size * size
    });
    let low_rank = Method::activation_shortcut(ranks).flops(geometry);
    let core = 2 * fewest_products(modes.as_slice(), ranks.as_slice());
    Flops {
        forward: decompositions.sum::<u64>() + core,
        ..low_rank
    }
}

/// Of all orders in which to contract the modes.
fn fewest_products(sizes: &[usize], ranks: &[usize]) -> u64 {
    let elements: usize = sizes.iter().product();
    let next = (0..sizes.len()).filter(|&mode| ranks[mode] < sizes[mode]);
    let orders = next.map(|mode| {
        let mut rest = sizes.to_vec();
        rest[mode] = ranks[mode];
        (elements * ranks[mode]) as u64 + fewest_products(&rest, ranks)
    });
    orders.min().unwrap_or(0)
}
