//! `add3_norm`: two sums in the type of the activations, one after the other, then
//! the RMSNorm of the second.

use super::add_norm::{self, AddNorm};
use crate::bounds::{Accumulation, Store};
use crate::{Expected, Numerics};

/// `residual = (a + b) + c`; all and `gamma` `[D]`. [`Numerics::Faithful`] rounds
/// each sum; `normed` is unrounded in both.
///
/// # Panics
/// When the lengths differ.
pub fn compute(
    [a, b, c]: [&[f64]; 3],
    gamma: &[f64],
    eps: f64,
    numerics: Numerics,
) -> AddNorm<Vec<f64>> {
    add_norm::compute(c, &first_sum(a, b, numerics), gamma, eps, numerics)
}

/// The faithful outputs with limits: each sum is correctly rounded, so those of
/// [`add_norm::expected`] hold.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    [a, b, c]: [&[f64]; 3],
    gamma: &[f64],
    eps: f64,
    sum: Accumulation,
    store: Store,
) -> AddNorm<Expected> {
    let numerics = Numerics::Faithful(store.elem());
    add_norm::expected(c, &first_sum(a, b, numerics), gamma, eps, sum, store)
}

fn first_sum(a: &[f64], b: &[f64], numerics: Numerics) -> Vec<f64> {
    assert_eq!(a.len(), b.len(), "add3_norm: equal vectors");
    let sums = a.iter().zip(b);
    sums.map(|(a, b)| numerics.store(a + b)).collect()
}
