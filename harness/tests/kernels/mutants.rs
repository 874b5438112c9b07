//! The table of mutants, and a handful of them killed; `cargo xtask mutants` runs
//! them all, and so does the slower sweep.

use crate::support;
use harness::{
    cases,
    mutants::{self, Fate, MUTANTS, Status},
};
use kernels::{Variant, models, variants::VARIANTS};
use std::collections::BTreeSet;

/// Equivalent in the sense of the table is an argument; these are not to pile up.
const OTHER_HARDWARE: usize = 3;

#[test]
fn ids_are_unique_and_every_mutant_says_what_it_is() {
    let ids: BTreeSet<&str> = MUTANTS.iter().map(|mutant| mutant.id).collect();
    assert_eq!(ids.len(), MUTANTS.len(), "ids");
    assert!(MUTANTS.len() >= 30, "{} mutants", MUTANTS.len());
    let mut elsewhere = 0;
    for mutant in MUTANTS {
        let id = mutant.id;
        assert!(!mutant.fault.is_empty(), "{id}: a fault");
        assert_ne!(mutant.find, mutant.replace, "{id}: a change");
        assert!(mutant.edits().next().is_some(), "{id}: a variant");
        match mutant.fate {
            Fate::Killed => {}
            Fate::Equivalent(reason) => assert!(!reason.is_empty(), "{id}: a reason"),
            Fate::NeedsOtherHardware(reason) => {
                assert!(!reason.is_empty(), "{id}: a reason");
                elsewhere += mutant.edits().count();
            }
        }
    }
    assert!(
        elsewhere <= OTHER_HARDWARE,
        "{elsewhere} need other hardware"
    );
}

#[test]
fn every_edit_applies_and_every_form_has_mutants() {
    let specs = [
        cases::model(),
        models::find("smollm2-135m").expect("registered"),
    ];
    let mut edited = BTreeSet::new();
    for edit in MUTANTS.iter().flat_map(|mutant| mutant.edits()) {
        edited.insert(edit.variant);
        for spec in &specs {
            edit.apply(spec).unwrap_or_else(|e| panic!("{e:#}"));
        }
    }
    // What the type of activations changes is a prelude, a format its own functions.
    let of = |variant: &Variant| (variant.form, variant.format);
    let edited: BTreeSet<_> = edited.iter().map(of).collect();
    let all: BTreeSet<_> = VARIANTS.iter().map(of).collect();
    let without: Vec<_> = all.difference(&edited).collect();
    assert!(without.is_empty(), "without mutants: {without:?}");
}

#[test]
fn an_edit_without_its_place_is_an_error() {
    let (_, edit) = mutants::select(Some("gamma_plus_one"), None).expect("in the table")[0];
    let nowhere = cases::Edit {
        find: "nowhere",
        ..edit
    };
    let error = nowhere.apply(&cases::model()).expect_err("no place");
    assert!(error.to_string().contains("0 times"), "{error:#}");
    let twice = cases::Edit {
        find: "workgroupBarrier();",
        ..edit
    };
    let error = twice.apply(&cases::model()).expect_err("two places");
    assert!(error.to_string().contains("2 times"), "{error:#}");
    let invalid = cases::Edit {
        replace: "gibberish",
        ..edit
    };
    invalid.apply(&cases::model()).expect_err("naga refuses it");
}

/// One of each kind of kernel; all of them in the slower sweep.
const HANDFUL: [&str; 6] = [
    "nibble_order",
    "gamma_plus_one",
    "page_off_by_one",
    "combine_empty_part",
    "argmax_barrier_in_tree",
    "embedding_f32_product",
];

#[test]
fn mutants_are_killed() {
    let test = "mutants::mutants_are_killed";
    let Some(gpu) = support::adapter(test) else {
        return;
    };
    let mut selected = mutants::select(None, None).expect("all");
    if !support::all() {
        selected.retain(|(mutant, _)| HANDFUL.contains(&mutant.id));
    }
    let golden = support::golden_folder(test, "modules/dense.safetensors");
    let report = mutants::run(&gpu, golden.as_deref(), &selected, |_| {}).expect("edits apply");
    let alive: Vec<_> = report.of(Status::Survived).collect();
    assert!(report.passed(), "{alive:#?}");
    assert_eq!(report.outcomes.len(), selected.len(), "each has an outcome");
    let equivalent = report.of(Status::Equivalent).count();
    assert!(equivalent >= 1, "an equivalent one lives");
}
