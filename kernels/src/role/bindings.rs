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

/// Type of a uniform field; all are four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// `u32`.
    U32,
    /// `i32`.
    I32,
    /// `f32`.
    F32,
}

/// One field of a uniform struct.
#[derive(Clone, Copy, Debug)]
pub struct UniformField {
    /// Field name in WGSL.
    pub name: &'static str,
    /// Field type.
    pub scalar: Scalar,
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

const fn u32_field(name: &'static str) -> UniformField {
    UniformField {
        name,
        scalar: Scalar::U32,
    }
}

const fn i32_field(name: &'static str) -> UniformField {
    UniformField {
        name,
        scalar: Scalar::I32,
    }
}

const fn f32_field(name: &'static str) -> UniformField {
    UniformField {
        name,
        scalar: Scalar::F32,
    }
}

use Element::{
    Activation, Bias, F32, I32, KvCodes, KvScale, Output, Packed, Scale, WideActivation,
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

/// Fields of a role's uniform struct, in order.
pub(super) const fn uniform_of(role: Role) -> &'static [UniformField] {
    match role {
        Role::Embedding => {
            const {
                &[
                    u32_field("seq_len"),
                    u32_field("packGridDimX"),
                    u32_field("first_row"),
                    u32_field("row_count"),
                ]
            }
        }
        Role::QkNorm | Role::QkNormRopeAppend | Role::SiluMul => {
            const { &[u32_field("seq_len"), u32_field("packGridDimX")] }
        }
        Role::RmsNorm
        | Role::FusedFfn
        | Role::FusedFfnPrologue
        | Role::AddNorm
        | Role::Add3Norm => const { &[u32_field("packGridDimX")] },
        Role::QkvFused => {
            const {
                &[
                    i32_field("position_map_elem_offset"),
                    i32_field("pages_elem_offset"),
                    u32_field("packGridDimX"),
                ]
            }
        }
        Role::Attention => {
            const {
                &[
                    i32_field("B"),
                    i32_field("max_num_pages"),
                    i32_field("nnz_pages"),
                    i32_field("pages_elem_offset"),
                    i32_field("page_indptr_elem_offset"),
                    i32_field("page_values_elem_offset"),
                    i32_field("length_info_elem_offset"),
                    f32_field("sm_scale"),
                    u32_field("packGridDimX"),
                ]
            }
        }
        Role::AttentionSplitk => {
            const {
                &[
                    i32_field("B"),
                    i32_field("max_num_pages"),
                    i32_field("nnz_pages"),
                    i32_field("pages_elem_offset"),
                    i32_field("page_indptr_elem_offset"),
                    i32_field("page_values_elem_offset"),
                    i32_field("length_info_elem_offset"),
                    f32_field("sm_scale"),
                    u32_field("num_splits"),
                ]
            }
        }
        Role::AttentionCombine => const { &[u32_field("num_splits")] },
        Role::AttentionPrefill | Role::AttentionPrefillInt8 => {
            const { &[u32_field("seq_len"), f32_field("sm_scale")] }
        }
        Role::QkvFusedScratch => {
            const {
                &[
                    i32_field("position_map_elem_offset"),
                    u32_field("packGridDimX"),
                ]
            }
        }
        Role::AttentionInt8 => {
            const {
                &[
                    i32_field("B"),
                    i32_field("max_num_pages"),
                    i32_field("nnz_pages"),
                    i32_field("pages_elem_offset"),
                    i32_field("page_indptr_elem_offset"),
                    i32_field("page_values_elem_offset"),
                    i32_field("length_info_elem_offset"),
                    i32_field("scales_elem_offset"),
                    f32_field("sm_scale"),
                    u32_field("packGridDimX"),
                ]
            }
        }
        Role::KvQuantizeInt8 => {
            const {
                &[
                    i32_field("position_map_elem_offset"),
                    i32_field("pages_elem_offset"),
                    i32_field("scales_elem_offset"),
                    u32_field("packGridDimX"),
                ]
            }
        }
        Role::Int4Matmul => {
            const {
                &[
                    u32_field("K_PACKED"),
                    u32_field("SCALES_PER_ROW"),
                    u32_field("packGridDimX"),
                ]
            }
        }
        Role::Int4MatmulMoe => {
            const {
                &[
                    u32_field("K_PACKED"),
                    u32_field("SCALES_PER_ROW"),
                    u32_field("N"),
                    u32_field("IN_SLOT"),
                    u32_field("OUT_SLOT"),
                    u32_field("IN_TOK"),
                    u32_field("OUT_TOK"),
                    u32_field("IDS_STRIDE"),
                ]
            }
        }
        Role::KvAppend => {
            const {
                &[
                    i32_field("ntoken"),
                    i32_field("num_pages"),
                    i32_field("pages_elem_offset"),
                    i32_field("position_map_elem_offset"),
                    u32_field("packGridDimX"),
                ]
            }
        }
        Role::Rope => {
            const {
                &[
                    i32_field("apply_rope"),
                    i32_field("position_map_elem_offset"),
                    i32_field("seq_len"),
                    u32_field("packGridDimX"),
                ]
            }
        }
        Role::Argmax => &[],
        Role::SampleReduce => const { &[f32_field("temperature")] },
        Role::SampleSelect => {
            const {
                &[
                    f32_field("temperature"),
                    f32_field("top_p"),
                    f32_field("min_p"),
                    u32_field("top_k"),
                    u32_field("seed"),
                ]
            }
        }
    }
}

/// The same for a variant of `Batch::Dynamic`: a matrix role's with `M_ROWS`, the
/// vectors of the dispatch; every other role has its own field for its tokens.
pub(super) const fn batched_uniform_of(role: Role) -> &'static [UniformField] {
    if matches!(role, Role::Int4Matmul) {
        const {
            &[
                u32_field("K_PACKED"),
                u32_field("SCALES_PER_ROW"),
                u32_field("packGridDimX"),
                u32_field("M_ROWS"),
            ]
        }
    } else if matches!(role, Role::FusedFfn) {
        const { &[u32_field("packGridDimX"), u32_field("M_ROWS")] }
    } else {
        uniform_of(role)
    }
}
