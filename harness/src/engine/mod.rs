//! The engine: a model's weights, KV cache and per-token state on the GPU, and
//! the recording of plans over them.
//!
//! Per-token state lives on the GPU: argmax writes the token where the embedding
//! reads it, and position, page count and length are copied from a table made at
//! start, so that tokens are recorded and submitted without a readback. One
//! compute pass per token, bind groups prebuilt, no allocation in the loop.

mod capture;
mod memory;
mod program;

pub use capture::{Captured, every};
pub use memory::{GUARD_BYTES, Memory};
pub(crate) use memory::{POISON, floats, padded, read_guarded, texture, with_guard};
pub use program::Program;
pub(crate) use program::{Pipeline, compile};

use crate::device::Gpu;
use anyhow::{Context as _, Result, bail};
use kernels::{
    Phase, Plan, Settings,
};
use program::Pipelines;
use reference::Checkpoint;
use results::record::Span;
use std::{collections::BTreeMap, time::Instant};

/// A model on the GPU.
#[derive(Debug)]
pub struct Engine<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// The weights, on the CPU.
    pub weights: &'a Checkpoint,
    /// The buffers.
    pub memory: Memory,
    pipelines: Pipelines,
}

/// One choice of flags, compiled: what decodes and what prefills.
#[derive(Debug)]
pub struct Arm {
    /// A decoded token.
    pub decode: Program,
    /// A prompt token.
    pub prefill: Program,
    /// The last prompt token, with head and argmax.
    pub prefill_last: Program,
}

/// Tokens of one submit: enough to hide the submit, few enough to stay
/// interruptible on a slow adapter.
const TOKENS_PER_SUBMIT: usize = 4;

impl<'a> Engine<'a> {
    /// Uploads the weights and makes the buffers for `context` positions, paged
    /// through `page_table` (page `i` of the sequence lies in page
    /// `page_table[i]` of the cache; `None` is the identity).
    ///
    /// # Errors
    /// When the context exceeds the model's, the table is no permutation, or the
    /// device refuses.
    pub fn new(
        gpu: &'a Gpu,
        weights: &'a Checkpoint,
        context: usize,
        page_table: Option<Vec<u32>>,
    ) -> Result<Self> {
        let memory = Memory::new(gpu, weights, context, page_table)?;
        Ok(Self {
            gpu,
            weights,
            memory,
            pipelines: Pipelines::default(),
        })
    }

    /// Compiles one choice of flags.
    ///
    /// # Errors
    /// When no plan can be made or a shader is refused.
    pub fn arm(&mut self, settings: &Settings) -> Result<Arm> {
        let mut program = |phase| -> Result<Program> {
            let plan = Plan::build(self.weights.spec(), settings, &self.gpu.features, phase)?;
            self.memory.prepare(self.gpu, self.weights, &plan)?;
            Program::new(
                self.gpu,
                &self.memory,
                &mut self.pipelines,
                self.weights.spec(),
                plan,
            )
        };
        Ok(Arm {
            decode: program(Phase::Decode)?,
            prefill: program(Phase::Prefill { head: false })?,
            prefill_last: program(Phase::Prefill { head: true })?,
        })
    }

    /// The decode chain of a choice of flags from pipelines of its own: the
    /// control, which shares no compiled code with [`Self::arm`].
    ///
    /// # Errors
    /// As [`Self::arm`].
    pub fn control(&mut self, settings: &Settings) -> Result<Program> {
        let spec = self.weights.spec();
        let plan = Plan::build(spec, settings, &self.gpu.features, Phase::Decode)?;
        self.memory.prepare(self.gpu, self.weights, &plan)?;
        let mut pipelines = Pipelines::default();
        Program::new(self.gpu, &self.memory, &mut pipelines, spec, plan)
    }

    /// SHA-256 of the text of every shader that `programs` dispatch, by variant id.
    pub fn shader_hashes(&self, programs: &[&Program]) -> BTreeMap<String, String> {
        programs
            .iter()
            .flat_map(|p| p.plan.variants())
            .filter_map(|v| Some((v.id(), self.pipelines.sha256(v)?.to_owned())))
            .collect()
    }

    /// Runs a prompt from position 0 and returns the wall time in nanoseconds.
    /// The token after it lies in the token buffer.
    ///
    /// # Errors
    /// An empty or too long prompt, or a device error.
    pub fn prefill(&self, arm: &Arm, prompt: &[u32]) -> Result<u64> {
        if prompt.is_empty() {
            bail!("the prompt has no tokens; expected at least one");
        }
        self.memory.require(prompt.len())?;
        self.memory.write_prompt(self.gpu, prompt);
        let start = Instant::now();
        for (chunk, positions) in chunks(0, prompt.len()).into_iter().enumerate() {
            let mut encoder = self.encoder();
            for position in positions {
                self.memory.feed_prompt(&mut encoder, position);
                let program = if position + 1 == prompt.len() {
                    &arm.prefill_last
                } else {
                    &arm.prefill
                };
                self.encode(&mut encoder, program, position);
            }
            self.gpu
                .run("prefill", encoder)
                .with_context(|| format!("prompt chunk {chunk}"))?;
        }
        Ok(nanos(start))
    }

    /// Decodes `tokens` greedily from `position`, the position of the token in
    /// the token buffer. Every generated token is logged; see [`Self::generated`].
    ///
    /// # Errors
    /// Past the end of the context, or a device error.
    pub fn decode(&self, program: &Program, position: usize, tokens: usize) -> Result<Decoded> {
        self.memory.require(position + tokens)?;
        let mut spans = Vec::new();
        let mut dispatches = 0;
        let start = Instant::now();
        for positions in chunks(position, tokens) {
            let span_start = Instant::now();
            let span_context = positions.start;
            let span_tokens = positions.len();
            let mut encoder = self.encoder();
            for at in positions {
                dispatches += self.encode(&mut encoder, program, at);
                self.memory.log_token(&mut encoder, at);
            }
            self.gpu.run("decode", encoder)?;
            spans.push(Span {
                context: span_context as u32,
                tokens: span_tokens as u32,
                wall_ns: nanos(span_start),
            });
        }
        Ok(Decoded {
            wall_ns: nanos(start),
            dispatches,
            spans,
        })
    }

    /// Token ids that decoding logged at positions `from .. from + count`.
    ///
    /// # Errors
    /// A device error, or an id outside the vocabulary.
    pub fn generated(&self, from: usize, count: usize) -> Result<Vec<u32>> {
        self.memory.generated(self.gpu, from, count)
    }

    /// The token that is fed next.
    ///
    /// # Errors
    /// A device error.
    pub fn token(&self) -> Result<u32> {
        let bytes = self.gpu.read(self.memory.token(), 0, 4)?;
        Ok(bytemuck::pod_read_unaligned(&bytes))
    }

    /// Replaces the token that is fed next.
    pub fn set_token(&self, token: u32) {
        let buffer = self.memory.token();
        self.gpu.queue.write_buffer(buffer, 0, &token.to_le_bytes());
    }

    /// The logits that a program's head gave.
    ///
    /// # Errors
    /// A program without a head, or a device error.
    pub fn logits(&self, program: &Program) -> Result<Vec<f64>> {
        let logits = program.plan.logits().context("the program has no head")?;
        self.read_activation("logits", logits, &program.plan)
    }

    /// Records one token and returns the number of dispatches recorded.
    fn encode(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        program: &Program,
        position: usize,
    ) -> u64 {
        self.memory.advance(encoder, position);
        program.record(encoder, None)
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.gpu
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }
}

/// What a timed decode did.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// Wall time in nanoseconds.
    pub wall_ns: u64,
    /// Dispatches recorded.
    pub dispatches: u64,
    /// Wall time by submit.
    pub spans: Vec<Span>,
}

fn nanos(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn chunks(from: usize, count: usize) -> Vec<std::ops::Range<usize>> {
    (from..from + count)
        .step_by(TOKENS_PER_SUBMIT)
        .map(|start| start..(start + TOKENS_PER_SUBMIT).min(from + count))
        .collect()
}
