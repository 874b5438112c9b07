//! Everything that was recorded, read from one folder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::external::{self, External};
use crate::history::{self, Entry, Standing};
use crate::journal::{AbRun, journals};
use crate::sheet::{self, CheckedKernel, KernelTime, Rows};

/// The records of a folder: `*.jsonl` journals, `*.csv` sheets, `external/*.jsonl`
/// and the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Store {
    /// Runs by the order of their files' names.
    pub runs: Vec<AbRun>,
    /// Timings of whole tokens, in the same order.
    pub benches: Vec<AbRun>,
    /// Samples of single kernels, by the sheet's name without its ending.
    pub kernel_times: Vec<(String, KernelTime)>,
    /// What kernels passed, by the sheet's name without its ending.
    pub checked_kernels: Vec<(String, CheckedKernel)>,
    /// Figures of other engines.
    pub external: Vec<External>,
    /// What was superseded or withdrawn.
    pub history: Vec<Entry>,
    /// Files that could not be read, each with the reason.
    pub refused: Vec<(PathBuf, String)>,
}

impl Store {
    /// Reads a folder, or one file of it. What cannot be read is named in
    /// [`Store::refused`] and does not stop the rest.
    ///
    /// # Errors
    /// The folder or file cannot be listed.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut store = Self::default();
        if path.is_file() {
            store.take(path);
            return Ok(store);
        }
        for file in sorted(path)? {
            store.take(&file);
        }
        let others = path.join(external::FOLDER);
        if others.is_dir() {
            for file in sorted(&others)? {
                store.take_external(&file);
            }
        }
        match history::read(path) {
            Ok(entries) => store.history = entries,
            Err(error) => store.refuse(&path.join(history::FILE), error.to_string()),
        }
        store.refuse_contradictions(path);
        Ok(store)
    }

    /// What became of a run.
    pub fn standing(&self, run: &str) -> Standing {
        self.entry(run).map_or(Standing::Current, |e| e.standing)
    }

    /// The last entry of a run in the history.
    pub fn entry(&self, run: &str) -> Option<&Entry> {
        self.history.iter().rev().find(|entry| entry.run == run)
    }

    /// The run of an id.
    pub fn run(&self, id: &str) -> Option<&AbRun> {
        self.runs.iter().find(|run| run.run.id == id)
    }

    fn take(&mut self, file: &Path) {
        let name = || file.file_stem().unwrap_or_default().to_string_lossy();
        match file.extension().and_then(|ending| ending.to_str()) {
            Some("jsonl") => match journals(file) {
                Ok(found) => {
                    for journal in found {
                        match journal.run.run.bench {
                            Some(_) => self.benches.push(journal.run),
                            None => self.runs.push(journal.run),
                        }
                    }
                }
                Err(error) => self.refuse(file, error.to_string()),
            },
            Some("csv") => match sheet::read(file) {
                Ok(Rows::KernelTimes(rows)) => {
                    let name = name();
                    let rows = rows.into_iter().map(|row| (name.to_string(), row));
                    self.kernel_times.extend(rows);
                }
                Ok(Rows::CheckedKernels(rows)) => {
                    let name = name();
                    let rows = rows.into_iter().map(|row| (name.to_string(), row));
                    self.checked_kernels.extend(rows);
                }
                Err(error) => self.refuse(file, error.to_string()),
            },
            Some(_) | None => {}
        }
    }

    fn take_external(&mut self, file: &Path) {
        match external::read(file) {
            Ok(found) => self.external.extend(found),
            Err(error) => self.refuse(file, error.to_string()),
        }
    }

    fn refuse(&mut self, file: &Path, reason: String) {
        self.refused.push((file.to_owned(), reason));
    }

    /// An id stands for one record, and the history for records that exist.
    fn refuse_contradictions(&mut self, folder: &Path) {
        let mut problems = Vec::new();
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        let ids = self.external.iter().map(|e| e.id.as_str());
        let runs = self.runs.iter().chain(&self.benches);
        for id in ids.chain(runs.map(|run| run.run.id.as_str())) {
            *count.entry(id).or_default() += 1;
        }
        for (id, count) in &count {
            if *count > 1 {
                problems.push(format!(
                    "{count} records have the id {id}; an id stands for one"
                ));
            }
        }
        for entry in &self.history {
            for id in std::iter::once(&entry.run).chain(&entry.by) {
                if !count.contains_key(id.as_str()) {
                    problems.push(format!(
                        "{}: names {id}, which is not recorded",
                        history::FILE
                    ));
                }
            }
        }
        for external in &self.external {
            if let Some(by) = external.superseded_by.as_deref()
                && !count.contains_key(by)
            {
                problems.push(format!(
                    "{}: superseded by {by}, which is not recorded",
                    external.id
                ));
            }
        }
        for problem in problems {
            self.refuse(folder, problem);
        }
    }
}

/// The files of a folder by name.
fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
