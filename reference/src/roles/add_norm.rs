//! `add_norm`: the residual sum in the type of the activations, then its RMSNorm.

use super::rms_norm;
use crate::bounds::{Accumulation, Store};
use crate::{Expected, Numerics};

/// The role's two outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct AddNorm<T> {
    /// `delta + residual`, `[D]`.
    pub residual: T,
    /// Its RMSNorm, `[D]`.
    pub normed: T,
}

/// `delta`, `residual` and `gamma` `[D]`. [`Numerics::Faithful`] rounds the sum
/// before it is squared; `normed` is unrounded in both.
///
/// # Panics
/// When the lengths differ.
pub fn compute(
    delta: &[f64],
    residual: &[f64],
    gamma: &[f64],
    eps: f64,
    numerics: Numerics,
) -> AddNorm<Vec<f64>> {
    assert_eq!(delta.len(), residual.len(), "add_norm: two equal vectors");
    let sums = delta.iter().zip(residual);
    let residual: Vec<f64> = sums.map(|(a, b)| numerics.store(a + b)).collect();
    let normed = rms_norm::compute(&residual, gamma, eps);
    AddNorm { residual, normed }
}

/// The faithful outputs with limits.
///
/// The residual's limit is zero. An f16 addition is correctly rounded, and an
/// f32 addition rounded to f16 gives the same: 24 bits are at least `2 * 11 + 2`,
/// with which rounding twice is harmless for a sum. Where the residual is f32, its
/// addition is correctly rounded as well. Since that residual is
/// exact, `normed` has the limits of [`rms_norm`] alone.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    delta: &[f64],
    residual: &[f64],
    gamma: &[f64],
    eps: f64,
    sum: Accumulation,
    store: Store,
) -> AddNorm<Expected> {
    let numerics = Numerics::Faithful(store.elem());
    let value = compute(delta, residual, gamma, eps, numerics).residual;
    let normed = rms_norm::expected(&value, gamma, eps, sum, store);
    let limit = vec![0.0; value.len()];
    AddNorm {
        residual: Expected { value, limit },
        normed,
    }
}
