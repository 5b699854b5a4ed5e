use std::fmt;

use super::StepMemory;

impl StepMemory {
    /// Prints the table to standard output.
    pub fn print(&self) {
        println!("{self}");
    }
}

/// A table: one line a layer, then the sums.
impl fmt::Display for StepMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.layers.iter().map(|layer| layer.path.len()).max();
        let width = width.unwrap_or(0).max("whole step".len());
        writeln!(
            f,
            "{:width$}  {:>13}  {:>15}  {:>15}  {:>15}",
            "layer", "kept bytes", "transient bytes", "forward FLOPs", "training FLOPs"
        )?;
        for layer in &self.layers {
            writeln!(
                f,
                "{:width$}  {:>13}  {:>15}  {:>15}  {:>15}",
                layer.path,
                layer.kept,
                layer.transient,
                layer.forward,
                layer.flops.total()
            )?;
        }
        let (mut forward, mut training) = (0, 0);
        for layer in &self.layers {
            forward += layer.forward;
            training += layer.flops.total();
        }
        writeln!(
            f,
            "{:width$}  {:>13}  {:>15}  {forward:>15}  {training:>15}",
            "whole step", self.kept, "",
        )?;
        write!(
            f,
            "peak {} bytes, gradients {}, parameters {}",
            self.peak, self.gradients, self.weights
        )
    }
}
