//! `gdn_conv`, `gdn_conv_seq` and `gdn_conv_commit`: a causal convolution of each
//! channel over the last tokens, then silu; and the tokens that it remembers.

use crate::Expected;
use crate::bounds::{self, Accumulation, Store, silu};

/// The raw tokens before a position, by slot: `[slots, channels]`, the token at
/// position `p` in slot `p % slots`.
pub type Ring = [f64];

/// What the convolution adds for each channel, oldest token first: `[taps][channels]`;
/// zero where no token stands before position 0.
fn window<'a>(
    rows: &'a [Vec<f64>],
    ring: &'a Ring,
    slots: usize,
    start: usize,
    step: usize,
) -> Vec<Option<&'a [f64]>> {
    let channels = rows[0].len();
    let position = start + step;
    let token = |back: usize| {
        if back <= step {
            return Some(rows[step - back].as_slice());
        }
        let at = position.checked_sub(back)? % slots;
        Some(&ring[at * channels..(at + 1) * channels])
    };
    (0..=slots).rev().map(token).collect()
}

/// `rows` `[T][channels]` from position `start` on, in order; `ring` as it was before;
/// `taps` `[channels, slots + 1]`, the current token's last. Gives `[T][channels]`.
///
/// # Panics
/// When the shapes contradict each other.
pub fn compute(rows: &[Vec<f64>], ring: &Ring, taps: &[f64], start: usize) -> Vec<Vec<f64>> {
    sums(rows, ring, taps, start, |w, x| w * x)
        .map(|row| row.into_iter().map(silu).collect())
        .collect()
}

/// [`compute`] with limits: the sum of `slots + 1` products, then silu and the store.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    rows: &[Vec<f64>],
    ring: &Ring,
    taps: &[f64],
    start: usize,
    store: Store,
) -> Vec<Expected> {
    let count = taps.len() / rows[0].len();
    let gamma = Accumulation::serial(count).gamma();
    let magnitudes = sums(rows, ring, taps, start, |w, x| (w * x).abs());
    let values = sums(rows, ring, taps, start, |w, x| w * x);
    values
        .zip(magnitudes)
        .map(|(sums, magnitudes)| {
            let errors = sums.iter().zip(magnitudes);
            let errors: Vec<f64> = errors
                .map(|(&sum, magnitude)| bounds::silu_mul_error(sum, gamma * magnitude, 1.0, 0.0))
                .collect();
            store.expected(sums.into_iter().map(silu).collect(), &errors)
        })
        .collect()
}

fn sums<'a>(
    rows: &'a [Vec<f64>],
    ring: &'a Ring,
    taps: &'a [f64],
    start: usize,
    term: impl Fn(f64, f64) -> f64 + 'a,
) -> impl Iterator<Item = Vec<f64>> + 'a {
    let channels = rows[0].len();
    let count = taps.len() / channels;
    assert!(
        count > 1 && taps.len() == count * channels && ring.len() == (count - 1) * channels,
        "gdn_conv: {} taps and {} remembered of {channels} channels",
        taps.len(),
        ring.len()
    );
    (0..rows.len()).map(move |step| {
        let window = window(rows, ring, count - 1, start, step);
        let mut sums = vec![0.0; channels];
        for (tap, token) in window.iter().enumerate() {
            let Some(token) = token else { continue };
            for (channel, sum) in sums.iter_mut().enumerate() {
                *sum += term(taps[channel * count + tap], token[channel]);
            }
        }
        sums
    })
}

/// The ring after `rows` from position `start` on.
///
/// # Panics
/// When the ring holds no whole tokens.
pub fn commit(rows: &[Vec<f64>], ring: &mut Ring, start: usize) {
    let channels = rows[0].len();
    let slots = ring.len() / channels;
    assert_eq!(
        ring.len(),
        slots * channels,
        "gdn_conv_commit: whole tokens"
    );
    for (step, row) in rows.iter().enumerate() {
        let at = (start + step) % slots * channels;
        ring[at..at + channels].copy_from_slice(row);
    }
}
