//! The dispatch plan: the ordered dispatches of one token, as data.
//!
//! The engine records exactly this. Totals are computed from it and never
//! written by hand; the published ones are tests.

mod cache;
mod chunk;
mod delta_net;
mod dispatch;
mod error;
mod experts;
mod fused;
mod sampling;
mod weights;
mod work;

use crate::{
    Elem,
    features::Features,
    flag::{FLAGS, Flag, Metric, Settings},
    kv::{self, KvFormat},
    models::{Mixer, ModelSpec, Tensor},
    quant::QuantFormat,
    role::Role,
    variants::{ATTENTION_THREADS, Batch, VARIANTS, Variant, WIDE_THREADS},
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use weights::Matrix;

pub use chunk::{MAX_CHUNK, chunk_positions, chunks};
pub use dispatch::{Activation, Buffer, Dispatch, Part, Rows, State, activation_len};
pub use error::PlanError;
pub use work::Work;

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// One decoded token, embedding to argmax.
    Decode,
    /// Prompt tokens through the unfused chain, in which projection, norm of
    /// heads, rotation and append are dispatches of their own; the prompt's last token
    /// also runs the head and argmax, which yields the first decoded token.
    Prefill {
        /// Tokens of every dispatch but the head's: 1 to [`MAX_CHUNK`], and 1 where the
        /// flag `chunk` is off.
        tokens: usize,
        /// Whether the head and argmax run, for the token of the first row.
        head: bool,
    },
}

impl Phase {
    /// Tokens that it takes, one row of every activation each.
    pub const fn tokens(self) -> usize {
        match self {
            Self::Decode => 1,
            Self::Prefill { tokens, .. } => tokens,
        }
    }
}

/// The dispatches of one token.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What it is for.
    pub phase: Phase,
    /// In order.
    pub dispatches: Vec<Dispatch>,
    /// Parts of split-K attention; 0 without.
    pub splits: usize,
    /// Type of activations, KV cache and gammas.
    pub elem: Elem,
}

/// Totals of a plan, for people and for `--json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanTotals {
    /// Number of dispatches.
    pub dispatches_per_token: u32,
    /// The same by role name.
    pub by_role: BTreeMap<&'static str, u32>,
    /// Bytes of matmul weights and scales read, the KV cache apart.
    pub bytes_per_token: u64,
    /// Operations with these weights, two for each weight and token.
    pub flops_per_token: u64,
}

impl Plan {
    /// The logits that its head gives, if it runs one.
    pub fn logits(&self) -> Option<Activation> {
        let head = self
            .dispatches
            .iter()
            .find(|d| matches!(d.variant.role, Role::Argmax | Role::SampleReduce))?;
        match head.buffers[..] {
            [Buffer::Activation(logits), ..] => Some(logits),
            _ => None,
        }
    }

    /// Builds the plan of one token.
    ///
    /// # Errors
    /// When an explicit choice selects nothing, or the adapter lacks what every variant
    /// of a role needs.
    pub fn build(
        spec: &ModelSpec,
        settings: &Settings,
        features: &Features,
        phase: Phase,
    ) -> Result<Self, PlanError> {
        let (tokens, most) = (phase.tokens(), settings.most_of_chunk());
        if tokens == 0 || tokens > most {
            return Err(PlanError::Chunk { tokens, most });
        }
        let mut builder = Builder {
            spec,
            settings,
            features,
            tokens,
            in_chunks: phase != Phase::Decode && settings.get("chunk").is_on(),
            dispatches: Vec::new(),
            refusals: BTreeMap::new(),
            used: BTreeSet::new(),
        };
        let splits = match phase {
            Phase::Decode => settings.get("splitk").count() as usize,
            Phase::Prefill { .. } => 0,
        };
        builder.forward(phase, splits)?;
        builder.refuse_unused_choices(match phase {
            Phase::Decode => Metric::Decode,
            Phase::Prefill { .. } => Metric::Prefill,
        })?;
        Ok(Self {
            phase,
            dispatches: builder.dispatches,
            splits,
            elem: settings.elem(),
        })
    }

    /// The plan with more work and the same results: the dispatches of the first layers
    /// are made twice, until weight bytes and dispatches both grew by `share` or every
    /// layer is done. Only dispatches that overwrite their outputs are repeated.
    #[must_use]
    pub fn slowed(&self, share: f64) -> Self {
        let totals = self.totals();
        let bytes = share * totals.bytes_per_token as f64;
        let dispatches = share * f64::from(totals.dispatches_per_token);
        let (mut more_bytes, mut more) = (0, 0_u32);
        let mut slowed = Self {
            dispatches: Vec::with_capacity(2 * self.dispatches.len()),
            ..self.clone()
        };
        for dispatch in &self.dispatches {
            slowed.dispatches.push(dispatch.clone());
            let enough = more_bytes as f64 >= bytes && f64::from(more) >= dispatches;
            let in_place = dispatch.variant.bindings().any(|binding| binding.in_place);
            let of_layer = dispatch.label.starts_with("layers.");
            if of_layer && !in_place && !enough {
                slowed.dispatches.push(dispatch.clone());
                more_bytes += dispatch.work.bytes;
                more += 1;
            }
        }
        slowed
    }

    /// Number of dispatches.
    pub const fn dispatches_per_token(&self) -> u32 {
        self.dispatches.len() as u32
    }

    /// Totals by role, and bytes.
    pub fn totals(&self) -> PlanTotals {
        let mut by_role = BTreeMap::new();
        for dispatch in &self.dispatches {
            *by_role.entry(dispatch.variant.role.name()).or_insert(0) += 1;
        }
        let work: Work = self.dispatches.iter().map(|d| d.work).sum();
        PlanTotals {
            dispatches_per_token: self.dispatches_per_token(),
            by_role,
            bytes_per_token: work.bytes,
            flops_per_token: work.flops,
        }
    }

    /// The variants it dispatches.
    pub fn variants(&self) -> BTreeSet<Variant> {
        self.dispatches.iter().map(|d| d.variant).collect()
    }
}

/// The roles whose forms a flag selects, with the formats of their weights.
fn selection(flag: &Flag) -> String {
    let mut formats: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for variant in VARIANTS.iter() {
        if (flag.selects)(variant).is_some() {
            let of_role = formats.entry(variant.role.name()).or_default();
            of_role.extend(variant.format.map(QuantFormat::name));
        }
    }
    let named = formats.into_iter().map(|(role, formats)| {
        let formats: Vec<&str> = formats.into_iter().collect();
        match formats[..] {
            [] => role.to_owned(),
            _ => format!("{role} in {}", formats.join(", ")),
        }
    });
    named.collect::<Vec<String>>().join("; ")
}

/// Folds `groups` workgroups into x and z where x alone would pass the limit.
pub const fn fold(groups: usize, max_per_dimension: u32) -> [u32; 3] {
    let z = groups.div_ceil(max_per_dimension as usize);
    let z = if z == 0 { 1 } else { z };
    [groups.div_ceil(z) as u32, 1, z as u32]
}

struct Builder<'a> {
    spec: &'a ModelSpec,
    settings: &'a Settings,
    features: &'a Features,
    /// Tokens of every dispatch but the head's.
    tokens: usize,
    /// Whether these are a chunk of a prompt, in kernels for several tokens.
    in_chunks: bool,
    dispatches: Vec<Dispatch>,
    /// Flag to the constraints it met, in order of sites.
    refusals: BTreeMap<&'static str, Vec<String>>,
    used: BTreeSet<&'static str>,
}

/// What a role reads row by row, as far as the choice of its form depends on it.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// Format of the matrix; `None` where there is none.
    format: Option<QuantFormat>,
    /// Elements of a row; 0 where the role has none.
    k: usize,
    /// Rows of the matrix.
    rows: usize,
}

impl Row {
    const fn of(w: &Matrix) -> Self {
        Self {
            format: Some(w.format),
            k: w.k,
            rows: w.rows,
        }
    }

    /// Of no matrix.
    const fn none(k: usize) -> Self {
        Self {
            format: None,
            k,
            rows: 0,
        }
    }
}

const fn act(activation: Activation) -> Buffer {
    Buffer::Activation(activation)
}

const fn state(state: State) -> Buffer {
    Buffer::State(state)
}

impl Builder<'_> {
    fn forward(&mut self, phase: Phase, splits: usize) -> Result<(), PlanError> {
        let mut residual = 0;
        self.refuse_gemm_of_other_formats();
        self.embedding()?;
        if phase == Phase::Decode && self.fuses_norms() {
            return self.forward_in_five(splits);
        }
        self.rms_norm("layers.0.input_norm", (Some(0), Tensor::InputNorm), 0)?;
        for layer in 0..self.spec.num_hidden_layers {
            match self.spec.mixer(layer) {
                Mixer::Attention => self.attend(layer, phase, splits)?,
                Mixer::DeltaNet => self.delta_net(layer)?,
            }
            let next = match layer + 1 {
                next if next == self.spec.num_hidden_layers => (None, Tensor::FinalNorm),
                next => (Some(next), Tensor::InputNorm),
            };
            let fuseprologue = phase == Phase::Decode && self.settings.get("fuseprologue").is_on();
            if self.spec.experts.is_some() {
                if fuseprologue {
                    self.refuse("fuseprologue", "experts have no fused feed-forward layer");
                }
                let post = (Some(layer), Tensor::PostNorm);
                self.norm(Role::AddNorm, layer, post, &mut residual)?;
                self.experts(layer)?;
                self.norm(Role::AddNorm, layer, next, &mut residual)?;
            } else if fuseprologue {
                self.fused_ffn(layer, Some(residual))?;
                self.down(layer, Activation::FfnDelta)?;
                self.norm(Role::Add3Norm, layer, next, &mut residual)?;
            } else {
                let post = (Some(layer), Tensor::PostNorm);
                self.norm(Role::AddNorm, layer, post, &mut residual)?;
                if self.gemm() {
                    self.gemm_ffn(layer)?;
                } else {
                    self.fused_ffn(layer, None)?;
                }
                self.down(layer, Activation::Delta)?;
                self.norm(Role::AddNorm, layer, next, &mut residual)?;
            }
        }
        if !matches!(phase, Phase::Prefill { head: false, .. }) {
            // One row, in the kernels of one token.
            (self.tokens, self.in_chunks) = (1, false);
            self.lm_head()?;
            self.next_token()?;
        }
        Ok(())
    }

    fn refuse(&mut self, flag: &'static str, reason: &str) {
        self.refusals.entry(flag).or_default().push(reason.into());
    }

    /// From the norm to the output projection of attention.
    fn attend(&mut self, layer: usize, phase: Phase, splits: usize) -> Result<(), PlanError> {
        self.qkv(layer, phase)?;
        if self.in_chunks {
            self.attention_prefill(layer)?;
        } else {
            self.attention(layer, splits)?;
        }
        if self.spec.attn_output_gate {
            self.attn_gate(layer)?;
        }
        let (input, output) = (Activation::Attention, Activation::Delta);
        self.matmul(Some(layer), Tensor::O, input, output)
    }

    /// From the norm to rotated queries, and keys and values in their pages.
    /// A norm of heads between projection and rotation takes the place of
    /// `qkv_fused`.
    fn qkv(&mut self, layer: usize, phase: Phase) -> Result<(), PlanError> {
        let qk_norm = self.spec.qk_norm();
        let gated = self.spec.attn_output_gate;
        let mut fuseqk = self.settings.get("fuseqk").is_on();
        if fuseqk && !qk_norm {
            self.refuse("fuseqk", "the model has no QK-norm");
        }
        if fuseqk && gated {
            self.refuse("fuseqk", "gates stand between the heads of queries");
            fuseqk = false;
        }
        let kv = self.settings.kv_format();
        if phase == Phase::Decode && !qk_norm && !gated {
            self.qkv_fused(layer)?;
            return match kv {
                KvFormat::Plain => Ok(()),
                KvFormat::Int8 => self.kv_quantize_int8(layer),
            };
        }
        let projected = if gated {
            Activation::CAttn
        } else {
            Activation::Qkv
        };
        self.matmul(Some(layer), Tensor::Qkv, Activation::Normed, projected)?;
        if gated {
            self.gated_qkv_split(layer)?;
        }
        if phase == Phase::Decode && fuseqk {
            return self.qk_norm_rope_append(layer);
        }
        if qk_norm {
            self.qk_norm(layer)?;
        }
        self.rope(layer)?;
        match kv {
            KvFormat::Plain => self.kv_append(layer),
            KvFormat::Int8 => self.kv_quantize_int8(layer),
        }
    }

    /// Refuses explicit choices of flags judged on `metric` that selected nothing.
    fn refuse_unused_choices(&self, metric: Metric) -> Result<(), PlanError> {
        for flag in FLAGS {
            let judged_here = flag.metric == metric && self.settings.demands(flag.name);
            if !judged_here || self.used.contains(flag.name) {
                continue;
            }
            let mut unique: Vec<String> = Vec::new();
            for reason in self.refusals.get(flag.name).into_iter().flatten() {
                if !unique.contains(reason) {
                    unique.push(reason.clone());
                }
            }
            if unique.is_empty() {
                let of = match metric {
                    Metric::Decode => "a decoded token",
                    Metric::Prefill | Metric::SecondTurn => "a prompt",
                };
                unique.push(format!(
                    "{of} dispatches no form that it selects, in {} weights and {} activations; it \
                     selects {}",
                    self.spec.format.name(),
                    self.settings.elem().name(),
                    selection(flag)
                ));
            }
            return Err(PlanError::Impossible {
                flag: flag.name,
                model: self.spec.id.clone(),
                reasons: unique.join("; "),
            });
        }
        Ok(())
    }

    /// Vectors of a dispatch of a role in this plan, the first choice first.
    fn batches(&self, role: Role) -> &'static [Batch] {
        match (role, self.in_chunks, self.tokens) {
            (Role::Int4Matmul | Role::FusedFfn, true, 4) if !self.gemm() => {
                &[Batch::Four, Batch::Dynamic]
            }
            (Role::Int4Matmul | Role::FusedFfn, true, _) => &[Batch::Dynamic],
            (Role::GdnRecur, true, _) => &[Batch::Dynamic, Batch::One],
            _ => &[Batch::One],
        }
    }

    /// The form of a role that reads no weights.
    fn base(&mut self, role: Role, label: &str) -> Result<Variant, PlanError> {
        self.choose(role, Row::none(0), label)
    }

    /// The last variant of a role in the table that every flag takes and that the
    /// format of its weights and K (for attention, the head dimension; 0 where the
    /// role has none) allow.
    fn choose(&mut self, role: Role, row: Row, label: &str) -> Result<Variant, PlanError> {
        self.choose_for(role, row, Elem::F16, label)
    }

    /// [`Self::choose`] where the role's product, or its logits, are of this type or
    /// that of the activations, whichever is wider.
    fn choose_for(
        &mut self,
        role: Role,
        Row { format, k, rows }: Row,
        out: Elem,
        label: &str,
    ) -> Result<Variant, PlanError> {
        let site = label.rsplit('.').next().unwrap_or(label);
        let variants = self.batches(role).iter().flat_map(|&batch| {
            let written = move |v: &&Variant| {
                (v.role, v.batch, v.format, v.out) == (role, batch, format, out)
            };
            VARIANTS.iter().rev().filter(written)
        });
        let taken = |v: &&Variant| self.settings.take(v) && self.settings.takes_dp4a(v, rows);
        let mut reasons = Vec::new();
        let mut candidates = variants.filter(taken);
        while let Some(&variant) = candidates.next() {
            let asked = |flag: &&Flag| (flag.selects)(&variant).is_some();
            let asked = FLAGS.iter().filter(asked).map(|flag| flag.name);
            let held = variant.held_row(self.spec);
            match variant
                .check(self.features, k)
                .and_then(|()| variant.check_memory(self.features, held))
            {
                Ok(()) => {
                    self.used.extend(asked);
                    let others: Vec<&Variant> = candidates.collect();
                    for (flag, reason) in self.settings.shadowed(&others, &variant) {
                        let refusals = self.refusals.entry(flag).or_default();
                        refusals.push(format!("{site}: {reason}"));
                    }
                    return Ok(variant);
                }
                Err(reason) => {
                    for flag in asked {
                        let refusals = self.refusals.entry(flag).or_default();
                        refusals.push(format!("{site}: {reason}"));
                    }
                    reasons.push(format!("{variant}: {reason}"));
                }
            }
        }
        if reasons.is_empty() {
            let format = format.map_or("no", QuantFormat::name);
            let elem = self.settings.elem().name();
            reasons.push(format!(
                "it is not written for {format} weights and {elem} activations"
            ));
        }
        Err(PlanError::NoVariant {
            site: label.to_owned(),
            role,
            reasons: reasons.join("; "),
        })
    }

    fn fold(&self, groups: usize) -> [u32; 3] {
        fold(groups, self.features.max_workgroups_per_dimension)
    }

    fn matrix(&self, layer: Option<usize>, tensor: Tensor) -> Matrix {
        Matrix::of(self.spec, layer, tensor)
    }

    fn vector(layer: Option<usize>, tensor: Tensor) -> Buffer {
        Buffer::Param {
            layer,
            tensor,
            part: Part::Vector,
            rows: None,
        }
    }

    fn embedding(&mut self) -> Result<(), PlanError> {
        let label = "embed";
        let w = self.matrix(None, Tensor::Embedding);
        let variant = self.choose(
            Role::Embedding,
            Row {
                k: 0,
                ..Row::of(&w)
            },
            label,
        )?;
        let groups = (self.tokens * self.spec.hidden_size).div_ceil(WIDE_THREADS);
        let most = self.features.max_storage_binding_bytes;
        for w in w.bindable(variant, most) {
            self.dispatches.push(Dispatch {
                label: w.label(label),
                variant,
                buffers: w.bound(vec![
                    act(Activation::Residual(0)),
                    state(State::Token),
                    w.scales,
                    w.words,
                ]),
                uniform: vec![
                    self.tokens as u32,
                    groups as u32,
                    w.first as u32,
                    w.rows as u32,
                ],
                grid: self.fold(groups),
                work: Work::NONE,
            });
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        label: &str,
        (layer, gamma): (Option<usize>, Tensor),
        residual: u8,
    ) -> Result<(), PlanError> {
        let variant = self.base(Role::RmsNorm, label)?;
        self.dispatches.push(Dispatch {
            label: label.into(),
            variant,
            buffers: vec![
                act(Activation::Normed),
                act(Activation::Residual(residual)),
                Self::vector(layer, gamma),
            ],
            uniform: vec![self.tokens as u32],
            grid: self.fold(self.tokens),
            work: Work::NONE,
        });
        Ok(())
    }

    fn qk_norm(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.qk_norm");
        let variant = self.base(Role::QkNorm, &label)?;
        let groups = self.tokens * (self.spec.num_attention_heads + self.spec.num_key_value_heads);
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: vec![
                act(Activation::Qkv),
                Self::vector(Some(layer), Tensor::QNorm),
                Self::vector(Some(layer), Tensor::KNorm),
            ],
            uniform: vec![self.tokens as u32, groups as u32],
            grid: self.fold(groups),
            work: Work::NONE,
        });
        Ok(())
    }

    fn qk_norm_rope_append(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.qk_norm_rope_append");
        let variant = self.base(Role::QkNormRopeAppend, &label)?;
        let groups = self.spec.num_attention_heads + 2 * self.spec.num_key_value_heads;
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: vec![
                act(Activation::Q),
                Buffer::KvPages { layer },
                act(Activation::Qkv),
                Self::vector(Some(layer), Tensor::QNorm),
                Self::vector(Some(layer), Tensor::KNorm),
                state(State::PositionMap),
                state(State::PageValues),
                state(State::InvFreq),
            ],
            uniform: vec![1, groups as u32],
            grid: self.fold(groups),
            work: Work::NONE,
        });
        Ok(())
    }

    fn rope(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.rope");
        let variant = self.base(Role::Rope, &label)?;
        let groups = (self.tokens * self.spec.qkv_dim()).div_ceil(WIDE_THREADS);
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: vec![
                act(Activation::Q),
                act(Activation::K),
                act(Activation::V),
                act(Activation::Qkv),
                state(State::PositionMap),
                state(State::InvFreq),
            ],
            uniform: vec![1, 0, self.tokens as u32, groups as u32],
            grid: self.fold(groups),
            work: Work::NONE,
        });
        Ok(())
    }

    fn matmul(
        &mut self,
        layer: Option<usize>,
        tensor: Tensor,
        input: Activation,
        output: Activation,
    ) -> Result<(), PlanError> {
        let site = match tensor {
            Tensor::Qkv => "qkv",
            Tensor::O => "o",
            Tensor::GdnProj => "in_proj",
            Tensor::GdnOut => "out_proj",
            Tensor::Down => "down",
            Tensor::GateUp => "gate_up",
            Tensor::Embedding | Tensor::LmHead => "lm_head",
            Tensor::InputNorm
            | Tensor::QNorm
            | Tensor::KNorm
            | Tensor::PostNorm
            | Tensor::FinalNorm
            | Tensor::GdnConv
            | Tensor::GdnALog
            | Tensor::GdnDtBias
            | Tensor::GdnNorm
            | Tensor::Router
            | Tensor::ExpertGate
            | Tensor::ExpertUp
            | Tensor::ExpertDown => panic!("{tensor:?} is not multiplied on its own"),
        };
        let label = match layer {
            Some(layer) => format!("layers.{layer}.{site}"),
            None => site.to_owned(),
        };
        let w = self.matrix(layer, tensor);
        let out = output.elem(Elem::F16);
        let variant = self.choose_for(Role::Int4Matmul, Row::of(&w), out, &label)?;
        for w in w.bindable(variant, self.features.max_storage_binding_bytes) {
            let mut uniform = vec![
                w.format.words_per_row(w.k) as u32,
                w.format.scales_per_row(w.k) as u32,
                w.rows as u32,
            ];
            self.push_tokens(variant, &mut uniform);
            self.dispatches.push(Dispatch {
                label: w.label(&label),
                variant,
                buffers: w.bound(vec![act(output), act(input), w.scales, w.words]),
                uniform,
                grid: self.matrix_grid(variant, w.rows),
                work: w.work(self.tokens),
            });
        }
        Ok(())
    }

    fn down(&mut self, layer: usize, output: Activation) -> Result<(), PlanError> {
        self.matmul(Some(layer), Tensor::Down, Activation::Ffn, output)
    }

    /// Of the norm before it, or with a `residual` of the sum that this norm is of.
    fn fused_ffn(&mut self, layer: usize, residual: Option<u8>) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.ffn");
        let w = self.matrix(Some(layer), Tensor::GateUp);
        let (role, x) = match residual {
            None => (Role::FusedFfn, vec![act(Activation::Normed)]),
            Some(residual) => {
                let gamma = Self::vector(Some(layer), Tensor::PostNorm);
                let sum = [Activation::Residual(residual), Activation::Delta].map(act);
                (Role::FusedFfnPrologue, vec![sum[0], sum[1], gamma])
            }
        };
        let variant = self.choose(role, Row::of(&w), &label)?;
        let units = w.rows / 2;
        let mut uniform = vec![units as u32];
        self.push_tokens(variant, &mut uniform);
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: w.bound([vec![act(Activation::Ffn)], x, vec![w.scales, w.words]].concat()),
            uniform,
            grid: self.matrix_grid(variant, units),
            work: w.work(self.tokens),
        });
        Ok(())
    }

    /// The norm of the residual and what is added to it before.
    fn norm(
        &mut self,
        role: Role,
        layer: usize,
        (gamma_layer, gamma): (Option<usize>, Tensor),
        residual: &mut u8,
    ) -> Result<(), PlanError> {
        let site = if gamma == Tensor::PostNorm {
            "post_norm"
        } else {
            "next_norm"
        };
        let label = format!("layers.{layer}.{site}");
        let variant = self.base(role, &label)?;
        let next = 1 - *residual;
        let mut buffers = vec![act(Activation::Delta), act(Activation::Residual(*residual))];
        if role == Role::Add3Norm {
            buffers.push(act(Activation::FfnDelta));
        }
        buffers.extend([
            Self::vector(gamma_layer, gamma),
            act(Activation::Normed),
            act(Activation::Residual(next)),
        ]);
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers,
            uniform: vec![self.tokens as u32],
            grid: self.fold(self.tokens),
            work: Work::NONE,
        });
        *residual = next;
        Ok(())
    }

    fn lm_head(&mut self) -> Result<(), PlanError> {
        let head = self.spec.head_tensor();
        self.matmul(None, head, Activation::Normed, self.logits())
    }

    fn logits(&self) -> Activation {
        if self.settings.get("logits").is_on() && self.settings.elem() == Elem::F16 {
            Activation::WideLogits
        } else {
            Activation::Logits
        }
    }
}

const _: () = assert!(
    ATTENTION_THREADS == 2 * kv::PAGE_SIZE,
    "an attention block is two pages, one score per invocation"
);

#[cfg(test)]
mod tests;
