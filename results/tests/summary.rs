//! The summary: what it says, and what it refuses to say.

mod simulated;

use std::fs;
use std::path::Path;

use results::journal::AbRun;
use results::record::{Arm, Line, Metric, Run};
use results::stats::Verdict;
use results::summary::{AbSummary, SummaryError, signed_pct};
use simulated::{World, check, journal_text, lines, run};

fn loaded(test: &str, run: Run, change: impl FnOnce(&mut Vec<Line>)) -> AbRun {
    let mut lines = lines(run, &World::new(7, -0.035));
    change(&mut lines);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("summary-{test}.jsonl"));
    fs::write(&path, journal_text(&lines)).expect("a journal can be written");
    AbRun::load(&path).expect("it loads")
}

fn summary(run: &AbRun) -> Result<AbSummary, SummaryError> {
    AbSummary::of(run, Path::new("reports/2026-11-30-splitk"))
}

/// What spoils a line of a sound run.
type Change = fn(&mut Line);

fn without_checks(lines: &mut Vec<Line>, arm: Arm) {
    lines.retain(|line| !matches!(line, Line::Check(check) if check.arm == arm));
}

#[test]
fn the_document_has_every_field() {
    let summary = summary(&loaded("whole", run(), |_| {})).expect("a sound run");
    assert_eq!(summary.verdict, Some(Verdict::Faster));
    let json = serde_json::to_value(&summary).expect("JSON");
    for field in [
        "flag",
        "model",
        "adapter",
        "arms",
        "metric",
        "verdict",
        "effect_pct",
        "ci_pct",
        "mde_pct",
        "margin_pct",
        "blocks",
        "mode",
        "control",
        "checks",
        "more_time",
        "report",
        "journal",
        "notes",
        "title",
        "weights",
    ] {
        assert!(
            json.get(field).is_some_and(|v| !v.is_null()),
            "{field} in {json}"
        );
    }
    assert_eq!(json["verdict"], "FASTER");
    assert_eq!(json["model"], "smollm2-135m");
    assert_eq!(json["metric"], "decode");
    assert_eq!(json["report"], "reports/2026-11-30-splitk");
    assert_eq!(json["arms"][0]["dispatches_per_token"], 214);
    assert!(json["arms"][1]["decode_ms_per_token"].is_f64(), "{json}");
    assert!(json["arms"][1]["prefill_ms"].is_f64(), "{json}");
    let effect = summary.effect_pct.expect("an effect");
    assert!((-4.5..-2.5).contains(&effect), "-3.4 % read as {effect}");
}

#[test]
fn no_time_without_proof() {
    for arm in [Arm::A, Arm::B] {
        let unproven = loaded("unproven", run(), |lines| without_checks(lines, arm));
        let refused = summary(&unproven);
        assert!(
            matches!(refused, Err(SummaryError::Unproven { arm: found, .. }) if found == arm),
            "{refused:?}"
        );
    }
}

#[test]
fn a_failed_check_withholds_the_times() {
    let failed = loaded("failed", run(), |lines| {
        lines.insert(1, Line::Check(check(Arm::B, "logits", "int4_matmul", 3.0)));
    });
    let summary = summary(&failed).expect("a failure is worth a summary");
    assert_eq!(summary.verdict, None);
    assert_eq!(summary.effect_pct, None);
    assert_eq!(summary.checks.failed, 1);
    for arm in &summary.arms {
        assert_eq!(arm.decode_ms_per_token, None, "{}", arm.name);
        assert_eq!(arm.prefill_ms, None, "{}", arm.name);
    }
    assert!(summary.title.contains("CHECK FAILED"), "{}", summary.title);
}

#[test]
fn equal_code_is_no_change() {
    let mut same = run();
    same.arms[1] = same.arms[0].clone();
    same.arms[1].name = "splitk=8".to_owned();
    let refused = summary(&loaded("same", same, |_| {}));
    assert!(
        matches!(refused, Err(SummaryError::SameCode { .. })),
        "{refused:?}"
    );
}

#[test]
fn different_work_is_refused() {
    let changes: [(&str, Change); 3] = [
        ("tokens", |line| {
            if let Line::Sample(sample) = line {
                sample.tokens = 15;
            }
        }),
        ("dispatches", |line| {
            if let Line::Sample(sample) = line {
                sample.dispatches += 1;
            }
        }),
        ("prefill", |line| {
            if let Line::Prefill(prefill) = line {
                prefill.tokens = 1;
            }
        }),
    ];
    for (what, change) in changes {
        let refused = summary(&loaded(what, run(), |lines| {
            lines.iter_mut().rev().take(60).for_each(change);
            lines.iter_mut().for_each(|line| {
                if what == "prefill" {
                    change(line);
                }
            });
        }));
        assert!(
            matches!(refused, Err(SummaryError::DifferentWork { .. })),
            "{what}: {refused:?}"
        );
    }
}

#[test]
fn prefill_is_judged_on_its_own_plan() {
    let mut prefill = run();
    prefill.metric = Metric::Prefill;
    prefill.arms[0].prefill_dispatches = Some(300);
    prefill.arms[1].prefill_dispatches = Some(400);
    let run = loaded("prefill", prefill, |lines| {
        for line in lines.iter_mut() {
            if let Line::Sample(sample) = line {
                sample.tokens = 41;
                sample.dispatches = if sample.arm == Arm::B { 400 } else { 300 };
            }
        }
    });
    let summary = summary(&run).expect("a sound run");
    assert!(
        summary.title.ends_with("(screening, prefill)"),
        "{}",
        summary.title
    );
    assert!(summary.arms[0].prefill_ms.is_some(), "{summary:?}");
    assert_eq!(summary.arms[0].decode_ms_per_token, None);
}

#[test]
fn a_second_turn_is_judged_on_its_own_plan() {
    let mut turn = run();
    turn.metric = Metric::SecondTurn;
    turn.second_turn_tokens = Some(99);
    turn.arms[1].by_role = turn.arms[0].by_role.clone();
    turn.arms[1].dispatches_per_token = turn.arms[0].dispatches_per_token;
    turn.arms[1].shaders = turn.arms[0].shaders.clone();
    turn.arms[0].second_turn_dispatches = Some(600);
    turn.arms[1].second_turn_dispatches = Some(300);
    let done = |dispatches_of_b: u64| {
        loaded("second-turn", turn.clone(), move |lines| {
            for line in lines.iter_mut() {
                if let Line::Sample(sample) = line {
                    sample.tokens = 99;
                    let is_b = sample.arm == Arm::B;
                    sample.dispatches = if is_b { dispatches_of_b } else { 600 };
                }
            }
        })
    };
    let found = summary(&done(300)).expect("the same shaders, fewer dispatches");
    assert!(
        found.title.ends_with("(screening, second turn)"),
        "{}",
        found.title
    );
    assert!(found.arms[0].second_turn_ms.is_some(), "{found:?}");
    assert!(found.arms[0].prefill_ms.is_some(), "the first turn's");
    let refused = summary(&done(299));
    assert!(
        matches!(refused, Err(SummaryError::DifferentWork { .. })),
        "{refused:?}"
    );
}

#[test]
fn percentages_have_one_spelling() {
    assert_eq!(signed_pct(-4.26, 1), "\u{2212}4.3 %");
    assert_eq!(signed_pct(2.0, 2), "+2.00 %");
    assert_eq!(signed_pct(-0.001, 2), "0.00 %");
}
