//! What a dispatch is: its kernel, what it binds, its grid.

use crate::{
    Elem, kv,
    models::{ModelSpec, Tensor},
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
    /// Bytes of matrix weights, scales and biases that it reads.
    pub weight_bytes: u64,
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
            | Buffer::State(_) => None,
        })
    }
}

impl Activation {
    /// Type of its elements where activations are of type `elem`.
    pub const fn elem(self, elem: Elem) -> Elem {
        match self {
            Self::Partials | Self::WideLogits | Self::SampleParts => Elem::F32,
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
            | Self::Logits => elem,
        }
    }
}

/// Elements of an activation buffer for `tokens` tokens.
pub fn activation_len(
    spec: &ModelSpec,
    activation: Activation,
    splits: usize,
    tokens: usize,
) -> usize {
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
    };
    tokens * of_token
}
