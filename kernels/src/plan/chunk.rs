//! Chunks of a prompt, and what the dispatches of several tokens add to the plan.

use super::{
    Activation, Buffer, Builder, Dispatch, Phase, Plan, PlanError, Row, State, Work, act, state,
};
use crate::{
    features::Features,
    flag::Settings,
    kv::KvFormat,
    models::{ModelSpec, Tensor},
    quant::QuantFormat,
    role::Role,
    variants::{Batch, Reduce, VARIANTS, Variant},
};
use std::ops::Range;

/// Most tokens of a chunk.
pub const MAX_CHUNK: usize = 64;

/// The chunks of a prompt's positions, of at most `most` tokens each.
pub fn chunks(positions: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let end = positions.end;
    positions
        .step_by(most)
        .map(move |start| start..(start + most).min(end))
}

/// Positions of the rows of a chunk of `tokens` tokens from `start` on: the last
/// token has the first row, which the head reads; the others follow in order.
pub fn chunk_positions(start: usize, tokens: usize) -> impl Iterator<Item = usize> {
    let last = start + tokens - 1;
    std::iter::once(last).chain(start..last)
}

impl Settings {
    /// Most tokens of a chunk of a prompt; 1 where it goes token by token.
    pub fn most_of_chunk(&self) -> usize {
        (self.get("chunk").count() as usize).max(1)
    }
}

impl Plan {
    /// Refuses settings with which a decoded token or a prompt of the model has no plan.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn require(
        spec: &ModelSpec,
        settings: &Settings,
        features: &Features,
    ) -> Result<(), PlanError> {
        let tokens = settings.most_of_chunk();
        for phase in [Phase::Decode, Phase::Prefill { tokens, head: true }] {
            Self::build(spec, settings, features, phase)?;
        }
        Ok(())
    }
}

impl Builder<'_> {
    /// The grid of a matrix variant for `outputs` outputs, whose tiles of tokens
    /// are its y.
    pub(super) fn matrix_grid(&self, variant: Variant, outputs: usize) -> [u32; 3] {
        let [x, _, z] = self.fold(outputs.div_ceil(variant.outputs_per_workgroup()));
        let tiles = match variant.is_batched() {
            true => self.tokens.div_ceil(variant.tokens_per_workgroup()),
            false => 1,
        };
        [x, tiles as u32, z]
    }

    /// Adds the number of tokens to the uniform of a variant that reads it there.
    pub(super) fn push_tokens(&self, variant: Variant, uniform: &mut Vec<u32>) {
        if variant.batch == Batch::Dynamic {
            uniform.push(self.tokens as u32);
        }
    }

    /// Whether matrices multiply a chunk as GEMMs: asked for, and written for the format
    /// of the feed-forward layers' weights.
    pub(super) fn gemm(&self) -> bool {
        self.in_chunks && self.settings.get("gemm").is_on() && self.gemm_format().is_ok()
    }

    /// Refuses `gemm` for weights that no GEMM is written for.
    pub(super) fn refuse_gemm_of_other_formats(&mut self) {
        if self.in_chunks
            && self.settings.get("gemm").is_on()
            && let Err(format) = self.gemm_format()
        {
            let reason = format!("no GEMM is written for {} weights", format.name());
            self.refusals.entry("gemm").or_default().push(reason);
        }
    }

    /// The format of the feed-forward layers' weights, an error where no GEMM is written
    /// for it.
    fn gemm_format(&self) -> Result<QuantFormat, QuantFormat> {
        let format = self.spec.format_of(Some(0), Tensor::GateUp);
        let written = |v: &Variant| {
            v.reduce == Reduce::Gemm && v.format == Some(format) && self.settings.take(v)
        };
        if VARIANTS.iter().any(written) {
            Ok(format)
        } else {
            Err(format)
        }
    }

    /// The feed-forward layer in two dispatches: a GEMM, and its activation.
    pub(super) fn gemm_ffn(&mut self, layer: usize) -> Result<(), PlanError> {
        let (input, output) = (Activation::Normed, Activation::GateUp);
        self.matmul(Some(layer), Tensor::GateUp, input, output)?;
        let activated = [Activation::Ffn, Activation::GateUp];
        self.silu_mul(layer, activated, self.tokens)
    }

    pub(super) fn attention_prefill(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.attention");
        let (role, cached) = match self.settings.kv_format() {
            KvFormat::Plain => (Role::AttentionPrefill, vec![Buffer::KvPages { layer }]),
            KvFormat::Int8 => (
                Role::AttentionPrefillInt8,
                vec![Buffer::KvCodes { layer }, Buffer::KvScales { layer }],
            ),
        };
        let variant = self.choose(role, Row::none(self.spec.head_dim), &label)?;
        let scale = (self.spec.attention_scale() as f32).to_bits();
        let mut buffers = vec![act(Activation::Q), state(State::PageValues)];
        buffers.extend(cached);
        buffers.extend([act(Activation::Attention), state(State::PositionMap)]);
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers,
            uniform: vec![self.tokens as u32, scale],
            grid: [self.tokens as u32, self.spec.num_attention_heads as u32, 1],
            work: Work::NONE,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_prompt_and_the_last_token_comes_first() {
        let all: Vec<_> = chunks(3..140, 64).collect();
        assert_eq!(all, [3..67, 67..131, 131..140], "each position once");
        let rows: Vec<_> = chunk_positions(5, 4).collect();
        assert_eq!(rows, [8, 5, 6, 7], "rows");
        assert_eq!(chunk_positions(5, 1).collect::<Vec<_>>(), [5], "one row");
    }
}
