//! GGUF parsing and loading: hostile headers are refused with file and field, and
//! stored weights are exact.

mod common;

use common::{GgufFile, string, tiny_gguf, tiny_llama};
use kernels::models::Tensor;
use kernels::quant::QuantFormat;
use proptest::prelude::*;
use reference::gguf::{self, BlockType, Gguf, LoadError, dequantise};
use reference::{Checkpoint, Matrix};

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
    let text = refused(bytes);
    assert!(text.contains("found \"GGML\"; name a GGUF file"), "{text}");
    let text = refused(b"PK\x03\x04 and more".to_vec());
    assert!(text.contains(r#"found "PK\x03\x04";"#), "{text}");
    assert!(!text.contains("fetch"), "nobody fetched it: {text}");
    let text = refused(header(1, 0, 0));
    assert!(text.contains("version: expected 2 or 3, found 1"), "{text}");
    assert!(refused(vec![]).contains("found no bytes"), "empty file");
    assert!(refused(b"GGU".to_vec()).contains("found \"GGU\""), "cut");
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
    bytes[at] = 9;
    assert!(refused(bytes).contains("type 9 is not supported"), "type");
}

#[test]
fn truncation_everywhere_is_refused() {
    let bytes = tiny_gguf().bytes();
    for i in 0..50 {
        refused(bytes[..bytes.len() * i / 50].to_vec());
    }
    refused(bytes[..bytes.len() - 1].to_vec());
}

fn loaded(file: &GgufFile) -> Result<Checkpoint, LoadError> {
    let gguf = Gguf::parse("model.gguf", file.bytes()).expect("whole");
    gguf::load_model(&gguf::Model::new(&gguf)?, &|_, _| ())
}

fn refused_model(file: &GgufFile) -> String {
    loaded(file).expect_err("must be refused").to_string()
}

/// Every weight of a matrix, decoded.
fn weights(matrix: Matrix<'_>) -> Vec<f32> {
    let mut all = vec![0.0; matrix.rows * matrix.k];
    for (row, out) in all.chunks_exact_mut(matrix.k).enumerate() {
        matrix.row_into(row, out);
    }
    all
}

/// The weights of a stored tensor, its rows in another order.
fn decoded(file: &GgufFile, name: &str, order: impl Fn(usize) -> usize) -> Vec<f32> {
    let tensor = file.tensors.iter().find(|(n, ..)| n == name).expect(name);
    let (_, shape, block_type, data) = tensor;
    let mut all = vec![0.0; shape.iter().product::<u64>() as usize];
    dequantise(*block_type, data, &mut all);
    let k = shape[0] as usize;
    (0..all.len() / k)
        .flat_map(|r| all[order(r) * k..][..k].to_vec())
        .collect()
}

/// Rows of heads of 32 from interleaved pairs to halves.
fn half_split(r: usize) -> usize {
    r / 32 * 32 + r % 16 * 2 + r % 32 / 16
}

/// The tiny model as files of the field are: each matrix of one of the types that the
/// kernels hold.
fn quantised_gguf(q: BlockType, k: BlockType, v: BlockType) -> GgufFile {
    let mut file = tiny_gguf();
    let names: Vec<String> = file.tensors.iter().map(|t| t.0.clone()).collect();
    for (i, name) in names
        .iter()
        .enumerate()
        .filter(|(_, n)| !n.contains("norm"))
    {
        let block_type = match name.split('.').nth(2) {
            Some("attn_q") => q,
            Some("attn_k") => k,
            Some("attn_v") => v,
            None => BlockType::Q8_0,
            Some(_) => BlockType::Q4_1,
        };
        file.requantise(name, block_type, i as u64);
    }
    file
}

#[test]
fn stored_weights_are_exact() {
    use BlockType::{Q4_0, Q4_1, Q8_0};
    for (q, k, v, format) in [
        (Q4_0, Q4_0, Q4_0, QuantFormat::Q4_0),
        (Q4_1, Q4_1, Q4_1, QuantFormat::Affine4G32),
        (Q8_0, Q8_0, Q8_0, QuantFormat::Q8_0),
        (Q4_0, Q4_1, Q4_0, QuantFormat::Affine4G32),
        (Q4_1, Q4_1, Q8_0, QuantFormat::Affine8G32),
        (Q4_0, Q4_0, Q8_0, QuantFormat::Affine8G32),
    ] {
        let file = quantised_gguf(q, k, v);
        let checkpoint = loaded(&file).expect("loads");
        let title = &checkpoint.provenance().title;
        assert_eq!(title, "model (GGUF, as stored)", "{format}");
        let qkv = checkpoint.matrix(Some(1), Tensor::Qkv);
        assert_eq!((qkv.format, qkv.rows, qkv.k), (format, 128, 64), "{format}");
        let expected = [
            decoded(&file, "blk.1.attn_q.weight", half_split),
            decoded(&file, "blk.1.attn_k.weight", half_split),
            decoded(&file, "blk.1.attn_v.weight", |r| r),
        ];
        assert_eq!(weights(qkv), expected.concat(), "{format}: every weight");
        let gate_up = checkpoint.matrix(Some(0), Tensor::GateUp);
        assert_eq!(
            gate_up.format,
            QuantFormat::Affine4G32,
            "{format}: gate and up"
        );
        let expected = ["ffn_gate", "ffn_up"]
            .map(|name| decoded(&file, &format!("blk.0.{name}.weight"), |r| r));
        assert_eq!(
            weights(gate_up),
            expected.concat(),
            "{format}: gate, then up"
        );
        let embedding = checkpoint.matrix(None, Tensor::Embedding);
        assert_eq!(embedding.format, QuantFormat::Q8_0, "{format}: embedding");
        let expected = decoded(&file, "token_embd.weight", |r| r);
        assert_eq!(weights(embedding), expected, "{format}: embedding");
        let notes = &checkpoint.provenance().notes;
        assert!(!notes.iter().any(|n| n.contains("converted")), "{notes:?}");
    }
    let registered = tiny_llama();
    assert_ne!(
        registered.title, "model",
        "a file that is not registered has its own name"
    );
}

#[test]
fn what_is_converted_says_what_it_loses() {
    let mut file = tiny_gguf();
    let norm = file
        .tensors
        .iter_mut()
        .find(|(n, ..)| n == "output_norm.weight");
    norm.expect("there").3[..4].copy_from_slice(&0.1_f32.to_le_bytes());
    let checkpoint = loaded(&file).expect("loads");
    let provenance = checkpoint.provenance();
    assert_eq!(provenance.title, "model (GGUF, converted)", "F32 matrices");
    let note = provenance
        .notes
        .iter()
        .find(|n| n.contains("F32 converted to affine8_g32"));
    let note = note.unwrap_or_else(|| panic!("{:?}", provenance.notes));
    let rms = note.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok());
    let rms = rms.expect("a number at the end");
    assert!(
        (1e-4..5e-3).contains(&rms),
        "{note}: 8 bits over a uniform range"
    );
    let rounded = provenance
        .notes
        .iter()
        .any(|n| n.starts_with("norms rounded to f16"));
    assert!(rounded, "{:?}", provenance.notes);
}

/// Each type of the field's mixed files, at 256 columns.
#[test]
fn k_quants_are_converted_with_little_loss() {
    for (block_type, format, most) in [
        (BlockType::Q2K, QuantFormat::Affine8G32, 5e-3),
        (BlockType::Q3K, QuantFormat::Affine8G32, 5e-3),
        (BlockType::Q4K, QuantFormat::Affine4G32, 1e-3),
        (BlockType::Q5K, QuantFormat::Affine8G32, 5e-3),
        (BlockType::Q6K, QuantFormat::Affine8G32, 5e-3),
    ] {
        let mut file = tiny_gguf();
        for layer in 0..2 {
            let name = format!("blk.{layer}.ffn_down.weight");
            let tensor = file
                .tensors
                .iter_mut()
                .find(|(n, ..)| *n == name)
                .expect("there");
            tensor.1 = vec![256, 64];
            file.requantise(&name, block_type, layer);
            for name in ["ffn_gate", "ffn_up"] {
                let name = format!("blk.{layer}.{name}.weight");
                let tensor = file
                    .tensors
                    .iter_mut()
                    .find(|(n, ..)| *n == name)
                    .expect("there");
                tensor.1 = vec![64, 256];
                file.requantise(&name, BlockType::Q4_1, layer);
            }
        }
        file.metadata[3].2 = 256_u32.to_le_bytes().to_vec();
        let checkpoint = loaded(&file).expect("loads");
        let down = checkpoint.matrix(Some(1), Tensor::Down);
        assert_eq!(down.format, format, "{block_type:?}");
        let expected = decoded(&file, "blk.1.ffn_down.weight", |r| r);
        let (mut squares, mut errors) = (0.0, 0.0);
        for (found, expected) in weights(down).iter().zip(&expected) {
            squares += f64::from(*expected).powi(2);
            errors += f64::from(found - expected).powi(2);
        }
        let rms = (errors / squares).sqrt();
        assert!(rms < most, "{block_type:?}: {rms}");
        let notes = checkpoint.provenance().notes.join("; ");
        let stated = format!("2 tensors in {} converted to {format}", block_type.name());
        assert!(notes.contains(&stated), "{notes}");
    }
}

#[test]
fn what_is_no_model_is_named_with_both_sides() {
    let mut file = tiny_gguf();
    file.metadata[1].2 = 300_u32.to_le_bytes().to_vec();
    let text = refused_model(&file);
    assert!(
        text.contains("llama.block_count: expected at most the 20 tensors of the file, found 300"),
        "{text}"
    );
    let mut file = tiny_gguf();
    file.metadata[1].2 = 3_u32.to_le_bytes().to_vec();
    let text = refused_model(&file);
    assert!(
        text.contains("tensor blk.2.attn_norm.weight is missing"),
        "{text}"
    );
    let mut file = tiny_gguf();
    file.metadata[2].2 = 128_u32.to_le_bytes().to_vec();
    let text = refused_model(&file);
    assert!(
        text.contains("expected a matrix [40, 128], found [40, 64]"),
        "{text}"
    );
    let mut file = tiny_gguf();
    file.metadata[0].2 = string("mamba");
    assert!(
        refused_model(&file).contains("architecture is mamba"),
        "architecture"
    );
    let mut file = tiny_gguf();
    file.metadata.remove(3);
    assert!(
        refused_model(&file).contains("llama.feed_forward_length is missing"),
        "key"
    );
    let mut file = tiny_gguf();
    file.tensors.pop();
    assert!(
        refused_model(&file).contains("tensor output_norm.weight is missing"),
        "tensor"
    );
    let mut file = tiny_gguf();
    file.floats("blk.0.attn_q.bias", 64, &[0.0; 64], BlockType::F32);
    assert!(
        refused_model(&file).contains("blk.0.attn_q.bias is unknown"),
        "bias"
    );
    let mut file = tiny_gguf();
    file.tensors[1].3[..4].copy_from_slice(&1e6_f32.to_le_bytes());
    let text = refused_model(&file);
    assert!(
        text.contains("blk.0.attn_norm.weight, row 0, column 0: 1000000"),
        "{text}"
    );
    let mut file = quantised_gguf(BlockType::Q4_0, BlockType::Q4_0, BlockType::Q8_0);
    let attn_v = file
        .tensors
        .iter_mut()
        .find(|(n, ..)| n == "blk.1.attn_v.weight");
    // 1024 as an f16: its bias, -131072, is none.
    attn_v.expect("there").3[..2].copy_from_slice(&[0x00, 0x64]);
    let text = refused_model(&file);
    assert!(
        text.contains("blk.1.attn_v.weight, row 0, column 0: -inf"),
        "{text}"
    );
    let mut file = tiny_gguf();
    file.string("llama.rope.scaling.type", "linear");
    assert!(refused_model(&file).contains("no RoPE scaling"), "scaling");
    let mut file = tiny_gguf();
    file.u32("llama.vocab_size", 41);
    let text = refused_model(&file);
    assert!(
        text.contains("expected 40, the rows of token_embd.weight, found 41"),
        "{text}"
    );
}

/// A file that says it is a gigabyte long and is not read.
#[test]
fn a_long_header_is_refused_before_it_is_read() {
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    let path = dir.path().join("model.gguf");
    let mut file = GgufFile::default();
    let mut array = 0_u32.to_le_bytes().to_vec();
    array.extend((1_u64 << 30).to_le_bytes());
    file.metadata.push(("list".into(), 9, array));
    std::fs::write(&path, file.bytes()).expect("written");
    let sparse = std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("open");
    sparse.set_len(3 << 30).expect("a sparse file");
    let error = Gguf::open(&path).expect_err("too long").to_string();
    assert!(error.contains("in a header of 25165824 bytes"), "{error}");
    let mut bytes = header(3, 20_000, 0);
    bytes.resize(1 << 20, 0);
    assert!(
        refused(bytes).contains("tensor count: expected at most 16384"),
        "tensors"
    );
}

#[test]
fn a_file_is_read_by_range() {
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    let path = dir.path().join("model.gguf");
    let file = quantised_gguf(BlockType::Q4_1, BlockType::Q4_1, BlockType::Q4_1);
    std::fs::write(&path, file.bytes()).expect("written");
    let in_memory = loaded(&file).expect("loads");
    let from_file = gguf::load(&path, &|_, _| ()).expect("loads");
    assert_eq!(
        from_file.payload_sha256(),
        in_memory.payload_sha256(),
        "weights"
    );
    assert_eq!(
        from_file.provenance().sha256,
        in_memory.provenance().sha256,
        "the file's"
    );
    let gguf = Gguf::open(&path).expect("whole");
    assert!(gguf.bytes().len() < 4096, "the header alone is kept");
    let model = gguf::Model::new(&gguf).expect("a model");
    let spec = model.stored_spec().expect("formats");
    assert_eq!(&spec, from_file.spec(), "told without the weights");
}

#[test]
fn a_missing_file_is_named() {
    let error = Gguf::open(std::path::Path::new("no/such.gguf")).expect_err("absent");
    let error = error.to_string();
    assert!(error.starts_with("no/such.gguf: no GGUF file"), "{error}");
    assert!(error.contains("found nothing of this name;"), "{error}");
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
    fn files_that_are_cut_off_are_refused(cut in 0_usize..2200) {
        // The header is the first 2 kB.
        let mut short = tiny_gguf().bytes();
        short.truncate(cut);
        prop_assert!(Gguf::parse("short", short).is_err(), "cut off");
    }
}
