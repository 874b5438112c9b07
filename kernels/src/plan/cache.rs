//! The part of a plan that stores keys and values and reads them again.

use super::{Activation, Buffer, Builder, Dispatch, PlanError, Row, State, Work, act, state};
use crate::{kv::KvFormat, models::Tensor, role::Role, variants::WIDE_THREADS};

impl Builder<'_> {
    /// The fused projection: keys and values to their pages or, where they are to
    /// be quantised, to buffers of their own.
    pub(super) fn qkv_fused(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.qkv");
        let w = self.matrix(Some(layer), Tensor::Qkv);
        let kv = self.settings.kv_format();
        let (role, stored) = match kv {
            KvFormat::Plain => (Role::QkvFused, vec![Buffer::KvPages { layer }]),
            KvFormat::Int8 => (
                Role::QkvFusedScratch,
                vec![act(Activation::K), act(Activation::V)],
            ),
        };
        let variant = self.choose(role, Row::of(&w), &label)?;
        let mut buffers = vec![act(Activation::Q)];
        buffers.extend(stored);
        buffers.extend([act(Activation::Normed), w.scales, w.words]);
        buffers.push(state(State::PositionMap));
        if kv == KvFormat::Plain {
            buffers.push(state(State::PageValues));
        }
        buffers.push(state(State::InvFreq));
        let pairs = w.rows / 2;
        // Offsets, then the guard.
        let mut uniform = vec![0; role.uniform().len() - 1];
        uniform.push(pairs as u32);
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: w.bound(buffers),
            uniform,
            grid: self.fold(pairs.div_ceil(variant.outputs_per_workgroup())),
            work: w.work(self.tokens),
        });
        Ok(())
    }

    pub(super) fn kv_append(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.kv_append");
        let variant = self.base(Role::KvAppend, &label)?;
        let groups = (self.tokens * self.spec.kv_dim()).div_ceil(WIDE_THREADS);
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: vec![
                act(Activation::K),
                act(Activation::V),
                Buffer::KvPages { layer },
                state(State::PositionMap),
                state(State::PageValues),
            ],
            uniform: vec![
                self.tokens as u32,
                self.spec.max_pages as u32,
                0,
                0,
                groups as u32,
            ],
            grid: self.fold(groups),
            work: Work::NONE,
        });
        Ok(())
    }

    pub(super) fn kv_quantize_int8(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.kv_quantize");
        let variant = self.base(Role::KvQuantizeInt8, &label)?;
        let groups = 2 * self.spec.num_key_value_heads as u32;
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: vec![
                act(Activation::K),
                act(Activation::V),
                Buffer::KvCodes { layer },
                Buffer::KvScales { layer },
                state(State::PositionMap),
                state(State::PageValues),
            ],
            uniform: vec![0, 0, 0, groups],
            grid: [groups, self.tokens as u32, 1],
            work: Work::NONE,
        });
        Ok(())
    }

    pub(super) fn attention(&mut self, layer: usize, splits: usize) -> Result<(), PlanError> {
        let heads = self.spec.num_attention_heads as u32;
        let pages = self.spec.max_pages as u32;
        let scale = (self.spec.attention_scale() as f32).to_bits();
        let (role, out, last, parts) = match (self.settings.kv_format(), splits as u32) {
            (KvFormat::Int8, _) => (Role::AttentionInt8, Activation::Attention, heads, 1),
            (KvFormat::Plain, 0) => (Role::Attention, Activation::Attention, heads, 1),
            (KvFormat::Plain, parts) => (Role::AttentionSplitk, Activation::Partials, parts, parts),
        };
        let cached = match self.settings.kv_format() {
            KvFormat::Plain => vec![Buffer::KvPages { layer }],
            KvFormat::Int8 => vec![Buffer::KvCodes { layer }, Buffer::KvScales { layer }],
        };
        // One offset for each of pages, tables and, in int8, scales.
        let mut uniform = vec![1, pages, pages];
        uniform.resize(role.uniform().len() - 2, 0);
        uniform.extend([scale, last]);
        let mut buffers = vec![
            act(Activation::Q),
            state(State::PageIndptr),
            state(State::PageValues),
        ];
        buffers.extend(cached);
        buffers.extend([state(State::LengthInfo), act(out)]);
        let label = format!("layers.{layer}.attention");
        let variant = self.choose(role, Row::none(self.spec.head_dim), &label)?;
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers,
            uniform,
            grid: [parts, heads, 1],
            work: Work::NONE,
        });
        if splits == 0 {
            return Ok(());
        }
        let label = format!("layers.{layer}.combine");
        let variant = self.base(Role::AttentionCombine, &label)?;
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: vec![act(Activation::Partials), act(Activation::Attention)],
            uniform: vec![splits as u32],
            grid: [1, heads, 1],
            work: Work::NONE,
        });
        Ok(())
    }
}
