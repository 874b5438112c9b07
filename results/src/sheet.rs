//! Tables that are recorded as CSV: the times of single kernels and what kernels
//! passed, one row each. The head line is the schema.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One sample of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelTime {
    /// The model's id.
    pub model: String,
    /// The adapter's name.
    pub adapter: String,
    /// Version and build of the driver.
    pub driver: String,
    /// Whether GPU timestamps were used, which a test of known work qualified.
    pub timestamps: bool,
    /// Place in a layer, `qkv` for instance.
    pub site: String,
    /// The variant's id.
    pub variant: String,
    /// Rows and columns of the matrix, `9216 x 3072`; empty without one.
    pub shape: String,
    /// `cold`, `cold_dependent` or `warm`.
    pub mode: String,
    /// Dispatches of the site in one decoded token.
    pub dispatches_per_token: u64,
    /// Bytes of weights and scales that one dispatch reads.
    pub weight_bytes: u64,
    /// Sets of weights in turn.
    pub weight_sets: u64,
    /// Number of the sample, from 0.
    pub sample: u64,
    /// Dispatches of the sample.
    pub dispatches: u64,
    /// Time of all of them, nanoseconds.
    pub ns: u64,
    /// Operations of one dispatch with its weights, two for each multiply-add.
    #[serde(default)]
    pub weight_flops: Option<u64>,
    /// What the adapter reads at most, GB/s, as measured before; none of a CPU.
    #[serde(default)]
    pub roof_gb_s: Option<f64>,
}

/// What one kernel passed on one adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedKernel {
    /// The adapter's name.
    pub adapter: String,
    /// Version and build of the driver.
    pub driver: String,
    /// Seed that the cases follow from.
    pub seed: u64,
    /// The part of the sweep, `1/1` for the whole.
    pub shard: String,
    /// The variant's id.
    pub variant: String,
    /// Cases that ran.
    pub cases: u64,
    /// Those that passed.
    pub passed: u64,
    /// Those that failed.
    pub failed: u64,
    /// Cases that could not run for want of their data.
    pub skipped: u64,
    /// Why the variant did not run on the adapter; empty where it ran.
    pub unrun: String,
}

/// A kind of sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`KernelTime`] rows.
    KernelTimes,
    /// [`CheckedKernel`] rows.
    CheckedKernels,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::KernelTimes, Self::CheckedKernels];

    /// The columns, in order: the schema.
    pub const fn columns(self) -> &'static [&'static str] {
        match self {
            Self::KernelTimes => &[
                "model",
                "adapter",
                "driver",
                "timestamps",
                "site",
                "variant",
                "shape",
                "mode",
                "dispatches_per_token",
                "weight_bytes",
                "weight_sets",
                "sample",
                "dispatches",
                "ns",
                "weight_flops",
                "roof_gb_s",
            ],
            Self::CheckedKernels => &[
                "adapter", "driver", "seed", "shard", "variant", "cases", "passed", "failed",
                "skipped", "unrun",
            ],
        }
    }

    /// The last columns that a sheet may lack, because it is older than they are.
    const fn newer(self) -> usize {
        match self {
            Self::KernelTimes => 2,
            Self::CheckedKernels => 0,
        }
    }

    fn has(self, columns: &[String]) -> bool {
        let all = self.columns();
        columns == all || columns == &all[..all.len() - self.newer()]
    }

    /// The columns that name a row: no two rows of a sheet have the same there.
    pub const fn key(self) -> &'static [&'static str] {
        match self {
            Self::KernelTimes => &[
                "model", "adapter", "driver", "site", "variant", "shape", "mode", "sample",
            ],
            Self::CheckedKernels => &["adapter", "driver", "seed", "variant"],
        }
    }
}

/// A sheet's rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Rows {
    /// Times of single kernels.
    KernelTimes(Vec<KernelTime>),
    /// What kernels passed.
    CheckedKernels(Vec<CheckedKernel>),
}

/// Why a sheet could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct SheetError {
    path: PathBuf,
    problem: String,
}

/// The kind of sheet that has these columns.
///
/// # Errors
/// None has: says what each would have.
pub fn kind(path: &Path, columns: &[String]) -> Result<Kind, SheetError> {
    let mut kinds = Kind::ALL.into_iter();
    kinds.find(|kind| kind.has(columns)).ok_or_else(|| {
        let known: Vec<String> = Kind::ALL.map(|kind| kind.columns().join(",")).to_vec();
        SheetError {
            path: path.to_owned(),
            problem: format!(
                "expected a CSV file with the columns {}; found {}",
                known.join(", or "),
                columns.join(",")
            ),
        }
    })
}

/// Reads a sheet.
///
/// # Errors
/// The file cannot be read, its columns are of no sheet, or a row is not of them.
pub fn read(path: &Path) -> Result<Rows, SheetError> {
    let wrong = |error: csv::Error| SheetError {
        path: path.to_owned(),
        problem: error.to_string(),
    };
    let mut reader = csv::Reader::from_path(path).map_err(wrong)?;
    let columns: Vec<String> = (reader.headers().map_err(wrong)?.iter())
        .map(str::to_owned)
        .collect();
    match kind(path, &columns)? {
        Kind::KernelTimes => reader
            .deserialize()
            .collect::<Result<_, _>>()
            .map(Rows::KernelTimes),
        Kind::CheckedKernels => {
            (reader.deserialize().collect::<Result<_, _>>()).map(Rows::CheckedKernels)
        }
    }
    .map_err(wrong)
}

/// Refuses a path at which [`write`] could make no file, before its rows are measured.
/// Nothing is left there.
///
/// # Errors
/// The file exists already, or the file system refuses.
pub fn require_writable(path: &Path) -> Result<(), SheetError> {
    create(path)?;
    std::fs::remove_file(path).map_err(|error| refused(path, &error))
}

fn create(path: &Path) -> Result<std::fs::File, SheetError> {
    std::fs::File::create_new(path).map_err(|error| refused(path, &error))
}

fn refused(path: &Path, error: &std::io::Error) -> SheetError {
    let problem = if error.kind() == std::io::ErrorKind::AlreadyExists {
        "the file exists; name another".to_owned()
    } else {
        format!("writing failed: {error}; name a file in a folder that can be written to")
    };
    SheetError {
        path: path.to_owned(),
        problem,
    }
}

/// Writes rows with their head line.
///
/// # Errors
/// The file exists already, or the file system refuses.
pub fn write<R: Serialize>(path: &Path, rows: &[R]) -> Result<(), SheetError> {
    let wrong = |problem: String| SheetError {
        path: path.to_owned(),
        problem,
    };
    let mut writer = csv::Writer::from_writer(create(path)?);
    for row in rows {
        writer
            .serialize(row)
            .map_err(|error| wrong(error.to_string()))?;
    }
    writer.flush().map_err(|error| wrong(error.to_string()))
}
