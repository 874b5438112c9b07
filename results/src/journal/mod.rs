//! The journal of a run: written line by line as things happen, so that a
//! killed run loses nothing but the line it was writing.

mod collection;
mod name;
mod reader;
mod writer;

pub use collection::{Journal, journals};
pub use name::next_run_id;
pub use reader::{AbRun, Measured};
pub use writer::JournalWriter;

use std::path::PathBuf;

/// Why a journal could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("{path}: {action} failed: {cause}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A run of this name was recorded before.
    #[error(
        "{path}: this run is already recorded and records are never overwritten; choose another run id"
    )]
    Exists {
        /// The journal in the way.
        path: PathBuf,
    },
    /// A line is not what the schema says.
    #[error("{path}:{line}: {problem}")]
    Malformed {
        /// The journal.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What was expected and what was found.
        problem: String,
    },
    /// The journal was written by another version.
    #[error(
        "{path}:{line}: journal of schema {found}, this build reads schema {known}; use the workbench of the commit that wrote it"
    )]
    Schema {
        /// The journal.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Version in the journal.
        found: String,
        /// Version of this build.
        known: u32,
    },
    /// There is no `run` line.
    #[error(
        "{path}: no `run` line, so nothing says what was measured; remove the file or measure again"
    )]
    NoRun {
        /// The journal.
        path: PathBuf,
    },
    /// A line that may not be appended.
    #[error("{path}: not appended: {problem}")]
    Refused {
        /// The journal.
        path: PathBuf,
        /// What was expected and what was found.
        problem: String,
    },
    /// A run id could not be made.
    #[error("run id: {problem}")]
    Id {
        /// What was expected and what was found.
        problem: String,
    },
}
