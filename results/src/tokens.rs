//! Times of whole tokens, from the record of a run that compares nothing.

use serde::Serialize;

use crate::journal::AbRun;
use crate::record::Status;
use crate::roof;
use crate::stats::{StatsError, median};

/// What a timing of whole tokens says; medians over its repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenTimes {
    /// Repetitions, each of the whole prompt and all tokens.
    pub repetitions: usize,
    /// Milliseconds from the prompt to its first token.
    pub ttft_ms: f64,
    /// Tokens per second after it.
    pub decode_tok_s: f64,
    /// Bytes of weights, keys and values that a decoded token reads.
    pub bytes_per_token: u64,
    /// Operations with these, two for each multiply-add, where they were counted.
    pub flops_per_token: Option<u64>,
    /// The same bytes, GB/s (10^9).
    pub read_gb_s: f64,
    /// The same operations, GFLOP/s (10^9).
    pub gflop_s: Option<f64>,
    /// What the adapter reads at most, GB/s.
    pub roof_gb_s: f64,
    /// Share of that, percent; none of a CPU, which has no one roof: its loads cost
    /// arithmetic.
    pub pct_of_roof: Option<f64>,
    /// Why the times mean nothing, where they do not.
    pub void: Option<String>,
    /// What makes them suspicious, where something does.
    pub suspicious: Option<String>,
}

impl TokenTimes {
    /// The times of a run; none where it compares arms, where a check failed or none was
    /// made, and where no repetition is whole.
    ///
    /// # Errors
    /// Times that are no times.
    pub fn of(run: &AbRun) -> Result<Option<Self>, StatsError> {
        let proven = !run.checks.is_empty() && run.checks.iter().all(|check| check.passed);
        let (Some(bench), true) = (run.run.bench, proven && run.status() != Status::Void) else {
            return Ok(None);
        };
        let repetitions = run.samples.len().min(run.prefills.len());
        if repetitions == 0 {
            return Ok(None);
        }
        let first = run.prefills[..repetitions].iter();
        let first: Vec<f64> = first.map(|prefill| prefill.wall_ns as f64).collect();
        let tokens = run.samples[..repetitions].iter();
        let tokens: Vec<f64> = tokens
            .map(|sample| sample.wall_ns as f64 / f64::from(sample.tokens))
            .collect();
        let token_ns = median(&tokens)?;
        let model = &run.run.model;
        let bytes = model.bytes_per_token + bench.kv_bytes_per_token;
        let counted = model.flops_per_token.zip(bench.kv_flops_per_token);
        let flops = counted.map(|(weights, kv)| weights + kv);
        let read_gb_s = bytes as f64 / token_ns;
        let roof_gb_s = bench.roof.read_gb_s;
        let has_roof = !run.run.adapter.is_cpu();
        let judged = |judge: fn(f64, f64) -> Option<String>| {
            judge(read_gb_s, roof_gb_s).filter(|_| has_roof)
        };
        Ok(Some(Self {
            repetitions,
            ttft_ms: median(&first)? / 1e6,
            decode_tok_s: 1e9 / token_ns,
            bytes_per_token: bytes,
            flops_per_token: flops,
            read_gb_s,
            gflop_s: flops.map(|flops| flops as f64 / token_ns),
            roof_gb_s,
            pct_of_roof: has_roof.then_some(100.0 * read_gb_s / roof_gb_s),
            void: judged(roof::past),
            suspicious: judged(roof::far_below),
        }))
    }
}
