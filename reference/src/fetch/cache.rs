//! The workbench's own cache: a folder per model, in which one process at a
//! time writes. Every other source ends here or is remembered here.

use super::Fetch;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

impl Fetch<'_> {
    /// A file of the model's folder that belongs to the download.
    pub(super) fn name(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.download.file)
    }

    /// Where the verified file lies in the end.
    pub(super) fn target(&self) -> PathBuf {
        self.dir.join(self.download.file)
    }

    /// Where a verification of the cached file is remembered.
    pub(super) fn stamp(&self) -> PathBuf {
        self.dir.join(self.name(".verified"))
    }

    /// Held for as long as the file that it returns is open.
    pub(super) fn lock(&mut self) -> io::Result<File> {
        fs::create_dir_all(&self.dir)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.dir.join(".lock"))?;
        if file.try_lock().is_err() {
            self.progress
                .phase("waiting for another process that fetches the same model");
            file.lock()?;
        }
        Ok(file)
    }

    /// The file that is there already; a wrong one is removed.
    pub(super) fn own_cache(&mut self) -> Result<PathBuf, String> {
        let target = self.target();
        if !target.exists() {
            return Err("not there yet".into());
        }
        match self.verify_stamped(&target, &self.stamp()) {
            Ok(()) => Ok(target),
            Err(why) => match fs::remove_file(&target) {
                Ok(()) => Err(format!("{why}; removed")),
                Err(error) => Err(format!("{why}; cannot be removed: {error}")),
            },
        }
    }

    /// Puts a verified file into its place.
    pub(super) fn accept(&mut self, part: &Path) -> Result<PathBuf, String> {
        let target = self.target();
        File::open(part)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(part, &target))
            .map_err(|error| format!("{}: {error}", target.display()))?;
        self.write_stamp(&target, &self.stamp());
        Ok(target)
    }
}

/// Removes a file that may be absent.
pub(super) fn remove(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
