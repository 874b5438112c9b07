//! The tables of the page.

use std::collections::BTreeSet;
use std::fmt::Write;

use results::journal::AbRun;
use results::record::{ArmPlan, Mode};
use results::summary::{AbSummary, signed_pct};

use crate::text::{NONE, bytes, cell, code, head, ms, or_none, row, short_hash};

/// What each arm ran and how long it took.
pub(super) fn arms(run: &AbRun, summary: &AbSummary) -> String {
    let [plan_a, plan_b] = &run.run.arms;
    let [sum_a, sum_b] = &summary.arms;
    let mut out = head(
        &[
            "",
            &format!("A: {}", code(&plan_a.name)),
            &format!("B: {}", code(&plan_b.name)),
        ],
        1,
    );
    let mut line = |what: &str, a: String, b: String| {
        out.push_str(&row(&[what.to_owned(), a, b]));
    };
    let speed = |ms: Option<f64>| or_none(ms, |ms| format!("{:.2}", 1000.0 / ms));
    line(
        "decode, ms per token (median)",
        or_none(sum_a.decode_ms_per_token, ms),
        or_none(sum_b.decode_ms_per_token, ms),
    );
    line(
        "decode, tokens per second",
        speed(sum_a.decode_ms_per_token),
        speed(sum_b.decode_ms_per_token),
    );
    line(
        &format!("prefill of {} tokens, ms (median)", run.run.prompt.tokens),
        or_none(sum_a.prefill_ms, ms),
        or_none(sum_b.prefill_ms, ms),
    );
    if let Some(tokens) = run.run.second_turn_tokens {
        line(
            &format!("first token of a second turn of {tokens} tokens, ms (median)"),
            or_none(sum_a.second_turn_ms, ms),
            or_none(sum_b.second_turn_ms, ms),
        );
    }
    line(
        "**dispatches per token**",
        plan_a.dispatches_per_token.to_string(),
        plan_b.dispatches_per_token.to_string(),
    );
    for role in keys(plan_a, plan_b, |plan| plan.by_role.keys()) {
        let count = |plan: &ArmPlan| plan.by_role.get(role).copied().unwrap_or(0).to_string();
        line(
            &format!("\u{b7} {}", code(role)),
            count(plan_a),
            count(plan_b),
        );
    }
    for name in keys(plan_a, plan_b, |plan| plan.settings.keys()) {
        let value = |plan: &ArmPlan| or_none(plan.settings.get(name), |v| code(v));
        line(
            &format!("flag {}", code(name)),
            value(plan_a),
            value(plan_b),
        );
    }
    out
}

/// The names that either plan has, in order.
fn keys<'a, I: Iterator<Item = &'a String>>(
    a: &'a ArmPlan,
    b: &'a ArmPlan,
    of: impl Fn(&'a ArmPlan) -> I,
) -> BTreeSet<&'a str> {
    of(a).chain(of(b)).map(String::as_str).collect()
}

/// What the blocks say.
pub(super) fn statistics(summary: &AbSummary) -> String {
    let pct = |value: Option<f64>| or_none(value, |value| signed_pct(value, 2));
    let interval = |ci: Option<[f64; 2]>| {
        or_none(ci, |[lo, hi]| {
            format!("{} to {}", signed_pct(lo, 2), signed_pct(hi, 2))
        })
    };
    let verdict = summary
        .verdict
        .map_or_else(|| "withheld".to_owned(), |v| format!("**{v}**"));
    let lines = [
        ("metric", format!("{} time", summary.metric)),
        ("verdict", format!("{verdict}: {}", cell(&summary.reason))),
        (
            "effect, 100 (B/A \u{2212} 1), Hodges\u{2013}Lehmann",
            pct(summary.effect_pct),
        ),
        ("95 % interval, exact signed-rank", interval(summary.ci_pct)),
        (
            "margin declared before the run",
            format!("\u{b1}{:.2} %", summary.margin_pct),
        ),
        (
            "minimum detectable effect (5 %, power 80 %)",
            or_none(summary.mde_pct, |mde| format!("{mde:.2} %")),
        ),
        ("complete blocks", summary.blocks.to_string()),
        ("A/A control, effect", pct(summary.control.effect_pct)),
        (
            "A/A control, 95 % interval",
            interval(summary.control.ci_pct),
        ),
        ("what more time would resolve", cell(&summary.more_time)),
    ];
    let mut out = head(&["", "value"], 2);
    for (what, value) in lines {
        out.push_str(&row(&[what.to_owned(), value]));
    }
    out
}

/// Where it ran.
pub(super) fn environment(run: &AbRun) -> String {
    let run = &run.run;
    let (model, adapter, env) = (&run.model, &run.adapter, &run.environment);
    let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let listed = |items: &[String]| {
        if items.is_empty() {
            NONE.to_owned()
        } else {
            cell(&items.join(", "))
        }
    };
    let lines = [
        (
            "model",
            format!("{} ({})", cell(&model.name), code(&model.id)),
        ),
        (
            "weights",
            format!("{}, sha256 {}", model.weights, code(&model.weights_sha256)),
        ),
        ("parameters", model.parameters.to_string()),
        (
            "bytes read per token (weights and scales)",
            bytes(model.bytes_per_token),
        ),
        (
            "prompt",
            format!("{}, {} tokens", cell(&run.prompt.name), run.prompt.tokens),
        ),
        ("decoded tokens per element", run.decode_tokens.to_string()),
        ("seed", run.seed.to_string()),
        ("budget", format!("{:.0} s of measuring", run.budget_s)),
        (
            "adapter",
            format!(
                "{} ({}, vendor {})",
                cell(&adapter.name),
                cell(&adapter.device_type),
                cell(&adapter.vendor)
            ),
        ),
        ("backend", cell(&adapter.backend)),
        (
            "driver",
            format!("{} {}", cell(&adapter.driver), cell(&adapter.driver_info)),
        ),
        ("features in force", listed(&adapter.features)),
        ("timestamp queries", yes_no(adapter.timestamp_query)),
        ("shader run-time checks", cell(&env.runtime_checks)),
        ("operating system", cell(&env.os)),
        (
            "processor",
            format!("{}, {} cores", cell(&env.cpu), env.cores),
        ),
        ("memory", bytes(env.memory_bytes)),
        (
            "commit",
            format!(
                "{}{}",
                code(&env.commit),
                if env.dirty {
                    " with uncommitted changes"
                } else {
                    ", clean"
                }
            ),
        ),
        ("toolchain", cell(&env.toolchain)),
        ("started (UTC)", cell(&run.started_utc)),
    ];
    let mut out = head(&["", "value"], 2);
    for (what, value) in lines {
        out.push_str(&row(&[what.to_owned(), value]));
    }
    if !adapter.limits.is_empty() {
        out.push_str("\n<details><summary>Limits in force</summary>\n\n");
        out.push_str(&head(&["limit", "value"], 1));
        for (name, value) in &adapter.limits {
            out.push_str(&row(&[code(name), value.to_string()]));
        }
        out.push_str("\n</details>\n");
    }
    out
}

/// The text that each arm compiled, by hash.
pub(super) fn shaders(run: &AbRun) -> String {
    let [a, b] = &run.run.arms;
    let names = keys(a, b, |plan| plan.shaders.keys());
    let mut out = head(&["variant", "A", "B", ""], 4);
    for name in &names {
        let (in_a, in_b) = (a.shaders.get(*name), b.shaders.get(*name));
        let shown = |hash: Option<&String>| or_none(hash, |hash| code(&short_hash(hash)));
        let differs = if in_a == in_b { "" } else { "differs" };
        out.push_str(&row(&[
            code(name),
            shown(in_a),
            shown(in_b),
            differs.to_owned(),
        ]));
    }
    out.push_str("\n<details><summary>Full SHA-256</summary>\n\n");
    out.push_str(&head(&["arm", "variant", "sha256"], 3));
    for (arm, plan) in [("A", a), ("B", b)] {
        for (name, hash) in &plan.shaders {
            out.push_str(&row(&[arm.to_owned(), code(name), code(hash)]));
        }
    }
    out.push_str("\n</details>\n");
    out
}

/// The commands.
pub(super) fn reproduce(run: &AbRun) -> String {
    let run = &run.run;
    let id = &run.id;
    format!(
        "Measure again, at commit {}:\n\n```text\n{}\n```\n\n`cargo xtask report` makes this page again from `results/data/{id}.jsonl`, byte for byte.\n",
        code(&run.environment.commit),
        run.command.replace("```", "'''")
    )
}

/// What the reader must know before believing it.
pub(super) fn notes(summary: &AbSummary) -> String {
    let scope = match summary.mode {
        Mode::Screening => {
            "screening: one process; not for publication. Blocks of one process share its conditions, so the interval is narrower than that of repeated processes"
        }
    };
    let mut out = format!("- {scope}\n");
    for note in &summary.notes {
        let _ = writeln!(out, "- {}", cell(note));
    }
    out
}
