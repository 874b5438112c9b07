//! `check --case` and `mutants`: single kernels on their named cases.

use super::answer;
use crate::{
    cases::{self, Bench},
    device::Gpu,
    env,
    mutants::{self, MUTANTS, Outcome, Status},
};
use ::kernels::Variant;
use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use std::{
    io::{self, Write as _},
    path::PathBuf,
};

#[derive(Debug, Args)]
pub(super) struct MutantsArgs {
    /// One mutant alone, in every variant that has it
    #[arg(long, value_name = "ID")]
    mutant: Option<String>,
    /// One variant alone
    #[arg(long, value_name = "VARIANT")]
    variant: Option<String>,
    /// Adapter whose name contains this
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

/// The folder of golden data: the named one, or the checkout's.
pub(super) fn golden_folder() -> Option<PathBuf> {
    reference::golden::dir(env::golden_dir().as_deref()).ok()
}

pub(super) fn run_case(id: &str, seed: u64, adapter: Option<&str>, json: bool) -> Result<u8> {
    let case = cases::find(id)?;
    let golden = golden_folder();
    if let Some(file) = case
        .golden_file()
        .filter(|_| !case.can_run(golden.as_deref()))
    {
        bail!("{id} needs the golden data {file}; set ZEROTVM_GOLDEN");
    }
    let gpu = Gpu::open(adapter)?;
    let result = case.run(&mut Bench::new(&gpu, golden), seed);
    let (expected, error) = match result {
        Ok(expected) => (expected, None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let document = json!({
        "case": case.id(),
        "seed": seed,
        "adapter": gpu.info.name,
        "passed": error.is_none(),
        "error": error,
        "expected_failure": expected.map(|row| row.reason),
    });
    let text = match (&error, expected) {
        (None, None) => format!("pass {case} --seed {seed}"),
        (None, Some(row)) => format!(
            "fails as expected {case} --seed {seed}: {}; {}",
            row.reason, row.report
        ),
        (Some(error), _) => format!("FAIL {error}"),
    };
    answer(json, &document, &text)?;
    Ok(u8::from(error.is_some()))
}

pub(super) fn run_mutants(args: &MutantsArgs) -> Result<u8> {
    let variant: Option<Variant> = args.variant.as_deref().map(str::parse).transpose()?;
    let selected = mutants::select(args.mutant.as_deref(), variant)?;
    let golden = golden_folder();
    let gpu = Gpu::open(args.adapter.as_deref())?;
    let mut done = 0;
    let report = mutants::run(&gpu, golden.as_deref(), &selected, |outcome| {
        done += 1;
        let lives = outcome.status != Status::Killed;
        if lives || done % 50 == 0 || done == selected.len() {
            let line = format!("{done} of {}: {}", selected.len(), line(outcome));
            // A closed standard error is no reason to stop.
            let _ = writeln!(io::stderr(), "{line}");
        }
    })?;
    let listed = |status| report.of(status).collect::<Vec<_>>();
    let killed = listed(Status::Killed);
    let document = json!({
        "adapter": gpu.info.name,
        "seed": cases::SEED,
        "mutants": report.outcomes.len(),
        "killed": killed.len(),
        "kill_rate_pct": report.kill_rate_pct(),
        "equivalent": listed(Status::Equivalent),
        "needs_other_hardware": listed(Status::NeedsOtherHardware),
        "survived": listed(Status::Survived),
        "not_equivalent": listed(Status::NotEquivalent),
        "broken_cases": report.broken,
        "unrun_cases": report.unrun,
        "kills": killed,
    });
    let mut text = format!(
        "{} of {} faults in {} kernels on {}\n",
        report.outcomes.len(),
        MUTANTS.len(),
        ::kernels::variants::VARIANTS.len(),
        gpu.info.name
    );
    for outcome in report.outcomes.iter() {
        text.push_str(&line(outcome));
        text.push('\n');
    }
    for broken in &report.broken {
        text.push_str(&format!(
            "BROKEN {} --seed {} fails on the unedited text: {}\n",
            broken.case, broken.seed, broken.why
        ));
    }
    for case in &report.unrun {
        text.push_str(&format!("unrun {case}: no golden data\n"));
    }
    text.push_str(&format!(
        "{} mutants: {} killed, {} survived, {} equivalent, {} need other hardware; kill rate \
         {:.1} %",
        report.outcomes.len(),
        killed.len(),
        report.of(Status::Survived).count() + report.of(Status::NotEquivalent).count(),
        report.of(Status::Equivalent).count(),
        report.of(Status::NeedsOtherHardware).count(),
        report.kill_rate_pct()
    ));
    answer(args.json, &document, &text)?;
    Ok(u8::from(!report.passed()))
}

/// One line of text about a mutant.
fn line(outcome: &Outcome) -> String {
    let Outcome {
        mutant,
        variant,
        fault,
        ..
    } = outcome;
    let by = outcome.killed_by.as_ref();
    let by = by.map_or_else(String::new, |by| {
        format!("{} --seed {}: {}", by.case, by.seed, by.why)
    });
    let reason = outcome.reason.unwrap_or_default();
    match outcome.status {
        Status::Killed => format!("killed {mutant} in {variant} by {by}"),
        Status::Survived => format!("SURVIVED {mutant} in {variant}: {fault}"),
        Status::Equivalent => format!("equivalent {mutant} in {variant}: {reason}"),
        Status::NeedsOtherHardware => {
            format!("needs other hardware {mutant} in {variant}: {reason}")
        }
        Status::NotEquivalent => format!("NOT EQUIVALENT {mutant} in {variant}: {by}"),
    }
}
