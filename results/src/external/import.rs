//! Result files of other tools as records.

mod fields;
mod generic;
mod llama_bench;
mod tjs;
mod webllm;

use std::collections::BTreeMap;

use serde_json::Value;

use super::{External, Kind, SCHEMA};
use crate::history::Standing;
use fields::Fields;

/// A tool whose result files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// llama.cpp's `llama-bench`, as `-o json`, `jsonl` or `csv`.
    LlamaBench,
    /// WebLLM: chat completions with their `usage`, or the `usage` alone, or a pair as
    /// Zero-TVM's `bench/results/*.json` has it.
    WebLlm,
    /// transformers.js: a benchmark page's export, or times to the first token by
    /// prompt length as Zero-TVM's `bench/results/provisional` has them.
    Tjs,
    /// Any tool: JSON, JSON lines or CSV with the fields of a record.
    Generic,
}

impl Tool {
    /// Every tool.
    pub const ALL: [Self; 4] = [Self::LlamaBench, Self::WebLlm, Self::Tjs, Self::Generic];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LlamaBench => "llama-bench",
            Self::WebLlm => "webllm",
            Self::Tjs => "tjs",
            Self::Generic => "generic",
        }
    }
}

/// What the user says about a file. It fills what the file does not say; what the
/// file says otherwise is an error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    /// Name of the file, as records show it.
    pub file: String,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Version of the engine.
    pub engine_version: Option<String>,
    /// The device that computed.
    pub hardware: Option<String>,
    /// The API or library below the engine.
    pub backend: Option<String>,
    /// The model, an id of this workbench.
    pub model: Option<String>,
    /// The weights' format.
    pub quantisation: Option<String>,
    /// Bytes of a weight with its share of scales.
    pub bytes_per_weight: Option<f64>,
    /// Day of the measurement, `YYYY-MM-DD`.
    pub date: Option<String>,
    /// What the prompt was.
    pub prompt: Option<String>,
}

/// Why a file was not imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct ImportError {
    file: String,
    problem: String,
}

/// Reads the records of a tool's result file.
///
/// # Errors
/// The text is not of the tool, or does not say what a record must and
/// [`Given`] does not either.
pub fn import(tool: Tool, text: &str, given: &Given) -> Result<Vec<External>, ImportError> {
    let wrong = |problem: String| ImportError {
        file: given.file.clone(),
        problem,
    };
    let documents = documents(text).map_err(wrong)?;
    let mut records = Vec::new();
    for document in &documents {
        let fields = Fields::of(document).map_err(wrong)?;
        let mut found = match tool {
            Tool::LlamaBench => llama_bench::records(&fields),
            Tool::WebLlm => webllm::records(&fields),
            Tool::Tjs => tjs::records(&fields),
            Tool::Generic => generic::records(&fields),
        }
        .map_err(wrong)?;
        records.append(&mut found);
    }
    if tool == Tool::WebLlm {
        records = webllm::repetitions(records);
    }
    if records.is_empty() {
        return Err(wrong("no result in it".to_owned()));
    }
    let mut ids: BTreeMap<String, usize> = BTreeMap::new();
    records
        .into_iter()
        .map(|found| {
            let mut record = found.record(given)?;
            let count = ids.entry(record.id.clone()).or_default();
            *count += 1;
            if *count > 1 {
                record.id = format!("{}-{count}", record.id);
            }
            record.validate()?;
            Ok(record)
        })
        .collect::<Result<_, String>>()
        .map_err(wrong)
}

/// The JSON objects of a text: an array's, one, one a line, or the rows of CSV.
fn documents(text: &str) -> Result<Vec<Value>, String> {
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Err("the file is empty".to_owned());
    }
    match serde_json::from_str(text) {
        Ok(Value::Array(values)) => return Ok(values),
        Ok(one) => return Ok(vec![one]),
        Err(_) => {}
    }
    if text.starts_with(['{', '[']) {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        return lines
            .enumerate()
            .map(|(at, line)| {
                serde_json::from_str(line)
                    .map_err(|error| format!("document {}: not JSON: {error}", at + 1))
            })
            .collect();
    }
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let rows: Result<Vec<BTreeMap<String, String>>, csv::Error> = reader.deserialize().collect();
    let rows = rows.map_err(|error| {
        format!("expected JSON, JSON lines or CSV with a head line, found neither: {error}")
    })?;
    let object = |row: BTreeMap<String, String>| {
        let filled = row.into_iter().filter(|(_, text)| !text.is_empty());
        Value::Object(
            filled
                .map(|(name, text)| (name, Value::String(text)))
                .collect(),
        )
    };
    Ok(rows.into_iter().map(object).collect())
}

/// What a file says of one result.
#[derive(Clone, Debug, Default, PartialEq)]
struct Found {
    engine: String,
    engine_version: Option<String>,
    hardware: Option<String>,
    backend: Option<String>,
    model: Option<String>,
    quantisation: Option<String>,
    bytes_per_weight: Option<f64>,
    date: Option<String>,
    prompt: Option<String>,
    prompt_tokens: Option<u32>,
    decode_tokens: Option<u32>,
    total_tok_s: Option<f64>,
    ttft_ms: Option<f64>,
    decode_tok_s: Option<f64>,
    prefill_tok_s: Option<f64>,
    statistic: Option<String>,
    /// Whether it was measured beside the file's other results.
    paired: bool,
    notes: Vec<String>,
}

impl Found {
    fn record(self, given: &Given) -> Result<External, String> {
        let or = |name: &str, found: Option<String>, given: &Option<String>| match (found, given) {
            (Some(found), Some(given)) if found != *given => Err(format!(
                "--{name} {given}: the file says `{found}`; leave the option out"
            )),
            (found, given) => Ok(found.or_else(|| given.clone())),
        };
        let needed = |name: &str, value: Option<String>| {
            value.ok_or_else(|| format!("the file does not say the {name}; give --{name}"))
        };
        // The file's name of a model is of its engine's own making; ours is for comparing.
        let mut notes = self.notes;
        let model = match (self.model, &given.model) {
            (Some(found), Some(given)) => {
                if found != *given {
                    notes.push(format!("the file calls the model {found}"));
                }
                given.clone()
            }
            (found, given) => needed("model", found.or_else(|| given.clone()))?,
        };
        let date = needed("date", or("date", self.date, &given.date)?)?;
        let hardware = needed("hardware", or("hardware", self.hardware, &given.hardware)?)?;
        let bytes_per_weight = match (self.bytes_per_weight, given.bytes_per_weight) {
            (Some(found), Some(given)) if (found / given - 1.0).abs() > 0.01 => {
                return Err(format!(
                    "--bytes-per-weight {given}: by the file it is {found:.3}; leave the option out"
                ));
            }
            (found, given) => found.or(given),
        };
        let id = slug(&format!("{} {date} {model}", self.engine));
        Ok(External {
            schema: SCHEMA,
            pair: self
                .paired
                .then(|| slug(&format!("{} {date} {model}", given.file))),
            id,
            kind: Kind::Imported,
            engine: self.engine,
            engine_version: or("engine-version", self.engine_version, &given.engine_version)?,
            source: given.file.clone(),
            source_sha256: Some(given.sha256.clone()),
            date,
            hardware,
            backend: or("backend", self.backend, &given.backend)?,
            model,
            quantisation: or("quantisation", self.quantisation, &given.quantisation)?,
            bytes_per_weight,
            prompt: or("prompt", self.prompt, &given.prompt)?,
            prompt_tokens: self.prompt_tokens,
            decode_tokens: self.decode_tokens,
            total_tok_s: self.total_tok_s,
            ttft_ms: self.ttft_ms,
            decode_tok_s: self.decode_tok_s,
            prefill_tok_s: self.prefill_tok_s,
            statistic: self.statistic,
            standing: Standing::Current,
            why: None,
            superseded_by: None,
            notes,
        })
    }
}

/// Words as an id.
fn slug(text: &str) -> String {
    let mut id = String::new();
    for c in text.to_lowercase().chars() {
        if c.is_ascii_alphanumeric() || c == '.' || c == '_' {
            id.push(c);
        } else if !id.ends_with('-') && !id.is_empty() {
            id.push('-');
        }
    }
    id.trim_end_matches('-').to_owned()
}

/// The middle one, or the mean of the two in the middle.
fn median(values: &[f64]) -> Option<f64> {
    crate::stats::median(values).ok()
}
