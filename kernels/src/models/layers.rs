//! Layers that are not dense attention and a dense feed-forward network: gated
//! DeltaNet between layers of attention, and sparse experts.

use serde::{Deserialize, Serialize};

/// What mixes the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Attention over the KV cache.
    Attention,
    /// Gated DeltaNet over a state of its own.
    DeltaNet,
}

/// The gated-DeltaNet layers of a hybrid. Field names are those of the Hugging Face
/// configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedDeltaNet {
    /// Heads of queries and keys.
    pub linear_num_key_heads: usize,
    /// Heads of values, each with a state; consecutive ones share a key head.
    pub linear_num_value_heads: usize,
    /// Elements of a query or key head.
    pub linear_key_head_dim: usize,
    /// Elements of a value head.
    pub linear_value_head_dim: usize,
    /// Taps of the convolution, the current token among them.
    pub linear_conv_kernel_dim: usize,
    /// Every so many layers the last is one of attention.
    pub full_attention_interval: usize,
}

impl GatedDeltaNet {
    /// That of the published hybrids up to 9 billion parameters.
    pub const PUBLISHED: Self = Self {
        linear_num_key_heads: 16,
        linear_num_value_heads: 32,
        linear_key_head_dim: 128,
        linear_value_head_dim: 128,
        linear_conv_kernel_dim: 4,
        full_attention_interval: 4,
    };

    /// Elements of all queries, or of all keys.
    pub const fn key_dim(&self) -> usize {
        self.linear_num_key_heads * self.linear_key_head_dim
    }

    /// Elements of all values.
    pub const fn value_dim(&self) -> usize {
        self.linear_num_value_heads * self.linear_value_head_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub const fn conv_dim(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }

    /// Rows of the fused projection: the convolution's channels, z, a and b.
    pub const fn proj_dim(&self) -> usize {
        self.conv_dim() + self.value_dim() + 2 * self.linear_num_value_heads
    }

    /// Tokens that the convolution remembers.
    pub const fn ring_len(&self) -> usize {
        self.linear_conv_kernel_dim - 1
    }

    /// Elements of one layer's state, `[value heads, key dim, value dim]`.
    pub const fn state_len(&self) -> usize {
        self.value_dim() * self.linear_key_head_dim
    }

    /// Which relation that the kernels rely on does not hold.
    pub(super) fn problem(&self) -> Option<String> {
        let Self {
            linear_num_key_heads: keys,
            linear_num_value_heads: values,
            ..
        } = *self;
        let positive = [
            ("linear_num_key_heads", keys),
            ("linear_num_value_heads", values),
            ("full_attention_interval", self.full_attention_interval),
        ];
        for (name, value) in positive {
            if value == 0 || value > 1 << 12 {
                return Some(format!("{name} = {value}; expected 1 to {}", 1 << 12));
            }
        }
        if !values.is_multiple_of(keys) {
            return Some(format!(
                "linear_num_value_heads = {values} is not a multiple of linear_num_key_heads = {keys}"
            ));
        }
        let dims = [
            ("linear_key_head_dim", self.linear_key_head_dim),
            ("linear_value_head_dim", self.linear_value_head_dim),
        ];
        for (name, dim) in dims {
            if dim == 0 || !dim.is_multiple_of(32) || dim > 256 {
                return Some(format!(
                    "{name} = {dim}; expected a multiple of 32 up to 256"
                ));
            }
        }
        let taps = self.linear_conv_kernel_dim;
        if !(2..=8).contains(&taps) {
            return Some(format!("linear_conv_kernel_dim = {taps}; expected 2 to 8"));
        }
        None
    }
}

/// Sparse experts in place of a dense feed-forward layer; an expert's width is the
/// model's `intermediate_size`. Field names are those of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// Experts of a layer (E).
    pub num_experts: usize,
    /// Of which each token takes so many.
    pub num_experts_per_tok: usize,
    /// Whether their weights are divided by their sum.
    pub norm_topk_prob: bool,
    /// Whether every token also takes one more expert, the last of the stack, whose
    /// weight is a sigmoid.
    pub shared_expert: bool,
}

impl Experts {
    /// Most experts of a layer.
    pub const MAX_EXPERTS: usize = 256;
    /// Most experts of a token, the shared one apart.
    pub const MAX_PER_TOKEN: usize = 32;

    /// Experts with the shared one: matrices of a stack, rows of the router.
    pub const fn stack(&self) -> usize {
        self.num_experts + self.shared_expert as usize
    }

    /// Experts of one token with the shared one (S).
    pub const fn slots(&self) -> usize {
        self.num_experts_per_tok + self.shared_expert as usize
    }

    /// Which relation that the kernels rely on does not hold.
    pub(super) fn problem(&self) -> Option<String> {
        let (experts, chosen) = (self.num_experts, self.num_experts_per_tok);
        if experts == 0 || experts > Self::MAX_EXPERTS {
            let most = Self::MAX_EXPERTS;
            return Some(format!("num_experts = {experts}; expected 1 to {most}"));
        }
        let most = experts.min(Self::MAX_PER_TOKEN);
        if chosen == 0 || chosen > most {
            return Some(format!(
                "num_experts_per_tok = {chosen}; expected 1 to {most}"
            ));
        }
        None
    }
}
