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
