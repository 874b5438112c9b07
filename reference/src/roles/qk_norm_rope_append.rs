//! `qk_norm_rope_append`: queries and keys normalised by head and rotated in f32
//! before their only store; values copied.

use super::qkv_fused::{Qkv, QkvForm, QkvShape};
use super::rope::{self, Rope};
use super::{qk_norm, qkv_fused};
use crate::Expected;
use crate::bounds;

/// Norm of the heads of one model's layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm<'g> {
    /// Gamma of queries, `[head_dim]`.
    pub q_gamma: &'g [f64],
    /// Gamma of keys, `[head_dim]`.
    pub k_gamma: &'g [f64],
    /// Epsilon of both.
    pub eps: f64,
}

/// `qkv` `[Q + 2 KV]`, the projection as stored; queries and keys normalised and
/// rotated to `position`.
///
/// # Panics
/// When the shapes contradict each other.
pub fn compute(
    qkv: &[f64],
    shape: QkvShape,
    norm: HeadNorm<'_>,
    rope: &Rope,
    position: usize,
) -> Qkv<Vec<f64>> {
    let Qkv { q, k, v } = shape.split(qkv);
    let mut normed = qk_norm::compute(q, norm.q_gamma, norm.eps);
    normed.extend(qk_norm::compute(k, norm.k_gamma, norm.eps));
    normed.extend_from_slice(v);
    qkv_fused::rotate(&normed, shape, rope, position)
}

/// [`compute`] with limits: the norm's error ([`bounds::rms_norm_relative`], where
/// `form.sum` adds the squares of a head), carried through the rotation, then one
/// store. Values are copies.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    qkv: &[f64],
    shape: QkvShape,
    norm: HeadNorm<'_>,
    rope: &Rope,
    position: usize,
    form: QkvForm,
) -> Qkv<Expected> {
    let Qkv { q, k, v } = shape.split(qkv);
    let relative = bounds::rms_norm_relative(form.sum);
    let rotated = |x: &[f64], gamma: &[f64]| {
        let normed = qk_norm::compute(x, gamma, norm.eps);
        let errors: Vec<f64> = normed.iter().map(|y| relative * y.abs()).collect();
        rope::expected(rope, &normed, &errors, position, form.trig, form.store)
    };
    Qkv {
        q: rotated(q, norm.q_gamma),
        k: rotated(k, norm.k_gamma),
        v: Expected {
            value: v.to_vec(),
            limit: vec![0.0; v.len()],
        },
    }
}
