//! Results, as JSON lines or an aligned table.

use std::io::{ErrorKind, Write, stderr, stdout};
use std::process::exit;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

/// Named values of one measurement, in the order in which they are shown.
#[derive(Clone, Debug, Default)]
pub struct Record(Vec<(&'static str, Value)>);

impl Record {
    /// Without values yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more value.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((name, value.into()));
        self
    }
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// Prints records: each at once as a line of JSON, or all as a table at the end.
#[derive(Debug)]
pub struct Report {
    /// Kept until the end for a table.
    records: Option<Vec<Record>>,
}

impl Report {
    /// As JSON lines, or as a table.
    pub fn new(table: bool) -> Self {
        Self {
            records: table.then(Vec::new),
        }
    }

    /// Takes one measurement.
    pub fn add(&mut self, record: Record) {
        match &mut self.records {
            Some(records) => records.push(record),
            None => print_line(&serde_json::to_string(&record).expect("names and plain values")),
        }
    }

    /// Prints the table, if it is one.
    pub fn finish(self) {
        let Some(records) = self.records else { return };
        let Some(first) = records.first() else { return };
        let head: Vec<String> = first.0.iter().map(|(name, _)| name.to_string()).collect();
        let mut rows = vec![head];
        for record in &records {
            rows.push(record.0.iter().map(|(_, value)| cell(value)).collect());
        }
        let widths: Vec<usize> = (0..rows[0].len())
            .map(|column| {
                let cells = rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for row in &rows {
            let cells = row.iter().zip(&widths);
            let line: Vec<String> = cells
                .map(|(cell, &width)| format!("{cell:>width$}"))
                .collect();
            print_line(&line.join("  "));
        }
    }
}

/// Ends the program if nobody can read what it prints: quietly if the reader has seen enough.
fn print_line(line: &str) {
    if let Err(error) = writeln!(stdout(), "{line}") {
        if error.kind() == ErrorKind::BrokenPipe {
            exit(0);
        }
        // nothing is left to tell if this fails too
        let _ = writeln!(stderr(), "error: standard output: {error}");
        exit(2);
    }
}

/// Milliseconds with three digits, lists with `x` between their elements.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            format!("{:.3}", number.as_f64().unwrap_or(f64::NAN))
        }
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join("x"),
        Value::Null => "-".to_string(),
        other => other.to_string(),
    }
}
