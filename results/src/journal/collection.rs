//! Several journals in one file, one after another, as `results merge` writes them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{AbRun, JournalError};

/// One journal of a file, with its own lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Journal {
    /// The run.
    pub run: AbRun,
    /// Its lines as they stand there, each with its newline; a torn one is left out.
    pub text: String,
}

/// Reads every journal of a file: a new one begins at each `run` line.
///
/// # Errors
/// As [`AbRun::load`], with the numbers of the file's lines.
pub fn journals(path: &Path) -> Result<Vec<Journal>, JournalError> {
    let bytes = fs::read(path).map_err(|cause| JournalError::Io {
        path: path.to_owned(),
        action: "reading the journal",
        cause,
    })?;
    let mut parts: Vec<(usize, Vec<u8>)> = Vec::new();
    for (index, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
        match parts.last_mut() {
            Some((_, part)) if !begins(line) => part.extend_from_slice(line),
            Some(_) | None => parts.push((index, line.to_vec())),
        }
    }
    if parts.is_empty() {
        parts.push((0, Vec::new()));
    }
    parts
        .into_iter()
        .map(|(before, bytes)| {
            let run = AbRun::parse(path, &bytes).map_err(|error| below(error, before))?;
            // The reader leaves a torn line out; what follows it here may not join it.
            let text = String::from_utf8_lossy(&bytes);
            let whole: String = (text.split_inclusive('\n'))
                .filter(|line| line.ends_with('\n') && is_json(line))
                .collect();
            Ok(Journal { text: whole, run })
        })
        .collect()
}

fn is_json(line: &str) -> bool {
    serde_json::from_str::<Value>(line).is_ok()
}

/// Whether a journal begins at this line.
fn begins(line: &[u8]) -> bool {
    let value: Option<Value> = serde_json::from_slice(line).ok();
    value.is_some_and(|value| value.get("kind").and_then(Value::as_str) == Some("run"))
}

/// The same error of a part that begins after `before` lines.
fn below(error: JournalError, before: usize) -> JournalError {
    match error {
        JournalError::Malformed {
            path,
            line,
            problem,
        } => JournalError::Malformed {
            path,
            line: line + before,
            problem,
        },
        JournalError::Schema {
            path,
            line,
            found,
            known,
        } => JournalError::Schema {
            path,
            line: line + before,
            found,
            known,
        },
        other @ (JournalError::Io { .. }
        | JournalError::Exists { .. }
        | JournalError::NoRun { .. }
        | JournalError::Refused { .. }
        | JournalError::Id { .. }) => other,
    }
}
