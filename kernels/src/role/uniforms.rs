//! The fields of every uniform struct.

use super::Role;

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

/// Fields of a role's uniform struct, in order.
pub(super) const fn of(role: Role) -> &'static [UniformField] {
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
        Role::QkNorm
        | Role::QkNormRopeAppend
        | Role::SiluMul
        | Role::GatedQkvSplit
        | Role::AttnGate
        | Role::GdnConv
        | Role::GdnConvSeq
        | Role::GdnConvCommit
        | Role::GdnRecur => const { &[u32_field("seq_len"), u32_field("packGridDimX")] },
        // Strides are those of the projection that holds the operand.
        Role::GdnGates => {
            const {
                &[
                    u32_field("seq_len"),
                    u32_field("ab_stride"),
                    u32_field("packGridDimX"),
                ]
            }
        }
        Role::GdnNormOut => {
            const {
                &[
                    u32_field("seq_len"),
                    u32_field("z_stride"),
                    u32_field("packGridDimX"),
                ]
            }
        }
        Role::MoeRouterLogits => {
            const {
                &[
                    u32_field("K_PACKED"),
                    u32_field("SCALES_PER_ROW"),
                    u32_field("rows"),
                ]
            }
        }
        Role::MoeRouterTopk => {
            const {
                &[
                    u32_field("E"),
                    u32_field("K"),
                    u32_field("normTopk"),
                    u32_field("hasShared"),
                ]
            }
        }
        Role::MoeCombine => const { &[u32_field("N"), u32_field("SLOTS")] },
        Role::RmsNorm
        | Role::FusedFfn
        | Role::FusedFfnPrologue
        | Role::FusedFfnNorm
        | Role::AddNorm
        | Role::Add3Norm => const { &[u32_field("packGridDimX")] },
        Role::QkvFused | Role::QkvFusedNorm => {
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
        Role::Int4Matmul | Role::Int4MatmulAdd => {
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
                    u32_field("OUT_FIRST"),
                    u32_field("FIRST_EXPERT"),
                    u32_field("EXPERTS"),
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
pub(super) const fn batched_of(role: Role) -> &'static [UniformField] {
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
        of(role)
    }
}
