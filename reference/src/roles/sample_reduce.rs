//! `sample_reduce`: the greatest logit of each part of the vocabulary, and the sum of
//! the weights `e^((l - m) / temperature)` of its logits.

use crate::bounds::{Accumulation, Expected, F32_FLOOR, U, exp_relative};
use kernels::sampling::SAMPLE_PARTS;

/// What a kernel takes for the greatest logit of nothing.
const NONE: f32 = -3.0e38;
/// Roundings of `(l - m) / temperature`: one, and a division of 2.5 ULP.
const QUOTIENT: f64 = 6.5 * U;

/// Relative error in f32 of `e^x` for a quotient `x` that is at most 0.
pub(super) fn weight_relative(x: f64) -> f64 {
    (QUOTIENT * x.abs()).exp_m1() + (1.0 + QUOTIENT) * exp_relative(x)
}

/// Maximum and sum of each part, `[parts, 2]`.
pub fn compute(logits: &[f64], temperature: f32) -> Vec<f64> {
    parts(logits)
        .flat_map(|part| {
            let largest = part.iter().copied().fold(f64::from(NONE), f64::max);
            let weight = |l: &f64| ((l - largest) / f64::from(temperature)).exp();
            [largest, part.iter().map(weight).sum()]
        })
        .collect()
}

/// The same with its limits: maxima are exact.
pub fn expected(logits: &[f64], temperature: f32, sum: Accumulation) -> Expected {
    let value = compute(logits, temperature);
    let limits = parts(logits)
        .zip(value.chunks_exact(2))
        .flat_map(|(part, value)| {
            let error = part.iter().map(|l| {
                let x = ((l - value[0]) / f64::from(temperature)).max(f64::from(NONE));
                x.exp() * weight_relative(x).min(1.0) + F32_FLOOR
            });
            let error: f64 = error.sum();
            [0.0, error + sum.gamma() * (value[1] + error)]
        });
    let limit = limits.collect();
    Expected { value, limit }
}

/// The parts; those behind the end are empty.
fn parts(logits: &[f64]) -> impl Iterator<Item = &[f64]> {
    let size = logits.len().div_ceil(SAMPLE_PARTS);
    (0..SAMPLE_PARTS).map(move |part| {
        let at = |part: usize| (part * size).min(logits.len());
        &logits[at(part)..at(part + 1)]
    })
}
