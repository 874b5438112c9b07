//! The workbench's own cache: a folder per model, in which one process at a
//! time writes. Every other source ends here or is remembered here.

use super::{Fetch, Form};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

impl Fetch<'_> {
    /// Where the verified weights lie in the end.
    pub(super) fn target(&self) -> PathBuf {
        self.dir.join(self.download.name())
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

    /// Makes room for better weights: a wrong file is removed, a folder becomes its own
    /// part, whose good files are kept. Returns what is wrong with them and what became
    /// of them.
    pub(super) fn put_aside(&self, target: &Path, why: &str) -> String {
        let (done, moved) = match self.download.form {
            Form::File(_) => ("removed".to_owned(), fs::remove_file(target)),
            Form::Folder => {
                let part = part_of(target);
                let kept = format!("kept as {}, to be mended", part.display());
                (kept, fs::rename(target, part))
            }
        };
        match moved {
            Ok(()) => format!("{why}; {done}"),
            Err(error) => format!("{why}; cannot be put aside: {error}"),
        }
    }
}

/// Where something grows before it has its name.
pub(super) fn part_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".part");
    name.into()
}

/// Gives a verified part its name.
pub(super) fn accept(part: &Path, target: &Path) -> Result<(), String> {
    File::open(part)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(part, target))
        .map_err(|error| format!("{}: {error}", target.display()))
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
