//! `fused_ffn_norm`: RMSNorm, then `fused_ffn` of it.

use super::{fused_ffn, qkv_fused_norm::Normed, rms_norm};
use crate::bounds::{Accumulation, Store};
use crate::{Expected, Matrix};

/// `w` `[2 F, D]` (gate rows, then up rows), giving `[F]`.
///
/// # Panics
/// When the lengths contradict each other.
pub fn compute(w: Matrix<'_>, normed: Normed<'_>) -> Vec<f64> {
    fused_ffn::compute(w, &normed.compute())
}

/// [`compute`] with limits: those of `fused_ffn` over a norm that stays in f32
/// ([`rms_norm::in_f32`]); `squares` is how the kernel adds its squares.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    w: Matrix<'_>,
    normed: Normed<'_>,
    squares: Accumulation,
    products: Accumulation,
    store: Store,
) -> Expected {
    let x = rms_norm::in_f32(normed.compute(), squares);
    fused_ffn::expected_of(w, &x, products, store)
}
