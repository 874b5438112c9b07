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
        check::STEPS,
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
    for (number, (arm, kind)) in arms.iter().zip(request.kinds()).enumerate() {
        if interrupt::asked() {
            return Ok(true);
        }
        phase(bar, &format!("checking arm {kind}"));
        let gate = check::greedy(engine, arm, expected(number))?;
        append_checks(journal, kind, gate.checks.clone())?;
        if gate.checks.iter().any(|c| !c.passed) {
            return Ok(false);
        }
        gates.push(gate);
    }
    if request.subject.metric == Metric::SecondTurn {
        phase(bar, "checking the second turn");
        for (arm, kind) in arms.iter().zip(request.kinds()) {
            let checks = Turns::of(request).check(engine, request, arm)?;
            let passed = checks.iter().all(|check| check.passed);
            append_checks(journal, kind, checks)?;
            if !passed {
                return Ok(false);
            }
        }
    }
    for (arm, kind) in request.kinds().into_iter().enumerate().skip(1) {
        // Arms with caches of different formats compute different things.
        if settings(0).kv_format() != settings(arm).kv_format() {
            continue;
        }
        // What each was compared with: another choice of experts makes other logits.
        let [of_a, of_b] =
            [0, arm].map(|arm| gates[arm].followed.as_ref().unwrap_or(expected(arm)));
        let mut apart = Vec::new();
        for (step, (a, b)) in gates[0].logits.iter().zip(&gates[arm].logits).enumerate() {
            let moved = of_a.logits[step].iter().zip(&of_b.logits[step]);
            let a = a.iter().zip(moved).map(|(x, (a, b))| x + (b - a));
            apart.push(check::logits(
                &format!("arm against arm.{step}"),
                b,
                &a.collect::<Vec<f64>>(),
                of_a.noise[step].max(of_b.noise[step]),
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
