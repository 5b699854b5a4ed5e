//! Guards what the library computes, changes, stores and refuses, on every compiled backend. One
//! binary, so that Burn is linked once; what needs a global allocator of its own is in another.

mod cases;
mod folding;
mod gradients;
mod layer;
mod layouts;
mod model_configs;
mod models;
mod non_finite;
mod overrides;
mod parity;
mod plan;
mod plan_errors;
mod plan_files;
mod plan_json;
mod regressions;
mod schedule;
mod small_network;
mod user_model;
mod weights;
