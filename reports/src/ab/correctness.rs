//! The correctness table: one row per arm and kernel role, and one per judgement
//! of the whole model.

use std::collections::BTreeMap;
use std::fmt::Write;

use results::record::{Arm, Check};

use crate::text::{cell, code, error, head, row};

/// Checks that share a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group<'a> {
    Role(&'a str),
    WholeModel(&'a str),
}

/// What a stage of the whole model judges: its name before the step, `logits.3`.
fn judgement(stage: &str) -> &str {
    stage.split_once('.').map_or(stage, |(name, _)| name)
}

pub(super) fn table(checks: &[Check]) -> String {
    let mut groups: BTreeMap<(Arm, Group<'_>), Vec<&Check>> = BTreeMap::new();
    for check in checks {
        let group = if check.is_whole_model() {
            Group::WholeModel(judgement(&check.stage))
        } else {
            Group::Role(&check.role)
        };
        groups.entry((check.arm, group)).or_default().push(check);
    }
    let mut out = head(
        &[
            "arm",
            "what",
            "result",
            "worst at",
            "checks",
            "values",
            "worst absolute",
            "worst relative",
            "bound",
            "worst error / bound",
        ],
        4,
    );
    for ((arm, group), checks) in &groups {
        out.push_str(&group_row(*arm, *group, checks));
    }
    notes(&mut out, checks);
    out
}

fn group_row(arm: Arm, group: Group<'_>, checks: &[&Check]) -> String {
    let failed = checks.iter().filter(|check| !check.passed).count();
    // The largest ratio is the row's; a NaN sorts above all numbers.
    let worst = checks
        .iter()
        .max_by(|a, b| a.worst_ratio.total_cmp(&b.worst_ratio));
    let largest = |value: fn(&Check) -> f64| {
        checks
            .iter()
            .map(|check| value(check))
            .max_by(f64::total_cmp)
            .unwrap_or(f64::NAN)
    };
    let elements: u64 = checks.iter().map(|check| check.elements).sum();
    row(&[
        arm.to_string(),
        match group {
            Group::Role(role) => code(role),
            Group::WholeModel(stage) => cell(stage),
        },
        if failed == 0 {
            "passed".to_owned()
        } else {
            format!("**{failed} failed**")
        },
        worst.map_or_else(String::new, |check| code(&check.stage)),
        checks.len().to_string(),
        elements.to_string(),
        error(largest(|check| check.worst_abs)),
        error(largest(|check| check.worst_rel)),
        error(worst.map_or(f64::NAN, |check| check.bound)),
        format!("{:.3}", worst.map_or(f64::NAN, |check| check.worst_ratio)),
    ])
}

fn notes(out: &mut String, checks: &[Check]) {
    let noted: Vec<(&Check, &String)> = checks
        .iter()
        .filter_map(|check| check.note.as_ref().map(|note| (check, note)))
        .collect();
    if noted.is_empty() {
        return;
    }
    out.push('\n');
    for (check, note) in noted {
        let _ = writeln!(
            out,
            "- {}, {}: {}",
            check.arm,
            code(&check.stage),
            cell(note)
        );
    }
}
