//! `attention`: one query per head over all cached positions.

use crate::Expected;
use crate::bounds::{self, Accumulation, Store};
use kernels::{ModelSpec, kv::KvFormat};

/// Score below which no key scores: where the running maximum starts.
pub const MIN_SCORE: f64 = -50_000.0;

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; query head `h` reads `floor(h / (heads / kv_heads))`.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Factor of every score.
    pub scale: f64,
}

/// How a kernel computes attention; see [`bounds::softmax_relative`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionForm {
    /// How the dot product of a query with a key adds.
    pub score: Accumulation,
    /// Times that separately normalised parts are combined on the way to the
    /// result: 0 for one serial pass, 1 for split-K and its combine, the
    /// tree's depth where invocations hold parts.
    pub merges: usize,
    /// How keys and values are cached: one product more for each of a score and of
    /// a value where they are codes with a scale.
    pub kv: KvFormat,
    /// How the output is stored.
    pub store: Store,
}

impl AttentionShape {
    /// The shape that a model uses.
    pub fn of(spec: &ModelSpec) -> Self {
        Self {
            heads: spec.num_attention_heads,
            kv_heads: spec.num_key_value_heads,
            head_dim: spec.head_dim,
            scale: spec.attention_scale(),
        }
    }

    /// Elements of one position's keys (or values).
    pub fn kv_dim(self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Number of cached positions, after checking the operands.
    pub(super) fn positions(self, q: &[f64], k: &[f64], v: &[f64]) -> usize {
        assert_eq!(q.len(), self.heads * self.head_dim, "attention: query");
        assert_eq!(k.len(), v.len(), "attention: a value per key");
        assert!(
            k.len().is_multiple_of(self.kv_dim()) && self.heads.is_multiple_of(self.kv_heads),
            "attention: whole positions and whole groups of heads"
        );
        k.len() / self.kv_dim()
    }

    /// Row of `head` in `kv`, `[len, kv_heads, head_dim]`, at each position.
    pub(super) fn rows(self, kv: &[f64], head: usize) -> impl Iterator<Item = &[f64]> + Clone {
        let kv_head = head / (self.heads / self.kv_heads);
        let start = kv_head * self.head_dim;
        kv.chunks_exact(self.kv_dim())
            .map(move |row| &row[start..start + self.head_dim])
    }

    /// Scaled scores of one query head against each cached position.
    pub(super) fn scores(self, q: &[f64], k: &[f64], head: usize) -> Vec<f64> {
        let q = &q[head * self.head_dim..][..self.head_dim];
        self.rows(k, head).map(|k| dot(q, k) * self.scale).collect()
    }

    /// Errors of those scores: the dot product's `gamma(c) sum |q k|`, where
    /// the product with the scale takes one of its two extra roundings, and one
    /// more for the scale as an f32.
    pub(super) fn score_errors(
        self,
        q: &[f64],
        k: &[f64],
        head: usize,
        sum: Accumulation,
    ) -> Vec<f64> {
        let q = &q[head * self.head_dim..][..self.head_dim];
        let gamma = bounds::gamma(sum.roundings() + 1) * self.scale.abs();
        let magnitude = |k: &[f64]| q.iter().zip(k).map(|(q, k)| (q * k).abs()).sum::<f64>();
        self.rows(k, head).map(|k| gamma * magnitude(k)).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Softmax weights of `scores`; they sum to one, or there are none.
pub fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// `q` `[heads, head_dim]`, `k` and `v` `[len, kv_heads, head_dim]` (keys
/// rotated, in position order), giving `[heads, head_dim]`. Over no positions
/// the result is zero (a kernel leaves its output alone then).
///
/// # Panics
/// When the shapes contradict each other.
pub fn compute(q: &[f64], k: &[f64], v: &[f64], shape: AttentionShape) -> Vec<f64> {
    shape.positions(q, k, v);
    let mut out = vec![0.0; q.len()];
    for (head, out) in out.chunks_exact_mut(shape.head_dim).enumerate() {
        let weights = softmax(&shape.scores(q, k, head));
        for (weight, v) in weights.iter().zip(shape.rows(v, head)) {
            for (out, v) in out.iter_mut().zip(v) {
                *out += weight * v;
            }
        }
    }
    out
}

/// [`compute`] with limits: score errors through the exponentials
/// ([`bounds::softmax_relative`]), the two sums and their quotient
/// ([`bounds::weighted_mean_error`]), then the store.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    shape: AttentionShape,
    form: AttentionForm,
) -> Expected {
    let len = shape.positions(q, k, v);
    let value = compute(q, k, v, shape);
    let products = match form.kv {
        KvFormat::Plain => 0,
        KvFormat::Int8 => 1,
    };
    let score = Accumulation {
        serial: form.score.serial + products,
        ..form.score
    };
    let sum = len + form.merges + products;
    let mut errors = vec![0.0; value.len()];
    for head in 0..shape.heads {
        let scores = shape.scores(q, k, head);
        let score_errors = shape.score_errors(q, k, head, score);
        let weights = softmax(&scores);
        let relative = bounds::softmax_relative(&scores, &score_errors, sum, form.merges);
        for dim in 0..shape.head_dim {
            let i = head * shape.head_dim + dim;
            let values = shape.rows(v, head).map(|v| v[dim]);
            errors[i] = bounds::weighted_mean_error(&weights, &relative, values, value[i]);
        }
    }
    form.store.expected(value, &errors)
}
