//! `fused_ffn`: gate and up projections, then `silu(gate) * up`.

use super::silu_mul;
use crate::bounds::{self, Accumulation, Store};
use crate::{Expected, Matrix};

/// `w` `[2 F, D]` (gate rows, then up rows) and `x` `[D]`, giving `[F]`.
///
/// # Panics
/// When `x` is not `[D]` or `w` has an odd number of rows.
pub fn compute(w: Matrix<'_>, x: &[f64]) -> Vec<f64> {
    silu_mul::compute(&w.matvec(x))
}

/// [`compute`] with limits: both dot products' errors
/// ([`bounds::products`]) through [`silu_mul::expected`]. Everything before the
/// store is f32.
///
/// # Panics
/// As [`compute`].
pub fn expected(w: Matrix<'_>, x: &[f64], sum: Accumulation, store: Store) -> Expected {
    expected_of(w, &bounds::exactly(x), sum, store)
}

/// The same of activations that are off by at most `x.limit`.
///
/// # Panics
/// As [`compute`].
pub fn expected_of(w: Matrix<'_>, x: &Expected, sum: Accumulation, store: Store) -> Expected {
    let (y, errors) = bounds::products(w, x, sum);
    silu_mul::expected(&y, &errors, store)
}
