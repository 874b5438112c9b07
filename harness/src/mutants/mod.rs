//! Mutation testing of the kernels: each mutant is a fault, made by an edit of a
//! variant's rendered text at run time, and some case of the variant must fail on
//! it. A kill counts only by a case that the unedited text passes.

mod forms;
mod table;

pub use forms::Forms;
pub use table::MUTANTS;

use crate::{
    cases::{self, Bench, Case, DRAWN, Edit, SEED},
    device::Gpu,
};
use anyhow::{Result, bail};
use kernels::{Elem, QuantFormat, Variant, suggest, variants::VARIANTS};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Cases drawn where a mutant is to live, for a reason that no case proves.
const LIVING_DRAWN: usize = 1;

/// One fault, in every variant that can have it.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name.
    pub id: &'static str,
    /// The forms whose text is edited, one at a time, with activations in f16.
    pub forms: &'static [Forms],
    /// The formats of weights in which they are edited, as far as they are written
    /// for them; a fault of what all formats share is tried in q4f16_1.
    pub formats: &'static [QuantFormat],
    /// The fault that the edit stands for.
    pub fault: &'static str,
    /// What the edit replaces; it stands in the rendered text exactly once.
    pub find: &'static str,
    /// What stands there instead.
    pub replace: &'static str,
    /// What must become of it.
    pub fate: Fate,
}

/// What must become of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A case fails on it.
    Killed,
    /// No case can fail on it, for this reason: the edit changes no result.
    Equivalent(&'static str),
    /// The fault does not show on the software driver, for this reason; where it
    /// does show, it is killed as any other.
    NeedsOtherHardware(&'static str),
}

const fn mutant(
    id: &'static str,
    forms: &'static [Forms],
    fault: &'static str,
    find: &'static str,
    replace: &'static str,
) -> Mutant {
    Mutant {
        id,
        forms,
        formats: &[QuantFormat::Q4f16_1],
        fault,
        find,
        replace,
        fate: Fate::Killed,
    }
}

impl Mutant {
    const fn in_formats(self, formats: &'static [QuantFormat]) -> Self {
        Self { formats, ..self }
    }

    const fn equivalent(self, reason: &'static str) -> Self {
        Self {
            fate: Fate::Equivalent(reason),
            ..self
        }
    }

    const fn needs_other_hardware(self, reason: &'static str) -> Self {
        Self {
            fate: Fate::NeedsOtherHardware(reason),
            ..self
        }
    }

    /// Whether a variant is among those whose text it edits.
    fn edits_variant(&self, variant: &Variant) -> bool {
        let in_format = |format| self.formats.contains(&format);
        variant.elem == Elem::F16
            && variant.format.is_none_or(in_format)
            && self.forms.iter().any(|forms| forms.hold(&variant.form))
    }

    /// Its edits, one for each variant.
    pub fn edits(&self) -> impl Iterator<Item = Edit> {
        let variants = VARIANTS.iter().filter(|v| self.edits_variant(v));
        variants.map(|&variant| Edit {
            variant,
            find: self.find,
            replace: self.replace,
        })
    }
}

/// Mutants to run: those of the table that have this name and are of this
/// variant, where one is given.
///
/// # Errors
/// An unknown name, or a selection of nothing.
pub fn select(id: Option<&str>, variant: Option<Variant>) -> Result<Vec<(&'static Mutant, Edit)>> {
    if let Some(id) = id.filter(|id| MUTANTS.iter().all(|mutant| mutant.id != *id)) {
        let all = "harness/src/mutants/table.rs has all";
        let known = suggest::nearest_known(id, MUTANTS.iter().map(|mutant| mutant.id), all);
        bail!("unknown mutant `{id}`; {known}");
    }
    let named = MUTANTS
        .iter()
        .filter(|mutant| id.is_none_or(|id| id == mutant.id));
    let all = named.flat_map(|mutant| mutant.edits().map(move |edit| (mutant, edit)));
    let selected: Vec<_> = all
        .filter(|(_, edit)| variant.is_none_or(|variant| variant == edit.variant))
        .collect();
    if let ([], Some(id), Some(variant)) = (&selected[..], id, variant) {
        bail!("{id} is no mutant of {variant}");
    }
    if let ([], Some(variant)) = (&selected[..], variant) {
        bail!(
            "{variant} has no mutants: a fault is tried with activations in f16, and one that \
             all formats of weights share in one of them; take {}",
            tried(variant)
        );
    }
    Ok(selected)
}

/// The variant of the same form that most faults are tried in.
fn tried(variant: Variant) -> Variant {
    let base = |v: &&Variant| v.form == variant.form && v.elem == Elem::F16 && v.in_base_format();
    VARIANTS.iter().find(base).copied().unwrap_or(variant)
}

/// What became of a mutant.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The mutant.
    pub mutant: &'static str,
    /// The variant that was edited.
    pub variant: String,
    /// The fault.
    pub fault: &'static str,
    /// What became of it.
    pub status: Status,
    /// Why it is expected to live, where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// What failed on it first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed_by: Option<Failure>,
}

/// What became of a mutant, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// A case failed on it.
    Killed,
    /// No case failed on it, and one should.
    Survived,
    /// No case failed on it, as the table says.
    Equivalent,
    /// No case failed on it here, as the table says.
    NeedsOtherHardware,
    /// A case failed on it, so the table is wrong to call it equivalent.
    NotEquivalent,
}

/// A case that failed.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The case.
    pub case: String,
    /// Its seed.
    pub seed: u64,
    /// What was wrong.
    pub why: String,
}

/// What became of every mutant that was run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order of the table.
    pub outcomes: Vec<Outcome>,
    /// Cases that fail on the unedited text; they kill nothing.
    pub broken: Vec<Failure>,
    /// Cases that could not run: their golden data are not here.
    pub unrun: BTreeSet<String>,
}

impl Report {
    /// The outcomes of a status.
    pub fn of(&self, status: Status) -> impl Iterator<Item = &Outcome> {
        let outcomes = self.outcomes.iter();
        outcomes.filter(move |outcome| outcome.status == status)
    }

    /// Whether every mutant that can be killed here is, by cases that are right.
    pub fn passed(&self) -> bool {
        let wrong = [Status::Survived, Status::NotEquivalent];
        self.broken.is_empty() && wrong.iter().all(|&s| self.of(s).next().is_none())
    }

    /// Killed ones in percent of those that are neither equivalent nor need other
    /// hardware.
    pub fn kill_rate_pct(&self) -> f64 {
        let killed = self.of(Status::Killed).count();
        let living = self.of(Status::Survived).count();
        if living == 0 {
            return 100.0;
        }
        100.0 * killed as f64 / (killed + living) as f64
    }
}

/// Runs mutants until a case fails on each; `progress` hears of each outcome.
///
/// # Errors
/// When an edit cannot be applied, or its text is refused.
pub fn run(
    gpu: &Gpu,
    golden: Option<&Path>,
    selected: &[(&'static Mutant, Edit)],
    mut progress: impl FnMut(&Outcome),
) -> Result<Report> {
    let mut report = Report::default();
    let mut unedited = Unedited {
        bench: Bench::new(gpu, golden.map(Path::to_owned)),
        passes: BTreeMap::new(),
    };
    for &(mutant, edit) in selected {
        edit.apply(&cases::model())?;
        let mut bench = Bench::edited(gpu, golden.map(Path::to_owned), edit);
        let mut killed_by = None;
        let drawn = match mutant.fate {
            Fate::Killed => DRAWN,
            Fate::Equivalent(_) | Fate::NeedsOtherHardware(_) => LIVING_DRAWN,
        };
        'cases: for case in cases::of(edit.variant) {
            if case.expectation(&bench).is_some() {
                continue;
            }
            if !case.can_run(golden) {
                report.unrun.insert(case.id());
                continue;
            }
            for seed in case.seeds(SEED, drawn) {
                if !unedited.passes(case, seed, &mut report.broken) {
                    continue;
                }
                let result = case.judge(&mut bench, seed, 0);
                if let Some(why) = bench.refused() {
                    bail!("mutant {} of {}: {why}", mutant.id, edit.variant);
                }
                if let Err(error) = result {
                    killed_by = Some(failure(case, seed, &error));
                    break 'cases;
                }
            }
        }
        let (status, reason) = match (mutant.fate, &killed_by) {
            (Fate::Killed, None) => (Status::Survived, None),
            (Fate::Killed | Fate::NeedsOtherHardware(_), Some(_)) => (Status::Killed, None),
            (Fate::Equivalent(reason), None) => (Status::Equivalent, Some(reason)),
            (Fate::Equivalent(reason), Some(_)) => (Status::NotEquivalent, Some(reason)),
            (Fate::NeedsOtherHardware(reason), None) => (Status::NeedsOtherHardware, Some(reason)),
        };
        let outcome = Outcome {
            mutant: mutant.id,
            variant: edit.variant.id(),
            fault: mutant.fault,
            status,
            reason,
            killed_by,
        };
        progress(&outcome);
        report.outcomes.push(outcome);
    }
    Ok(report)
}

fn failure(case: Case, seed: u64, error: &anyhow::Error) -> Failure {
    let why = format!("{error:#}");
    Failure {
        case: case.id(),
        seed,
        // The second line is the drawn case, which its seed says too.
        why: why.lines().next().unwrap_or_default().to_owned(),
    }
}

/// Cases on the text as it is rendered, each run once.
struct Unedited<'g> {
    bench: Bench<'g>,
    passes: BTreeMap<(String, u64), bool>,
}

impl Unedited<'_> {
    fn passes(&mut self, case: Case, seed: u64, broken: &mut Vec<Failure>) -> bool {
        let bench = &mut self.bench;
        *self.passes.entry((case.id(), seed)).or_insert_with(|| {
            let result = case.judge(bench, seed, 0);
            if let Err(error) = &result {
                broken.push(failure(case, seed, error));
            }
            result.is_ok()
        })
    }
}
