//! Conversion: Hugging Face folders in floating point become checkpoints that read
//! back bit for bit, and say what they are.

mod common;

use common::{tiny_gguf, tiny_llama, weight};
use half::{bf16, f16};
use kernels::models::{Family, ModelSpec, Tensor};
use kernels::quant::QuantFormat;
use reference::checkpoint::Container;
use reference::convert::{self, Beside, Content, Target};
use reference::inspect::{Kind, inspect};
use reference::{Checkpoint, folder, quantise, synth};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A tensor: its name, shape and values.
type Floats = (String, Vec<usize>, Vec<f32>);

fn spec(family: Family) -> ModelSpec {
    ModelSpec {
        family,
        intermediate_size: 128,
        tie_word_embeddings: family != Family::Phi3,
        stop_ids: vec![2],
        ..tiny_llama()
    }
}

/// The tensors of a model by their published names, every weight its own.
fn tensors(spec: &ModelSpec) -> Vec<Floats> {
    let (d, f) = (spec.hidden_size, spec.intermediate_size);
    let (q, kv) = (spec.q_dim(), spec.kv_dim());
    let mut names = vec![("model.embed_tokens".to_owned(), spec.vocab_size, d)];
    for layer in 0..spec.num_hidden_layers {
        let mut add = |name: &str, rows, k| {
            names.push((format!("model.layers.{layer}.{name}"), rows, k));
        };
        add("input_layernorm", 0, d);
        if spec.family == Family::Phi3 {
            add("self_attn.qkv_proj", q + 2 * kv, d);
            add("mlp.gate_up_proj", 2 * f, d);
        } else {
            add("self_attn.q_proj", q, d);
            add("self_attn.k_proj", kv, d);
            add("self_attn.v_proj", kv, d);
            add("mlp.gate_proj", f, d);
            add("mlp.up_proj", f, d);
        }
        if spec.family == Family::Qwen3 {
            add("self_attn.q_norm", 0, spec.head_dim);
            add("self_attn.k_norm", 0, spec.head_dim);
        }
        add("self_attn.o_proj", d, q);
        add("post_attention_layernorm", 0, d);
        add("mlp.down_proj", d, f);
    }
    names.push(("model.norm".into(), 0, d));
    if !spec.tie_word_embeddings {
        names.push(("lm_head".into(), spec.vocab_size, d));
    }
    let tensors = names.into_iter().enumerate();
    tensors
        .map(|(at, (name, rows, k))| {
            let values = (0..rows.max(1) * k).map(|i| weight(at, i / k, i % k));
            // Values of bf16, so that every type of the field holds them.
            let values = values.map(|v| bf16::from_f32(v).to_f32()).collect();
            let shape = if rows == 0 { vec![k] } else { vec![rows, k] };
            (format!("{name}.weight"), shape, values)
        })
        .collect()
}

fn write(dir: &Path, spec: &ModelSpec, tensors: &[Floats], dtype: &str) {
    let model_type = match spec.family {
        Family::Phi3 => "phi3",
        Family::Qwen3 => "qwen3",
        Family::Llama | Family::Qwen35 | Family::Qwen36Moe => "llama",
    };
    let others = json!({
        "model_type": model_type,
        "architectures": ["ForCausalLM"],
        "rope_theta": spec.rope_theta,
        "rope_scaling": null,
        "torch_dtype": "bfloat16",
        "eos_token_id": 2,
    });
    let config = common::config(spec, others);
    fs::write(dir.join("config.json"), config.to_string()).expect("written");
    let (first, second) = tensors.split_at(tensors.len() / 2);
    let mut map = Map::new();
    for (file, part) in [("a.safetensors", first), ("b.safetensors", second)] {
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, shape, values) in part {
            let from = data.len();
            for &value in values {
                match dtype {
                    "BF16" => data.extend(bf16::from_f32(value).to_le_bytes()),
                    "F16" => data.extend(f16::from_f32(value).to_le_bytes()),
                    _ => data.extend(value.to_le_bytes()),
                }
            }
            let offsets = [from, data.len()];
            header.insert(
                name.clone(),
                json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}),
            );
            map.insert(name.clone(), json!(file));
        }
        let header = Value::Object(header).to_string();
        let len = (header.len() as u64).to_le_bytes();
        let bytes = [&len[..], header.as_bytes(), &data].concat();
        fs::write(dir.join(file), bytes).expect("written");
    }
    let index = json!({ "weight_map": map }).to_string();
    fs::write(dir.join("model.safetensors.index.json"), index).expect("written");
}

fn converted(dir: &Path, target: Target) -> Result<Checkpoint, String> {
    convert::read(dir, target, &|_, _| ()).map_err(|e| e.to_string())
}

#[test]
fn every_family_type_and_target_reads_back() {
    for (family, dtype) in [
        (Family::Llama, "BF16"),
        (Family::Phi3, "F16"),
        (Family::Qwen3, "F32"),
    ] {
        let spec = spec(family);
        let input = TempDir::new().expect("a folder");
        let tensors = tensors(&spec);
        write(input.path(), &spec, &tensors, dtype);
        for target in Target::ALL {
            let made = converted(input.path(), target).expect("converts");
            assert_eq!(made.spec().format, target.format(), "{family:?}");
            let out = TempDir::new().expect("a folder");
            let out = out.path().join("out");
            convert::write(&made, &out, &|_, _| ()).expect("written");
            let back = folder::read(&out, &|_, _| ()).expect("read back");
            let name = target.name();
            assert_eq!(
                back.payload_sha256(),
                made.payload_sha256(),
                "{family:?}, {name}"
            );
            assert!(back.provenance().title.ends_with("(requantised)"), "{name}");
            let container = if target == Target::MlxAffine4 {
                Container::Mlx
            } else {
                Container::Mlc
            };
            assert_eq!(back.provenance().weights, container, "{name}");
            assert_eq!(back.spec().stop_ids, [2], "{name}");
        }
    }
}

/// What reads and writes text goes along, whatever is made; nothing else does.
#[test]
fn the_tokenizer_goes_along() {
    let input = TempDir::new().expect("a folder");
    let spec = spec(Family::Llama);
    write(input.path(), &spec, &tensors(&spec), "BF16");
    let there = [
        "tokenizer.json",
        "generation_config.json",
        "chat_template.jinja",
    ];
    for name in there {
        fs::write(input.path().join(name), name).expect("written");
    }
    fs::write(input.path().join("README.md"), "of the model").expect("written");
    let found = convert::text_files(input.path());
    let names: Vec<&str> = found.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, there, "those of the input");
    let made = Content::Bytes(b"{}".to_vec());
    let beside = [
        found,
        vec![Beside {
            name: "tokenizer_config.json".into(),
            content: made,
        }],
    ];
    let beside = beside.concat();
    for target in [Target::Q4f16_1, Target::MlxAffine4] {
        let made = converted(input.path(), target).expect("converts");
        let out = TempDir::new().expect("a folder");
        let out = out.path().join("out");
        convert::write_with(&made, &out, &beside, &|_, _| ()).expect("written");
        for name in there {
            let text = fs::read_to_string(out.join(name)).expect("copied");
            assert_eq!(text, name, "{}", target.name());
        }
        assert!(out.join("tokenizer_config.json").is_file(), "made");
        assert!(!out.join("README.md").exists(), "not of the text");
        folder::read(&out, &|_, _| ()).expect("read back");
    }
}

/// Joined rows are those of their parts, quantised.
#[test]
fn rows_are_quantised_as_they_are_joined() {
    let spec = spec(Family::Llama);
    let input = TempDir::new().expect("a folder");
    let tensors = tensors(&spec);
    write(input.path(), &spec, &tensors, "BF16");
    let made = converted(input.path(), Target::Q4f16_1).expect("converts");
    let rows: Vec<f32> = ["q", "k", "v"]
        .iter()
        .flat_map(|part| {
            let name = format!("model.layers.1.self_attn.{part}_proj.weight");
            let found = tensors.iter().find(|(n, ..)| *n == name);
            found.expect("there").2.clone()
        })
        .collect();
    let expected = quantise::quantise(&rows, spec.hidden_size).expect("finite");
    let qkv = made.matrix(Some(1), Tensor::Qkv);
    assert_eq!(qkv.words, expected.words, "codes");
    // q4f32_1 keeps what f16 would round.
    let wide = converted(input.path(), Target::Q4f32_1).expect("converts");
    let wide = wide.matrix(Some(1), Tensor::Qkv);
    let largest = rows[..32].iter().fold(0.0_f32, |a, b| a.max(b.abs()));
    assert_eq!(wide.scales.get(0), f64::from(largest / 7.0), "scale");
}

#[test]
fn a_weight_that_cannot_be_held_leaves_no_folder() {
    let spec = spec(Family::Llama);
    let input = TempDir::new().expect("a folder");
    let mut tensors = tensors(&spec);
    let down = tensors
        .iter_mut()
        .find(|(name, ..)| name == "model.layers.0.mlp.down_proj.weight");
    down.expect("there").2[5 * 128 + 7] = 1e6;
    write(input.path(), &spec, &tensors, "BF16");
    let error = converted(input.path(), Target::Q4f16_1).expect_err("beyond f16");
    assert!(
        error.contains("layers.0.mlp.down_proj, row 5, column 7: 999424 cannot be held in q4f16_1"),
        "{error}"
    );
    // f32 scales hold it.
    converted(input.path(), Target::Q4f32_1).expect("converts");
    let error = folder::read(input.path(), &|_, _| ()).expect_err("not quantised");
    assert!(error.to_string().contains("cargo xtask convert"), "{error}");
}

#[test]
fn a_folder_that_is_no_model_is_named() {
    let spec = spec(Family::Llama);
    let refused = |change: &dyn Fn(&mut Vec<Floats>), part: &str| {
        let input = TempDir::new().expect("a folder");
        let mut tensors = tensors(&spec);
        change(&mut tensors);
        write(input.path(), &spec, &tensors, "BF16");
        let error = converted(input.path(), Target::Q4f16_1).expect_err(part);
        assert!(error.contains(part), "expected `{part}` in {error}");
    };
    let at = |tensors: &[Floats], name: &str| {
        let at = tensors.iter().position(|(n, ..)| n.contains(name));
        at.expect("there")
    };
    refused(&|t| drop(t.remove(at(t, "up_proj"))), "up_proj.weight");
    refused(
        &|t| t.push(("model.extra".into(), vec![1], vec![0.0])),
        "model.extra is unknown",
    );
    refused(
        &|t| {
            let at = at(t, "k_proj");
            t[at].1.reverse();
        },
        "k_proj.weight, shape: expected [32, 64], found [64, 32]",
    );
}

#[test]
fn inspect_says_what_it_is_and_what_is_missing() {
    let dir = TempDir::new().expect("a folder");
    // A whole model of the registry, its weights absent but for their headers, would be
    // large; a tiny one differs from all of them.
    let path = dir.path().join("tiny.gguf");
    fs::write(&path, tiny_gguf().bytes()).expect("written");
    let found = inspect(&path).expect("a GGUF");
    assert_eq!((found.kind, found.problem), (Kind::Gguf, None), "whole");
    assert_eq!(found.model.as_deref(), Some("tiny"), "its name");
    assert_eq!(found.parameters, Some(tiny_llama().parameters()), "weights");
    assert_eq!(found.tensors.len(), 20, "tensors");
    assert!(
        found.differences.iter().all(|d| d.count() > 0),
        "not registered"
    );

    let mut file = tiny_gguf();
    file.tensors.pop();
    fs::write(&path, file.bytes()).expect("written");
    let found = inspect(&path).expect("a GGUF");
    let problem = found.problem.expect("a tensor is missing");
    assert!(
        problem.contains("output_norm.weight is missing"),
        "{problem}"
    );
    let missing = &found.differences[0].missing;
    assert!(
        missing.contains(&"output_norm.weight".to_owned()),
        "{missing:?}"
    );

    for (format, kind) in [
        (QuantFormat::Q4f16_1, Kind::Mlc),
        (QuantFormat::Affine4G64, Kind::Mlx),
    ] {
        let spec = ModelSpec {
            format,
            ..spec(Family::Llama)
        };
        let written = synth::checkpoint(&spec, 1).expect("synthetic");
        let out = dir.path().join(format.name());
        convert::write(&written, &out, &|_, _| ()).expect("written");
        let found = inspect(&out).expect("a folder");
        assert_eq!(found.kind, kind, "{format}");
        assert_eq!(found.problem, None, "{format}");
        assert_eq!(found.bytes, written.payload_bytes(), "{format}");
    }
    let input = dir.path().join("float");
    fs::create_dir(&input).expect("created");
    let spec = spec(Family::Llama);
    write(&input, &spec, &tensors(&spec), "F32");
    let found = inspect(&input).expect("a folder");
    assert_eq!(found.kind, Kind::HuggingFace, "in floating point");
    assert_eq!(found.bytes, 4 * spec.parameters(), "f32");
    assert!(inspect(dir.path()).is_err(), "no checkpoint");
}

/// `inspect` calls no folder a model that the loader refuses: what it says is the
/// loader's own reason.
#[test]
fn inspect_says_what_the_loader_says() {
    let spec = |format| ModelSpec {
        format,
        ..spec(Family::Llama)
    };
    let agree = |format: QuantFormat, part: &str, damage: &dyn Fn(&Path)| {
        let written = synth::checkpoint(&spec(format), 1).expect("synthetic");
        let dir = TempDir::new().expect("a folder");
        let out = dir.path().join("out");
        convert::write(&written, &out, &|_, _| ()).expect("written");
        damage(&out);
        let refused = folder::read(&out, &|_, _| ()).expect_err(part).to_string();
        let found = inspect(&out).expect("a folder");
        let problem = found.problem.expect(part);
        assert_eq!(problem, refused, "one reason");
        assert_eq!(found.model, None, "{problem}");
        assert!(problem.contains(part), "expected `{part}` in {problem}");
    };
    let shard = "params_shard_0.bin";
    agree(QuantFormat::Q4f16_1, "bytes as in the index", &|out| {
        let bytes = fs::read(out.join(shard)).expect("a shard");
        fs::write(out.join(shard), &bytes[..bytes.len() - 4]).expect("written");
    });
    let missing = "ndarray-cache.json: dataPath: expected the shard params_shard_0.bin beside it";
    agree(QuantFormat::Q4f16_1, missing, &|out| {
        fs::remove_file(out.join(shard)).expect("removed");
    });
    let eight = "embed_tokens.weight, shape: expected [40, 16], found [40, 8]";
    agree(QuantFormat::Affine4G64, eight, &|out| {
        let file = out.join("config.json");
        let text = fs::read_to_string(&file).expect("a configuration");
        let text = text.replace("\"bits\": 4", "\"bits\": 8");
        fs::write(file, text).expect("written");
    });
}

/// A configuration alone is enough to know the model, and for weights of its shape.
#[test]
fn a_configuration_alone_is_a_model() {
    let dir = TempDir::new().expect("a folder");
    let of = |name: &str, config: &str, from: &Path| {
        let to = dir.path().join(name);
        fs::create_dir(&to).expect("created");
        fs::copy(from.join(config), to.join(config)).expect("copied");
        to
    };
    let spec = spec(Family::Qwen3);
    let float = dir.path().join("float");
    fs::create_dir(&float).expect("created");
    write(&float, &spec, &tensors(&spec), "F32");
    let (mlc, mlx) = (dir.path().join("mlc"), dir.path().join("mlx"));
    for (out, format) in [
        (&mlc, QuantFormat::Q4f32_1),
        (&mlx, QuantFormat::Affine4G64),
    ] {
        let spec = ModelSpec {
            format,
            ..spec.clone()
        };
        let written = synth::checkpoint(&spec, 1).expect("synthetic");
        convert::write(&written, out, &|_, _| ()).expect("written");
    }
    for (kind, config, from, format) in [
        (
            Kind::HuggingFace,
            "config.json",
            &float,
            QuantFormat::Q4f16_1,
        ),
        (Kind::Mlx, "config.json", &mlx, QuantFormat::Affine4G64),
        (
            Kind::Mlc,
            "mlc-chat-config.json",
            &mlc,
            QuantFormat::Q4f32_1,
        ),
    ] {
        let alone = of(kind.name(), config, from);
        let found = inspect(&alone).expect("a configuration");
        assert_eq!(found.kind, kind, "{config}");
        assert_eq!(found.model.as_deref(), Some(kind.name()), "the folder's");
        assert_eq!(found.parameters, Some(spec.parameters()), "{config}");
        let problem = found.problem.expect("no weights");
        assert!(problem.contains("weights are missing"), "{problem}");
        let read = folder::read(&alone, &|_, _| ()).expect_err("no weights");
        let made = converted(&alone, Target::Q4f16_1).expect_err("no weights");
        for error in [read.to_string(), made] {
            assert!(error.contains(&problem), "{error}");
        }
        assert_eq!(found.differences, [], "everything is missing");
        for path in [alone.clone(), alone.join(config)] {
            let described = folder::describe(&path).expect("a model");
            assert_eq!(described.format, format, "{config}");
            assert_eq!(described.hidden_size, spec.hidden_size, "{config}");
            synth::checkpoint(&described, 1).expect("weights of its shape");
        }
    }
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).expect("created");
    let error = folder::describe(&empty).expect_err("nothing").to_string();
    assert!(error.contains("no checkpoint"), "{error}");
    let text = fs::read_to_string(float.join("config.json")).expect("text");
    let text = text.replace("\"num_hidden_layers\":2", "\"num_hidden_layers\":2000000");
    fs::write(empty.join("config.json"), text).expect("written");
    let problem = inspect(&empty).expect("a configuration").problem;
    let problem = problem.expect("too many layers");
    assert!(problem.contains("num_hidden_layers"), "{problem}");
}

#[test]
fn what_cannot_be_converted_is_said() {
    let dir = TempDir::new().expect("a folder");
    let refused = |input: &Path, part: &str| {
        let error = converted(input, Target::Q4f16_1).expect_err(part);
        assert!(error.contains(part), "expected `{part}` in {error}");
    };
    for (format, kind) in [
        (QuantFormat::Q4f16_1, "an MLC checkpoint, quantised already"),
        (
            QuantFormat::Affine4G64,
            "an MLX checkpoint, quantised already",
        ),
    ] {
        let spec = ModelSpec {
            format,
            ..spec(Family::Llama)
        };
        let written = synth::checkpoint(&spec, 1).expect("synthetic");
        let out = dir.path().join(format.name());
        convert::write(&written, &out, &|_, _| ()).expect("written");
        refused(&out, kind);
    }
    refused(dir.path(), "config.json (MLX, or Hugging Face's");
    let written = synth::checkpoint(&spec(Family::Llama), 1).expect("synthetic");
    let file = dir.path().join("file");
    fs::write(&file, "").expect("written");
    let before = fs::read_dir(dir.path()).expect("a folder").count();
    for out in [file.clone(), file.join("below"), file.join("a/b")] {
        let error = convert::write(&written, &out, &|_, _| ()).expect_err("no folder");
        let error = error.to_string();
        assert!(error.starts_with(&out.display().to_string()), "{error}");
        assert!(!error.contains("partial"), "{error}");
        let first = convert::require_writable(&out).expect_err("no folder");
        assert_eq!(first.to_string(), error, "said before, too");
    }
    let error = convert::require_writable(dir.path()).expect_err("not empty");
    assert!(error.to_string().contains("is not empty"), "{error}");
    convert::require_writable(&dir.path().join("some/new/folder")).expect("it can be made");
    let after = fs::read_dir(dir.path()).expect("a folder").count();
    assert_eq!(after, before, "nothing is left");
    let error = inspect(Path::new("/dev/null"));
    if cfg!(unix) {
        let error = error.expect_err("a device").to_string();
        assert!(error.contains("found a folder or device"), "{error}");
    }
    // A type that is of no use here is named as the file has it, and a file that is not
    // there by the index that lists it.
    let input = dir.path().join("float");
    fs::create_dir(&input).expect("created");
    let spec = spec(Family::Llama);
    write(&input, &spec, &tensors(&spec), "F32");
    let file = input.join("a.safetensors");
    let bytes = fs::read(&file).expect("a file");
    let (head, data) =
        bytes.split_at(8 + u64::from_le_bytes(bytes[..8].try_into().expect("8")) as usize);
    let text = String::from_utf8(head[8..].to_vec()).expect("a header");
    let text = text.replace("\"F32\"", "\"I32\"");
    fs::write(&file, [&head[..8], text.as_bytes(), data].concat()).expect("written");
    refused(&input, "dtype: expected F16 or BF16 or F32, found I32");
    fs::remove_file(&file).expect("removed");
    refused(
        &input,
        "index.json: weight_map: expected the file a.safetensors beside it",
    );
}
