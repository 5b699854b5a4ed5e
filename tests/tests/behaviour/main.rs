//! Guards what the library computes, changes, stores and refuses, on every compiled backend. One
//! binary, so that Burn is linked once; what needs a global allocator of its own is in another.

mod activations;
mod calibration;
mod cases;
mod channel_sparse;
mod efficientnet;
mod flops;
mod folding;
mod gradients;
mod hosvd;
mod importance;
mod layer;
mod layouts;
mod linear;
mod linear_methods;
mod model_configs;
mod models;
mod non_finite;
mod overrides;
mod parity;
mod plan;
mod plan_errors;
mod plan_files;
mod plan_json;
mod planner;
mod profile;
mod regressions;
mod schedule;
mod shortcut;
mod shortcut_restarts;
mod small_network;
mod training_state;
mod untrained_channels;
mod user_model;
mod weights;
