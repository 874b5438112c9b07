//! Correctness before time: every arm against the CPU reference, and arm against arm.

use super::{Request, element::Turns};
use crate::{
    check,
    engine::{Arm, Engine},
    interrupt,
    progress::phase,
};
use anyhow::Result;
use indicatif::ProgressBar;
use kernels::flag::Metric;
use results::{
    journal::JournalWriter,
    record::{self, Line},
};

/// Decode steps of the correctness gate, after the prompt's own logits.
///
/// With those, 21 tokens: one near tie among them is within the share that may
/// be excused.
pub(super) const GATE_STEPS: usize = 20;

/// Compares every arm's logits and greedy tokens with the reference, and the arms with
/// each other; false where a check failed.
pub(super) fn gate(
    engine: &Engine<'_>,
    request: &Request<'_>,
    arms: &[Arm],
    bar: &ProgressBar,
    journal: &mut JournalWriter,
) -> Result<bool> {
    let prompt = &request.prompt.ids;
    phase(bar, "the CPU reference");
    let weights = engine.weights;
    let settings = |arm: usize| &request.arms[arm].settings;
    let mut expectations = vec![check::Expectation::new(
        weights,
        prompt,
        GATE_STEPS,
        settings(0),
    )?];
    // Every arm is fed the same tokens.
    for arm in 1..arms.len() {
        if !expectations.iter().any(|e| e.serves(settings(arm)))
            && let Some(other) = expectations[0].with(weights, settings(arm))?
        {
            expectations.push(other);
        }
    }
    let expected = |arm: usize| {
        let mut serving = expectations.iter().filter(|e| e.serves(settings(arm)));
        serving.next().unwrap_or(&expectations[0])
    };
    let mut gates = Vec::new();
    for (arm, kind) in arms.iter().zip(request.kinds().iter().copied()) {
        if interrupt::asked() {
            return Ok(true);
        }
        phase(bar, &format!("checking arm {kind}"));
        // The first prefill warms up and feeds the gate; the second is timed.
        engine.prefill_whole(&arm.prefill, prompt)?;
        let gate = check::greedy(engine, arm, expected(kind.plan()))?;
        gates.push(gate.logits);
        append_checks(journal, kind, gate.checks.clone())?;
        if gate.checks.iter().any(|c| !c.passed) {
            return Ok(false);
        }
    }
    if request.subject.metric == Metric::SecondTurn {
        phase(bar, "checking the second turn");
        for (arm, kind) in arms.iter().zip(request.kinds().iter().copied()) {
            let check = Turns::of(request).check(engine, request, arm)?;
            let passed = check.passed;
            append_checks(journal, kind, vec![check])?;
            if !passed {
                return Ok(false);
            }
        }
    }
    for (arm, &kind) in request.kinds().iter().enumerate().take(arms.len()).skip(1) {
        // Arms with caches of different formats compute different things.
        if settings(0).kv_format() != settings(arm).kv_format() {
            continue;
        }
        let mut apart = Vec::new();
        for (step, (a, b)) in gates[0].iter().zip(&gates[arm]).enumerate() {
            apart.push(check::logits(
                &format!("arm against arm.{step}"),
                b,
                a,
                expected(0).noise[step].max(expected(arm).noise[step]),
                settings(0).elem().min(settings(arm).elem()),
            ));
        }
        let agree = apart.iter().all(|c| c.passed);
        append_checks(journal, kind, apart)?;
        if !agree {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn append_checks(
    journal: &mut JournalWriter,
    arm: record::Arm,
    checks: Vec<check::Check>,
) -> Result<()> {
    for check in checks {
        journal.append(&Line::Check(record::Check { arm, ..check }))?;
    }
    Ok(())
}
