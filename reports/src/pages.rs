//! The files of all reports, made in memory: written, or held against those that lie
//! there.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{ReportError, Result};

/// Files by their path in the folder of reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Path and text.
    pub files: BTreeMap<PathBuf, String>,
}

impl Pages {
    pub(crate) fn add(&mut self, path: impl Into<PathBuf>, text: String) {
        self.files.insert(path.into(), text);
    }

    /// Writes every file, and removes pictures and pages of their folders that no record
    /// makes any more. Returns the files written.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write(&self, reports: &Path) -> Result<Vec<PathBuf>> {
        let mut written = Vec::new();
        for (file, text) in &self.files {
            let path = reports.join(file);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(io(folder, "creating the report's folder"))?;
            }
            fs::write(&path, text).map_err(io(&path, "writing the report"))?;
            written.push(path);
        }
        for stale in self.stale(reports)? {
            fs::remove_file(&stale).map_err(io(&stale, "removing an outdated picture"))?;
        }
        Ok(written)
    }

    /// What lies in the folder of reports and is not what the records give: files that
    /// differ, are missing, or that no record makes.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn differences(&self, reports: &Path) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for (file, text) in &self.files {
            let path = reports.join(file);
            match fs::read_to_string(&path) {
                Ok(there) if there == *text => {}
                Ok(there) => found.push(format!("{}: {}", path.display(), differs(&there, text))),
                Err(error) if error.kind() == ErrorKind::NotFound => found.push(format!(
                    "{}: is missing; run `cargo xtask report`",
                    path.display()
                )),
                Err(cause) => return Err(io(&path, "reading the report")(cause)),
            }
        }
        for stale in self.stale(reports)? {
            found.push(format!(
                "{}: no record makes it; run `cargo xtask report`",
                stale.display()
            ));
        }
        for folder in folders(reports)? {
            let made = |file: &PathBuf| file.starts_with(&folder);
            if is_dated(&folder) && !self.files.keys().any(made) {
                found.push(format!(
                    "{}: a report without a record; restore results/data/{}.jsonl, or remove the \
                     report",
                    reports.join(&folder).display(),
                    folder.display()
                ));
            }
        }
        Ok(found)
    }

    /// Pictures and pages beside those made here that are not made.
    fn stale(&self, reports: &Path) -> Result<Vec<PathBuf>> {
        let mut folders: Vec<&Path> = self.files.keys().filter_map(|file| file.parent()).collect();
        folders.dedup();
        // Beside the folders lie texts that people write.
        folders.retain(|folder| !folder.as_os_str().is_empty());
        let mut stale = Vec::new();
        for folder in folders {
            for name in names(&reports.join(folder))? {
                let file = folder.join(&name);
                let made =
                    ["svg", "md", "html"].map(|ending| name.ends_with(&format!(".{ending}")));
                if made.contains(&true) && !self.files.contains_key(&file) {
                    stale.push(reports.join(file));
                }
            }
        }
        Ok(stale)
    }
}

fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> ReportError {
    let path = path.to_owned();
    move |cause| ReportError::Io {
        path,
        action,
        cause,
    }
}

/// Where two texts part, in words.
fn differs(there: &str, made: &str) -> String {
    let lines = there.lines().zip(made.lines()).enumerate();
    let first = lines.into_iter().find(|(_, (a, b))| a != b);
    match first {
        Some((at, (a, b))) => format!(
            "line {} says `{}`, the records say `{}`; run `cargo xtask report`",
            at + 1,
            start_of(a),
            start_of(b)
        ),
        None => "is shorter or longer than the records make it; run `cargo xtask report`".into(),
    }
}

fn start_of(line: &str) -> String {
    let kept: String = line.chars().take(100).collect();
    if kept.len() < line.len() {
        kept + "\u{2026}"
    } else {
        kept
    }
}

/// Names in a folder, in order; one that does not exist has none.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io(folder, "listing the reports"))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io(folder, "listing the reports"))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn folders(reports: &Path) -> Result<Vec<PathBuf>> {
    let names = names(reports)?.into_iter().map(PathBuf::from);
    Ok(names.filter(|name| reports.join(name).is_dir()).collect())
}

/// Whether a folder is named as a run's is: by its day.
fn is_dated(folder: &Path) -> bool {
    let name = folder.to_string_lossy();
    let digits = |range| {
        let part: Option<&str> = name.get(range);
        part.is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    digits(0..4) && digits(5..7) && digits(8..10) && name.as_bytes()[4] == b'-'
}
