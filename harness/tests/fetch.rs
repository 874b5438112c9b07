//! `fetch` from outside, from a server on this machine that pretends to be the hub.

#[allow(dead_code, reason = "each test file uses a part of it")]
#[path = "../../reference/tests/common/server.rs"]
mod server;

use serde_json::Value;
use server::{Answer, COMMIT, Repository, Server};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The repository of `phi3-mini`, in which a small model stands for it.
const REPO: &str = "mlc-ai/Phi-3-mini-4k-instruct-q4f16_1-MLC";

fn repository() -> Repository {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reference/tests/golden/llama-tiny");
    let entries = std::fs::read_dir(golden).expect("golden data").flatten();
    let files = entries.map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, std::fs::read(entry.path()).expect("golden data"))
    });
    Repository {
        files: files.collect(),
    }
}

/// A hub that has the repository; the last shard comes after a pause.
fn start(pause: Duration) -> Server {
    let repository = repository();
    Server::start(move |request| {
        let request = server::Request {
            path: request.path.replace(REPO, "owner/name"),
            ..*request
        };
        let is_last = request.path.ends_with("shard_4.bin");
        Answer {
            pause: if is_last { pause } else { Duration::ZERO },
            ..repository.answer(&request)
        }
    })
}

fn zerotvm(folder: &Path, server: &Server, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerotvm"));
    command
        .args(args)
        .current_dir(folder)
        .env("ZEROTVM_CACHE", folder)
        .env("HF_HUB_CACHE", folder.join("none"))
        .env("MLC_LLM_HOME", folder.join("none"))
        .env("HF_ENDPOINT", &server.endpoint)
        .env("HF_TOKEN", "secret")
        .env_remove("HF_HUB_OFFLINE")
        .stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    output
}

#[test]
fn a_fetch_that_is_killed_goes_on_and_its_folder_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let model = folder.join("models/phi3-mini");
    let place = model.join("Phi-3-mini-4k-instruct-q4f16_1-MLC");
    let part = model.join("Phi-3-mini-4k-instruct-q4f16_1-MLC.part");

    let slow = start(Duration::from_secs(60));
    let mut fetch = zerotvm(folder, &slow, &["fetch", "phi3-mini"]);
    let mut child = fetch.stderr(Stdio::null()).spawn().expect("it starts");
    let begun = Instant::now();
    let shards = |n: u32| part.join(format!("params_shard_{n}.bin"));
    while !(0..4).all(|n| shards(n).exists()) || slow.requests_for("shard_4").is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it downloads");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert!(!place.exists(), "half a folder does not count");

    let server = start(Duration::ZERO);
    let args = ["fetch", "Phi-3-mini-4k-instruct", "--json"];
    let output = succeeds(&mut zerotvm(folder, &server, &args));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(answer["model"], "phi3-mini", "{answer}");
    assert_eq!(answer["path"], place.display().to_string(), "{answer}");
    let errors = text(&output.stderr);
    assert!(errors.contains(&format!("downloading {REPO}")), "{errors}");
    assert!(!errors.contains("secret"), "{errors}");
    let shards = server.requests_for("params_shard");
    assert_eq!(shards.len(), 1, "the one that is missing: {shards:?}");
    assert!(shards[0].contains(COMMIT), "of the commit: {shards:?}");

    // Again: nothing is asked.
    let before = server.requests().len();
    let output = succeeds(&mut zerotvm(folder, &server, &["fetch", "phi3-mini"]));
    let shown = PathBuf::from(text(&output.stdout).trim());
    assert_eq!(shown, place, "its place and nothing else");
    assert_eq!(server.requests().len(), before, "no request");

    // It is found by default. This one is not the model that it stands for.
    let mut bench = zerotvm(
        folder,
        &server,
        &["generate", "--prompt", "x", "--model", "phi3-mini"],
    );
    let output = bench.output().expect("it starts");
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    let expected = format!("{}: expected the weights of phi3-mini", place.display());
    assert!(errors.contains(&expected), "{errors}");
}

#[test]
fn a_probe_of_a_folder_asks_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(Duration::ZERO);
    succeeds(&mut zerotvm(
        folder.path(),
        &server,
        &["fetch", "--probe", "phi3-mini"],
    ));
    assert!(server.requests().is_empty(), "{:?}", server.requests());
}
