//! Whether a shard's bytes are hashed before they are used, and the stamps that say
//! which were.

use crate::ranges;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often a shard is compared with the md5 of its index. Its size always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Each time it is read.
    #[default]
    Always,
    /// Once for each size and time of change, as a stamp remembers.
    Once,
    /// Not at all.
    Never,
}

impl Verify {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Always, Self::Once, Self::Never];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Once => "once",
            Self::Never => "never",
        }
    }
}

/// How shards are verified.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verification<'a> {
    /// How often.
    pub verify: Verify,
    /// The folder of stamps, created where needed; without one nothing is remembered.
    pub stamps: Option<&'a Path>,
}

/// A file that was compared with an md5.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stamp {
    file: PathBuf,
    bytes: u64,
    modified_ns: u128,
    md5: String,
}

/// A change after the hash could leave a file's time as it was where clocks are this
/// coarse, so a file that is younger is not remembered.
const COARSEST_CLOCK: Duration = Duration::from_secs(2);

impl Verification<'_> {
    /// Whether a file must be hashed. Stamps that cannot be read say nothing.
    pub(crate) fn is_due(&self, path: &Path, md5: &str) -> bool {
        match self.verify {
            Verify::Always => true,
            Verify::Never => false,
            Verify::Once => match (self.stamps, stamp(path, md5)) {
                (Some(stamps), Ok(stamp)) => {
                    let known = fs::read(stamps.join(stamp.name()));
                    let known = known
                        .ok()
                        .and_then(|text| serde_json::from_slice(&text).ok());
                    known != Some(stamp)
                }
                (None, _) | (_, Err(_)) => true,
            },
        }
    }

    /// Remembers that a file has this md5. Best effort: without a stamp it is hashed
    /// again.
    pub(crate) fn remember(&self, path: &Path, md5: &str) {
        if let (Verify::Once, Some(stamps), Ok(stamp)) =
            (self.verify, self.stamps, stamp(path, md5))
        {
            let _ = write(stamps, &stamp);
        }
    }
}

fn stamp(path: &Path, md5: &str) -> io::Result<Stamp> {
    let info = fs::metadata(path)?;
    let modified = info.modified()?.duration_since(UNIX_EPOCH);
    Ok(Stamp {
        file: fs::canonicalize(path)?,
        bytes: info.len(),
        modified_ns: modified.map_err(io::Error::other)?.as_nanos(),
        md5: md5.to_owned(),
    })
}

impl Stamp {
    fn name(&self) -> String {
        let path = self.file.as_os_str().as_encoded_bytes();
        format!("{}.json", ranges::sha256_of_bytes(path))
    }
}

fn write(stamps: &Path, stamp: &Stamp) -> io::Result<()> {
    let age = SystemTime::now().duration_since(fs::metadata(&stamp.file)?.modified()?);
    if age.is_ok_and(|age| age >= COARSEST_CLOCK) {
        fs::create_dir_all(stamps)?;
        let partial = stamps.join(format!("{}.{}", stamp.name(), std::process::id()));
        fs::write(&partial, serde_json::to_vec(stamp)?)?;
        fs::rename(&partial, stamps.join(stamp.name()))?;
    }
    Ok(())
}
