//! The verdict of a published run: replicates are the unit, and the record is judged
//! at looks declared beforehand.

use super::verdict::{control_problem, decide};
use super::{Estimate, Interval, Judgement, StatsError, Verdict, finite, hodges_lehmann};
use super::{percent, signed_rank_interval};

/// A run of whose blocks more than this share broke a gate is void.
pub const MOST_VOID: f64 = 0.2;

/// The valid blocks of one replicate, log ratios by block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicateBlocks {
    /// B against A.
    pub effect: Vec<f64>,
    /// The A/A control.
    pub control: Vec<f64>,
    /// The slowed arm against A.
    pub slowed: Vec<f64>,
    /// Blocks that broke a gate, which are not among these.
    pub void: usize,
}

/// What a published run is judged by, declared before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules<'a> {
    /// Numbers of replicates at which it is judged, ascending.
    pub looks: &'a [u32],
    /// Two-sided error rate of each look.
    pub alpha: f64,
    /// Half-width of "no difference that matters", a log ratio.
    pub margin: f64,
}

/// What replicates say, with the controls.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// The verdict; its estimates are over replicates.
    pub judgement: Judgement,
    /// Replicates that it rests on.
    pub replicates: usize,
    /// Whether there is nothing more to measure: a verdict, or the last look.
    pub finished: bool,
    /// The replicates of the next look, where there is one.
    pub next_look: Option<u32>,
    /// The slowed arm against A, over replicates.
    pub slowed: Option<Estimate>,
    /// Pseudo-median of each replicate, B against A.
    pub centres: Vec<f64>,
    /// The effect with every replicate's blocks trimmed by a tenth at both ends: how
    /// much outliers matter.
    pub trimmed: Option<f64>,
    /// The 95 % signed-rank interval of all blocks together. Blocks of a replicate
    /// share its conditions, so this is narrower than what it claims.
    pub within: Option<Interval>,
    /// Blocks that broke a gate, and all blocks.
    pub void: [usize; 2],
}

/// Judges replicates at the last look that they reach, or at an earlier one that gave a
/// verdict already: what came after a verdict cannot change it.
///
/// # Errors
/// Rules out of range, or values that are not finite.
pub fn judge_replicates(
    replicates: &[ReplicateBlocks],
    rules: &Rules<'_>,
) -> Result<Published, StatsError> {
    let reached = |look: &&u32| **look as usize <= replicates.len();
    let mut looks = rules.looks.iter().filter(reached).peekable();
    while let Some(&look) = looks.next() {
        let seen = at(&replicates[..look as usize], rules, Some(look))?;
        if seen.judgement.verdict != Verdict::Inconclusive || looks.peek().is_none() {
            return Ok(seen);
        }
    }
    at(replicates, rules, None)
}

/// Judges these replicates; without a look there is no verdict.
fn at(
    replicates: &[ReplicateBlocks],
    rules: &Rules<'_>,
    look: Option<u32>,
) -> Result<Published, StatsError> {
    if !(rules.margin > 0.0 && rules.margin < 1.0) {
        let (what, found) = ("margin", rules.margin);
        return Err(StatsError::Range { what, found });
    }
    let void: usize = replicates.iter().map(|r| r.void).sum();
    let valid: usize = replicates.iter().map(|r| r.effect.len()).sum();
    // A replicate without a valid block has nothing to say.
    let over = |of: fn(&ReplicateBlocks) -> &[f64]| -> Result<Vec<f64>, StatsError> {
        let some = replicates
            .iter()
            .map(of)
            .filter(|values| !values.is_empty());
        some.map(hodges_lehmann).collect()
    };
    let centres = over(|r| &r.effect)?;
    let estimate = |centres: &[f64]| Estimate::of_replicates(centres, rules.alpha);
    let effect = estimate(&centres)?;
    let control = estimate(&over(|r| &r.control)?)?;
    let slowed = estimate(&over(|r| &r.slowed)?)?;
    let next_look = (rules.looks.iter().copied()).find(|&next| next as usize > replicates.len());
    let control_off = control.and_then(|control| control_problem(&control, rules.margin));
    let no_power = slowed.and_then(|slowed| power_problem(&slowed, rules.margin));
    let too_many = void as f64 > MOST_VOID * (void + valid) as f64;
    let (verdict, reason) = if look.is_some() && too_many {
        let share = 100.0 * void as f64 / (void + valid) as f64;
        (
            Verdict::Invalid,
            format!(
                "{void} of {} blocks ({share:.0} %) broke a validity gate, more than {:.0} %",
                void + valid,
                100.0 * MOST_VOID
            ),
        )
    } else if let Some(problem) = &control_off {
        (Verdict::Inconclusive, problem.clone())
    } else if let Some(problem) = &no_power {
        (Verdict::Inconclusive, problem.clone())
    } else {
        match (&effect, look) {
            (Some(effect), Some(_)) => decide(effect, rules.margin),
            (None, Some(_)) => (
                Verdict::Inconclusive,
                "no valid block in any replicate".to_owned(),
            ),
            (_, None) => (
                Verdict::Inconclusive,
                format!(
                    "{} complete replicates; the record is first judged at {}",
                    replicates.len(),
                    rules.looks.first().copied().unwrap_or(0)
                ),
            ),
        }
    };
    let all: Vec<f64> = replicates.iter().flat_map(|r| r.effect.clone()).collect();
    let trimmed: Vec<f64> = (replicates.iter().filter(|r| !r.effect.is_empty()))
        .map(|r| trimmed_mean(&r.effect))
        .collect::<Result<_, _>>()?;
    Ok(Published {
        finished: verdict != Verdict::Inconclusive || (look.is_some() && next_look.is_none()),
        judgement: Judgement {
            verdict,
            reason,
            control_off: control_off.is_some() || no_power.is_some(),
            effect,
            control,
            margin: rules.margin,
        },
        replicates: replicates.len(),
        next_look,
        slowed,
        trimmed: Estimate::of_replicates(&trimmed, rules.alpha)?.map(|e| e.centre),
        within: match all.is_empty() {
            true => None,
            false => signed_rank_interval(&all, 0.95)?,
        },
        centres,
        void: [void, void + valid],
    })
}

/// A slowdown that is known to be there must be found, or the run could not have found
/// one that is not known either.
fn power_problem(slowed: &Estimate, margin: f64) -> Option<String> {
    let found = slowed.ci.is_some_and(|ci| ci.lo > margin);
    (!found).then(|| {
        let read = slowed.ci.map_or_else(
            || format!("{:+.2} %", percent(slowed.centre)),
            |ci| {
                format!(
                    "{:+.2} % ({} % interval {:+.2} % to {:+.2} %)",
                    percent(slowed.centre),
                    ci.named_level(),
                    percent(ci.lo),
                    percent(ci.hi)
                )
            },
        );
        format!(
            "the slowed arm reads {read} and is not found slower than the margin, so this run has \
             no power to tell the arms apart"
        )
    })
}

/// The mean without the lowest and the highest tenth of the values; of fewer than ten
/// without the lowest and the highest where three are there.
fn trimmed_mean(values: &[f64]) -> Result<f64, StatsError> {
    finite("the trimmed mean", values)?;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = match sorted.len() {
        0..3 => 0,
        n => n.div_ceil(10),
    };
    let kept = &sorted[cut..sorted.len() - cut];
    if kept.is_empty() {
        return Err(StatsError::Empty);
    }
    Ok(kept.iter().sum::<f64>() / kept.len() as f64)
}

/// Which of a family of comparisons stand when the share of false ones among them is
/// held at `rate` (Benjamini and Hochberg): given their two-sided p-values, the same
/// order, true where the comparison stands.
///
/// # Errors
/// A p-value or a rate outside 0 to 1.
pub fn benjamini_hochberg(p: &[f64], rate: f64) -> Result<Vec<bool>, StatsError> {
    for &found in p.iter().chain([&rate]) {
        if !(0.0..=1.0).contains(&found) {
            let what = "a p-value or the rate of false discoveries";
            return Err(StatsError::Range { what, found });
        }
    }
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let passes = |(rank, &at): (usize, &usize)| {
        let limit = rate * (rank + 1) as f64 / p.len() as f64;
        (p[at] <= limit).then_some(rank)
    };
    let last = order.iter().enumerate().filter_map(passes).next_back();
    let mut stands = vec![false; p.len()];
    for &at in order.iter().take(last.map_or(0, |last| last + 1)) {
        stands[at] = true;
    }
    Ok(stands)
}

/// The two-sided p-value of an estimate over replicates against no effect beyond
/// `margin` in its own direction; `None` for fewer than two replicates.
pub fn p_beyond(estimate: &Estimate, margin: f64) -> Option<f64> {
    let sd = estimate.sd?;
    let distance = estimate.centre.abs() - margin;
    let t = distance / (sd / (estimate.count as f64).sqrt());
    let below = super::estimate::student_t_cdf(estimate.count, t);
    Some((2.0 * (1.0 - below)).clamp(0.0, 1.0))
}
