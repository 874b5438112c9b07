//! Conversion of hybrids and experts: the published folders in floating point, however
//! their experts lie, become the checkpoint that MLX's own floats become.

mod common;

use common::{tiny_llama, weight};
use half::{bf16, f16};
use kernels::models::{Experts, Family, GatedDeltaNet, ModelSpec, Tensor};
use kernels::quant::QuantFormat;
use reference::convert::{self, Target};
use reference::inspect::{Kind, inspect};
use reference::{Checkpoint, Forward, Numerics, folder, quantise};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A tensor: its name, shape and values.
type Floats = (String, Vec<usize>, Vec<f32>);

/// Four layers, the last of attention where it is a hybrid.
fn spec(family: Family) -> ModelSpec {
    let hybrid = family != Family::Qwen3;
    let experts = (family != Family::Qwen35).then_some(Experts {
        num_experts: 6,
        num_experts_per_tok: 2,
        norm_topk_prob: true,
        shared_expert: hybrid,
    });
    ModelSpec {
        family,
        num_hidden_layers: 4,
        head_dim: 64,
        rotary_dim: if hybrid { 16 } else { 64 },
        intermediate_size: 64,
        tie_word_embeddings: family == Family::Qwen35,
        stop_ids: vec![2],
        attn_output_gate: hybrid,
        delta_net: hybrid.then_some(GatedDeltaNet {
            linear_num_key_heads: 1,
            linear_num_value_heads: 2,
            linear_key_head_dim: 64,
            linear_value_head_dim: 32,
            ..GatedDeltaNet::PUBLISHED
        }),
        experts,
        ..tiny_llama()
    }
}

/// The tensors as MLX has them in floating point, every weight its own.
fn stacked(spec: &ModelSpec) -> Vec<Floats> {
    let (d, f) = (spec.hidden_size, spec.intermediate_size);
    let hybrid = spec.delta_net.is_some();
    let mut names = vec![(
        "model.embed_tokens.weight".to_owned(),
        vec![spec.vocab_size, d],
    )];
    for layer in 0..spec.num_hidden_layers {
        let mut add = |name: &str, shape: &[usize]| {
            names.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        add("input_layernorm.weight", &[d]);
        add("post_attention_layernorm.weight", &[d]);
        if let Some(net) = spec.delta_net.filter(|_| layer < 3) {
            let (conv, z, heads) = (net.conv_dim(), net.value_dim(), net.linear_num_value_heads);
            add("linear_attn.in_proj_qkv.weight", &[conv, d]);
            add("linear_attn.in_proj_z.weight", &[z, d]);
            add("linear_attn.in_proj_a.weight", &[heads, d]);
            add("linear_attn.in_proj_b.weight", &[heads, d]);
            add("linear_attn.conv1d.weight", &[conv, 4, 1]);
            add("linear_attn.A_log", &[heads]);
            add("linear_attn.dt_bias", &[heads]);
            add("linear_attn.norm.weight", &[net.linear_value_head_dim]);
            add("linear_attn.out_proj.weight", &[d, z]);
        } else {
            let gates = if hybrid { 2 } else { 1 };
            add("self_attn.q_proj.weight", &[gates * spec.q_dim(), d]);
            add("self_attn.k_proj.weight", &[spec.kv_dim(), d]);
            add("self_attn.v_proj.weight", &[spec.kv_dim(), d]);
            add("self_attn.q_norm.weight", &[spec.head_dim]);
            add("self_attn.k_norm.weight", &[spec.head_dim]);
            add("self_attn.o_proj.weight", &[d, spec.q_dim()]);
        }
        let Some(experts) = spec.experts else {
            add("mlp.gate_proj.weight", &[f, d]);
            add("mlp.up_proj.weight", &[f, d]);
            add("mlp.down_proj.weight", &[d, f]);
            continue;
        };
        let e = experts.num_experts;
        add("mlp.gate.weight", &[e, d]);
        add("mlp.switch_mlp.gate_proj.weight", &[e, f, d]);
        add("mlp.switch_mlp.up_proj.weight", &[e, f, d]);
        add("mlp.switch_mlp.down_proj.weight", &[e, d, f]);
        if experts.shared_expert {
            add("mlp.shared_expert_gate.weight", &[1, d]);
            add("mlp.shared_expert.gate_proj.weight", &[f, d]);
            add("mlp.shared_expert.up_proj.weight", &[f, d]);
            add("mlp.shared_expert.down_proj.weight", &[d, f]);
        }
    }
    names.push(("model.norm.weight".into(), vec![d]));
    if !spec.tie_word_embeddings {
        names.push(("lm_head.weight".into(), vec![spec.vocab_size, d]));
    }
    let tensors = names.into_iter().enumerate();
    let tensors = tensors.map(|(at, (name, shape))| {
        let value = |i| bf16::from_f32(weight(at, i / d, i % d)).to_f32();
        let mut values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        if is_norm(&name) {
            values.iter_mut().for_each(|gamma| *gamma += 1.0);
        }
        (name, shape, values)
    });
    tensors.collect()
}

/// Whether it is a gamma that a published hybrid stores less 1.
fn is_norm(name: &str) -> bool {
    name.contains("layernorm")
        || name == "model.norm.weight"
        || name.contains("q_norm")
        || name.contains("k_norm")
}

/// The same as a hybrid's authors publish it, beside what sees and what drafts tokens.
fn published(spec: &ModelSpec, tensors: Vec<Floats>) -> Vec<Floats> {
    if spec.delta_net.is_none() {
        return tensors;
    }
    let tensors = tensors.into_iter().map(|(name, mut shape, mut values)| {
        if is_norm(&name) {
            values.iter_mut().for_each(|gamma| *gamma -= 1.0);
        }
        if name.contains("conv1d") {
            shape.swap(1, 2);
        }
        let inner = name.strip_prefix("model.");
        let name = inner.map_or(name.clone(), |inner| {
            format!("model.language_model.{inner}")
        });
        (name, shape, values)
    });
    let others = [
        "model.visual.patch_embed.proj.weight",
        "mtp.layers.0.norm.weight",
    ];
    let others = others.map(|name| (name.to_owned(), vec![1], vec![0.5]));
    tensors.chain(others).collect()
}

/// Every expert's matrices apart.
fn apart(tensors: Vec<Floats>) -> Vec<Floats> {
    let mut all = Vec::new();
    for (name, shape, values) in tensors {
        let Some((mlp, part)) = name.split_once(".switch_mlp.") else {
            all.push((name, shape, values));
            continue;
        };
        let matrices = values.chunks_exact(shape[1] * shape[2]).enumerate();
        all.extend(matrices.map(|(expert, matrix)| {
            let name = format!("{mlp}.experts.{expert}.{part}");
            (name, shape[1..].to_vec(), matrix.to_vec())
        }));
    }
    all
}

/// Gate and up of all experts joined.
fn joined(tensors: Vec<Floats>) -> Vec<Floats> {
    let mut all: Vec<Floats> = Vec::new();
    for (name, shape, values) in tensors {
        let Some((mlp, part)) = name.split_once(".switch_mlp.") else {
            all.push((name, shape, values));
            continue;
        };
        if part == "down_proj.weight" {
            all.push((format!("{mlp}.experts.down_proj"), shape, values));
        } else if part == "gate_proj.weight" {
            all.push((format!("{mlp}.experts.gate_up_proj"), shape, values));
        } else {
            // Behind each expert's gate.
            let gate = all.pop().expect("gate stands before up");
            let of_one = shape[1] * shape[2];
            let pairs = gate.2.chunks_exact(of_one).zip(values.chunks_exact(of_one));
            let both = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
            all.push((gate.0, vec![shape[0], 2 * shape[1], shape[2]], both));
        }
    }
    all
}

fn config(spec: &ModelSpec) -> Value {
    let others = json!({
        "eos_token_id": 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": spec.rope_theta,
            "partial_rotary_factor": spec.rotary_dim as f64 / spec.head_dim as f64,
        },
    });
    let mut text = common::config(spec, others);
    let mut add = |keys| common::add(&mut text, keys);
    if let Some(net) = &spec.delta_net {
        add(json!(net));
        add(json!({ "attn_output_gate": true, "mtp_num_hidden_layers": 1 }));
    }
    if let Some(experts) = &spec.experts {
        add(json!({
            "num_experts": experts.num_experts,
            "num_experts_per_tok": experts.num_experts_per_tok,
            "norm_topk_prob": true,
            "moe_intermediate_size": spec.intermediate_size,
            "decoder_sparse_step": 1,
        }));
        if experts.shared_expert {
            add(json!({ "shared_expert_intermediate_size": spec.intermediate_size }));
        }
    }
    let model_type = match spec.family {
        Family::Qwen35 => "qwen3_5",
        Family::Qwen36Moe => "qwen3_5_moe",
        Family::Qwen3 | Family::Llama | Family::Phi3 => {
            text["model_type"] = json!("qwen3_moe");
            return text;
        }
    };
    json!({ "model_type": model_type, "text_config": text })
}

/// A folder in f32, whose matrices have values of bf16.
fn write(spec: &ModelSpec, tensors: &[Floats]) -> TempDir {
    let dir = TempDir::new().expect("a folder");
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let from = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let offsets = [from, data.len()];
        header.insert(
            name.clone(),
            json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets }),
        );
    }
    let header = Value::Object(header).to_string();
    let len = (header.len() as u64).to_le_bytes();
    let bytes = [&len[..], header.as_bytes(), &data].concat();
    fs::write(dir.path().join("model.safetensors"), bytes).expect("written");
    fs::write(dir.path().join("config.json"), config(spec).to_string()).expect("written");
    dir
}

fn converted(dir: &Path, target: Target) -> Result<Checkpoint, String> {
    convert::read(dir, target, &|_, _| ()).map_err(|e| e.to_string())
}

fn reads_back(made: &Checkpoint) {
    let out = TempDir::new().expect("a folder");
    let out = out.path().join("out");
    convert::write(made, &out, &|_, _| ()).expect("written");
    let back = folder::read(&out, &|_, _| ()).expect("read back");
    assert_eq!(back.payload_sha256(), made.payload_sha256(), "every byte");
    let formats = |checkpoint: &Checkpoint| {
        let spec = checkpoint.spec();
        (spec.format, spec.other_formats.clone())
    };
    assert_eq!(formats(&back), formats(made), "formats");
    let mut forward = Forward::new(&back, Numerics::Formula);
    let logits = forward.prefill(&[1, 5, 7]).expect("it runs");
    assert!(logits.iter().all(|x| x.is_finite()), "logits");
}

#[test]
fn every_layout_of_experts_is_the_same_checkpoint() {
    for family in [Family::Qwen36Moe, Family::Qwen3] {
        let spec = spec(family);
        let mlx = stacked(&spec);
        let whole = converted(write(&spec, &mlx).path(), Target::MlxAffine4).expect("converts");
        reads_back(&whole);
        for (name, tensors) in [
            ("apart", apart(mlx.clone())),
            ("joined", joined(mlx.clone())),
        ] {
            let dir = write(&spec, &published(&spec, tensors));
            let described = folder::describe(dir.path()).expect("its configuration alone");
            assert_eq!(described.experts, spec.experts, "{family:?}, {name}");
            let made = converted(dir.path(), Target::MlxAffine4).expect(name);
            let same = made.payload_sha256() == whole.payload_sha256();
            assert!(same, "{family:?}, {name}: other weights");
        }
        // Rows of one expert are its own, in the format of all.
        let up = mlx
            .iter()
            .find(|t| t.0.ends_with("2.mlp.switch_mlp.up_proj.weight"));
        let values = &up.expect("there").2;
        let (f, d) = (spec.intermediate_size, spec.hidden_size);
        let row = 4 * f + 9;
        let (mut words, mut scale, mut bias) = ([0; 8], [f16::ZERO], [f16::ZERO]);
        let format = QuantFormat::Affine4G64;
        let weights = &values[row * d..][..d];
        quantise::quantise_row_affine(format, weights, &mut words, &mut scale, &mut bias)
            .expect("finite");
        let stack = whole.matrix(Some(2), Tensor::ExpertUp);
        assert_eq!(stack.words[8 * row..][..8], words, "expert 4, row 9");
        let router = whole.matrix(Some(2), Tensor::Router).format;
        let expected = match family {
            Family::Qwen36Moe => QuantFormat::Affine8G64,
            Family::Qwen3 | Family::Llama | Family::Phi3 | Family::Qwen35 => format,
        };
        assert_eq!(router, expected, "{family:?}");
    }
}

#[test]
fn a_hybrid_is_the_same_from_both_of_its_forms() {
    let spec = spec(Family::Qwen35);
    let mlx = stacked(&spec);
    let hugging_face = published(&spec, mlx.clone());
    let floats = |name: &str| {
        let found = mlx.iter().find(|t| t.0 == format!("model.layers.1.{name}"));
        found.expect("there").2.clone()
    };
    for target in Target::ALL {
        let made = converted(write(&spec, &hugging_face).path(), target).expect("converts");
        reads_back(&made);
        let other = converted(write(&spec, &mlx).path(), target).expect("converts");
        let name = target.name();
        assert_eq!(made.payload_sha256(), other.payload_sha256(), "{name}");
        // What stays in f32, to the bit; gammas with their 1, the gated norm as it is.
        assert_eq!(
            made.floats(Some(1), Tensor::GdnALog),
            floats("linear_attn.A_log")
        );
        assert_eq!(
            made.floats(Some(1), Tensor::GdnDtBias),
            floats("linear_attn.dt_bias")
        );
        let halves = |name: &str| -> Vec<f16> {
            let values = floats(name).into_iter();
            values.map(f16::from_f32).collect()
        };
        for (tensor, name) in [
            (Tensor::InputNorm, "input_layernorm.weight"),
            (Tensor::GdnNorm, "linear_attn.norm.weight"),
            (Tensor::GdnConv, "linear_attn.conv1d.weight"),
        ] {
            assert_eq!(made.vector(Some(1), tensor), halves(name), "{name}");
        }
    }
}

#[test]
fn what_cannot_be_made_or_is_not_whole_is_said() {
    let spec = spec(Family::Qwen36Moe);
    let whole = published(&spec, joined(stacked(&spec)));
    let dir = write(&spec, &whole);
    let found = inspect(dir.path()).expect("a folder");
    assert_eq!(
        (found.kind, found.problem),
        (Kind::HuggingFace, None),
        "whole"
    );
    for target in [Target::Q4f16_1, Target::Q4f32_1] {
        let error = converted(dir.path(), target).expect_err("MLC has no experts");
        assert!(error.contains("expected --format mlx-affine4"), "{error}");
    }
    let refused = |change: &dyn Fn(&mut Vec<Floats>), part: &str| {
        let mut tensors = whole.clone();
        change(&mut tensors);
        let error = converted(write(&spec, &tensors).path(), Target::MlxAffine4).expect_err(part);
        assert!(error.contains(part), "expected `{part}` in {error}");
    };
    let at = |tensors: &[Floats], name: &str| {
        let at = tensors.iter().position(|(n, ..)| n.contains(name));
        at.expect("there")
    };
    refused(
        &|t| drop(t.remove(at(t, "1.mlp.experts.down_proj"))),
        "model.layers.1.mlp.experts.down_proj (floating point) is missing",
    );
    refused(
        &|t| {
            let at = at(t, "experts.gate_up_proj");
            t[at].1.swap(0, 1);
        },
        "experts.gate_up_proj, shape: expected [6, 128, 64], found [128, 6, 64]",
    );
    refused(
        &|t| {
            let at = at(t, "1.linear_attn.conv1d");
            t[at].1.swap(1, 2);
        },
        "conv1d.weight, shape: expected [192, 1, 4], found [192, 4, 1]",
    );
    refused(
        &|t| {
            t.push((
                "model.layers.0.mlp.experts.0.up_proj.weight".into(),
                vec![1],
                vec![0.0],
            ))
        },
        "model.layers.0.mlp.experts.0.up_proj.weight is unknown",
    );
}
