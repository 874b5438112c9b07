//! The answer of an A/B run, drawn from its record alone, so that the command
//! that measured and the report made later cannot disagree.
//!
//! No time without proof: a run whose arms did different work, or that proves
//! nothing, is refused; one that proves the kernels wrong is summarised without
//! its times.

mod published;
mod refuse;

use std::path::Path;

use serde::Serialize;

use crate::journal::AbRun;
use crate::record::{Arm, ArmPlan, Check, Metric, Mode, Quality, Spread, Status, Weights};
use crate::stats::{
    Blocks, Contrast, Estimate, Kind, Published, Rules, StatsError, Verdict, blocks, blocks_needed,
    contrasts, judge_replicates, mean_interval, median, percent, questions,
};

pub use published::{CandidateSummary, PublishedSummary};
use published::{by_replicate, effects_pct, more_replicates, published, valid_blocks};

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
    /// Its interval, percent, at the confidence of the summary's `ci_level_pct`.
    pub ci_pct: Option<[f64; 2]>,
    /// Minimum detectable effect, percent.
    pub mde_pct: Option<f64>,
    /// The effect in each replicate of a published run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicate_effects_pct: Vec<f64>,
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
    /// What the replicates of a published run say of each contrast; their blocks without
    /// the void ones are `blocks`.
    pub published: Vec<Published>,
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
                published: Vec::new(),
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
        let mut published = Vec::new();
        if let Some(publish) = &run.run.publish {
            let valid = valid_blocks(run, publish, &blocks.complete, &mut gates).map_err(stats)?;
            let rules = Rules {
                looks: &publish.looks,
                alpha: publish.alpha,
                margin: run.run.margin,
            };
            for question in questions(&run.run) {
                let replicates = by_replicate(run, &blocks.complete, &valid, &question);
                published.push(judge_replicates(&replicates, &rules).map_err(stats)?);
            }
            // What no verdict rests on is not shown either.
            let replicates = published.iter().map(|found| found.replicates).max();
            let seen = publish.blocks as usize * replicates.unwrap_or(0);
            blocks.complete.truncate(seen);
            blocks.complete.retain(|block| valid.contains(&block.index));
        }
        let mut contrasts = contrasts(&run.run, &blocks.complete).map_err(stats)?;
        for (contrast, found) in contrasts.iter_mut().zip(&published) {
            contrast.judgement = found.judgement.clone();
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

    /// What the replicates say of the contrast that takes the most of them; none where the
    /// run is not published or withheld. Controls, slowed arm and gates are the same for
    /// all.
    pub fn slowest(&self) -> Option<&Published> {
        // An unfinished one before one that is done, of equals the last.
        let order = |found: &&Published| (!found.finished, found.replicates);
        self.published.iter().max_by_key(order)
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
    /// Whether too many of its blocks broke a gate, so that its times mean nothing.
    pub fn is_invalid(&self) -> bool {
        let invalid = Verdict::Invalid;
        self.verdict == Some(invalid)
            || (self.contrasts.iter()).any(|contrast| contrast.verdict == invalid.word())
    }

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
        let more_time = |contrast: &Contrast, found: Option<&Published>| match found {
            Some(found) => more_replicates(found),
            None => blocks_needed(&contrast.judgement, analysis.seconds_per_block()).to_string(),
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
            ci_level_pct: (analysis.contrasts.first().and_then(Contrast::effect))
                .and_then(|effect| effect.ci)
                .map(|ci| 100.0 * ci.level),
            mde_pct: effect.and_then(|e| e.mde).map(percent),
            margin_pct: 100.0 * run.run.margin,
            contrasts: match &analysis.contrasts[..] {
                [_] => Vec::new(),
                contrasts => (contrasts.iter().enumerate())
                    .map(|(at, contrast)| {
                        let found = analysis.published.get(at);
                        ContrastSummary {
                            kind: contrast.kind,
                            of: contrast.of.clone(),
                            verdict: contrast.word(),
                            reason: contrast.judgement.reason.clone(),
                            effect_pct: contrast.effect_pct(),
                            ci_pct: contrast.effect().and_then(ci_pct),
                            mde_pct: contrast.effect().and_then(|e| e.mde).map(percent),
                            replicate_effects_pct: found.map(effects_pct).unwrap_or_default(),
                            more_time: more_time(contrast, found),
                        }
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
            more_time: match analysis.contrasts.last() {
                Some(contrast) => more_time(contrast, analysis.slowest()),
                None => "nothing: the times are withheld".to_owned(),
            },
            report: report.display().to_string(),
            journal: run.journal.display().to_string(),
            notes: notes(run, &analysis),
        })
    }
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
    if let Some(spread) = &run.run.margin_from {
        notes.push(format!(
            "the margin of {:.2} % was declared before the first block: A' and A differed by up \
             to {:.2} % in 95 % of {} blocks before it, and the margin is twice that, {:.0} % at \
             least",
            100.0 * run.run.margin,
            100.0 * spread.p95,
            spread.blocks,
            100.0 * Spread::LEAST
        ));
    }
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
