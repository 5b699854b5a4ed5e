//! The table and the picture.

use burn_frugal::files;
use plotters::prelude::*;
use std::path::Path;

use crate::error::Error;
use crate::tune::Run;

/// One aligned line a run.
pub fn table(runs: &[(String, Run)]) -> String {
    let head = [
        "method",
        "accuracy before",
        "after",
        "bytes kept",
        "peak bytes",
        "ms a step",
    ];
    let rows: Vec<[String; 6]> = runs
        .iter()
        .map(|(name, run)| {
            [
                name.clone(),
                format!("{:.1} %", 100.0 * run.before()),
                format!("{:.1} %", 100.0 * run.after()),
                grouped(run.kept_bytes),
                grouped(run.peak_bytes),
                format!("{:.1}", 1000.0 * run.step.as_secs_f64()),
            ]
        })
        .collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(head[column].len())
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: [&str; 6]| {
        let mut line = format!("{:<width$}", cells[0], width = widths[0]);
        for (cell, width) in cells.iter().zip(&widths).skip(1) {
            line += &format!("  {cell:>width$}");
        }
        line + "\n"
    };
    let mut table = line(head);
    for row in &rows {
        table += &line(row.each_ref().map(String::as_str));
    }
    table
}

/// `1234567` as `1,234,567`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Accuracy against steps, one line a run, as SVG.
pub fn picture(runs: &[(String, Run)], path: &Path) -> Result<(), Error> {
    let svg = draw(runs).map_err(|error| Error::Picture(error.to_string()))?;
    files::replace(path, svg.as_bytes()).map_err(|source| Error::File {
        path: path.to_path_buf(),
        source,
    })
}

fn draw(runs: &[(String, Run)]) -> Result<String, Box<dyn std::error::Error>> {
    const COLOURS: [RGBColor; 10] = [
        RGBColor(150, 150, 150),
        RGBColor(0, 0, 0),
        RGBColor(0, 114, 178),
        RGBColor(86, 180, 233),
        RGBColor(0, 158, 115),
        RGBColor(213, 94, 0),
        RGBColor(230, 159, 0),
        RGBColor(204, 121, 167),
        RGBColor(240, 228, 66),
        RGBColor(120, 90, 60),
    ];
    let steps = runs.iter().filter_map(|(_, run)| run.curve.last());
    let steps = steps.map(|&(step, _)| step).max().unwrap_or(0).max(1);

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (800, 500)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(
                "Fine-tuning the last 4 convolutions and the head",
                ("sans-serif", 22),
            )
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d(0..steps, 0.0..100.0)?;
        chart
            .configure_mesh()
            .x_desc("steps")
            .y_desc("test accuracy, %")
            .light_line_style(BLACK.mix(0.06))
            .draw()?;
        for ((name, run), colour) in runs.iter().zip(COLOURS.into_iter().cycle()) {
            let points = run
                .curve
                .iter()
                .map(|&(step, accuracy)| (step, 100.0 * accuracy));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .margin(16)
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}
