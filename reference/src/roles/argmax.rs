//! `argmax`: the greedy token.

/// Index of the greatest of `logits`, the lowest of equals; none when there are
/// no logits or one is NaN.
///
/// The published kernel resolves ties across invocations in tree order and
/// takes NaN for small; ours must give this index.
pub fn compute(logits: &[f64]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (i, logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return None;
        }
        if best.is_none_or(|b| *logit > logits[b]) {
            best = Some(i);
        }
    }
    best
}

/// Greatest minus second greatest logit: how near the greedy choice was. None
/// with fewer than two logits or a NaN.
pub fn top2_gap(logits: &[f64]) -> Option<f64> {
    let best = compute(logits)?;
    let others = logits.iter().enumerate().filter(|(i, _)| *i != best);
    let second = others.map(|(_, l)| *l).reduce(f64::max)?;
    Some(logits[best] - second)
}
