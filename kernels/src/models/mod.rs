//! The models: their constants under the names their published configurations
//! use, and where each weight is found in an MLC checkpoint.

mod layers;
mod llama;
mod phi3;
mod qwen3;
mod qwen35;
mod rope;

pub use layers::{Experts, GatedDeltaNet, Mixer};
pub use rope::RopeScaling;

use crate::{kv::KvLayout, quant::QuantFormat, suggest};
use serde::{Deserialize, Serialize};

/// The model that every command uses when none is named.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// Architecture family: decides parameter names and which roles a layer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Llama and its descendants (SmolLM2).
    Llama,
    /// Phi-3, Phi-3.5 and Phi-4-mini.
    Phi3,
    /// Qwen3: QK-norm before RoPE.
    Qwen3,
    /// Qwen3.5: gated DeltaNet layers between gated attention layers.
    Qwen35,
    /// Qwen3.6: as Qwen3.5, with sparse experts instead of the dense FFN.
    Qwen36Moe,
}

/// A model's constants. Field names are those of the Hugging Face configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The workbench's id, e.g. `smollm2-135m`.
    pub id: String,
    /// The name a report prints, e.g. `SmolLM2`.
    pub title: String,
    /// Published names that select the same model.
    pub aliases: Vec<String>,
    /// Architecture family.
    pub family: Family,
    /// Width of the residual stream (D).
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key/value heads.
    pub num_key_value_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Width of the feed-forward layer, or of an expert (F).
    pub intermediate_size: usize,
    /// Rows of the embedding and of the head (V).
    pub vocab_size: usize,
    /// Leading dimensions of a head that RoPE rotates.
    pub rotary_dim: usize,
    /// RoPE base.
    pub rope_theta: f64,
    /// How RoPE's frequencies are scaled; none where they are plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f64,
    /// The head reads the embedding's rows.
    pub tie_word_embeddings: bool,
    /// Largest number of KV pages (16 positions each).
    pub max_pages: usize,
    /// Token ids that end a reply.
    pub stop_ids: Vec<u32>,
    /// Format of the weight matrices.
    pub format: QuantFormat,
    /// Matrices of another format.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_formats: Vec<TensorFormat>,
    /// Whether the query projection also gives a gate of attention's output.
    #[serde(default, skip_serializing_if = "is_false")]
    pub attn_output_gate: bool,
    /// The layers that have a state in place of attention; none where all attend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_net: Option<GatedDeltaNet>,
    /// Sparse experts; none where feed-forward layers are dense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A matrix whose format is not the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorFormat {
    /// Its layer, if it has one.
    pub layer: Option<usize>,
    /// Which matrix.
    pub tensor: Tensor,
    /// Its format.
    pub format: QuantFormat,
}

/// A parameter of the model, as the plan names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tensor {
    /// Token embedding, `[V, D]`.
    Embedding,
    /// Norm before attention, `[D]`.
    InputNorm,
    /// Fused query, key and value projection, `[Q + 2 KV, D]`; with gates, whose rows
    /// follow those of their query head, `[2 Q + 2 KV, D]`.
    Qkv,
    /// Norm of each query head, `[head_dim]`.
    QNorm,
    /// Norm of each key head, `[head_dim]`.
    KNorm,
    /// Output projection of attention, `[D, Q]`.
    O,
    /// Norm before the feed-forward layer, `[D]`.
    PostNorm,
    /// Fused gate and up projection, `[2 F, D]`.
    GateUp,
    /// Down projection, `[D, F]`.
    Down,
    /// Norm before the head, `[D]`.
    FinalNorm,
    /// Head, `[V, D]`.
    LmHead,
    /// Fused projection of gated DeltaNet, `[qkv | z | a | b, D]`.
    GdnProj,
    /// Taps of its convolution, `[channels, taps]`, the current token's last.
    GdnConv,
    /// Logarithm of each head's decay rate, f32 `[value heads]`.
    GdnALog,
    /// What is added to a before its softplus, f32 `[value heads]`.
    GdnDtBias,
    /// Norm of each head's output, `[value dim]`.
    GdnNorm,
    /// Output projection of gated DeltaNet, `[D, value heads * value dim]`.
    GdnOut,
    /// Router, `[E, D]`, and behind it the gate of the shared expert.
    Router,
    /// Gate projections of the experts, the shared one last, `[E F, D]`.
    ExpertGate,
    /// Up projections, likewise.
    ExpertUp,
    /// Down projections, likewise `[E D, F]`.
    ExpertDown,
}

/// Shape of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A quantised matrix `[rows, k]`.
    Matrix {
        /// Output rows.
        rows: usize,
        /// Input width.
        k: usize,
    },
    /// An f16 vector `[len]`.
    Vector {
        /// Number of elements.
        len: usize,
    },
    /// A vector `[len]` that stays in f32.
    Floats {
        /// Number of elements.
        len: usize,
    },
}

impl ModelSpec {
    /// Elements of the query projection.
    pub fn q_dim(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Elements of the key (or value) projection.
    pub fn kv_dim(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Rows of the fused query, key and value projection.
    pub fn qkv_dim(&self) -> usize {
        self.q_dim() + 2 * self.kv_dim()
    }

    /// Rows of the projection itself: with those of the gates.
    pub fn c_attn_dim(&self) -> usize {
        let gates = if self.attn_output_gate {
            self.q_dim()
        } else {
            0
        };
        self.qkv_dim() + gates
    }

    /// What mixes the tokens of a layer.
    pub fn mixer(&self, layer: usize) -> Mixer {
        match &self.delta_net {
            Some(net) if !(layer + 1).is_multiple_of(net.full_attention_interval) => {
                Mixer::DeltaNet
            }
            Some(_) | None => Mixer::Attention,
        }
    }

    /// Query heads that share one key/value head.
    pub fn gqa_group(&self) -> usize {
        self.num_attention_heads / self.num_key_value_heads
    }

    /// Whether queries and keys are normalised per head before RoPE.
    pub fn qk_norm(&self) -> bool {
        match self.family {
            Family::Llama | Family::Phi3 => false,
            Family::Qwen3 | Family::Qwen35 | Family::Qwen36Moe => true,
        }
    }

    /// Layout of one layer's KV pages.
    pub fn kv_layout(&self) -> KvLayout {
        KvLayout {
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
        }
    }

    /// Positions that the KV cache holds.
    pub fn max_context(&self) -> usize {
        self.max_pages * crate::kv::PAGE_SIZE
    }

    /// `1 / sqrt(head_dim)`.
    pub fn attention_scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }

    /// Angle per position of each rotated pair, f64: `theta^(-2i / rotary_dim)`, scaled
    /// where the model scales it.
    pub fn inv_freq(&self) -> Vec<f64> {
        let pairs = 0..self.rotary_dim / 2;
        let plain = pairs.map(|i| {
            self.rope_theta
                .powf(-2.0 * i as f64 / self.rotary_dim as f64)
        });
        let mut frequencies: Vec<f64> = plain.collect();
        if let Some(scaling) = &self.rope_scaling {
            scaling.apply(&mut frequencies, self.max_context());
        }
        frequencies
    }

    /// What RoPE multiplies rotated values by.
    pub fn rope_attention_factor(&self) -> f64 {
        let scaling = self.rope_scaling.as_ref();
        scaling.map_or(1.0, RopeScaling::attention_factor)
    }

    /// Activations of the longest row that a matrix of the model multiplies, an expert's
    /// apart.
    pub fn longest_row(&self) -> usize {
        let down = self.experts.map_or(self.intermediate_size, |_| 0);
        let state = self.delta_net.map_or(0, |net| net.value_dim());
        self.hidden_size.max(self.q_dim()).max(down).max(state)
    }

    /// Shape of a parameter.
    pub fn shape(&self, tensor: Tensor) -> Shape {
        let (d, f) = (self.hidden_size, self.intermediate_size);
        let matrix = |rows, k| Shape::Matrix { rows, k };
        // A model without such layers has no such parameter, and nobody asks for one.
        let net = self.delta_net.unwrap_or(GatedDeltaNet::PUBLISHED);
        let stack = self.experts.map_or(0, |experts| experts.stack());
        match tensor {
            Tensor::Embedding | Tensor::LmHead => matrix(self.vocab_size, d),
            Tensor::Qkv => matrix(self.c_attn_dim(), d),
            Tensor::O => matrix(d, self.q_dim()),
            Tensor::GateUp => matrix(2 * self.intermediate_size, d),
            Tensor::Down => matrix(d, self.intermediate_size),
            Tensor::InputNorm | Tensor::PostNorm | Tensor::FinalNorm => Shape::Vector { len: d },
            Tensor::QNorm | Tensor::KNorm => Shape::Vector { len: self.head_dim },
            Tensor::GdnProj => matrix(net.proj_dim(), d),
            Tensor::GdnConv => Shape::Vector {
                len: net.conv_dim() * net.linear_conv_kernel_dim,
            },
            Tensor::GdnALog | Tensor::GdnDtBias => Shape::Floats {
                len: net.linear_num_value_heads,
            },
            Tensor::GdnNorm => Shape::Vector {
                len: net.linear_value_head_dim,
            },
            Tensor::GdnOut => matrix(d, net.value_dim()),
            Tensor::Router => matrix(stack, d),
            Tensor::ExpertGate | Tensor::ExpertUp => matrix(stack * f, d),
            Tensor::ExpertDown => matrix(stack * d, f),
        }
    }

    /// Format of a matrix; [`Tensor::LmHead`] of a tied model is its embedding.
    pub fn format_of(&self, layer: Option<usize>, tensor: Tensor) -> QuantFormat {
        let tensor = if tensor == Tensor::LmHead {
            self.head_tensor()
        } else {
            tensor
        };
        let mut others = self.other_formats.iter();
        others
            .find(|other| (other.layer, other.tensor) == (layer, tensor))
            .map_or(self.format, |other| other.format)
    }

    /// Parameters of one layer, in the order a forward pass uses them.
    pub fn layer_tensors(&self, layer: usize) -> Vec<Tensor> {
        let mut tensors = vec![Tensor::InputNorm];
        match self.mixer(layer) {
            Mixer::Attention => {
                tensors.push(Tensor::Qkv);
                if self.qk_norm() {
                    tensors.extend([Tensor::QNorm, Tensor::KNorm]);
                }
                tensors.push(Tensor::O);
            }
            Mixer::DeltaNet => tensors.extend([
                Tensor::GdnProj,
                Tensor::GdnConv,
                Tensor::GdnALog,
                Tensor::GdnDtBias,
                Tensor::GdnNorm,
                Tensor::GdnOut,
            ]),
        }
        tensors.push(Tensor::PostNorm);
        tensors.extend_from_slice(match self.experts {
            None => &[Tensor::GateUp, Tensor::Down],
            Some(_) => &[
                Tensor::Router,
                Tensor::ExpertGate,
                Tensor::ExpertUp,
                Tensor::ExpertDown,
            ],
        });
        tensors
    }

    /// Every parameter with its layer, in forward order. A tied head is the
    /// embedding and is not listed.
    pub fn tensors(&self) -> Vec<(Option<usize>, Tensor)> {
        let mut all = vec![(None, Tensor::Embedding)];
        for layer in 0..self.num_hidden_layers {
            let tensors = self.layer_tensors(layer).into_iter();
            all.extend(tensors.map(|t| (Some(layer), t)));
        }
        all.push((None, Tensor::FinalNorm));
        if !self.tie_word_embeddings {
            all.push((None, Tensor::LmHead));
        }
        all
    }

    /// The model's first `layers` layers, with its head behind them.
    ///
    /// # Errors
    /// When it does not have so many, or none are asked for.
    pub fn truncated(&self, layers: usize) -> Result<Self, SpecError> {
        if !(1..=self.num_hidden_layers).contains(&layers) {
            return Err(SpecError {
                model: self.id.clone(),
                what: format!(
                    "{layers} layers asked for; it has {}, expected 1 to as many",
                    self.num_hidden_layers
                ),
            });
        }
        let mut spec = self.clone();
        if layers < self.num_hidden_layers {
            spec.title = format!("{} (first {layers} layers)", self.title);
        }
        spec.num_hidden_layers = layers;
        spec.other_formats
            .retain(|other| other.layer.is_none_or(|layer| layer < layers));
        Ok(spec)
    }

    /// The model with its matrices in this format, those apart that its family keeps in more
    /// bits where the others are affine.
    #[must_use]
    pub fn quantised_to(&self, format: QuantFormat) -> Self {
        let other_formats = match self.family {
            Family::Qwen36Moe if format.is_affine() => qwen35::routers(self.num_hidden_layers),
            Family::Llama | Family::Phi3 | Family::Qwen3 | Family::Qwen35 | Family::Qwen36Moe => {
                vec![]
            }
        };
        Self {
            format,
            other_formats,
            ..self.clone()
        }
    }

    /// The tensor that the head reads: the embedding where they are tied.
    pub fn head_tensor(&self) -> Tensor {
        if self.tie_word_embeddings {
            Tensor::Embedding
        } else {
            Tensor::LmHead
        }
    }

    /// The parameter's published name: the base of `.q_weight` and `.q_scale`
    /// for a matrix, the whole name for a vector.
    ///
    /// # Panics
    /// When `layer` is absent for a parameter of a layer.
    pub fn param_name(&self, layer: Option<usize>, tensor: Tensor) -> String {
        match self.family {
            Family::Llama => llama::param_name(layer, tensor),
            Family::Phi3 => phi3::param_name(layer, tensor),
            Family::Qwen3 | Family::Qwen35 | Family::Qwen36Moe => qwen3::param_name(layer, tensor),
        }
    }

    /// The names of the matrices in an MLC checkpoint whose rows, joined in this order,
    /// are this one, with their rows; of a vector, its name and elements.
    ///
    /// # Panics
    /// As [`Self::param_name`].
    pub fn param_parts(&self, layer: Option<usize>, tensor: Tensor) -> Vec<(String, usize)> {
        let name = self.param_name(layer, tensor);
        match (self.shape(tensor), &self.delta_net) {
            (Shape::Matrix { .. }, Some(net)) if tensor == Tensor::GdnProj => {
                let parts = qwen35::projection_parts(net).into_iter();
                parts
                    .map(|(part, rows)| (format!("{name}_{part}"), rows))
                    .collect()
            }
            (Shape::Matrix { rows, .. }, _) => vec![(name, rows)],
            (Shape::Vector { len } | Shape::Floats { len }, _) => vec![(name, len)],
        }
    }

    /// Number of weights, matrices and vectors together.
    pub fn parameters(&self) -> u64 {
        self.tensors()
            .into_iter()
            .map(|(_, tensor)| match self.shape(tensor) {
                Shape::Matrix { rows, k } => (rows * k) as u64,
                Shape::Vector { len } | Shape::Floats { len } => len as u64,
            })
            .sum()
    }

    /// Checks the relations that the kernels rely on.
    ///
    /// # Errors
    /// Names the first relation that does not hold, with both numbers.
    pub fn validate(&self) -> Result<(), SpecError> {
        let fail = |what: String| {
            Err(SpecError {
                model: self.id.clone(),
                what,
            })
        };
        let positive = [
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("intermediate_size", self.intermediate_size),
            ("vocab_size", self.vocab_size),
            ("max_pages", self.max_pages),
        ];
        for (name, value) in positive {
            if value == 0 || value > 1 << 24 {
                return fail(format!("{name} = {value}; expected 1 to {}", 1 << 24));
            }
        }
        if !self
            .num_attention_heads
            .is_multiple_of(self.num_key_value_heads)
        {
            return fail(format!(
                "num_attention_heads = {} is not a multiple of num_key_value_heads = {}",
                self.num_attention_heads, self.num_key_value_heads
            ));
        }
        if !self.head_dim.is_multiple_of(32) || self.head_dim > 256 {
            return fail(format!(
                "head_dim = {}; expected a multiple of 32 up to 256",
                self.head_dim
            ));
        }
        if self.rotary_dim > self.head_dim || !self.rotary_dim.is_multiple_of(2) {
            return fail(format!(
                "rotary_dim = {}; expected an even number up to head_dim = {}",
                self.rotary_dim, self.head_dim
            ));
        }
        let scaling = self.rope_scaling.as_ref();
        if let Some(problem) = scaling.and_then(|s| s.problem(self.rotary_dim / 2)) {
            return fail(problem);
        }
        let net = self.delta_net.as_ref();
        if let Some(problem) = net.and_then(GatedDeltaNet::problem) {
            return fail(problem);
        }
        if let Some(problem) = self.experts.and_then(|experts| experts.problem()) {
            return fail(problem);
        }
        for (layer, tensor) in self.tensors() {
            let Shape::Matrix { k, .. } = self.shape(tensor) else {
                continue;
            };
            let name = match tensor {
                Tensor::O => "num_attention_heads * head_dim",
                Tensor::Down | Tensor::ExpertDown => "intermediate_size",
                Tensor::GdnOut => "linear_num_value_heads * linear_value_head_dim",
                Tensor::Embedding
                | Tensor::InputNorm
                | Tensor::Qkv
                | Tensor::QNorm
                | Tensor::KNorm
                | Tensor::PostNorm
                | Tensor::GateUp
                | Tensor::FinalNorm
                | Tensor::LmHead
                | Tensor::GdnProj
                | Tensor::GdnConv
                | Tensor::GdnALog
                | Tensor::GdnDtBias
                | Tensor::GdnNorm
                | Tensor::Router
                | Tensor::ExpertGate
                | Tensor::ExpertUp => "hidden_size",
            };
            let format = self.format_of(layer, tensor);
            let group = format.group_size();
            if !k.is_multiple_of(group) {
                return fail(format!(
                    "{name} = {k} is not a multiple of the {format} group of {group}"
                ));
            }
        }
        Ok(())
    }
}

/// A model specification that the kernels cannot run.
#[derive(Clone, Debug, thiserror::Error)]
#[error("model {model}: {what}")]
pub struct SpecError {
    model: String,
    what: String,
}

/// Every registered model, in the order of the documentation.
pub fn registry() -> Vec<ModelSpec> {
    vec![
        llama::smollm2_135m(),
        llama::smollm2_360m(),
        llama::smollm2_1_7b(),
        llama::llama32_1b(),
        phi3::phi3_mini(),
        phi3::phi35_mini(),
        phi3::phi4_mini(),
        qwen3::qwen3_0_6b(),
        qwen3::qwen3_1_7b(),
        qwen3::qwen3_4b(),
        qwen3::qwen3_8b(),
        qwen3::qwen3_30b_a3b(),
        qwen35::qwen35_4b(),
        qwen35::qwen36_35b_a3b(),
    ]
}

/// Finds a registered model by id or published name, ignoring case.
///
/// # Errors
/// Lists the known ids and the nearest match.
pub fn find(name: &str) -> Result<ModelSpec, UnknownModel> {
    let models = registry();
    let is = |known: &String| known.eq_ignore_ascii_case(name);
    if let Some(spec) = models
        .iter()
        .find(|m| is(&m.id) || m.aliases.iter().any(is))
    {
        return Ok(spec.clone());
    }
    Err(UnknownModel {
        name: name.to_owned(),
        known: suggest::known(name, models.iter().map(|m| m.id.as_str())),
    })
}

/// A model name that is not registered.
#[derive(Clone, Debug, thiserror::Error)]
#[error("unknown model `{name}`; {known}")]
pub struct UnknownModel {
    name: String,
    known: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_models_are_valid_and_unique() {
        let mut names = Vec::new();
        for model in registry() {
            model.validate().expect("a registered model is valid");
            names.push(model.id.to_lowercase());
            names.extend(model.aliases.iter().map(|a| a.to_lowercase()));
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "ids and aliases are unique");
        assert_eq!(registry()[0].id, DEFAULT_MODEL, "the default comes first");
    }

    /// Published sizes, in millions of parameters; a tied head counts once.
    #[test]
    fn registered_models_have_their_published_sizes() {
        for (id, millions) in [
            ("smollm2-135m", 135),
            ("smollm2-360m", 362),
            ("smollm2-1.7b", 1711),
            ("llama-3.2-1b", 1236),
            ("phi3-mini", 3821),
            ("phi3.5-mini", 3821),
            ("phi4-mini", 3836),
            ("qwen3-0.6b", 596),
            ("qwen3-1.7b", 1721),
            ("qwen3-4b", 4022),
            ("qwen3-8b", 8191),
            ("qwen3-30b-a3b", 30_532),
            ("qwen35-4b", 4206),
            ("qwen36-35b-a3b", 34_661),
        ] {
            let parameters = find(id).expect("registered").parameters();
            assert_eq!(
                (parameters + 500_000) / 1_000_000,
                millions,
                "{id}: {parameters}"
            );
        }
    }

    #[test]
    fn a_truncated_model_has_its_first_layers() {
        let whole = find("qwen36-35b-a3b").expect("registered");
        let four = whole.truncated(4).expect("it has forty");
        four.validate().expect("possible");
        assert_eq!(four.num_hidden_layers, 4, "layers");
        assert_eq!(four.other_formats[..], whole.other_formats[..4], "formats");
        assert_eq!(whole.truncated(40).expect("all"), whole, "all of them");
        for layers in [0, 41] {
            let error = whole
                .truncated(layers)
                .expect_err("not so many")
                .to_string();
            let expected = format!("{layers} layers asked for; it has 40");
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn unknown_model_names_the_nearest() {
        let error = find("smollm2-135").expect_err("not registered").to_string();
        assert!(error.contains("did you mean `smollm2-135m`"), "{error}");
        assert_eq!(
            find("Phi-3-mini-4k-instruct").expect("alias").id,
            "phi3-mini",
            "alias"
        );
    }

    #[test]
    fn phi3_has_the_published_number_of_records() {
        let records: usize = {
            let phi3 = find("phi3-mini").expect("registered");
            phi3.tensors()
                .iter()
                .map(|&(_, t)| match phi3.shape(t) {
                    Shape::Matrix { .. } => 2,
                    Shape::Vector { .. } | Shape::Floats { .. } => 1,
                })
                .sum()
        };
        assert_eq!(records, 325, "spec.md, parameter names");
    }
}
