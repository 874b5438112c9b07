//! `qk_norm`: RMSNorm of each head, before RoPE (Qwen3).

use super::rms_norm;
use crate::Expected;
use crate::bounds::{Accumulation, Store};

/// `x` `[heads, head_dim]` and `gamma` `[head_dim]`, giving `[heads, head_dim]`.
///
/// # Panics
/// When `x` does not consist of whole heads.
pub fn compute(x: &[f64], gamma: &[f64], eps: f64) -> Vec<f64> {
    heads(x, gamma)
        .flat_map(|head| rms_norm::compute(head, gamma, eps))
        .collect()
}

/// [`compute`] with limits: those of [`rms_norm::expected`] for each head.
///
/// # Panics
/// As [`compute`].
pub fn expected(x: &[f64], gamma: &[f64], eps: f64, sum: Accumulation, store: Store) -> Expected {
    let rows = heads(x, gamma).map(|head| rms_norm::expected(head, gamma, eps, sum, store));
    Expected::from_pairs(rows.flat_map(|row| row.value.into_iter().zip(row.limit)))
}

fn heads<'x>(x: &'x [f64], gamma: &[f64]) -> impl Iterator<Item = &'x [f64]> {
    assert!(
        x.len().is_multiple_of(gamma.len()),
        "qk_norm: whole heads of {}, found {} elements",
        gamma.len(),
        x.len()
    );
    x.chunks_exact(gamma.len())
}
