//! Any tool: the fields of a record by their own names.

use super::{Fields, Found};

/// The fields, for the message about one that is not known.
const NAMES: &[&str] = &[
    "engine",
    "engine_version",
    "hardware",
    "backend",
    "model",
    "quantisation",
    "bytes_per_weight",
    "weights_bytes",
    "parameters",
    "date",
    "prompt",
    "prompt_tokens",
    "decode_tokens",
    "total_tok_s",
    "ttft_ms",
    "decode_tok_s",
    "prefill_tok_s",
    "statistic",
    "note",
];

pub(super) fn records(fields: &Fields<'_>) -> Result<Vec<Found>, String> {
    if let Some(unknown) = fields.names().find(|name| !NAMES.contains(name)) {
        return Err(format!(
            "unknown field `{unknown}`; expected {}",
            NAMES.join(", ")
        ));
    }
    let sizes = fields
        .number("weights_bytes")?
        .zip(fields.number("parameters")?);
    let by_sizes = sizes.map(|(bytes, weights)| bytes / weights);
    Ok(vec![Found {
        engine: fields.text("engine").ok_or("no `engine`")?,
        engine_version: fields.text("engine_version"),
        hardware: fields.text("hardware"),
        backend: fields.text("backend"),
        model: fields.text("model"),
        quantisation: fields.text("quantisation"),
        bytes_per_weight: fields.number("bytes_per_weight")?.or(by_sizes),
        date: fields.text("date"),
        prompt: fields.text("prompt"),
        prompt_tokens: fields.tokens("prompt_tokens")?,
        decode_tokens: fields.tokens("decode_tokens")?,
        total_tok_s: fields.number("total_tok_s")?,
        ttft_ms: fields.number("ttft_ms")?,
        decode_tok_s: fields.number("decode_tok_s")?,
        prefill_tok_s: fields.number("prefill_tok_s")?,
        statistic: fields.text("statistic"),
        paired: false,
        notes: fields.text("note").into_iter().collect(),
    }])
}
