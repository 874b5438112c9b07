//! Change points of a long series: E-divisive, as Hunter and Otava use it
//! (arXiv 2301.03034), with its permutation test.

use super::{StatsError, finite};
use crate::draw::shuffle;

/// Fewest values between two change points.
pub const LEAST_SEGMENT: usize = 4;

/// Orders that a split is compared with, and how many of them may part as far.
const ORDERS: usize = 199;
const AS_FAR: usize = 1;

/// Where a series changes: the indices of the values with which something new begins,
/// ascending. A split stands where at most one of 199 drawn orders of its segment parts as
/// far, so that a segment without a change is split once in a hundred times.
///
/// # Errors
/// A value is not finite.
pub fn change_points(values: &[f64], seed: u64) -> Result<Vec<usize>, StatsError> {
    finite("the change points", values)?;
    let mut found = Vec::new();
    let mut state = seed;
    let mut open = vec![(0, values.len())];
    while let Some((start, end)) = open.pop() {
        let of_segment = &values[start..end];
        let Some(split) = farthest(of_segment) else {
            continue;
        };
        let mut shuffled = of_segment.to_vec();
        let as_far = (0..ORDERS).filter(|_| {
            shuffle(&mut shuffled, &mut state);
            farthest(&shuffled).is_some_and(|other| other.distance >= split.distance)
        });
        if as_far.take(AS_FAR + 1).count() <= AS_FAR {
            let at = start + split.at;
            found.push(at);
            open.extend([(start, at), (at, end)]);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// A split of a segment.
struct Split {
    /// The first value of its second part.
    at: usize,
    /// How far the parts lie apart, by the energy distance of their values.
    distance: f64,
}

/// The split whose parts lie farthest apart; `None` where a part would have too few
/// values.
fn farthest(values: &[f64]) -> Option<Split> {
    let n = values.len();
    let apart = |value: f64, others: &[f64]| -> f64 {
        others.iter().map(|other| (value - other).abs()).sum()
    };
    // Sums of the distances within each part and between them, as the split moves on.
    let (mut left, mut between) = (0.0, 0.0);
    let mut right: f64 = (0..n).map(|i| apart(values[i], &values[i + 1..])).sum();
    let mut best: Option<Split> = None;
    for at in 1..n {
        let value = values[at - 1];
        let (before, after) = (&values[..at - 1], &values[at..]);
        let (to_left, to_right) = (apart(value, before), apart(value, after));
        left += to_left;
        right -= to_right;
        between += to_right - to_left;
        if at < LEAST_SEGMENT || n - at < LEAST_SEGMENT {
            continue;
        }
        let (a, b) = (at as f64, (n - at) as f64);
        let within = 2.0 * left / (a * (a - 1.0)) + 2.0 * right / (b * (b - 1.0));
        let distance = a * b / (a + b) * (2.0 * between / (a * b) - within);
        if best.as_ref().is_none_or(|best| distance > best.distance) {
            best = Some(Split { at, distance });
        }
    }
    best
}
