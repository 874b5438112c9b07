//! `moe_router_topk`: the experts of a token and their weights.

use crate::Expected;
use crate::bounds::{self, Accumulation, Store, U, sigmoid};
use kernels::models::Experts;

/// A token's slots: the chosen experts, the greatest logit first, then the shared one.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen<T> {
    /// The experts.
    pub ids: Vec<u32>,
    /// Their weights.
    pub weights: T,
}

/// `logits` `[E]`, and behind them that of the shared expert's gate: the experts of the
/// greatest, the lower index at a tie, with their softmax over all or, where they are
/// normalised, among themselves; then the shared one with its sigmoid.
///
/// # Panics
/// When there is not a logit for each expert.
pub fn compute(logits: &[f64], experts: &Experts) -> Chosen<Vec<f64>> {
    weigh(logits, choose(logits, experts), experts)
}

/// The weights of the chosen experts `ids`, and the shared one behind them.
///
/// # Panics
/// When there is not a logit for each expert.
pub fn weigh(logits: &[f64], mut ids: Vec<u32>, experts: &Experts) -> Chosen<Vec<f64>> {
    let routed = &logits[..experts.num_experts];
    let chosen = ids.iter().map(|&id| logits[id as usize]);
    let max = chosen.fold(f64::NEG_INFINITY, f64::max);
    let weight = |logit: f64| (logit - max).exp();
    let sum: f64 = divisor(routed, &ids, experts).map(weight).sum();
    let weights = ids.iter().map(|&id| weight(logits[id as usize]) / sum);
    let mut weights: Vec<f64> = weights.collect();
    if experts.shared_expert {
        ids.push(experts.num_experts as u32);
        weights.push(sigmoid(logits[experts.num_experts]));
    }
    Chosen { ids, weights }
}

/// [`compute`] with limits for logits in f32, in which the choice is exact. `sum` is how
/// a kernel adds the divisor.
///
/// A weight `e^x` is off by the rounding of its difference and by the exponential; the
/// divisor by its terms' errors and its additions; then one division.
///
/// # Panics
/// As [`compute`].
pub fn expected(logits: &[f64], experts: &Experts, sum: Accumulation) -> Chosen<Expected> {
    let Chosen { ids, weights } = compute(logits, experts);
    let chosen = &ids[..experts.num_experts_per_tok];
    let max = logits[ids[0] as usize];
    let relative = |logit: f64| {
        let x = max - logit;
        (U * x).exp_m1() + (U * x).exp() * bounds::exp_relative(x)
    };
    let terms = divisor(&logits[..experts.num_experts], chosen, experts);
    let [divisor, error] = terms.fold([0.0, 0.0], |[sum, error], logit| {
        let weight = (logit - max).exp();
        [
            sum + weight,
            error + weight * relative(logit) + bounds::F32_FLOOR,
        ]
    });
    let of_sum = error / divisor + sum.gamma() * (1.0 + error / divisor);
    let mut errors: Vec<f64> = chosen
        .iter()
        .zip(&weights)
        .map(|(&id, weight)| {
            let numerator = relative(logits[id as usize]);
            weight * ((1.0 + numerator) * (1.0 + bounds::DIVISION) / (1.0 - of_sum) - 1.0)
                + bounds::F32_FLOOR / divisor
        })
        .collect();
    if experts.shared_expert {
        errors.push(bounds::sigmoid_error(logits[experts.num_experts]));
    }
    Chosen {
        ids,
        weights: Store::F32.expected(weights, &errors),
    }
}

/// The experts of the greatest `logits`, greatest first, the lower index at a tie.
///
/// # Panics
/// When there is not a logit for each expert.
pub fn choose(logits: &[f64], experts: &Experts) -> Vec<u32> {
    assert_eq!(
        logits.len(),
        experts.stack(),
        "moe_router_topk: a logit per expert"
    );
    let mut order: Vec<u32> = (0..experts.num_experts as u32).collect();
    // Stable, so the lower index stays first.
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    order.truncate(experts.num_experts_per_tok);
    order
}

/// The logits whose weights are the divisor.
fn divisor<'a>(
    routed: &'a [f64],
    chosen: &'a [u32],
    experts: &Experts,
) -> impl Iterator<Item = f64> + 'a {
    let all = if experts.norm_topk_prob {
        0
    } else {
        routed.len()
    };
    let chosen = if experts.norm_topk_prob { chosen } else { &[] };
    let chosen = chosen.iter().map(|&id| routed[id as usize]);
    routed[..all].iter().copied().chain(chosen)
}
