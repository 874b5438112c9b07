//! `attn_gate`: attention's output times the sigmoid of its gate.

use crate::Expected;
use crate::bounds::{self, Store, sigmoid};

/// `x sigmoid(gate)` of two vectors of one length.
///
/// # Panics
/// When the lengths differ.
pub fn compute(x: &[f64], gate: &[f64]) -> Vec<f64> {
    assert_eq!(x.len(), gate.len(), "attn_gate: one gate per element");
    x.iter().zip(gate).map(|(x, &g)| x * sigmoid(g)).collect()
}

/// [`compute`] with limits: [`bounds::sigmoid_error`] for a numerator of `x`, then the
/// store.
///
/// # Panics
/// As [`compute`].
pub fn expected(x: &[f64], gate: &[f64], store: Store) -> Expected {
    let errors = x.iter().zip(gate);
    let errors: Vec<f64> = errors
        .map(|(x, &g)| x.abs() * bounds::sigmoid_error(g))
        .collect();
    store.expected(compute(x, gate), &errors)
}
