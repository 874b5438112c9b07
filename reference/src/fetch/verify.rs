//! Size and SHA-256, the same for every source, and the stamps that remember
//! them by size and time of change.

use super::Fetch;
use crate::checkpoint::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

const BUFFER_BYTES: usize = 1 << 20;

/// A remembered verification.
#[derive(PartialEq, Serialize, Deserialize)]
struct Stamp {
    path: String,
    bytes: u64,
    modified_ns: u64,
    sha256: String,
}

impl Stamp {
    fn of(path: &Path, sha256: &str) -> io::Result<Self> {
        let info = fs::metadata(path)?;
        let since_epoch = info
            .modified()?
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            path: path.to_string_lossy().into_owned(),
            bytes: info.len(),
            modified_ns: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX),
            sha256: sha256.to_owned(),
        })
    }
}

impl Fetch<'_> {
    pub(super) fn stamp_matches(&self, stamp: &Path, path: &Path) -> bool {
        let read = || {
            let remembered: Stamp = serde_json::from_slice(&fs::read(stamp).ok()?).ok()?;
            let now = Stamp::of(path, self.download.sha256).ok()?;
            Some(remembered == now && now.bytes == self.download.bytes)
        };
        read().unwrap_or(false)
    }

    pub(super) fn verify_stamped(&mut self, path: &Path, stamp: &Path) -> Result<(), String> {
        if self.stamp_matches(stamp, path) {
            return Ok(());
        }
        self.verify(path)?;
        self.write_stamp(path, stamp);
        Ok(())
    }

    /// Best effort: without a stamp the next start verifies again.
    pub(super) fn write_stamp(&self, path: &Path, stamp: &Path) {
        if let Ok(now) = Stamp::of(path, self.download.sha256)
            && let Ok(text) = serde_json::to_vec(&now)
        {
            let _ = fs::write(stamp, text);
        }
    }

    /// Compares size and checksum.
    pub(super) fn verify(&mut self, path: &Path) -> Result<(), String> {
        let found = fs::metadata(path).map_err(|e| e.to_string())?.len();
        let expected = self.download.bytes;
        if found != expected {
            return Err(format!("size: expected {expected} bytes, found {found}"));
        }
        self.progress
            .phase(&format!("verifying {}", self.download.file));
        let mut hash = Sha256::new();
        let mut file = File::open(path).map_err(|e| e.to_string())?;
        self.copy(&mut file, 0, |bytes| {
            hash.update(bytes);
            Ok(())
        })
        .map_err(|e| e.to_string())?;
        self.check_sha256(&hex(&hash.finalize()))
    }

    pub(super) fn check_sha256(&self, found: &str) -> Result<(), String> {
        let expected = self.download.sha256;
        if found == expected {
            Ok(())
        } else {
            Err(format!("sha256: expected {expected}, found {found}"))
        }
    }

    /// Reads from `have` on to the end, telling the progress; more than the
    /// file's size is an error.
    pub(super) fn copy(
        &mut self,
        from: &mut dyn Read,
        have: u64,
        mut to: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let total = self.download.bytes;
        let mut done = have;
        let mut buffer = vec![0; BUFFER_BYTES];
        self.progress.bytes(done, total);
        loop {
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
            self.progress.bytes(done, total);
        }
    }
}
