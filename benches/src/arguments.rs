//! Arguments that every program takes.

use burn::tensor::Device;
use burn_frugal::backends;
use clap::builder::PossibleValuesParser;

/// How often to measure, where, and how to print.
#[derive(clap::Args, Debug)]
pub struct Common {
    /// Backend that computes.
    #[arg(long, value_parser = PossibleValuesParser::new(backend_names()), default_value = backend_names()[0])]
    pub backend: String,
    /// Runs of which the median is taken, after one to warm up.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub reps: u32,
    /// An aligned table instead of one JSON object a line.
    #[arg(long)]
    pub table: bool,
    /// Leaves the process as it is instead of preparing it with `burn_frugal::prepare_process`.
    #[arg(long)]
    pub unprepared: bool,
}

impl Common {
    /// Prepares the process, unless the arguments say not to.
    pub fn prepare(&self) {
        if !self.unprepared {
            burn_frugal::prepare_process().expect("a process that nothing has set up");
        }
    }

    /// The backend's device, without autodiff.
    pub fn device(&self) -> Device {
        let mut compiled = backends::compiled().into_iter();
        let (_, device) = compiled
            .find(|(name, _)| *name == self.backend)
            .expect("the argument's parser knows the backends");
        device
    }
}

fn backend_names() -> Vec<&'static str> {
    backends::compiled()
        .into_iter()
        .map(|(name, _)| name)
        .collect()
}
