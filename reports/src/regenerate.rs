//! Every report again from its records.

use std::path::{Path, PathBuf};

use results::store::Store;

use crate::pages::Pages;
use crate::{ReportError, Result, ab, bench, claims, html, peers, porting};

/// The reports of a folder of records.
#[derive(Debug, Default)]
pub struct Reports {
    /// The files.
    pub pages: Pages,
    /// Journals of runs that were stopped before anything was timed.
    pub skipped: Vec<PathBuf>,
    /// Files without a report, each with the reason; the others were still made.
    pub refused: Vec<(PathBuf, String)>,
    store: Store,
}

/// Makes the reports of the records in `data`: of every run, and the pages over all of
/// them; or of the run `only` alone. A record that cannot be reported is named and does
/// not stop the others.
///
/// # Errors
/// The folder cannot be read, or nothing is selected.
pub fn reports(data: &Path, only: Option<&str>) -> Result<Reports> {
    let store = match Store::read(data) {
        // Nothing was measured yet.
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Store::default(),
        store => store.map_err(|cause| ReportError::Io {
            path: data.to_owned(),
            action: "reading the records",
            cause,
        })?,
    };
    let runs = store.runs.iter();
    let selected: Vec<_> = runs
        .filter(|run| only.is_none_or(|id| run.run.id == id))
        .collect();
    if selected.is_empty() && (only.is_some() || store.refused.is_empty()) {
        let ids: Vec<&str> = store.runs.iter().map(|run| run.run.id.as_str()).collect();
        return Err(ReportError::NothingSelected {
            folder: data.to_owned(),
            wanted: only.map_or_else(
                || "at least one journal (*.jsonl); measure first".to_owned(),
                |id| format!("the run {id}"),
            ),
            found: if ids.is_empty() {
                "none".to_owned()
            } else {
                ids.join(", ")
            },
        });
    }
    let mut made = Reports {
        refused: store.refused.clone(),
        ..Reports::default()
    };
    for run in selected {
        // Of two runs of one id, which the store names, the first is reported.
        let again = made
            .pages
            .files
            .keys()
            .any(|file| file.starts_with(&run.run.id));
        if again {
            continue;
        }
        if run.was_stopped_early() {
            made.skipped.push(run.journal.clone());
            continue;
        }
        match ab::files(run) {
            Ok(files) => {
                for (name, text) in files {
                    made.pages.add(Path::new(&run.run.id).join(name), text);
                }
            }
            Err(reason) => made.refused.push((run.journal.clone(), reason.to_string())),
        }
    }
    if only.is_none() {
        let docs = [&bench::page(&store)?, &peers::page(&store)];
        made.pages.add("index.html", html::page(&store, &docs));
        made.pages.add(porting::PAGE, porting::page());
        for (name, text) in docs.iter().flat_map(|doc| doc.files()) {
            made.pages.add(name, text);
        }
    }
    made.store = store;
    Ok(made)
}

impl Reports {
    /// What is wrong with the reports that lie in a folder, and with the numbers in the
    /// texts beside them, each with its name.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn check(&self, reports: &Path, texts: &[(&str, &str)]) -> Result<Vec<String>> {
        let mut found = self.pages.differences(reports)?;
        for (name, text) in texts {
            found.extend(claims::wrong(name, text, &self.store));
        }
        for (path, reason) in &self.refused {
            let path = path.display().to_string();
            found.push(if reason.starts_with(&path) {
                reason.clone()
            } else {
                format!("{path}: {reason}")
            });
        }
        Ok(found)
    }
}
