//! The verdict of a comparison and the reason for it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Estimate, Interval, StatsError, percent};

/// Fewer complete blocks than this never give a verdict but INCONCLUSIVE: below
/// it no signed-rank interval reaches 95 %.
pub const MIN_BLOCKS: usize = 6;

/// What a comparison says about the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The two-sided interval lies wholly below minus the margin.
    Faster,
    /// The two-sided interval lies wholly above the margin.
    Slower,
    /// The interval of two one-sided tests lies inside the margin.
    Equivalent,
    /// Anything else, or a control that shows the method off.
    Inconclusive,
    /// Too much of what was measured broke a validity gate.
    Invalid,
}

impl Verdict {
    /// The verdict in a word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Faster => "FASTER",
            Self::Slower => "SLOWER",
            Self::Equivalent => "EQUIVALENT",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::Invalid => "INVALID",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A verdict with everything that it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// Why, in a sentence without its full stop.
    pub reason: String,
    /// Whether the A/A control spoke against the measurement.
    pub control_off: bool,
    /// B against A; absent without a complete block.
    pub effect: Option<Estimate>,
    /// The A/A control; absent without a complete block.
    pub control: Option<Estimate>,
    /// The margin declared before the run, a log ratio.
    pub margin: f64,
}

/// Judges a comparison: `log_ratios` of B against A and `control` of A' against
/// A, one each per complete block, against the margin declared before the run.
///
/// # Errors
/// A margin that is not above 0 and below 1, values that are not finite, or not
/// one control for each block.
pub fn judge(log_ratios: &[f64], control: &[f64], margin: f64) -> Result<Judgement, StatsError> {
    if !(margin > 0.0 && margin < 1.0) {
        return Err(StatsError::Range {
            what: "margin",
            found: margin,
        });
    }
    if log_ratios.len() != control.len() {
        return Err(StatsError::Unpaired {
            blocks: log_ratios.len(),
            control: control.len(),
        });
    }
    let effect = Estimate::of(log_ratios)?;
    let control = Estimate::of(control)?;
    let control_problem = control
        .as_ref()
        .and_then(|control| control_problem(control, margin));
    let (verdict, reason) = match (&effect, &control_problem) {
        (_, Some(problem)) => (Verdict::Inconclusive, problem.clone()),
        (Some(effect), None) => decide(effect, margin),
        (None, None) => (
            Verdict::Inconclusive,
            format!("no complete block; a verdict needs at least {MIN_BLOCKS}"),
        ),
    };
    Ok(Judgement {
        verdict,
        reason,
        control_off: control_problem.is_some(),
        effect,
        control,
        margin,
    })
}

/// Identical code must not look different: then the machine, not the change, is
/// what was measured.
pub(super) fn control_problem(control: &Estimate, margin: f64) -> Option<String> {
    let interval = control.ci?;
    let shifted = interval.excludes_zero() && control.centre.abs() > 0.5 * margin;
    (interval.beyond(margin) || shifted).then(|| {
        format!(
            "the A/A control reads {} although both are the same code, so this run cannot tell the arms apart",
            range(control.centre, &interval)
        )
    })
}

pub(super) fn decide(effect: &Estimate, margin: f64) -> (Verdict, String) {
    let shown = format!("\u{b1}{:.2} %", 100.0 * margin);
    let (Some(ci), Some(tost)) = (effect.ci, effect.tost) else {
        return (
            Verdict::Inconclusive,
            format!(
                "{} complete block{}; a verdict needs at least {MIN_BLOCKS}",
                effect.count,
                if effect.count == 1 { "" } else { "s" }
            ),
        );
    };
    if ci.beyond(margin) {
        let verdict = if ci.hi < 0.0 {
            Verdict::Faster
        } else {
            Verdict::Slower
        };
        return (
            verdict,
            format!(
                "the {} % interval lies wholly beyond the margin of {shown}",
                ci.named_level()
            ),
        );
    }
    if tost.inside(margin) {
        return (
            Verdict::Equivalent,
            format!(
                "the {} % interval lies inside the margin of {shown}",
                tost.named_level()
            ),
        );
    }
    (
        Verdict::Inconclusive,
        format!("the interval reaches across the margin of {shown}"),
    )
}

fn range(centre: f64, interval: &Interval) -> String {
    format!(
        "{:+.2} % ({} % interval {:+.2} % to {:+.2} %)",
        percent(centre),
        interval.named_level(),
        percent(interval.lo),
        percent(interval.hi)
    )
}
