//! How values are written in a report. Every number of digits is explicit.

/// A value that is not there.
pub(crate) const NONE: &str = "\u{2013}";

/// Text inside a table cell: a bar or a line break would end the cell.
pub(crate) fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

/// Text inside backticks, in a table cell or outside.
pub(crate) fn code(text: &str) -> String {
    format!("`{}`", cell(&text.replace('`', "'")))
}

/// Three decimals below 10 ms, two below 100, one above: at least three digits.
pub(crate) fn ms(value: f64) -> String {
    let decimals = match value {
        v if v < 10.0 => 3,
        v if v < 100.0 => 2,
        _ => 1,
    };
    format!("{value:.decimals$}")
}

/// A value that may not be there.
pub(crate) fn or_none<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), show)
}

/// An error magnitude: `1.23e-4`, `0`, or `NaN`.
pub(crate) fn error(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if value.is_finite() {
        format!("{value:.2e}")
    } else {
        value.to_string()
    }
}

/// Bytes in decimal units.
pub(crate) fn bytes(value: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    UNITS.iter().find(|(unit, _)| value >= *unit).map_or_else(
        || format!("{value} B"),
        |(unit, name)| format!("{:.1} {name}", value as f64 / *unit as f64),
    )
}

/// The first 12 digits of a hash.
pub(crate) fn short_hash(hash: &str) -> String {
    hash.chars().take(12).collect()
}

/// One table row.
pub(crate) fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// A table's head; columns from `right` on are numbers, set to the right.
pub(crate) fn head(columns: &[&str], right: usize) -> String {
    let rule: Vec<String> = (0..columns.len())
        .map(|at| if at < right { "---" } else { "---:" }.to_owned())
        .collect();
    let names: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
    row(&names) + &row(&rule)
}
