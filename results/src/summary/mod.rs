//! The answer of an A/B run, drawn from its record alone, so that the command
//! that measured and the report made later cannot disagree.
//!
//! No time without proof: a run whose arms did different work, or that proves
//! nothing, is refused; one that proves the kernels wrong is summarised without
//! its times.

mod refuse;

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use crate::journal::AbRun;
use crate::record::{Arm, ArmPlan, Check, Metric, Mode, Publish, Quality, Status, Weights};
use crate::roof;
use crate::stats::{
    Block, Blocks, Contrast, Estimate, Interval, Kind, Limits, Published, ReplicateBlocks, Rules,
    StatsError, Verdict, blocks, blocks_needed, contrasts, gates, judge_replicates, mean_interval,
    median, percent,
};

/// Why a run may not be summarised.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SummaryError {
    /// Two arms are the same code.
    #[error(
        "run {run}: the arms {arms} have the same shaders and the same dispatches, so this is an A/A run and no change; choose values of {flag} that differ"
    )]
    SameCode {
        /// The run's id.
        run: String,
        /// The arms.
        arms: String,
        /// The flag under test.
        flag: String,
    },
    /// The arms did different work, or other work than planned.
    #[error("run {run}: {what}; the arms cannot be compared, measure again")]
    DifferentWork {
        /// The run's id.
        run: String,
        /// What was expected and what was found.
        what: String,
    },
    /// An arm was never compared with the reference.
    #[error(
        "run {run}: arm {arm} has no passed check, and no time is given without proof; run the checks"
    )]
    Unproven {
        /// The run's id.
        run: String,
        /// The arm.
        arm: Arm,
    },
    /// The samples give no statistics.
    #[error("run {run}: {cause}")]
    Stats {
        /// The run's id.
        run: String,
        /// What is wrong with them.
        cause: StatsError,
    },
}

/// The document of `ab --json`. Effects are of time: below 0 is faster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AbSummary {
    /// The result in a line: `A/B splitk on SmolLM2 (requantised): FASTER by 3.1 % (screening)`.
    pub title: String,
    /// The flag under test, or both as `splitk,fuseqk`.
    pub flag: String,
    /// The model's id.
    pub model: String,
    /// Where the weights come from.
    pub weights: Weights,
    /// The adapter's name.
    pub adapter: String,
    /// How much evidence was gathered.
    pub mode: Mode,
    /// How the run ended.
    pub status: Status,
    /// Arms A and B; of two flags A, B, C and D.
    pub arms: Vec<ArmSummary>,
    /// The quantity that the verdict is about.
    pub metric: Metric,
    /// The verdict; `None` where times are withheld, and of two flags, which have one
    /// for each of `contrasts`.
    pub verdict: Option<Verdict>,
    /// Why this verdict, or why none.
    pub reason: String,
    /// `100 (B/A - 1)` of the metric's time, percent.
    pub effect_pct: Option<f64>,
    /// Its interval, percent.
    pub ci_pct: Option<[f64; 2]>,
    /// Confidence of that interval, percent: 95 where screening.
    pub ci_level_pct: Option<f64>,
    /// Minimum detectable effect, percent.
    pub mde_pct: Option<f64>,
    /// Margin declared before the run: 100 times the log ratio, percent.
    pub margin_pct: f64,
    /// Of two flags, the main effect of each and the interaction; else empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contrasts: Vec<ContrastSummary>,
    /// Complete blocks.
    pub blocks: usize,
    /// Replicates, gates and the slowed arm of a published run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<PublishedSummary>,
    /// What the method reads where nothing differs.
    pub control: ControlSummary,
    /// What the change costs in quality, where the flag is lossy and the model reads text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<QualitySummary>,
    /// Checks by outcome.
    pub checks: CheckCounts,
    /// What more time would resolve.
    pub more_time: String,
    /// The report's folder, as given by the caller.
    pub report: String,
    /// The journal's file, as given to the loader.
    pub journal: String,
    /// Anything that a reader of the result must know.
    pub notes: Vec<String>,
}

/// One effect of an A/B of two flags.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContrastSummary {
    /// What is compared.
    pub kind: Kind,
    /// The flag, or both as `splitk × fuseqk`.
    pub of: String,
    /// The verdict's word; see [`Contrast::word`].
    pub verdict: &'static str,
    /// Why this verdict.
    pub reason: String,
    /// Effect on the metric's time, percent.
    pub effect_pct: Option<f64>,
    /// Its 95 % interval, percent.
    pub ci_pct: Option<[f64; 2]>,
    /// Minimum detectable effect, percent.
    pub mde_pct: Option<f64>,
    /// What more time would resolve.
    pub more_time: String,
}

/// One arm of the summary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArmSummary {
    /// The flag's value in this arm, `splitk=0`.
    pub name: String,
    /// Dispatches of one decoded token.
    pub dispatches_per_token: u32,
    /// Median time of a decoded token, milliseconds.
    pub decode_ms_per_token: Option<f64>,
    /// Median time of a prefill of the prompt, milliseconds.
    pub prefill_ms: Option<f64>,
    /// Median time to the first token of the second turn, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second_turn_ms: Option<f64>,
    /// Median time of the dispatch, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatch_us: Option<f64>,
    /// Weights read in that time, of a decoded token or of the dispatch, GB/s (10^9).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_gb_s: Option<f64>,
    /// Operations with these, where they were counted, GFLOP/s (10^9).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_gflop_s: Option<f64>,
}

/// The A/A control of the summary, percent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ControlSummary {
    /// `100 (A'/A - 1)`.
    pub effect_pct: Option<f64>,
    /// Its 95 % interval.
    pub ci_pct: Option<[f64; 2]>,
}

/// Perplexity of B against A over the same windows of a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QualitySummary {
    /// What the text is.
    pub text: String,
    /// Windows that both arms read.
    pub windows: usize,
    /// Tokens that each predicted.
    pub tokens: u32,
    /// Perplexity of A and of B.
    pub perplexity: [f64; 2],
    /// `100 (B/A - 1)` of the perplexity.
    pub change_pct: f64,
    /// Its 95 % interval over windows; absent for a single one.
    pub change_ci_pct: Option<[f64; 2]>,
}

/// What a published run has beyond a screening one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedSummary {
    /// Replicates that the verdict rests on.
    pub replicates: usize,
    /// Numbers of replicates at which it was to be judged.
    pub looks: Vec<u32>,
    /// Whether there is nothing more to measure: a verdict, or the last look.
    pub finished: bool,
    /// `100 (B/A - 1)` of each replicate.
    pub replicate_effects_pct: Vec<f64>,
    /// `100 (S/A - 1)` of the slowed arm.
    pub slowed_pct: Option<f64>,
    /// Its interval, at the level of the look.
    pub slowed_ci_pct: Option<[f64; 2]>,
    /// Weight bytes that the slowed arm reads more, percent; of one dispatch, dispatches.
    pub slowed_work_pct: f64,
    /// The effect with a tenth of the blocks cut off at both ends.
    pub trimmed_pct: Option<f64>,
    /// 95 % signed-rank interval of all blocks as if they were independent: narrower in
    /// scope than the verdict's.
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

/// Checks by outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CheckCounts {
    /// Number that passed.
    pub passed: usize,
    /// Number that failed.
    pub failed: usize,
}

/// What the record shows: the complete blocks and what they say.
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// The run's complete blocks; none where times are withheld.
    pub blocks: Blocks,
    /// What the blocks say: one contrast of one flag, three of two; none where times
    /// are withheld.
    pub contrasts: Vec<Contrast>,
    /// What the replicates of a published run say; their blocks without the void ones
    /// are `blocks`.
    pub published: Option<Published>,
    /// What the validity gates of a published run say, by block or replicate.
    pub gates: Vec<String>,
    /// Why times are withheld, if they are.
    pub withheld: Option<String>,
    /// Checks by outcome.
    pub checks: CheckCounts,
}

impl Analysis {
    /// Analyses a run.
    ///
    /// # Errors
    /// The arms did different work, are the same code, or prove nothing; or the
    /// samples are not of a measurement.
    pub fn of(run: &AbRun) -> Result<Self, SummaryError> {
        let checks = count(&run.checks);
        refuse::unproven(run, checks)?;
        if let Some(reason) = withheld(run, checks) {
            return Ok(Self {
                blocks: Blocks {
                    complete: Vec::new(),
                    dropped: None,
                },
                contrasts: Vec::new(),
                published: None,
                gates: Vec::new(),
                withheld: Some(reason),
                checks,
            });
        }
        refuse::same_code(run)?;
        refuse::different_work(run)?;
        let stats = |cause| SummaryError::Stats {
            run: run.run.id.clone(),
            cause,
        };
        let mut blocks = blocks(&run.samples, run.run.timed()).map_err(stats)?;
        let mut gates = Vec::new();
        let mut published = None;
        if let Some(publish) = &run.run.publish {
            let valid = valid_blocks(run, publish, &blocks.complete, &mut gates).map_err(stats)?;
            let replicates = by_replicate(run, &blocks.complete, &valid);
            let rules = Rules {
                looks: &publish.looks,
                alpha: publish.alpha,
                margin: run.run.margin,
            };
            let found = judge_replicates(&replicates, &rules).map_err(stats)?;
            // What the verdict does not rest on is not shown either.
            let seen = publish.blocks as usize * found.replicates;
            blocks.complete.truncate(seen);
            blocks.complete.retain(|block| valid.contains(&block.index));
            published = Some(found);
        }
        let mut contrasts = contrasts(&run.run, &blocks.complete).map_err(stats)?;
        if let (Some(found), [change]) = (&published, &mut contrasts[..]) {
            change.judgement = found.judgement.clone();
        }
        Ok(Self {
            blocks,
            contrasts,
            published,
            gates,
            withheld: None,
            checks,
        })
    }

    /// Mean wall time of a complete block, seconds.
    pub fn seconds_per_block(&self) -> Option<f64> {
        let count = self.blocks.complete.len();
        let total: f64 = self.blocks.complete.iter().map(|b| b.seconds).sum();
        (count > 0).then(|| total / count as f64)
    }

    /// Times of an arm's elements in complete blocks, milliseconds per token of
    /// the run's metric, in the order timed.
    pub fn ms_per_token(&self, arm: Arm) -> Vec<f64> {
        self.blocks
            .complete
            .iter()
            .flat_map(|block| block.times.get(&arm).into_iter().flatten())
            .copied()
            .collect()
    }
}

impl AbSummary {
    /// Summarises a run. `report` is the folder of its report, as it is to be
    /// printed.
    ///
    /// # Errors
    /// As [`Analysis::of`].
    pub fn of(run: &AbRun, report: &Path) -> Result<Self, SummaryError> {
        let analysis = Analysis::of(run)?;
        // Two flags have three answers, and none of them is the run's.
        let judgement = match &analysis.contrasts[..] {
            [change] => Some(&change.judgement),
            _ => None,
        };
        let effect = judgement.and_then(|j| j.effect);
        let control = (analysis.contrasts.first()).and_then(|c| c.judgement.control);
        let more_time = |contrast: &Contrast| {
            blocks_needed(&contrast.judgement, analysis.seconds_per_block()).to_string()
        };
        let stats = |cause| SummaryError::Stats {
            run: run.run.id.clone(),
            cause,
        };
        let arms = run.run.plans();
        Ok(Self {
            title: title(run, &analysis),
            flag: run.run.flag.clone(),
            model: run.run.model.id.clone(),
            weights: run.run.model.weights,
            adapter: run.run.adapter.name.clone(),
            mode: run.run.mode,
            status: run.status(),
            arms: arms
                .map(|(kind, plan)| arm(run, &analysis, kind, plan).map_err(stats))
                .collect::<Result<_, _>>()?,
            metric: run.run.metric,
            verdict: judgement.map(|j| j.verdict),
            reason: match (judgement, &analysis.withheld) {
                (Some(judgement), _) => judgement.reason.clone(),
                (None, Some(reason)) => reason.clone(),
                (None, None) => "each effect of two flags has its own verdict".to_owned(),
            },
            effect_pct: effect.map(|e| percent(e.centre)),
            ci_pct: effect.and_then(ci_pct),
            ci_level_pct: effect.and_then(|e| e.ci).map(|ci| 100.0 * ci.level),
            mde_pct: effect.and_then(|e| e.mde).map(percent),
            margin_pct: 100.0 * run.run.margin,
            contrasts: match &analysis.contrasts[..] {
                [_] => Vec::new(),
                contrasts => contrasts
                    .iter()
                    .map(|contrast| ContrastSummary {
                        kind: contrast.kind,
                        of: contrast.of.clone(),
                        verdict: contrast.word(),
                        reason: contrast.judgement.reason.clone(),
                        effect_pct: contrast.effect_pct(),
                        ci_pct: contrast.effect().and_then(ci_pct),
                        mde_pct: contrast.effect().and_then(|e| e.mde).map(percent),
                        more_time: more_time(contrast),
                    })
                    .collect(),
            },
            blocks: analysis.blocks.complete.len(),
            published: published(run, &analysis).map_err(stats)?,
            quality: quality(run).map_err(stats)?,
            control: ControlSummary {
                effect_pct: control.map(|e| percent(e.centre)),
                ci_pct: control.and_then(ci_pct),
            },
            checks: analysis.checks,
            // The interaction, last, takes the most blocks.
            more_time: match (&analysis.published, analysis.contrasts.last()) {
                (Some(published), _) => more_replicates(published),
                (None, Some(contrast)) => more_time(contrast),
                (None, None) => "nothing: the times are withheld".to_owned(),
            },
            report: report.display().to_string(),
            journal: run.journal.display().to_string(),
            notes: notes(run, &analysis),
        })
    }
}

/// Numbers of the blocks that count; the reasons of the others go to `reasons`.
fn valid_blocks(
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

fn by_replicate(run: &AbRun, blocks: &[Block], valid: &BTreeSet<u32>) -> Vec<ReplicateBlocks> {
    let mut replicates = vec![ReplicateBlocks::default(); run.replicates.len()];
    for block in blocks {
        let at = run.replicate_of(block.index);
        let Some(replicate) = at.and_then(|at| replicates.get_mut(at)) else {
            continue;
        };
        if valid.contains(&block.index) {
            replicate.effect.push(block.log_ratio());
            replicate.control.push(block.control_log_ratio());
            replicate.slowed.push(block.slowed_log_ratio());
        } else {
            replicate.void += 1;
        }
    }
    replicates
}

fn published(run: &AbRun, analysis: &Analysis) -> Result<Option<PublishedSummary>, StatsError> {
    let (Some(publish), Some(found)) = (&run.run.publish, &analysis.published) else {
        return Ok(None);
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
        replicate_effects_pct: found.centres.iter().copied().map(percent).collect(),
        slowed_pct: found.slowed.map(|e| percent(e.centre)),
        slowed_ci_pct: found.slowed.and_then(|e| e.ci).map(interval),
        slowed_work_pct: 100.0 * publish.slowed_share,
        trimmed_pct: found.trimmed.map(percent),
        within_ci_pct: found.within.map(interval),
        void_blocks: found.void[0],
        gates: (analysis.gates.iter().cloned())
            .chain(far_below.map(|reason| format!("A reads {reason}")))
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

/// B against A over the windows that both read.
fn quality(run: &AbRun) -> Result<Option<QualitySummary>, StatsError> {
    let of = |arm: Arm| run.quality.iter().filter(move |quality| quality.arm == arm);
    let mut pairs = Vec::new();
    for a in of(Arm::A) {
        if let Some(b) = of(Arm::B).find(|b| (b.window, b.tokens) == (a.window, a.tokens)) {
            pairs.push((a, b));
        }
    }
    let Some((first, _)) = pairs.first() else {
        return Ok(None);
    };
    let tokens: u32 = pairs.iter().map(|(a, _)| a.tokens).sum();
    let weighted = |nll: f64, of: &Quality| nll * f64::from(of.tokens) / f64::from(tokens);
    let nll_a: f64 = pairs.iter().map(|(a, _)| weighted(a.nll, a)).sum();
    let nll_b: f64 = pairs.iter().map(|(_, b)| weighted(b.nll, b)).sum();
    let differences: Vec<f64> = pairs.iter().map(|(a, b)| b.nll - a.nll).collect();
    Ok(Some(QualitySummary {
        text: first.text.clone(),
        windows: pairs.len(),
        tokens,
        perplexity: [nll_a.exp(), nll_b.exp()],
        change_pct: percent(nll_b - nll_a),
        change_ci_pct: mean_interval(&differences, 0.95)?
            .map(|ci| [percent(ci.lo), percent(ci.hi)]),
    }))
}

fn more_replicates(published: &Published) -> String {
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

fn ci_pct(estimate: Estimate) -> Option<[f64; 2]> {
    estimate.ci.map(|ci| [percent(ci.lo), percent(ci.hi)])
}

fn count(checks: &[Check]) -> CheckCounts {
    let passed = checks.iter().filter(|check| check.passed).count();
    CheckCounts {
        passed,
        failed: checks.len() - passed,
    }
}

fn withheld(run: &AbRun, checks: CheckCounts) -> Option<String> {
    if checks.failed > 0 {
        return Some(format!(
            "{} of {} checks failed, and no time is given for a wrong result",
            checks.failed,
            checks.passed + checks.failed
        ));
    }
    if run.run.publish.is_some() && run.run.environment.power.as_deref() == Some("battery") {
        return Some("the machine ran on its battery, where clocks follow the charge".to_owned());
    }
    (run.status() == Status::Void).then(|| {
        format!(
            "the run is void: {}",
            run.status_reason().unwrap_or("no reason was recorded")
        )
    })
}

fn title(run: &AbRun, analysis: &Analysis) -> String {
    let verdict = match &analysis.contrasts[..] {
        [] if analysis.checks.failed > 0 => "CHECK FAILED, times withheld".to_owned(),
        [] => "VOID, times withheld".to_owned(),
        [change] => sized(change),
        several => {
            let named: Vec<String> = several
                .iter()
                .map(|contrast| format!("{} {}", contrast.of, sized(contrast)))
                .collect();
            named.join(", ")
        }
    };
    let mut scope = vec![run.run.mode.to_string()];
    match run.run.metric {
        Metric::Decode => {}
        Metric::Prefill | Metric::SecondTurn => scope.push(run.run.metric.to_string()),
        Metric::Dispatch => scope.push(format!("one dispatch, {}", run.run.prompt.name)),
    }
    if run.status() == Status::Interrupted {
        scope.push("interrupted".to_owned());
    }
    format!(
        "A/B {} on {}: {verdict} ({})",
        run.run.flag,
        run.run.model.honest_title(),
        scope.join(", ")
    )
}

/// A verdict with the size of the effect.
fn sized(contrast: &Contrast) -> String {
    let word = contrast.word();
    let Some(size) = contrast.effect_pct() else {
        return word.to_owned();
    };
    match (contrast.kind, contrast.judgement.verdict) {
        (_, Verdict::Inconclusive) => word.to_owned(),
        (_, Verdict::Invalid) => word.to_owned(),
        (Kind::Change | Kind::MainEffect, Verdict::Faster | Verdict::Slower) => {
            format!("{word} by {:.1} %", size.abs())
        }
        (Kind::Interaction, Verdict::Faster | Verdict::Slower) | (_, Verdict::Equivalent) => {
            format!("{word} ({})", signed_pct(size, 1))
        }
    }
}

/// A percentage with its sign, a true minus, and `decimals` digits: `−3.12 %`.
/// A value that rounds to zero has no sign.
pub fn signed_pct(value: f64, decimals: usize) -> String {
    let digits = format!("{:.decimals$}", value.abs());
    let is_zero = digits.chars().all(|c| matches!(c, '0' | '.'));
    let sign = match (is_zero, value < 0.0) {
        (true, _) => "",
        (false, true) => "\u{2212}",
        (false, false) => "+",
    };
    format!("{sign}{digits} %")
}

fn arm(
    run: &AbRun,
    analysis: &Analysis,
    arm: Arm,
    plan: &ArmPlan,
) -> Result<ArmSummary, StatsError> {
    let element_ms = middle(&analysis.ms_per_token(arm))?;
    let prefill_ms = middle(&prefill_ms(run, analysis, arm))?;
    let whole = |tokens: u32| element_ms.map(|ms| ms * f64::from(tokens));
    let dispatch_us = match run.run.metric {
        Metric::Dispatch => element_ms.map(|ms| 1e3 * ms),
        Metric::Decode | Metric::Prefill | Metric::SecondTurn => None,
    };
    let (decode_ms_per_token, prefill_ms, second_turn_ms) = match run.run.metric {
        Metric::Decode => (element_ms, prefill_ms, None),
        Metric::Dispatch => (None, None, None),
        Metric::Prefill => (None, whole(run.run.prompt.tokens), None),
        Metric::SecondTurn => (
            None,
            prefill_ms,
            whole(run.run.second_turn_tokens.unwrap_or(0)),
        ),
    };
    let model = &run.run.model;
    let per_second = |count: u64| Some(count as f64 / (element_ms? * 1e6)).filter(|&n| n > 0.0);
    let of_weights = counts_weights(run.run.metric) && arm != Arm::Slowed;
    Ok(ArmSummary {
        weight_gb_s: per_second(model.bytes_per_token).filter(|_| of_weights),
        weight_gflop_s: (model.flops_per_token.and_then(per_second)).filter(|_| of_weights),
        name: plan.name.clone(),
        dispatches_per_token: plan.dispatches_per_token,
        decode_ms_per_token,
        prefill_ms,
        second_turn_ms,
        dispatch_us,
    })
}

/// Whether the record's bytes and operations with weights are those of what is timed: of a
/// decoded token or a dispatch.
const fn counts_weights(metric: Metric) -> bool {
    matches!(metric, Metric::Decode | Metric::Dispatch)
}

fn prefill_ms(run: &AbRun, analysis: &Analysis, arm: Arm) -> Vec<f64> {
    if analysis.withheld.is_some() {
        return Vec::new();
    }
    run.prefills
        .iter()
        .filter(|prefill| prefill.arm == arm)
        .map(|prefill| prefill.wall_ns as f64 * 1e-6)
        .collect()
}

/// The median, or `None` without values.
fn middle(values: &[f64]) -> Result<Option<f64>, StatsError> {
    if values.is_empty() {
        return Ok(None);
    }
    median(values).map(Some)
}

fn notes(run: &AbRun, analysis: &Analysis) -> Vec<String> {
    let mut notes = run.run.notes.clone();
    if !run.run.excluded.is_empty() {
        notes.push(format!(
            "off in both arms, because {} excludes them: {}",
            run.run.flag,
            run.run.excluded.join(", ")
        ));
    }
    if run.status() == Status::Interrupted {
        notes.push(format!(
            "interrupted: {}",
            run.status_reason().unwrap_or("no reason was recorded")
        ));
    }
    notes.extend(run.notes.iter().cloned());
    notes.extend(analysis.blocks.dropped.iter().cloned());
    notes
}
