//! The reader: a journal as typed lines.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::JournalError;
use super::writer::admit_after_run;
use crate::record::{
    Check, Context, End, Line, Mode, Prefill, Quality, Replicate, ReplicateEnd, Run, SCHEMA,
    Sample, Sentinel, Status,
};

/// A complete replicate of a published run. Its samples are those of its blocks,
/// `index * blocks` and on.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// How it began.
    pub begin: Replicate,
    /// The sentinel after each of its blocks.
    pub sentinels: Vec<Sentinel>,
    /// How it ended.
    pub end: ReplicateEnd,
}

/// An A/B run as its journal tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct AbRun {
    /// The journal's file, as given to [`AbRun::load`].
    pub journal: PathBuf,
    /// What was measured, on what, and how.
    pub run: Run,
    /// Checks in the order made.
    pub checks: Vec<Check>,
    /// Timed prefills in the order made.
    pub prefills: Vec<Prefill>,
    /// Timed elements in the order made.
    pub samples: Vec<Sample>,
    /// The sweep of time per token against context length.
    pub context: Vec<Context>,
    /// What the arms make of a text, in the order read.
    pub quality: Vec<Quality>,
    /// Complete replicates of a published run, by index.
    pub replicates: Vec<Measured>,
    /// How the run ended; absent after a kill.
    pub end: Option<End>,
    /// What the reader had to do to read it (a torn last line dropped).
    pub notes: Vec<String>,
}

impl AbRun {
    /// Reads a journal.
    ///
    /// A torn last line (without its newline, or not JSON) is dropped and noted
    /// in [`AbRun::notes`].
    ///
    /// # Errors
    /// The file cannot be read, has no `run` line, is of another schema, or has
    /// a malformed line, which is named.
    pub fn load(path: &Path) -> Result<Self, JournalError> {
        let bytes = fs::read(path).map_err(|cause| JournalError::Io {
            path: path.to_owned(),
            action: "reading the journal",
            cause,
        })?;
        Self::parse(path, &bytes)
    }

    /// The number of the replicate that a block belongs to, in a published run.
    pub fn replicate_of(&self, block: u32) -> Option<usize> {
        let publish = self.run.publish.as_ref()?;
        Some((block / publish.blocks) as usize)
    }

    /// Whether it was stopped, or killed, before the first timed element.
    pub fn was_stopped_early(&self) -> bool {
        self.samples.is_empty() && self.status() == Status::Interrupted
    }

    /// How the run ended. A journal without `end` is one of an interrupted run.
    pub fn status(&self) -> Status {
        self.end
            .as_ref()
            .map_or(Status::Interrupted, |end| end.status)
    }

    /// Why the run did not complete, where that is known.
    pub fn status_reason(&self) -> Option<&str> {
        match &self.end {
            Some(end) => end.reason.as_deref(),
            None => Some("the journal has no `end` line: the run was killed or is still going"),
        }
    }

    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, JournalError> {
        let (texts, torn) = split_lines(bytes);
        let malformed = |line: usize, problem: String| JournalError::Malformed {
            path: path.to_owned(),
            line,
            problem,
        };
        let mut notes = Vec::new();
        let mut lines = Vec::with_capacity(texts.len());
        let last = texts.len();
        for (index, text) in texts.iter().enumerate() {
            let number = index + 1;
            match serde_json::from_slice::<Value>(text) {
                Ok(value) => lines.push((number, typed(path, number, value)?)),
                Err(_) if number == last && torn.is_none() => notes.push(torn_note(number)),
                Err(error) => return Err(malformed(number, format!("not JSON: {error}"))),
            }
        }
        if torn.is_some() {
            notes.push(torn_note(last + 1));
        }

        let mut lines = lines.into_iter();
        let run = match lines.next() {
            Some((number, Line::Run(run))) => {
                run.validate()
                    .map_err(|problem| malformed(number, problem))?;
                *run
            }
            // Whether the run line is missing or merely late decides the message.
            Some((number, _)) if lines.any(|(_, line)| matches!(line, Line::Run(_))) => {
                return Err(malformed(
                    number,
                    "expected the `run` line to be the first".to_owned(),
                ));
            }
            Some(_) | None => {
                return Err(JournalError::NoRun {
                    path: path.to_owned(),
                });
            }
        };
        let mut loaded = Self {
            journal: path.to_owned(),
            run,
            checks: Vec::new(),
            prefills: Vec::new(),
            samples: Vec::new(),
            context: Vec::new(),
            quality: Vec::new(),
            replicates: Vec::new(),
            end: None,
            notes,
        };
        let mut open = None;
        for (number, line) in lines {
            loaded
                .take(line, &mut open)
                .map_err(|problem| malformed(number, problem))?;
        }
        if let Some(open) = open {
            loaded.drop_incomplete(open);
        }
        Ok(loaded)
    }

    /// Leaves a replicate without its end out.
    fn drop_incomplete(&mut self, open: Open) {
        self.checks.truncate(open.checks);
        self.samples.truncate(open.samples);
        self.prefills.truncate(open.prefills);
        self.notes.push(format!(
            "replicate {} was stopped before its end and is left out",
            open.begin.index
        ));
    }

    /// Takes a line of a replicate; gives back any other.
    fn take_of_replicate(
        &mut self,
        line: Line,
        open: &mut Option<Open>,
    ) -> Result<Option<Line>, String> {
        let published = self.run.mode == Mode::Published;
        match (line, open.as_mut()) {
            (Line::Replicate(_) | Line::Sentinel(_) | Line::ReplicateEnd(_), _) if !published => {
                Err("a line of a replicate, which a run that is not published has not".to_owned())
            }
            (Line::Replicate(begin), _) => {
                if let Some(killed) = open.take() {
                    self.drop_incomplete(killed);
                }
                let next = self.replicates.len();
                if begin.index as usize != next {
                    return Err(format!(
                        "expected replicate {next}, found replicate {}",
                        begin.index
                    ));
                }
                *open = Some(Open {
                    begin,
                    sentinels: Vec::new(),
                    checks: self.checks.len(),
                    samples: self.samples.len(),
                    prefills: self.prefills.len(),
                });
                Ok(None)
            }
            (Line::Sentinel(sentinel), Some(open)) => {
                open.sentinels.push(sentinel);
                Ok(None)
            }
            (Line::ReplicateEnd(end), Some(_)) => {
                if let Some(done) = open.take() {
                    if end.index != done.begin.index {
                        return Err(format!(
                            "the end of replicate {} in replicate {}",
                            end.index, done.begin.index
                        ));
                    }
                    self.replicates.push(Measured {
                        begin: done.begin,
                        sentinels: done.sentinels,
                        end,
                    });
                }
                Ok(None)
            }
            (Line::Sentinel(_) | Line::ReplicateEnd(_), None) => {
                Err("a line of a replicate outside any".to_owned())
            }
            (Line::Sample(_), None) if published => {
                Err("a sample outside any replicate of a published run".to_owned())
            }
            (line, _) => Ok(Some(line)),
        }
    }

    fn take(&mut self, line: Line, open: &mut Option<Open>) -> Result<(), String> {
        if self.end.is_some() {
            return Err("a line after the `end` line".to_owned());
        }
        admit_after_run(&line)?;
        if let Some(arm) = line.arm().filter(|arm| !self.run.timed().contains(arm)) {
            return Err(format!(
                "a line of arm {arm}, which a run of {} arms has not",
                self.run.arms.len()
            ));
        }
        let Some(line) = self.take_of_replicate(line, open)? else {
            return Ok(());
        };
        match line {
            Line::Run(_) | Line::Replicate(_) | Line::Sentinel(_) | Line::ReplicateEnd(_) => {}
            Line::Check(check) => self.checks.push(check),
            Line::Prefill(prefill) => self.prefills.push(prefill),
            Line::Sample(sample) => self.samples.push(sample),
            Line::Context(context) => self.context.push(context),
            Line::Quality(quality) => self.quality.push(quality),
            Line::End(end) => self.end = Some(end),
        }
        Ok(())
    }
}

/// A replicate whose end was not read yet, and what was read before it.
struct Open {
    begin: Replicate,
    sentinels: Vec<Sentinel>,
    checks: usize,
    samples: usize,
    prefills: usize,
}

/// The whole lines, and what stands after the last newline, if anything.
fn split_lines(bytes: &[u8]) -> (Vec<&[u8]>, Option<&[u8]>) {
    let mut lines: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
    let torn = lines.pop().filter(|rest| !rest.is_empty());
    (lines, torn)
}

fn torn_note(line: usize) -> String {
    format!("line {line} of the journal was torn by a kill and is left out")
}

fn typed(path: &Path, line: usize, value: Value) -> Result<Line, JournalError> {
    // The version first: another schema's fields would only confuse the message.
    if value.get("kind").and_then(Value::as_str) == Some("run") {
        let schema = value.get("schema");
        if schema.and_then(Value::as_u64) != Some(u64::from(SCHEMA)) {
            return Err(JournalError::Schema {
                path: path.to_owned(),
                line,
                found: schema.map_or_else(|| "none".to_owned(), Value::to_string),
                known: SCHEMA,
            });
        }
    }
    serde_json::from_value(value).map_err(|error| JournalError::Malformed {
        path: path.to_owned(),
        line,
        problem: error.to_string(),
    })
}
