//! `attention_combine`: joins the parts of `attention_splitk`.

use crate::Expected;
use crate::bounds::{self, Store};
use kernels::kv::partial_len;

/// A part's maximum, denominator and unnormalised output.
#[derive(Clone, Copy)]
struct Part<'a> {
    m: f64,
    d: f64,
    o: &'a [f64],
}

/// The parts of each head that hold any position, and their greatest maximum.
fn heads(
    partials: &[f64],
    head_dim: usize,
    parts: usize,
) -> impl Iterator<Item = (Vec<Part<'_>>, f64)> {
    let stride = partial_len(head_dim);
    assert!(
        parts > 0 && partials.len().is_multiple_of(parts * stride),
        "attention_combine: [heads, {parts}, {stride}], found {} elements",
        partials.len()
    );
    partials.chunks_exact(parts * stride).map(move |head| {
        let parts = head.chunks_exact(stride).map(|p| Part {
            m: p[0],
            d: p[1],
            o: &p[2..],
        });
        let parts: Vec<Part<'_>> = parts.filter(|part| part.d > 0.0).collect();
        let max = parts.iter().map(|p| p.m).fold(f64::NEG_INFINITY, f64::max);
        (parts, max)
    })
}

/// `partials` `[heads, parts, head_dim + 2]`, giving `[heads, head_dim]`:
/// `M = max m` over parts with `d > 0`, then `sum o e^(m-M) / sum d e^(m-M)`.
/// A head without any such part gives zero.
///
/// # Panics
/// When the length is no multiple of a head's partials or `parts` is zero.
pub fn compute(partials: &[f64], head_dim: usize, parts: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for (parts, max) in heads(partials, head_dim, parts) {
        let weights: Vec<f64> = parts.iter().map(|p| (p.m - max).exp()).collect();
        let weighted = || parts.iter().zip(&weights);
        let sum: f64 = weighted().map(|(p, w)| p.d * w).sum();
        out.extend((0..head_dim).map(|dim| {
            let numerator: f64 = weighted().map(|(p, w)| p.o[dim] * w).sum();
            if sum > 0.0 { numerator / sum } else { 0.0 }
        }));
    }
    out
}

/// [`compute`] with limits, for partials read exactly as f32.
///
/// A part's factor `exp(m - M)` is off by the rounding of the subtraction and
/// by the exponential; then product, sum and division, as in
/// [`bounds::weighted_mean_error`] with the parts as keys.
///
/// # Panics
/// As [`compute`].
pub fn expected(partials: &[f64], head_dim: usize, parts: usize, store: Store) -> Expected {
    let value = compute(partials, head_dim, parts);
    let mut errors = Vec::with_capacity(value.len());
    for (parts, max) in heads(partials, head_dim, parts) {
        let relative: Vec<f64> = parts
            .iter()
            .map(|p| {
                let t = max - p.m;
                let factor = (1.0 + bounds::exp_relative(t)) * (1.0 + bounds::U * t);
                factor * (1.0 + bounds::gamma(parts.len() + 1)) - 1.0
            })
            .collect();
        let weights: Vec<f64> = parts.iter().map(|p| p.d * (p.m - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let weights: Vec<f64> = weights.iter().map(|w| w / sum).collect();
        for dim in 0..head_dim {
            let means = parts.iter().map(|p| p.o[dim] / p.d);
            let result = value[errors.len()];
            let error = bounds::weighted_mean_error(&weights, &relative, means, result);
            // A factor that is flushed takes the part's unnormalised output with it.
            let flushed: f64 = parts.iter().map(|p| p.o[dim].abs()).sum();
            errors.push(error + bounds::F32_FLOOR * flushed);
        }
    }
    store.expected(value, &errors)
}
