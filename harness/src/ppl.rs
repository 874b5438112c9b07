//! Perplexity of two settings over the same windows of a text, token by token in pairs.
//!
//! Each window is fed from an empty cache, one token at a time through the chain of
//! decoded tokens, and the logits of each position are read back: the negative log
//! likelihood (nll) of the token that follows is taken from them in f64. Both settings
//! see the same windows, so what the text makes hard cancels in the difference. Windows
//! do not share context; each gives one mean difference, and the interval is of the mean
//! of these.

use crate::{
    engine::{Arm, Engine},
    interrupt,
};
use anyhow::{Context as _, Result, ensure};
use results::stats::{Interval, mean_interval};
use serde::Serialize;

/// Perplexity of one setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Perplexity {
    /// Mean nll of a token, nats.
    pub nll: f64,
    /// Its exponential.
    pub perplexity: f64,
}

/// Two settings, the second less the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Mean difference of the nll of a token, nats.
    pub nll: f64,
    /// The 95 % interval of it over windows; absent for a single window.
    pub ci95: Option<[f64; 2]>,
    /// Largest absolute difference of one token.
    pub worst: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Whole windows that both settings have seen.
    pub windows: usize,
    /// Tokens of a window; all but the first are predicted.
    pub window: usize,
    /// Tokens that were predicted.
    pub predicted: usize,
    /// The settings in order.
    pub settings: Vec<Perplexity>,
    /// The second less the first, where there are two.
    pub difference: Option<Difference>,
    /// Whether it ended before its last window.
    pub interrupted: bool,
}

/// The nll of `token` in nats, from logits `[V]`.
pub fn nll(logits: &[f64], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|l| (l - largest).exp()).sum();
    sum.ln() + largest - logits[token as usize]
}

/// The nll of each token of a window but the first, `[window - 1]`.
///
/// # Errors
/// A device error, or logits that are not finite.
pub fn window(engine: &Engine<'_>, arm: &Arm, tokens: &[u32]) -> Result<Vec<f64>> {
    engine.memory.forget();
    let pairs = tokens.windows(2).enumerate();
    pairs
        .map(|(position, pair)| {
            engine.set_token(pair[0]);
            engine.decode(&arm.decode, position, 1)?;
            let nll = nll(&engine.logits(&arm.decode.plan)?, pair[1]);
            ensure!(nll.is_finite(), "position {position}: the nll is {nll}");
            Ok(nll)
        })
        .collect()
}

/// Measures one or two settings over windows of `window_tokens` tokens; `progress` gets
/// the tokens done. Ctrl-C ends it after the window in flight.
///
/// # Errors
/// Fewer tokens than one window, or as [`window`].
pub fn measure(
    engine: &Engine<'_>,
    arms: &[Arm],
    tokens: &[u32],
    window_tokens: usize,
    mut progress: impl FnMut(usize),
) -> Result<Measured> {
    ensure!(
        window_tokens >= 2 && tokens.len() >= window_tokens,
        "{} tokens in windows of {window_tokens}; expected windows of 2 or more, and one at least",
        tokens.len()
    );
    let mut all: Vec<Vec<Vec<f64>>> = vec![vec![]; arms.len()];
    let mut done = 0;
    let whole = tokens.chunks_exact(window_tokens);
    let asked = whole.len();
    for tokens in whole {
        if interrupt::asked() && done > 0 {
            break;
        }
        for (arm, windows) in arms.iter().zip(&mut all) {
            windows.push(window(engine, arm, tokens)?);
        }
        done += 1;
        progress(done * window_tokens);
    }
    let settings = all.iter().map(|windows| {
        let nll = mean(windows.iter().flatten().copied()).context("no token was predicted")?;
        let perplexity = nll.exp();
        Ok(Perplexity { nll, perplexity })
    });
    Ok(Measured {
        windows: done,
        window: window_tokens,
        predicted: done * (window_tokens - 1),
        settings: settings.collect::<Result<_>>()?,
        difference: match &all[..] {
            [a, b] => Some(difference(a, b)?),
            _ => None,
        },
        interrupted: done < asked,
    })
}

/// `b` less `a`, window by window.
fn difference(a: &[Vec<f64>], b: &[Vec<f64>]) -> Result<Difference> {
    let pairs = |(a, b): (&Vec<f64>, &Vec<f64>)| -> Vec<f64> {
        a.iter().zip(b).map(|(a, b)| b - a).collect()
    };
    let windows: Vec<Vec<f64>> = a.iter().zip(b).map(pairs).collect();
    let means: Vec<f64> = windows
        .iter()
        .filter_map(|window| mean(window.iter().copied()))
        .collect();
    let ci95 = mean_interval(&means, 0.95)?.map(|Interval { lo, hi, .. }| [lo, hi]);
    Ok(Difference {
        nll: mean(means.iter().copied()).context("no window")?,
        ci95,
        worst: windows
            .iter()
            .flatten()
            .fold(0.0, |worst, d| d.abs().max(worst)),
    })
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), x| (sum + x, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_nll_is_the_negative_log_of_the_share() {
        let logits = [1.0_f64, 2.0, 5.0].map(f64::ln);
        assert!((nll(&logits, 1) - 4.0_f64.ln()).abs() < 1e-12, "a quarter");
        let shifted: Vec<f64> = logits.iter().map(|l| l + 900.0).collect();
        assert!((nll(&shifted, 1) - 4.0_f64.ln()).abs() < 1e-9, "shifted");
        let one = [f64::NEG_INFINITY, 0.0];
        assert_eq!(nll(&one, 1), 0.0, "certain");
        assert_eq!(nll(&one, 0), f64::INFINITY, "impossible");
    }

    #[test]
    fn a_difference_is_paired_by_window() {
        let a = vec![vec![1.0, 9.0], vec![3.0, 2.0]];
        let b = vec![vec![1.5, 9.0], vec![3.0, 2.1]];
        let found = difference(&a, &b).expect("two windows");
        assert!((found.nll - 0.15).abs() < 1e-12, "mean of 0.25 and 0.05");
        let [low, high] = found.ci95.expect("two windows");
        // t of 0.975 with one degree of freedom is 12.706, the standard error 0.1.
        assert!((high - 0.15 - 1.2706).abs() < 1e-3, "{high}");
        assert!((low - 0.15 + 1.2706).abs() < 1e-3, "{low}");
        assert!((found.worst - 0.5).abs() < 1e-12, "one token");
        let one = difference(&a[..1], &b[..1]).expect("one window");
        assert_eq!(one.ci95, None, "no interval of one window");
    }
}
