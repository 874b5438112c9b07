//! Time of whole tokens: to the first one, and of those that follow.
//!
//! The caller compares these very programs with the reference first
//! ([`crate::check::model`]); here every repetition must make the tokens of the first.

pub mod journal;
pub mod kernels;

use crate::engine::{Arm, Engine};
use ::kernels::plan::Work;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Shortest time of warming up, in which clocks rise.
pub(crate) const WARM_UP: Duration = Duration::from_millis(600);

/// One repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Repetition {
    /// From the prompt to its first token.
    pub first_token_ns: u64,
    /// Of the tokens after it.
    pub decode_ns: u64,
}

/// Times of one choice of flags.
#[derive(Clone, Debug, Serialize)]
pub struct Timed {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Decoded tokens of a repetition, the first not among them.
    pub tokens: usize,
    /// Every repetition, in order.
    pub repetitions: Vec<Repetition>,
    /// Dispatches of a decoded token.
    pub dispatches_per_token: u32,
    /// Bytes of weights that a decoded token reads.
    pub weight_bytes_per_token: u64,
    /// Operations of a decoded token with these.
    pub weight_flops_per_token: u64,
    /// Bytes of keys and values that a decoded token reads, the mean of those timed.
    pub kv_bytes_per_token: u64,
    /// Operations of a decoded token with these, the mean of those timed.
    pub kv_flops_per_token: u64,
}

/// Warms up and times `repetitions` of the prompt and `tokens` tokens after its first; each
/// goes to `done`, with its number from 0, before the next begins.
///
/// # Errors
/// A device error, or tokens that differ from one repetition to another.
pub fn tokens(
    engine: &Engine<'_>,
    arm: &Arm,
    prompt: &[u32],
    tokens: usize,
    repetitions: usize,
    mut done: impl FnMut(usize, Repetition) -> Result<()>,
) -> Result<Timed> {
    ensure!(tokens > 0 && repetitions > 0, "nothing to time");
    let once = || -> Result<(Repetition, Vec<u32>)> {
        let first = engine.prefill_whole(&arm.prefill, prompt)?;
        let decoded = engine.decode(&arm.decode, prompt.len(), tokens)?;
        let made = engine.generated(prompt.len() - 1, tokens + 1)?;
        let repetition = Repetition {
            first_token_ns: first.wall_ns,
            decode_ns: decoded.wall_ns,
        };
        Ok((repetition, made))
    };
    let start = Instant::now();
    let (_, made) = once()?;
    while start.elapsed() < WARM_UP {
        once()?;
    }
    let mut all = Vec::with_capacity(repetitions);
    for index in 0..repetitions {
        let (repetition, again) = once()?;
        ensure!(
            made == again,
            "repetition {index} made other tokens than the first; the output is not stable"
        );
        all.push(repetition);
        done(index, repetition)?;
    }
    let plan = &arm.decode.plan;
    let (totals, kv) = (plan.totals(), kv_work(engine, arm, prompt.len(), tokens));
    Ok(Timed {
        prompt_tokens: prompt.len(),
        tokens,
        repetitions: all,
        dispatches_per_token: totals.dispatches_per_token,
        weight_bytes_per_token: totals.bytes_per_token,
        weight_flops_per_token: totals.flops_per_token,
        kv_bytes_per_token: kv.bytes,
        kv_flops_per_token: kv.flops,
    })
}

/// Attention to the positions up to a token's own; the mean over the tokens after the
/// prompt's first.
pub fn kv_work(engine: &Engine<'_>, arm: &Arm, prompt: usize, tokens: usize) -> Work {
    // Positions prompt + 1 to prompt + tokens.
    let twice_mean = (2 * prompt + tokens + 1) as u64;
    let twice = (arm.decode.plan).kv_work(engine.weights.spec(), twice_mean);
    Work {
        bytes: twice.bytes / 2,
        flops: twice.flops / 2,
    }
}
