//! The one binding table. Bind-group layouts, WGSL preludes and reflection
//! checks are all made from it; nobody numbers a binding by hand.

use super::Role;

/// How a kernel may use a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    ReadWrite,
    /// `var<uniform>`.
    Uniform,
}

/// Element type of a storage binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// An activation: the element axis decides.
    Activation,
    /// A read-only activation whose vector width the load axis decides.
    WideActivation,
    /// Packed weight words, `u32` grouped by the load axis.
    Packed,
    /// Scale of a quantisation group; the format decides.
    Scale,
    /// Bias of a quantisation group, which affine formats alone have.
    Bias,
    /// A matrix product or a logit: as an activation, or f32 where the variant
    /// says so.
    Output,
    /// Words of four int8 codes of cached keys or values, grouped by the load axis.
    KvCodes,
    /// Scale of the codes of a head: f16.
    KvScale,
    /// `f32`.
    F32,
    /// `f32` whose vector width the load axis decides.
    WideF32,
    /// `i32`.
    I32,
}

/// One entry of a role's binding list.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// Name of the WGSL variable.
    pub name: &'static str,
    /// How the kernel uses it.
    pub access: Access,
    /// Whether the kernel changes what is there, so that what it held before
    /// counts; an output is written whole.
    pub in_place: bool,
    /// Element type; `None` for the uniform.
    pub element: Option<Element>,
    /// Shape in the symbols of [`super`], for documentation.
    pub shape: &'static str,
}

const fn read(name: &'static str, element: Element, shape: &'static str) -> Binding {
    Binding {
        name,
        access: Access::Read,
        in_place: false,
        element: Some(element),
        shape,
    }
}

const fn read_write(name: &'static str, element: Element, shape: &'static str) -> Binding {
    Binding {
        name,
        access: Access::ReadWrite,
        in_place: false,
        element: Some(element),
        shape,
    }
}

const fn update(name: &'static str, element: Element, shape: &'static str) -> Binding {
    Binding {
        name,
        access: Access::ReadWrite,
        in_place: true,
        element: Some(element),
        shape,
    }
}

const fn uniform(shape: &'static str) -> Binding {
    Binding {
        name: "u",
        access: Access::Uniform,
        in_place: false,
        element: None,
        shape,
    }
}

use Element::{
    Activation, Bias, F32, I32, KvCodes, KvScale, Output, Packed, Scale, WideActivation, WideF32,
};

/// Bindings of a role. Numbers up to the uniform are the published ones; what
/// the workbench adds (the page table of the writers, the RoPE frequencies, the
/// positions of a chunk) stands after it, and the biases of affine formats last, of
/// published kernels before the expert ids. Shapes of weights are those of a 4-bit
/// format with groups of 32.
pub(super) const fn of(role: Role) -> &'static [Binding] {
    match role {
        Role::Embedding => {
            const {
                &[
                    read_write("out", Activation, "[T, D]"),
                    read("ids", I32, "[T]"),
                    read("scales", Scale, "[V, D/32]"),
                    read("weights", Packed, "[V, D/8]"),
                    uniform("{}"),
                    read("biases", Bias, "[V, D/32]"),
                ]
            }
        }
        Role::RmsNorm => {
            const {
                &[
                    read_write("out", Activation, "[T, D]"),
                    read("x", Activation, "[T, D]"),
                    read("gamma", Activation, "[D]"),
                    uniform("{}"),
                ]
            }
        }
        Role::QkvFused => {
            const {
                &[
                    read_write("q_out", Activation, "[Q]"),
                    update("kv_pages", Activation, "[pages, 2, KVH, 16, HD]"),
                    read("x", WideActivation, "[D]"),
                    read("scales", Scale, "[Q+2KV, D/32]"),
                    read("weights", Packed, "[Q+2KV, D/8]"),
                    read("position_map", I32, "[1]"),
                    uniform("{}"),
                    read("page_values", I32, "[pages]"),
                    read("inv_freq", F32, "[HALF_ROTARY]"),
                    read("biases", Bias, "[Q+2KV, D/32]"),
                ]
            }
        }
        Role::QkvFusedScratch => {
            const {
                &[
                    read_write("q_out", Activation, "[Q]"),
                    read_write("k_out", Activation, "[KV]"),
                    read_write("v_out", Activation, "[KV]"),
                    read("x", WideActivation, "[D]"),
                    read("scales", Scale, "[Q+2KV, D/32]"),
                    read("weights", Packed, "[Q+2KV, D/8]"),
                    read("position_map", I32, "[1]"),
                    uniform("{}"),
                    read("inv_freq", F32, "[HALF_ROTARY]"),
                    read("biases", Bias, "[Q+2KV, D/32]"),
                ]
            }
        }
        Role::QkvFusedNorm => {
            const {
                &[
                    read_write("q_out", Activation, "[Q]"),
                    update("kv_pages", Activation, "[pages, 2, KVH, 16, HD]"),
                    read("x", WideActivation, "[D]"),
                    read("gamma", WideActivation, "[D]"),
                    read("scales", Scale, "[Q+2KV, D/32]"),
                    read("weights", Packed, "[Q+2KV, D/8]"),
                    read("position_map", I32, "[1]"),
                    uniform("{}"),
                    read("page_values", I32, "[pages]"),
                    read("inv_freq", F32, "[HALF_ROTARY]"),
                    read("biases", Bias, "[Q+2KV, D/32]"),
                ]
            }
        }
        Role::Attention => {
            const {
                &[
                    read("q", WideActivation, "[Q]"),
                    read("page_indptr", I32, "[2]"),
                    read("page_values", I32, "[pages]"),
                    read("kv_pages", WideActivation, "[pages, 2, KVH, 16, HD]"),
                    read("length_info", I32, "[3]"),
                    read_write("out", Activation, "[Q]"),
                    uniform("{}"),
                ]
            }
        }
        Role::AttentionSplitk => {
            const {
                &[
                    read("q", WideActivation, "[Q]"),
                    read("page_indptr", I32, "[2]"),
                    read("page_values", I32, "[pages]"),
                    read("kv_pages", WideActivation, "[pages, 2, KVH, 16, HD]"),
                    read("length_info", I32, "[3]"),
                    read_write("partials", F32, "[H, parts, HD+2]"),
                    uniform("{}"),
                ]
            }
        }
        Role::AttentionCombine => {
            const {
                &[
                    read("partials", F32, "[H, parts, HD+2]"),
                    read_write("out", Activation, "[Q]"),
                    uniform("{}"),
                ]
            }
        }
        Role::AttentionInt8 => {
            const {
                &[
                    read("q", WideActivation, "[Q]"),
                    read("page_indptr", I32, "[2]"),
                    read("page_values", I32, "[pages]"),
                    read("kv_pages", KvCodes, "[pages, KVH, 16, 2, HD/4]"),
                    read("kv_scales", KvScale, "[pages, KVH, 16, 2]"),
                    read("length_info", I32, "[3]"),
                    read_write("out", Activation, "[Q]"),
                    uniform("{}"),
                ]
            }
        }
        Role::AttentionPrefillInt8 => {
            const {
                &[
                    read("q", WideActivation, "[T, Q]"),
                    read("page_values", I32, "[pages]"),
                    read("kv_pages", KvCodes, "[pages, KVH, 16, 2, HD/4]"),
                    read("kv_scales", KvScale, "[pages, KVH, 16, 2]"),
                    read_write("out", Activation, "[T, Q]"),
                    uniform("{}"),
                    read("position_map", I32, "[T]"),
                ]
            }
        }
        Role::AttentionPrefill => {
            const {
                &[
                    read("q", WideActivation, "[T, Q]"),
                    read("page_values", I32, "[pages]"),
                    read("kv_pages", WideActivation, "[pages, 2, KVH, 16, HD]"),
                    read_write("out", Activation, "[T, Q]"),
                    uniform("{}"),
                    read("position_map", I32, "[T]"),
                ]
            }
        }
        Role::Int4Matmul => {
            const {
                &[
                    read_write("out", Output, "[N]"),
                    read("x", WideActivation, "[K]"),
                    read("scales", Scale, "[N, K/32]"),
                    read("weights", Packed, "[N, K/8]"),
                    uniform("{}"),
                    read("biases", Bias, "[N, K/32]"),
                ]
            }
        }
        Role::Int4MatmulAdd => {
            const {
                &[
                    read_write("out", Activation, "[N]"),
                    read("residual", Activation, "[N]"),
                    read("x", WideActivation, "[K]"),
                    read("scales", Scale, "[N, K/32]"),
                    read("weights", Packed, "[N, K/8]"),
                    uniform("{}"),
                    read("biases", Bias, "[N, K/32]"),
                ]
            }
        }
        Role::Int4MatmulMoe => {
            const {
                &[
                    read_write("out", Output, "[T, S, N]"),
                    read("x", WideActivation, "[T, S or 1, K]"),
                    read("scales", Scale, "[E, N, K/32]"),
                    read("weights", Packed, "[E, N, K/8]"),
                    uniform("{}"),
                    read("biases", Bias, "[E, N, K/32]"),
                    read("ids", I32, "[T, S]"),
                ]
            }
        }
        Role::FusedFfn => {
            const {
                &[
                    read_write("out", Activation, "[F]"),
                    read("x", WideActivation, "[D]"),
                    read("scales", Scale, "[2F, D/32]"),
                    read("weights", Packed, "[2F, D/8]"),
                    uniform("{}"),
                    read("biases", Bias, "[2F, D/32]"),
                ]
            }
        }
        Role::FusedFfnPrologue => {
            const {
                &[
                    read_write("out", Activation, "[F]"),
                    read("residual", Activation, "[D]"),
                    read("delta", Activation, "[D]"),
                    read("gamma", Activation, "[D]"),
                    read("scales", Scale, "[2F, D/32]"),
                    read("weights", Packed, "[2F, D/8]"),
                    uniform("{}"),
                    read("biases", Bias, "[2F, D/32]"),
                ]
            }
        }
        Role::FusedFfnNorm => {
            const {
                &[
                    read_write("out", Activation, "[F]"),
                    read("x", WideActivation, "[D]"),
                    read("gamma", WideActivation, "[D]"),
                    read("scales", Scale, "[2F, D/32]"),
                    read("weights", Packed, "[2F, D/8]"),
                    uniform("{}"),
                    read("biases", Bias, "[2F, D/32]"),
                ]
            }
        }
        Role::SiluMul => {
            const {
                &[
                    read_write("out", Activation, "[T, F]"),
                    read("gate_up", Activation, "[T, 2F]"),
                    uniform("{}"),
                ]
            }
        }
        Role::AddNorm => {
            const {
                &[
                    read("a", Activation, "[T, D]"),
                    read("b", Activation, "[T, D]"),
                    read("gamma", Activation, "[D]"),
                    read_write("normed", Activation, "[T, D]"),
                    read_write("residual", Activation, "[T, D]"),
                    uniform("{}"),
                ]
            }
        }
        Role::Add3Norm => {
            const {
                &[
                    read("a", Activation, "[T, D]"),
                    read("b", Activation, "[T, D]"),
                    read("c", Activation, "[T, D]"),
                    read("gamma", Activation, "[D]"),
                    read_write("normed", Activation, "[T, D]"),
                    read_write("residual", Activation, "[T, D]"),
                    uniform("{}"),
                ]
            }
        }
        Role::KvAppend => {
            const {
                &[
                    read("k", Activation, "[T, KV]"),
                    read("v", Activation, "[T, KV]"),
                    update("kv_pages", Activation, "[pages, 2, KVH, 16, HD]"),
                    read("position_map", I32, "[T]"),
                    uniform("{}"),
                    read("page_values", I32, "[pages]"),
                ]
            }
        }
        Role::KvQuantizeInt8 => {
            const {
                &[
                    read("k", Activation, "[T, KV]"),
                    read("v", Activation, "[T, KV]"),
                    update("kv_pages", KvCodes, "[pages, KVH, 16, 2, HD/4]"),
                    update("kv_scales", KvScale, "[pages, KVH, 16, 2]"),
                    read("position_map", I32, "[T]"),
                    uniform("{}"),
                    read("page_values", I32, "[pages]"),
                ]
            }
        }
        Role::Rope => {
            const {
                &[
                    read_write("q_out", Activation, "[T, Q]"),
                    read_write("k_out", Activation, "[T, KV]"),
                    read_write("v_out", Activation, "[T, KV]"),
                    read("qkv", Activation, "[T, Q+2KV]"),
                    read("position_map", I32, "[T]"),
                    uniform("{}"),
                    read("inv_freq", F32, "[HALF_ROTARY]"),
                ]
            }
        }
        Role::QkNorm => {
            const {
                &[
                    update("qkv", Activation, "[T, Q+2KV]"),
                    read("q_gamma", Activation, "[HD]"),
                    read("k_gamma", Activation, "[HD]"),
                    uniform("{}"),
                ]
            }
        }
        Role::QkNormRopeAppend => {
            const {
                &[
                    read_write("q_out", Activation, "[T, Q]"),
                    update("kv_pages", Activation, "[pages, 2, KVH, 16, HD]"),
                    read("qkv", Activation, "[T, Q+2KV]"),
                    read("q_gamma", Activation, "[HD]"),
                    read("k_gamma", Activation, "[HD]"),
                    read("position_map", I32, "[T]"),
                    uniform("{}"),
                    read("page_values", I32, "[pages]"),
                    read("inv_freq", F32, "[HALF_ROTARY]"),
                ]
            }
        }
        Role::GatedQkvSplit => {
            const {
                &[
                    read_write("qkv", Activation, "[T, Q+2KV]"),
                    read_write("gate", Activation, "[T, Q]"),
                    read("c_attn", Activation, "[T, 2Q+2KV]"),
                    uniform("{}"),
                ]
            }
        }
        Role::AttnGate => {
            const {
                &[
                    update("attn_out", Activation, "[T, Q]"),
                    read("gate", Activation, "[T, Q]"),
                    uniform("{}"),
                ]
            }
        }
        Role::GdnConv => {
            const {
                &[
                    read_write("out", Activation, "[C]"),
                    read("qkv_raw", Activation, "[P]"),
                    update("ring", Activation, "[taps-1, C]"),
                    read("w", Activation, "[C, taps]"),
                    uniform("{}"),
                    read("position_map", I32, "[1]"),
                ]
            }
        }
        Role::GdnConvSeq => {
            const {
                &[
                    read_write("out", Activation, "[T, C]"),
                    read("qkv_raw", Activation, "[T, P]"),
                    read("ring", Activation, "[taps-1, C]"),
                    read("w", Activation, "[C, taps]"),
                    uniform("{}"),
                    read("position_map", I32, "[T]"),
                ]
            }
        }
        Role::GdnConvCommit => {
            const {
                &[
                    read("qkv_raw", Activation, "[T, P]"),
                    update("ring", Activation, "[taps-1, C]"),
                    uniform("{}"),
                    read("position_map", I32, "[T]"),
                ]
            }
        }
        Role::GdnGates => {
            const {
                &[
                    read_write("gates", F32, "[T, 2, VH]"),
                    read("ab", Activation, "[T, P]"),
                    read("a_log", F32, "[VH]"),
                    read("dt_bias", F32, "[VH]"),
                    uniform("{}"),
                ]
            }
        }
        Role::GdnRecur => {
            const {
                &[
                    read_write("out", F32, "[T, VH, DV]"),
                    read("conv", Activation, "[T, C]"),
                    read("gates", F32, "[T, 2, VH]"),
                    update("state", WideF32, "[VH, DK, DV]"),
                    uniform("{}"),
                    read("position_map", I32, "[T]"),
                ]
            }
        }
        Role::GdnNormOut => {
            const {
                &[
                    read_write("out", Activation, "[T, VH, DV]"),
                    read("recur", F32, "[T, VH, DV]"),
                    read("gamma", Activation, "[DV]"),
                    read("z", Activation, "[T, P]"),
                    uniform("{}"),
                ]
            }
        }
        Role::MoeRouterLogits => {
            const {
                &[
                    read_write("out", F32, "[T, E+1]"),
                    read("x", WideActivation, "[T, D]"),
                    read("scales", Scale, "[E+1, D/32]"),
                    read("weights", Packed, "[E+1, D/8]"),
                    uniform("{}"),
                    read("biases", Bias, "[E+1, D/32]"),
                ]
            }
        }
        Role::MoeRouterTopk => {
            const {
                &[
                    read_write("ids", I32, "[T, S]"),
                    read_write("score", F32, "[T, S]"),
                    read("logits", F32, "[T, E+1]"),
                    uniform("{}"),
                ]
            }
        }
        Role::MoeCombine => {
            const {
                &[
                    read_write("out", Activation, "[T, D]"),
                    read("slots", Activation, "[T, S, D]"),
                    read("score", F32, "[T, S]"),
                    uniform("{}"),
                ]
            }
        }
        Role::Argmax => {
            const {
                &[
                    read("logits", Output, "[V]"),
                    read_write("token", I32, "[1]"),
                ]
            }
        }
        Role::SampleReduce => {
            const {
                &[
                    read("logits", Output, "[V]"),
                    read_write("partials", F32, "[64, 2]"),
                    uniform("{}"),
                ]
            }
        }
        Role::SampleSelect => {
            const {
                &[
                    read("logits", Output, "[V]"),
                    read("partials", F32, "[64, 2]"),
                    read_write("token", I32, "[1]"),
                    uniform("{}"),
                    read("position_map", I32, "[1]"),
                ]
            }
        }
    }
}
