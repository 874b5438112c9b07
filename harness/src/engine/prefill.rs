//! Prompts: in chunks of many tokens or token by token, as the flag `chunk` says.

use super::{Engine, Program, nanos};
use anyhow::{Context as _, Result, bail};
use kernels::{Phase, Plan, Settings, plan::chunks};
use std::{cell::RefCell, collections::BTreeMap, ops::Range, rc::Rc, time::Instant};

/// How one choice of flags runs a prompt: a program for each size of chunk, made when
/// it is first needed.
#[derive(Debug)]
pub struct Prefill {
    settings: Settings,
    /// By tokens, and whether the head runs.
    programs: RefCell<BTreeMap<(usize, bool), Rc<Program>>>,
}

/// Tokens of one submit where they go one by one: enough to hide the submit, few
/// enough to stay interruptible on a slow adapter.
const TOKENS_PER_SUBMIT: usize = 4;

/// What a prefill did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefilled {
    /// Wall time in nanoseconds.
    pub wall_ns: u64,
    /// Dispatches recorded.
    pub dispatches: u64,
    /// Prompt tokens processed.
    pub tokens: usize,
}

impl Prefill {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            settings: settings.clone(),
            programs: RefCell::default(),
        }
    }

    /// Most tokens of a chunk; 1 where the prompt goes token by token.
    pub fn chunk(&self) -> usize {
        (self.settings.get("chunk").count() as usize).max(1)
    }

    /// The chunk that ends a prompt of `tokens` tokens.
    ///
    /// # Panics
    /// Without a token.
    pub fn last_chunk(&self, tokens: usize) -> Range<usize> {
        let last = chunks(0..tokens, self.chunk()).last();
        last.expect("a prompt has tokens")
    }
}

impl Engine<'_> {
    /// The program that runs `tokens` prompt tokens, and the head where asked.
    ///
    /// # Errors
    /// More tokens than a chunk has, or as [`Engine::arm`].
    pub fn prefill_program(
        &self,
        prefill: &Prefill,
        tokens: usize,
        head: bool,
    ) -> Result<Rc<Program>> {
        if let Some(made) = prefill.programs.borrow().get(&(tokens, head)) {
            return Ok(made.clone());
        }
        let phase = Phase::Prefill { tokens, head };
        let spec = self.weights.spec();
        let plan = Plan::build(spec, &prefill.settings, &self.gpu.features, phase)?;
        let mut pipelines = self.pipelines.borrow_mut();
        let program = Program::new(self.gpu, &self.memory, &mut pipelines, spec, plan)?;
        let program = Rc::new(program);
        let mut programs = prefill.programs.borrow_mut();
        programs.insert((tokens, head), program.clone());
        Ok(program)
    }

    /// The programs of a prompt of `tokens` tokens, chunk by chunk.
    ///
    /// # Errors
    /// As [`Self::prefill_program`].
    pub fn prefill_programs(&self, prefill: &Prefill, tokens: usize) -> Result<Vec<Rc<Program>>> {
        chunks(0..tokens, prefill.chunk())
            .map(|chunk| self.prefill_program(prefill, chunk.len(), chunk.end == tokens))
            .collect()
    }

    /// Runs a prompt from position 0. The token after it lies in the token buffer.
    ///
    /// # Errors
    /// An empty or too long prompt, or a device error.
    pub fn prefill(&self, prefill: &Prefill, prompt: &[u32]) -> Result<Prefilled> {
        if prompt.is_empty() {
            bail!("the prompt has no tokens; expected at least one");
        }
        self.memory.require(prompt.len())?;
        let programs = self.prefill_programs(prefill, prompt.len())?;
        self.memory.write_prompt(self.gpu, prompt);
        let most = prefill.chunk();
        let all: Vec<_> = chunks(0..prompt.len(), most).zip(programs).collect();
        let per_submit = if most == 1 { TOKENS_PER_SUBMIT } else { 1 };
        let mut dispatches = 0;
        let start = Instant::now();
        for (submit, some) in all.chunks(per_submit).enumerate() {
            let mut encoder = self.encoder();
            for (chunk, program) in some {
                self.memory.feed_prompt(&mut encoder, chunk.clone());
                dispatches += self.encode(&mut encoder, program, chunk.start);
            }
            self.gpu
                .run("prefill", encoder)
                .with_context(|| format!("prompt submit {submit}"))?;
        }
        Ok(Prefilled {
            wall_ns: nanos(start),
            dispatches,
            tokens: prompt.len(),
        })
    }

    /// Runs a program once over the current tokens, the first of them at `position`.
    ///
    /// # Errors
    /// Past the end of the context, or a device error.
    pub fn run(&self, program: &Program, position: usize) -> Result<()> {
        let tokens = program.plan.phase.tokens();
        self.memory.require(position + tokens)?;
        let mut encoder = self.encoder();
        self.encode(&mut encoder, program, position);
        self.gpu.run("one program", encoder)
    }
}
