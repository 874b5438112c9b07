//! GGUF parsing and conversion: hostile headers are refused with file and
//! field, and a small file is converted exactly.

mod common;

use common::{GgufFile, string, tiny_gguf, tiny_llama, weight};
use kernels::models::Tensor;
use proptest::prelude::*;
use reference::convert;
use reference::gguf::{BlockType, Gguf, GgufError};
use reference::matrix::Scales;
use reference::quantise;

fn refused(bytes: Vec<u8>) -> String {
    let error = Gguf::parse("model.gguf", bytes).expect_err("must be refused");
    let text = error.to_string();
    assert!(text.starts_with("model.gguf: "), "names the file: {text}");
    text
}

fn header(version: u32, tensors: u64, keys: u64) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(keys.to_le_bytes());
    bytes
}

#[test]
fn wrong_magic_and_version() {
    let mut bytes = tiny_gguf().bytes();
    bytes[..4].copy_from_slice(b"GGML");
    assert!(refused(bytes).contains("magic: expected GGUF, found \"GGML\""));
    let text = refused(header(1, 0, 0));
    assert!(text.contains("version: expected 2 or 3, found 1"), "{text}");
    assert!(refused(vec![]).contains("magic"), "empty file");
}

#[test]
fn counts_beyond_the_file() {
    let mut bytes = header(3, 1 << 32, 0);
    bytes.resize(64, 0);
    let text = refused(bytes);
    assert!(
        text.contains("tensor count: expected at most") && text.contains("found 4294967296"),
        "{text}"
    );
    let mut bytes = header(3, 0, u64::MAX);
    bytes.resize(64, 0);
    assert!(refused(bytes).contains("metadata count"), "keys");
    let mut file = GgufFile::default();
    let mut array = 8_u32.to_le_bytes().to_vec();
    array.extend((1_u64 << 40).to_le_bytes());
    file.metadata.push(("list".into(), 9, array));
    assert!(
        refused(file.bytes()).contains("metadata list, length"),
        "array"
    );
    let mut file = GgufFile::default();
    file.metadata
        .push(("text".into(), 8, u64::MAX.to_le_bytes().to_vec()));
    assert!(refused(file.bytes()).contains("metadata text"), "text");
}

#[test]
fn arrays_too_deep() {
    let mut file = GgufFile::default();
    let mut array = Vec::new();
    for _ in 0..5000 {
        array.extend(9_u32.to_le_bytes());
        array.extend(1_u64.to_le_bytes());
    }
    file.metadata.push(("deep".into(), 9, array));
    assert!(
        refused(file.bytes()).contains("nested up to 4 deep"),
        "deep"
    );
}

#[test]
fn alignment_is_a_power_of_two() {
    for bad in [0, 48] {
        let mut file = tiny_gguf();
        file.u32("general.alignment", bad);
        let text = refused(file.bytes());
        assert!(
            text.contains("general.alignment: expected a power of two"),
            "{text}"
        );
    }
}

#[test]
fn impossible_dimensions() {
    for shape in [
        vec![u64::MAX, 2],
        vec![1 << 32, 1 << 32, 1 << 32],
        vec![0, 4],
        vec![1 << 20],
        vec![],
        vec![1; 5],
    ] {
        let mut file = tiny_gguf();
        file.tensors[0].1 = shape.clone();
        let text = refused(file.bytes());
        assert!(
            text.contains("token_embd.weight, dimensions"),
            "{shape:?}: {text}"
        );
    }
    let mut file = tiny_gguf();
    file.tensors[0].1 = vec![33, 4];
    file.tensors[0].2 = BlockType::Q4_1;
    assert!(
        refused(file.bytes()).contains("the first a multiple of 32"),
        "ragged row"
    );
}

#[test]
fn duplicates_overlaps_and_unknown_types() {
    let mut file = tiny_gguf();
    file.u32("llama.block_count", 2);
    assert!(
        refused(file.bytes()).contains("metadata llama.block_count"),
        "key"
    );
    let mut file = tiny_gguf();
    file.tensors[2].0 = "token_embd.weight".into();
    assert!(
        refused(file.bytes()).contains("tensor token_embd.weight"),
        "tensor"
    );
    let mut file = tiny_gguf();
    file.tensors[0].1[1] += 1;
    let text = refused(file.bytes());
    assert!(text.contains("the end of token_embd.weight"), "{text}");
    // The type is the last u32 before a tensor's offset.
    let mut bytes = tiny_gguf().bytes();
    let name = string("token_embd.weight");
    let at = bytes
        .windows(name.len())
        .position(|w| w == name)
        .expect("there")
        + name.len()
        + 20;
    bytes[at] = 14;
    assert!(refused(bytes).contains("type 14 is not supported"), "type");
}

#[test]
fn truncation_everywhere_is_refused() {
    let bytes = tiny_gguf().bytes();
    for i in 0..50 {
        refused(bytes[..bytes.len() * i / 50].to_vec());
    }
    refused(bytes[..bytes.len() - 1].to_vec());
}

#[test]
fn conversion_is_exact() {
    let gguf = Gguf::parse("model.gguf", tiny_gguf().bytes()).expect("whole");
    let spec = tiny_llama();
    let checkpoint = convert::from_gguf(&gguf, spec.clone(), &|_, _| ()).expect("converts");
    assert_eq!(checkpoint.provenance().title, "Tiny (requantised)", "title");

    // Layer 1: tensors 10 to 18; query rows are re-ordered per head [16, 2] -> [2, 16].
    let d = spec.hidden_size;
    let row = |tensor, row| (0..d).map(|c| weight(tensor, row, c)).collect::<Vec<f32>>();
    let half_split = |r: usize| r / 32 * 32 + r % 16 * 2 + r % 32 / 16;
    let mut expected = Vec::new();
    for r in 0..64 {
        expected.extend(row(11, half_split(r)));
    }
    for r in 0..32 {
        expected.extend(row(12, half_split(r)));
    }
    for r in 0..32 {
        expected.extend(row(13, r));
    }
    let expected = quantise::quantise(&expected, d).expect("finite");
    let qkv = checkpoint.matrix(Some(1), Tensor::Qkv);
    assert_eq!((qkv.rows, qkv.k), (128, 64), "shape of qkv");
    assert_eq!(qkv.words, expected.words, "codes of qkv");
    assert_eq!(qkv.scales, Scales::F16(&expected.scales), "scales of qkv");

    let mut expected = Vec::new();
    for tensor in [16, 17] {
        (0..96).for_each(|r| expected.extend(row(tensor, r)));
    }
    let expected = quantise::quantise(&expected, d).expect("finite");
    let gate_up = checkpoint.matrix(Some(1), Tensor::GateUp);
    assert_eq!(gate_up.words, expected.words, "gate, then up");
    let norm = checkpoint.vector(Some(1), Tensor::PostNorm);
    let expected: Vec<half::f16> = row(15, 0).iter().map(|&v| half::f16::from_f32(v)).collect();
    assert_eq!(norm, expected, "norm");
}

#[test]
fn another_model_is_named_with_both_sides() {
    let convert = |file: GgufFile| {
        let gguf = Gguf::parse("model.gguf", file.bytes()).expect("whole");
        convert::from_gguf(&gguf, tiny_llama(), &|_, _| ())
            .expect_err("another model")
            .to_string()
    };
    let mut file = tiny_gguf();
    file.metadata[1].2 = 3_u32.to_le_bytes().to_vec();
    let text = convert(file);
    assert!(
        text.contains("llama.block_count is 3, but tiny has 2"),
        "{text}"
    );
    let mut file = tiny_gguf();
    file.metadata[0].2 = string("mamba");
    assert!(
        convert(file).contains("architecture is mamba"),
        "architecture"
    );
    let mut file = tiny_gguf();
    file.metadata.remove(3);
    assert!(
        convert(file).contains("llama.feed_forward_length is missing"),
        "key"
    );
    let mut file = tiny_gguf();
    file.tensors.pop();
    assert!(
        convert(file).contains("tensor output_norm.weight is missing"),
        "tensor"
    );
    let mut file = tiny_gguf();
    file.floats("blk.0.attn_q.bias", 64, &[0.0; 64], BlockType::F32);
    assert!(
        convert(file).contains("blk.0.attn_q.bias is unknown"),
        "bias"
    );
    let mut file = tiny_gguf();
    file.tensors[1].3[..4].copy_from_slice(&1e6_f32.to_le_bytes());
    let text = convert(file);
    assert!(
        text.contains("blk.0.attn_norm.weight, row 0, column 0: 1000000"),
        "{text}"
    );
    let mut file = tiny_gguf();
    file.string("llama.rope.scaling.type", "linear");
    assert!(convert(file).contains("no RoPE scaling"), "scaling");
}

#[test]
fn a_missing_file_is_named() {
    let error = Gguf::open(std::path::Path::new("no/such.gguf")).expect_err("absent");
    assert!(matches!(error, GgufError::Io { .. }), "{error}");
    assert!(Gguf::open(std::path::Path::new(".")).is_err(), "a folder");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(tail in prop::collection::vec(any::<u8>(), 0..512)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(&tail);
        let _ = Gguf::parse("random", bytes);
        let _ = Gguf::parse("random", tail);
    }

    #[test]
    fn mutated_files_never_panic(
        edits in prop::collection::vec((0_usize..2200, any::<u8>()), 1..8),
        cut in 0_usize..2200,
    ) {
        // The header is the first 2 kB: the interesting part.
        let mut bytes = tiny_gguf().bytes();
        for (at, value) in edits {
            bytes[at] = value;
        }
        let mut short = bytes.clone();
        short.truncate(cut);
        prop_assert!(Gguf::parse("short", short).is_err(), "cut off");
        if let Ok(gguf) = Gguf::parse("mutated", bytes) {
            let _ = convert::from_gguf(&gguf, tiny_llama(), &|_, _| ());
        }
    }
}
