//! Every report again from its journal.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use results::journal::AbRun;

use crate::{ReportError, Result, ab, porting};

/// What [`regenerate`] did.
#[derive(Debug, Default)]
pub struct Regenerated {
    /// Files written, by journal and then in the report's order.
    pub written: Vec<PathBuf>,
    /// Journals of runs that were stopped before anything was timed.
    pub skipped: Vec<PathBuf>,
    /// Journals without a report; the others were still made.
    pub refused: Vec<Refused>,
}

/// A journal that gave no report.
#[derive(Debug)]
pub struct Refused {
    /// The journal.
    pub journal: PathBuf,
    /// Why.
    pub reason: ReportError,
}

/// Makes the report of every journal `data_dir/*.jsonl` in
/// `reports_dir/<run id>/`, or of the run `only` (the journal's name without its
/// ending). A journal that cannot be reported is named and does not stop the
/// others. With all of them goes the page on ports.
///
/// # Errors
/// The folder cannot be read, or nothing is selected.
pub fn regenerate(data_dir: &Path, reports_dir: &Path, only: Option<&str>) -> Result<Regenerated> {
    let journals = journals(data_dir)?;
    let selected: Vec<&PathBuf> = match only {
        Some(id) => journals.get(id).into_iter().collect(),
        None => journals.values().collect(),
    };
    if selected.is_empty() {
        let names: Vec<&str> = journals.keys().map(String::as_str).collect();
        return Err(ReportError::NothingSelected {
            folder: data_dir.to_owned(),
            wanted: only.map_or_else(
                || "at least one journal (*.jsonl); measure first".to_owned(),
                |id| format!("the journal {id}.jsonl"),
            ),
            found: if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            },
        });
    }
    let mut done = Regenerated::default();
    for journal in selected {
        match report_of(journal, reports_dir) {
            Ok(Some(written)) => done.written.extend(written),
            Ok(None) => done.skipped.push(journal.clone()),
            Err(reason) => done.refused.push(Refused {
                journal: journal.clone(),
                reason,
            }),
        }
    }
    if only.is_none() {
        done.written.push(porting::write(reports_dir)?);
    }
    Ok(done)
}

/// The files of a run's report, or nothing where there is nothing to report.
fn report_of(journal: &Path, reports_dir: &Path) -> Result<Option<Vec<PathBuf>>> {
    let run = AbRun::load(journal)?;
    // A renamed copy would overwrite the report of the run that it copies.
    if journal.file_stem().and_then(|stem| stem.to_str()) != Some(run.run.id.as_str()) {
        return Err(ReportError::NothingSelected {
            folder: journal.to_owned(),
            wanted: format!("a journal named after its run, {}.jsonl", run.run.id),
            found: "another name".to_owned(),
        });
    }
    if run.was_stopped_early() {
        return Ok(None);
    }
    ab::write(&run, &reports_dir.join(&run.run.id)).map(Some)
}

/// The journals of a folder by name without ending.
fn journals(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let io = |cause| ReportError::Io {
        path: folder.to_owned(),
        action: "listing the journals",
        cause,
    };
    let mut journals = BTreeMap::new();
    let entries = match fs::read_dir(folder) {
        // Nothing was measured yet.
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(journals),
        entries => entries.map_err(io)?,
    };
    for entry in entries {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|ending| ending == "jsonl")
            && let Some(stem) = path.file_stem()
        {
            journals.insert(stem.to_string_lossy().into_owned(), path);
        }
    }
    Ok(journals)
}
