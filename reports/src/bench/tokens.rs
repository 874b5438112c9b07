//! Times of whole tokens that were recorded alone, without a comparison.

use std::collections::BTreeMap;

use results::history::Standing;
use results::record::Arm;
use results::stats::{LEAST_SEGMENT, change_points, median, percent};
use results::store::Store;
use results::summary::signed_pct;
use results::tokens::TokenTimes;

use crate::Result;
use crate::doc::{Doc, Part};
use crate::text::{NONE, code, or_none};

/// The section; none where nothing was recorded.
pub(super) fn section(doc: &mut Doc, store: &Store) -> Result<()> {
    let mut rows = Vec::new();
    for run in &store.benches {
        let Some(times) = TokenTimes::of(run)? else {
            continue;
        };
        let standing = store.standing(&run.run.id);
        let note = match (standing, &times.void) {
            (Standing::Withdrawn, _) => "**WITHDRAWN**".to_owned(),
            (_, Some(void)) => void.clone(),
            (Standing::Superseded, None) => standing.to_string(),
            (Standing::Current, None) => or_none(times.suspicious.as_ref(), String::clone),
        };
        let counts = standing != Standing::Withdrawn && times.void.is_none();
        let shown = |value: String| if counts { value } else { NONE.to_owned() };
        let share = or_none(times.pct_of_roof, |share| format!("{share:.1}"));
        rows.push(vec![
            code(&run.run.id),
            run.run.model.honest_title(),
            run.run.adapter.name.clone(),
            format!("{} of {}", run.run.prompt.tokens, run.run.prompt.name),
            run.run.decode_tokens.to_string(),
            shown(format!("{:.2}", times.ttft_ms)),
            shown(format!("{:.1}", times.decode_tok_s)),
            shown(format!("{:.1}", times.read_gb_s)),
            shown(or_none(times.gflop_s, |gflop_s| format!("{gflop_s:.1}"))),
            shown(share),
            note,
        ]);
    }
    if rows.is_empty() {
        return Ok(());
    }
    doc.heading("Whole tokens: no claims");
    doc.text(
        "Timed by `cargo xtask bench` in one process each, after the same programs were compared \
         with the reference; medians of the repetitions. Absolute times drift from day to day, so \
         two of these rows are no comparison. GB/s are the weights, keys and values that decoding \
         reads, GFLOP/s the multiply-adds with them, two operations each.",
    );
    doc.table(
        &[
            "run",
            "model",
            "adapter",
            "prompt",
            "tokens",
            "first token, ms",
            "tokens per second",
            "GB/s",
            "GFLOP/s",
            "% of roof",
            "note",
        ],
        3,
        rows,
    );
    let changes = changes(store)?;
    if !changes.is_empty() {
        doc.text(
            "Timings of one model, adapter, prompt, length and choice of flags are a series, which \
             is searched for change points (E-divisive, with a permutation test of 1 %).",
        );
        doc.parts.push(Part::List(changes));
    }
    Ok(())
}

/// What the timings of one kind have in common.
type Kind<'s> = (
    String,
    &'s str,
    (&'s str, u32, u32),
    &'s BTreeMap<String, String>,
);

/// Seed of the permutation test: the same records give the same page.
const SEED: u64 = 5;

/// What every long enough series of timings says, in a line each.
fn changes(store: &Store) -> Result<Vec<String>> {
    // By start; ids break ties.
    let mut series: BTreeMap<Kind<'_>, BTreeMap<[&str; 2], f64>> = BTreeMap::new();
    for run in &store.benches {
        let of = &run.run;
        let times = TokenTimes::of(run)?.filter(|times| times.void.is_none());
        let (Some(times), Standing::Current) = (times, store.standing(&of.id)) else {
            continue;
        };
        let lengths = (of.prompt.name.as_str(), of.prompt.tokens, of.decode_tokens);
        let settings = &of.plan(Arm::A).settings;
        let adapter = of.adapter.name.as_str();
        let kind = (of.model.honest_title(), adapter, lengths, settings);
        let all = series.entry(kind).or_default();
        all.insert([&of.started_utc, &of.id], -times.decode_tok_s.ln());
    }
    let mut lines = Vec::new();
    for ((model, adapter, (prompt, tokens, decoded), _), timings) in series {
        if timings.len() < 2 * LEAST_SEGMENT {
            continue;
        }
        let ids: Vec<&str> = timings.keys().map(|[_, id]| *id).collect();
        let times: Vec<f64> = timings.into_values().collect();
        let points = change_points(&times, SEED)?;
        let starts = [&[0], &points[..], &[times.len()]].concat();
        let mut told = Vec::new();
        for part in starts.windows(3) {
            let before = median(&times[part[0]..part[1]])?;
            let after = median(&times[part[1]..part[2]])?;
            told.push(format!(
                "from {} on, time per token changes by {}",
                code(ids[part[1]]),
                signed_pct(percent(after - before), 1)
            ));
        }
        let told = match told.is_empty() {
            true => "no change".to_owned(),
            false => told.join("; "),
        };
        lines.push(format!(
            "{model} on {adapter}, {decoded} tokens after {tokens} of {prompt}, {} timings: {told}.",
            times.len()
        ));
    }
    Ok(lines)
}
