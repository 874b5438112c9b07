//! `qkv_fused_norm`: RMSNorm, then `qkv_fused` of it.

use super::{
    qkv_fused::{self, Qkv, QkvForm, QkvShape},
    rms_norm,
    rope::Rope,
};
use crate::{Expected, Matrix, bounds::Accumulation};

/// What is normalised, all `[D]`.
#[derive(Clone, Copy, Debug)]
pub struct Normed<'a> {
    /// The residual.
    pub x: &'a [f64],
    /// Gamma of the norm.
    pub gamma: &'a [f64],
    /// Its epsilon.
    pub eps: f64,
}

impl Normed<'_> {
    /// The norm, unrounded.
    pub fn compute(self) -> Vec<f64> {
        rms_norm::compute(self.x, self.gamma, self.eps)
    }
}

/// `w` `[Q + 2 KV, D]`; queries and keys rotated to `position`.
///
/// # Panics
/// When the shapes contradict each other.
pub fn compute(
    w: Matrix<'_>,
    normed: Normed<'_>,
    shape: QkvShape,
    rope: &Rope,
    position: usize,
) -> Qkv<Vec<f64>> {
    qkv_fused::compute(w, &normed.compute(), shape, rope, position)
}

/// [`compute`] with limits: those of `qkv_fused` over a norm that stays in f32
/// ([`rms_norm::in_f32`]); `squares` is how the kernel adds its squares.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    w: Matrix<'_>,
    normed: Normed<'_>,
    shape: QkvShape,
    rope: &Rope,
    position: usize,
    squares: Accumulation,
    form: QkvForm,
) -> Qkv<Expected> {
    let x = rms_norm::in_f32(normed.compute(), squares);
    qkv_fused::expected_of(w, &x, shape, rope, position, form)
}
