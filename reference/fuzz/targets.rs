//! What is done with an input, by target. The programs in `fuzz_targets` do it with
//! what a fuzzer finds, and the test suite with damaged files.

use reference::gguf::{Gguf, Model, load_model};
use std::fs;

/// A target: its name, which is that of its program, and what it does.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// Every target.
pub(crate) const ALL: &[Target] = &[("gguf", gguf), ("mlc", mlc), ("mlx", mlx)];

/// A file's bytes: parsed, and loaded where they are a model.
pub(crate) fn gguf(bytes: &[u8]) {
    if let Ok(gguf) = Gguf::parse("fuzz", bytes.to_vec())
        && let Ok(model) = Model::new(&gguf)
    {
        let _ = load_model(&model, &|_, _| ());
    }
}

/// Configuration and index of an MLC folder; its shards are absent.
pub(crate) fn mlc(bytes: &[u8]) {
    folder(["mlc-chat-config.json", "ndarray-cache.json"], bytes);
}

/// Configuration and safetensors file of an MLX folder.
pub(crate) fn mlx(bytes: &[u8]) {
    folder(["config.json", "model.safetensors"], bytes);
}

/// A folder of two files, which are apart at the first zero byte.
fn folder(names: [&str; 2], bytes: &[u8]) {
    let at = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let (first, second) = bytes.split_at(at);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let files = [first, second.get(1..).unwrap_or_default()];
    for (name, bytes) in names.into_iter().zip(files) {
        fs::write(dir.path().join(name), bytes).expect("written");
    }
    let _ = reference::folder::read(dir.path(), &|_, _| ());
    let _ = reference::inspect::inspect(dir.path());
}
