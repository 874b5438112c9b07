//! Sizes and sums, the same for every source, and the memory of what was verified.

use super::cache::part_of;
use super::{Fetch, Progress, PublishedFile};
use crate::checkpoint::hex;
use crate::ranges;
use md5::Md5;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

const BUFFER_BYTES: usize = 1 << 20;

/// Where a verification is remembered, in the model's folder.
const MEMORY: &str = "verified.json";

/// What was verified, and as what.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Verified {
    identity: String,
    path: PathBuf,
    files: Vec<Stamp>,
}

/// A file as it was then.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stamp {
    file: PathBuf,
    bytes: u64,
    modified_ns: u64,
}

impl Stamp {
    fn of(file: &Path) -> io::Result<Self> {
        let info = fs::metadata(file)?;
        let since_epoch = info
            .modified()?
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            file: file.to_owned(),
            bytes: info.len(),
            modified_ns: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX),
        })
    }
}

impl Fetch<'_> {
    /// The weights that were verified before and are as they were then.
    pub(super) fn remembered(&self) -> Option<PathBuf> {
        let text = fs::read(self.dir.join(MEMORY)).ok()?;
        let verified: Verified = serde_json::from_slice(&text).ok()?;
        let same = |stamp: &Stamp| Stamp::of(&stamp.file).is_ok_and(|now| now == *stamp);
        let holds = verified.identity == self.download.identity()
            && !verified.files.is_empty()
            && verified.files.iter().all(same);
        holds.then_some(verified.path)
    }

    /// Best effort: what is not remembered is verified again by the next start.
    pub(super) fn remember(&self, path: &Path, files: &[PathBuf]) {
        let write = || -> io::Result<()> {
            let verified = Verified {
                identity: self.download.identity(),
                path: path.to_owned(),
                files: files
                    .iter()
                    .map(|f| Stamp::of(f))
                    .collect::<io::Result<_>>()?,
            };
            let memory = self.dir.join(MEMORY);
            fs::write(part_of(&memory), serde_json::to_vec(&verified)?)?;
            fs::rename(part_of(&memory), memory)
        };
        let _ = write();
    }

    /// Compares size and SHA-256 of a published file.
    pub(super) fn verify_file(&mut self, path: &Path, file: &PublishedFile) -> Result<(), String> {
        require_size(path, file.bytes)?;
        let meter = Meter::new(self.progress, &[file.bytes]);
        meter.phase(&format!("verifying {}", file.name));
        let sum = Sum::Sha256(file.sha256.into());
        sum.verify(path, &|done| meter.at(0, done))
    }
}

/// A sum that a file must have, in lower-case hex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    Sha256(String),
    Md5(String),
}

impl Sum {
    /// Compares a file's sum; `at` is told the bytes that are done.
    pub(super) fn verify(&self, path: &Path, at: &dyn Fn(u64)) -> Result<(), String> {
        let found = match self {
            Self::Sha256(_) => hashed::<Sha256>(path, at),
            Self::Md5(_) => hashed::<Md5>(path, at),
        };
        let found = found.map_err(|error| format!("{}: {error}", path.display()))?;
        self.check(&found)
    }

    /// Compares a sum that was found.
    pub(super) fn check(&self, found: &str) -> Result<(), String> {
        let (kind, expected) = match self {
            Self::Sha256(sum) => ("sha256", sum),
            Self::Md5(sum) => ("md5", sum),
        };
        if found == expected {
            Ok(())
        } else {
            Err(format!("{kind}: expected {expected}, found {found}"))
        }
    }
}

fn hashed<D: Digest>(path: &Path, at: &dyn Fn(u64)) -> io::Result<String> {
    let (mut hash, mut done) = (D::new(), 0);
    ranges::for_each_part(path, |part| {
        hash.update(part);
        done += part.len() as u64;
        at(done);
    })?;
    Ok(hex(&hash.finalize()))
}

/// Refuses a file of another size.
pub(super) fn require_size(path: &Path, expected: u64) -> Result<(), String> {
    let info = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let found = info.len();
    if found == expected {
        Ok(())
    } else {
        Err(format!("size: expected {expected} bytes, found {found}"))
    }
}

/// Bytes that are done of several files at once, told as one sum; and the word to stop.
pub(super) struct Meter<'p> {
    state: Mutex<State<'p>>,
    stopped: AtomicBool,
}

struct State<'p> {
    progress: &'p mut dyn Progress,
    done: Vec<u64>,
    total: u64,
}

impl<'p> Meter<'p> {
    pub(super) fn new(progress: &'p mut dyn Progress, sizes: &[u64]) -> Self {
        let state = State {
            progress,
            done: vec![0; sizes.len()],
            total: sizes.iter().sum(),
        };
        Self {
            state: Mutex::new(state),
            stopped: AtomicBool::new(false),
        }
    }

    fn with(&self, tell: impl FnOnce(&mut State<'p>)) {
        tell(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn phase(&self, text: &str) {
        self.with(|state| state.progress.phase(text));
    }

    /// So much of a file is done.
    pub(super) fn at(&self, file: usize, done: u64) {
        self.with(|state| {
            state.done[file] = done;
            let done = state.done.iter().sum();
            state.progress.bytes(done, state.total);
        });
    }

    /// Ends what is under way: another file failed.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// Reads to the end of a file of `total` bytes, of which `have` are there; more is an
/// error, and so is the word to stop.
pub(super) fn copy(
    from: &mut dyn Read,
    have: u64,
    total: u64,
    (meter, file): (&Meter<'_>, usize),
    mut to: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut done = have;
    let mut buffer = vec![0; BUFFER_BYTES];
    meter.at(file, done);
    while !meter.is_stopped() {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        done += read as u64;
        if done > total {
            let message = format!("more than the expected {total} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        to(&buffer[..read])?;
        meter.at(file, done);
    }
    Err(io::Error::other("stopped, since another file failed"))
}
