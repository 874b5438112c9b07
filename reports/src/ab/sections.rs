//! The tables of the page.

use std::collections::BTreeSet;
use std::fmt::Write;

use results::journal::AbRun;
use results::record::{ArmPlan, Metric, Mode};
use results::summary::{AbSummary, ArmSummary, ContrastSummary, signed_pct};

use crate::text::{NONE, bytes, cell, code, head, ms, or_none, row, short_hash};

/// What an arm does with weights in its time.
type Rate = fn(&ArmSummary) -> Option<f64>;
const RATES: [(&str, Rate); 2] = [
    ("weights read, GB/s", |arm| arm.weight_gb_s),
    ("operations with them, GFLOP/s", |arm| arm.weight_gflop_s),
];

/// What each arm ran and how long it took.
pub(super) fn arms(run: &AbRun, summary: &AbSummary) -> String {
    let plans = || run.run.plans().map(|(_, plan)| plan);
    let mut columns = vec![String::new()];
    columns.extend(
        run.run
            .plans()
            .map(|(arm, plan)| format!("{arm}: {}", code(&plan.name))),
    );
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut out = head(&columns, 1);
    let mut line = |what: &str, of_arms: Vec<String>| {
        let cells = [vec![what.to_owned()], of_arms].concat();
        out.push_str(&row(&cells));
    };
    let speed = |ms: Option<f64>| or_none(ms, |ms| format!("{:.2}", 1000.0 / ms));
    let times = |show: &dyn Fn(&ArmSummary) -> String| summary.arms.iter().map(show).collect();
    if run.run.metric == Metric::Dispatch {
        line(
            &format!("{}, us per dispatch (median)", run.run.prompt.name),
            times(&|arm| or_none(arm.dispatch_us, ms)),
        );
    } else {
        line(
            "decode, ms per token (median)",
            times(&|arm| or_none(arm.decode_ms_per_token, ms)),
        );
        line(
            "decode, tokens per second",
            times(&|arm| speed(arm.decode_ms_per_token)),
        );
        line(
            &format!("prefill of {} tokens, ms (median)", run.run.prompt.tokens),
            times(&|arm| or_none(arm.prefill_ms, ms)),
        );
    }
    for (what, of) in RATES {
        if summary.arms.iter().any(|arm| of(arm).is_some()) {
            line(what, times(&|arm| or_none(of(arm), |v| format!("{v:.1}"))));
        }
    }
    if let Some(tokens) = run.run.second_turn_tokens {
        line(
            &format!("first token of a second turn of {tokens} tokens, ms (median)"),
            times(&|arm| or_none(arm.second_turn_ms, ms)),
        );
    }
    line(
        "**dispatches per token**",
        plans()
            .map(|plan| plan.dispatches_per_token.to_string())
            .collect(),
    );
    for role in keys(run, |plan| plan.by_role.keys()) {
        let count = |plan: &ArmPlan| plan.by_role.get(role).copied().unwrap_or(0).to_string();
        line(
            &format!("\u{b7} {}", code(role)),
            plans().map(count).collect(),
        );
    }
    for name in keys(run, |plan| plan.settings.keys()) {
        let value = |plan: &ArmPlan| or_none(plan.settings.get(name), |v| code(v));
        line(
            &format!("flag {}", code(name)),
            plans().map(value).collect(),
        );
    }
    out
}

/// The names that any plan has, in order.
fn keys<'a, I: Iterator<Item = &'a String>>(
    run: &'a AbRun,
    of: impl Fn(&'a ArmPlan) -> I,
) -> BTreeSet<&'a str> {
    run.run
        .arms
        .iter()
        .flat_map(of)
        .map(String::as_str)
        .collect()
}

/// The lines that an A/B of one flag has alone.
fn one_flag(summary: &AbSummary) -> [String; 5] {
    let level = level(summary);
    let [effect, interval, mde] = match summary.mode {
        Mode::Screening => [
            "effect, 100 (B/A \u{2212} 1), Hodges\u{2013}Lehmann".to_owned(),
            format!("{level} % interval, exact signed-rank"),
            "minimum detectable effect (5 %, power 80 %)".to_owned(),
        ],
        Mode::Published => [
            "effect, 100 (B/A \u{2212} 1), mean of replicates".to_owned(),
            format!("{level} % interval, Student's t over replicates"),
            "minimum detectable effect (of one look, power 80 %)".to_owned(),
        ],
    };
    let [verdict, more] = ["verdict", "what more time would resolve"].map(str::to_owned);
    [verdict, effect, interval, mde, more]
}

/// Confidence of the verdict's interval, percent, as it is printed.
pub(super) fn level(summary: &AbSummary) -> String {
    let level = format!("{:.1}", summary.ci_level_pct.unwrap_or(95.0));
    level.strip_suffix(".0").unwrap_or(&level).to_owned()
}

/// Replicates, the slowed arm and the gates of a published run.
pub(super) fn published(summary: &AbSummary) -> String {
    let Some(published) = &summary.published else {
        return String::new();
    };
    let pct = |value: Option<f64>| or_none(value, |value| signed_pct(value, 2));
    let interval = |ci: Option<[f64; 2]>| {
        or_none(ci, |[lo, hi]| {
            format!("{} to {}", signed_pct(lo, 2), signed_pct(hi, 2))
        })
    };
    let looks: Vec<String> = published.looks.iter().map(u32::to_string).collect();
    let listed = |effects: &[f64]| {
        let effects: Vec<String> = effects.iter().map(|&e| signed_pct(e, 2)).collect();
        effects.join(", ")
    };
    let each = |contrast: &ContrastSummary| {
        let effects = listed(&contrast.replicate_effects_pct);
        format!("{}: {effects}", code(&contrast.of))
    };
    let effects = match &summary.contrasts[..] {
        [] => listed(&published.replicate_effects_pct),
        several => several.iter().map(each).collect::<Vec<_>>().join("; "),
    };
    let lines = [
        ("replicates", published.replicates.to_string()),
        ("looks, declared beforehand", looks.join(", ")),
        ("effect of each replicate", effects),
        ("slowed arm, effect", pct(published.slowed_pct)),
        ("slowed arm, interval", interval(published.slowed_ci_pct)),
        (
            match summary.metric {
                Metric::Dispatch => "slowed arm, dispatches made more",
                Metric::Decode | Metric::Prefill | Metric::SecondTurn => {
                    "slowed arm, weight bytes read more"
                }
            },
            signed_pct(published.slowed_work_pct, 2),
        ),
        (
            "sensitivity: effect with a tenth of the blocks cut off at both ends",
            pct(published.trimmed_pct),
        ),
        (
            "95 % signed-rank interval of all blocks as if independent (narrower in scope)",
            interval(published.within_ci_pct),
        ),
        (
            "blocks that broke a gate, left out",
            published.void_blocks.to_string(),
        ),
        (
            "weights read by A, share of the read roof",
            or_none(published.pct_of_roof, |share| {
                format!("{share:.1} % of {:.1} GB/s", published.roof_gb_s)
            }),
        ),
    ];
    let mut out = "## Replicates and gates\n\n".to_owned();
    out.push_str(&head(&["", "value"], 2));
    for (what, value) in lines {
        out.push_str(&row(&[what.to_owned(), value]));
    }
    if let Some(then) = published.when_chosen_pct() {
        let _ = write!(
            out,
            "\nB was chosen among {} values because it took the least time, so what it read then \
             flatters it: {}. The verdict is of replicates that the choice has not seen: {}.\n\n",
            published.chosen_from.len(),
            signed_pct(then, 2),
            pct(summary.effect_pct)
        );
        out.push_str(&head(&["value", "effect when chosen", "run"], 1));
        for candidate in &published.chosen_from {
            out.push_str(&row(&[
                code(&candidate.name),
                signed_pct(candidate.effect_pct, 2),
                format!("[{0}](../{0}/README.md)", candidate.run),
            ]));
        }
    }
    if !published.gates.is_empty() {
        out.push('\n');
    }
    for gate in &published.gates {
        let _ = writeln!(out, "- {}", cell(gate));
    }
    out
}

/// What the blocks say.
pub(super) fn statistics(summary: &AbSummary) -> String {
    let pct = |value: Option<f64>| or_none(value, |value| signed_pct(value, 2));
    let interval = |ci: Option<[f64; 2]>| {
        or_none(ci, |[lo, hi]| {
            format!("{} to {}", signed_pct(lo, 2), signed_pct(hi, 2))
        })
    };
    let one_flag = one_flag(summary);
    let control_interval = format!("A/A control, {} % interval", level(summary));
    let verdict = summary
        .verdict
        .map_or_else(|| "withheld".to_owned(), |v| format!("**{v}**"));
    let lines = [
        ("metric", format!("{} time", summary.metric)),
        (
            one_flag[0].as_str(),
            format!("{verdict}: {}", cell(&summary.reason)),
        ),
        (one_flag[1].as_str(), pct(summary.effect_pct)),
        (one_flag[2].as_str(), interval(summary.ci_pct)),
        (
            "margin declared before the run",
            format!("\u{b1}{:.2} %", summary.margin_pct),
        ),
        (
            one_flag[3].as_str(),
            or_none(summary.mde_pct, |mde| format!("{mde:.2} %")),
        ),
        ("complete blocks", summary.blocks.to_string()),
        ("A/A control, effect", pct(summary.control.effect_pct)),
        (control_interval.as_str(), interval(summary.control.ci_pct)),
        (one_flag[4].as_str(), cell(&summary.more_time)),
    ];
    let quality = summary.quality.as_ref();
    let quality = quality.map(|quality| {
        let [a, b] = quality.perplexity;
        (
            "quality: perplexity of A, of B, and its change",
            format!(
                "{a:.4}, {b:.4}, {} (95 % interval {}), {} tokens of {} windows of {}",
                signed_pct(quality.change_pct, 3),
                or_none(quality.change_ci_pct, |[lo, hi]| {
                    format!("{} to {}", signed_pct(lo, 3), signed_pct(hi, 3))
                }),
                quality.tokens,
                quality.windows,
                cell(&quality.text)
            ),
        )
    });
    let lines = lines.into_iter().chain(quality);
    let mut out = String::new();
    if !summary.contrasts.is_empty() {
        let interval_column = format!("{} % interval", level(summary));
        let columns = [
            "effect",
            "verdict",
            "size",
            interval_column.as_str(),
            "minimum detectable",
            "what more time would resolve",
        ];
        out.push_str(&head(&columns, columns.len()));
        for contrast in &summary.contrasts {
            out.push_str(&row(&[
                code(&contrast.of),
                format!("**{}**: {}", contrast.verdict, cell(&contrast.reason)),
                pct(contrast.effect_pct),
                interval(contrast.ci_pct),
                or_none(contrast.mde_pct, |mde| format!("{mde:.2} %")),
                cell(&contrast.more_time),
            ]));
        }
        let estimates = match summary.mode {
            Mode::Screening => {
                "Sizes are Hodges\u{2013}Lehmann estimates over the blocks, intervals exact \
                 signed-rank."
            }
            Mode::Published => {
                "Sizes are means over replicates, intervals Student's t; each effect stops at its \
                 own look, and the run where all have."
            }
        };
        let _ = write!(
            out,
            "\nWith L the mean log time of an arm in a block, an effect of a flag is the mean of \
             L(B) \u{2212} L(A) and L(D) \u{2212} L(C), or of L(C) \u{2212} L(A) and \
             L(D) \u{2212} L(B); the interaction is L(D) \u{2212} L(B) \u{2212} L(C) + L(A). \
             {estimates}\n\n"
        );
    }
    out.push_str(&head(&["", "value"], 2));
    for (what, value) in lines {
        // Of two flags the table above says it of each effect.
        let of_one_flag = one_flag.iter().any(|line| line == what);
        if summary.contrasts.is_empty() || !of_one_flag {
            out.push_str(&row(&[what.to_owned(), value]));
        }
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
            match run.metric {
                Metric::Dispatch => "bytes read per dispatch (weights and scales)",
                Metric::Decode | Metric::Prefill | Metric::SecondTurn => {
                    "bytes read per token (weights and scales)"
                }
            },
            bytes(model.bytes_per_token),
        ),
        (
            "operations with them, two for each multiply-add",
            or_none(model.flops_per_token, |flops| flops.to_string()),
        ),
        match run.metric {
            Metric::Dispatch => ("site", cell(&run.prompt.name)),
            Metric::Decode | Metric::Prefill | Metric::SecondTurn => (
                "prompt",
                format!("{}, {} tokens", cell(&run.prompt.name), run.prompt.tokens),
            ),
        },
        (
            match run.metric {
                Metric::Dispatch => "dispatches per element",
                Metric::Decode | Metric::Prefill | Metric::SecondTurn => {
                    "decoded tokens per element"
                }
            },
            run.decode_tokens.to_string(),
        ),
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
    let timer = run.timer.as_ref().map(|timer| {
        let known = timer.known_work_ns.map(|[gpu, _]| gpu.to_string());
        match timer.timestamps {
            true => format!(
                "{}, a tick of {} ns; known work once, twice and four times took {} ns",
                timer.name(),
                timer.tick_ns,
                known.join(", ")
            ),
            false => format!("{}: {}", timer.name(), cell(&timer.reasons.join("; "))),
        }
    });
    let where_readable = [
        ("dispatches timed by", timer),
        ("clock policy", env.governor.as_ref().map(|v| cell(v))),
        ("power", env.power.as_ref().map(|v| cell(v))),
        ("container", env.container.as_ref().map(|v| cell(v))),
        (
            "load before the run (processes)",
            env.load.map(|load| format!("{load:.2}")),
        ),
    ];
    let readable = where_readable.into_iter();
    let readable = readable.filter_map(|(what, value)| Some((what, value?)));
    let lines = lines.into_iter().chain(readable);
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
    let arms: Vec<String> = run.run.plans().map(|(arm, _)| arm.to_string()).collect();
    let mut columns = vec!["variant"];
    columns.extend(arms.iter().map(String::as_str));
    columns.push("");
    let mut out = head(&columns, columns.len());
    for name in keys(run, |plan| plan.shaders.keys()) {
        let hashes: Vec<Option<&String>> = (run.run.arms.iter())
            .map(|plan| plan.shaders.get(name))
            .collect();
        let mut cells = vec![code(name)];
        cells.extend(
            hashes
                .iter()
                .map(|hash| or_none(*hash, |hash| code(&short_hash(hash)))),
        );
        let differs = hashes.iter().any(|hash| *hash != hashes[0]);
        cells.push(if differs { "differs" } else { "" }.to_owned());
        out.push_str(&row(&cells));
    }
    out.push_str("\n<details><summary>Full SHA-256</summary>\n\n");
    out.push_str(&head(&["arm", "variant", "sha256"], 3));
    for (arm, plan) in run.run.plans() {
        for (name, hash) in &plan.shaders {
            out.push_str(&row(&[arm.to_string(), code(name), code(hash)]));
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
        Mode::Published => {
            "published: every replicate ran in a process of its own, and the interval is over replicates; the looks, their error rate, the margin and the gates were written down before the first of them"
        }
    };
    let mut out = format!("- {scope}\n");
    for note in &summary.notes {
        let _ = writeln!(out, "- {}", cell(note));
    }
    out
}
