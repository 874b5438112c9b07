//! MLX checkpoints: folders written here and read back, and folders that are wrong.

mod common;

use common::tiny_llama;
use half::{bf16, f16};
use kernels::models::{ModelSpec, RopeScaling, Shape, Tensor, TensorFormat};
use kernels::quant::QuantFormat;
use reference::matrix::Scales;
use reference::{Checkpoint, folder, mlx, synth};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A tensor: type, shape and bytes.
type TensorData = (String, &'static str, Vec<usize>, Vec<u8>);

fn spec() -> ModelSpec {
    ModelSpec {
        intermediate_size: 128,
        format: QuantFormat::Affine4G32,
        other_formats: vec![
            other(None, Tensor::Embedding, QuantFormat::Affine8G64),
            other(Some(0), Tensor::Qkv, QuantFormat::Affine3G64),
            other(Some(1), Tensor::Down, QuantFormat::Affine8G32),
        ],
        stop_ids: vec![2],
        ..tiny_llama()
    }
}

fn other(layer: Option<usize>, tensor: Tensor, format: QuantFormat) -> TensorFormat {
    TensorFormat {
        layer,
        tensor,
        format,
    }
}

/// What a matrix is split into along rows, by MLX's names.
fn split(spec: &ModelSpec, layer: Option<usize>, tensor: Tensor) -> Vec<(String, usize)> {
    let name = spec.param_name(layer, tensor);
    let name = name.trim_end_matches(".weight");
    match tensor {
        Tensor::Qkv => [
            ("q", spec.q_dim()),
            ("k", spec.kv_dim()),
            ("v", spec.kv_dim()),
        ]
        .map(|(part, rows)| (name.replace("qkv_proj", &format!("{part}_proj")), rows))
        .to_vec(),
        Tensor::GateUp => ["gate", "up"]
            .map(|part| {
                let name = name.replace("gate_up_proj", &format!("{part}_proj"));
                (name, spec.intermediate_size)
            })
            .to_vec(),
        Tensor::Embedding
        | Tensor::InputNorm
        | Tensor::QNorm
        | Tensor::KNorm
        | Tensor::O
        | Tensor::PostNorm
        | Tensor::Down
        | Tensor::FinalNorm
        | Tensor::LmHead
        | Tensor::GdnProj
        | Tensor::GdnConv
        | Tensor::GdnALog
        | Tensor::GdnDtBias
        | Tensor::GdnNorm
        | Tensor::GdnOut
        | Tensor::Router
        | Tensor::ExpertGate
        | Tensor::ExpertUp
        | Tensor::ExpertDown => match spec.shape(tensor) {
            Shape::Matrix { rows, .. } => vec![(name.to_owned(), rows)],
            Shape::Vector { len } | Shape::Floats { len } => vec![(name.to_owned(), len)],
        },
    }
}

fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// The tensors of a checkpoint as MLX names them; norms in bf16 where that is
/// exact, else in f16.
fn tensors(weights: &Checkpoint) -> Vec<TensorData> {
    let spec = weights.spec();
    let mut all = Vec::new();
    for (layer, tensor) in spec.tensors() {
        let mut first = 0;
        for (name, rows) in split(spec, layer, tensor) {
            let part = |part: &str| format!("{name}.{part}");
            let Shape::Matrix { k, .. } = spec.shape(tensor) else {
                let values = weights.vector(layer, tensor);
                all.push((part("weight"), "F16", vec![rows], bytes(values)));
                continue;
            };
            let w = weights.matrix(layer, tensor);
            let (words, groups) = (w.format.words_per_row(k), w.format.scales_per_row(k));
            let Scales::F16(scales) = w.scales else {
                panic!("affine scales are f16");
            };
            let words_of = &w.words[first * words..][..rows * words];
            all.push((part("weight"), "U32", vec![rows, words], bytes(words_of)));
            for (name, values) in [("scales", scales), ("biases", w.biases)] {
                let values = &values[first * groups..][..rows * groups];
                all.push((part(name), "F16", vec![rows, groups], bytes(values)));
            }
            first += rows;
        }
    }
    all
}

fn safetensors(tensors: &[TensorData]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    header.insert("__metadata__".into(), json!({"format": "mlx"}));
    for (name, dtype, shape, bytes) in tensors {
        let from = data.len();
        data.extend_from_slice(bytes);
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [from, data.len()]}),
        );
    }
    let header = serde_json::to_vec(&header).expect("JSON");
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

fn config(spec: &ModelSpec) -> Value {
    let mut quantization = json!({"bits": 4, "group_size": 32, "mode": "affine"});
    for other in &spec.other_formats {
        for (path, _) in split(spec, other.layer, other.tensor) {
            quantization[path] = json!({
                "bits": other.format.bits(),
                "group_size": other.format.group_size(),
            });
        }
    }
    let others = json!({
        "model_type": "llama",
        "rope_theta": spec.rope_theta,
        "eos_token_id": [2],
        "quantization": quantization,
    });
    common::config(spec, others)
}

/// A folder of two files with an index, or of one without.
fn write(dir: &Path, config: &Value, tensors: &[TensorData], shards: bool) {
    fs::write(dir.join("config.json"), config.to_string()).expect("written");
    if !shards {
        fs::write(dir.join("model.safetensors"), safetensors(tensors)).expect("written");
        return;
    }
    let (first, second) = tensors.split_at(tensors.len() / 2);
    let mut map = Map::new();
    for (file, part) in [("a.safetensors", first), ("b.safetensors", second)] {
        fs::write(dir.join(file), safetensors(part)).expect("written");
        map.extend(part.iter().map(|(name, ..)| (name.clone(), json!(file))));
    }
    let index = json!({"weight_map": map}).to_string();
    fs::write(dir.join("model.safetensors.index.json"), index).expect("written");
}

fn read(dir: &Path) -> Result<Checkpoint, String> {
    folder::read(dir, &|_, _| ()).map_err(|error| error.to_string())
}

#[test]
fn a_folder_reads_back_as_it_was() {
    let weights = synth::checkpoint(&spec(), 3).expect("synthetic");
    for (shards, prefix) in [(true, ""), (false, ""), (true, "language_model.")] {
        let dir = TempDir::new().expect("a folder");
        let mut all = tensors(&weights);
        for (name, ..) in &mut all {
            name.insert_str(0, prefix);
        }
        all.push(("vision_tower.w".into(), "I64", vec![1], vec![0; 8]));
        write(dir.path(), &config(&spec()), &all, shards);
        let read = read(dir.path()).expect("whole");
        assert_eq!(
            read.payload_sha256(),
            weights.payload_sha256(),
            "every byte"
        );
        let of = |spec: &ModelSpec| (spec.format, spec.other_formats.clone());
        assert_eq!(of(read.spec()), of(&spec()), "every format");
        assert_eq!(read.spec().stop_ids, [2], "stop ids");
    }
}

/// What `mlx::write` makes, in one file and in several, and with RoPE that is scaled.
#[test]
fn a_written_folder_reads_back() {
    let spec = ModelSpec {
        rope_scaling: Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        }),
        ..spec()
    };
    let weights = synth::checkpoint(&spec, 3).expect("synthetic");
    for shard_bytes in [1 << 30, 4000] {
        let dir = TempDir::new().expect("a folder");
        let out = dir.path().join("out");
        mlx::write_in_shards(&weights, &out, shard_bytes, &|_, _| ()).expect("written");
        let index = out.join("model.safetensors.index.json");
        assert_eq!(index.exists(), shard_bytes == 4000, "an index of several");
        let back = read(&out).expect("whole");
        assert_eq!(
            back.payload_sha256(),
            weights.payload_sha256(),
            "every byte"
        );
        assert_eq!(
            back.spec().other_formats,
            spec.other_formats,
            "every format"
        );
        assert_eq!(back.spec().rope_scaling, spec.rope_scaling, "RoPE");
        let error = mlx::write(&weights, &out, &|_, _| ()).expect_err("not empty");
        assert!(error.to_string().contains("is not empty"), "{error}");
        let left = fs::read_dir(dir.path()).expect("a folder").count();
        assert_eq!(left, 1, "no partial folder is left");
    }
}

#[test]
fn bf16_is_rounded_to_f16_and_refused_where_it_overflows() {
    let weights = synth::checkpoint(&spec(), 3).expect("synthetic");
    let norm = |values: [f32; 2]| {
        let dir = TempDir::new().expect("a folder");
        let mut all = tensors(&weights);
        let tensor = all
            .iter_mut()
            .find(|(name, ..)| name == "model.norm.weight");
        let (_, dtype, shape, data) = tensor.expect("the norm");
        let rest = values.into_iter().cycle().take(shape[0]);
        let rest: Vec<bf16> = rest.map(bf16::from_f32).collect();
        (*dtype, *data) = ("BF16", bytes(&rest));
        write(dir.path(), &config(&spec()), &all, false);
        read(dir.path()).map(|read| read.vector(None, Tensor::FinalNorm)[..2].to_vec())
    };
    let tiny = 3.0 * 2f32.powi(-26);
    assert_eq!(
        norm([1.5, tiny]),
        Ok(vec![f16::from_f32(1.5), f16::from_bits(1)]),
        "a subnormal, to the nearest"
    );
    let error = norm([1.0, 1e5]).expect_err("beyond f16");
    assert!(error.contains("model.norm.weight, element 1"), "{error}");
}

#[test]
fn wrong_folders_are_named() {
    let weights = synth::checkpoint(&spec(), 3).expect("synthetic");
    let wrong = |change: &dyn Fn(&Path, &mut Value, &mut Vec<TensorData>)| {
        let dir = TempDir::new().expect("a folder");
        let (mut config, mut all) = (config(&spec()), tensors(&weights));
        change(dir.path(), &mut config, &mut all);
        write(dir.path(), &config, &all, false);
        read(dir.path()).expect_err("a change that matters")
    };
    let of = |name: &'static str| {
        move |all: &[TensorData]| {
            all.iter()
                .position(|(known, ..)| known == name)
                .expect(name)
        }
    };
    let q = of("model.layers.0.self_attn.q_proj.weight");
    type Change<'a> = &'a dyn Fn(&Path, &mut Value, &mut Vec<TensorData>);
    let cases: [(&str, Change<'_>); 12] = [
        (
            "q_proj.weight (a matrix [128, 64]) is missing",
            &|_, _, all| {
                all.remove(q(all));
            },
        ),
        ("did you mean hidden_size?", &|_, config, _| {
            config["hiden_size"] = json!(64);
        }),
        ("rope_scaling.factor: expected a number", &|_, config, _| {
            config["rope_scaling"] = json!({"type": "llama3"});
        }),
        (
            "model_type: expected llama, phi3, qwen3, qwen3_moe, qwen3_5 or qwen3_5_moe",
            &|_, config, _| {
                config["model_type"] = json!("mamba");
            },
        ),
        ("bits 4 or 8 with group_size 32 or 64", &|_, config, _| {
            config["quantization"]["bits"] = json!(5);
        }),
        ("mode: expected affine", &|_, config, _| {
            config["quantization"]["mode"] = json!("mxfp4");
        }),
        ("since their rows are joined", &|_, config, _| {
            config["quantization"]["model.layers.0.self_attn.k_proj"] =
                json!({"bits": 4, "group_size": 64});
        }),
        (
            "expected an object with bits and group_size",
            &|_, config, _| {
                config["quantization"]["model.layers.1.self_attn.o_proj"] = json!(false);
            },
        ),
        ("is unknown to", &|_, _, all| {
            all.push((
                "model.layers.2.norm.weight".into(),
                "F16",
                vec![1],
                vec![0; 2],
            ));
        }),
        ("dtype: expected U32, found F32", &|_, _, all| {
            let q = q(all);
            all[q].1 = "F32";
        }),
        ("shape: expected [64, 6]", &|_, _, all| {
            let q = q(all);
            all[q].2.reverse();
        }),
        ("num_hidden_layers: expected at most", &|_, config, _| {
            config["num_hidden_layers"] = json!(1 << 20);
        }),
    ];
    for (part, change) in cases {
        let error = wrong(change);
        assert!(error.contains(part), "expected `{part}` in {error}");
    }
    let empty = TempDir::new().expect("a folder");
    let error = read(empty.path()).expect_err("empty");
    assert!(error.contains("neither mlc-chat-config.json"), "{error}");
}

#[test]
fn hostile_headers_are_refused() {
    let weights = synth::checkpoint(&spec(), 3).expect("synthetic");
    let whole = safetensors(&tensors(&weights));
    let refused = |file: &[u8], part: &str| {
        let dir = TempDir::new().expect("a folder");
        fs::write(dir.path().join("config.json"), config(&spec()).to_string()).expect("written");
        fs::write(dir.path().join("model.safetensors"), file).expect("written");
        let error = read(dir.path()).expect_err(part);
        assert!(error.contains(part), "expected `{part}` in {error}");
    };
    refused(b"short", "expected a header");
    refused(
        &[&u64::MAX.to_le_bytes()[..], b"{}"].concat(),
        "header length",
    );
    refused(&[&2_u64.to_le_bytes()[..], b"[]"].concat(), "map");
    refused(&whole[..whole.len() - 1], "a range within");
    let header = |entries: Value, data: usize| {
        let header = entries.to_string().into_bytes();
        let len = (header.len() as u64).to_le_bytes();
        [&len[..], &header, &vec![0; data]].concat()
    };
    let tensor = |dtype: &str, shape: Value, offsets: Value| json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
    let one = |tensor: Value| header(json!({"w": tensor}), 8);
    refused(
        &one(tensor("F16", json!([4]), json!([8, 0]))),
        "a range within",
    );
    refused(
        &one(tensor("F16", json!([3]), json!([0, 8]))),
        "the bytes of F16 [3]",
    );
    let huge = json!([u64::MAX, 3]);
    refused(&one(tensor("F16", huge, json!([0, 8]))), "the bytes of F16");
    refused(
        &one(tensor("F16", json!([-1]), json!([0, 8]))),
        "invalid value",
    );
    let overlapping = json!({
        "a": tensor("F16", json!([4]), json!([0, 8])),
        "b": tensor("F16", json!([1]), json!([6, 8])),
    });
    refused(&header(overlapping, 8), "a range after that of a");
}

#[test]
fn an_index_that_points_elsewhere_is_refused() {
    let weights = synth::checkpoint(&spec(), 3).expect("synthetic");
    let dir = TempDir::new().expect("a folder");
    write(dir.path(), &config(&spec()), &tensors(&weights), true);
    let index = dir.path().join("model.safetensors.index.json");
    let text = fs::read_to_string(&index).expect("an index");
    let refused = |text: String, part: &str| {
        fs::write(&index, text).expect("written");
        let error = read(dir.path()).expect_err(part);
        assert!(error.contains(part), "expected `{part}` in {error}");
    };
    refused(
        text.replace("a.safetensors", "../a.safetensors"),
        "names of files",
    );
    refused(
        text.replacen("a.safetensors", "b.safetensors", 1),
        "a tensor of",
    );
    refused(
        text.replace("b.safetensors", "c.safetensors"),
        "c.safetensors",
    );
}
