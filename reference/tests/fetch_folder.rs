//! Fetching a checkpoint folder, against a server on this machine that pretends to be
//! the hub: no request leaves it.

mod common;

use common::server::{Answer, COMMIT, Repository, Request, Server, sha256};
use common::{golden, tiny_llama};
use kernels::models::ModelSpec;
use kernels::quant::QuantFormat;
use reference::fetch::{
    Download, FetchError, Form, Probe, Progress, Source, Sources, cached_download, fetch_download,
    probe_download,
};
use reference::{folder, mlx, synth};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const INDEX: &str = "ndarray-cache.json";
const CONFIG: &str = "mlc-chat-config.json";

fn download() -> Download {
    Download {
        model: "test-model",
        repo: "owner/name",
        revision: "main",
        form: Form::Folder,
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}

fn files_in(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).expect("a folder").flatten();
    let files = entries.filter(|entry| entry.path().is_file());
    files
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, fs::read(entry.path()).expect("a file"))
        })
        .collect()
}

fn write_all(dir: &Path, files: &BTreeMap<String, Vec<u8>>) {
    fs::create_dir_all(dir).expect("created");
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).expect("written");
    }
}

/// An MLC folder of five shards, with a tokenizer and what nobody wants.
fn mlc() -> Repository {
    let mut files = files_in(&golden().join("llama-tiny"));
    files.remove("expected.safetensors");
    for (name, text) in [("tokenizer.json", "{}"), ("README.md", "# A model")] {
        files.insert(name.into(), text.into());
    }
    Repository { files }
}

/// An MLX folder of several shards.
fn mlx() -> Repository {
    let spec = ModelSpec {
        format: QuantFormat::Affine4G32,
        ..tiny_llama()
    };
    let weights = synth::checkpoint(&spec, 3).expect("synthetic");
    let dir = folder();
    let out = dir.path().join("out");
    mlx::write_in_shards(&weights, &out, 4000, &|_, _| ()).expect("written");
    let mut files = files_in(&out);
    files.remove("zero-tvm-origin.json");
    assert!(files.len() > 4, "several shards: {:?}", files.keys());
    Repository { files }
}

fn start(repository: &Repository) -> Server {
    let repository = repository.clone();
    Server::start(move |request| repository.answer(request))
}

/// A server that gives its own answer where it has one.
fn start_with(
    repository: &Repository,
    own: impl Fn(&Request) -> Option<Answer> + Clone + Send + Sync + 'static,
) -> Server {
    let repository = repository.clone();
    Server::start(move |request| own(request).unwrap_or_else(|| repository.answer(request)))
}

fn sources(cache: &Path, endpoint: &str) -> Sources {
    Sources {
        hub_endpoint: Some(endpoint.to_owned()),
        pip: Vec::new(),
        ..Sources::new(cache)
    }
}

const NOWHERE: &str = "http://127.0.0.1:9";

fn place(cache: &Path) -> PathBuf {
    cache.join("models/test-model/name")
}

fn part(cache: &Path) -> PathBuf {
    cache.join("models/test-model/name.part")
}

fn fetch(cache: &Path, endpoint: &str) -> Result<PathBuf, String> {
    fetch_download(&download(), &sources(cache, endpoint), &mut ()).map_err(|e| e.to_string())
}

fn refusal(server: &Server) -> String {
    let cache = folder();
    let error = fetch(cache.path(), &server.endpoint).expect_err("must be refused");
    assert!(!place(cache.path()).exists(), "nothing counts: {error}");
    error
}

#[derive(Default)]
struct Heard {
    phases: Vec<String>,
    done: u64,
    total: u64,
}

impl Progress for Heard {
    fn phase(&mut self, text: &str) {
        self.phases.push(text.to_owned());
    }
    fn bytes(&mut self, done: u64, total: u64) {
        assert!(done <= total, "{done} of {total}");
        (self.done, self.total) = (done, total);
    }
}

#[test]
fn a_whole_folder_then_cached() {
    let (cache, repository) = (folder(), mlc());
    let server = start(&repository);
    let mut sources = sources(cache.path(), &server.endpoint);
    sources.token = Some("secret".into());
    assert_eq!(
        probe_download(&download(), &sources),
        Probe::Ready(Source::Hub),
        "not there yet"
    );
    let error = cached_download(&download(), &sources, &mut ()).expect_err("not there yet");
    let text = error.to_string();
    assert!(
        matches!(error, FetchError::NotFetched { .. }) && text.contains("xtask fetch test-model"),
        "{text}"
    );
    assert!(!cache.path().join("models").exists(), "no trace of looking");

    let mut heard = Heard::default();
    let path = fetch_download(&download(), &sources, &mut heard).expect("downloads");
    assert_eq!(path, place(cache.path()), "its place");
    let mut expected = repository.files.clone();
    expected.remove("README.md");
    assert!(files_in(&path) == expected, "what is wanted, and no more");
    folder::read(&path, &|_, _| ()).expect("a checkpoint");
    assert!(!part(cache.path()).exists(), "renamed");
    let shards = expected.iter().filter(|(name, _)| name.ends_with(".bin"));
    let bytes: u64 = shards.map(|(_, bytes)| bytes.len() as u64).sum();
    assert_eq!((heard.done, heard.total), (bytes, bytes), "progress");
    assert!(
        heard.phases.iter().any(|phase| phase.contains("5 shards")),
        "{:?}",
        heard.phases
    );
    let requests = server.requests_for("GET");
    assert_eq!(requests.len(), 1 + 3 + 5, "{requests:?}");
    for request in &requests {
        assert!(
            request.contains("authorization: bearer secret"),
            "{request}"
        );
    }

    // Cached: no request, and no second hashing.
    sources.offline = true;
    let mut heard = Heard::default();
    for _ in 0..2 {
        let again = cached_download(&download(), &sources, &mut heard).expect("cached");
        assert_eq!(again, path, "same folder");
    }
    assert!(heard.phases.is_empty(), "by memory: {:?}", heard.phases);
    assert_eq!(
        probe_download(&download(), &sources),
        Probe::Ready(Source::Cache),
        "there"
    );
    // Of another revision these are not the weights that were verified.
    let other = Download {
        revision: "v2",
        ..download()
    };
    cached_download(&other, &sources, &mut heard).expect("still whole");
    assert_eq!(heard.phases.len(), 1, "verified anew: {:?}", heard.phases);
}

#[test]
fn shards_come_several_at_a_time() {
    let cache = folder();
    let server = start_with(&mlc(), |request| {
        let repository = mlc();
        request.path.contains("params_shard").then(|| Answer {
            pause: Duration::from_millis(400),
            ..repository.answer(request)
        })
    });
    let start = Instant::now();
    fetch(cache.path(), &server.endpoint).expect("downloads");
    let took = start.elapsed();
    assert!(took < Duration::from_millis(5 * 400), "{took:?} for five");
}

#[test]
fn an_mlx_folder_goes_by_the_hubs_sums() {
    let (cache, repository) = (folder(), mlx());
    let server = start(&repository);
    let path = fetch(cache.path(), &server.endpoint).expect("downloads");
    assert!(files_in(&path) == repository.files, "content");
    folder::read(&path, &|_, _| ()).expect("a checkpoint");

    let name = repository
        .files
        .keys()
        .find(|name| name.contains("-00002-"));
    let name = name.expect("a second shard").clone();
    let server = start_with(&repository, move |request| {
        request.path.ends_with(&name).then(|| {
            let mut bytes = mlx().files[&name].clone();
            *bytes.last_mut().expect("not empty") ^= 1;
            Answer::file(request, &bytes)
        })
    });
    let text = refusal(&server);
    assert!(
        text.contains("-00002-") && text.contains("sha256: expected"),
        "{text}"
    );
}

#[test]
fn cut_connections_resume_by_range() {
    let cache = folder();
    let repository = mlc();
    let of_hub = repository.clone();
    let server = start_with(&repository, move |request| {
        (request.path.ends_with("shard_1.bin") && request.before < 2).then(|| Answer {
            cut_after: Some(400_000),
            ..of_hub.answer(request)
        })
    });
    let path = fetch(cache.path(), &server.endpoint).expect("resumes");
    folder::read(&path, &|_, _| ()).expect("a checkpoint");
    let requests = server.requests_for("shard_1.bin");
    assert_eq!(requests.len(), 3, "{requests:?}");
    assert!(
        requests[1].contains("bytes=400000-") && requests[2].contains("bytes=800000-"),
        "{requests:?}"
    );
}

#[test]
fn a_fetch_that_was_stopped_goes_on() {
    let (cache, repository) = (folder(), mlc());
    // One shard whole, one wrong, one begun, one left by another commit; configuration
    // and tokenizer of that commit.
    let part = part(cache.path());
    let mut wrong = repository.files["params_shard_1.bin"].clone();
    wrong[7] ^= 1;
    let begun = repository.files["params_shard_2.bin"][..1000].to_vec();
    write_all(
        &part,
        &BTreeMap::from([
            (
                "params_shard_0.bin".into(),
                repository.files["params_shard_0.bin"].clone(),
            ),
            ("params_shard_1.bin".into(), wrong),
            ("params_shard_2.bin.part".into(), begun),
            ("params_shard_9.bin".into(), vec![1]),
            (CONFIG.into(), b"{}".to_vec()),
            ("tokenizer.json".into(), b"[]".to_vec()),
            ("tokenizer.json.part".into(), b"[".to_vec()),
        ]),
    );
    let server = start(&repository);
    let path = fetch(cache.path(), &server.endpoint).expect("goes on");
    let mut expected = repository.files.clone();
    expected.remove("README.md");
    assert!(files_in(&path) == expected, "content");
    assert!(server.requests_for("shard_0").is_empty(), "it was right");
    let asked = |name| server.requests_for(name).concat();
    assert!(!asked("shard_1").contains("range"), "from its beginning");
    assert!(asked("shard_2").contains("range: bytes=1000-"), "resumed");
    assert!(!asked("tokenizer").contains("range"), "anew");
}

#[test]
fn what_is_there_stays_when_a_fetch_fails() {
    let cache = folder();
    let repository = mlc();
    let of_hub = repository.clone();
    let server = start_with(&repository, move |request| {
        if request.path.ends_with("shard_3.bin") {
            std::thread::sleep(Duration::from_millis(300));
            return Some(Answer::status(404));
        }
        // The others are still under way when it fails.
        request.path.contains("shard_4").then(|| Answer {
            pause: Duration::from_millis(600),
            ..of_hub.answer(request)
        })
    });
    let error = fetch(cache.path(), &server.endpoint).expect_err("a shard is missing");
    assert!(
        error.contains("params_shard_3.bin: HTTP status 404"),
        "{error}"
    );
    assert!(
        !place(cache.path()).exists(),
        "half a folder does not count"
    );
    assert!(
        part(cache.path()).join("params_shard_0.bin").exists(),
        "kept"
    );
    let error = cached_download(&download(), &sources(cache.path(), NOWHERE), &mut ());
    assert!(error.is_err(), "a part is in no cache");

    let server = start(&repository);
    fetch(cache.path(), &server.endpoint).expect("goes on");
    assert!(server.requests_for("shard_0").is_empty(), "not again");
}

#[test]
fn damage_in_the_own_cache_is_mended() {
    let (cache, repository) = (folder(), mlc());
    let server = start(&repository);
    let path = fetch(cache.path(), &server.endpoint).expect("downloads");
    let shard = path.join("params_shard_2.bin");
    let mut bytes = fs::read(&shard).expect("a shard");
    bytes[5] ^= 1;
    fs::write(&shard, bytes).expect("written");
    let error = fetch(cache.path(), NOWHERE).expect_err("damaged");
    for expected in ["params_shard_2.bin: md5: expected", "to be mended"] {
        assert!(error.contains(expected), "expected `{expected}`: {error}");
    }
    assert!(!path.exists(), "it does not count");
    let before = server.requests_for("shard").len();
    fetch(cache.path(), &server.endpoint).expect("mended");
    folder::read(&path, &|_, _| ()).expect("a checkpoint");
    let requests = server.requests_for("shard").split_off(before);
    assert_eq!(requests.len(), 1, "the damaged one: {requests:?}");
    assert!(requests[0].contains("shard_2"), "{requests:?}");
}

#[test]
fn folders_of_other_programs_are_used_where_they_lie() {
    let repository = mlc();
    let mut damaged = repository.clone();
    damaged
        .files
        .get_mut("params_shard_0.bin")
        .expect("a shard")[3] ^= 1;
    let mut lacking = repository.clone();
    lacking.files.remove("params_shard_4.bin");

    // MLC's cache.
    let (cache, others) = (folder(), folder());
    let dir = others.path().join("owner/name");
    write_all(&dir, &repository.files);
    let mut of_mlc = sources(cache.path(), NOWHERE);
    of_mlc.mlc_cache_dirs = vec![others.path().to_owned()];
    assert_eq!(
        probe_download(&download(), &of_mlc),
        Probe::Ready(Source::Leftover),
        "probe"
    );
    let mut heard = Heard::default();
    for _ in 0..2 {
        let found = cached_download(&download(), &of_mlc, &mut heard).expect("found");
        assert_eq!(found, dir, "where it lies");
    }
    assert_eq!(heard.phases.len(), 1, "verified once: {:?}", heard.phases);
    assert!(!place(cache.path()).exists(), "not copied");

    // The hub's cache: what its reference names comes first, what is not whole is left.
    let (cache, others) = (folder(), folder());
    let repo = others.path().join("models--owner--name");
    for (commit, files) in [
        ("aaa", &damaged.files),
        ("bbb", &lacking.files),
        ("ccc", &repository.files),
        ("ddd", &repository.files),
    ] {
        write_all(&repo.join("snapshots").join(commit), files);
    }
    let mut of_hub = sources(cache.path(), NOWHERE);
    of_hub.hub_cache_dirs = vec![others.path().to_owned()];
    let found = fetch_download(&download(), &of_hub, &mut ()).expect("found");
    assert_eq!(found, repo.join("snapshots/ccc"), "the first that is whole");
    fs::create_dir_all(repo.join("refs")).expect("created");
    fs::write(repo.join("refs/main"), "ddd").expect("written");
    let cache = folder();
    of_hub.cache_dir = cache.path().to_owned();
    let found = fetch_download(&download(), &of_hub, &mut ()).expect("found");
    assert_eq!(found, repo.join("snapshots/ddd"), "the revision's");

    // Nothing of it is whole: everything is named, and nothing is touched.
    let (cache, others) = (folder(), folder());
    let snapshots = others.path().join("models--owner--name/snapshots");
    write_all(&snapshots.join("aaa"), &damaged.files);
    write_all(&snapshots.join("bbb"), &lacking.files);
    of_hub.cache_dir = cache.path().to_owned();
    of_hub.hub_cache_dirs = vec![others.path().to_owned()];
    of_hub.offline = true;
    let error = fetch_download(&download(), &of_hub, &mut ()).expect_err("none");
    let text = error.to_string();
    for part in [
        "params_shard_0.bin: md5: expected",
        "expected the shard params_shard_4.bin beside it",
        "switched to offline",
        "put it into",
    ] {
        assert!(text.contains(part), "expected `{part}`: {text}");
    }
    assert!(
        files_in(&snapshots.join("aaa")) == damaged.files,
        "as it was"
    );
}

#[cfg(unix)]
#[test]
fn blobs_of_the_hubs_cache_are_compared_with_their_names() {
    let (cache, others) = (folder(), folder());
    let repo = others.path().join("models--owner--name");
    let snapshot = repo.join("snapshots/abc");
    fs::create_dir_all(repo.join("blobs")).expect("created");
    fs::create_dir_all(&snapshot).expect("created");
    for (name, bytes) in mlx().files {
        let blob = repo.join("blobs").join(sha256(&bytes));
        fs::write(&blob, bytes).expect("written");
        std::os::unix::fs::symlink(&blob, snapshot.join(name)).expect("linked");
    }
    let mut sources = sources(cache.path(), NOWHERE);
    sources.hub_cache_dirs = vec![others.path().to_owned()];
    let found = cached_download(&download(), &sources, &mut ()).expect("whole");
    assert_eq!(found, snapshot, "where it lies");

    let names = files_in(&snapshot);
    let shard = names.keys().find(|name| name.ends_with(".safetensors"));
    let shard = snapshot.join(shard.expect("a shard"));
    let mut bytes = fs::read(&shard).expect("a shard");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(&shard, bytes).expect("written");
    let error = cached_download(&download(), &sources, &mut ()).expect_err("damaged");
    assert!(error.to_string().contains("sha256: expected"), "{error}");
}

/// The repository with an index that was edited.
fn with_index(edit: impl FnOnce(&mut serde_json::Value)) -> Repository {
    let mut repository = mlc();
    let mut index = serde_json::from_slice(&repository.files[INDEX]).expect("json");
    edit(&mut index);
    repository
        .files
        .insert(INDEX.into(), index.to_string().into_bytes());
    repository
}

#[test]
fn an_index_is_held_to_its_folder_and_its_hub() {
    let mut shorter = mlc();
    let shard = shorter.files.get_mut("params_shard_1.bin");
    shard.expect("a shard").truncate(1000);
    let mut without = mlc();
    without.files.remove("params_shard_1.bin");
    let mut other_model = mlc();
    let config = String::from_utf8(other_model.files[CONFIG].clone()).expect("text");
    let config = config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    other_model.files.insert(CONFIG.into(), config.into());
    let mut no_model = mlc();
    no_model.files.insert(CONFIG.into(), "{}".into());
    let mut no_config = mlc();
    no_config.files.remove(CONFIG);
    let mut no_index = mlc();
    no_index.files.remove(INDEX);
    let path =
        |path: &'static str| with_index(move |index| index["records"][0]["dataPath"] = path.into());
    for (repository, part) in [
        (path("../params_shard_0.bin"), "found ../params_shard_0.bin"),
        (path("/etc/passwd"), "found /etc/passwd"),
        (path("a\\b"), "the name of a file beside the index"),
        (
            path("params_shard_8.bin"),
            "expected params_shard_8.bin among the files",
        ),
        (
            with_index(|index| index["records"][0]["md5sum"] = serde_json::Value::Null),
            "the shard cannot be verified",
        ),
        (
            shorter,
            "expected 935532 bytes as in the index, found 1000 on the hub",
        ),
        (
            without,
            "expected params_shard_1.bin among the files of owner/name",
        ),
        (other_model, "is missing; index and model differ"),
        (no_model, "model_type: expected llama, phi3"),
        (no_config, "owner/name is no checkpoint folder"),
        (no_index, INDEX),
    ] {
        let server = start(&repository);
        let text = refusal(&server);
        assert!(text.contains(part), "expected `{part}`: {text}");
        let shards = server.requests_for("params_shard");
        assert!(shards.is_empty(), "no shard is asked for: {shards:?}");
    }
    let mut outside = mlx();
    let index = "model.safetensors.index.json";
    let text = String::from_utf8(outside.files[index].clone()).expect("text");
    let text = text.replace("model-00001", "../model-00001");
    outside.files.insert(index.into(), text.into());
    let text = refusal(&start(&outside));
    assert!(
        text.contains("expected names of files beside the index"),
        "{text}"
    );
}

#[test]
fn bad_shards_are_refused() {
    let wrong = |request: &Request| {
        let mut bytes = mlc().files["params_shard_2.bin"].clone();
        bytes[11] ^= 1;
        let is_it = request.path.ends_with("params_shard_2.bin");
        is_it.then(|| Answer::file(request, &bytes))
    };
    let text = refusal(&start_with(&mlc(), wrong));
    for part in [
        "params_shard_2.bin: md5: expected",
        "the download was removed",
    ] {
        assert!(text.contains(part), "expected `{part}`: {text}");
    }
    let long = |request: &Request| {
        let mut bytes = mlc().files["params_shard_2.bin"].clone();
        bytes.push(1);
        let is_it = request.path.ends_with("params_shard_2.bin");
        is_it.then(|| Answer::file(request, &bytes))
    };
    let text = refusal(&start_with(&mlc(), long));
    assert!(
        text.contains("size: expected 884736 bytes, found 884737"),
        "{text}"
    );
    // Cut each time before anything came.
    let silent = |request: &Request| {
        request.path.ends_with("shard_2.bin").then(|| Answer {
            cut_after: Some(0),
            ..Answer::file(request, &mlc().files["params_shard_2.bin"])
        })
    };
    let text = refusal(&start_with(&mlc(), silent));
    assert!(
        text.contains("(0 of 884736 bytes so far; the next fetch resumes)"),
        "{text}"
    );
}

#[test]
fn statuses_say_what_to_do() {
    for (status, parts) in [
        (401, &["HTTP status 401", "HF_TOKEN"][..]),
        (403, &["HTTP status 403", "terms are not accepted"]),
        (
            404,
            &["HTTP status 404", "no such file, revision or repository"],
        ),
        (429, &["HTTP status 429", "too many requests: wait"]),
        (503, &["HTTP status 503"]),
    ] {
        for place in ["/api/", CONFIG, "params_shard_3"] {
            let server = start_with(&mlc(), move |request| {
                let is_it = request.path.contains(place);
                is_it.then(|| Answer::status(status))
            });
            let text = refusal(&server);
            for part in parts {
                assert!(text.contains(part), "{place}, expected `{part}`: {text}");
            }
            let asked = server.requests_for(place).len();
            let patient = status == 429 || status == 503;
            assert_eq!(asked, if patient { 3 } else { 1 }, "{status} of {place}");
        }
    }
}

#[test]
fn a_hub_with_too_many_requests_is_asked_again_when_it_says() {
    let cache = folder();
    let server = start_with(&mlc(), |request| {
        (request.before == 0).then(|| Answer {
            headers: vec!["Retry-After: 0".into()],
            ..Answer::status(429)
        })
    });
    fetch(cache.path(), &server.endpoint).expect("the second time");
    let server = start_with(&mlc(), |_| {
        Some(Answer {
            headers: vec!["Retry-After: 3600".into()],
            ..Answer::status(429)
        })
    });
    refusal(&server);
    assert_eq!(server.requests().len(), 1, "an hour is not waited for");
}

#[test]
fn what_is_no_hub_is_refused() {
    let listing = |text: &'static str| {
        start_with(&mlc(), move |request| {
            let is_it = request.path.starts_with("/api/");
            is_it.then(|| Answer::whole(text))
        })
    };
    for (text, part) in [
        (
            "<html>",
            "expected the hub's list of the files of owner/name",
        ),
        ("{}", "expected the hub's list of the files of owner/name"),
        (
            r#"{"sha": "../../x", "siblings": []}"#,
            "expected a commit of owner/name, found \"../../x\"",
        ),
    ] {
        let text = refusal(&listing(text));
        assert!(text.contains(part), "expected `{part}`: {text}");
    }
    let with_size = |size: serde_json::Value| {
        let mut listed = mlc().listing();
        let files = listed["siblings"].as_array_mut().expect("a list");
        let config = files.iter_mut().find(|file| file["rfilename"] == CONFIG);
        config.expect("a configuration")["size"] = size;
        listed.to_string().leak()
    };
    let server = listing(with_size(serde_json::Value::Null));
    assert!(
        refusal(&server).contains("expected its size in the hub's list"),
        "size"
    );
    let server = listing(with_size((1_u64 << 40).into()));
    assert!(
        refusal(&server).contains("expected up to 268435456 bytes"),
        "too large"
    );
}

#[test]
fn the_token_is_not_for_other_hosts() {
    let cache = folder();
    let repository = mlc();
    let of_others = repository.clone();
    let others = Server::start(move |request| {
        let name = request.path.trim_start_matches('/');
        match of_others.files.get(name) {
            Some(bytes) => Answer::file(request, bytes),
            None => Answer::status(404),
        }
    });
    let address = others.endpoint.replace("127.0.0.1", "localhost");
    let of_hub = repository.clone();
    let server = start_with(&repository, move |request| {
        let name = request.path.rsplit('/').next().unwrap_or_default();
        name.ends_with(".bin").then(|| Answer {
            headers: vec![format!("Location: {address}/{name}")],
            ..Answer::status(if of_hub.files.contains_key(name) {
                302
            } else {
                404
            })
        })
    });
    write_all(
        &part(cache.path()),
        &BTreeMap::from([(
            "params_shard_2.bin.part".into(),
            repository.files["params_shard_2.bin"][..9].to_vec(),
        )]),
    );
    let mut sources = sources(cache.path(), &server.endpoint);
    sources.token = Some("secret".into());
    let path = fetch_download(&download(), &sources, &mut ()).expect("redirected");
    folder::read(&path, &|_, _| ()).expect("a checkpoint");
    let requests = others.requests();
    assert_eq!(requests.len(), 5, "{requests:?}");
    assert!(!requests.concat().contains("authorization"), "{requests:?}");
    let resumed = others.requests_for("shard_2").concat();
    assert!(resumed.contains("range: bytes=9-"), "resumed: {resumed}");
}

#[test]
fn names_are_encoded_in_addresses() {
    let cache = folder();
    let mut repository = with_index(|index| {
        index["records"][0]["dataPath"] = "shard #0 ä%.bin".into();
    });
    let shard = repository
        .files
        .remove("params_shard_0.bin")
        .expect("a shard");
    repository
        .files
        .insert("shard #0 ä%.bin".into(), shard.clone());
    let server = start_with(&repository, move |request| {
        let address = format!("/owner/name/resolve/{COMMIT}/shard%20%230%20%C3%A4%25.bin");
        (request.path == address).then(|| Answer::file(request, &shard))
    });
    let path = fetch(cache.path(), &server.endpoint).expect("downloads");
    folder::read(&path, &|_, _| ()).expect("a checkpoint");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_and_not_asked_for_again() {
    let cache = folder();
    fs::create_dir_all(part(cache.path())).expect("created");
    std::os::unix::fs::symlink(
        "/dev/full",
        part(cache.path()).join("params_shard_1.bin.part"),
    )
    .expect("linked");
    let server = start(&mlc());
    let error = fetch(cache.path(), &server.endpoint).expect_err("full");
    for part in ["params_shard_1.bin.part", "make room and fetch again"] {
        assert!(error.contains(part), "expected `{part}`: {error}");
    }
    assert_eq!(server.requests_for("shard_1").len(), 1, "once");
}

#[test]
fn two_at_once_download_once() {
    let (cache, server) = (folder(), start(&mlc()));
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let path = fetch(cache.path(), &server.endpoint).expect("downloads");
                found.lock().expect("not poisoned").push(path);
            });
        }
    });
    let found = found.into_inner().expect("not poisoned");
    assert_eq!(found, vec![place(cache.path()); 3], "one place");
    assert_eq!(server.requests_for("shard").len(), 5, "each once");
}
