//! An existing Hugging Face hub cache, only read: its files are used where they lie.

use super::Fetch;
use std::fs;
use std::path::{Path, PathBuf};

impl Fetch<'_> {
    /// Files of this name in the hub caches, sorted.
    pub(super) fn hub_cache_files(&self) -> Vec<PathBuf> {
        let entries = |dir: &Path| -> Vec<PathBuf> {
            let mut paths: Vec<PathBuf> = fs::read_dir(dir)
                .map(|entries| entries.flatten().map(|e| e.path()).collect())
                .unwrap_or_default();
            paths.sort();
            paths
        };
        self.sources
            .hub_cache_dirs
            .iter()
            .flat_map(|dir| entries(dir))
            .filter(|repo| {
                repo.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("models--"))
            })
            .flat_map(|repo| entries(&repo.join("snapshots")))
            .map(|snapshot| snapshot.join(self.download.file))
            .filter(|file| file.is_file())
            .collect()
    }
}
