//! `int4_matmul`: `y = W x` for a quantised `W`.

use crate::bounds::{self, Accumulation, Store};
use crate::{Expected, Matrix};

/// `w` `[N, K]` and `x` `[K]`, giving `[N]`.
///
/// # Panics
/// When `x` is not `[K]`.
pub fn compute(w: Matrix<'_>, x: &[f64]) -> Vec<f64> {
    w.matvec(x)
}

/// [`compute`] with limits: [`bounds::products`], then the store.
///
/// # Panics
/// As [`compute`].
pub fn expected(w: Matrix<'_>, x: &[f64], sum: Accumulation, store: Store) -> Expected {
    let (y, errors) = bounds::products(w, &bounds::exactly(x), sum);
    store.expected(y, &errors)
}
