//! `rms_norm`: `y = x gamma / sqrt(mean(x^2) + eps)`.

use crate::Expected;
use crate::bounds::{self, Accumulation, Store};

/// `x` and `gamma` `[D]`, giving `[D]`; gamma is used as stored.
///
/// # Panics
/// When the lengths differ.
pub fn compute(x: &[f64], gamma: &[f64], eps: f64) -> Vec<f64> {
    assert_eq!(x.len(), gamma.len(), "rms_norm: one gamma per element");
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter().zip(gamma).map(|(x, g)| x * scale * g).collect()
}

/// [`compute`] with limits ([`bounds::rms_norm_relative`], then the store).
///
/// # Panics
/// As [`compute`].
pub fn expected(x: &[f64], gamma: &[f64], eps: f64, sum: Accumulation, store: Store) -> Expected {
    let value = compute(x, gamma, eps);
    let relative = bounds::rms_norm_relative(sum);
    let errors: Vec<f64> = value.iter().map(|y| relative * y.abs()).collect();
    store.expected(value, &errors)
}

/// A norm in f32 that is not stored, with its error ([`bounds::rms_norm_relative`]).
pub fn in_f32(normed: Vec<f64>, sum: Accumulation) -> Expected {
    let relative = bounds::rms_norm_relative(sum);
    let limit = normed.iter().map(|y| relative * y.abs()).collect();
    Expected {
        value: normed,
        limit,
    }
}

/// A norm as it is stored and read back: each element is rounded as the truth is, or to a
/// neighbour that lies between it and the truth's error in f32
/// ([`bounds::rms_norm_relative`], [`Store::stored`]).
pub fn stored(normed: &[f64], sum: Accumulation, store: Store) -> Expected {
    let relative = bounds::rms_norm_relative(sum);
    let pairs = normed.iter().map(|&y| store.stored(y, relative * y.abs()));
    Expected::from_pairs(pairs)
}
