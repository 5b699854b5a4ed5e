use std::error::Error as StdError;
use std::path::Path;

use plotters::prelude::*;

use super::{LayerMemory, StepMemory};
use crate::error::Error;
use crate::files;

/// Pixels of a layer's bars, of the names beside them, and of everything else.
const ROW: u32 = 22;
const NAMES: u32 = 220;
const FRAME: u32 = 120;
const WIDTH: u32 = 1000;

/// Bytes kept and transient, of the step without a plan and with one.
const BEFORE: [RGBColor; 2] = [RGBColor(86, 140, 180), RGBColor(190, 212, 228)];
const AFTER: [RGBColor; 2] = [RGBColor(213, 94, 0), RGBColor(245, 205, 170)];

impl StepMemory {
    /// Draws the bytes of each layer, kept and transient, as an SVG file: this step's under those of
    /// `before`, the step without a plan. Layers that only one of the two has are left out.
    ///
    /// # Errors
    /// [`Error::File`] when the file cannot be written.
    ///
    /// # Example
    /// ```no_run
    /// # use burn_frugal::plan::{Network, StepMemory, Training, Plan};
    /// # fn draw(network: Network, exact: Plan, plan: Plan) -> Result<(), burn_frugal::Error> {
    /// let memory = |plan| {
    ///     network.predict(&Training { plan, also: vec!["classifier".to_string()], batch: 32 })
    /// };
    /// memory(plan)?.svg("memory.svg", &memory(exact)?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn svg(&self, path: impl AsRef<Path>, before: &Self) -> Result<(), Error> {
        let path = path.as_ref();
        let svg = self.draw(before).map_err(|error| Error::File {
            path: path.to_path_buf(),
            source: std::io::Error::other(error.to_string()),
        })?;
        files::replace(path, svg.as_bytes()).map_err(|source| Error::File {
            path: path.to_path_buf(),
            source,
        })
    }

    fn draw(&self, before: &Self) -> Result<String, Box<dyn StdError>> {
        let pairs: Vec<(&LayerMemory, &LayerMemory)> = before
            .layers
            .iter()
            .filter_map(|before| {
                let after = self.layers.iter().find(|after| after.path == before.path)?;
                Some((before, after))
            })
            .collect();
        let bytes = |layer: &LayerMemory| layer.kept + layer.transient;
        let largest = pairs.iter().map(|(a, b)| bytes(a).max(bytes(b))).max();
        let largest = largest.unwrap_or(0).max(1) as f64 / 1e6;
        let rows = pairs.len().max(1);

        let mut svg = String::new();
        {
            let size = (WIDTH, FRAME + ROW * rows as u32);
            let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            area.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&area)
                .caption("Memory of a training step, by layer", ("sans-serif", 20))
                .margin(12)
                .x_label_area_size(40)
                .y_label_area_size(NAMES)
                .build_cartesian_2d(0.0..largest * 1.02, (0..rows).into_segmented())?;
            chart
                .configure_mesh()
                .disable_y_mesh()
                .y_labels(rows)
                .y_label_formatter(&|row| match row {
                    SegmentValue::CenterOf(row) if *row < pairs.len() => {
                        pairs[pairs.len() - 1 - row].0.path.clone()
                    }
                    _ => String::new(),
                })
                .x_desc("MB")
                .draw()?;
            let parts = [
                ("kept, before", BEFORE[0], 0, true),
                ("transient, before", BEFORE[1], 0, false),
                ("kept, with the plan", AFTER[0], 1, true),
                ("transient, with the plan", AFTER[1], 1, false),
            ];
            for (name, colour, side, kept) in parts {
                let bars = pairs.iter().enumerate().map(|(index, pair)| {
                    let layer = if side == 0 { pair.0 } else { pair.1 };
                    let row = pairs.len() - 1 - index;
                    let [start, stop] = if kept {
                        [0, layer.kept]
                    } else {
                        [layer.kept, layer.kept + layer.transient]
                    };
                    let corner =
                        |bytes: usize, edge: SegmentValue<usize>| (bytes as f64 / 1e6, edge);
                    let (low, high) = match side {
                        0 => (SegmentValue::CenterOf(row), SegmentValue::Exact(row + 1)),
                        _ => (SegmentValue::Exact(row), SegmentValue::CenterOf(row)),
                    };
                    let mut bar =
                        Rectangle::new([corner(start, low), corner(stop, high)], colour.filled());
                    bar.set_margin(1, 1, 0, 0);
                    bar
                });
                chart.draw_series(bars)?.label(name).legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled())
                });
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .background_style(WHITE.mix(0.9))
                .border_style(BLACK.mix(0.3))
                .draw()?;
            area.present()?;
        }
        Ok(svg)
    }
}
