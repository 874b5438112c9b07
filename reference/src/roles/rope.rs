//! `rope`: rotates the half-split pairs of each head by its position.

use crate::Expected;
use crate::bounds::{self, Store, Trig};
use kernels::ModelSpec;

/// The rotation of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Elements of one head.
    pub head_dim: usize,
    /// Angle per position of each pair (radians), `[rotary_dim / 2]`; the
    /// dimensions of a head from `rotary_dim` on are copied.
    pub inv_freq: Vec<f64>,
    /// What rotated values are multiplied by.
    pub attention_factor: f64,
}

impl Rope {
    /// The rotation that a model uses.
    pub fn of(spec: &ModelSpec) -> Self {
        Self {
            head_dim: spec.head_dim,
            inv_freq: spec.inv_freq(),
            attention_factor: spec.rope_attention_factor(),
        }
    }

    /// `(low, high, frequency)` of each rotated pair within a head: dimension
    /// `i` goes with `i + rotary_dim / 2`.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize, f64)> {
        let half = self.inv_freq.len();
        let freqs = self.inv_freq.iter().enumerate();
        freqs.map(move |(i, &freq)| (i, i + half, freq))
    }

    fn assert_heads(&self, len: usize) {
        assert!(
            2 * self.inv_freq.len() <= self.head_dim && len.is_multiple_of(self.head_dim),
            "rope: whole heads of {} with {} rotated pairs, found {len} elements",
            self.head_dim,
            self.inv_freq.len()
        );
    }
}

/// Rotates `x` (`[heads, head_dim]`) to `position`:
/// `low' = c low - s high`, `high' = c high + s low`, times the attention factor.
///
/// # Panics
/// When `x` does not consist of whole heads.
pub fn compute(rope: &Rope, x: &[f64], position: usize) -> Vec<f64> {
    rope.assert_heads(x.len());
    let mut out = x.to_vec();
    for (low, high, freq) in rope.pairs() {
        let (sin, cos) = (position as f64 * freq).sin_cos();
        let (sin, cos) = (sin * rope.attention_factor, cos * rope.attention_factor);
        for head in out.chunks_exact_mut(rope.head_dim) {
            let (a, b) = (head[low], head[high]);
            head[low] = cos * a - sin * b;
            head[high] = cos * b + sin * a;
        }
    }
    out
}

/// [`compute`] with limits, for an `x` that is itself off by `errors` (all zero
/// when `x` is read from a buffer): [`bounds::rotation_error`] for rotated
/// pairs, then the store.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    rope: &Rope,
    x: &[f64],
    errors: &[f64],
    position: usize,
    trig: Trig,
    store: Store,
) -> Expected {
    let value = compute(rope, x, position);
    let mut rotated = errors.to_vec();
    for (low, high, freq) in rope.pairs() {
        // A factor other than 1 is rounded, and so is its product: as much as if the
        // pair were larger, and `c` and `s` off by two roundings more.
        let factor = rope.attention_factor;
        let scaling = if factor == 1.0 { 0.0 } else { 2.0 * bounds::U };
        let trig = trig.error(position as f64 * freq) + scaling;
        let heads = rotated.chunks_exact_mut(rope.head_dim);
        for (error, x) in heads.zip(x.chunks_exact(rope.head_dim)) {
            let errors = [factor * error[low], factor * error[high]];
            let pair = [factor * x[low], factor * x[high]];
            let limit = bounds::rotation_error(pair, errors, trig);
            error[low] = limit;
            error[high] = limit;
        }
    }
    store.expected(value, &rotated)
}
