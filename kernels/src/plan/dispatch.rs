//! What a dispatch is: its kernel, what it binds, its grid.

use super::Work;
use crate::{
    Elem, kv,
    models::{GatedDeltaNet, ModelSpec, Tensor},
    role::Role,
    sampling::SAMPLE_PARTS,
    variants::Variant,
};

/// Which part of a parameter a binding takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Packed codes of a matrix.
    Words,
    /// Group scales of a matrix.
    Scales,
    /// Group biases of a matrix in an affine format.
    Biases,
    /// A vector parameter.
    Vector,
}

/// An activation buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activation {
    /// Output of a norm, `[T, D]`.
    Normed,
    /// The residual stream, `[T, D]`; two buffers that swap, since one buffer may
    /// not be read and written in one dispatch.
    Residual(u8),
    /// Output of the o or down projection, `[T, D]`.
    Delta,
    /// Output of the down projection where that of o is still to be added, `[T, D]`.
    FfnDelta,
    /// Projection on its own, `[T, Q + 2 KV]`; the norm of heads changes it in place.
    Qkv,
    /// Rotated query, `[T, Q]`.
    Q,
    /// Rotated key, `[T, KV]`.
    K,
    /// Value, `[T, KV]`.
    V,
    /// Attention output, `[T, Q]`.
    Attention,
    /// Split-K partials in f32, `[H, parts, HD + 2]`.
    Partials,
    /// Gate and up projections on their own, `[T, 2 F]`.
    GateUp,
    /// Feed-forward activation, `[T, F]`.
    Ffn,
    /// Logits, `[V]`.
    Logits,
    /// Logits in f32, `[V]`.
    WideLogits,
    /// Greatest logit and sum of weights of each part of the vocabulary, f32 `[64, 2]`.
    SampleParts,
    /// Projection whose query heads are followed by their gates, `[T, 2 Q + 2 KV]`.
    CAttn,
    /// Gates of attention's output, `[T, Q]`.
    Gate,
    /// Projection of gated DeltaNet, `[T, P]`.
    GdnProj,
    /// Its queries, keys and values after the convolution, `[T, C]`.
    GdnConv,
    /// Its decays and update rates, f32 `[T, 2, value heads]`.
    GdnGates,
    /// What it reads from its state, f32 `[T, value heads * value dim]`.
    GdnRecur,
    /// The same, normalised and gated.
    GdnNormed,
    /// Logits of the router, f32 `[T, E + 1]`.
    RouterLogits,
    /// The experts of each token, i32 `[T, S]`.
    ExpertIds,
    /// Their weights, f32 `[T, S]`.
    ExpertScores,
    /// Their gate and up projections, `[T, S, 2 F]`.
    ExpertGateUp,
    /// Their activations, `[T, S, F]`.
    ExpertFfn,
    /// Their down projections, `[T, S, D]`.
    ExpertDelta,
}

/// Per-token state that lives on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// The current tokens, `[T]`: argmax writes where the embedding reads.
    Token,
    /// Positions of the current tokens, `[T]`.
    PositionMap,
    /// `[0, pages in use]`.
    PageIndptr,
    /// The page table.
    PageValues,
    /// `[positions in use, 0, 0]`.
    LengthInfo,
    /// RoPE angle per position, f32 `[HALF_ROTARY]`.
    InvFreq,
}

/// Some rows of a matrix, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rows {
    /// The first.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// What a binding of a dispatch is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// A parameter of the model.
    Param {
        /// Its layer.
        layer: Option<usize>,
        /// Which parameter.
        tensor: Tensor,
        /// Which part of it.
        part: Part,
        /// The rows of the matrix that are bound, where one binding may not hold all.
        rows: Option<Rows>,
    },
    /// An activation.
    Activation(Activation),
    /// One layer's KV pages.
    KvPages {
        /// The layer.
        layer: usize,
    },
    /// Codes of one layer's int8 KV pages.
    KvCodes {
        /// The layer.
        layer: usize,
    },
    /// Scales of one layer's int8 KV pages.
    KvScales {
        /// The layer.
        layer: usize,
    },
    /// The raw tokens that one layer's convolution remembers.
    GdnRing {
        /// The layer.
        layer: usize,
    },
    /// The state of one layer of gated DeltaNet, f32.
    GdnState {
        /// The layer.
        layer: usize,
    },
    /// Per-token state.
    State(State),
}

/// One dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// Where in the forward pass, e.g. `layers.3.o`.
    pub label: String,
    /// The kernel.
    pub variant: Variant,
    /// Storage bindings in binding order, the uniform left out.
    pub buffers: Vec<Buffer>,
    /// Words of the uniform struct, in field order.
    pub uniform: Vec<u32>,
    /// Workgroups in x, y, z.
    pub grid: [u32; 3],
    /// What it reads of weights, and computes with them.
    pub work: Work,
}

impl Dispatch {
    /// The rows of its matrix, where it takes a part of one that is too large for a
    /// binding. Its outputs of these rows lie behind those of the rows before.
    pub fn rows(&self) -> Option<Rows> {
        self.buffers.iter().find_map(|buffer| match buffer {
            Buffer::Param { rows, .. } => *rows,
            Buffer::Activation(_)
            | Buffer::KvPages { .. }
            | Buffer::KvCodes { .. }
            | Buffer::KvScales { .. }
            | Buffer::GdnRing { .. }
            | Buffer::GdnState { .. }
            | Buffer::State(_) => None,
        })
    }

    /// Whether it goes on with an output that another one began: with rows of a matrix
    /// behind the first, or with the half of the up projections.
    pub fn continues(&self) -> bool {
        self.buffers.iter().any(|buffer| match *buffer {
            Buffer::Param { tensor, rows, .. } => {
                tensor == Tensor::ExpertUp || rows.is_some_and(|rows| rows.first > 0)
            }
            Buffer::Activation(_)
            | Buffer::KvPages { .. }
            | Buffer::KvCodes { .. }
            | Buffer::KvScales { .. }
            | Buffer::GdnRing { .. }
            | Buffer::GdnState { .. }
            | Buffer::State(_) => false,
        })
    }

    /// The first output that it makes of what it is bound to: that of the first of its
    /// rows, unless these are an expert's.
    pub fn first_output(&self) -> usize {
        match self.rows() {
            Some(rows) if self.variant.role == Role::Int4Matmul => rows.first,
            Some(_) | None => 0,
        }
    }
}

impl Buffer {
    /// Whether it holds what a layer remembers of the tokens before, in place of a cache.
    pub const fn is_recurrent(self) -> bool {
        matches!(self, Self::GdnRing { .. } | Self::GdnState { .. })
    }
}

impl Activation {
    /// Every activation.
    pub const ALL: &'static [Self] = &[
        Self::Normed,
        Self::Residual(0),
        Self::Residual(1),
        Self::Delta,
        Self::FfnDelta,
        Self::Qkv,
        Self::Q,
        Self::K,
        Self::V,
        Self::Attention,
        Self::Partials,
        Self::GateUp,
        Self::Ffn,
        Self::Logits,
        Self::WideLogits,
        Self::SampleParts,
        Self::CAttn,
        Self::Gate,
        Self::GdnProj,
        Self::GdnConv,
        Self::GdnGates,
        Self::GdnRecur,
        Self::GdnNormed,
        Self::RouterLogits,
        Self::ExpertIds,
        Self::ExpertScores,
        Self::ExpertGateUp,
        Self::ExpertFfn,
        Self::ExpertDelta,
    ];

    /// Type of its elements where activations are of type `elem`.
    pub const fn elem(self, elem: Elem) -> Elem {
        match self {
            Self::Partials
            | Self::WideLogits
            | Self::SampleParts
            | Self::GdnGates
            | Self::GdnRecur
            | Self::RouterLogits
            // Their bits.
            | Self::ExpertIds
            | Self::ExpertScores => Elem::F32,
            Self::Normed
            | Self::Residual(_)
            | Self::Delta
            | Self::FfnDelta
            | Self::Qkv
            | Self::Q
            | Self::K
            | Self::V
            | Self::Attention
            | Self::GateUp
            | Self::Ffn
            | Self::Logits
            | Self::CAttn
            | Self::Gate
            | Self::GdnProj
            | Self::GdnConv
            | Self::GdnNormed
            | Self::ExpertGateUp
            | Self::ExpertFfn
            | Self::ExpertDelta => elem,
        }
    }

    /// Whether its elements are i32, not floating-point.
    pub const fn is_of_ids(self) -> bool {
        matches!(self, Self::ExpertIds)
    }
}

/// Elements of an activation buffer for `tokens` tokens; none where the model has no
/// such activation.
pub fn activation_len(
    spec: &ModelSpec,
    activation: Activation,
    splits: usize,
    tokens: usize,
) -> usize {
    let net = |elements: fn(&GatedDeltaNet) -> usize| spec.delta_net.as_ref().map_or(0, elements);
    let slots = |elements: usize| spec.experts.map_or(0, |experts| experts.slots() * elements);
    let gate = |elements: usize| if spec.attn_output_gate { elements } else { 0 };
    let of_token = match activation {
        Activation::Normed | Activation::Residual(_) | Activation::Delta | Activation::FfnDelta => {
            spec.hidden_size
        }
        Activation::Qkv => spec.qkv_dim(),
        Activation::Q | Activation::Attention => spec.q_dim(),
        Activation::K | Activation::V => spec.kv_dim(),
        Activation::Partials => {
            return spec.num_attention_heads * splits.max(1) * kv::partial_len(spec.head_dim);
        }
        Activation::GateUp => 2 * spec.intermediate_size,
        Activation::Ffn => spec.intermediate_size,
        Activation::Logits | Activation::WideLogits => return spec.vocab_size,
        Activation::SampleParts => return 2 * SAMPLE_PARTS,
        Activation::CAttn => gate(spec.c_attn_dim()),
        Activation::Gate => gate(spec.q_dim()),
        Activation::GdnProj => net(GatedDeltaNet::proj_dim),
        Activation::GdnConv => net(GatedDeltaNet::conv_dim),
        Activation::GdnGates => net(|net| 2 * net.linear_num_value_heads),
        Activation::GdnRecur | Activation::GdnNormed => net(GatedDeltaNet::value_dim),
        Activation::RouterLogits => spec.experts.map_or(0, |experts| experts.stack()),
        Activation::ExpertIds | Activation::ExpertScores => slots(1),
        Activation::ExpertGateUp => slots(2 * spec.intermediate_size),
        Activation::ExpertFfn => slots(spec.intermediate_size),
        Activation::ExpertDelta => slots(spec.hidden_size),
    };
    tokens * of_token
}
