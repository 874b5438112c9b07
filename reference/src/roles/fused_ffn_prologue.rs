//! `fused_ffn_prologue`: the residual sum and its RMSNorm, then `fused_ffn` of it.

use super::{add_norm, fused_ffn, rms_norm};
use crate::bounds::{Accumulation, Store};
use crate::{Expected, Matrix, Numerics};

/// What is normalised: `delta + residual`, all `[D]`.
#[derive(Clone, Copy, Debug)]
pub struct Sum<'a> {
    /// What is added.
    pub delta: &'a [f64],
    /// What it is added to.
    pub residual: &'a [f64],
    /// Gamma of the norm.
    pub gamma: &'a [f64],
    /// Its epsilon.
    pub eps: f64,
}

impl Sum<'_> {
    /// Its RMSNorm, unrounded; [`Numerics::Faithful`] rounds the sum before.
    fn normed(self, numerics: Numerics) -> Vec<f64> {
        add_norm::compute(self.delta, self.residual, self.gamma, self.eps, numerics).normed
    }
}

/// `w` `[2 F, D]` (gate rows, then up rows), giving `[F]`. [`Numerics::Faithful`]
/// rounds the sum and its norm.
///
/// # Panics
/// When the lengths contradict each other.
pub fn compute(w: Matrix<'_>, sum: Sum<'_>, numerics: Numerics) -> Vec<f64> {
    fused_ffn::compute(w, &numerics.store_all(sum.normed(numerics)))
}

/// The faithful outputs with limits; `squares` is how the kernel adds the squares of
/// the sum, `products` how it adds a row's products.
///
/// The sum is exact, as in [`add_norm::expected`]. An element of its norm, off by
/// [`crate::bounds::rms_norm_relative`] in f32, is rounded as the truth is or to the
/// neighbour, where that lies between them ([`rms_norm::stored`]); a row's product
/// carries what that changes ([`fused_ffn::expected_of`]).
///
/// # Panics
/// As [`compute`].
pub fn expected(
    w: Matrix<'_>,
    sum: Sum<'_>,
    squares: Accumulation,
    products: Accumulation,
    store: Store,
) -> Expected {
    let normed = sum.normed(Numerics::Faithful(store.elem()));
    fused_ffn::expected_of(
        w,
        &rms_norm::stored(&normed, squares, store),
        products,
        store,
    )
}
