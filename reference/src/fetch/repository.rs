//! A checkpoint folder: what is wanted of a repository, its shards several at a time,
//! and when a folder is whole.

use super::cache::{part_of, remove};
use super::hub::{Hub, Listing, Remote, Sibling};
use super::leftover::{entries, sha256_of_blob};
use super::verify::{Meter, Sum, require_size};
use super::{Download, Fetch};
use crate::convert::TEXT_FILES;
use crate::folder::{self, Shard};
use crate::{mlc, mlx, tensors};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Files that are under way at once.
const PARALLEL: usize = 4;
/// The largest file that is no shard: several times the largest tokenizer published.
const MAX_BESIDE_BYTES: u64 = 256 << 20;

/// Whether a file belongs to a checkpoint folder beside its shards.
fn is_beside(name: &str) -> bool {
    [mlc::CONFIG, mlx::CONFIG, tensors::INDEX].contains(&name)
        || mlc::INDEXES.contains(&name)
        || TEXT_FILES.contains(&name)
}

/// A file of the folder that is being made.
struct Wanted {
    name: String,
    target: PathBuf,
    remote: Remote,
}

impl Fetch<'_> {
    pub(super) fn folder_from_hub(&mut self) -> Result<PathBuf, String> {
        self.require_online()?;
        let Download { repo, revision, .. } = *self.download;
        let hub = Hub::new(self.sources);
        self.progress
            .phase(&format!("asking for the files of {repo}"));
        let listing = hub.listing(repo, revision)?;
        let part = part_of(&self.target());
        fs::create_dir_all(&part).map_err(|error| format!("{}: {error}", part.display()))?;

        // Small, and the hub states sums of large files alone: always anew, so that
        // they are of one commit.
        let beside = self.beside(&hub, &listing, &part)?;
        for wanted in &beside {
            for old in [&wanted.target, &part_of(&wanted.target)] {
                remove(old)?;
            }
        }
        self.bring_all(&hub, &beside, "configuration and tokenizer")?;
        let say = |error: folder::FolderError| error.to_string();
        folder::describe(&part).map_err(say)?;
        let shards = self.shards(&hub, &listing, &part)?;
        let names = beside.iter().chain(&shards).map(|w| w.name.as_str());
        remove_others(&part, &names.collect())?;
        self.bring_all(&hub, &shards, &format!("{} shards", shards.len()))?;
        folder::require_shards(&part).map_err(say)?;

        let target = self.target();
        fs::rename(&part, &target).map_err(|error| format!("{}: {error}", target.display()))?;
        let files: Vec<PathBuf> = beside
            .iter()
            .chain(&shards)
            .map(|wanted| target.join(&wanted.name))
            .collect();
        self.remember(&target, &files);
        Ok(target)
    }

    /// What the repository has beside its shards.
    fn beside(&self, hub: &Hub<'_>, listing: &Listing, part: &Path) -> Result<Vec<Wanted>, String> {
        let files = listing.siblings.iter();
        let files = files.filter(|file| is_beside(&file.rfilename));
        let beside: Vec<Wanted> = files
            .map(|file| self.wanted(hub, listing, file, part, None))
            .collect::<Result<_, _>>()?;
        for Wanted { name, remote, .. } in &beside {
            if remote.bytes > MAX_BESIDE_BYTES {
                return Err(format!(
                    "{name}: expected up to {MAX_BESIDE_BYTES} bytes, found {}",
                    remote.bytes
                ));
            }
        }
        let has = |name: &str| beside.iter().any(|wanted| wanted.name == name);
        if !has(mlc::CONFIG) && !has(mlx::CONFIG) {
            return Err(format!(
                "{} is no checkpoint folder: expected {} or {} among its files, found neither",
                self.download.repo,
                mlc::CONFIG,
                mlx::CONFIG
            ));
        }
        Ok(beside)
    }

    /// The shards that the index in `part` names.
    fn shards(&self, hub: &Hub<'_>, listing: &Listing, part: &Path) -> Result<Vec<Wanted>, String> {
        let shards = folder::shards(part).map_err(|error| error.to_string())?;
        if shards.is_empty() {
            return Err("expected files of weights in the index, found none".into());
        }
        let find = |shard: &Shard| {
            let mut files = listing.siblings.iter();
            files
                .find(|file| file.rfilename == shard.name)
                .ok_or_else(|| {
                    format!(
                        "expected {} among the files of {} at {}, found none; the index is of \
                         another version",
                        shard.name, self.download.repo, listing.sha
                    )
                })
        };
        shards
            .iter()
            .map(|shard| self.wanted(hub, listing, find(shard)?, part, Some(shard)))
            .collect()
    }

    /// A file of the list, of the size and sum that list and index state.
    fn wanted(
        &self,
        hub: &Hub<'_>,
        listing: &Listing,
        file: &Sibling,
        part: &Path,
        shard: Option<&Shard>,
    ) -> Result<Wanted, String> {
        let name = &file.rfilename;
        let bytes = file.size.ok_or_else(|| {
            format!("{name}: expected its size in the hub's list of files, found none")
        })?;
        if let Some(expected) = shard.and_then(|shard| shard.bytes)
            && expected != bytes
        {
            return Err(format!(
                "{name}: expected {expected} bytes as in the index, found {bytes} on the hub; they \
                 come from different versions"
            ));
        }
        let md5 = shard.and_then(|shard| shard.md5.clone()).map(Sum::Md5);
        let lfs = file.lfs.as_ref();
        let sha256 = lfs.map(|lfs| Sum::Sha256(lfs.sha256.to_ascii_lowercase()));
        Ok(Wanted {
            name: name.clone(),
            target: part.join(name),
            remote: Remote {
                url: hub.file_url(self.download.repo, &listing.sha, name),
                bytes,
                sum: md5.or(sha256),
            },
        })
    }

    /// Brings files, several at a time. One that is there and right stays.
    fn bring_all(&mut self, hub: &Hub<'_>, files: &[Wanted], what: &str) -> Result<(), String> {
        let sizes: Vec<u64> = files.iter().map(|wanted| wanted.remote.bytes).collect();
        let meter = Meter::new(self.progress, &sizes);
        meter.phase(&format!("downloading {}: {what}", self.download.repo));
        in_parallel(files, &meter, |i, wanted| {
            let Wanted {
                target,
                remote,
                name,
            } = wanted;
            if target.exists() {
                if remote.verify(target).is_ok() {
                    meter.at(i, remote.bytes);
                    return Ok(());
                }
                remove(target)?;
            }
            let brought = hub.bring(remote, target, (&meter, i));
            brought.map_err(|why| format!("{name}: {why}"))
        })
    }

    /// Refuses a folder that is not whole; returns its files.
    pub(super) fn verify_folder(&mut self, dir: &Path) -> Result<Vec<PathBuf>, String> {
        let say = |error: folder::FolderError| error.to_string();
        folder::describe(dir).map_err(say)?;
        let shards = folder::shards(dir).map_err(say)?;
        folder::require_shards(dir).map_err(say)?;
        let paths: Vec<PathBuf> = shards.iter().map(|shard| dir.join(&shard.name)).collect();
        let size = |path: &PathBuf| fs::metadata(path).map_or(0, |info| info.len());
        let meter = Meter::new(self.progress, &paths.iter().map(size).collect::<Vec<_>>());
        meter.phase(&format!("verifying {}", dir.display()));
        in_parallel(&shards, &meter, |i, shard| {
            let path = &paths[i];
            if let Some(bytes) = shard.bytes {
                require_size(path, bytes).map_err(|why| format!("{}: {why}", shard.name))?;
            }
            let md5 = shard.md5.clone().map(Sum::Md5);
            // Where nobody states a sum, the header fits the size.
            let Some(sum) = md5.or_else(|| sha256_of_blob(path).map(Sum::Sha256)) else {
                return Ok(());
            };
            let verified = sum.verify(path, &|done| meter.at(i, done));
            verified.map_err(|why| format!("{}: {why}", shard.name))
        })?;
        let beside = entries(dir).into_iter().filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(is_beside) && path.is_file()
        });
        Ok(beside.chain(paths).collect())
    }
}

/// Does the work of every item, several at a time; the first failure ends the others.
fn in_parallel<T: Sync>(
    items: &[T],
    meter: &Meter<'_>,
    work: impl Fn(usize, &T) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let run = || {
        while !meter.is_stopped() {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return };
            if let Err(why) = work(i, item) {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(why);
                meter.stop();
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL.min(items.len()) {
            scope.spawn(run);
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), Err)
}

/// Removes what an earlier commit had and this one has not.
fn remove_others(part: &Path, names: &BTreeSet<&str>) -> Result<(), String> {
    for path in entries(part) {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.map(|name| name.strip_suffix(".part").unwrap_or(name));
        if path.is_file() && name.is_none_or(|name| !names.contains(name)) {
            remove(&path)?;
        }
    }
    Ok(())
}
