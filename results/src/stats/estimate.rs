//! Location, spread and what they can resolve.

use distrs::StudentsT;

use super::signed_rank::walsh_averages;
use super::{Interval, StatsError, finite, signed_rank_interval};

/// Share of true effects of the size of the minimum detectable effect that a
/// run of the same length finds.
pub(super) const POWER: f64 = 0.8;

/// What the blocks say about one comparison, log ratios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Number of values: blocks, or replicates of a published run.
    pub count: usize,
    /// Hodges-Lehmann pseudo-median of blocks, mean of replicates.
    pub centre: f64,
    /// The two-sided interval that decides between FASTER, SLOWER and neither: of
    /// blocks 95 %, absent below 6; of replicates that of the look.
    pub ci: Option<Interval>,
    /// The two one-sided tests of equivalence, as an interval: of blocks 90 %, absent
    /// below 5.
    pub tost: Option<Interval>,
    /// Standard deviation between the values; absent for a single one.
    pub sd: Option<f64>,
    /// Minimum detectable effect, `(t(1 - alpha/2, n-1) + t(0.8, n-1)) sd / sqrt(n)`,
    /// alpha 0.05 of blocks; absent for a single value.
    pub mde: Option<f64>,
}

impl Estimate {
    /// Estimates from one log ratio per block; `None` without a block.
    ///
    /// # Errors
    /// A value is not finite.
    pub fn of(values: &[f64]) -> Result<Option<Self>, StatsError> {
        if values.is_empty() {
            return Ok(None);
        }
        let sd = standard_deviation(values)?;
        Ok(Some(Self {
            count: values.len(),
            centre: hodges_lehmann(values)?,
            ci: signed_rank_interval(values, 0.95)?,
            tost: signed_rank_interval(values, 0.90)?,
            sd,
            mde: sd.map(|sd| detectable(values.len(), sd, 0.05)),
        }))
    }

    /// Estimates from one log ratio per replicate, each the pseudo-median of its blocks,
    /// at a two-sided error rate of `alpha`; `None` without a replicate.
    ///
    /// # Errors
    /// A value is not finite, or `alpha` outside 0 to 1/2.
    pub fn of_replicates(values: &[f64], alpha: f64) -> Result<Option<Self>, StatsError> {
        if !(alpha > 0.0 && alpha < 0.5) {
            let what = "the error rate of a look";
            return Err(StatsError::Range { what, found: alpha });
        }
        if values.is_empty() {
            return Ok(None);
        }
        let sd = standard_deviation(values)?;
        Ok(Some(Self {
            count: values.len(),
            centre: values.iter().sum::<f64>() / values.len() as f64,
            ci: mean_interval(values, 1.0 - alpha)?,
            tost: mean_interval(values, 1.0 - 2.0 * alpha)?,
            sd,
            mde: sd.map(|sd| detectable(values.len(), sd, alpha)),
        }))
    }
}

fn detectable(count: usize, sd: f64, alpha: f64) -> f64 {
    let quantiles = student_t(count, 1.0 - alpha / 2.0) + student_t(count, POWER);
    quantiles * sd / (count as f64).sqrt()
}

/// The Hodges-Lehmann pseudo-median: the median of all Walsh averages.
///
/// # Errors
/// No values, or a value is not finite.
pub fn hodges_lehmann(values: &[f64]) -> Result<f64, StatsError> {
    finite("the pseudo-median", values)?;
    median_of_sorted(&walsh_averages(values)).ok_or(StatsError::Empty)
}

/// The median, in the values' unit.
///
/// # Errors
/// No values, or a value is not finite.
pub fn median(values: &[f64]) -> Result<f64, StatsError> {
    quantile(values, 0.5)
}

/// Lower quartile, median and upper quartile, in the values' unit.
///
/// # Errors
/// No values, or a value is not finite.
pub fn quartiles(values: &[f64]) -> Result<[f64; 3], StatsError> {
    Ok([
        quantile(values, 0.25)?,
        quantile(values, 0.5)?,
        quantile(values, 0.75)?,
    ])
}

/// The quantile at `p` (0 to 1), linear between order statistics (type 7).
///
/// # Errors
/// No values, a value is not finite, or `p` is outside 0 to 1.
pub fn quantile(values: &[f64], p: f64) -> Result<f64, StatsError> {
    if !(0.0..=1.0).contains(&p) {
        return Err(StatsError::Range {
            what: "quantile",
            found: p,
        });
    }
    finite("the quantile", values)?;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return Err(StatsError::Empty);
    };
    let at = p * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    let share = at - below as f64;
    Ok(sorted[below] + share * (sorted[above] - sorted[below]))
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len().checked_sub(1)? / 2;
    Some(0.5 * sorted[middle] + 0.5 * sorted[sorted.len() / 2])
}

/// The interval of the mean of values that are about normal, by Student's t; `None`
/// for fewer than two.
///
/// # Errors
/// A value is not finite, or a level outside 0 to 1.
pub fn mean_interval(values: &[f64], level: f64) -> Result<Option<Interval>, StatsError> {
    if !(level > 0.0 && level < 1.0) {
        let what = "the level of the mean's interval";
        return Err(StatsError::Range { what, found: level });
    }
    let Some(sd) = standard_deviation(values)? else {
        return Ok(None);
    };
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let half = student_t(values.len(), 0.5 + level / 2.0) * sd / n.sqrt();
    Ok(Some(Interval {
        lo: mean - half,
        hi: mean + half,
        level,
        achieved: level,
    }))
}

/// `None` for fewer than two values.
pub(super) fn standard_deviation(values: &[f64]) -> Result<Option<f64>, StatsError> {
    finite("the standard deviation", values)?;
    if values.len() < 2 {
        return Ok(None);
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Ok(Some((squares / (n - 1.0)).sqrt()))
}

/// Quantile of Student's t with `n - 1` degrees of freedom, `n` at least 2.
pub(super) fn student_t(n: usize, p: f64) -> f64 {
    StudentsT::ppf(p, n.saturating_sub(1).max(1) as f64)
}

/// Distribution function of Student's t with `n - 1` degrees of freedom, `n` at least 2.
pub(super) fn student_t_cdf(n: usize, t: f64) -> f64 {
    StudentsT::cdf(t, n.saturating_sub(1).max(1) as f64)
}
