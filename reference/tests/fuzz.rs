//! The fuzz targets on damaged files drawn from a seed: no panic, and no endless work.

mod common;
#[path = "../fuzz/targets.rs"]
mod targets;

use common::{golden, tiny_gguf, tiny_llama};
use kernels::models::ModelSpec;
use kernels::quant::QuantFormat;
use proptest::{prelude::*, test_runner::RngSeed};
use reference::gguf::{Gguf, Model};
use reference::{folder, mlx, synth};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// Bytes of a whole file at its beginning, where its header is.
const HEADER: usize = 6000;

/// Inputs that a test draws.
const CASES: u32 = 2048;

/// A whole input of each target, in their order.
static WHOLE: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let inputs = targets::ALL.iter().map(|(name, _)| match *name {
        "gguf" => tiny_gguf().bytes(),
        "mlc" => joined(
            &golden().join("llama-tiny"),
            ["mlc-chat-config.json", "ndarray-cache.json"],
        ),
        "mlx" => {
            let dir = tempfile::tempdir().expect("temporary folder");
            let out = dir.path().join("out");
            mlx::write(&affine(), &out, &|_, _| ()).expect("written");
            joined(&out, ["config.json", "model.safetensors"])
        }
        other => panic!("{other} has no whole input"),
    });
    inputs.collect()
});

fn affine() -> reference::Checkpoint {
    let spec = ModelSpec {
        format: QuantFormat::Affine4G32,
        ..tiny_llama()
    };
    synth::checkpoint(&spec, 3).expect("synthetic")
}

/// Two files as an input.
fn joined(dir: &Path, names: [&str; 2]) -> Vec<u8> {
    let read = |name| fs::read(dir.join(name)).expect("a file");
    let [first, second] = names.map(read);
    [first, vec![0], second].concat()
}

/// A change of an input.
#[derive(Clone, Debug)]
enum Edit {
    Byte(usize, u8),
    /// Eight bytes become a number at some limit.
    Number(usize, u64),
    /// A text comes in.
    Text(usize, &'static str),
    /// A part goes.
    Remove(usize, usize),
    /// A part comes a second time, elsewhere.
    Repeat(usize, usize, usize),
    Cut(usize),
}

const NUMBERS: [u64; 8] = [
    0,
    1,
    i32::MAX as u64,
    u32::MAX as u64,
    1 << 32,
    i64::MAX as u64,
    u64::MAX - 7,
    u64::MAX,
];
const TEXTS: [&str; 12] = [
    "-1",
    "1e999",
    "null",
    "{}",
    "[]",
    "\"",
    "}",
    "18446744073709551615",
    "../",
    "\\u0000",
    "\0",
    "é",
];

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        let at = |at: usize| at.min(len);
        match *self {
            Self::Byte(i, value) => {
                if let Some(byte) = bytes.get_mut(i) {
                    *byte = value;
                }
            }
            Self::Number(i, value) => {
                if let Some(part) = bytes.get_mut(i..i.saturating_add(8)) {
                    part.copy_from_slice(&value.to_le_bytes());
                }
            }
            Self::Text(i, text) => drop(bytes.splice(at(i)..at(i), text.bytes())),
            Self::Remove(i, n) => drop(bytes.drain(at(i)..at(i + n))),
            Self::Repeat(i, n, to) => {
                let part = bytes[at(i)..at(i + n)].to_vec();
                drop(bytes.splice(at(to)..at(to), part));
            }
            Self::Cut(i) => bytes.truncate(i),
        }
    }
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = 0..HEADER;
    let number = prop::sample::select(&NUMBERS[..]);
    let text = prop::sample::select(&TEXTS[..]);
    prop_oneof![
        6 => (at.clone(), any::<u8>()).prop_map(|(i, value)| Edit::Byte(i, value)),
        3 => (at.clone(), number).prop_map(|(i, value)| Edit::Number(i, value)),
        3 => (at.clone(), text).prop_map(|(i, text)| Edit::Text(i, text)),
        1 => (at.clone(), 1..40_usize).prop_map(|(i, n)| Edit::Remove(i, n)),
        1 => (at.clone(), 1..400_usize, at.clone()).prop_map(|(i, n, to)| Edit::Repeat(i, n, to)),
        1 => at.prop_map(Edit::Cut),
    ]
}

/// The same inputs in every run, unless `PROPTEST_RNG_SEED` names others, and more
/// where `PROPTEST_CASES` asks for them.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig {
        cases: asked.cases.max(CASES),
        rng_seed: match asked.rng_seed {
            RngSeed::Random => RngSeed::Fixed(1),
            named => named,
        },
        failure_persistence: None,
        ..asked
    }
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn damaged_inputs_are_errors_at_most(
        target in 0..targets::ALL.len(),
        edits in prop::collection::vec(edit(), 1..6),
    ) {
        let mut bytes = WHOLE[target].clone();
        for edit in &edits {
            edit.apply(&mut bytes);
        }
        (targets::ALL[target].1)(&bytes);
    }

    #[test]
    fn random_inputs_are_errors_at_most(
        target in 0..targets::ALL.len(),
        bytes in prop::collection::vec(any::<u8>(), 0..512),
    ) {
        (targets::ALL[target].1)(&bytes);
    }
}

/// What is damaged is whole before: otherwise every input would fail at its first byte.
#[test]
fn undamaged_inputs_are_read() {
    for (whole, (name, run)) in WHOLE.iter().zip(targets::ALL) {
        run(whole);
        let at = whole.iter().position(|&b| b == 0).expect("a zero byte");
        let dir = tempfile::tempdir().expect("temporary folder");
        let write = |name: &str, bytes: &[u8]| {
            fs::write(dir.path().join(name), bytes).expect("written");
        };
        match *name {
            "gguf" => {
                let gguf = Gguf::parse("whole", whole.clone()).expect("GGUF");
                Model::new(&gguf).expect("a model");
            }
            "mlc" => {
                write("mlc-chat-config.json", &whole[..at]);
                write("ndarray-cache.json", &whole[at + 1..]);
                let error = folder::read(dir.path(), &|_, _| ()).expect_err("no shards");
                let text = error.to_string();
                assert!(text.contains("the shard params_shard_0.bin"), "{text}");
            }
            "mlx" => {
                write("config.json", &whole[..at]);
                write("model.safetensors", &whole[at + 1..]);
                folder::read(dir.path(), &|_, _| ()).expect("a checkpoint");
            }
            other => panic!("{other} is not known here"),
        }
    }
}

/// A program of each target runs that target, and there are no others.
#[test]
fn every_program_is_a_target() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).expect("a manifest");
    let entries = fs::read_dir(fuzz.join("fuzz_targets")).expect("programs");
    let mut programs: Vec<String> = entries
        .flatten()
        .map(|entry| {
            entry
                .path()
                .file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    programs.sort();
    let names: Vec<&str> = targets::ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(programs, names, "programs and targets");
    for name in names {
        let file = format!("fuzz_targets/{name}.rs");
        let program = fs::read_to_string(fuzz.join(&file)).expect("a program");
        let call = format!("fuzz_target!(|bytes: &[u8]| targets::{name}(bytes));");
        assert!(program.contains(&call), "{file} runs its target");
        assert!(manifest.contains(&file), "{file} is in the manifest");
    }
}
