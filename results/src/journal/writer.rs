//! The append-only writer.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::{AbRun, JournalError};
use crate::record::{Arm, Line, Run};

/// Appends lines to a new journal.
///
/// Each line reaches the system in one write, so a kill leaves at most one torn
/// line, the last.
#[derive(Debug)]
pub struct JournalWriter {
    path: PathBuf,
    file: File,
    ended: bool,
}

impl JournalWriter {
    /// Creates the journal (and its folder) and writes the first line.
    ///
    /// # Errors
    /// The run line is invalid, the journal exists already, or the file system
    /// refuses.
    pub fn create(path: &Path, run: &Run) -> Result<Self, JournalError> {
        run.validate().map_err(|problem| JournalError::Refused {
            path: path.to_owned(),
            problem,
        })?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|cause| JournalError::Io {
                path: folder.to_owned(),
                action: "creating the folder",
                cause,
            })?;
        }
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(path)
            .map_err(|cause| {
                let path = path.to_owned();
                if cause.kind() == ErrorKind::AlreadyExists {
                    JournalError::Exists { path }
                } else {
                    JournalError::Io {
                        path,
                        action: "creating the journal",
                        cause,
                    }
                }
            })?;
        let mut writer = Self {
            path: path.to_owned(),
            file,
            ended: false,
        };
        writer.write(&Line::Run(Box::new(run.clone())))?;
        Ok(writer)
    }

    /// Opens the journal of a run that has not ended, to go on. A torn last line, of a
    /// process that was killed while it wrote, is cut off.
    ///
    /// # Errors
    /// The run has ended, the journal cannot be read ([`AbRun::load`]), or the file
    /// system refuses.
    pub fn reopen(path: &Path) -> Result<Self, JournalError> {
        let io = |action| {
            move |cause| JournalError::Io {
                path: path.to_owned(),
                action,
                cause,
            }
        };
        if AbRun::load(path)?.end.is_some() {
            return Err(JournalError::Refused {
                path: path.to_owned(),
                problem: "the journal already has its `end` line".to_owned(),
            });
        }
        let bytes = fs::read(path).map_err(io("reading the journal"))?;
        let mut file = OpenOptions::new()
            .append(true)
            .open(path)
            .map_err(io("opening the journal"))?;
        let whole = whole_lines(&bytes);
        if whole < bytes.len() {
            file.set_len(whole as u64)
                .and_then(|()| file.flush())
                .map_err(io("cutting off a torn line"))?;
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            ended: false,
        })
    }

    /// Appends one line.
    ///
    /// # Errors
    /// The line may not stand here (a second `run`, anything after `end`, a
    /// check that contradicts itself), or the file system refuses.
    pub fn append(&mut self, line: &Line) -> Result<(), JournalError> {
        self.admit(line).map_err(|problem| JournalError::Refused {
            path: self.path.clone(),
            problem,
        })?;
        self.write(line)?;
        self.ended = matches!(line, Line::End(_));
        Ok(())
    }

    /// The journal's file, as given to [`JournalWriter::create`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn admit(&self, line: &Line) -> Result<(), String> {
        if self.ended {
            return Err("the journal already has its `end` line".to_owned());
        }
        admit_after_run(line)
    }

    fn write(&mut self, line: &Line) -> Result<(), JournalError> {
        let mut text = serde_json::to_string(line).map_err(|error| JournalError::Refused {
            path: self.path.clone(),
            problem: error.to_string(),
        })?;
        text.push('\n');
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.flush())
            .map_err(|cause| JournalError::Io {
                path: self.path.clone(),
                action: "appending",
                cause,
            })
    }
}

/// Bytes of the lines that are whole and JSON.
fn whole_lines(bytes: &[u8]) -> usize {
    let end = bytes
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |at| at + 1);
    let last = bytes[..end.saturating_sub(1)]
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |at| at + 1);
    match serde_json::from_slice::<serde_json::Value>(&bytes[last..end]) {
        Ok(_) => end,
        Err(_) => last,
    }
}

/// What a line after the first must fulfil; the reader asks the same.
///
/// A sample's own time is judged with the statistics, where the message can say
/// what becomes of the verdict.
pub(super) fn admit_after_run(line: &Line) -> Result<(), String> {
    match line {
        Line::Run(_) => {
            Err("a second `run` line; a journal holds one run, use a new journal".to_owned())
        }
        Line::Check(check) => check.validate(),
        Line::Prefill(prefill) => timed("prefill", prefill.tokens, prefill.wall_ns),
        Line::Sample(sample) => sample
            .spans
            .iter()
            .try_for_each(|span| timed("span", span.tokens, span.wall_ns)),
        Line::Context(context) if context.arm == Arm::Control => {
            Err("a `context` line of arm A'; the sweep is of arms A and B only".to_owned())
        }
        Line::Context(context) => timed("context", context.tokens, context.wall_ns),
        Line::Quality(quality) if !(quality.nll.is_finite() && quality.tokens > 0) => Err(format!(
            "quality: expected a finite nll of at least 1 token, found {} of {}",
            quality.nll, quality.tokens
        )),
        Line::Sentinel(sentinel) => timed("sentinel", 1, sentinel.wall_ns),
        Line::Quality(_) | Line::Replicate(_) | Line::ReplicateEnd(_) | Line::End(_) => Ok(()),
    }
}

fn timed(what: &str, tokens: u32, wall_ns: u64) -> Result<(), String> {
    if tokens == 0 || wall_ns == 0 {
        return Err(format!(
            "{what}: expected at least 1 token and a time above 0, found {tokens} tokens in {wall_ns} ns"
        ));
    }
    Ok(())
}
