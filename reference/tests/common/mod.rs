//! What several test files need: a tiny model, a writer of GGUF files and a server.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod server;

use half::{bf16, f16};
use kernels::models::ModelSpec;
use reference::gguf::BlockType;
use serde_json::{Value, json};
use std::path::PathBuf;

/// The golden folder.
pub(crate) fn golden() -> PathBuf {
    reference::golden::dir(None).expect("golden data in the repository")
}

/// Llama's smallest: 2 layers, width 64, 2/1 heads of 32.
pub(crate) fn tiny_llama() -> ModelSpec {
    ModelSpec {
        id: "tiny".into(),
        title: "Tiny".into(),
        aliases: vec![],
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 32,
        rotary_dim: 32,
        intermediate_size: 96,
        vocab_size: 40,
        max_pages: 8,
        ..kernels::models::find("smollm2-135m").expect("registered")
    }
}

/// `config.json` of a model: its dimensions, and other keys.
pub(crate) fn config(spec: &ModelSpec, others: Value) -> Value {
    let mut all = json!({
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_hidden_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "vocab_size": spec.vocab_size,
        "rms_norm_eps": spec.rms_norm_eps,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "max_position_embeddings": spec.max_context(),
        "hidden_act": "silu",
    });
    add(&mut all, others);
    all
}

/// Adds keys to an object.
pub(crate) fn add(object: &mut Value, keys: Value) {
    let Value::Object(keys) = keys else {
        panic!("expected an object, found {keys}");
    };
    object.as_object_mut().expect("an object").extend(keys);
}

/// Writes a GGUF file version 3, alignment 32.
#[derive(Default)]
pub(crate) struct GgufFile {
    pub(crate) metadata: Vec<(String, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<(String, Vec<u64>, BlockType, Vec<u8>)>,
}

impl GgufFile {
    pub(crate) fn string(&mut self, key: &str, text: &str) {
        self.metadata.push((key.into(), 8, string(text)));
    }

    pub(crate) fn u32(&mut self, key: &str, value: usize) {
        let value = u32::try_from(value).expect("small");
        self.metadata
            .push((key.into(), 4, value.to_le_bytes().to_vec()));
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) {
        self.metadata
            .push((key.into(), 6, value.to_le_bytes().to_vec()));
    }

    /// A tensor `[rows, k]` of f32 or f16.
    pub(crate) fn floats(&mut self, name: &str, k: usize, values: &[f32], block_type: BlockType) {
        let bytes = values.iter().flat_map(|v| match block_type {
            BlockType::F16 => f16::from_f32(*v).to_le_bytes().to_vec(),
            BlockType::F32 => v.to_le_bytes().to_vec(),
            BlockType::Bf16 => bf16::from_f32(*v).to_le_bytes().to_vec(),
            BlockType::Q4_0
            | BlockType::Q4_1
            | BlockType::Q8_0
            | BlockType::Q2K
            | BlockType::Q3K
            | BlockType::Q4K
            | BlockType::Q5K
            | BlockType::Q6K => panic!("no encoder"),
        });
        let shape = vec![k as u64, (values.len() / k) as u64];
        self.tensors
            .push((name.into(), shape, block_type, bytes.collect()));
    }

    /// Gives a tensor random blocks of a quantised type, whose scales are small.
    pub(crate) fn requantise(&mut self, name: &str, block_type: BlockType, seed: u64) {
        let tensor = self.tensors.iter_mut().find(|(n, ..)| n == name);
        let (_, shape, old, data) = tensor.expect("there");
        let blocks = shape.iter().product::<u64>() as usize / block_type.block_len();
        let mut state = seed;
        let mut byte = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        *data = (0..blocks * block_type.block_bytes())
            .map(|_| byte())
            .collect();
        for block in data.chunks_exact_mut(block_type.block_bytes()) {
            // Where a type has its f16 scales and minima.
            let halves: &[usize] = match block_type {
                BlockType::Q4_0 | BlockType::Q8_0 => &[0],
                BlockType::Q4_1 | BlockType::Q4K | BlockType::Q5K => &[0, 2],
                BlockType::Q2K => &[80, 82],
                BlockType::Q3K => &[108],
                BlockType::Q6K => &[208],
                BlockType::F32 | BlockType::F16 | BlockType::Bf16 => panic!("no scales"),
            };
            for &at in halves {
                // 0.03 to 0.06, either sign.
                block[at + 1] = block[at + 1] & 0x83 | 0x28;
            }
        }
        *old = block_type;
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.metadata {
            out.extend(string(key));
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        let mut offset = 0_u64;
        for (name, shape, block_type, data) in &self.tensors {
            out.extend(string(name));
            out.extend(
                u32::try_from(shape.len())
                    .expect("few dimensions")
                    .to_le_bytes(),
            );
            for dim in shape {
                out.extend(dim.to_le_bytes());
            }
            out.extend(block_type.id().to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += (data.len() as u64).next_multiple_of(32);
        }
        for (_, _, _, data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        out
    }
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}

/// A weight that tells its tensor, row and column.
pub(crate) fn weight(tensor: usize, row: usize, column: usize) -> f32 {
    let mixed = (tensor * 7919 + row * 104_729 + column * 1_299_709) % 2003;
    (mixed as f32 - 1001.0) / 4096.0
}

/// A GGUF of the tiny model: matrices in f32, norms in f32.
pub(crate) fn tiny_gguf() -> GgufFile {
    let spec = tiny_llama();
    let mut file = GgufFile::default();
    file.string("general.architecture", "llama");
    file.u32("llama.block_count", spec.num_hidden_layers);
    file.u32("llama.embedding_length", spec.hidden_size);
    file.u32("llama.feed_forward_length", spec.intermediate_size);
    file.u32("llama.attention.head_count", spec.num_attention_heads);
    file.u32("llama.attention.head_count_kv", spec.num_key_value_heads);
    file.u32("llama.rope.dimension_count", spec.rotary_dim);
    file.f32("llama.rope.freq_base", spec.rope_theta as f32);
    file.f32(
        "llama.attention.layer_norm_rms_epsilon",
        spec.rms_norm_eps as f32,
    );
    // An array of texts, as tokenizers are stored.
    let mut tokens = 8_u32.to_le_bytes().to_vec();
    tokens.extend(2_u64.to_le_bytes());
    tokens.extend(string("a"));
    tokens.extend(string("bc"));
    file.metadata
        .push(("tokenizer.ggml.tokens".into(), 9, tokens));
    let mut count = 0;
    let mut add = |name: String, rows: usize, k: usize| {
        let values: Vec<f32> = (0..rows * k).map(|i| weight(count, i / k, i % k)).collect();
        count += 1;
        file.floats(&name, k, &values, BlockType::F32);
    };
    let d = spec.hidden_size;
    add("token_embd.weight".into(), spec.vocab_size, d);
    for layer in 0..spec.num_hidden_layers {
        for (name, rows, k) in [
            ("attn_norm", 1, d),
            ("attn_q", spec.q_dim(), d),
            ("attn_k", spec.kv_dim(), d),
            ("attn_v", spec.kv_dim(), d),
            ("attn_output", d, spec.q_dim()),
            ("ffn_norm", 1, d),
            ("ffn_gate", spec.intermediate_size, d),
            ("ffn_up", spec.intermediate_size, d),
            ("ffn_down", d, spec.intermediate_size),
        ] {
            add(format!("blk.{layer}.{name}.weight"), rows, k);
        }
    }
    add("output_norm.weight".into(), 1, d);
    file
}
