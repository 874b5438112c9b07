//! The name of the next run of a day.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::JournalError;

/// The first free run id of a day and topic: `2026-11-30-splitk`, then
/// `2026-11-30-splitk-2`, `-3`, ...
///
/// An id is taken when one of `dirs` has an entry of that name (a report's
/// folder) or of that name and `.jsonl` (a journal). A folder that does not
/// exist is empty. `date` is `YYYY-MM-DD`.
///
/// # Errors
/// `date` or `topic` cannot be part of a folder's name, or a folder cannot be
/// read.
pub fn next_run_id(dirs: &[&Path], date: &str, topic: &str) -> Result<String, JournalError> {
    if !is_date(date) {
        return Err(JournalError::Id {
            problem: format!("expected a date as YYYY-MM-DD, found {date:?}"),
        });
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if topic.is_empty() || !topic.chars().all(allowed) {
        return Err(JournalError::Id {
            problem: format!(
                "expected a topic of small letters, digits, '-' and '_', found {topic:?}"
            ),
        });
    }
    let taken = names(dirs)?;
    let first = format!("{date}-{topic}");
    if !taken.contains(&first) {
        return Ok(first);
    }
    // The set is finite, so some number below is free.
    let free = (2..=taken.len() + 2)
        .map(|number| format!("{first}-{number}"))
        .find(|id| !taken.contains(id));
    free.ok_or_else(|| JournalError::Id {
        problem: format!("no free number after {first}"),
    })
}

fn is_date(date: &str) -> bool {
    date.len() == 10
        && date.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

fn names(dirs: &[&Path]) -> Result<BTreeSet<String>, JournalError> {
    let mut names = BTreeSet::new();
    for dir in dirs {
        let io = |cause| JournalError::Io {
            path: (*dir).to_owned(),
            action: "listing the folder",
            cause,
        };
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(io(error)),
        };
        for entry in entries {
            let name = entry.map_err(io)?.file_name();
            let name = name.to_string_lossy();
            names.insert(name.strip_suffix(".jsonl").unwrap_or(&name).to_owned());
        }
    }
    Ok(names)
}
