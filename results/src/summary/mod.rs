//! The answer of an A/B run, drawn from its record alone, so that the command
//! that measured and the report made later cannot disagree.
//!
//! No time without proof: a run whose arms did different work, or that proves
//! nothing, is refused; one that proves the kernels wrong is summarised without
//! its times.

mod refuse;

use std::path::Path;

use serde::Serialize;

use crate::journal::AbRun;
use crate::record::{Arm, ArmPlan, Check, Metric, Mode, Status, Weights};
use crate::stats::{
    Blocks, Contrast, Estimate, Kind, StatsError, Verdict, blocks, blocks_needed, contrasts,
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
    /// Its 95 % interval, percent.
    pub ci_pct: Option<[f64; 2]>,
    /// Minimum detectable effect, percent.
    pub mde_pct: Option<f64>,
    /// Margin declared before the run: 100 times the log ratio, percent.
    pub margin_pct: f64,
    /// Of two flags, the main effect of each and the interaction; else empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contrasts: Vec<ContrastSummary>,
    /// Complete blocks.
    pub blocks: usize,
    /// What the method reads where nothing differs.
    pub control: ControlSummary,
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
}

/// The A/A control of the summary, percent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ControlSummary {
    /// `100 (A'/A - 1)`.
    pub effect_pct: Option<f64>,
    /// Its 95 % interval.
    pub ci_pct: Option<[f64; 2]>,
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
        let blocks = blocks(&run.samples).map_err(stats)?;
        let contrasts = contrasts(&run.run, &blocks.complete).map_err(stats)?;
        Ok(Self {
            blocks,
            contrasts,
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
            control: ControlSummary {
                effect_pct: control.map(|e| percent(e.centre)),
                ci_pct: control.and_then(ci_pct),
            },
            checks: analysis.checks,
            // The interaction, last, takes the most blocks.
            more_time: analysis
                .contrasts
                .last()
                .map_or_else(|| "nothing: the times are withheld".to_owned(), more_time),
            report: report.display().to_string(),
            journal: run.journal.display().to_string(),
            notes: notes(run, &analysis),
        })
    }
}

fn ci_pct(estimate: Estimate) -> Option<[f64; 2]> {
    estimate.ci95.map(|ci| [percent(ci.lo), percent(ci.hi)])
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
    let (decode_ms_per_token, prefill_ms, second_turn_ms) = match run.run.metric {
        Metric::Decode => (element_ms, prefill_ms, None),
        Metric::Prefill => (None, whole(run.run.prompt.tokens), None),
        Metric::SecondTurn => (
            None,
            prefill_ms,
            whole(run.run.second_turn_tokens.unwrap_or(0)),
        ),
    };
    Ok(ArmSummary {
        name: plan.name.clone(),
        dispatches_per_token: plan.dispatches_per_token,
        decode_ms_per_token,
        prefill_ms,
        second_turn_ms,
    })
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
