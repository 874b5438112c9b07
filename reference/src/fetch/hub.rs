//! The hub over HTTPS, resuming where a connection was cut.

use super::cache::{accept, part_of, remove};
use super::verify::{Meter, Sum, copy, require_size};
use super::{Download, Fetch, Form, PublishedFile, Sources};
use serde::Deserialize;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;

/// The hub, where [`Sources::hub_endpoint`](super::Sources::hub_endpoint) names no other.
pub const HUB: &str = "https://huggingface.co";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest silence of a server.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Attempts in a row that brought nothing new.
const MAX_STALLS: u32 = 3;
/// The pause after the first of them; each later one is that much longer.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest pause that a server may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Longest list of a repository's files.
const MAX_LISTING_BYTES: u64 = 16 << 20;

/// Why a request ended early.
enum Interruption {
    /// Asking again will not help.
    Refused(String),
    /// Asking again may bring the rest, after the pause that the server asks for.
    Cut(String, Option<Duration>),
}

impl Interruption {
    fn cut(error: &dyn ToString) -> Self {
        Self::Cut(error.to_string(), None)
    }
}

/// A file as the hub has it.
pub(super) struct Remote {
    pub(super) url: String,
    pub(super) bytes: u64,
    /// None where nobody states it.
    pub(super) sum: Option<Sum>,
}

impl Remote {
    /// Compares size and sum, where there is one.
    pub(super) fn verify(&self, path: &Path) -> Result<(), String> {
        require_size(path, self.bytes)?;
        self.sum
            .as_ref()
            .map_or(Ok(()), |sum| sum.verify(path, &|_| ()))
    }
}

/// What a revision of a repository holds.
#[derive(Deserialize)]
pub(super) struct Listing {
    /// Its commit.
    pub(super) sha: String,
    pub(super) siblings: Vec<Sibling>,
}

/// A file of it.
#[derive(Deserialize)]
pub(super) struct Sibling {
    pub(super) rfilename: String,
    pub(super) size: Option<u64>,
    pub(super) lfs: Option<Lfs>,
}

/// What is known of a large file.
#[derive(Deserialize)]
pub(super) struct Lfs {
    pub(super) sha256: String,
}

impl Fetch<'_> {
    /// The address that the hub is asked at first.
    pub(super) fn hub_url(&self) -> String {
        let hub = Hub::new(self.sources);
        let Download { repo, revision, .. } = self.download;
        match self.download.form {
            Form::File(file) => hub.file_url(repo, revision, file.name),
            Form::Folder => hub.listing_url(repo, revision),
        }
    }

    pub(super) fn hub_answers(&self) -> bool {
        let hub = Hub::new(self.sources);
        !self.sources.offline
            && hub
                .authorised(hub.agent.head(self.hub_url()))
                .call()
                .is_ok_and(|response| response.status().is_success())
    }

    pub(super) fn require_online(&self) -> Result<(), String> {
        if self.sources.offline {
            Err("not asked, as the hub is switched to offline".into())
        } else {
            Ok(())
        }
    }

    pub(super) fn file_from_hub(&mut self, file: &PublishedFile) -> Result<PathBuf, String> {
        self.require_online()?;
        let target = self.target();
        let remote = Remote {
            url: self.hub_url(),
            bytes: file.bytes,
            sum: Some(Sum::Sha256(file.sha256.into())),
        };
        let meter = Meter::new(self.progress, &[file.bytes]);
        meter.phase(&format!("downloading {}", remote.url));
        Hub::new(self.sources).bring(&remote, &target, (&meter, 0))?;
        self.remember(&target, std::slice::from_ref(&target));
        Ok(target)
    }
}

/// The hub's address and what may be told to it.
pub(super) struct Hub<'a> {
    sources: &'a Sources,
    agent: ureq::Agent,
}

impl<'a> Hub<'a> {
    pub(super) fn new(sources: &'a Sources) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(READ_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .http_status_as_error(false)
            // Large files come from other hosts, which the token is not for.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("zero-tvm-workbench/", env!("CARGO_PKG_VERSION")));
        let config = if is_this_machine(endpoint(sources)) {
            // A proxy could not reach this machine by that name.
            config.proxy(None)
        } else {
            config
        };
        Self {
            sources,
            agent: config.build().into(),
        }
    }

    /// The address of a file of a repository.
    pub(super) fn file_url(&self, repo: &str, revision: &str, file: &str) -> String {
        let file = percent_encoded(file);
        format!("{}/{repo}/resolve/{revision}/{file}", self.endpoint())
    }

    fn listing_url(&self, repo: &str, revision: &str) -> String {
        let endpoint = self.endpoint();
        format!("{endpoint}/api/models/{repo}/revision/{revision}?blobs=true")
    }

    fn endpoint(&self) -> &str {
        endpoint(self.sources)
    }

    fn authorised<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        let endpoint = self.endpoint();
        match &self.sources.token {
            Some(token) if endpoint.starts_with("https://") || is_this_machine(endpoint) => {
                request.header("Authorization", format!("Bearer {token}"))
            }
            Some(_) | None => request,
        }
    }

    /// The commit of a revision, its files, their sizes and sums.
    pub(super) fn listing(&self, repo: &str, revision: &str) -> Result<Listing, String> {
        let url = self.listing_url(repo, revision);
        let mut stalls = 0;
        let text = loop {
            match self.text(&url, stalls == 0) {
                Ok(text) => break text,
                Err(Interruption::Refused(why)) => return Err(why),
                Err(Interruption::Cut(why, pause)) => {
                    stalls += 1;
                    if stalls == MAX_STALLS {
                        return Err(why);
                    }
                    wait(stalls, pause);
                }
            }
        };
        let listing: Listing = serde_json::from_slice(&text)
            .map_err(|error| format!("expected the hub's list of the files of {repo}: {error}"))?;
        let sha = &listing.sha;
        if sha.len() != 40 || !sha.bytes().all(|b| b.is_ascii_hexdigit()) {
            let found: String = sha.chars().take(80).collect();
            return Err(format!(
                "sha: expected a commit of {repo}, found {found:?}; the address is not a hub's"
            ));
        }
        Ok(listing)
    }

    fn text(&self, url: &str, is_first: bool) -> Result<Vec<u8>, Interruption> {
        let response = self.call(self.agent.get(url), is_first)?;
        if response.status() != 200 {
            return Err(self.refusal(&response));
        }
        let mut text = Vec::new();
        let body = response.into_body().into_reader();
        body.take(MAX_LISTING_BYTES + 1)
            .read_to_end(&mut text)
            .map_err(|error| Interruption::cut(&error))?;
        if text.len() as u64 > MAX_LISTING_BYTES {
            let why = format!("the list of files: expected up to {MAX_LISTING_BYTES} bytes");
            return Err(Interruption::Refused(why));
        }
        Ok(text)
    }

    /// Leaves the verified file at `target`; what is there of it is resumed.
    pub(super) fn bring(
        &self,
        remote: &Remote,
        target: &Path,
        at: (&Meter<'_>, usize),
    ) -> Result<(), String> {
        let part = part_of(target);
        let resumed = part.exists();
        self.download_to(remote, &part, at)?;
        let mut verified = remote.verify(&part);
        if verified.is_err() && resumed {
            // The old beginning may have been of another file: once more from scratch.
            remove(&part)?;
            self.download_to(remote, &part, at)?;
            verified = remote.verify(&part);
        }
        match verified {
            Ok(()) => accept(&part, target),
            Err(why) => {
                remove(&part)?;
                Err(format!("{why}; the download was removed"))
            }
        }
    }

    /// Downloads until `part` has the file's size, resuming after cuts for as
    /// long as something new comes.
    fn download_to(
        &self,
        remote: &Remote,
        part: &Path,
        at: (&Meter<'_>, usize),
    ) -> Result<(), String> {
        let total = remote.bytes;
        let mut most = 0;
        let mut stalls = 0;
        loop {
            let cut = match self.request(remote, part, most == 0 && stalls == 0, at) {
                Ok(()) => None,
                Err(Interruption::Refused(why)) => return Err(why),
                Err(Interruption::Cut(why, pause)) => Some((why, pause)),
            };
            let have = fs::metadata(part).map_or(0, |info| info.len());
            if have == total && part.exists() {
                return Ok(());
            }
            if have > most {
                (most, stalls) = (have, 0);
                continue;
            }
            stalls += 1;
            let (why, pause) = cut.unwrap_or(("the connection was closed".into(), None));
            if stalls == MAX_STALLS {
                return Err(format!(
                    "{why} ({have} of {total} bytes so far; the next fetch resumes)"
                ));
            }
            wait(stalls, pause);
        }
    }

    /// One request: appends to `part` what the server sends.
    fn request(
        &self,
        remote: &Remote,
        part: &Path,
        is_first: bool,
        at: (&Meter<'_>, usize),
    ) -> Result<(), Interruption> {
        let total = remote.bytes;
        let mut have = fs::metadata(part).map_or(0, |info| info.len());
        if have > total {
            remove(part).map_err(Interruption::Refused)?;
            have = 0;
        }
        if have == total && part.exists() {
            return Ok(());
        }
        let mut request = self.agent.get(&remote.url);
        if have > 0 {
            request = request.header("Range", format!("bytes={have}-"));
        }
        let response = self.call(request, is_first)?;
        match response.status().as_u16() {
            200 => have = 0,
            206 => {
                let expected = format!("bytes {have}-");
                let found = header(&response, "Content-Range").unwrap_or_default();
                if !found.starts_with(&expected) {
                    let why = format!("Content-Range: expected {expected}..., found {found:?}");
                    return Err(Interruption::Refused(why));
                }
            }
            // The part is not a beginning of what the server has.
            416 => {
                remove(part).map_err(Interruption::Refused)?;
                return Err(Interruption::cut(&"HTTP status 416"));
            }
            _ => return Err(self.refusal(&response)),
        }
        let length = header(&response, "Content-Length");
        if let Some(length) = length.and_then(|text| text.parse::<u64>().ok())
            && length != total - have
        {
            let found = have.saturating_add(length);
            let why = format!("size: expected {total} bytes, found {found}");
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
        let copied = copy(&mut body, have, total, at, |bytes| {
            file.write_all(bytes).inspect_err(|error| {
                written = Err(unwritten(part, error));
            })
        });
        // A full disk is not cured by asking again, and neither is a stop.
        written.map_err(Interruption::Refused)?;
        match copied {
            Err(error) if at.0.is_stopped() => Err(Interruption::Refused(error.to_string())),
            copied => copied.map_err(|error| Interruption::cut(&error)),
        }
    }

    /// Sends a request with what the hub may be told.
    fn call(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithoutBody>,
        is_first: bool,
    ) -> Result<Response<ureq::Body>, Interruption> {
        self.authorised(request).call().map_err(|error| {
            if is_first {
                // Nothing came yet, so another source is better than patience.
                Interruption::Refused(error.to_string())
            } else {
                Interruption::cut(&error)
            }
        })
    }

    /// What a status means that brings no file.
    fn refusal(&self, response: &Response<ureq::Body>) -> Interruption {
        let status = response.status().as_u16();
        let why = |advice: &str| format!("HTTP status {status}{advice}");
        match status {
            401 => Interruption::Refused(why(
                "; the hub's access token (HF_TOKEN) is missing or wrong, or there is no such \
                 repository",
            )),
            403 => Interruption::Refused(why(
                "; the hub's access token (HF_TOKEN) is missing or wrong, or the model's terms \
                 are not accepted on its page",
            )),
            404 => Interruption::Refused(why("; the hub has no such file, revision or repository")),
            429 => {
                let seconds = header(response, "Retry-After");
                let pause = seconds.and_then(|text| text.trim().parse().ok());
                let pause = pause.map(Duration::from_secs);
                let text = why(
                    "; the hub has had too many requests: wait some minutes, or set HF_TOKEN, \
                     and fetch again",
                );
                match pause {
                    Some(pause) if pause > MAX_PAUSE => Interruption::Refused(text),
                    pause => Interruption::Cut(text, pause),
                }
            }
            500.. => Interruption::cut(&why("")),
            _ => Interruption::Refused(why("")),
        }
    }
}

fn endpoint(sources: &Sources) -> &str {
    let endpoint = sources.hub_endpoint.as_deref().unwrap_or(HUB);
    endpoint.trim_end_matches('/')
}

fn is_this_machine(endpoint: &str) -> bool {
    let host = endpoint.strip_prefix("http://").unwrap_or_default();
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| {
        host.strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
    })
}

fn header(response: &Response<ureq::Body>, name: &str) -> Option<String> {
    let value = response.headers().get(name)?;
    value.to_str().ok().map(str::to_owned)
}

fn wait(stalls: u32, asked: Option<Duration>) {
    std::thread::sleep(asked.unwrap_or(PAUSE * stalls));
}

/// A file's name as an address has it.
fn percent_encoded(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

fn unwritten(part: &Path, error: &io::Error) -> String {
    let advice = if error.kind() == io::ErrorKind::StorageFull {
        "; make room and fetch again: what is there is kept and resumed"
    } else {
        ""
    };
    format!("{}: {error}{advice}", part.display())
}
