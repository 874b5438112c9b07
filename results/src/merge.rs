//! Shards into one file: journals one after another, sheets row by row.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::journal::{JournalError, journals};
use crate::sheet::{self, SheetError};

/// What [`merge`] made of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The text of the joined file.
    pub text: String,
    /// What is in it: `2 runs` or `310 rows`.
    pub what: String,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// Why files were not merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// One of the files cannot be read, or is of another schema.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// One of the files is no sheet.
    #[error(transparent)]
    Sheet(#[from] SheetError),
    /// A CSV file could not be taken apart.
    #[error("{path}: {cause}")]
    Csv {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: csv::Error,
    },
    /// The files do not belong together.
    #[error("{first} and {second} cannot be merged: {why}")]
    Apart {
        /// A file.
        first: PathBuf,
        /// One that does not fit it.
        second: PathBuf,
        /// The reason, and what to do.
        why: String,
    },
    /// There is nothing to merge.
    #[error("expected at least two files (*.jsonl journals, or *.csv sheets), found {0}")]
    TooFew(usize),
}

/// Joins files of one schema, in the order given.
///
/// # Errors
/// Fewer than two files, one that cannot be read, files of different schemas, or
/// two that say different things of the same run or row.
pub fn merge(files: &[PathBuf]) -> Result<Merged, MergeError> {
    let [first, rest @ ..] = files else {
        return Err(MergeError::TooFew(0));
    };
    if rest.is_empty() {
        return Err(MergeError::TooFew(1));
    }
    let is_sheet = |path: &Path| path.extension().is_some_and(|ending| ending == "csv");
    if let Some(other) = rest.iter().find(|path| is_sheet(path) != is_sheet(first)) {
        return Err(apart(
            first,
            other,
            "one is a sheet (*.csv), the other a journal (*.jsonl); merge each kind by itself",
        ));
    }
    if is_sheet(first) {
        merge_sheets(files)
    } else {
        merge_journals(files)
    }
}

fn apart(first: &Path, second: &Path, why: impl Into<String>) -> MergeError {
    MergeError::Apart {
        first: first.to_owned(),
        second: second.to_owned(),
        why: why.into(),
    }
}

fn merge_journals(files: &[PathBuf]) -> Result<Merged, MergeError> {
    // Where each run stands first, and its lines.
    let mut seen: BTreeMap<String, (PathBuf, String)> = BTreeMap::new();
    let (mut text, mut notes) = (String::new(), Vec::new());
    for file in files {
        for journal in journals(file)? {
            let id = journal.run.run.id.clone();
            notes.extend(journal.run.notes.iter().map(|note| format!("{id}: {note}")));
            if let Some((first, lines)) = seen.get(&id) {
                if *lines != journal.text {
                    return Err(apart(
                        first,
                        file,
                        format!(
                            "both hold run {id}, with other lines; keep the whole one, or \
                             measure under another id"
                        ),
                    ));
                }
                notes.push(format!("{id}: in {} too, taken once", file.display()));
                continue;
            }
            text.push_str(&journal.text);
            seen.insert(id, (file.clone(), journal.text));
        }
    }
    Ok(Merged {
        text,
        what: format!("{} runs", seen.len()),
        notes,
    })
}

fn merge_sheets(files: &[PathBuf]) -> Result<Merged, MergeError> {
    let mut of: Option<(PathBuf, Vec<String>)> = None;
    let mut rows: Vec<csv::StringRecord> = Vec::new();
    let mut seen: BTreeMap<Vec<String>, PathBuf> = BTreeMap::new();
    let mut shards: BTreeMap<String, usize> = BTreeMap::new();
    for path in files {
        // Typed first: a row that is not of the columns is named.
        sheet::read(path)?;
        let wrong = |cause| MergeError::Csv {
            path: path.clone(),
            cause,
        };
        let mut reader = csv::Reader::from_path(path).map_err(wrong)?;
        let columns: Vec<String> = (reader.headers().map_err(wrong)?.iter())
            .map(str::to_owned)
            .collect();
        let kind = sheet::kind(path, &columns)?;
        let (first, expected) = of.get_or_insert_with(|| (path.clone(), columns.clone()));
        if *expected != columns {
            return Err(apart(
                first,
                path,
                format!(
                    "other columns: {} against {}",
                    expected.join(","),
                    columns.join(",")
                ),
            ));
        }
        let at = |name: &str| columns.iter().position(|column| column == name);
        for row in reader.records() {
            let row = row.map_err(wrong)?;
            let cells = kind.key().iter().filter_map(|name| at(name));
            let key: Vec<String> = cells.map(|at| row[at].to_owned()).collect();
            if let Some(first) = seen.insert(key.clone(), path.clone()) {
                return Err(apart(
                    &first,
                    path,
                    format!(
                        "both have the row {} ({}); a part was measured twice, leave one out",
                        key.join(", "),
                        kind.key().join(", ")
                    ),
                ));
            }
            if let Some(at) = at("shard") {
                *shards.entry(row[at].to_owned()).or_default() += 1;
            }
            rows.push(row);
        }
    }
    let Some((first, columns)) = of else {
        return Err(MergeError::TooFew(0));
    };
    let wrong = |cause| MergeError::Csv {
        path: first.clone(),
        cause,
    };
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&columns).map_err(wrong)?;
    for row in &rows {
        writer.write_record(row).map_err(wrong)?;
    }
    // Memory takes everything.
    let bytes = writer.into_inner().unwrap_or_default();
    Ok(Merged {
        text: String::from_utf8_lossy(&bytes).into_owned(),
        what: format!("{} rows", rows.len()),
        notes: missing(shards.keys().map(String::as_str)),
    })
}

/// Parts of a sweep of which none is there: a sum of those that are would pass for
/// the whole.
fn missing<'a>(shards: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for shard in shards {
        let parts = shard.split_once('/');
        if let Some((Ok(index), Ok(count))) = parts.map(|(i, n)| (i.parse(), n.parse())) {
            of.entry(count).or_default().push(index);
        }
    }
    let mut notes = Vec::new();
    for (count, found) in of {
        let gone: Vec<usize> = (1..=count).filter(|index| !found.contains(index)).collect();
        match gone.len() {
            0 => {}
            few @ 1..=8 => {
                let parts: Vec<String> = gone
                    .iter()
                    .map(|index| format!("{index}/{count}"))
                    .collect();
                let (s, are) = if few == 1 { ("", "is") } else { ("s", "are") };
                notes.push(format!("part{s} {} {are} not there", parts.join(", ")));
            }
            many => notes.push(format!("{many} of {count} parts are not there")),
        }
    }
    notes
}
