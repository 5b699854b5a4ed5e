//! One file a backend. A new backend is one more file here and one line in
//! [`FrugalOps`](crate::ops::FrugalOps)'s list.
//!
//! Burn deprecates its ndarray backend in 0.22 in favour of flex. It is here because it is still
//! the backend that existing models and records name, and the second witness that both CPU
//! backends agree. Dropping it: delete `ndarray.rs`, the feature `ndarray` and its line in the
//! list of [`FrugalOps`](crate::ops::FrugalOps).

mod autodiff;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod cpu;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "ndarray")]
mod ndarray;

use burn::tensor::Device;

/// The backends that this build contains, by the name of their feature, each with its device; the
/// one to prefer first.
pub fn compiled() -> Vec<(&'static str, Device)> {
    vec![
        #[cfg(feature = "flex")]
        ("flex", Device::flex()),
        #[cfg(feature = "ndarray")]
        ("ndarray", Device::ndarray()),
    ]
}

/// Bytes on the heap that describe a tensor (its shape and counters) beyond those of the ndarray
/// backend, which are part of every node of a graph.
pub(crate) fn tensor_object_bytes(device: &Device) -> usize {
    #[cfg(feature = "flex")]
    if *device == Device::flex() {
        return 128;
    }
    let _ = device;
    0
}
