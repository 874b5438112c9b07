//! `gdn_norm_out`: RMSNorm of each value head, times the silu of its gate.

use super::qk_norm;
use crate::Expected;
use crate::bounds::{self, Accumulation, Store, silu};

/// `x` and `z` `[heads, value dim]`, `gamma` `[value dim]`.
///
/// # Panics
/// When the shapes contradict each other.
pub fn compute(x: &[f64], z: &[f64], gamma: &[f64], eps: f64) -> Vec<f64> {
    assert_eq!(x.len(), z.len(), "gdn_norm_out: one gate per element");
    let normed = qk_norm::compute(x, gamma, eps);
    normed.iter().zip(z).map(|(y, &z)| y * silu(z)).collect()
}

/// [`compute`] with limits: those of the norm, in f32, carried through the product with
/// the silu, then the store.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    x: &[f64],
    z: &[f64],
    gamma: &[f64],
    eps: f64,
    sum: Accumulation,
    store: Store,
) -> Expected {
    let relative = bounds::rms_norm_relative(sum);
    let normed = qk_norm::compute(x, gamma, eps);
    let errors = normed.iter().zip(z);
    let errors: Vec<f64> = errors
        .map(|(y, &z)| bounds::silu_mul_error(z, 0.0, *y, relative * y.abs()))
        .collect();
    store.expected(compute(x, z, gamma, eps), &errors)
}
