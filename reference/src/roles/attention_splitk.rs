//! `attention_splitk`: attention over parts of the pages, unnormalised, in f32.

use super::attention::{AttentionShape, MIN_SCORE};
use crate::Expected;
use crate::bounds::{self, Accumulation, F32_FLOOR, Store};
use kernels::kv::{PAGE_SIZE, pages_for, partial_len};
use std::ops::Range;

/// Positions of part `part` of `parts` over `len` positions: `ceil(pages /
/// parts)` whole pages each, so the last parts may be short or empty.
///
/// # Panics
/// When `parts` is zero.
pub fn part_positions(len: usize, parts: usize, part: usize) -> Range<usize> {
    assert!(parts > 0, "attention_splitk: at least one part");
    let size = pages_for(len).div_ceil(parts) * PAGE_SIZE;
    (part * size).min(len)..((part + 1) * size).min(len)
}

/// Operands as for [`super::attention::compute`]. Gives `[heads, parts,
/// head_dim + 2]`: maximum score m, denominator d and unnormalised output o of
/// each part. An empty part is m = -50000, d = 0, o = 0.
///
/// # Panics
/// When the shapes contradict each other or `parts` is zero.
pub fn compute(q: &[f64], k: &[f64], v: &[f64], shape: AttentionShape, parts: usize) -> Vec<f64> {
    let len = shape.positions(q, k, v);
    let stride = partial_len(shape.head_dim);
    let mut out = vec![0.0; shape.heads * parts * stride];
    for (i, partial) in out.chunks_exact_mut(stride).enumerate() {
        let (head, part) = (i / parts, i % parts);
        let (k, v) = part_of(k, v, shape, part_positions(len, parts, part));
        let scores = shape.scores(q, k, head);
        let max = scores.iter().copied().fold(MIN_SCORE, f64::max);
        partial[0] = max;
        for (score, v) in scores.iter().zip(shape.rows(v, head)) {
            let weight = (score - max).exp();
            partial[1] += weight;
            for (out, v) in partial[2..].iter_mut().zip(v) {
                *out += weight * v;
            }
        }
    }
    out
}

/// [`compute`] with limits.
///
/// m is off by at most the largest score error `e`. d and o are relative to
/// the computed m, so that a key's weight carries `e` on top of its own error
/// ([`bounds::softmax_relative`]); the errors of the terms add up, each with what
/// a weight that is flushed to zero costs. `merges` is
/// that of [`super::attention::AttentionForm`], inside a part.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    shape: AttentionShape,
    parts: usize,
    score: Accumulation,
    merges: usize,
) -> Expected {
    let len = shape.positions(q, k, v);
    let stride = partial_len(shape.head_dim);
    let value = compute(q, k, v, shape, parts);
    let mut errors = vec![0.0; value.len()];
    for (i, error) in errors.chunks_exact_mut(stride).enumerate() {
        let (head, part) = (i / parts, i % parts);
        let (k, v) = part_of(k, v, shape, part_positions(len, parts, part));
        let scores = shape.scores(q, k, head);
        let score_errors = shape.score_errors(q, k, head, score);
        let max = value[i * stride];
        let max_error = score_errors.iter().copied().fold(0.0, f64::max);
        error[0] = max_error;
        let relative =
            bounds::softmax_relative(&scores, &score_errors, scores.len() + merges, merges);
        let terms = scores.iter().zip(&relative).zip(shape.rows(v, head));
        for ((score, relative), v) in terms {
            let weight_error = (score - max).exp() * ((1.0 + relative) * max_error.exp() - 1.0);
            error[1] += weight_error + F32_FLOOR;
            for (error, v) in error[2..].iter_mut().zip(v) {
                *error += (weight_error + F32_FLOOR) * v.abs();
            }
        }
    }
    Store::F32.expected(value, &errors)
}

fn part_of<'a>(
    k: &'a [f64],
    v: &'a [f64],
    shape: AttentionShape,
    part: Range<usize>,
) -> (&'a [f64], &'a [f64]) {
    let range = part.start * shape.kv_dim()..part.end * shape.kv_dim();
    (&k[range.clone()], &v[range])
}
