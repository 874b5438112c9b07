//! The kernel roles on the CPU, one file per role under the role's name.
//!
//! Every file has `compute`, the role in f64 with unrounded outputs, and
//! `expected`, the same with the limit of each element for a kernel that adds
//! in f32. Inputs are what a kernel reads: f16 values decoded to f64. Lengths
//! that contradict each other are a broken contract between our own tables and
//! panic with a message; what a user or a checkpoint can get wrong (a token id,
//! a page table) is a [`RoleError`].

pub mod add3_norm;
pub mod add_norm;
pub mod argmax;
pub mod attention;
pub mod attention_combine;
pub mod attention_splitk;
pub mod attn_gate;
pub mod embedding;
pub mod fused_ffn;
pub mod fused_ffn_norm;
pub mod fused_ffn_prologue;
pub mod gated_qkv_split;
pub mod gdn_conv;
pub mod gdn_gates;
pub mod gdn_norm_out;
pub mod gdn_recur;
pub mod int4_matmul;
pub mod int4_matmul_add;
pub mod int4_matmul_moe;
pub mod kv_append;
pub mod kv_quantize_int8;
pub mod moe_combine;
pub mod moe_router_topk;
pub mod qk_norm;
pub mod qk_norm_rope_append;
pub mod qkv_fused;
pub mod qkv_fused_norm;
pub mod rms_norm;
pub mod rope;
pub mod sample_reduce;
pub mod sample_select;
pub mod silu_mul;

/// An input that no kernel could run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// A token id beyond the embedding.
    #[error("token id {token} is beyond the vocabulary of {vocab}")]
    Token {
        /// The id.
        token: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// An expert that the layer does not have.
    #[error("expert id {expert} is beyond the {experts} experts")]
    Expert {
        /// The id.
        expert: u32,
        /// Matrices of the stack.
        experts: usize,
    },
    /// A position whose page the table does not list.
    #[error("position {position} needs page {needed} of a page table with {listed} entries")]
    Position {
        /// The position.
        position: usize,
        /// Index into the table.
        needed: usize,
        /// Length of the table.
        listed: usize,
    },
    /// A page that the buffer does not hold.
    #[error("the page table names page {page}; the buffer holds {pages}")]
    Page {
        /// The page.
        page: u32,
        /// Pages in the buffer.
        pages: usize,
    },
}
