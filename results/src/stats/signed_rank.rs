//! The exact interval of Wilcoxon's signed-rank test.

use distrs::Normal;

use super::{StatsError, finite};

/// Up to here the null distribution is exact; beyond, its normal limit differs
/// by less than one Walsh average in a hundred thousand.
const EXACT_UP_TO: usize = 300;

/// A two-sided interval, log ratios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub lo: f64,
    /// Upper end.
    pub hi: f64,
    /// Confidence asked for, 0.95.
    pub level: f64,
    /// Confidence reached: the smallest at or above `level` that ranks allow.
    pub achieved: f64,
}

impl Interval {
    /// Whether the whole interval lies beyond `-margin` or `margin`.
    pub fn beyond(&self, margin: f64) -> bool {
        self.hi < -margin || self.lo > margin
    }

    /// Whether the whole interval lies strictly between `-margin` and `margin`.
    pub fn inside(&self, margin: f64) -> bool {
        -margin < self.lo && self.hi < margin
    }

    /// Its level in percent as it is printed: `95`, `98.3`.
    pub fn named_level(&self) -> String {
        let percent = format!("{:.1}", 100.0 * self.level);
        percent.strip_suffix(".0").unwrap_or(&percent).to_owned()
    }

    /// Whether the interval leaves 0 out.
    pub fn excludes_zero(&self) -> bool {
        self.beyond(0.0)
    }
}

/// The interval of the pseudo-median that the signed-rank test does not reject:
/// from the k-th smallest to the k-th largest Walsh average. `None` where so few
/// values cannot reach the level (95 % needs 6, 90 % needs 5).
///
/// # Errors
/// No values, a value that is not finite, or a level outside 0 to 1.
pub fn signed_rank_interval(values: &[f64], level: f64) -> Result<Option<Interval>, StatsError> {
    if values.is_empty() {
        return Err(StatsError::Empty);
    }
    finite("the signed-rank interval", values)?;
    let Some((k, achieved)) = cut(values.len(), level)? else {
        return Ok(None);
    };
    let averages = walsh_averages(values);
    Ok(Some(Interval {
        lo: averages[k - 1],
        hi: averages[averages.len() - k],
        level,
        achieved,
    }))
}

/// Two-sided level `2 P(W <= w)` of the signed-rank statistic of `n` values, as
/// printed in tables.
pub fn signed_rank_level(n: usize, w: usize) -> f64 {
    let below: f64 = null_distribution(n).iter().take(w + 1).sum();
    (2.0 * below).min(1.0)
}

/// All averages of two values, each also with itself, ascending.
pub(super) fn walsh_averages(values: &[f64]) -> Vec<f64> {
    let mut averages = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (i, left) in values.iter().enumerate() {
        averages.extend(values[i..].iter().map(|right| 0.5 * left + 0.5 * right));
    }
    averages.sort_by(f64::total_cmp);
    averages
}

/// The largest k with `P(W <= k - 1) <= (1 - level) / 2`, and the confidence
/// that it gives.
fn cut(n: usize, level: f64) -> Result<Option<(usize, f64)>, StatsError> {
    if !(level > 0.0 && level < 1.0) {
        return Err(StatsError::Range {
            what: "confidence level",
            found: level,
        });
    }
    let tail = 0.5 * (1.0 - level);
    if n > EXACT_UP_TO {
        return Ok(Some(normal_cut(n, level)));
    }
    let mut below = 0.0;
    let mut k = 0;
    for probability in null_distribution(n) {
        // The sum of at most n(n+1)/4 dyadic fractions is exact where it matters
        // (n <= 50); beyond, ties with `tail` do not occur.
        if below + probability > tail {
            break;
        }
        below += probability;
        k += 1;
    }
    Ok((k > 0).then_some((k, 1.0 - 2.0 * below)))
}

/// `P(W = w)` for w from 0 to n(n+1)/2: each rank joins the sum by a fair coin.
fn null_distribution(n: usize) -> Vec<f64> {
    let mut probability = vec![0.0; n * (n + 1) / 2 + 1];
    probability[0] = 1.0;
    let mut reach = 0;
    for rank in 1..=n {
        reach += rank;
        for w in (0..=reach).rev() {
            let joined = if w >= rank {
                probability[w - rank]
            } else {
                0.0
            };
            probability[w] = 0.5 * probability[w] + 0.5 * joined;
        }
    }
    probability
}

fn normal_cut(n: usize, level: f64) -> (usize, f64) {
    let n = n as f64;
    let mean = n * (n + 1.0) / 4.0;
    let sd = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
    let z = Normal::ppf(0.5 + 0.5 * level, 0.0, 1.0);
    // Half a rank for continuity; floor errs towards the wider interval.
    let k = (mean - z * sd + 0.5).floor().max(1.0);
    (k as usize, level)
}
