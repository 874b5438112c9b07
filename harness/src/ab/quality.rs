//! What a lossy flag costs: the perplexity of both arms over windows of a text.

use super::{Compared, Request};
use crate::{engine::Engine, interrupt, ppl, progress::phase};
use anyhow::Result;
use indicatif::ProgressBar;
use results::{
    journal::JournalWriter,
    record::{self, Line},
};
use std::time::Instant;

/// A text as the model's tokens.
#[derive(Clone, Debug)]
pub struct Passage {
    /// What it is.
    pub name: String,
    /// Its tokens.
    pub ids: Vec<u32>,
}

/// Tokens of a window; all but the first are predicted.
const WINDOW: usize = 128;
/// Fewest and most windows.
const WINDOWS: [usize; 2] = [3, 64];
/// Share of the budget that the text may take beyond the fewest windows.
const SHARE: f64 = 0.5;

/// Reads windows of the request's text with every arm and records the mean negative log
/// likelihood of each.
pub(super) fn quality(
    engine: &Engine<'_>,
    request: &Request<'_>,
    compared: &Compared,
    bar: &ProgressBar,
    journal: &mut JournalWriter,
) -> Result<()> {
    let Some(passage) = &request.passage else {
        return Ok(());
    };
    let begin = Instant::now();
    let windows = passage.ids.chunks_exact(WINDOW).take(WINDOWS[1]);
    for (index, tokens) in windows.enumerate() {
        let late = begin.elapsed().as_secs_f64() > SHARE * request.budget.as_secs_f64();
        if interrupt::asked() || (index >= WINDOWS[0] && late) {
            break;
        }
        phase(bar, &format!("reading the text, window {}", index + 1));
        for (arm, kind) in compared.arms.iter().zip(request.kinds()) {
            // The slowed arm computes what the baseline does.
            if kind == record::Arm::Slowed {
                continue;
            }
            let nll = ppl::window(engine, arm, tokens)?;
            journal.append(&Line::Quality(record::Quality {
                arm: kind,
                text: passage.name.clone(),
                window: index as u32,
                tokens: nll.len() as u32,
                nll: nll.iter().sum::<f64>() / nll.len() as f64,
            }))?;
        }
    }
    Ok(())
}
