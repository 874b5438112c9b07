//! WebLLM: the `usage` of chat completions, whose `extra` holds the engine's own
//! times; or a file in which a pair of it and Zero-TVM was published.

use super::{Fields, Found, median};

const TOOL: &str = "WebLLM";

pub(super) fn records(fields: &Fields<'_>) -> Result<Vec<Found>, String> {
    if let Some(other) = fields.part("webllm") {
        return pair(fields, &other);
    }
    let usage = fields.part("usage").unwrap_or(*fields);
    let extra = usage.part("extra").ok_or_else(|| {
        let names: Vec<&str> = fields.names().take(12).collect();
        format!(
            "expected a chat completion with `usage`, a `usage` with `extra`, or a pair with \
             `webllm`; found {}",
            names.join(", ")
        )
    })?;
    usage.needs("prompt_tokens", TOOL)?;
    usage.needs("completion_tokens", TOOL)?;
    let decoded = usage.tokens("completion_tokens")?.unwrap_or(0);
    if decoded == 0 {
        return Err("a completion of 0 tokens: nothing was decoded, so nothing was timed".into());
    }
    let total = (extra.number("e2e_latency_s")?).map(|seconds| f64::from(decoded) / seconds);
    Ok(vec![Found {
        engine: TOOL.to_owned(),
        model: fields.text("model"),
        backend: Some("WebGPU".to_owned()),
        prompt_tokens: usage.tokens("prompt_tokens")?,
        decode_tokens: Some(decoded),
        total_tok_s: total,
        ttft_ms: (extra.number("time_to_first_token_s")?).map(|seconds| 1e3 * seconds),
        decode_tok_s: Some(extra.needs("decode_tokens_per_s", TOOL)?),
        prefill_tok_s: extra.number("prefill_tokens_per_s")?,
        notes: vec!["rates are the engine's own".to_owned()],
        ..Found::default()
    }])
}

/// Completions of the same lengths are repetitions: their medians.
pub(super) fn repetitions(found: Vec<Found>) -> Vec<Found> {
    let mut groups: Vec<Vec<Found>> = Vec::new();
    for one in found {
        let same = |group: &&mut Vec<Found>| {
            let first = &group[0];
            (
                &first.engine,
                &first.model,
                first.prompt_tokens,
                first.decode_tokens,
            ) == (
                &one.engine,
                &one.model,
                one.prompt_tokens,
                one.decode_tokens,
            )
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
        .into_iter()
        .map(|group| {
            let middle = |figure: fn(&Found) -> Option<f64>| {
                let values: Vec<f64> = group.iter().filter_map(figure).collect();
                median(&values)
            };
            let count = group.len();
            Found {
                total_tok_s: middle(|one| one.total_tok_s),
                ttft_ms: middle(|one| one.ttft_ms),
                decode_tok_s: middle(|one| one.decode_tok_s),
                prefill_tok_s: middle(|one| one.prefill_tok_s),
                statistic: (group[0].statistic.clone())
                    .or_else(|| (count > 1).then(|| format!("median of {count}"))),
                ..group[0].clone()
            }
        })
        .collect()
}

/// Both halves of a published pair.
fn pair(fields: &Fields<'_>, other: &Fields<'_>) -> Result<Vec<Found>, String> {
    let ours = fields.part("zeroTvm").ok_or("a pair without `zeroTvm`")?;
    let name = fields.text("model");
    let quantisation = (name.as_deref())
        .and_then(|name| name.rsplit_once("-q"))
        .map(|(_, format)| format!("q{format}"));
    let mut common = Found {
        hardware: fields.text("hardware"),
        backend: Some("WebGPU".to_owned()),
        model: name,
        quantisation,
        date: fields.text("date"),
        paired: true,
        ..Found::default()
    };
    common.notes.extend(fields.text("protocol"));
    let runs = |half: &Fields<'_>| match half.count("totalRuns") {
        0 => None,
        count => Some(format!("median of {count}")),
    };
    Ok(vec![
        Found {
            engine: "Zero-TVM".to_owned(),
            total_tok_s: ours.number("totalTokPerS")?,
            ttft_ms: ours.number("ttftMs")?,
            decode_tok_s: ours.number("decodeTokPerS")?,
            statistic: runs(&ours),
            ..common.clone()
        },
        Found {
            engine: TOOL.to_owned(),
            engine_version: other.text("version"),
            total_tok_s: other.number("totalTokPerS")?,
            decode_tok_s: other.number("selfReportedDecodeTokPerS")?,
            statistic: runs(other),
            ..common
        },
    ])
}
