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
