//! What other programs left in their caches, only read: it is used where it lies.

use super::{Fetch, Form};
use std::fs;
use std::path::{Path, PathBuf};

impl Fetch<'_> {
    /// The caches of other programs that may have the weights.
    pub(super) fn leftover_dirs(&self) -> Vec<&Path> {
        let mlc: &[PathBuf] = match self.download.form {
            Form::File(_) => &[],
            Form::Folder => &self.sources.mlc_cache_dirs,
        };
        let dirs = self.sources.hub_cache_dirs.iter().chain(mlc);
        dirs.map(PathBuf::as_path).collect()
    }

    /// Files or folders of them that have the name of the weights: of a hub's cache the
    /// commit of the revision first.
    pub(super) fn leftovers(&self) -> Vec<PathBuf> {
        let caches = self.sources.hub_cache_dirs.iter();
        match self.download.form {
            Form::File(file) => caches
                .flat_map(|dir| entries(dir))
                .filter(|repo| {
                    repo.file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with("models--"))
                })
                .flat_map(|repo| entries(&repo.join("snapshots")))
                .map(|snapshot| snapshot.join(file.name))
                .filter(|file| file.is_file())
                .collect(),
            Form::Folder => {
                let name = format!("models--{}", self.download.repo.replace('/', "--"));
                let snapshots = caches.flat_map(|dir| self.snapshots(&dir.join(&name)));
                let mlc = self.sources.mlc_cache_dirs.iter();
                let mlc = mlc.map(|dir| dir.join(self.download.repo));
                snapshots.chain(mlc).filter(|dir| dir.is_dir()).collect()
            }
        }
    }

    fn snapshots(&self, repo: &Path) -> Vec<PathBuf> {
        let mut all = entries(&repo.join("snapshots"));
        let commit = fs::read_to_string(repo.join("refs").join(self.download.revision));
        let commit = commit.unwrap_or_default();
        all.sort_by_key(|path| path.file_name().is_none_or(|name| name != commit.trim()));
        all
    }
}

/// The SHA-256 that the hub's cache has of a file: the name of the blob that a snapshot
/// links to, where it is one.
pub(super) fn sha256_of_blob(path: &Path) -> Option<String> {
    let blob = fs::canonicalize(path).ok()?;
    let name = blob.file_name()?.to_str()?;
    let is_sum = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
    (is_sum && blob.parent()?.file_name()? == "blobs").then(|| name.to_ascii_lowercase())
}

/// What is in a folder, sorted; nothing where it cannot be read.
pub(super) fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .map(|entries| entries.flatten().map(|e| e.path()).collect())
        .unwrap_or_default();
    paths.sort();
    paths
}
