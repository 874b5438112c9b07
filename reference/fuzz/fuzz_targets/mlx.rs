//! Configuration and safetensors file of an MLX folder, apart at the first zero byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::fs;

fuzz_target!(|bytes: &[u8]| {
    let at = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let (config, tensors) = bytes.split_at(at);
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::write(dir.path().join("config.json"), config).expect("written");
    fs::write(
        dir.path().join("model.safetensors"),
        tensors.get(1..).unwrap_or_default(),
    )
    .expect("written");
    let _ = reference::folder::read(dir.path(), &|_, _| ());
    let _ = reference::inspect::inspect(dir.path());
});
