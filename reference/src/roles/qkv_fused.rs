//! `qkv_fused`: the fused projection, with queries and keys rotated in f32
//! before their only store.

use super::rope::{self, Rope};
use crate::bounds::{self, Accumulation, Store, Trig};
use crate::{Expected, Matrix};
use kernels::ModelSpec;

/// How the rows of the fused projection divide: Q, then K, then V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QkvShape {
    /// Elements of the queries.
    pub q_dim: usize,
    /// Elements of the keys, and of the values.
    pub kv_dim: usize,
}

/// Queries, keys and values of one token.
#[derive(Clone, Debug, PartialEq)]
pub struct Qkv<T> {
    /// Rotated queries, `[heads, head_dim]`.
    pub q: T,
    /// Rotated keys, `[kv_heads, head_dim]`.
    pub k: T,
    /// Values, `[kv_heads, head_dim]`.
    pub v: T,
}

impl QkvShape {
    /// The shape that a model uses.
    pub fn of(spec: &ModelSpec) -> Self {
        Self {
            q_dim: spec.q_dim(),
            kv_dim: spec.kv_dim(),
        }
    }

    /// Cuts `[Q + 2 KV]` into its three parts.
    ///
    /// # Panics
    /// When the length is another.
    pub fn split(self, qkv: &[f64]) -> Qkv<&[f64]> {
        assert_eq!(
            qkv.len(),
            self.q_dim + 2 * self.kv_dim,
            "qkv_fused: rows of Q, K and V"
        );
        let (q, kv) = qkv.split_at(self.q_dim);
        let (k, v) = kv.split_at(self.kv_dim);
        Qkv { q, k, v }
    }
}

/// `w` `[Q + 2 KV, D]` and `x` `[D]`; queries and keys rotated to `position`.
///
/// # Panics
/// When the shapes contradict each other.
pub fn compute(
    w: Matrix<'_>,
    x: &[f64],
    shape: QkvShape,
    rope: &Rope,
    position: usize,
) -> Qkv<Vec<f64>> {
    rotate(&w.matvec(x), shape, rope, position)
}

/// The second half of [`compute`]: splits the projection's output
/// `[Q + 2 KV]` and rotates queries and keys. This alone is the role `rope`.
///
/// # Panics
/// As [`compute`].
pub fn rotate(qkv: &[f64], shape: QkvShape, rope: &Rope, position: usize) -> Qkv<Vec<f64>> {
    let Qkv { q, k, v } = shape.split(qkv);
    Qkv {
        q: rope::compute(rope, q, position),
        k: rope::compute(rope, k, position),
        v: v.to_vec(),
    }
}

/// [`compute`] with limits: the dot products' errors ([`bounds::products`]),
/// for queries and keys carried through the rotation, then one store.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    w: Matrix<'_>,
    x: &[f64],
    shape: QkvShape,
    rope: &Rope,
    position: usize,
    form: QkvForm,
) -> Qkv<Expected> {
    expected_of(w, &bounds::exactly(x), shape, rope, position, form)
}

/// The same of activations that are off by at most `x.limit`.
///
/// # Panics
/// As [`compute`].
pub fn expected_of(
    w: Matrix<'_>,
    x: &Expected,
    shape: QkvShape,
    rope: &Rope,
    position: usize,
    form: QkvForm,
) -> Qkv<Expected> {
    let (y, errors) = bounds::products(w, x, form.sum);
    let y = shape.split(&y);
    let errors = shape.split(&errors);
    let rotated = |x, errors| rope::expected(rope, x, errors, position, form.trig, form.store);
    Qkv {
        q: rotated(y.q, errors.q),
        k: rotated(y.k, errors.k),
        v: form.store.expected(y.v.to_vec(), errors.v),
    }
}

/// What a kernel's limits depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkvForm {
    /// How its dot products add.
    pub sum: Accumulation,
    /// How good its sines and cosines are.
    pub trig: Trig,
    /// How its outputs are stored.
    pub store: Store,
}
