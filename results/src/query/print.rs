//! An answer as text.

use serde_json::{Map, Value};

use super::Answer;

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Columns set to a width, for a terminal.
    Text,
    /// One JSON array of objects.
    Json,
    /// One JSON object a line.
    JsonLines,
    /// Comma-separated values with a head line.
    Csv,
    /// A Markdown table.
    Markdown,
}

impl Answer {
    /// The rows as JSON objects, by column.
    pub fn objects(&self) -> Vec<Value> {
        let object = |row: &Vec<Value>| {
            let named = self.columns.iter().cloned().zip(row.iter().cloned());
            Value::Object(named.collect::<Map<_, _>>())
        };
        self.rows.iter().map(object).collect()
    }

    /// The answer in a format.
    pub fn print(&self, format: Format) -> String {
        let cells: Vec<Vec<String>> = (self.rows.iter())
            .map(|row| row.iter().map(cell).collect())
            .collect();
        match format {
            Format::Json => format!("{:#}\n", Value::Array(self.objects())),
            Format::JsonLines => {
                let lines = self
                    .objects()
                    .into_iter()
                    .map(|object| format!("{object}\n"));
                lines.collect()
            }
            Format::Csv => csv(&self.columns, &cells),
            Format::Markdown => {
                let line = |cells: &[String]| {
                    let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
                    format!("| {} |\n", cells.join(" | "))
                };
                let rule: Vec<&str> = (0..self.columns.len()).map(|at| self.rule(at)).collect();
                let rows: String = cells.iter().map(|row| line(row)).collect();
                format!("{}| {} |\n{rows}", line(&self.columns), rule.join(" | "))
            }
            Format::Text => {
                let width = |at: usize| {
                    let of = |cell: &String| cell.chars().count();
                    let widest = cells.iter().map(|row| of(&row[at])).max().unwrap_or(0);
                    widest.max(of(&self.columns[at]))
                };
                let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
                let line = |cells: &[String]| {
                    let set = cells.iter().enumerate().map(|(at, cell)| {
                        let width = widths[at];
                        if self.is_number(at) {
                            format!("{cell:>width$}")
                        } else {
                            format!("{cell:<width$}")
                        }
                    });
                    let line = set.collect::<Vec<_>>().join("  ");
                    format!("{}\n", line.trim_end())
                };
                let rows: String = cells.iter().map(|row| line(row)).collect();
                format!("{}{rows}", line(&self.columns))
            }
        }
    }

    fn is_number(&self, at: usize) -> bool {
        let values = || self.rows.iter().map(|row| &row[at]);
        values().any(Value::is_number) && values().all(|v| v.is_number() || v.is_null())
    }

    fn rule(&self, at: usize) -> &'static str {
        if self.is_number(at) { "---:" } else { "---" }
    }
}

fn cell(value: &Value) -> String {
    if value.is_null() {
        return String::new();
    }
    (value.as_str()).map_or_else(|| value.to_string(), str::to_owned)
}

/// A bar or a line break would end a Markdown cell.
fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|").replace(['\n', '\r'], " ")
}

fn csv(columns: &[String], rows: &[Vec<String>]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    // Memory takes everything, and every row has as many cells as there are columns.
    let written = std::iter::once(columns)
        .chain(rows.iter().map(Vec::as_slice))
        .try_for_each(|row| writer.write_record(row));
    debug_assert!(written.is_ok(), "{written:?}");
    String::from_utf8_lossy(&writer.into_inner().unwrap_or_default()).into_owned()
}
