//! Figures of other engines: what their authors published, dated, and what their own
//! tools measured, imported. None of them was measured by this workbench, and each says
//! what it was measured on, so that it can be refused or labelled in a comparison.

mod compare;
mod import;

pub use compare::{Comparison, Figure, Side, compare};
pub use import::{Given, ImportError, Tool, import};

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::history::Standing;

/// The folder of these records, in the folder of records.
pub const FOLDER: &str = "external";
/// Version of [`External`]; a reader refuses another.
pub const SCHEMA: u32 = 1;

/// One figure, or the figures of one run, of another engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct External {
    /// Version of this type, [`SCHEMA`].
    pub schema: u32,
    /// Its name here: small letters, digits, `-`, `_` and `.`.
    pub id: String,
    /// How it came here.
    pub kind: Kind,
    /// The engine, `llama.cpp` or `WebLLM`.
    pub engine: String,
    /// Its version or commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<String>,
    /// Where it was published, or the imported file's name.
    pub source: String,
    /// SHA-256 of the imported file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_sha256: Option<String>,
    /// Day of the measurement, `YYYY-MM-DD`, or its month where the day is not known.
    pub date: String,
    /// The device that computed.
    pub hardware: String,
    /// The API or library below the engine, `CUDA` or `WebGPU`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The model's id here, or its published name where it is not registered.
    pub model: String,
    /// The weights' format, as the engine names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<String>,
    /// Bytes of a weight with its share of scales, averaged over the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_weight: Option<f64>,
    /// What the prompt was: its name, or `random tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Tokens of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u32>,
    /// Tokens decoded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tokens: Option<u32>,
    /// Tokens decoded per second of the whole time, that of the prompt included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_tok_s: Option<f64>,
    /// Time to the first token, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// Tokens decoded per second after the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tok_s: Option<f64>,
    /// Prompt tokens per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_tok_s: Option<f64>,
    /// What the figures are: `median of 5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistic: Option<String>,
    /// Figures that were published beside each other have the same name here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<String>,
    /// Whether its authors still stand by it.
    #[serde(default)]
    pub standing: Standing,
    /// Why they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The record that takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<String>,
    /// Anything that a reader must know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// How a figure came here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Written down from what its authors published: a claim of theirs.
    Published,
    /// Read from the result file of another tool, which somebody ran.
    Imported,
}

impl Kind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Imported => "imported",
        }
    }
}

/// Why records of other engines could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct ExternalError {
    path: PathBuf,
    problem: String,
}

impl External {
    /// Says what is wrong with the record, if anything.
    ///
    /// # Errors
    /// What was expected and what was found.
    pub fn validate(&self) -> Result<(), String> {
        if self.schema != SCHEMA {
            return Err(format!(
                "schema {} is not the version {SCHEMA} of this build",
                self.schema
            ));
        }
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
        if self.id.is_empty() || !self.id.chars().all(plain) {
            return Err(format!(
                "id: expected small letters, digits, '-', '_' and '.', found {:?}",
                self.id
            ));
        }
        let id = &self.id;
        if !is_day(&self.date) {
            return Err(format!(
                "{id}: date: expected YYYY-MM-DD, or YYYY-MM where the day is not known, found {:?}",
                self.date
            ));
        }
        for (name, text) in [
            ("engine", &self.engine),
            ("source", &self.source),
            ("hardware", &self.hardware),
            ("model", &self.model),
        ] {
            if text.trim().is_empty() {
                return Err(format!(
                    "{id}: {name} is empty; a figure without it says nothing"
                ));
            }
        }
        let figures = [
            ("total_tok_s", self.total_tok_s),
            ("ttft_ms", self.ttft_ms),
            ("decode_tok_s", self.decode_tok_s),
            ("prefill_tok_s", self.prefill_tok_s),
        ];
        if figures.iter().all(|(_, figure)| figure.is_none()) {
            return Err(format!(
                "{id}: no figure; expected total_tok_s, ttft_ms, decode_tok_s or prefill_tok_s"
            ));
        }
        for (name, value) in figures
            .iter()
            .chain(&[("bytes_per_weight", self.bytes_per_weight)])
        {
            if value.is_some_and(|value| !(value.is_finite() && value > 0.0)) {
                return Err(format!(
                    "{id}: {name}: expected a number above 0, found {value:?}"
                ));
            }
        }
        if self.decode_tokens == Some(0) && (self.total_tok_s.or(self.decode_tok_s)).is_some() {
            return Err(format!(
                "{id}: a rate over 0 decoded tokens; the tokens were not counted"
            ));
        }
        let reasoned = self.why.as_ref().is_some_and(|why| !why.trim().is_empty());
        match self.standing {
            Standing::Current => Ok(()),
            Standing::Superseded | Standing::Withdrawn if reasoned => Ok(()),
            Standing::Superseded | Standing::Withdrawn => {
                Err(format!("{id}: {} without `why`", self.standing))
            }
        }
    }
}

fn is_day(date: &str) -> bool {
    let digits = |range: std::ops::Range<usize>| {
        (date.get(range)).is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let dash = |at: usize| date.as_bytes().get(at) == Some(&b'-');
    let month = digits(0..4) && dash(4) && digits(5..7);
    month && (date.len() == 7 || date.len() == 10 && dash(7) && digits(8..10))
}

/// Reads a file of records, one JSON document a line.
///
/// # Errors
/// The file cannot be read, or a line is no valid record; names the line.
pub fn read(path: &Path) -> Result<Vec<External>, ExternalError> {
    let wrong = |problem: String| ExternalError {
        path: path.to_owned(),
        problem,
    };
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let mut ids = BTreeSet::new();
    let mut records = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let at = |problem: String| wrong(format!("line {}: {problem}", index + 1));
        let record: External = serde_json::from_str(line).map_err(|error| at(error.to_string()))?;
        record.validate().map_err(at)?;
        if !ids.insert(record.id.clone()) {
            return Err(at(format!("a second record {}", record.id)));
        }
        records.push(record);
    }
    Ok(records)
}

/// The records as the text of a file.
///
/// # Errors
/// A record is not valid.
pub fn text(records: &[External]) -> Result<String, String> {
    let mut text = String::new();
    for record in records {
        record.validate()?;
        text.push_str(&serde_json::to_string(record).map_err(|error| error.to_string())?);
        text.push('\n');
    }
    Ok(text)
}
