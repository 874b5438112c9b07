//! Times of whole tokens that were recorded alone, without a comparison.

use results::history::Standing;
use results::store::Store;
use results::tokens::TokenTimes;

use crate::Result;
use crate::doc::Doc;
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
    Ok(())
}
