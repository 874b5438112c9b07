//! A minimal reader of the golden MLC checkpoints.

use half::f16;
use kernels::models::{Family, Shape, find};
use kernels::{ModelSpec, Tensor};
use reference::{Matrix, Weights};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A checkpoint held in memory, open to tampering by negative controls.
#[derive(Clone, Debug)]
pub(crate) struct Tiny {
    pub(crate) spec: ModelSpec,
    pub(crate) words: BTreeMap<String, Vec<u32>>,
    pub(crate) halves: BTreeMap<String, Vec<f16>>,
}

impl Tiny {
    pub(crate) fn load(dir: &Path) -> Self {
        let config = json(&dir.join("mlc-chat-config.json"));
        let index = json(&dir.join("ndarray-cache.json"));
        let mut tiny = Self {
            spec: spec(&config),
            words: BTreeMap::new(),
            halves: BTreeMap::new(),
        };
        for shard in index["records"].as_array().expect("shards") {
            let path = dir.join(shard["dataPath"].as_str().expect("a path"));
            let data = std::fs::read(path).expect("shard is readable");
            for record in shard["records"].as_array().expect("records") {
                let name = record["name"].as_str().expect("a name").to_owned();
                let raw = &data[number(&record["byteOffset"])..][..number(&record["nbytes"])];
                match record["dtype"].as_str().expect("a dtype") {
                    "uint32" => {
                        let words = raw.as_chunks::<4>().0.iter();
                        let words = words.map(|b| u32::from_le_bytes(*b)).collect();
                        tiny.words.insert(name, words);
                    }
                    "float16" => {
                        let halves = raw.as_chunks::<2>().0.iter();
                        let halves = halves.map(|b| f16::from_le_bytes(*b)).collect();
                        tiny.halves.insert(name, halves);
                    }
                    other => panic!("dtype {other} in golden data"),
                }
            }
        }
        tiny
    }
}

impl Weights for Tiny {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn matrix(&self, layer: Option<usize>, tensor: Tensor) -> Matrix<'_> {
        let Shape::Matrix { rows, k } = self.spec.shape(tensor) else {
            panic!("{tensor:?} is no matrix");
        };
        let name = self.spec.param_name(layer, tensor);
        let words = &self.words[&format!("{name}.q_weight")];
        let scales = &self.halves[&format!("{name}.q_scale")];
        Matrix::new(rows, k, words, scales).expect("golden data fit")
    }

    fn vector(&self, layer: Option<usize>, tensor: Tensor) -> &[f16] {
        &self.halves[&self.spec.param_name(layer, tensor)]
    }
}

fn json(path: &Path) -> Value {
    let text = std::fs::read(path).expect("golden JSON is readable");
    serde_json::from_slice(&text).expect("golden JSON is valid")
}

fn number(value: &Value) -> usize {
    value.as_u64().expect("a count") as usize
}

fn spec(config: &Value) -> ModelSpec {
    let model = &config["model_config"];
    let family = match config["model_type"].as_str() {
        Some("llama") => Family::Llama,
        Some("phi3") => Family::Phi3,
        Some("qwen3") => Family::Qwen3,
        other => panic!("model type {other:?} in golden data"),
    };
    let theta = match family {
        Family::Llama | Family::Phi3 => &model["position_embedding_base"],
        Family::Qwen3 | Family::Qwen35 | Family::Qwen36Moe => &model["rope_theta"],
    };
    let hidden_size = number(&model["hidden_size"]);
    let heads = number(&model["num_attention_heads"]);
    let head_dim = model["head_dim"]
        .as_u64()
        .map_or(hidden_size / heads, |d| d as usize);
    let spec = ModelSpec {
        id: "tiny".into(),
        title: "tiny".into(),
        aliases: Vec::new(),
        family,
        hidden_size,
        num_hidden_layers: number(&model["num_hidden_layers"]),
        num_attention_heads: heads,
        num_key_value_heads: number(&model["num_key_value_heads"]),
        head_dim,
        intermediate_size: number(&model["intermediate_size"]),
        vocab_size: number(&model["vocab_size"]),
        rotary_dim: head_dim,
        rope_theta: theta.as_f64().expect("a base"),
        rms_norm_eps: model["rms_norm_eps"].as_f64().expect("an epsilon"),
        tie_word_embeddings: model["tie_word_embeddings"].as_bool().unwrap_or(false),
        max_pages: 8,
        ..find("smollm2-135m").expect("registered")
    };
    spec.validate().expect("golden models can run");
    spec
}
