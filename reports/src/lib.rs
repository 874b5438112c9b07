//! Reports, made from records alone: Markdown, SVG and HTML, the same bytes for the
//! same records, on any machine and without a GPU.
//!
//! [`reports`] makes them all in memory; [`Pages`] writes them, or says in what those
//! that lie there differ.

pub mod ab;
mod bench;
mod claims;
mod doc;
mod html;
mod pages;
mod peers;
mod plot;
pub mod porting;
mod regenerate;
mod svg;
mod text;

pub use pages::Pages;
pub use regenerate::{Reports, reports};

use std::path::PathBuf;

use results::journal::JournalError;
use results::stats::StatsError;
use results::summary::SummaryError;

/// What the report functions return.
pub type Result<T> = std::result::Result<T, ReportError>;

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
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
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The run may not be reported.
    #[error(transparent)]
    Summary(#[from] SummaryError),
    /// The numbers of a plot or table are not of a measurement.
    #[error(transparent)]
    Stats(#[from] StatsError),
    /// No journal was selected.
    #[error("{folder}: expected {wanted}, found {found}")]
    NothingSelected {
        /// The folder of journals.
        folder: PathBuf,
        /// What was asked for.
        wanted: String,
        /// The ids that exist.
        found: String,
    },
}
