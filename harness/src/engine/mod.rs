//! The engine: a model's weights, KV cache and per-token state on the GPU, and
//! the recording of plans over them.
//!
//! Per-token state lives on the GPU: argmax writes the token where the embedding
//! reads it, and position, page count and length are copied from a table made at
//! start, so that tokens are recorded and submitted without a readback. One
//! compute pass per token, bind groups prebuilt, no allocation in the loop.

mod buffers;
mod capture;
mod kept;
mod memory;
mod prefill;
mod program;
mod rotation;
mod states;
mod texts;

pub use buffers::GUARD_BYTES;
pub(crate) use buffers::{
    POISON, bytes_of, floats, padded, part_of, read_guarded, texture, with_guard,
};
pub use capture::{Captured, every};
pub use memory::Memory;
pub use prefill::{Prefill, Prefilled};
pub use program::Program;
pub(crate) use program::{Loops, Pipeline, compile};
pub use rotation::{Rotation, Turn};
pub use texts::{Own, Texts};

use crate::device::Gpu;
use anyhow::{Context as _, Result, bail};
use kept::Cache;
use kernels::{
    Features, ModelSpec, Phase, Plan, Settings,
    plan::{chunk_positions, chunks},
};
use program::{Compiled, Pipelines};
use reference::Checkpoint;
use results::record::Span;
use std::{cell::RefCell, collections::BTreeMap, ops::Range, rc::Rc, time::Instant};

/// A model on the GPU.
#[derive(Debug)]
pub struct Engine<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// The weights, on the CPU.
    pub weights: &'a Checkpoint,
    /// The buffers.
    pub memory: Memory,
    pipelines: Rc<RefCell<Pipelines>>,
    compiled: Compiled,
}

/// One choice of flags, compiled: what decodes and what prefills.
#[derive(Debug)]
pub struct Arm {
    /// A decoded token.
    pub decode: Program,
    /// A prompt.
    pub prefill: Prefill,
}

/// What an arm is made of.
#[derive(Clone, Debug)]
pub struct Making<'m> {
    /// Every flag.
    pub settings: &'m Settings,
    /// Share of work that is done twice ([`Plan::slowed`]); 0 for none.
    pub slowed: f64,
    /// Where the kernels' texts come from.
    pub texts: Texts,
}

impl<'m> Making<'m> {
    /// From the texts of this build, nothing done twice.
    pub const fn of(settings: &'m Settings) -> Self {
        Self {
            settings,
            slowed: 0.0,
            texts: Texts::Build,
        }
    }

    /// The plan of a phase.
    ///
    /// # Errors
    /// As [`Plan::build`].
    pub fn plan(&self, spec: &ModelSpec, features: &Features, phase: Phase) -> Result<Plan> {
        let plan = Plan::build(spec, self.settings, features, phase)?;
        let mut plan = plan.slowed(self.slowed);
        self.texts.adapt(&mut plan, features);
        Ok(plan)
    }
}

/// Decoded tokens of one submit: enough to hide the submit, few enough to stay
/// interruptible on a slow adapter.
pub const TOKENS_PER_SUBMIT: usize = 4;

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
        let compiled = Compiled::default();
        Ok(Self {
            gpu,
            weights,
            memory,
            pipelines: Rc::new(RefCell::new(Pipelines::of(Texts::Build, compiled.clone()))),
            compiled,
        })
    }

    /// Compiles one choice of flags.
    ///
    /// # Errors
    /// When no plan can be made or a shader is refused.
    pub fn arm(&mut self, settings: &Settings) -> Result<Arm> {
        self.compiled(&Making::of(settings), self.pipelines.clone())
    }

    /// As [`Self::arm`], with more work or from other texts.
    ///
    /// # Errors
    /// As [`Self::arm`].
    pub fn made(&mut self, making: &Making<'_>) -> Result<Arm> {
        let pipelines = if making.texts.are_of_build() {
            self.pipelines.clone()
        } else {
            Rc::new(RefCell::new(Pipelines::of(
                making.texts.clone(),
                self.compiled.clone(),
            )))
        };
        self.compiled(making, pipelines)
    }

    /// A choice of flags from pipelines of its own: the control, which shares no
    /// compiled code with [`Self::arm`].
    ///
    /// # Errors
    /// As [`Self::arm`].
    pub fn control(&mut self, making: &Making<'_>) -> Result<Arm> {
        let pipelines = Pipelines::of(making.texts.clone(), Compiled::default());
        self.compiled(making, Rc::new(RefCell::new(pipelines)))
    }

    fn compiled(&mut self, making: &Making<'_>, pipelines: Rc<RefCell<Pipelines>>) -> Result<Arm> {
        let spec = self.weights.spec();
        let plan = |phase| making.plan(spec, &self.gpu.features, phase);
        let decode = plan(Phase::Decode)?;
        // What differs between sizes of chunk: one token, a tile of four, and more.
        let most = making.settings.most_of_chunk();
        let prompts = [1, 4, most].into_iter().filter(|&tokens| tokens <= most);
        let prompts = prompts.map(|tokens| plan(Phase::Prefill { tokens, head: true }));
        for plan in std::iter::once(Ok(decode.clone())).chain(prompts) {
            self.memory.prepare(self.gpu, self.weights, &plan?)?;
        }
        let mut made = pipelines.borrow_mut();
        let decode = Program::new(self.gpu, &self.memory, &mut made, spec, decode)?;
        drop(made);
        let prefill = Prefill::new(making, pipelines);
        self.prefill_program(&prefill, 1, true)?;
        Ok(Arm { decode, prefill })
    }

    /// SHA-256 of the text of every shader that `programs` of an arm dispatch, by variant
    /// id.
    pub fn shader_hashes(&self, arm: &Arm, programs: &[&Program]) -> BTreeMap<String, String> {
        let pipelines = arm.prefill.pipelines().borrow();
        programs
            .iter()
            .flat_map(|p| p.plan.variants())
            .filter_map(|v| Some((v.id(), pipelines.sha256(v)?.to_owned())))
            .collect()
    }

    /// Decodes `tokens` greedily from `position`, the position of the token in
    /// the token buffer. Every generated token is logged; see [`Self::generated`].
    ///
    /// # Errors
    /// Past the end of the context, or a device error.
    pub fn decode(&self, program: &Program, position: usize, tokens: usize) -> Result<Decoded> {
        self.memory.require(position + tokens)?;
        if tokens == 0 {
            bail!("no tokens to decode; expected at least one");
        }
        let mut spans = Vec::new();
        let mut dispatches = 0;
        let start = Instant::now();
        let mut ended = start;
        let mut in_flight: Option<(Range<usize>, wgpu::SubmissionIndex)> = None;
        let mut end = |(positions, submission): (Range<usize>, _)| {
            self.gpu.wait("decode", submission)?;
            let now = Instant::now();
            spans.push(Span {
                context: positions.start as u32,
                tokens: positions.len() as u32,
                wall_ns: u64::try_from((now - ended).as_nanos()).unwrap_or(u64::MAX),
            });
            ended = now;
            anyhow::Ok(())
        };
        for positions in chunks(position..position + tokens, TOKENS_PER_SUBMIT) {
            let mut encoder = self.encoder();
            for at in positions.clone() {
                dispatches += self.encode(&mut encoder, program, at)?;
                self.memory.log_token(&mut encoder, at);
            }
            // The next tokens are recorded while these run.
            let submission = self.gpu.begin("decode", encoder)?;
            if let Some(before) = in_flight.replace((positions, submission)) {
                end(before)?;
            }
        }
        if let Some(last) = in_flight {
            end(last)?;
        }
        let cache = Cache::of(&program.plan);
        let mut kept = self.memory.kept.borrow_mut();
        kept.decoded(cache, position, tokens);
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
        Ok(self.rows(1)?[0])
    }

    /// Tokens of the first `count` rows.
    pub(crate) fn rows(&self, count: usize) -> Result<Vec<u32>> {
        let buffer = self.memory.tokens();
        let bytes = self.gpu.read(buffer, 0, 4 * count as u64)?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Replaces the token that is fed next.
    pub fn set_token(&self, token: u32) {
        self.set_tokens(&[token]);
    }

    /// Replaces the tokens that are fed next, given in the order of their positions.
    pub fn set_tokens(&self, tokens: &[u32]) {
        let rows: Vec<u32> = chunk_positions(0, tokens.len())
            .map(|at| tokens[at])
            .collect();
        let buffer = self.memory.tokens();
        let bytes = bytemuck::cast_slice(&rows);
        self.gpu.queue.write_buffer(buffer, 0, bytes);
        self.memory.kept.borrow_mut().set(tokens);
    }

    /// The logits that the head of a plan gave last.
    ///
    /// # Errors
    /// A plan without a head, or a device error.
    pub fn logits(&self, plan: &Plan) -> Result<Vec<f64>> {
        let logits = plan.logits().context("the plan has no head")?;
        self.read_activation("logits", logits, plan, false)
    }

    /// Records the tokens of a program, the first of them at `position`, and returns
    /// the number of dispatches recorded; refused on the state of other tokens.
    fn encode(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        program: &Program,
        position: usize,
    ) -> Result<u64> {
        self.enter(&program.plan, position)?;
        let tokens = program.plan.phase.tokens();
        self.memory.advance(encoder, position, tokens);
        Ok(program.record(encoder, None))
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
    /// Wall time by submit, from the end of the one before.
    pub spans: Vec<Span>,
}

pub(crate) fn nanos(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
