//! transformers.js has no benchmark of its own. Two kinds of files are in use: a page's
//! export with `metrics`, and times to the first token by prompt length in `points`.

use super::{Fields, Found};

const TOOL: &str = "transformers.js";

pub(super) fn records(fields: &Fields<'_>) -> Result<Vec<Found>, String> {
    let common = Found {
        engine: TOOL.to_owned(),
        engine_version: fields.text("version"),
        model: fields.text("model"),
        hardware: fields.text("hardware"),
        quantisation: fields.text("quant").or_else(|| fields.text("dtype")),
        ..Found::default()
    };
    if let Some(metrics) = fields.part("metrics") {
        return page(fields, &metrics, common);
    }
    if let Some(points) = fields.parts("points") {
        return points
            .iter()
            .map(|point| at_length(fields, point, &common))
            .collect();
    }
    let names: Vec<&str> = fields.names().take(12).collect();
    Err(format!(
        "expected `metrics` (a benchmark page's export) or `points` (times to the first token \
         by prompt length); found {}",
        names.join(", ")
    ))
}

fn page(fields: &Fields<'_>, metrics: &Fields<'_>, common: Found) -> Result<Vec<Found>, String> {
    let tokens = metrics.tokens("tokensGenerated")?.unwrap_or(0);
    if tokens == 0 {
        return Err("`metrics` of 0 generated tokens: nothing was timed".into());
    }
    // Its own rate is over the whole time; between tokens it takes `itl` ms.
    let between = metrics.needs("itl", TOOL)?;
    let browser = fields.text("userAgent");
    Ok(vec![Found {
        backend: fields.text("device"),
        date: (fields.text("timestamp")).map(|time| time.chars().take(10).collect()),
        decode_tokens: Some(tokens),
        ttft_ms: Some(metrics.needs("ttft", TOOL)?),
        total_tok_s: metrics.number("tokensPerSecond")?,
        decode_tok_s: (between > 0.0).then(|| 1e3 / between),
        notes: browser
            .map(|browser| format!("browser: {browser}"))
            .into_iter()
            .collect(),
        ..common
    }])
}

fn at_length(fields: &Fields<'_>, point: &Fields<'_>, common: &Found) -> Result<Found, String> {
    point.needs("promptTokens", TOOL)?;
    let ttft = point.number("ttftMs")?;
    Ok(Found {
        backend: fields.is("webgpu").then(|| "WebGPU".to_owned()),
        date: fields.text("date"),
        prompt_tokens: point.tokens("promptTokens")?,
        ttft_ms: ttft,
        decode_tok_s: point.number("decodeTokPerS")?,
        statistic: match point.count("ttftMsRuns") {
            0 => None,
            count => Some(format!("median of {count}")),
        },
        ..common.clone()
    })
}
