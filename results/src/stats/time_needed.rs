//! What more time would resolve.

use std::fmt;

use distrs::Normal;

use super::estimate::{POWER, student_t};
use super::{Judgement, MIN_BLOCKS, Verdict};

/// An answer that needs this many times the blocks measured is no answer.
const HOPELESS: usize = 20;

/// What more measuring would do for a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TimeNeeded {
    /// There is a verdict already.
    Resolved {
        /// Minimum detectable effect, percent.
        mde_pct: Option<f64>,
    },
    /// About this much would resolve it, in four runs out of five, if the
    /// effect is what it looks like.
    More {
        /// Blocks to add to those measured.
        blocks: usize,
        /// Their wall time, seconds, where a block's time is known.
        seconds: Option<f64>,
    },
    /// At least this much is needed before there can be a verdict; too few blocks
    /// were measured to say more.
    AtLeast {
        /// Blocks to add to those measured.
        blocks: usize,
        /// Their wall time, seconds, where a block's time is known.
        seconds: Option<f64>,
    },
    /// The effect lies so near the margin that no sensible time decides on which
    /// side it is.
    OnTheMargin {
        /// Blocks that it would take in all.
        blocks: usize,
    },
    /// The control is off; a quieter machine is needed, not more time.
    ControlOff,
}

/// Estimates what would resolve an INCONCLUSIVE verdict. `seconds_per_block` is
/// the wall time of one block, where one was measured.
pub fn blocks_needed(judgement: &Judgement, seconds_per_block: Option<f64>) -> TimeNeeded {
    if judgement.control_off {
        return TimeNeeded::ControlOff;
    }
    if judgement.verdict != Verdict::Inconclusive {
        return TimeNeeded::Resolved {
            mde_pct: judgement.effect.and_then(|e| e.mde).map(super::percent),
        };
    }
    let measured = judgement.effect.map_or(0, |effect| effect.count);
    let total = total_needed(judgement).unwrap_or(MIN_BLOCKS);
    if total > HOPELESS * measured.max(MIN_BLOCKS) {
        return TimeNeeded::OnTheMargin { blocks: total };
    }
    let blocks = total.saturating_sub(measured).max(1);
    let seconds = seconds_per_block.map(|seconds| seconds * blocks as f64);
    if measured < MIN_BLOCKS {
        TimeNeeded::AtLeast { blocks, seconds }
    } else {
        TimeNeeded::More { blocks, seconds }
    }
}

/// Blocks in all, or `None` where the spread is unknown.
fn total_needed(judgement: &Judgement) -> Option<usize> {
    let effect = judgement.effect?;
    let n = effect.count as f64;
    // The width of the interval measures what must shrink, heavy tails included.
    let spread = match effect.ci {
        Some(ci) => 0.5 * (ci.hi - ci.lo) * n.sqrt() / student_t(effect.count, 0.975),
        None => effect.sd?,
    };
    let distance = (effect.centre.abs() - judgement.margin).abs();
    if distance == 0.0 {
        return Some(usize::MAX);
    }
    // Beyond the margin the 95 % interval must clear it; inside, the 90 % one.
    let level = if effect.centre.abs() > judgement.margin {
        0.975
    } else {
        0.95
    };
    let quantiles = Normal::ppf(level, 0.0, 1.0) + Normal::ppf(POWER, 0.0, 1.0);
    let needed = (quantiles * spread / distance).powi(2).ceil();
    // Two blocks more stand for Student's t in place of the normal.
    Some((needed as usize).saturating_add(2).max(MIN_BLOCKS))
}

fn more(blocks: usize, seconds: Option<f64>) -> String {
    let plural = if blocks == 1 { "" } else { "s" };
    let time = seconds.map_or_else(String::new, |s| format!(" ({s:.0} s of measuring)"));
    format!("{blocks} more block{plural}{time}")
}

impl fmt::Display for TimeNeeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolved { mde_pct: Some(mde) } => write!(
                f,
                "nothing more for this verdict; a run of this length finds effects of {mde:.2} % and more"
            ),
            Self::Resolved { mde_pct: None } => f.write_str("nothing more for this verdict"),
            Self::More { blocks, seconds } => {
                write!(f, "about {}", more(*blocks, *seconds))?;
                f.write_str(" would resolve it in four runs out of five")
            }
            Self::AtLeast { blocks, seconds } => {
                write!(f, "a verdict needs at least {}", more(*blocks, *seconds))
            }
            Self::OnTheMargin { blocks } => {
                f.write_str("the effect sits on the margin: ")?;
                if *blocks < 1_000_000 {
                    write!(f, "it would take about {blocks} blocks to say on which side")
                } else {
                    f.write_str("no sensible time says on which side")
                }
            }
            Self::ControlOff => f.write_str(
                "more time would not help while the A/A control is off; quieten the machine and measure again",
            ),
        }
    }
}
