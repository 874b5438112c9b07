//! Validity gates: conditions under which a block or a replicate counts, declared
//! beforehand and evaluated without sight of what B did.

use distrs::{Normal, StudentsT};

use super::estimate::standard_deviation;
use super::{Block, StatsError, mean_interval, median, percent};
use crate::record::Arm;

/// Two-sided error rate of the gates on trend and position: a sound replicate is lost
/// once in a thousand.
const RATE: f64 = 0.001;

/// Distance of two groups of times, in standard deviations within them, that times of one
/// group reach once in a thousand replicates of twelve blocks, even where they are spread
/// evenly; a normal spread reaches 4.
pub const MODES_LIMIT: f64 = 5.5;

/// Autocorrelation of neighbouring blocks that is strong: independent ones reach it once in
/// a hundred replicates of twelve.
pub const LAG_LIMIT: f64 = 0.6;

/// What a run declared of its gates. What it did not declare is reported and voids nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Departure of a sentinel from the median of its replicate, a log ratio.
    pub sentinel: f64,
    /// Half-width of "no difference that matters", a log ratio: what is smaller voids nothing.
    pub margin: f64,
    /// Distance of two groups of the baseline's times, in standard deviations within them.
    pub modes: Option<f64>,
    /// Autocorrelation of the control's neighbouring blocks.
    pub lag: Option<f64>,
}

/// What the gates say of the blocks of one replicate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gates {
    /// Why every block of it is void, if they are.
    pub replicate: Option<String>,
    /// Why single blocks are void, by their number.
    pub blocks: Vec<(u32, String)>,
    /// What is worth a word and voids nothing.
    pub reported: Vec<String>,
}

/// The gates on a replicate's complete blocks. `sentinels` are the times of the sentinel
/// by block. What B did is not looked at.
///
/// # Errors
/// A time that is no time.
pub fn gates(
    blocks: &[Block],
    sentinels: &[(u32, u64)],
    limits: &Limits,
) -> Result<Gates, StatsError> {
    let Limits {
        sentinel: sentinel_limit,
        margin,
        ..
    } = *limits;
    let mut found = Gates::default();
    let logs: Vec<f64> = sentinels.iter().map(|&(_, ns)| (ns as f64).ln()).collect();
    let middle = match logs.is_empty() {
        true => 0.0,
        false => median(&logs)?,
    };
    for block in blocks {
        let own = sentinels.iter().find(|(of, _)| *of == block.index);
        match own {
            None => {
                let reason = "no sentinel was timed after it".to_owned();
                found.blocks.push((block.index, reason));
            }
            Some(&(_, ns)) => {
                let off = (ns as f64).ln() - middle;
                if off.abs() > sentinel_limit {
                    let reason = format!(
                        "the sentinel was {:+.1} % off its median, the limit is {:.1} %",
                        percent(off),
                        percent(sentinel_limit)
                    );
                    found.blocks.push((block.index, reason));
                }
            }
        }
    }
    found.replicate = trend(blocks, margin)?.or(position(blocks, margin)?);
    let modes_off = modes(blocks, limits.modes.unwrap_or(MODES_LIMIT), margin)?;
    let lag_off = lag(blocks, limits.lag.unwrap_or(LAG_LIMIT), margin)?;
    for (off, declared) in [(modes_off, limits.modes), (lag_off, limits.lag)] {
        if declared.is_some() {
            found.replicate = found.replicate.or(off);
        } else {
            found.reported.extend(off);
        }
    }
    Ok(found)
}

/// The baseline and its control must be of one kind of times, not of two: a clock that
/// jumps, or another process that comes and goes.
fn modes(blocks: &[Block], limit: f64, margin: f64) -> Result<Option<String>, StatsError> {
    let mut times = Vec::with_capacity(4 * blocks.len());
    for block in blocks {
        for arm in [Arm::A, Arm::Control] {
            times.extend(block.times.get(&arm).into_iter().flatten().map(|t| t.ln()));
        }
    }
    let Some(found) = two_groups(&times)? else {
        return Ok(None);
    };
    Ok((found.ratio > limit && found.gap > margin).then(|| {
        format!(
            "the baseline's times are of two groups, {:.1} % apart and {:.1} standard deviations \
             within them, the limit is {limit:.1}",
            percent(found.gap),
            found.ratio
        )
    }))
}

/// The control's neighbouring blocks must not go together, where they differ by more than
/// the margin: then they are less evidence than they are many.
fn lag(blocks: &[Block], limit: f64, margin: f64) -> Result<Option<String>, StatsError> {
    let changes: Vec<f64> = blocks.iter().map(Block::control_log_ratio).collect();
    let spread = standard_deviation(&changes)?.filter(|sd| *sd > margin);
    let strong = lag_one(&changes).filter(|lag| lag.abs() > limit);
    Ok(spread.zip(strong).map(|(sd, lag)| {
        format!(
            "neighbouring blocks of the control go together (autocorrelation {lag:+.2}, the limit \
             is {limit:.2}) and differ by {:.1} %",
            percent(sd)
        )
    }))
}

/// Values split in two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Groups {
    /// Difference of the groups' means.
    pub gap: f64,
    /// The same in standard deviations within the groups.
    pub ratio: f64,
}

/// Fewer values than this are not split: chance would make groups of them.
const FEWEST: usize = 40;

/// Splits values in two groups, each a fifth of them at least, so that as little spread as
/// can be is left within; `None` for fewer than forty values, or values that are all the
/// same.
///
/// # Errors
/// A value is not finite.
pub fn two_groups(values: &[f64]) -> Result<Option<Groups>, StatsError> {
    super::finite("the split in two groups", values)?;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if n < FEWEST {
        return Ok(None);
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let least = n.div_ceil(5);
    let gap = |at: usize| mean(&sorted[at..]) - mean(&sorted[..at]);
    let between = |at: usize| (at * (n - at)) as f64 * gap(at).powi(2);
    let splits = least..=n - least;
    let Some(at) = splits.max_by(|&a, &b| between(a).total_cmp(&between(b))) else {
        return Ok(None);
    };
    let squares = |values: &[f64]| {
        let mean = mean(values);
        values.iter().map(|v| (v - mean).powi(2)).sum::<f64>()
    };
    let within = squares(&sorted[..at]) + squares(&sorted[at..]);
    let (gap, sd) = (gap(at), (within / (n - 2) as f64).sqrt());
    Ok((gap > 0.0).then(|| Groups {
        gap,
        ratio: gap / sd,
    }))
}

/// The baseline must not get slower or faster with time: Spearman's rank correlation,
/// where the drift is also larger than the margin.
fn trend(blocks: &[Block], margin: f64) -> Result<Option<String>, StatsError> {
    let times: Vec<f64> = blocks.iter().map(|b| b.log_time(Arm::A)).collect();
    let third = times.len() / 3;
    if third < 2 {
        return Ok(None);
    }
    let Some(rho) = spearman(&times) else {
        return Ok(None);
    };
    let drift = median(&times[times.len() - third..])? - median(&times[..third])?;
    let off = rho.abs() > spearman_limit(times.len()) && drift.abs() > margin;
    Ok(off.then(|| {
        format!(
            "the baseline drifted by {:+.1} % from the first third of its blocks to the last \
             (rank correlation with time {rho:+.2})",
            percent(drift)
        )
    }))
}

/// The first place in a block must not differ from the second: the same arm's two times.
fn position(blocks: &[Block], margin: f64) -> Result<Option<String>, StatsError> {
    let differences: Vec<f64> = blocks
        .iter()
        .filter_map(|block| block.times.get(&Arm::A))
        .map(|[first, second]| first.ln() - second.ln())
        .collect();
    let Some(interval) = mean_interval(&differences, 1.0 - RATE)? else {
        return Ok(None);
    };
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    let off = interval.excludes_zero() && mean.abs() > margin;
    Ok(off.then(|| {
        format!(
            "the baseline's first time in a block differs from its second by {:+.1} %",
            percent(mean)
        )
    }))
}

/// Spearman's rank correlation of values with their order; `None` for fewer than three
/// values or values that are all the same.
pub fn spearman(values: &[f64]) -> Option<f64> {
    if values.len() < 3 {
        return None;
    }
    // Mean ranks of equal values.
    let rank = |value: f64| {
        let below = values.iter().filter(|v| **v < value).count() as f64;
        let same = values.iter().filter(|v| **v == value).count() as f64;
        below + (same - 1.0) / 2.0
    };
    let mean = (values.len() - 1) as f64 / 2.0;
    let (mut both, mut ranks, mut times) = (0.0, 0.0, 0.0);
    for (time, &value) in values.iter().enumerate() {
        let (r, t) = (rank(value) - mean, time as f64 - mean);
        both += r * t;
        ranks += r * r;
        times += t * t;
    }
    (ranks > 0.0).then(|| both / (ranks * times).sqrt())
}

/// Correlations beyond this happen without a trend at [`RATE`] (Student's t with n - 2
/// degrees of freedom).
fn spearman_limit(n: usize) -> f64 {
    let freedom = n.saturating_sub(2).max(1) as f64;
    let t = if freedom > 200.0 {
        Normal::ppf(1.0 - RATE / 2.0, 0.0, 1.0)
    } else {
        StudentsT::ppf(1.0 - RATE / 2.0, freedom)
    };
    t / (freedom + t * t).sqrt()
}

/// Autocorrelation of neighbouring values; `None` for fewer than three, or where all are
/// the same.
fn lag_one(values: &[f64]) -> Option<f64> {
    let n = values.len();
    let mean = values.iter().sum::<f64>() / n as f64;
    let around = |value: f64| value - mean;
    let square: f64 = values.iter().map(|v| around(*v).powi(2)).sum();
    let product: f64 = values.windows(2).map(|p| around(p[0]) * around(p[1])).sum();
    (n >= 3 && square > 0.0).then(|| product / square)
}
