//! What the benchmark programs share: backends and methods by name, timing, and how results are
//! printed. The programs are `layers`, `kernels` and `step`, which `compare.sh` runs side by side with
//! PyTorch, `small` for what a call costs, and `machine` for what bounds them all.
#![warn(missing_docs)]
#![allow(
    deprecated,
    reason = "Burn deprecates its ndarray backend, which is measured as well"
)]

pub mod arguments;
pub mod burn_network;
pub mod convolutions;
pub mod method;
pub mod network;
pub mod record;
pub mod timing;
pub mod upstream;
