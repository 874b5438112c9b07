//! The hub over HTTPS, resuming where a connection was cut.

use super::cache::remove;
use super::{Download, Fetch};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The hub, where [`Sources::hub_endpoint`](super::Sources::hub_endpoint) names no other.
pub const HUB: &str = "https://huggingface.co";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest silence of a server.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Attempts in a row that brought nothing new.
const MAX_STALLS: u32 = 3;

/// Why a request ended early.
enum Interruption {
    /// Asking again will not help.
    Refused(String),
    /// Asking again may bring the rest.
    Cut(String),
}

impl Fetch<'_> {
    fn endpoint(&self) -> &str {
        let endpoint = self.sources.hub_endpoint.as_deref().unwrap_or(HUB);
        endpoint.trim_end_matches('/')
    }

    pub(super) fn hub_url(&self) -> String {
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

    pub(super) fn hub_answers(&self) -> bool {
        !self.sources.offline
            && self
                .authorised(self.agent().head(self.hub_url()))
                .call()
                .is_ok_and(|response| response.status().is_success())
    }

    pub(super) fn fetch_from_hub(&mut self) -> Result<PathBuf, String> {
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
}
