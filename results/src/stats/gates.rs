//! Validity gates: conditions under which a block or a replicate counts, declared
//! beforehand and evaluated without sight of what B did.

use distrs::{Normal, StudentsT};

use super::{Block, StatsError, mean_interval, median};
use crate::record::Arm;

/// Two-sided error rate of the gates on trend and position: a sound replicate is lost
/// once in a thousand.
const RATE: f64 = 0.001;

/// What the gates say of the blocks of one replicate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gates {
    /// Why every block of it is void, if they are.
    pub replicate: Option<String>,
    /// Why single blocks are void, by their number.
    pub blocks: Vec<(u32, String)>,
    /// Autocorrelation of the changes of neighbouring blocks; reported, not judged.
    pub lag_one: Option<f64>,
}

/// The gates on a replicate's complete blocks. `sentinels` are the times of the sentinel
/// by block; `sentinel_limit` and `margin` are log ratios.
///
/// # Errors
/// A time that is no time.
pub fn gates(
    blocks: &[Block],
    sentinels: &[(u32, u64)],
    sentinel_limit: f64,
    margin: f64,
) -> Result<Gates, StatsError> {
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
                        super::percent(off),
                        super::percent(sentinel_limit)
                    );
                    found.blocks.push((block.index, reason));
                }
            }
        }
    }
    found.replicate = trend(blocks, margin)?.or(position(blocks, margin)?);
    let changes: Vec<f64> = blocks.iter().map(Block::log_ratio).collect();
    found.lag_one = lag_one(&changes);
    Ok(found)
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
            super::percent(drift)
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
            super::percent(mean)
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
