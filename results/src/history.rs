//! What became of results: superseded by a newer one, or withdrawn, with the reason.
//! A record itself is never changed; an entry here stands beside it for good.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The file's name in the folder of records.
pub const FILE: &str = "history.json";

/// What became of one result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The run's id.
    pub run: String,
    /// What it is now.
    pub standing: Standing,
    /// When that was found, `YYYY-MM-DD`.
    pub date: String,
    /// The run that takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why, for a reader who believed it.
    pub why: String,
}

/// Whether a result still counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It counts.
    #[default]
    Current,
    /// It was right when it was made; a newer one answers the same question.
    Superseded,
    /// It should not have been published: something was wrong with it.
    Withdrawn,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Current => "current",
            Self::Superseded => "superseded",
            Self::Withdrawn => "WITHDRAWN",
        })
    }
}

/// Why the history could not be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path}: {problem}; expected a JSON array of objects with run, standing (superseded or withdrawn), date, why, and by where a run takes its place"
)]
pub struct HistoryError {
    path: PathBuf,
    problem: String,
}

/// Reads the history of a folder of records; a folder without one has none.
///
/// # Errors
/// The file is not an array of entries, or an entry says nothing.
pub fn read(data: &Path) -> Result<Vec<Entry>, HistoryError> {
    let path = data.join(FILE);
    let wrong = |problem: String| HistoryError {
        path: path.clone(),
        problem,
    };
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|error| wrong(error.to_string()))?,
    };
    let entries: Vec<Entry> =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    for entry in &entries {
        let run = &entry.run;
        if entry.why.trim().is_empty() {
            return Err(wrong(format!("the entry of {run} gives no reason")));
        }
        match (entry.standing, &entry.by) {
            (Standing::Current, _) => {
                return Err(wrong(format!(
                    "the entry of {run} says `current`, which every result is without one"
                )));
            }
            (Standing::Superseded, None) => {
                return Err(wrong(format!(
                    "the entry of {run} says `superseded` and not by which run"
                )));
            }
            (Standing::Superseded | Standing::Withdrawn, _) => {}
        }
    }
    Ok(entries)
}
