//! The raw samples as a table for other tools.

use std::io::Write;

use super::{AbRun, JournalError};

/// Writes every timed element as one CSV row, in the order made.
///
/// Columns: `run`, `block`, `position`, `arm`, `tokens`, `dispatches`,
/// `wall_ns`.
///
/// # Errors
/// The destination refuses.
pub fn samples_to_csv(run: &AbRun, to: impl Write) -> Result<(), JournalError> {
    let mut table = csv::Writer::from_writer(to);
    table.write_record([
        "run",
        "block",
        "position",
        "arm",
        "tokens",
        "dispatches",
        "wall_ns",
    ])?;
    for sample in &run.samples {
        table.write_record([
            run.run.id.clone(),
            sample.block.to_string(),
            sample.position.to_string(),
            sample.arm.to_string(),
            sample.tokens.to_string(),
            sample.dispatches.to_string(),
            sample.wall_ns.to_string(),
        ])?;
    }
    table.flush().map_err(csv::Error::from)?;
    Ok(())
}
