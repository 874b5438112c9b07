//! `BENCH.md`: all models and adapters that were recorded, what was published of them,
//! where a token's time goes, and what became of results.

mod effects;
mod kernels;
mod tokens;

use std::collections::BTreeMap;

use results::history::Standing;
use results::journal::AbRun;
use results::record::{Metric, Mode, Roof};
use results::stats::{Verdict, benjamini_hochberg, p_beyond};
use results::store::Store;
use results::summary::{AbSummary, Analysis, signed_pct};

use crate::Result;
use crate::doc::Doc;
use crate::text::{NONE, code, or_none};

/// Share of false comparisons among those that are published.
const FALSE_DISCOVERIES: f64 = 0.05;

/// Whether a run may make claims.
const fn claims(mode: Mode) -> bool {
    match mode {
        Mode::Screening => false,
        Mode::Published => true,
    }
}

/// A run with its summary, where it has one.
struct Summarised<'s> {
    run: &'s AbRun,
    summary: AbSummary,
    standing: Standing,
}

/// The bounds of its adapter as a run measured them, where it has a roof.
fn roof(run: &AbRun) -> Option<Roof> {
    let publish = run
        .run
        .publish
        .as_ref()
        .filter(|_| !run.run.adapter.is_cpu());
    publish.map(|publish| publish.roof)
}

/// One effect of a run: the change of one flag, or one of the three of two flags.
struct Effect<'s> {
    of: &'s Summarised<'s>,
    name: String,
    verdict: String,
    effect: Option<f64>,
    interval: Option<[f64; 2]>,
}

impl Summarised<'_> {
    fn effects(&self) -> Vec<Effect<'_>> {
        let summary = &self.summary;
        let several = summary.contrasts.iter().map(|contrast| Effect {
            of: self,
            name: contrast.of.clone(),
            verdict: contrast.verdict.to_owned(),
            effect: contrast.effect_pct,
            interval: contrast.ci_pct,
        });
        if !summary.contrasts.is_empty() {
            return several.collect();
        }
        vec![Effect {
            of: self,
            name: summary
                .arms
                .get(1)
                .map_or(&summary.flag, |arm| &arm.name)
                .clone(),
            verdict: (summary.verdict)
                .map_or("withheld", |verdict| verdict.word())
                .to_owned(),
            effect: summary.effect_pct,
            interval: summary.ci_pct,
        }]
    }

    fn link(&self) -> String {
        let id = &self.run.run.id;
        format!("[{id}]({id}/README.md)")
    }

    fn day(&self) -> &str {
        let started = &self.run.run.started_utc;
        started.get(..10).unwrap_or(started)
    }
}

/// The page.
///
/// # Errors
/// Times that are no times.
pub(crate) fn page(store: &Store) -> Result<Doc> {
    let mut doc = Doc::new("BENCH.md", "Measurements");
    doc.text(
        "Made by `cargo xtask report` from the records in `results/data`; do not edit. Times are \
         compared, so an effect is a change of time: below 0 is faster. **Only published runs make \
         claims**: replicates in fresh processes, judged at looks that were declared beforehand. \
         Screening runs are listed as what they are, good for choosing what to measure properly. \
         Figures of other engines stand on [a page of their own](PEERS.md); the same with values \
         to point at is [index.html](index.html).",
    );
    let runs: Vec<Summarised<'_>> = (store.runs.iter())
        .filter(|run| !run.was_stopped_early())
        .filter_map(|run| {
            let summary = AbSummary::of(run, &run.journal).ok()?;
            let standing = store.standing(&run.run.id);
            Some(Summarised {
                run,
                summary,
                standing,
            })
        })
        .collect();
    let (published, screening): (Vec<_>, Vec<_>) =
        runs.iter().partition(|run| claims(run.run.run.mode));

    let family = family(
        published
            .iter()
            .copied()
            .filter(|run| run.standing == Standing::Current),
    );
    let stands = |run: &Summarised<'_>| match family.get(run.run.run.id.as_str()) {
        None => NONE.to_owned(),
        Some(of_run) => {
            let words = of_run
                .iter()
                .map(|stands| if *stands { "yes" } else { "no" });
            words.collect::<Vec<_>>().join(", ")
        }
    };

    doc.heading("Published");
    let standing = |of: Standing| published.iter().filter(move |run| run.standing == of);
    if standing(Standing::Current).next().is_none() {
        doc.text("No published run is recorded, so nothing is claimed here.");
    } else {
        doc.picture(effects::picture(
            "published.svg",
            "Published effects on time, with their intervals",
            standing(Standing::Current).copied(),
        ));
        doc.table(&COLUMNS, 6, rows(standing(Standing::Current).copied()));
        doc.table(
            &[
                "run",
                "replicates",
                "minimum detectable",
                "slowed arm",
                "void blocks",
                "A reads, GB/s",
                "A computes, GFLOP/s",
                "share of the read roof",
                "stands in the family",
            ],
            1,
            standing(Standing::Current)
                .map(|run| [evidence(run), vec![stands(run)]].concat())
                .collect(),
        );
        doc.text(
            "A comparison stands in the family where it would still be called beyond its margin \
             when the share of false ones among all that are published here is held at 5 % \
             (Benjamini and Hochberg).",
        );
    }

    doc.heading("Screening: no claims");
    if screening.is_empty() {
        doc.text("No screening run is recorded.");
    } else {
        let current = || {
            screening
                .iter()
                .filter(|run| run.standing == Standing::Current)
        };
        doc.text(format!(
            "{} runs of one process each. Their blocks share the conditions of that process, so \
             their intervals are too narrow for a claim.",
            screening.len()
        ));
        doc.picture(effects::picture(
            "screening.svg",
            "Screening: effects on time, with their intervals",
            current().copied(),
        ));
        doc.table(&COLUMNS, 6, rows(screening.iter().copied()));
    }
    tokens::section(&mut doc, store)?;
    kernels::sections(&mut doc, store)?;
    dispatches(&mut doc, &runs);
    adapters(&mut doc, &runs);
    history(&mut doc, store);
    if !store.refused.is_empty() {
        doc.heading("Records that were not read");
        let list = store.refused.iter().map(|(_, reason)| reason.clone());
        doc.parts.push(crate::doc::Part::List(list.collect()));
    }
    Ok(doc)
}

const COLUMNS: [&str; 8] = [
    "run",
    "effect of",
    "model",
    "adapter",
    "metric",
    "verdict",
    "effect",
    "interval",
];

/// A row for each effect.
fn rows<'s>(runs: impl Iterator<Item = &'s Summarised<'s>>) -> Vec<Vec<String>> {
    runs.flat_map(|run| run.effects())
        .map(|effect| {
            let run = effect.of;
            let verdict = match run.standing {
                Standing::Current => effect.verdict,
                Standing::Superseded => format!("{} (superseded)", effect.verdict),
                Standing::Withdrawn => "**WITHDRAWN**".to_owned(),
            };
            let means = run.standing != Standing::Withdrawn && !run.summary.is_invalid();
            let shown = |value: Option<String>| value.filter(|_| means);
            vec![
                run.link(),
                code(&effect.name),
                run.run.run.model.honest_title(),
                run.summary.adapter.clone(),
                run.summary.metric.to_string(),
                verdict,
                or_none(shown(effect.effect.map(|e| signed_pct(e, 2))), |text| text),
                or_none(
                    shown(effect.interval.map(|[low, high]| {
                        format!("{} to {}", signed_pct(low, 2), signed_pct(high, 2))
                    })),
                    |text| text,
                ),
            ]
        })
        .collect()
}

/// Which of the published comparisons stand together, by run, the effects of two flags in
/// their order; those without a verdict are left out.
fn family<'s>(runs: impl Iterator<Item = &'s Summarised<'s>>) -> BTreeMap<&'s str, Vec<bool>> {
    let mut ids = Vec::new();
    let mut p = Vec::new();
    for run in runs {
        let analysis = Analysis::of(run.run).ok();
        let judged = analysis.iter().flat_map(|analysis| &analysis.published);
        for found in judged.filter(|found| found.judgement.verdict != Verdict::Invalid) {
            let effect = found.judgement.effect;
            if let Some(beyond) = effect.and_then(|effect| p_beyond(&effect, run.run.run.margin)) {
                ids.push(run.run.run.id.as_str());
                p.push(beyond);
            }
        }
    }
    let stands = benjamini_hochberg(&p, FALSE_DISCOVERIES).unwrap_or_default();
    let mut family: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
    for (id, stands) in ids.into_iter().zip(stands) {
        family.entry(id).or_default().push(stands);
    }
    family
}

/// What a published run rests on.
fn evidence(run: &Summarised<'_>) -> Vec<String> {
    let published = run.summary.published.as_ref();
    let a = run.summary.arms.first();
    let rate = |value: Option<f64>| or_none(value, |value| format!("{value:.1}"));
    let pct = |value: Option<f64>| or_none(value, |value| signed_pct(value, 2));
    vec![
        run.link(),
        or_none(published, |p| p.replicates.to_string()),
        or_none(run.summary.mde_pct, |mde| format!("{mde:.2} %")),
        pct(published.and_then(|p| p.slowed_pct)),
        or_none(published, |p| p.void_blocks.to_string()),
        rate(a.and_then(|a| a.weight_gb_s)),
        rate(a.and_then(|a| a.weight_gflop_s)),
        or_none(published.and_then(|p| p.pct_of_roof), |share| {
            format!("{share:.1} %")
        }),
    ]
}

/// The dispatches of a decoded token, by model and the settings that change them.
fn dispatches(doc: &mut Doc, runs: &[Summarised<'_>]) {
    if runs.is_empty() {
        return;
    }
    doc.heading("Dispatches per token");
    doc.text(
        "Counted by the engine's recorder while a token is decoded, in every plan that was run.",
    );
    // The arms that have these dispatches of this model, by role.
    type Plan<'r> = (&'r str, Vec<(&'r str, u32)>);
    let mut plans: BTreeMap<Plan<'_>, Vec<&str>> = BTreeMap::new();
    // The plan of an A/B of one dispatch is of that dispatch.
    for run in runs
        .iter()
        .filter(|run| run.summary.metric != Metric::Dispatch)
    {
        for (_, plan) in run.run.run.plans() {
            let by_role = plan
                .by_role
                .iter()
                .map(|(role, count)| (role.as_str(), *count));
            let key = (run.run.run.model.id.as_str(), by_role.collect());
            let names = plans.entry(key).or_default();
            if !names.contains(&plan.name.as_str()) {
                names.push(&plan.name);
            }
        }
    }
    let rows = plans.into_iter().map(|((model, by_role), names)| {
        let total: u32 = by_role.iter().map(|(_, count)| count).sum();
        let roles: Vec<String> = (by_role.iter())
            .map(|(role, count)| format!("{role} {count}"))
            .collect();
        let names: Vec<String> = names.iter().map(|name| code(name)).collect();
        vec![
            code(model),
            names.join(", "),
            roles.join(", "),
            format!("**{total}**"),
        ]
    });
    doc.table(&["model", "in arms", "by role", "total"], 3, rows.collect());
}

/// The adapters, with the newest bounds that were measured on them.
fn adapters(doc: &mut Doc, runs: &[Summarised<'_>]) {
    let mut found: BTreeMap<(&str, &str), Vec<&Summarised<'_>>> = BTreeMap::new();
    for run in runs {
        let adapter = &run.run.run.adapter;
        let key = (adapter.name.as_str(), adapter.driver_info.as_str());
        found.entry(key).or_default().push(run);
    }
    if found.is_empty() {
        return;
    }
    doc.heading("Adapters");
    let rows = found.into_iter().map(|((name, driver), runs)| {
        let newest = runs.iter().filter_map(|run| Some((run, roof(run.run)?)));
        let newest = newest.max_by_key(|(run, _)| &run.run.run.started_utc);
        let roof = newest.map(|(run, roof)| {
            format!(
                "{:.1} GB/s, {:.2} \u{b5}s ({})",
                roof.read_gb_s,
                roof.dispatch_us,
                run.link()
            )
        });
        vec![
            name.to_owned(),
            driver.to_owned(),
            roof.unwrap_or_else(|| "not recorded".to_owned()),
            runs.len().to_string(),
        ]
    });
    doc.table(
        &[
            "adapter",
            "driver",
            "reads at most, dispatch that waits",
            "runs",
        ],
        3,
        rows.collect(),
    );
}

/// What was superseded or withdrawn.
fn history(doc: &mut Doc, store: &Store) {
    doc.heading("History");
    if store.history.is_empty() {
        doc.text("No result was superseded or withdrawn.");
        return;
    }
    doc.text(
        "A record stays as it was made. What became of it stands here: superseded where a newer \
         run answers the same question, withdrawn where it should not have been believed.",
    );
    let rows = store.history.iter().map(|entry| {
        let standing = match entry.standing {
            Standing::Withdrawn => "**WITHDRAWN**".to_owned(),
            Standing::Current | Standing::Superseded => entry.standing.to_string(),
        };
        let has_page = |id: &str| store.run(id).is_some();
        let link = |id: &String| match has_page(id) {
            true => format!("[{id}]({id}/README.md)"),
            false => code(id),
        };
        vec![
            entry.date.clone(),
            link(&entry.run),
            standing,
            entry.by.as_ref().map_or(NONE.to_owned(), link),
            entry.why.clone(),
        ]
    });
    doc.table(&["date", "run", "standing", "by", "why"], 5, rows.collect());
}
