//! A server on this machine that pretends to be the hub.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request as far as the tests look at it.
pub(crate) struct Request {
    /// Without the endpoint.
    pub(crate) path: String,
    /// The first byte that is asked for.
    pub(crate) from: Option<usize>,
    /// How many requests there were for this path before.
    pub(crate) before: usize,
}

/// What a server says to it.
#[derive(Clone, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Further header lines.
    pub(crate) headers: Vec<String>,
    pub(crate) body: Vec<u8>,
    /// The connection is closed after so many bytes of the body.
    pub(crate) cut_after: Option<usize>,
    /// Silence before the body.
    pub(crate) pause: Duration,
}

impl Answer {
    /// A status without a body.
    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    /// A whole file.
    pub(crate) fn whole(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            ..Self::status(200)
        }
    }

    /// A file from where the request asks for it.
    pub(crate) fn file(request: &Request, bytes: &[u8]) -> Self {
        let Some(from) = request.from else {
            return Self::whole(bytes);
        };
        let Some(rest) = bytes.get(from..).filter(|rest| !rest.is_empty()) else {
            return Self::status(416);
        };
        let range = format!(
            "Content-Range: bytes {from}-{}/{}",
            bytes.len() - 1,
            bytes.len()
        );
        Self {
            status: 206,
            headers: vec![range],
            ..Self::whole(rest)
        }
    }
}

pub(crate) struct Server {
    pub(crate) endpoint: String,
    /// Request lines with their Range and Authorization headers.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves until the test process ends, each connection on a thread of its own.
    pub(crate) fn start(
        answer: impl Fn(&Request) -> Answer + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&log), answer.clone());
                // A client that hangs up early is part of the tests.
                std::thread::spawn(move || serve(stream, &answer, &log));
            }
        });
        Self {
            endpoint: format!("http://{address}"),
            requests,
        }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("not poisoned").clone()
    }

    /// The requests whose line has this part.
    pub(crate) fn requests_for(&self, part: &str) -> Vec<String> {
        let mut all = self.requests();
        all.retain(|request| request.contains(part));
        all
    }
}

fn serve(
    mut stream: TcpStream,
    answer: &dyn Fn(&Request) -> Answer,
    log: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.trim().to_owned();
    let mut logged = line.clone();
    let mut from = None;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim().to_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(range) = header.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse::<usize>().ok();
        }
        if header.starts_with("range") || header.starts_with("authorization") {
            logged = format!("{logged} | {header}");
        }
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let is_same = |one: &String| one.split(' ').nth(1) == Some(path.as_str());
    let before = {
        let mut log = log.lock().expect("not poisoned");
        let before = log.iter().filter(|one| is_same(one)).count();
        log.push(logged);
        before
    };
    let request = Request { path, from, before };
    let Answer {
        status,
        headers,
        body,
        cut_after,
        pause,
    } = answer(&request);
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n",
        body.len()
    )?;
    for header in headers {
        write!(stream, "{header}\r\n")?;
    }
    write!(stream, "\r\n")?;
    if line.starts_with("HEAD") {
        return Ok(());
    }
    std::thread::sleep(pause);
    let sent = cut_after.unwrap_or(body.len()).min(body.len());
    stream.write_all(&body[..sent])
}

/// SHA-256, lower-case hex.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let sum = Sha256::digest(bytes);
    sum.iter().map(|b| format!("{b:02x}")).collect()
}

/// A repository of the hub: files by name.
#[derive(Clone, Default)]
pub(crate) struct Repository {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

/// The commit of every pretended repository.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

impl Repository {
    /// The hub's list of its files; those that are no text have a SHA-256.
    pub(crate) fn listing(&self) -> serde_json::Value {
        let siblings = self.files.iter().map(|(name, bytes)| {
            let is_large = name.ends_with(".bin") || name.ends_with(".safetensors");
            let lfs = serde_json::json!({ "sha256": sha256(bytes), "size": bytes.len() });
            let mut file = serde_json::json!({ "rfilename": name, "size": bytes.len() });
            if is_large {
                file["lfs"] = lfs;
            }
            file
        });
        serde_json::json!({ "sha": COMMIT, "siblings": siblings.collect::<Vec<_>>() })
    }

    /// The answer of a hub that is all right.
    pub(crate) fn answer(&self, request: &Request) -> Answer {
        if request.path == "/api/models/owner/name/revision/main?blobs=true" {
            return Answer::whole(self.listing().to_string());
        }
        let file = request
            .path
            .strip_prefix(&format!("/owner/name/resolve/{COMMIT}/"));
        match file.and_then(|name| self.files.get(name)) {
            Some(bytes) => Answer::file(request, bytes),
            None => Answer::status(404),
        }
    }
}
