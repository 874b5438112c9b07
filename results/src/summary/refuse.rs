//! The conditions under which no summary may exist.

use std::collections::BTreeSet;

use super::{CheckCounts, SummaryError, counts_weights};
use crate::journal::AbRun;
use crate::record::{Arm, ArmPlan, Metric, Sample};

/// Each arm needs a check that passed; one that failed withholds the times
/// instead, because a wrong result is worth a report.
pub(super) fn unproven(run: &AbRun, checks: CheckCounts) -> Result<(), SummaryError> {
    if checks.failed > 0 {
        return Ok(());
    }
    let proven = |arm: Arm| run.checks.iter().any(|c| c.passed && c.arm == arm);
    let mut arms = run.run.plans().map(|(arm, _)| arm);
    match arms.find(|&arm| !proven(arm)) {
        Some(arm) => Err(SummaryError::Unproven {
            run: run.run.id.clone(),
            arm,
        }),
        None => Ok(()),
    }
}

/// Equal shaders and equal dispatches in two arms are an A/A run.
pub(super) fn same_code(run: &AbRun) -> Result<(), SummaryError> {
    let hashes = |plan: &ArmPlan| plan.shaders.values().cloned().collect::<BTreeSet<_>>();
    let same = |a: &ArmPlan, b: &ArmPlan| {
        hashes(a) == hashes(b)
            && a.by_role == b.by_role
            && a.prefill_dispatches == b.prefill_dispatches
            && a.second_turn_dispatches == b.second_turn_dispatches
            && a.element_dispatches == b.element_dispatches
    };
    let plans: Vec<(Arm, &ArmPlan)> = run.run.plans().collect();
    for (at, (a, plan_a)) in plans.iter().enumerate() {
        if let Some((b, _)) = (plans[at + 1..].iter()).find(|(_, plan)| same(plan_a, plan)) {
            return Err(SummaryError::SameCode {
                run: run.run.id.clone(),
                arms: format!("{a} and {b}"),
                flag: run.run.flag.clone(),
            });
        }
    }
    Ok(())
}

/// Every element must do the planned tokens by the planned dispatches, and every
/// prefill the whole prompt.
pub(super) fn different_work(run: &AbRun) -> Result<(), SummaryError> {
    let problem = run
        .samples
        .iter()
        .find_map(|sample| wrong_element(run, sample))
        .or_else(|| wrong_prefill(run))
        .or_else(|| other_tokens(run))
        .or_else(|| past_the_roof(run));
    match problem {
        Some(what) => Err(SummaryError::DifferentWork {
            run: run.run.id.clone(),
            what,
        }),
        None => Ok(()),
    }
}

fn wrong_element(run: &AbRun, sample: &Sample) -> Option<String> {
    let place = format!(
        "block {}, position {} (arm {})",
        sample.block, sample.position, sample.arm
    );
    let tokens = match run.run.metric {
        Metric::Decode | Metric::Dispatch => run.run.decode_tokens,
        Metric::Prefill => run.run.prompt.tokens,
        Metric::SecondTurn => run.run.second_turn_tokens.unwrap_or(0),
    };
    if sample.tokens != tokens {
        return Some(format!(
            "{place}: expected {tokens} tokens as in every element, found {}",
            sample.tokens
        ));
    }
    let plan = run.run.plan(sample.arm);
    let token_by_token = u64::from(plan.dispatches_per_token) * u64::from(tokens);
    let planned = match run.run.metric {
        Metric::Decode => token_by_token,
        Metric::Dispatch => plan.element_dispatches.unwrap_or(token_by_token),
        Metric::Prefill => plan.prefill_dispatches.unwrap_or(token_by_token),
        Metric::SecondTurn => plan.second_turn_dispatches.unwrap_or(0),
    };
    if sample.dispatches != planned {
        return Some(format!(
            "{place}: expected {planned} dispatches as planned for {tokens} tokens of {}, found {}",
            plan.name, sample.dispatches
        ));
    }
    None
}

/// Every replicate makes the same tokens.
fn other_tokens(run: &AbRun) -> Option<String> {
    let first = &run.replicates.first()?.end.tokens_sha256;
    let other = (run.replicates.iter()).find(|r| r.end.tokens_sha256 != *first)?;
    Some(format!(
        "replicate {} made other tokens than replicate 0",
        other.end.index
    ))
}

/// Nothing reads faster than the adapter; a quarter is left for what was wrong with the
/// measurement of that.
fn past_the_roof(run: &AbRun) -> Option<String> {
    let publish = run.run.publish.as_ref()?;
    if run.run.adapter.is_cpu() {
        return None;
    }
    let roof = 1.25 * publish.roof.read_gb_s;
    let bytes = run.run.model.bytes_per_token as f64;
    let gb_s = |sample: &Sample| bytes * f64::from(sample.tokens) / sample.wall_ns as f64;
    let known = counts_weights(run.run.metric);
    let fast = (run.samples.iter().filter(|_| known)).find(|sample| gb_s(sample) > roof)?;
    Some(format!(
        "block {}, position {} (arm {}): {:.1} GB/s of weights is past what this adapter reads, \
         {:.1} GB/s: work is missing, or the weights lie in its caches",
        fast.block,
        fast.position,
        fast.arm,
        gb_s(fast),
        publish.roof.read_gb_s
    ))
}

fn wrong_prefill(run: &AbRun) -> Option<String> {
    let expected = run.run.prompt.tokens;
    run.prefills
        .iter()
        .find(|prefill| prefill.tokens != expected)
        .map(|prefill| {
            format!(
                "prefill {} of arm {}: expected the whole prompt of {expected} tokens, found {}",
                prefill.index, prefill.arm, prefill.tokens
            )
        })
}
