//! Prompts: in chunks of many tokens or token by token, as the flag `chunk` says.

use super::{
    Engine, Making, Program, Texts,
    kept::{Cache, shared},
    nanos,
    program::Pipelines,
};
use anyhow::{Context as _, Result, bail, ensure};
use kernels::{Phase, Settings, plan::chunks};
use std::{cell::RefCell, collections::BTreeMap, ops::Range, rc::Rc, time::Instant};

/// How one choice of flags runs a prompt: a program for each size of chunk, made when
/// it is first needed.
#[derive(Debug)]
pub struct Prefill {
    settings: Settings,
    pipelines: Rc<RefCell<Pipelines>>,
    /// As of [`Making`].
    slowed: f64,
    texts: Texts,
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
    /// Prompt tokens before them whose keys and values were in the cache.
    pub reused: usize,
}

impl Prefill {
    pub(super) fn new(making: &Making<'_>, pipelines: Rc<RefCell<Pipelines>>) -> Self {
        Self {
            settings: making.settings.clone(),
            pipelines,
            slowed: making.slowed,
            texts: making.texts.clone(),
            programs: RefCell::default(),
        }
    }

    /// What it shares compiled kernels through.
    pub(super) const fn pipelines(&self) -> &Rc<RefCell<Pipelines>> {
        &self.pipelines
    }

    /// Most tokens of a chunk; 1 where the prompt goes token by token.
    pub fn chunk(&self) -> usize {
        self.settings.most_of_chunk()
    }

    /// Every flag.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether a prompt reuses what the cache holds of it.
    pub fn reuses(&self) -> bool {
        self.settings.get("reuse").is_on()
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
        let making = Making {
            settings: &prefill.settings,
            slowed: prefill.slowed,
            texts: prefill.texts.clone(),
        };
        let plan = making.plan(spec, &self.gpu.features, phase)?;
        let mut pipelines = prefill.pipelines.borrow_mut();
        let program = Program::new(self.gpu, &self.memory, &mut pipelines, spec, plan)?;
        let program = Rc::new(program);
        let mut programs = prefill.programs.borrow_mut();
        programs.insert((tokens, head), program.clone());
        Ok(program)
    }

    /// The programs of a prompt's positions up to its end, chunk by chunk.
    ///
    /// # Errors
    /// As [`Self::prefill_program`].
    pub fn prefill_programs(
        &self,
        prefill: &Prefill,
        positions: Range<usize>,
    ) -> Result<Vec<Rc<Program>>> {
        let end = positions.end;
        chunks(positions, prefill.chunk())
            .map(|chunk| self.prefill_program(prefill, chunk.len(), chunk.end == end))
            .collect()
    }

    /// [`Self::prefill`] of a whole prompt, whatever the cache holds of it.
    ///
    /// # Errors
    /// As [`Self::prefill`], or when a token was not processed.
    pub fn prefill_whole(&self, prefill: &Prefill, prompt: &[u32]) -> Result<Prefilled> {
        self.memory.forget();
        let done = self.prefill(prefill, prompt)?;
        ensure!(
            (done.reused, done.tokens) == (0, prompt.len()),
            "a prompt of {} tokens: {} were processed and {} reused",
            prompt.len(),
            done.tokens,
            done.reused
        );
        Ok(done)
    }

    /// Runs a prompt. With the flag `reuse`, the tokens whose keys and values the cache
    /// holds from position 0 on are not run again, the prompt's last excepted. The token
    /// after the prompt lies in the token buffer and is logged.
    ///
    /// # Errors
    /// An empty or too long prompt, or a device error.
    pub fn prefill(&self, prefill: &Prefill, prompt: &[u32]) -> Result<Prefilled> {
        if prompt.is_empty() {
            bail!("the prompt has no tokens; expected at least one");
        }
        self.memory.require(prompt.len())?;
        let start = Instant::now();
        let one = self.prefill_program(prefill, 1, true)?;
        let (cache, elem) = (Cache::of(&one.plan), one.plan.elem);
        self.memory.kept.borrow_mut().of(cache);
        let reused = match prefill.reuses() {
            true => self.rewind(elem, shared(&self.memory.kept(self.gpu)?, prompt))?,
            false => 0,
        };
        let positions = reused..prompt.len();
        let programs = self.prefill_programs(prefill, positions.clone())?;
        self.memory.kept.borrow_mut().overwrite(cache, reused);
        self.memory.write_prompt(self.gpu, prompt);
        let most = prefill.chunk();
        let all: Vec<_> = chunks(positions, most).zip(programs).collect();
        let per_submit = if most == 1 { TOKENS_PER_SUBMIT } else { 1 };
        let mut dispatches = 0;
        for (submit, some) in all.chunks(per_submit).enumerate() {
            let mut encoder = self.encoder();
            for (chunk, program) in some {
                let ends = chunk.end == prompt.len();
                self.memory.feed_prompt(&mut encoder, chunk.clone());
                if ends && chunk.start > 0 {
                    // For the same prompt again, whose last token is always run.
                    self.checkpoint(&mut encoder, elem);
                }
                dispatches += self.encode(&mut encoder, program, chunk.start)?;
                if ends {
                    self.memory.log_token(&mut encoder, chunk.end - 1);
                    // For a longer one, whose reply may be told in other tokens.
                    self.checkpoint(&mut encoder, elem);
                }
            }
            self.gpu
                .run("prefill", encoder)
                .with_context(|| format!("prompt submit {submit}"))?;
        }
        self.memory.kept.borrow_mut().prompt(cache, prompt);
        Ok(Prefilled {
            wall_ns: nanos(start),
            dispatches,
            tokens: prompt.len() - reused,
            reused,
        })
    }

    /// Runs a program once over the current tokens, the first of them at `position`.
    ///
    /// # Errors
    /// Past the end of the context, or a device error.
    pub fn run(&self, program: &Program, position: usize) -> Result<()> {
        let tokens = program.plan.phase.tokens();
        self.memory.require(position + tokens)?;
        let mut kept = self.memory.kept.borrow_mut();
        kept.overwrite(Cache::of(&program.plan), position);
        drop(kept);
        let mut encoder = self.encoder();
        self.encode(&mut encoder, program, position)?;
        self.gpu.run("one program", encoder)
    }
}
