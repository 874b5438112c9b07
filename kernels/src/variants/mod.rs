//! The one variant table: every way a role may be written, with the constraint
//! under which it may run.
//!
//! A variant's id is derived from its axes by one grammar,
//! `role[_row][_vec4|_vec4h|_texture]`, and parsed back by looking the table up.

use crate::{
    features::Features,
    role::{Binding, Element, Role},
    suggest,
};
use std::{fmt, str::FromStr};

/// How the sum over K (or over a row) is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reduce {
    /// No reduction across invocations, and none to avoid.
    Elementwise,
    /// One workgroup per output row; a tree in workgroup memory.
    Tree,
    /// One invocation per output row (or cached position), nothing across
    /// invocations in the loop. What a CPU adapter wants: a barrier is expensive
    /// there and lanes are rows.
    Row,
}

/// How many packed words one load takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Load {
    /// One `u32`: 8 weights.
    Word,
    /// `vec2<u32>`: 16 weights (published as `vec4h`).
    Vec2,
    /// `vec4<u32>`: 32 weights, one q4f16_1 group.
    Vec4,
    /// The same, as one texel of a 2-D texture; activations are loaded by four
    /// invocations of a subgroup together. A driver that runs each invocation of
    /// a buffer load on its own still gathers texels as vectors.
    Texture,
}

impl Load {
    /// `u32` words per load.
    pub const fn words(self) -> usize {
        match self {
            Self::Word => 1,
            Self::Vec2 => 2,
            Self::Vec4 | Self::Texture => 4,
        }
    }
}

/// One way to write a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variant {
    /// What it computes.
    pub role: Role,
    /// How it reduces.
    pub reduce: Reduce,
    /// How it loads packed weights.
    pub load: Load,
}

/// Width in texels of a matrix in a texture; words run on from row to row.
pub const TEXTURE_WIDTH: usize = 4096;
/// Invocations of a tree-form matrix workgroup.
pub const TREE_THREADS: usize = 64;
/// Invocations of a row-form workgroup: one vector of the software driver.
pub const ROW_THREADS: usize = 8;
/// Weight rows of an invocation of the row form, which share its activations.
pub const ROWS_PER_INVOCATION: usize = 8;
/// Invocations of a workgroup that normalises one head.
pub const HEAD_THREADS: usize = 32;
/// Invocations of a tree-form attention workgroup.
pub const ATTENTION_THREADS: usize = 32;
/// Invocations of every other workgroup.
pub const WIDE_THREADS: usize = 256;

const fn v(role: Role, reduce: Reduce, load: Load) -> Variant {
    Variant { role, reduce, load }
}

/// Every variant, by role in the order of [`Role::ALL`].
pub const VARIANTS: &[Variant] = &[
    v(Role::Embedding, Reduce::Elementwise, Load::Word),
    v(Role::RmsNorm, Reduce::Tree, Load::Word),
    v(Role::QkvFused, Reduce::Tree, Load::Word),
    v(Role::QkvFused, Reduce::Row, Load::Vec4),
    v(Role::QkvFused, Reduce::Row, Load::Texture),
    v(Role::Attention, Reduce::Tree, Load::Word),
    v(Role::Attention, Reduce::Row, Load::Vec4),
    v(Role::AttentionSplitk, Reduce::Tree, Load::Word),
    v(Role::AttentionSplitk, Reduce::Row, Load::Vec4),
    v(Role::AttentionCombine, Reduce::Elementwise, Load::Word),
    v(Role::AttentionPrefill, Reduce::Tree, Load::Word),
    v(Role::AttentionPrefill, Reduce::Row, Load::Vec4),
    v(Role::Int4Matmul, Reduce::Tree, Load::Word),
    v(Role::Int4Matmul, Reduce::Tree, Load::Vec2),
    v(Role::Int4Matmul, Reduce::Tree, Load::Vec4),
    v(Role::Int4Matmul, Reduce::Row, Load::Vec4),
    v(Role::Int4Matmul, Reduce::Row, Load::Texture),
    v(Role::FusedFfn, Reduce::Tree, Load::Word),
    v(Role::FusedFfn, Reduce::Row, Load::Vec4),
    v(Role::FusedFfn, Reduce::Row, Load::Texture),
    v(Role::AddNorm, Reduce::Tree, Load::Word),
    v(Role::KvAppend, Reduce::Elementwise, Load::Word),
    v(Role::Rope, Reduce::Elementwise, Load::Word),
    v(Role::QkNorm, Reduce::Tree, Load::Word),
    v(Role::QkNormRopeAppend, Reduce::Tree, Load::Word),
    v(Role::Argmax, Reduce::Tree, Load::Word),
];

impl Variant {
    /// The base form of a role: the first row of the table that has it.
    ///
    /// # Panics
    /// Never for a role of [`Role::ALL`]; a test holds the table complete.
    pub fn base(role: Role) -> Self {
        *VARIANTS
            .iter()
            .find(|v| v.role == role)
            .expect("every role has a variant")
    }

    /// Id by the grammar of this module.
    pub fn id(&self) -> String {
        let row = match self.reduce {
            Reduce::Row => "_row",
            Reduce::Tree | Reduce::Elementwise => "",
        };
        let load = match self.load {
            Load::Word => "",
            Load::Vec2 => "_vec4h",
            Load::Vec4 => "_vec4",
            Load::Texture => "_texture",
        };
        format!("{}{row}{load}", self.role)
    }

    /// Invocations of one workgroup.
    pub const fn threads(&self) -> usize {
        match self.role {
            Role::QkvFused | Role::Int4Matmul | Role::FusedFfn => match self.reduce {
                Reduce::Row => ROW_THREADS,
                Reduce::Tree | Reduce::Elementwise => TREE_THREADS,
            },
            Role::Attention | Role::AttentionSplitk | Role::AttentionPrefill => match self.reduce {
                Reduce::Row => ROW_THREADS,
                Reduce::Tree | Reduce::Elementwise => ATTENTION_THREADS,
            },
            Role::AttentionCombine => ATTENTION_THREADS,
            Role::QkNorm | Role::QkNormRopeAppend => HEAD_THREADS,
            Role::Embedding
            | Role::RmsNorm
            | Role::AddNorm
            | Role::KvAppend
            | Role::Rope
            | Role::Argmax => WIDE_THREADS,
        }
    }

    /// Whether it takes a binding as a texture, not as a buffer.
    pub fn in_texture(&self, binding: &Binding) -> bool {
        self.load == Load::Texture && binding.element == Some(Element::Packed)
    }

    /// Outputs of one workgroup of a matrix role: rows, or pairs of rows where
    /// the role makes one output of two.
    pub const fn outputs_per_workgroup(&self) -> usize {
        match (self.reduce, self.role) {
            (Reduce::Tree | Reduce::Elementwise, _) => 1,
            (Reduce::Row, Role::QkvFused | Role::FusedFfn) => ROW_THREADS * ROWS_PER_INVOCATION / 2,
            (Reduce::Row, _) => ROW_THREADS * ROWS_PER_INVOCATION,
        }
    }

    /// K must be a multiple of this: one load of every invocation.
    pub const fn k_step(&self) -> usize {
        match (self.reduce, self.load) {
            (Reduce::Tree, Load::Vec4 | Load::Texture) => 1024,
            (Reduce::Tree, Load::Vec2) => 512,
            (Reduce::Row | Reduce::Elementwise, _) | (Reduce::Tree, Load::Word) => 32,
        }
    }

    /// Whether it may run on `features` over rows of `k` weights (0 where the
    /// role has no K).
    ///
    /// # Errors
    /// The constraint in words, with both numbers.
    pub fn check(&self, features: &Features, k: usize) -> Result<(), String> {
        if !features.shader_f16 {
            return Err("needs the adapter feature shader-f16".into());
        }
        if self.load == Load::Texture && features.subgroup_size.is_none() {
            return Err("needs the adapter feature subgroups".into());
        }
        let step = self.k_step();
        if !k.is_multiple_of(step) {
            return Err(format!("K = {k} is not a multiple of {step}"));
        }
        Ok(())
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id())
    }
}

/// A variant id that is not in the table.
#[derive(Clone, Debug, thiserror::Error)]
#[error("unknown variant `{id}`; {known}")]
pub struct UnknownVariant {
    id: String,
    known: String,
}

impl FromStr for Variant {
    type Err = UnknownVariant;

    fn from_str(id: &str) -> Result<Self, Self::Err> {
        VARIANTS
            .iter()
            .copied()
            .find(|v| v.id() == id)
            .ok_or_else(|| {
                let ids: Vec<String> = VARIANTS.iter().map(Variant::id).collect();
                UnknownVariant {
                    id: id.to_owned(),
                    known: suggest::known(id, ids.iter().map(String::as_str)),
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_parse_back() {
        for variant in VARIANTS {
            let parsed: Variant = variant.id().parse().expect("an id of the table parses");
            assert_eq!(parsed, *variant, "{variant}");
        }
    }

    #[test]
    fn every_role_has_a_base_form_without_a_k_constraint() {
        for &role in Role::ALL {
            let base = Variant::base(role);
            base.check(&Features::PUBLISHED, 576)
                .expect("the base form takes any K");
        }
    }

    #[test]
    fn vec4_refuses_576_with_both_numbers() {
        let vec4: Variant = "int4_matmul_vec4".parse().expect("in the table");
        let why = vec4
            .check(&Features::PUBLISHED, 576)
            .expect_err("576 % 1024");
        assert_eq!(why, "K = 576 is not a multiple of 1024", "the constraint");
    }
}
