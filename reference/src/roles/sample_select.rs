//! `sample_select`: a token drawn with the probability of its weight, of those that are
//! kept; see [`Draw`].
//!
//! A kernel that adds in f32 draws the same token unless a boundary between tokens, or
//! between what is kept and what is not, is nearer than its rounding: [`may_draw`] says
//! which tokens these are. A weight goes through at most two exponentials whose
//! arguments add up to its own (one relative to its part's maximum, one of that to the
//! greatest), and through the additions of the longest path, so each is known within an
//! interval. A token may be drawn if some choice within all intervals draws it.

use super::sample_reduce::weight_relative;
use crate::bounds::{F32_FLOOR, U, exp_relative, gamma};
use kernels::sampling::{Draw, SAMPLE_PARTS};

/// Invocations of the kernel, which add runs of the vocabulary.
const THREADS: usize = 256;
/// Below it a weight is no normal f32.
const LEAST_EXPONENT: f64 = -120.0;

/// A weight, and where a kernel's may lie.
#[derive(Clone, Copy, Debug)]
struct Weight {
    low: f64,
    high: f64,
}

/// The token that is drawn at a position; none when there are no logits, one is NaN,
/// or none is finite.
pub fn compute(logits: &[f64], draw: &Draw, position: u32) -> Option<usize> {
    let weights = weights(logits, draw, |_| 0.0, 0.0)?;
    let kept = kept(logits, &weights, draw, 0.0);
    let share = draw.share(position);
    let weight = |i: usize| if kept[i].1 { weights[i].high } else { 0.0 };
    let total: f64 = (0..logits.len()).map(weight).sum();
    let mut before = 0.0;
    let mut chosen = None;
    for i in (0..logits.len()).filter(|&i| weight(i) > 0.0) {
        if before <= share * total {
            chosen = Some(i);
        }
        before += weight(i);
    }
    chosen
}

/// Whether a correct kernel may draw `token`.
pub fn may_draw(logits: &[f64], draw: &Draw, position: u32, token: usize) -> bool {
    if compute(logits, draw, position) == Some(token) {
        return true;
    }
    // Serial additions of a run, of the runs, and of the parts; trees; products.
    let runs = logits.len().div_ceil(THREADS);
    let sums = gamma(2 * runs + 2 * THREADS + SAMPLE_PARTS + 16);
    let error = |x: f64| weight_relative(x) + 1.01 * exp_relative(0.0) + sums;
    let Some(weights) = weights(logits, draw, error, F32_FLOOR) else {
        return false;
    };
    // A weight of zero is exact; every other may be flushed, and is then not drawn.
    if logits.get(token).is_none_or(|&x| x == f64::NEG_INFINITY) {
        return false;
    }
    let kept = kept(logits, &weights, draw, 4.0 * U);
    if !kept[token].1 {
        return false;
    }
    let sure = |i: usize| if kept[i].0 { weights[i].low } else { 0.0 };
    let possible = |i: usize| if kept[i].1 { weights[i].high } else { 0.0 };
    let before = (0..token).fold([0.0, 0.0], |[low, high], i| {
        [low + sure(i), high + possible(i)]
    });
    let after = token + 1..weights.len();
    let after = after.fold([0.0, 0.0], |[low, high], i| {
        [low + sure(i), high + possible(i)]
    });
    let share = draw.share(position);
    let own = weights[token].high;
    // `before <= share * total < before + own` for some weights of the intervals.
    let reaches = share * (own + after[1]) >= (1.0 - share) * before[0];
    let ends = (1.0 - share) * (before[1] + own) > share * after[0];
    reaches && ends
}

/// The weights, each within `error` of its exponent and `floor`.
fn weights(
    logits: &[f64],
    draw: &Draw,
    error: impl Fn(f64) -> f64,
    floor: f64,
) -> Option<Vec<Weight>> {
    let largest = logits.iter().copied().reduce(f64::max)?;
    if logits.iter().any(|l| l.is_nan()) || !largest.is_finite() {
        return None;
    }
    let weight = |l: &f64| {
        let x = ((l - largest) / f64::from(draw.temperature)).max(LEAST_EXPONENT);
        let value = if x == LEAST_EXPONENT { 0.0 } else { x.exp() };
        let error = error(x);
        Weight {
            low: (value * (1.0 - error) - floor).max(0.0),
            high: value * (1.0 + error) + floor,
        }
    };
    Some(logits.iter().map(weight).collect())
}

/// Whether each token is surely kept, and whether it may be. Equal logits have equal
/// weights.
fn kept(logits: &[f64], weights: &[Weight], draw: &Draw, rounding: f64) -> Vec<(bool, bool)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let sorted: Vec<Weight> = order.iter().map(|&i| weights[i]).collect();
    let mut sums = vec![[0.0, 0.0]];
    for weight in &sorted {
        let [low, high] = sums[sums.len() - 1];
        sums.push([low + weight.low, high + weight.high]);
    }
    let [all_low, all_high] = sums[sorted.len()];
    let top_p = f64::from(draw.top_p);
    let mut kept = vec![(false, false); logits.len()];
    let mut first = 0;
    for group in order.chunk_by(|&a, &b| logits[a] == logits[b]) {
        let end = first + group.len();
        let own = sorted[first];
        let above = sorted.partition_point(|other| other.low > own.high);
        let beside = sorted
            .partition_point(|other| other.high > own.low)
            .max(end);
        let mut sure = own.low >= f64::from(draw.min_p);
        let mut maybe = own.high >= f64::from(draw.min_p);
        if draw.top_k > 0 {
            maybe &= above < draw.top_k as usize;
            sure &= beside - group.len() < draw.top_k as usize;
        }
        if draw.top_p < 1.0 {
            maybe &= sums[above][0] < top_p * all_high * (1.0 + rounding);
            let possible = sums[beside][1] - (sums[end][1] - sums[first][1]);
            sure &= possible < top_p * all_low * (1.0 - rounding);
        }
        for &i in group {
            kept[i] = (sure, maybe);
        }
        first = end;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(logits: &[f64], draw: Draw) -> Vec<usize> {
        (0..4000)
            .map(|at| compute(logits, &draw, at).expect("a token"))
            .collect()
    }

    /// How often each token comes is its probability, within four standard deviations.
    fn comes_as(logits: &[f64], draw: Draw, expected: &[f64]) {
        let tokens = tokens(logits, draw);
        for (token, &probability) in expected.iter().enumerate() {
            let count = tokens.iter().filter(|&&t| t == token).count() as f64;
            let n = tokens.len() as f64;
            let deviation = (n * probability * (1.0 - probability)).sqrt();
            let off = (count - n * probability).abs();
            assert!(
                off <= 4.0 * deviation,
                "{draw:?}, token {token}: {count} of {n}"
            );
        }
    }

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        let plain = Draw {
            seed: 3,
            ..Draw::PLAIN
        };
        let logits = [4.0_f64, 1.0, 2.0, 3.0].map(f64::ln);
        comes_as(&logits, plain, &[0.4, 0.1, 0.2, 0.3]);
        let squares = Draw {
            temperature: 0.5,
            ..plain
        };
        comes_as(
            &logits,
            squares,
            &[16.0 / 30.0, 1.0 / 30.0, 4.0 / 30.0, 9.0 / 30.0],
        );
        comes_as(
            &logits,
            Draw { top_k: 2, ..plain },
            &[4.0 / 7.0, 0.0, 0.0, 3.0 / 7.0],
        );
        // 0.4 is less than 0.5 and no less than 0.39; 0.7 is not less than 0.5.
        comes_as(
            &logits,
            Draw {
                top_p: 0.5,
                ..plain
            },
            &[4.0 / 7.0, 0.0, 0.0, 3.0 / 7.0],
        );
        comes_as(
            &logits,
            Draw {
                top_p: 0.39,
                ..plain
            },
            &[1.0, 0.0, 0.0, 0.0],
        );
        comes_as(
            &logits,
            Draw {
                min_p: 0.6,
                ..plain
            },
            &[4.0 / 7.0, 0.0, 0.0, 3.0 / 7.0],
        );
        comes_as(&[1.0; 4], Draw { top_k: 2, ..plain }, &[0.25; 4]);
    }

    #[test]
    fn what_may_be_drawn_is_what_is_and_what_borders_on_it() {
        let logits: Vec<f64> = (0..1000).map(|i| f64::from(i * 37 % 113) / 16.0).collect();
        for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (20, 1.0, 0.0), (0, 0.7, 0.0), (50, 0.9, 0.1)]
        {
            let draw = Draw {
                top_k,
                top_p,
                min_p,
                seed: 5,
                ..Draw::PLAIN
            };
            let mut others = 0;
            for position in 0..50 {
                let token = compute(&logits, &draw, position).expect("a token");
                assert!(may_draw(&logits, &draw, position, token), "the drawn token");
                let may = |other: &usize| may_draw(&logits, &draw, position, *other);
                others += (0..1000).filter(may).count() - 1;
            }
            assert!(others < 5, "{draw:?}: {others} other tokens in 50 draws");
        }
    }

    #[test]
    fn logits_without_an_answer_have_none() {
        let draw = Draw::PLAIN;
        assert_eq!(compute(&[], &draw, 0), None, "no logits");
        assert_eq!(compute(&[f64::NAN, 1.0], &draw, 0), None, "NaN");
        assert_eq!(
            compute(&[f64::NEG_INFINITY; 2], &draw, 0),
            None,
            "nothing finite"
        );
        let one = [f64::NEG_INFINITY, -9.0];
        assert_eq!(compute(&one, &draw, 0), Some(1), "one finite");
        assert!(!may_draw(&one, &draw, 0, 0), "the other never");
        assert!(!may_draw(&one, &draw, 0, 2), "nor one behind the end");
    }
}
