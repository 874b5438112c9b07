//! `moe_combine`: the sum of a token's slots by their weights.

use crate::Expected;
use crate::bounds::{self, Accumulation, Store};

/// `slots` `[S, N]` and `weights` `[S]`, giving `[N]`.
///
/// # Panics
/// When the slots are not of one length.
pub fn compute(slots: &[f64], weights: &[f64]) -> Vec<f64> {
    sum(slots, weights, |weight, x| weight * x)
}

/// [`compute`] with limits: one invocation adds all slots, then the store.
///
/// # Panics
/// As [`compute`].
pub fn expected(slots: &[f64], weights: &[f64], store: Store) -> Expected {
    let magnitudes = sum(slots, weights, |weight, x| (weight * x).abs());
    let errors = bounds::dot_errors(&magnitudes, Accumulation::serial(weights.len()));
    store.expected(compute(slots, weights), &errors)
}

fn sum(slots: &[f64], weights: &[f64], term: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let n = slots.len() / weights.len();
    assert_eq!(slots.len(), n * weights.len(), "moe_combine: whole slots");
    let mut sums = vec![0.0; n];
    for (slot, &weight) in slots.chunks_exact(n).zip(weights) {
        for (sum, &x) in sums.iter_mut().zip(slot) {
            *sum += term(weight, x);
        }
    }
    sums
}
