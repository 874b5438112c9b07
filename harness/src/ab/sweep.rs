//! Time per token against context length.

use super::{Request, gate::append_checks};
use crate::{
    bench, check,
    engine::{Arm, Engine},
    interrupt,
};
use anyhow::Result;
use results::{
    draw::split_mix,
    journal::JournalWriter,
    record::{self, Line},
};
use std::time::{Duration, Instant};

/// Context lengths of the sweep, where the model and the cache hold them.
const SWEEP: [usize; 5] = [64, 128, 256, 512, 1024];
/// Fewest and most tokens of one timing of the sweep, and how long it should last.
const SWEEP_TOKENS: [usize; 2] = [2, 64];
const SWEEP_TIME: Duration = Duration::from_millis(200);
/// Share of the budget that the sweep may take.
const SWEEP_SHARE: f64 = 0.2;
/// Positions that the whole sweep takes.
pub(super) const SWEEP_POSITIONS: usize = SWEEP[SWEEP.len() - 1] + SWEEP_TOKENS[1];

/// Time per token against context length: the KV cache is filled with seeded
/// values, the first layer's dispatches of each arm are compared with the
/// reference there, then the arms are timed. Logits would say little: over keys
/// that no token made, the layers enlarge every rounding.
pub(super) fn sweep(
    engine: &Engine<'_>,
    request: &Request<'_>,
    arms: &[Arm],
    journal: &mut JournalWriter,
) -> Result<bool> {
    let mut state = request.seed;
    let values: Vec<f32> = (0..engine.memory.layer_elements())
        .map(|_| (split_mix(&mut state) >> 40) as f32 / (1_u32 << 24) as f32 - 0.5)
        .collect();
    let token = request.prompt.ids[0];
    let start = Instant::now();
    for context in SWEEP {
        if context + SWEEP_TOKENS[1] > engine.memory.context() || interrupt::asked() {
            break;
        }
        if start.elapsed().as_secs_f64() > SWEEP_SHARE * request.budget.as_secs_f64() {
            break;
        }
        let mut slowest = Duration::ZERO;
        for (arm, kind) in arms.iter().zip(request.kinds()) {
            engine.memory.fill_kv(engine.gpu, &values)?;
            engine.set_token(token);
            let mut checks = check::roles(engine, &arm.decode, context - 1, |dispatch| {
                dispatch.label.starts_with("layers.0.")
            })?;
            for check in &mut checks {
                check.stage = format!("context {context}.{}", check.stage);
            }
            let passed = checks.iter().all(|c| c.passed);
            append_checks(journal, kind, checks)?;
            if !passed {
                return Ok(false);
            }
        }
        // The reference took a pause, after which clocks are low.
        for arm in arms {
            let start = Instant::now();
            let mut last = Duration::MAX;
            while last == Duration::MAX || start.elapsed() < bench::WARM_UP {
                engine.set_token(token);
                let warm = engine.decode(&arm.decode, context - 1, SWEEP_TOKENS[0])?;
                last = Duration::from_nanos(warm.wall_ns) / SWEEP_TOKENS[0] as u32;
            }
            slowest = slowest.max(last);
        }
        // As many tokens as last a moment, the same for every arm.
        let tokens = (SWEEP_TIME.as_nanos() / slowest.as_nanos().max(1)) as usize;
        let tokens = tokens.clamp(SWEEP_TOKENS[0], SWEEP_TOKENS[1]);
        for index in (0..arms.len()).chain((0..arms.len()).rev()) {
            engine.set_token(token);
            let decoded = engine.decode(&arms[index].decode, context - 1, tokens)?;
            journal.append(&Line::Context(record::Context {
                arm: request.kinds()[index],
                context: context as u32,
                tokens: tokens as u32,
                wall_ns: decoded.wall_ns,
            }))?;
        }
    }
    Ok(true)
}
