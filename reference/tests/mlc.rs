//! MLC folders: the golden checkpoint is read, a written one comes back bit for
//! bit, and a damaged one is refused with file and field.

mod common;

use common::tiny_llama;
use half::f16;
use kernels::models::{self, Family, ModelSpec, RopeScaling, Tensor};
use kernels::quant::QuantFormat;
use reference::checkpoint::Container;
use reference::folder::{Verification, Verify};
use reference::golden::Golden;
use reference::{Checkpoint, mlc, synth};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn read(dir: &Path) -> Result<Checkpoint, String> {
    mlc::read(dir, &|_, _| ()).map_err(|e| e.to_string())
}

fn llama_tiny() -> std::path::PathBuf {
    common::golden().join("llama-tiny")
}

/// A writable copy of the golden folder.
fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary folder");
    for entry in fs::read_dir(llama_tiny()).expect("golden").flatten() {
        let to = dir.path().join(entry.file_name());
        fs::write(to, fs::read(entry.path()).expect("golden")).expect("copied");
    }
    dir
}

fn edit(dir: &Path, file: &str, edit: impl FnOnce(&mut Value)) {
    let path = dir.join(file);
    let mut value = serde_json::from_slice(&fs::read(&path).expect("json")).expect("json");
    edit(&mut value);
    fs::write(path, value.to_string()).expect("written");
}

/// The refusal of a copy whose file was edited.
fn refusal(file: &str, change: impl FnOnce(&mut Value)) -> String {
    let dir = copy();
    edit(dir.path(), file, change);
    read(dir.path()).map(|_| ()).expect_err("must be refused")
}

/// What the refusal says, and the edit that provokes it.
type Case<'a> = (&'a str, &'a dyn Fn(&mut Value));

const INDEX: &str = "ndarray-cache.json";
const CONFIG: &str = "mlc-chat-config.json";

#[test]
fn golden_llama_is_read() {
    let checkpoint = read(&llama_tiny()).expect("whole");
    let spec = checkpoint.spec();
    assert_eq!(spec.id, "llama-tiny", "id");
    assert_eq!(spec.family, Family::Llama, "family");
    assert_eq!(
        (
            spec.hidden_size,
            spec.vocab_size,
            spec.rope_theta,
            spec.max_pages
        ),
        (576, 1003, 1e5, 256),
        "dimensions"
    );
    assert_eq!(
        checkpoint.payload_bytes(),
        4_312_044,
        "ParamBytes of the index"
    );
    assert_eq!(
        checkpoint.provenance().weights,
        Container::Mlc,
        "provenance"
    );
    assert_eq!(checkpoint.provenance().sha256.len(), 64, "checksum");

    // The oracle's embedding rows are the dequantised ones.
    let golden = Golden::open(llama_tiny().join("expected.safetensors")).expect("golden");
    let ids = golden.i32("p1.input_ids").expect("ids");
    let embed = golden.f32("p1.embed").expect("rows");
    let matrix = checkpoint.matrix(None, Tensor::Embedding);
    let mut row = vec![0.0; matrix.k];
    for (&id, expected) in ids.data.iter().zip(embed.data.chunks(matrix.k)) {
        matrix.row_into(usize::try_from(id).expect("positive"), &mut row);
        assert_eq!(row, expected, "row of token {id}");
    }
}

#[test]
fn round_trip_is_exact() {
    let dir = tempfile::tempdir().expect("temporary folder");
    for (family, tied, format, name) in [
        (Family::Llama, true, QuantFormat::Q4f16_1, "llama"),
        (Family::Phi3, false, QuantFormat::Q4f16_1, "phi3"),
        (Family::Qwen3, true, QuantFormat::Q4f16_1, "qwen3"),
        (Family::Llama, false, QuantFormat::Q4f32_1, "wide"),
    ] {
        let rope_scaling = match family {
            Family::Llama => Some(RopeScaling::Llama3 {
                factor: 32.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 64,
            }),
            Family::Phi3 => Some(RopeScaling::Longrope {
                short_factor: vec![1.25; 16],
                long_factor: vec![2.5; 16],
                original_max_position_embeddings: 64,
                max_position_embeddings: 4096,
            }),
            Family::Qwen3 | Family::Qwen35 | Family::Qwen36Moe => None,
        };
        let spec = ModelSpec {
            id: name.into(),
            title: name.into(),
            family,
            tie_word_embeddings: tied,
            format,
            rope_scaling,
            ..tiny_llama()
        };
        let written = synth::checkpoint(&spec, 7).expect("synthetic");
        let out = dir.path().join(name);
        mlc::write(&written, &out, &|_, _| ()).expect("written");
        let back = read(&out).expect("read again");
        assert_eq!(back.spec(), &spec, "{name}");
        assert_eq!(
            back.provenance().title,
            format!("{name} (synthetic weights)"),
            "title"
        );
        assert_eq!(
            back.provenance().sha256,
            written.provenance().sha256,
            "{name}"
        );
        let error = mlc::write(&written, &out, &|_, _| ()).expect_err("not empty");
        assert!(error.to_string().contains("is not empty"), "{error}");
    }
    let wide = dir.path().join("wide");
    edit(&wide, CONFIG, |v| v["quantization"] = json!("q4f16_1"));
    let text = read(&wide).map(|_| ()).expect_err("scales are float32");
    assert!(text.contains("expected float16, since"), "{text}");
    let names: Vec<_> = fs::read_dir(dir.path())
        .expect("folder")
        .flatten()
        .collect();
    assert_eq!(names.len(), 4, "no partial folder is left");
}

#[test]
fn a_large_tensor_has_a_shard_of_its_own() {
    let spec = ModelSpec {
        vocab_size: 1 << 20,
        ..tiny_llama()
    };
    let dir = tempfile::tempdir().expect("temporary folder");
    let written = synth::checkpoint(&spec, 1).expect("synthetic");
    mlc::write(&written, dir.path(), &|_, _| ()).expect("an empty folder is taken");
    let index = fs::read(dir.path().join(INDEX)).expect("index");
    let index: Value = serde_json::from_slice(&index).expect("json");
    let shards = index["records"].as_array().expect("shards");
    let sizes: Vec<_> = shards.iter().map(|s| s["nbytes"].as_u64()).collect();
    assert_eq!(sizes[0], Some(32 << 20), "codes of the embedding");
    assert_eq!(
        shards[0]["records"].as_array().map(Vec::len),
        Some(1),
        "alone"
    );
    assert_eq!(index["metadata"]["ParamSize"], 23, "records");
    assert_eq!(
        index["metadata"]["ParamBytes"].as_f64(),
        Some(written.payload_bytes() as f64),
        "bytes"
    );
    assert_eq!(
        read(dir.path()).expect("read").provenance().sha256,
        written.provenance().sha256,
        "same weights"
    );
}

#[test]
fn a_registered_architecture_is_recognised() {
    let spec = ModelSpec {
        num_hidden_layers: 30,
        ..models::find("smollm2-135m").expect("registered")
    };
    let dir = tempfile::tempdir().expect("temporary folder");
    let out = dir.path().join("any-name");
    mlc::write(
        &synth::checkpoint(&spec, 3).expect("synthetic"),
        &out,
        &|_, _| (),
    )
    .expect("written");
    assert_eq!(read(&out).expect("read").spec(), &spec, "the registry's");
}

#[test]
fn damaged_shards_are_refused() {
    let dir = copy();
    let shard = dir.path().join("params_shard_1.bin");
    let mut bytes = fs::read(&shard).expect("shard");
    bytes[1000] ^= 1;
    fs::write(&shard, &bytes).expect("written");
    let text = read(dir.path()).map(|_| ()).expect_err("md5");
    assert!(text.contains("params_shard_1.bin: md5: expected"), "{text}");
    bytes.pop();
    fs::write(&shard, &bytes).expect("written");
    let text = read(dir.path()).map(|_| ()).expect_err("size");
    assert!(
        text.contains("params_shard_1.bin: size: expected 935532 bytes") && text.contains("935531"),
        "{text}"
    );
    fs::remove_file(&shard).expect("removed");
    let text = read(dir.path()).map(|_| ()).expect_err("absent");
    assert!(text.contains("params_shard_1.bin"), "{text}");
}

#[test]
fn damaged_indexes_are_refused() {
    let cases: [Case; 18] = [
        (
            "records[1].records[1] (model.embed_tokens.q_scale), byteOffset: \
             expected a place in the shard, found -4",
            &|v| v["records"][1]["records"][1]["byteOffset"] = json!(-4),
        ),
        (
            "records[1].nbytes: expected the shard's size, found \"9\"",
            &|v| v["records"][1]["nbytes"] = json!("9"),
        ),
        ("shape: expected a list of sizes, found [2,-1]", &|v| {
            v["records"][1]["records"][1]["shape"] = json!([2, -1])
        }),
        ("nbytes: expected 36108 bytes", &|v| {
            v["records"][1]["records"][1]["nbytes"] = json!(36_110)
        }),
        ("within the 935532 bytes", &|v| {
            v["records"][1]["records"][1]["byteOffset"] = json!(935_000)
        }),
        ("byteOffset: expected a place", &|v| {
            v["records"][1]["records"][1]["byteOffset"] = json!(u64::MAX);
        }),
        ("no overlap with", &|v| {
            v["records"][1]["records"][1]["byteOffset"] = json!(288_862)
        }),
        ("dataPath: expected the name of a file", &|v| {
            v["records"][0]["dataPath"] = json!("../x.bin")
        }),
        ("dataPath", &|v| {
            v["records"][0]["dataPath"] = json!("/etc/hostname")
        }),
        ("md5sum: expected 32", &|v| {
            v["records"][0]["md5sum"] = Value::Null
        }),
        ("dtype: expected uint32, found a float", &|v| {
            v["records"][0]["records"][0]["dtype"] = json!("float32");
        }),
        ("dtype: expected uint32, float16", &|v| {
            v["records"][0]["records"][0]["dtype"] = json!("int3")
        }),
        ("format: expected raw or", &|v| {
            v["records"][0]["records"][0]["format"] = json!("zstd")
        }),
        ("shape: expected [3072, 72]", &|v| {
            v["records"][0]["records"][0]["shape"] = json!([72, 3072]);
        }),
        ("a shape that fits memory", &|v| {
            v["records"][0]["records"][0]["shape"] = json!([u64::MAX, u64::MAX]);
        }),
        (
            "mlp.gate_up_proj.q_weight (a matrix [3072, 576]) is missing",
            &|v| {
                v["records"][0]["records"][0]["name"] =
                    json!("model.layers.9.mlp.down_proj.q_weight");
            },
        ),
        ("at least one tensor", &|v| v["records"] = json!([])),
        ("missing field `records`", &|v| *v = json!({})),
    ];
    for (expected, change) in cases {
        let text = refusal(INDEX, change);
        assert!(text.contains(INDEX), "names the file: {text}");
        assert!(text.contains(expected), "expected `{expected}`: {text}");
    }
}

#[test]
fn an_unknown_parameter_is_named_with_the_nearest() {
    let text = refusal(INDEX, |v| {
        let shards = v["records"].as_array_mut().expect("list");
        let mut shard = shards[1].clone();
        let mut extra = shard["records"][2].clone();
        extra["name"] = json!("model.layers.0.input_layernorm.bias");
        shard["dataPath"] = json!("copy.bin");
        shard["records"] = json!([extra]);
        shards.push(shard);
    });
    assert!(
        text.contains("the nearest is model.layers.0.input_layernorm.weight"),
        "{text}"
    );
}

#[test]
fn flat_records_are_read() {
    let dir = copy();
    edit(dir.path(), INDEX, |v| {
        let mut flat = Vec::new();
        for shard in v["records"].as_array().expect("list") {
            for record in shard["records"].as_array().expect("list") {
                let mut record = record.clone();
                record["dataPath"] = shard["dataPath"].clone();
                record["md5sum"] = shard["md5sum"].clone();
                flat.push(record);
            }
        }
        v["records"] = Value::Array(flat);
    });
    assert_eq!(
        read(dir.path()).expect("flat").provenance().sha256,
        read(&llama_tiny()).expect("shards").provenance().sha256,
        "same weights"
    );
}

#[test]
fn narrow_floats_go_by_their_own_dtype() {
    // Norms of 1.5 as float32 stored in bf16, as bfloat16 and as plain float32.
    let base = read(&llama_tiny()).expect("whole");
    for (dtype, format, bytes) in [
        ("float32", "f32-to-bf16", vec![0xc0, 0x3f]),
        ("bfloat16", "raw", vec![0xc0, 0x3f]),
        ("float32", "raw", vec![0, 0, 0xc0, 0x3f]),
        // `format` means nothing here.
        ("float16", "f32-to-bf16", vec![0, 0x3e]),
    ] {
        let dir = copy();
        let data = bytes.repeat(576);
        fs::write(dir.path().join("norm.bin"), &data).expect("written");
        edit(dir.path(), INDEX, |v| {
            let shards = v["records"].as_array_mut().expect("list");
            for shard in &mut *shards {
                shard["records"]
                    .as_array_mut()
                    .expect("list")
                    .retain(|r| r["name"] != "model.norm.weight");
            }
            shards.push(json!({
                "dataPath": "norm.bin", "format": "raw-shard", "nbytes": data.len(),
                "md5sum": md5(&data),
                "records": [{
                    "name": "model.norm.weight", "shape": [576], "dtype": dtype,
                    "format": format, "nbytes": data.len(), "byteOffset": 0,
                }],
            }));
        });
        let checkpoint = read(dir.path()).expect("whole");
        assert_eq!(
            checkpoint.vector(None, Tensor::FinalNorm),
            vec![f16::from_f32(1.5); 576],
            "{dtype}, {format}"
        );
        assert_eq!(
            checkpoint.matrix(Some(1), Tensor::Down),
            base.matrix(Some(1), Tensor::Down),
            "the rest is untouched"
        );
    }
}

fn md5(data: &[u8]) -> String {
    use md5::Digest;
    md5::Md5::digest(data)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

#[test]
fn two_indexes_must_say_the_same() {
    let new = "tensor-cache.json";
    let dir = copy();
    let index = fs::read(dir.path().join(INDEX)).expect("index");
    fs::write(dir.path().join(new), &index).expect("written");
    // Written by tools that keep a third for another type; it is not read.
    fs::write(dir.path().join("tensor-cache-b16.json"), "{").expect("written");
    read(dir.path()).expect("equal");
    edit(dir.path(), new, |v| v["records"][0]["nbytes"] = json!(1));
    let text = read(dir.path()).map(|_| ()).expect_err("they differ");
    assert!(text.contains(new) && text.contains(INDEX), "{text}");
    assert!(text.contains("different versions"), "{text}");
}

/// A shard that is damaged behind the workbench's back, its size and time as before.
#[test]
fn shards_are_hashed_as_the_caller_says() {
    let dir = copy();
    let stamps = tempfile::tempdir().expect("temporary folder");
    let read = |verify| {
        let verification = Verification {
            verify,
            stamps: Some(stamps.path()),
        };
        let read = mlc::read_with(dir.path(), verification, &|_, _| ());
        read.map(|_| ()).map_err(|e| e.to_string())
    };
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    let shard = dir.path().join("params_shard_0.bin");
    let set_time = |time| {
        let file = fs::OpenOptions::new().write(true).open(&shard);
        file.expect("the shard").set_modified(time).expect("a time");
    };
    let stamped = || fs::read_dir(stamps.path()).expect("folder").count();
    set_time(long_ago);
    read(Verify::Once).expect("whole");
    assert_eq!(stamped(), 1, "shards that are older than a moment");
    let mut bytes = fs::read(&shard).expect("the shard");
    bytes[5] ^= 1;
    fs::write(&shard, &bytes).expect("written");
    set_time(long_ago);
    read(Verify::Once).expect("as it was remembered");
    read(Verify::Never).expect("not hashed");
    let text = read(Verify::Always).expect_err("hashed");
    assert!(text.contains("params_shard_0.bin: md5: expected"), "{text}");
    set_time(long_ago + std::time::Duration::from_secs(1));
    read(Verify::Once).expect_err("changed since");
    bytes.pop();
    fs::write(&shard, &bytes).expect("written");
    let text = read(Verify::Never).expect_err("its size is always compared");
    assert!(
        text.contains("params_shard_0.bin: size: expected"),
        "{text}"
    );
}

#[test]
fn odd_configurations_are_refused() {
    let cases: [Case; 14] = [
        (
            "model_config.rope_scaling.rope_type: expected llama3, longrope or default",
            &|v| v["model_config"]["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4}),
        ),
        (
            "rope_scaling.factor: expected a number, found nothing",
            &|v| {
                v["model_config"]["rope_scaling"] = json!({"rope_type": "llama3"});
            },
        ),
        ("rope_scaling.beta: expected no such key", &|v| {
            v["model_config"]["rope_scaling"] = json!({"rope_type": "llama3", "beta": 1});
        }),
        (
            "model_config.hiden_size: expected no such key (did you mean hidden_size?)",
            &|v| {
                v["model_config"]["hiden_size"] = json!(576);
            },
        ),
        (
            "model_type: expected llama, phi3, qwen3 or qwen3_5, found \"gpt2\"",
            &|v| {
                v["model_type"] = json!("gpt2");
            },
        ),
        (
            "quantization: expected q4f16_1 or q4f32_1, found \"q0f32\"",
            &|v| v["quantization"] = json!("q0f32"),
        ),
        (
            "model_config.hidden_size: expected an integer from 1",
            &|v| {
                v["model_config"]["hidden_size"] = json!(-1);
            },
        ),
        ("model_config.vocab_size", &|v| {
            v["model_config"]["vocab_size"] = json!(1_u64 << 40)
        }),
        (
            "model_config.num_hidden_layers: expected at most the 23 records",
            &|v| {
                v["model_config"]["num_hidden_layers"] = json!(1_000_000);
            },
        ),
        ("head_dim", &|v| v["model_config"]["head_dim"] = json!(60)),
        (
            "model_config.rms_norm_eps: expected a number above 0",
            &|v| {
                v["model_config"]["rms_norm_eps"] = json!(0);
            },
        ),
        ("model_config.position_embedding_base", &|v| {
            v["model_config"]["position_embedding_base"] = Value::Null;
        }),
        ("model_config: expected an object, found nothing", &|v| {
            v.as_object_mut().expect("object").remove("model_config");
        }),
        ("attention_bias: expected false", &|v| {
            v["model_config"]["attention_bias"] = json!(true)
        }),
    ];
    for (expected, change) in cases {
        let text = refusal(CONFIG, change);
        assert!(text.contains(expected), "expected `{expected}`: {text}");
    }
    let text = refusal(CONFIG, |v| v["quantization"] = json!("q4f32_1"));
    let expected = "q_scale, dtype: expected float32, since quantization in \
                    mlc-chat-config.json is q4f32_1, found float16";
    assert!(text.contains(INDEX) && text.contains(expected), "{text}");
    let empty = tempfile::tempdir().expect("temporary folder");
    let text = read(empty.path()).map(|_| ()).expect_err("empty");
    assert!(text.contains(CONFIG), "{text}");
}
