//! What a long command says of itself while it works, on standard error.

use indicatif::{ProgressBar, ProgressStyle};

/// Says what is going on: on a terminal in the bar, else as a line.
pub(crate) fn phase(bar: &ProgressBar, what: &str) {
    if bar.is_hidden() {
        eprintln!("{what}");
    }
    bar.set_message(what.to_owned());
    bar.tick();
}

/// A bar without a length, which says only what is going on.
pub(crate) fn spinner() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// Moves a bar to `done`; where it is hidden, every tenth of its length is a line.
pub(crate) fn advance(bar: &ProgressBar, done: u64, what: &str) {
    if bar.is_hidden()
        && let Some(line) = tenth(bar.position(), done, bar.length().unwrap_or(0))
    {
        eprintln!("{line} {what}");
    }
    bar.set_position(done);
}

/// What is done, where a tenth of the total lies between `before` and `done`.
fn tenth(before: u64, done: u64, total: u64) -> Option<String> {
    let tenths = |at: u64| at.saturating_mul(10) / total.max(1);
    (tenths(done) > tenths(before)).then(|| format!("{done} of {total}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenth_is_a_line() {
        let steps: Vec<u64> = (0..=64).map(|at| at * 4).collect();
        let lines = steps
            .windows(2)
            .filter_map(|pair| tenth(pair[0], pair[1], 256));
        let lines: Vec<String> = lines.collect();
        assert_eq!(lines.len(), 10, "{lines:?}");
        assert_eq!(lines[0], "28 of 256", "the first tenth is past");
        assert_eq!(lines[9], "256 of 256", "the end");
        assert_eq!(tenth(0, 8, 0), Some("8 of 0".into()), "no length");
        assert_eq!(
            tenth(0, u64::MAX, u64::MAX),
            Some(format!("{0} of {0}", u64::MAX)),
            "no overflow"
        );
    }
}
