//! `llama-bench`: one object a test, `n_prompt` tokens processed, then `n_gen`
//! generated, after `n_depth` that were there before.

use super::{Fields, Found};

const TOOL: &str = "llama-bench";

pub(super) fn records(fields: &Fields<'_>) -> Result<Vec<Found>, String> {
    let speed = fields.needs("avg_ts", TOOL)?;
    let ns = fields.needs("avg_ns", TOOL)?;
    fields.needs("n_prompt", TOOL)?;
    fields.needs("n_gen", TOOL)?;
    let prompt = fields.tokens("n_prompt")?.unwrap_or(0);
    let decode = fields.tokens("n_gen")?.unwrap_or(0);
    let depth = fields.tokens("n_depth")?.unwrap_or(0);
    let kind = fields.text("model_type").unwrap_or_default();
    let sizes = fields
        .number("model_size")?
        .zip(fields.number("model_n_params")?);
    let mut found = Found {
        engine: "llama.cpp".to_owned(),
        engine_version: fields.text("build_commit"),
        hardware: fields.text("gpu_info").or_else(|| fields.text("cpu_info")),
        backend: fields.text("backends"),
        model: Some(kind.clone()).filter(|kind| !kind.is_empty()),
        quantisation: quantisation(&kind),
        bytes_per_weight: sizes.map(|(bytes, weights)| bytes / weights),
        date: (fields.text("test_time")).map(|time| time.chars().take(10).collect()),
        prompt: Some("random tokens".to_owned()),
        decode_tokens: Some(decode).filter(|&tokens| tokens > 0),
        statistic: Some(match fields.count("samples_ns") {
            0 => "mean".to_owned(),
            count => format!("mean of {count}"),
        }),
        ..Found::default()
    };
    for (name, what) in [
        ("n_gpu_layers", "layers on the GPU"),
        ("flash_attn", "flash attention"),
        ("type_k", "type of cached keys"),
    ] {
        if let Some(value) = fields.text(name) {
            found.notes.push(format!("{what}: {value}"));
        }
    }
    // What lies in the context counts as prompt: a decoded token attends to it.
    found.prompt_tokens = Some(prompt + depth);
    match (prompt, decode) {
        (0, 0) => return Err("a test of no prompt and no generated tokens".to_owned()),
        (_, 0) => found.prefill_tok_s = Some(speed),
        (0, _) => found.decode_tok_s = Some(speed),
        // Its own rate counts the prompt's tokens too.
        (_, _) => found.total_tok_s = Some(f64::from(decode) * 1e9 / ns),
    }
    if depth > 0 {
        found.notes.push(format!(
            "{depth} of the prompt's tokens were there before timing"
        ));
    }
    Ok(vec![found])
}

/// The format in a type as `qwen2 7B Q4_K - Medium`.
fn quantisation(kind: &str) -> Option<String> {
    let words: Vec<&str> = kind.split_whitespace().collect();
    let from = words.iter().position(|word| {
        let word = word.to_lowercase();
        ["q", "iq", "f16", "f32", "bf16", "mxfp", "tq"]
            .iter()
            .any(|start| {
                let rest = word.strip_prefix(start);
                rest.is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_digit())
                })
            })
    })?;
    // The first word is the architecture, however it is called.
    (from > 0).then(|| words[from..].join(" "))
}
