//! What a published run adds: which blocks count, what its replicates say, and what more of
//! them would resolve.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{Analysis, arm};
use crate::journal::AbRun;
use crate::record::{Arm, Publish};
use crate::roof;
use crate::stats::{
    Block, Interval, Limits, Published, Question, ReplicateBlocks, StatsError, Verdict, gates,
    percent,
};

/// What a published run has beyond a screening one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedSummary {
    /// Replicates that the verdict rests on.
    pub replicates: usize,
    /// Numbers of replicates at which it was to be judged.
    pub looks: Vec<u32>,
    /// Whether there is nothing more to measure: a verdict, or the last look.
    pub finished: bool,
    /// `100 (B/A - 1)` of each replicate; of two flags none, since each effect has its own.
    pub replicate_effects_pct: Vec<f64>,
    /// `100 (S/A - 1)` of the slowed arm.
    pub slowed_pct: Option<f64>,
    /// Its interval, at the level of the look.
    pub slowed_ci_pct: Option<[f64; 2]>,
    /// Weight bytes that the slowed arm reads more, percent; of one dispatch, dispatches.
    pub slowed_work_pct: f64,
    /// The effect with a tenth of the blocks cut off at both ends; likewise.
    pub trimmed_pct: Option<f64>,
    /// 95 % signed-rank interval of all blocks as if they were independent: narrower in
    /// scope than the verdict's; likewise.
    pub within_ci_pct: Option<[f64; 2]>,
    /// Blocks that broke a validity gate.
    pub void_blocks: usize,
    /// Why, by block or replicate.
    pub gates: Vec<String>,
    /// Weight bytes per second of the baseline, as a share of what the adapter reads at
    /// most, percent.
    pub pct_of_roof: Option<f64>,
    /// The adapter's read roof, GB/s.
    pub roof_gb_s: f64,
    /// The values among which B was chosen, as they looked then; the verdict's effect is of
    /// replicates that the choice has not seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chosen_from: Vec<CandidateSummary>,
}

/// One value of several as the choice saw it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidateSummary {
    /// The arm's name, `splitk=4`.
    pub name: String,
    /// The screening run that read it.
    pub run: String,
    /// `100 (B/A - 1)` there.
    pub effect_pct: f64,
}

impl PublishedSummary {
    /// What B read when it was chosen, percent; `None` where it was not.
    pub fn when_chosen_pct(&self) -> Option<f64> {
        let effects = self
            .chosen_from
            .iter()
            .map(|candidate| candidate.effect_pct);
        effects.min_by(f64::total_cmp)
    }
}

/// Numbers of the blocks that count; the reasons of the others go to `reasons`.
pub(super) fn valid_blocks(
    run: &AbRun,
    publish: &Publish,
    blocks: &[Block],
    reasons: &mut Vec<String>,
) -> Result<BTreeSet<u32>, StatsError> {
    let mut valid = BTreeSet::new();
    let limits = Limits {
        sentinel: publish.sentinel_limit,
        margin: run.run.margin,
        modes: publish.modes_limit,
        lag: publish.lag_limit,
    };
    for (index, replicate) in run.replicates.iter().enumerate() {
        let own = |block: &&Block| run.replicate_of(block.index) == Some(index);
        let blocks: Vec<Block> = blocks.iter().filter(own).cloned().collect();
        let sentinels: Vec<(u32, u64)> = (replicate.sentinels.iter())
            .map(|sentinel| (sentinel.block, sentinel.wall_ns))
            .collect();
        let found = gates(&blocks, &sentinels, &limits)?;
        if let Some(reason) = &found.replicate {
            reasons.push(format!("replicate {index} is void: {reason}"));
            continue;
        }
        for (block, reason) in &found.blocks {
            reasons.push(format!("block {block} is void: {reason}"));
        }
        let counts = |block: &&Block| found.blocks.iter().all(|(void, _)| *void != block.index);
        valid.extend(blocks.iter().filter(counts).map(|block| block.index));
        for reason in &found.reported {
            reasons.push(format!("replicate {index}: {reason}; reported, not judged"));
        }
    }
    Ok(valid)
}

pub(super) fn by_replicate(
    run: &AbRun,
    blocks: &[Block],
    valid: &BTreeSet<u32>,
    question: &Question,
) -> Vec<ReplicateBlocks> {
    let mut replicates = vec![ReplicateBlocks::default(); run.replicates.len()];
    for block in blocks {
        let at = run.replicate_of(block.index);
        let Some(replicate) = at.and_then(|at| replicates.get_mut(at)) else {
            continue;
        };
        if valid.contains(&block.index) {
            replicate.effect.push(question.of_block(block));
            replicate.control.push(block.control_log_ratio());
            replicate.slowed.push(block.slowed_log_ratio());
        } else {
            replicate.void += 1;
        }
    }
    replicates
}

pub(super) fn published(
    run: &AbRun,
    analysis: &Analysis,
) -> Result<Option<PublishedSummary>, StatsError> {
    let (Some(publish), Some(found)) = (&run.run.publish, analysis.slowest()) else {
        return Ok(None);
    };
    // Of two flags each effect has its own.
    let change = match &analysis.published[..] {
        [change] => Some(change),
        _ => None,
    };
    let interval = |i: Interval| [percent(i.lo), percent(i.hi)];
    let plan = run.run.plan(Arm::A);
    let gb_s = arm(run, analysis, Arm::A, plan)?.weight_gb_s;
    let gb_s = gb_s.filter(|_| !run.run.adapter.is_cpu());
    let far_below = gb_s.and_then(|gb_s| roof::far_below(gb_s, publish.roof.read_gb_s));
    Ok(Some(PublishedSummary {
        replicates: found.replicates,
        looks: publish.looks.clone(),
        finished: found.finished,
        replicate_effects_pct: change.map(effects_pct).unwrap_or_default(),
        slowed_pct: found.slowed.map(|e| percent(e.centre)),
        slowed_ci_pct: found.slowed.and_then(|e| e.ci).map(interval),
        slowed_work_pct: 100.0 * publish.slowed_share,
        trimmed_pct: change.and_then(|found| found.trimmed).map(percent),
        within_ci_pct: change.and_then(|found| found.within).map(interval),
        void_blocks: found.void[0],
        gates: (analysis.gates.iter().cloned())
            .chain(far_below.map(|reason| format!("arm A: {reason}")))
            .collect(),
        pct_of_roof: gb_s.map(|gb_s| 100.0 * gb_s / publish.roof.read_gb_s),
        roof_gb_s: publish.roof.read_gb_s,
        chosen_from: (publish.chosen_from.iter())
            .map(|candidate| CandidateSummary {
                name: candidate.name.clone(),
                run: candidate.run.clone(),
                effect_pct: percent(candidate.effect),
            })
            .collect(),
    }))
}

pub(super) fn effects_pct(found: &Published) -> Vec<f64> {
    found.centres.iter().copied().map(percent).collect()
}

pub(super) fn more_replicates(published: &Published) -> String {
    match published.next_look {
        _ if published.judgement.verdict == Verdict::Invalid => {
            "more time would not help a void run; quieten the machine and measure again".to_owned()
        }
        _ if published.judgement.control_off && published.finished => {
            "more time would not help while a control is off; quieten the machine and measure again"
                .to_owned()
        }
        Some(look) if !published.finished => format!(
            "{} more replicates to the look at {look}; `--resume` goes on",
            look as usize - published.replicates
        ),
        Some(_) | None => "nothing more: every look was taken or a verdict was reached".to_owned(),
    }
}
