//! The one variant table: every way a role may be written, with the constraint
//! under which it may run.
//!
//! A row of [`FORMS`] is a way to write a role; it stands in [`VARIANTS`] once for
//! every weight format, output type and element type that it is written for. A variant's id is
//! derived from its axes by one grammar,
//! `role[_batched_m4|_batched_dyn][_f32][_sg|_tiled|_tiled8|_tiled_sg|_row][_vec4|_vec4h|_texture]`,
//! or `role[_f32]_dp4a[ROWS]` of rows that subgroups own, and `_gemm` or `_gemm_dp4a`,
//! and, where they are not q4f16_1 and f16, its format and `_elem32`; it is parsed
//! back by looking the table up.

mod forms;

pub use forms::FORMS;

use crate::{
    features::Features,
    kv::KvFormat,
    models::ModelSpec,
    quant::{Elem, QuantFormat},
    role::{Binding, Element, Role, UniformField},
    suggest,
};
use std::{fmt, str::FromStr, sync::LazyLock};

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
    /// `subgroupAdd` within each subgroup, of any size; a workgroup of several
    /// subgroups adds their sums in workgroup memory.
    Subgroup,
    /// A tile of rows by vectors in each workgroup, staged group by group along K in
    /// workgroup memory; each invocation owns sixteen sums, so nothing is reduced.
    Gemm,
}

/// How many packed words one load takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Load {
    /// Single `u32`s, as many as eight weights of a 4-bit or 8-bit format take.
    Word,
    /// `vec2<u32>`: 16 weights of a 4-bit format (published as `vec4h`).
    Vec2,
    /// `vec4<u32>`: 32 weights of a 4-bit format, one q4f16_1 group.
    Vec4,
    /// The same, as one texel of a 2-D texture; activations are loaded by four
    /// invocations of a subgroup together. A driver that runs each invocation of
    /// a buffer load on its own still gathers texels as vectors.
    Texture,
    /// `vec4<u32>`, several in flight, multiplied as integers: every workgroup rounds the
    /// activations to int8 in groups of [`INT8_GROUP`] and takes four products at once.
    Dp4a,
}

impl Load {
    /// `u32` words of one element of the binding.
    const fn words(self) -> usize {
        match self {
            Self::Word => 1,
            Self::Vec2 => 2,
            Self::Vec4 | Self::Texture | Self::Dp4a => 4,
        }
    }
}

/// Outputs that one workgroup of the subgroup form owns: rows of a product, or pairs
/// of rows where the role makes one output of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tile {
    /// One.
    One,
    /// Two (`tiled_sg` of `qkv_fused`).
    Two,
    /// Four (`tiled`; `tiled_sg` of `fused_ffn`).
    Four,
    /// Eight (`tiled8`).
    Eight,
    /// Sixteen.
    Sixteen,
    /// Thirty-two.
    ThirtyTwo,
}

impl Tile {
    /// How many.
    pub const fn outputs(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
            Self::Sixteen => 16,
            Self::ThirtyTwo => 32,
        }
    }
}

/// Vectors `x` that are multiplied by the matrix in one dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Batch {
    /// One.
    One,
    /// Four.
    Four,
    /// As many as the uniform says.
    Dynamic,
}

/// One way to write a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Form {
    /// What it computes.
    pub role: Role,
    /// How it reduces.
    pub reduce: Reduce,
    /// How it loads packed weights.
    pub load: Load,
    /// Outputs of a workgroup.
    pub tile: Tile,
    /// Vectors of a dispatch.
    pub batch: Batch,
    /// Type of a matrix product and of logits; that of activations or wider.
    pub out: Elem,
}

/// One way to write a role, for one format of weights and one type of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variant {
    /// How it is written.
    pub form: Form,
    /// Format of the weights that it reads; `None` where it reads none.
    pub format: Option<QuantFormat>,
    /// Type of activations, of the KV cache and of gammas.
    pub elem: Elem,
}

impl std::ops::Deref for Variant {
    type Target = Form;

    fn deref(&self) -> &Form {
        &self.form
    }
}

/// Width in texels of a matrix in a texture; words run on from row to row.
pub const TEXTURE_WIDTH: usize = 4096;
/// Invocations of a tree-form matrix workgroup.
pub const TREE_THREADS: usize = 64;
/// Invocations of a subgroup-form matrix workgroup: one subgroup of most GPUs.
pub const SUBGROUP_THREADS: usize = 32;
/// Invocations of a row-form workgroup: one vector of the software driver.
pub const ROW_THREADS: usize = 8;
/// Weight rows of an invocation of the row form, which share its activations.
pub const ROWS_PER_INVOCATION: usize = 8;
/// Invocations of a workgroup of [`Load::Dp4a`].
pub const DP4A_THREADS: usize = 256;
/// Invocations that one row of it is divided among: whole subgroups of at most as many.
pub const DP4A_LANES: usize = 32;
/// Activations that share a scale where they are rounded to int8.
pub const INT8_GROUP: usize = 32;
/// Rows, and vectors, of the tile of a GEMM's workgroup.
pub const GEMM_TILE: usize = 32;
/// Rows of the tile of the workgroup of a GEMM of [`Load::Dp4a`].
pub const DP4A_GEMM_ROWS: usize = 64;
/// Vectors of that tile.
pub const DP4A_GEMM_TOKENS: usize = 16;
/// Invocations that share one of its sums, each over every eighth group along K.
pub const DP4A_GEMM_SHARES: usize = 8;
/// Rows of the tile of a tree-form workgroup that multiplies several vectors.
pub const BATCHED_TILE_ROWS: usize = 4;
/// Invocations of a workgroup that normalises or quantises one head.
pub const HEAD_THREADS: usize = 32;
/// Invocations of a workgroup that updates the state of one head, one for each element
/// of a value.
pub const STATE_THREADS: usize = 128;
/// Tokens that the form of the recurrence for a chunk takes at once: keys and queries of
/// as many fit workgroup memory.
pub const SCAN_BLOCK: usize = 8;
/// Invocations of a tree-form attention workgroup.
pub const ATTENTION_THREADS: usize = 32;
/// Invocations of every other workgroup.
pub const WIDE_THREADS: usize = 256;

impl Form {
    /// The formats of weights that it is written for; none where it reads none.
    fn formats(&self) -> &'static [QuantFormat] {
        let reads = |b: &Binding| b.element == Some(Element::Packed);
        if !self.role.bindings().iter().any(reads) {
            return &[];
        }
        match self.load {
            // It stages codes of four bits and has no place for a bias.
            Load::Vec4 if self.reduce == Reduce::Gemm => &[QuantFormat::Q4f16_1],
            Load::Word | Load::Vec4 => QuantFormat::ALL,
            // Three words of 32 codes are no vector of two.
            Load::Vec2 => QuantFormat::OF_WHOLE_WORDS,
            Load::Texture => QuantFormat::IN_TEXTURES,
            Load::Dp4a => QuantFormat::OF_FOUR_BITS,
        }
    }

    /// The types of activations that it is written for.
    fn elements(&self) -> &'static [Elem] {
        match self.load {
            // Activations are shared as pairs in words.
            Load::Texture => &[Elem::F16],
            Load::Word | Load::Vec2 | Load::Vec4 | Load::Dp4a => &[Elem::F16, Elem::F32],
        }
    }

    /// The types of output, or of logits, that it is written for.
    fn outputs(&self) -> &'static [Elem] {
        let gives_logits = matches!(
            self.role,
            Role::Int4Matmul | Role::Argmax | Role::SampleReduce | Role::SampleSelect
        );
        if gives_logits && self.batch == Batch::One {
            &[Elem::F16, Elem::F32]
        } else {
            &[Elem::F16]
        }
    }
}

/// Every variant: each form in its formats and its types of output and activations.
pub static VARIANTS: LazyLock<Vec<Variant>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for (&written, &out) in FORMS
        .iter()
        .flat_map(|f| f.outputs().iter().map(move |o| (f, o)))
    {
        let form = Form { out, ..written };
        // A wider output is one that activations of its type do not give anyway.
        let narrower = |elem: &&Elem| out == Elem::F16 || **elem < out;
        for &elem in form.elements().iter().filter(narrower) {
            let formats = form.formats();
            let variant = |format| Variant { form, format, elem };
            if formats.is_empty() {
                all.push(variant(None));
            }
            all.extend(formats.iter().map(|&format| variant(Some(format))));
        }
    }
    all
});

impl Variant {
    /// The base form of a role in q4f16_1 and f16: the first of the table that has it.
    ///
    /// # Panics
    /// Never for a role of [`Role::ALL`]; a test holds the table complete.
    pub fn base(role: Role) -> Self {
        *VARIANTS
            .iter()
            .find(|v| v.role == role)
            .expect("every role has a variant")
    }

    /// Whether its weights, if it reads any, are in the format that every form is
    /// written for.
    pub fn in_base_format(&self) -> bool {
        self.format
            .is_none_or(|format| format == QuantFormat::Q4f16_1)
    }

    /// Its bindings in `@binding` order: those of its role, without the biases of
    /// affine formats where its format has none.
    pub fn bindings(&self) -> impl Iterator<Item = &'static Binding> {
        let affine = self.format.is_some_and(QuantFormat::is_affine);
        let bindings = self.role.bindings().iter();
        bindings.filter(move |b| affine || b.element != Some(Element::Bias))
    }

    /// Its storage bindings in binding order: what a dispatch binds buffers to.
    pub fn storage_bindings(&self) -> impl Iterator<Item = &'static Binding> {
        self.bindings().filter(|b| b.element.is_some())
    }

    /// `u32` words of one element of its packed weights or cached codes. 3-bit rows
    /// hold no whole number of vectors, so theirs are read word by word.
    pub fn packed_words(&self) -> usize {
        match self.format {
            Some(QuantFormat::Affine3G64) => 1,
            _ => self.load.words(),
        }
    }

    /// Eights of weights along K that one step of its loop takes.
    pub fn eights_per_load(&self) -> usize {
        match (self.format.map_or(4, QuantFormat::bits), self.load) {
            // 32 codes of 3 bits are the fewest that fill whole words.
            (3, _) => 4,
            (8, Load::Word | Load::Vec2) => 1,
            (8, Load::Vec4 | Load::Texture | Load::Dp4a) => 2,
            (_, load) => load.words(),
        }
    }

    /// Type of a binding's elements where they are floating-point; of a packed
    /// vector's, of what is packed.
    pub fn float_type(&self, binding: &Binding) -> Option<Elem> {
        match binding.element? {
            Element::Activation | Element::WideActivation => Some(self.elem),
            Element::Output => Some(self.elem.max(self.out)),
            Element::Scale | Element::Bias => self.format.map(QuantFormat::scale_type),
            Element::F32 | Element::WideF32 => Some(Elem::F32),
            Element::KvScale => Some(Elem::F16),
            Element::Packed | Element::KvCodes | Element::I32 => None,
        }
    }

    /// Whether its activations or a binding are f16.
    pub fn uses_f16(&self) -> bool {
        let mut bindings = self.bindings();
        self.elem == Elem::F16
            || bindings.any(|binding| self.float_type(binding) == Some(Elem::F16))
    }

    /// Fields of its uniform struct in order; empty where it has none.
    pub fn uniform(&self) -> &'static [UniformField] {
        match self.batch {
            Batch::One | Batch::Four => self.role.uniform(),
            Batch::Dynamic => self.role.batched_uniform(),
        }
    }

    /// Id by the grammar of this module.
    pub fn id(&self) -> String {
        let batch = match self.batch {
            Batch::One => "",
            Batch::Four => "_batched_m4",
            Batch::Dynamic => "_batched_dyn",
        };
        let out = match (self.out, self.elem) {
            (Elem::F32, Elem::F16) => "_f32",
            (Elem::F16 | Elem::F32, _) => "",
        };
        let reduce = match (self.reduce, self.tile) {
            (Reduce::Gemm, _) => "_gemm",
            _ if self.load == Load::Dp4a => "",
            (Reduce::Row, _) => "_row",
            (Reduce::Subgroup, Tile::One) => "_sg",
            (Reduce::Subgroup, Tile::Four) if self.role.is_product() => "_tiled",
            (Reduce::Subgroup, Tile::Two | Tile::Four) => "_tiled_sg",
            (Reduce::Subgroup, Tile::Eight | Tile::Sixteen | Tile::ThirtyTwo) => "_tiled8",
            (Reduce::Tree | Reduce::Elementwise, _) => "",
        };
        let load = match self.load {
            Load::Word => "",
            Load::Vec2 => "_vec4h",
            Load::Vec4 => "_vec4",
            Load::Texture => "_texture",
            Load::Dp4a if self.reduce == Reduce::Gemm => "_dp4a",
            Load::Dp4a => &format!("_dp4a{}", self.rows_per_workgroup()),
        };
        let format = match self.format {
            None | Some(QuantFormat::Q4f16_1) => String::new(),
            Some(format) => format!("_{}", format.name()),
        };
        let elem = match self.elem {
            Elem::F16 => "",
            Elem::F32 => "_elem32",
        };
        format!("{}{batch}{out}{reduce}{load}{format}{elem}", self.role)
    }

    /// Invocations of one workgroup.
    pub fn threads(&self) -> usize {
        match self.role {
            Role::QkvFused
            | Role::QkvFusedScratch
            | Role::QkvFusedNorm
            | Role::FusedFfnNorm
            | Role::Int4Matmul
            | Role::Int4MatmulAdd
            | Role::Int4MatmulMoe
            | Role::MoeRouterLogits
            | Role::FusedFfn
            | Role::FusedFfnPrologue => match self.reduce {
                _ if self.load == Load::Dp4a => DP4A_THREADS,
                Reduce::Row => ROW_THREADS,
                Reduce::Tree | Reduce::Elementwise | Reduce::Gemm => TREE_THREADS,
                // Published: two subgroups of 32.
                Reduce::Subgroup if self.projects() && self.load == Load::Word => TREE_THREADS,
                Reduce::Subgroup => SUBGROUP_THREADS,
            },
            Role::Attention
            | Role::AttentionSplitk
            | Role::AttentionInt8
            | Role::AttentionPrefill
            | Role::AttentionPrefillInt8 => match self.reduce {
                Reduce::Row => ROW_THREADS,
                Reduce::Subgroup if self.load == Load::Vec4 => WIDE_THREADS,
                Reduce::Tree | Reduce::Elementwise | Reduce::Subgroup | Reduce::Gemm => {
                    ATTENTION_THREADS
                }
            },
            Role::AttentionCombine => ATTENTION_THREADS,
            Role::QkNorm
            | Role::QkNormRopeAppend
            | Role::KvQuantizeInt8
            | Role::GdnGates
            | Role::GdnNormOut
            | Role::MoeRouterTopk => HEAD_THREADS,
            Role::GdnRecur => STATE_THREADS / self.load.words(),
            Role::Embedding
            | Role::RmsNorm
            | Role::SiluMul
            | Role::AddNorm
            | Role::Add3Norm
            | Role::KvAppend
            | Role::Rope
            | Role::GatedQkvSplit
            | Role::AttnGate
            | Role::GdnConv
            | Role::GdnConvSeq
            | Role::GdnConvCommit
            | Role::MoeCombine
            | Role::Argmax
            | Role::SampleReduce
            | Role::SampleSelect => WIDE_THREADS,
        }
    }

    /// Whether it takes a binding as a texture, not as a buffer.
    pub fn in_texture(&self, binding: &Binding) -> bool {
        self.load == Load::Texture && binding.element == Some(Element::Packed)
    }

    /// Storage buffers that it binds; a texture is none.
    pub fn storage_buffers(&self) -> usize {
        let bindings = self.storage_bindings();
        bindings.filter(|binding| !self.in_texture(binding)).count()
    }

    /// Outputs of one workgroup of a matrix role: rows, or pairs of rows where
    /// the role makes one output of two.
    pub fn outputs_per_workgroup(&self) -> usize {
        match (self.reduce, self.role) {
            (Reduce::Tree | Reduce::Elementwise, _) if !self.is_batched() => 1,
            (Reduce::Tree | Reduce::Elementwise, Role::FusedFfn) => BATCHED_TILE_ROWS / 2,
            (Reduce::Tree | Reduce::Elementwise, _) => BATCHED_TILE_ROWS,
            (Reduce::Subgroup, _) => self.tile.outputs(),
            (Reduce::Gemm, _) if self.load == Load::Dp4a => DP4A_GEMM_ROWS,
            (Reduce::Gemm, _) => GEMM_TILE,
            (
                Reduce::Row,
                Role::QkvFused | Role::QkvFusedScratch | Role::FusedFfn | Role::FusedFfnPrologue,
            ) => ROW_THREADS * ROWS_PER_INVOCATION / 2,
            (Reduce::Row, _) => ROW_THREADS * ROWS_PER_INVOCATION,
        }
    }

    /// Rows of the matrix that one workgroup of the subgroup form owns.
    pub fn rows_per_workgroup(&self) -> usize {
        let of_two = matches!(
            self.role,
            Role::FusedFfn | Role::FusedFfnPrologue | Role::FusedFfnNorm
        );
        if of_two || self.projects() {
            2 * self.tile.outputs()
        } else {
            self.tile.outputs()
        }
    }

    /// Whether it is the fused projection, to pages or to buffers of its own.
    pub fn projects(&self) -> bool {
        matches!(
            self.role,
            Role::QkvFused | Role::QkvFusedScratch | Role::QkvFusedNorm
        )
    }

    /// Whether it multiplies several vectors.
    pub fn is_batched(&self) -> bool {
        self.batch != Batch::One
    }

    /// Vectors that one workgroup multiplies; its tile of them is y of the grid.
    pub const fn tokens_per_workgroup(&self) -> usize {
        match (self.form.batch, self.form.reduce, self.form.load) {
            (Batch::One, ..) => 1,
            (Batch::Four | Batch::Dynamic, Reduce::Gemm, Load::Dp4a) => DP4A_GEMM_TOKENS,
            (Batch::Four | Batch::Dynamic, Reduce::Gemm, _) => GEMM_TILE,
            (Batch::Four | Batch::Dynamic, ..) => 4,
        }
    }

    /// K must be a multiple of this: whole groups, and of the wide loads one for
    /// each of the 32 invocations of the published forms.
    pub fn k_step(&self) -> usize {
        let group = self.format.map_or(32, QuantFormat::group_size);
        match (self.reduce, self.load) {
            (_, load) if self.role == Role::Argmax => load.words(),
            // A head's dimensions, in eights for each of four invocations.
            (Reduce::Subgroup, Load::Vec4) if self.attends() => 32,
            (Reduce::Tree | Reduce::Subgroup, Load::Vec2 | Load::Vec4 | Load::Texture) => {
                32 * 8 * self.eights_per_load()
            }
            (Reduce::Row | Reduce::Gemm | Reduce::Elementwise, _)
            | (Reduce::Tree | Reduce::Subgroup, Load::Word | Load::Dp4a) => group,
        }
    }

    /// Whether its workgroups keep the activations of a row in their memory, as they are.
    pub fn shares_activations(&self) -> bool {
        let tiled = self.role == Role::FusedFfn && self.reduce == Reduce::Subgroup;
        (tiled || self.role == Role::FusedFfnPrologue) && self.load != Load::Dp4a
    }

    /// Activations of the rows that its workgroups have place for: those of the hidden size
    /// or, in the one text of every integer product, of the model's longest row.
    pub fn held_row(&self, spec: &ModelSpec) -> usize {
        let any = matches!(self.role, Role::Int4Matmul | Role::Int4MatmulAdd);
        if self.is_dp4a_of_one() && any {
            spec.longest_row()
        } else {
            spec.hidden_size
        }
    }

    /// Bytes of workgroup memory where it grows with `k`, the activations of a row.
    pub fn shared_bytes(&self, k: usize) -> usize {
        if self.is_dp4a_of_one() {
            // Codes, for each group a scale and a sum, and what subgroups add.
            let partials = self.rows_per_workgroup() * DP4A_LANES / 4 + DP4A_THREADS;
            return k + k / INT8_GROUP * size_of::<[f32; 2]>() + partials * size_of::<f32>();
        }
        if !self.shares_activations() {
            return 0;
        }
        let sums = match self.reduce {
            Reduce::Subgroup => size_of::<[f32; 8]>(),
            Reduce::Tree => size_of::<[f32; 2]>(),
            Reduce::Elementwise | Reduce::Row | Reduce::Gemm => 0,
        };
        let squares = if self.normalises() {
            size_of::<f32>()
        } else {
            0
        };
        k * self.elem.bytes() + self.threads() * (sums + squares)
    }

    /// Whether it multiplies one vector as integers, whose codes its workgroups hold whole.
    pub fn is_dp4a_of_one(&self) -> bool {
        self.load == Load::Dp4a && self.reduce == Reduce::Subgroup
    }

    /// Whether it reads or writes a cache of int8 codes.
    pub fn is_of_int8(&self) -> bool {
        self.role.kv_format() == Some(KvFormat::Int8)
    }

    /// Whether its workgroups make the norm that they multiply.
    pub fn normalises(&self) -> bool {
        matches!(
            self.role,
            Role::QkvFusedNorm | Role::FusedFfnNorm | Role::FusedFfnPrologue
        )
    }

    /// Whether it is attention, whole, in parts or of a chunk.
    pub fn attends(&self) -> bool {
        matches!(
            self.role,
            Role::Attention
                | Role::AttentionSplitk
                | Role::AttentionInt8
                | Role::AttentionPrefill
                | Role::AttentionPrefillInt8
        )
    }

    /// Whether it loads activations eight at a time, of f16 as pairs in words.
    pub fn loads_eights(&self) -> bool {
        self.reduce == Reduce::Row || (self.attends() && self.load == Load::Vec4)
    }

    /// Whether it is of a chunk of a prompt.
    pub fn is_of_chunk(&self) -> bool {
        let attends = matches!(
            self.role,
            Role::AttentionPrefill
                | Role::AttentionPrefillInt8
                | Role::GdnConvSeq
                | Role::GdnConvCommit
        );
        attends || self.is_batched()
    }

    /// Whether it calls subgroup functions.
    pub fn uses_subgroups(&self) -> bool {
        // A texture form shares its activations in a subgroup, or in the workgroup.
        let broadcasts = self.load == Load::Texture && !self.shares_activations();
        broadcasts || self.reduce == Reduce::Subgroup
    }

    /// Whether it may run on `features` over rows of `k` weights (0 where the
    /// role has no K).
    ///
    /// # Errors
    /// The constraint in words, with both numbers.
    pub fn check(&self, features: &Features, k: usize) -> Result<(), String> {
        if self.uses_f16() && !features.shader_f16 {
            return Err("needs the adapter feature shader-f16".into());
        }
        if self.uses_subgroups() && features.subgroup_size.is_none() {
            return Err("needs the adapter feature subgroups".into());
        }
        let most = features.subgroup_size.map_or(0, |(_, most)| most);
        if self.is_dp4a_of_one() && most as usize > DP4A_LANES {
            return Err(format!(
                "needs subgroups of at most {DP4A_LANES} invocations, this adapter has {most}"
            ));
        }
        let buffers = self.storage_buffers();
        if buffers > features.max_storage_buffers as usize {
            return Err(format!(
                "binds {buffers} storage buffers, this adapter allows {}",
                features.max_storage_buffers
            ));
        }
        let step = self.k_step();
        if !k.is_multiple_of(step) {
            return Err(format!("K = {k} is not a multiple of {step}"));
        }
        self.check_memory(features, k)
    }

    /// Whether its workgroups can hold the activations of a row of `k`.
    ///
    /// # Errors
    /// Both numbers.
    pub fn check_memory(&self, features: &Features, k: usize) -> Result<(), String> {
        let (bytes, most) = (self.shared_bytes(k), features.max_workgroup_storage_bytes);
        if bytes > most as usize {
            return Err(format!(
                "K = {k} takes {bytes} bytes of workgroup memory, this adapter has {most}"
            ));
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
                    known: suggest::nearest_known(
                        id,
                        ids.iter().map(String::as_str),
                        "`cargo xtask kernels list` lists all",
                    ),
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_parse_back() {
        for variant in VARIANTS.iter() {
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
    fn activations_that_workgroup_memory_cannot_hold_are_refused() {
        let tiled: Variant = "fused_ffn_tiled_sg".parse().expect("in the table");
        let small = Features {
            max_workgroup_storage_bytes: 16 * 1024,
            ..Features::PUBLISHED
        };
        tiled.check(&small, 7168).expect("14 KiB and the sums");
        let why = tiled.check(&small, 8192).expect_err("16 KiB and the sums");
        assert!(why.contains("takes 17408 bytes"), "{why}");
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
