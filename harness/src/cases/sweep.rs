//! Variants of the table, each of their cases once.

use super::{Bench, of};
use crate::device::Gpu;
use kernels::Variant;
use serde::Serialize;
use std::path::Path;

/// What became of a variant's cases.
#[derive(Clone, Debug, Serialize)]
pub struct VariantCases {
    /// The variant's id.
    pub variant: String,
    /// Cases that ran.
    pub cases: usize,
    /// Those that passed.
    pub passed: usize,
    /// Those that failed.
    pub failed: Vec<Failure>,
    /// Those that failed as is known of the driver, with what it does wrong; they
    /// count as passed.
    pub expected_failures: Vec<Reasoned>,
    /// Those that could not run, and why.
    pub skipped: Vec<Reasoned>,
    /// Why none could run on this adapter.
    pub unrun: Option<String>,
}

/// A case that failed.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// Its id.
    pub case: String,
    /// Why, and the command that runs it again.
    pub why: String,
}

/// Something that was not run, or failed as expected.
#[derive(Clone, Debug, Serialize)]
pub struct Reasoned {
    /// Which.
    pub what: String,
    /// The reason.
    pub reason: String,
}

/// Runs each case of each of `variants` with one seed that follows from `seed`; `done` sees
/// every variant as it ends.
pub fn sweep(
    gpu: &Gpu,
    variants: &[Variant],
    golden: Option<&Path>,
    seed: u64,
    mut done: impl FnMut(&VariantCases),
) -> Vec<VariantCases> {
    let run = variants.iter().map(|&variant| {
        let outcome = cases_of(gpu, variant, golden, seed);
        done(&outcome);
        outcome
    });
    run.collect()
}

fn cases_of(gpu: &Gpu, variant: Variant, golden: Option<&Path>, seed: u64) -> VariantCases {
    let mut outcome = VariantCases {
        variant: variant.id(),
        cases: 0,
        passed: 0,
        failed: vec![],
        expected_failures: vec![],
        skipped: vec![],
        unrun: variant.check(&gpu.features, 0).err(),
    };
    if outcome.unrun.is_some() {
        return outcome;
    }
    for case in of(variant) {
        if let Some(file) = case.golden_file().filter(|_| !case.can_run(golden)) {
            outcome.skipped.push(Reasoned {
                what: case.id(),
                reason: format!("no golden data {file}; set ZEROTVM_GOLDEN"),
            });
            continue;
        }
        for seed in case.seeds(seed, 1) {
            outcome.cases += 1;
            let mut bench = Bench::new(gpu, golden.map(Path::to_owned));
            match case.run(&mut bench, seed) {
                Ok(expected) => {
                    outcome.passed += 1;
                    outcome
                        .expected_failures
                        .extend(expected.map(|row| Reasoned {
                            what: case.id(),
                            reason: row.reason.to_owned(),
                        }));
                }
                Err(error) => outcome.failed.push(Failure {
                    case: case.id(),
                    why: format!("{error:#}"),
                }),
            }
        }
    }
    outcome
}
