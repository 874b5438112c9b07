//! From timed elements to a verdict. Pure functions; no clock, no files.
//!
//! All effects are natural logarithms of a ratio of times, `ln(B/A)`: below 0
//! is faster, 0.02 is 2 %. [`percent`] turns one into the percentage printed.

mod block;
mod change;
mod contrast;
mod estimate;
mod gates;
mod published;
mod signed_rank;
mod time_needed;
mod verdict;

pub use block::{Block, Blocks, blocks};
pub use change::{LEAST_SEGMENT, change_points};
pub use contrast::{Contrast, Kind, Question, contrasts, questions};
pub use estimate::{Estimate, hodges_lehmann, mean_interval, median, quantile, quartiles};
pub use gates::{Gates, Groups, LAG_LIMIT, Limits, MODES_LIMIT, gates, spearman, two_groups};
pub use published::{
    MOST_VOID, Published, ReplicateBlocks, Rules, benjamini_hochberg, judge_replicates, p_beyond,
};
pub use signed_rank::{Interval, signed_rank_interval, signed_rank_level};
pub use time_needed::{TimeNeeded, blocks_needed};
pub use verdict::{Judgement, MIN_BLOCKS, Verdict, judge};

use crate::record::Spread;

/// Why no number can be given.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StatsError {
    /// A time that no clock can give.
    #[error(
        "block {block}, position {position} (arm {arm}): expected a time above 0 ms per token, found {found}; the timer is broken, no verdict can be given"
    )]
    Time {
        /// Number of the block.
        block: u32,
        /// Place in the block, from 0.
        position: u8,
        /// The arm.
        arm: String,
        /// The value found, milliseconds per token.
        found: f64,
    },
    /// A value that is not a finite number.
    #[error("value {index} of {what}: expected a finite log ratio, found {found}")]
    NotFinite {
        /// What the values are.
        what: &'static str,
        /// Index of the value, from 0.
        index: usize,
        /// The value found.
        found: f64,
    },
    /// A block whose elements do not mirror each other.
    #[error(
        "block {block}: expected each of the arms {arms} once, at positions from 0, and then the same backwards, found {found}"
    )]
    Order {
        /// Number of the block.
        block: u32,
        /// The arms expected.
        arms: String,
        /// The arms found, by position.
        found: String,
    },
    /// An incomplete block that is not the last.
    #[error(
        "block {block}: {found} of {expected} elements, yet later blocks follow; the journal is not of one run"
    )]
    Gap {
        /// Number of the block.
        block: u32,
        /// Elements found.
        found: usize,
        /// Elements of a complete block.
        expected: usize,
    },
    /// A margin or level outside its range.
    #[error("{what}: expected a value between 0 and 1, found {found}")]
    Range {
        /// What the value is.
        what: &'static str,
        /// The value found.
        found: f64,
    },
    /// Nothing to estimate from.
    #[error("expected at least one value, found none")]
    Empty,
    /// Arm and control have different numbers of blocks.
    #[error(
        "expected one control value for each block, found {blocks} blocks and {control} controls"
    )]
    Unpaired {
        /// Values of the comparison.
        blocks: usize,
        /// Values of the control.
        control: usize,
    },
}

/// What control blocks say, log ratios of A' and A, before a margin is declared.
///
/// # Errors
/// No values, or a value is not finite.
pub fn spread(control: &[f64]) -> Result<Spread, StatsError> {
    let sizes: Vec<f64> = control.iter().map(|value| value.abs()).collect();
    Ok(Spread {
        blocks: u32::try_from(sizes.len()).unwrap_or(u32::MAX),
        p95: quantile(&sizes, 0.95)?,
    })
}

/// A log ratio as a percentage, `100 (exp(log_ratio) - 1)`.
pub fn percent(log_ratio: f64) -> f64 {
    100.0 * log_ratio.exp_m1()
}

/// Refuses values that are not finite.
fn finite(what: &'static str, values: &[f64]) -> Result<(), StatsError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(StatsError::NotFinite {
            what,
            index,
            found: values[index],
        }),
        None => Ok(()),
    }
}
