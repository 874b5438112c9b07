//! f32 rows to codes and scales as MLC's and MLX's quantisers make them, and back.
//!
//! **q4f16_1.** A group is 32 weights along K. With `h = f16(w)`: `scale = f16(max|h| / 7)`,
//! `code = round(h / scale + 7)` limited to 0..=14, division and addition in
//! f32 and ties to even; a group whose scale is zero gets code 7. Proven bit
//! for bit by the golden `quant/q4f16_1`. Code 15 is never written but decodes
//! to `+8 * scale`. **q4f32_1** is the same without rounding weights and scale.
//!
//! **Affine.** The end of a group's range that is further from zero is met exactly,
//! and so is zero: `scale = (max - min) / codes`, then that end is taken to be a
//! whole number of steps, and is the bias. Proven by the golden `quant/mlx_affine`.

use half::f16;
use kernels::quant::{CODES_PER_WORD, QuantFormat};
use rayon::prelude::*;

/// The format that it makes.
pub const FORMAT: QuantFormat = QuantFormat::Q4f16_1;
const GROUP: usize = FORMAT.group_size();
const WORDS_PER_GROUP: usize = GROUP / CODES_PER_WORD;
const ZERO_POINT: f32 = FORMAT.zero_point() as f32;
/// Largest code that the quantiser writes; half of it is the zero point.
const MAX_CODE: f32 = 14.0;

/// Codes and scales of a matrix `[rows, k]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantised {
    /// `[rows, k / 8]`: eight codes a word, lowest nibble first.
    pub words: Vec<u32>,
    /// `[rows, k / 32]`.
    pub scales: Vec<f16>,
}

/// A matrix that q4f16_1 cannot hold.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QuantiseError {
    /// The width does not fall into groups, or the data is not a whole matrix.
    #[error(
        "{len} weights in rows of {k}: expected whole rows whose width is a multiple of the \
         {} group of {GROUP}; pad or choose another format", FORMAT.name()
    )]
    Ragged {
        /// Number of weights given.
        len: usize,
        /// Width of a row.
        k: usize,
    },
    /// A weight that is not finite in f16.
    #[error(
        "row {row}, column {column}: weight {value} is not a finite f16 (largest 65504); \
         the file is damaged or needs rescaling"
    )]
    NotFinite {
        /// Row of the weight.
        row: usize,
        /// Column of the weight.
        column: usize,
        /// The weight.
        value: f32,
    },
}

/// Quantises `weights` `[rows, k]`, rows in parallel.
///
/// # Errors
/// [`QuantiseError`].
pub fn quantise(weights: &[f32], k: usize) -> Result<Quantised, QuantiseError> {
    if k == 0 || !k.is_multiple_of(GROUP) || !weights.len().is_multiple_of(k) {
        return Err(QuantiseError::Ragged {
            len: weights.len(),
            k,
        });
    }
    let mut out = Quantised {
        words: vec![0; weights.len() / CODES_PER_WORD],
        scales: vec![f16::ZERO; weights.len() / GROUP],
    };
    weights
        .par_chunks(k)
        .zip(out.words.par_chunks_mut(FORMAT.words_per_row(k)))
        .zip(out.scales.par_chunks_mut(FORMAT.scales_per_row(k)))
        .enumerate()
        .try_for_each(|(row, ((weights, words), scales))| {
            quantise_row(weights, words, scales).map_err(|column| QuantiseError::NotFinite {
                row,
                column,
                value: weights[column],
            })
        })?;
    Ok(out)
}

/// Quantises one row `[k]` into `[k / 8]` words and `[k / 32]` scales.
///
/// # Errors
/// The index of the first weight that is not finite as f16.
///
/// # Panics
/// When the lengths do not fit together.
pub fn quantise_row(weights: &[f32], words: &mut [u32], scales: &mut [f16]) -> Result<(), usize> {
    assert_eq!(weights.len(), scales.len() * GROUP, "a scale per group");
    assert_eq!(
        weights.len(),
        words.len() * CODES_PER_WORD,
        "a word per eight weights"
    );
    let groups = weights
        .chunks_exact(GROUP)
        .zip(words.chunks_exact_mut(WORDS_PER_GROUP));
    for (group, ((weights, words), scale)) in groups.zip(scales).enumerate() {
        let mut rounded = [0.0_f32; GROUP];
        let mut largest = 0.0_f32;
        for (i, &weight) in weights.iter().enumerate() {
            rounded[i] = f16::from_f32(weight).to_f32();
            if !rounded[i].is_finite() {
                return Err(group * GROUP + i);
            }
            largest = largest.max(rounded[i].abs());
        }
        *scale = f16::from_f32(largest / ZERO_POINT);
        let step = scale.to_f32();
        for (word, weights) in words.iter_mut().zip(rounded.chunks_exact(CODES_PER_WORD)) {
            *word = pack(weights, |weight| symmetric_code(weight, step));
        }
    }
    Ok(())
}

/// Quantises one row `[k]` to q4f32_1; the index of a weight that is not finite is
/// the error.
///
/// # Errors
/// The column of the first weight that is not finite.
///
/// # Panics
/// When the lengths do not fit together.
pub fn quantise_row_wide(
    weights: &[f32],
    words: &mut [u32],
    scales: &mut [f32],
) -> Result<(), usize> {
    assert_eq!(weights.len(), scales.len() * GROUP, "a scale per group");
    assert_eq!(
        weights.len(),
        words.len() * CODES_PER_WORD,
        "a word per eight weights"
    );
    if let Some(column) = weights.iter().position(|w| !w.is_finite()) {
        return Err(column);
    }
    let groups = weights
        .chunks_exact(GROUP)
        .zip(words.chunks_exact_mut(WORDS_PER_GROUP));
    for ((weights, words), scale) in groups.zip(scales) {
        let largest = weights.iter().fold(0.0_f32, |most, w| most.max(w.abs()));
        *scale = largest / ZERO_POINT;
        for (word, weights) in words.iter_mut().zip(weights.chunks_exact(CODES_PER_WORD)) {
            *word = pack(weights, |w| symmetric_code(w, *scale));
        }
    }
    Ok(())
}

fn symmetric_code(weight: f32, step: f32) -> u32 {
    if step == 0.0 {
        return ZERO_POINT as u32;
    }
    (weight / step + ZERO_POINT)
        .round_ties_even()
        .clamp(0.0, MAX_CODE) as u32
}

/// Codes in a word, the first in its lowest bits.
fn pack(weights: &[f32], code: impl Fn(f32) -> u32) -> u32 {
    let bits = 32 / weights.len();
    let codes = weights.iter().rev();
    codes.fold(0, |word, &weight| {
        word.checked_shl(bits as u32).unwrap_or(0) | code(weight)
    })
}

/// Quantises one row `[k]` to an affine format of whole words.
///
/// # Errors
/// The column of the first weight that is not finite, or of the first of a group
/// whose scale or bias f16 cannot hold.
///
/// # Panics
/// When the format is none of these or the lengths do not fit together.
pub fn quantise_row_affine(
    format: QuantFormat,
    weights: &[f32],
    words: &mut [u32],
    scales: &mut [f16],
    biases: &mut [f16],
) -> Result<(), usize> {
    // Where all weights of a group are equal, a step must still be above zero.
    const SMALLEST_STEP: f32 = 1e-7;
    let group = format.group_size();
    let per_word = 32 / format.bits();
    assert!(
        format.is_affine() && format.bits() * per_word == 32,
        "{format}: affine, of whole words"
    );
    assert_eq!(weights.len(), scales.len() * group, "a scale per group");
    assert_eq!(weights.len(), words.len() * per_word, "whole words");
    let most = ((1 << format.bits()) - 1) as f32;
    let groups = weights
        .chunks_exact(group)
        .zip(words.chunks_exact_mut(group / per_word));
    for (at, (weights, words)) in groups.enumerate() {
        if let Some(column) = weights.iter().position(|w| !w.is_finite()) {
            return Err(at * group + column);
        }
        let low = weights.iter().fold(f32::INFINITY, |a, &b| a.min(b));
        let high = weights.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        let below = low.abs() > high.abs();
        let step = ((high - low) / most).max(SMALLEST_STEP);
        let (mut step, edge) = if below { (step, low) } else { (-step, high) };
        let steps = (edge / step).round_ties_even();
        let mut bias = 0.0;
        if steps != 0.0 {
            step = edge / steps;
            bias = edge;
        }
        for (word, weights) in words.iter_mut().zip(weights.chunks_exact(per_word)) {
            *word = pack(weights, |w| {
                ((w - bias) / step).round_ties_even().clamp(0.0, most) as u32
            });
        }
        (scales[at], biases[at]) = (f16::from_f32(step), f16::from_f32(bias));
        if !scales[at].is_finite() || !biases[at].is_finite() {
            return Err(at * group);
        }
    }
    Ok(())
}

/// Writes the weights `[k]` of one row of codes and scales, in f32.
///
/// # Panics
/// When the lengths do not fit together.
pub fn dequantise_row(words: &[u32], scales: &[f16], out: &mut [f32]) {
    assert_eq!(out.len(), scales.len() * GROUP, "a scale per group");
    assert_eq!(
        out.len(),
        words.len() * CODES_PER_WORD,
        "a word per eight weights"
    );
    let groups = out
        .chunks_exact_mut(GROUP)
        .zip(words.chunks_exact(WORDS_PER_GROUP));
    for ((out, words), scale) in groups.zip(scales) {
        let scale = scale.to_f32();
        for (out, &word) in out.chunks_exact_mut(CODES_PER_WORD).zip(words) {
            for (i, weight) in out.iter_mut().enumerate() {
                let code = (word >> (4 * i) & 15) as i32;
                *weight = (code - FORMAT.zero_point()) as f32 * scale;
            }
        }
    }
}

/// The weights `[rows, k]` of a matrix, in f32, rows in parallel.
///
/// # Panics
/// When the lengths do not fit together.
pub fn dequantise(words: &[u32], scales: &[f16], k: usize) -> Vec<f32> {
    let mut out = vec![0.0; words.len() * CODES_PER_WORD];
    out.par_chunks_mut(k)
        .zip(words.par_chunks(FORMAT.words_per_row(k)))
        .zip(scales.par_chunks(FORMAT.scales_per_row(k)))
        .for_each(|((out, words), scales)| dequantise_row(words, scales, out));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_group_is_code_seven() {
        let q = quantise(&[0.0; 32], 32).expect("zeros");
        assert_eq!(q.words, [0x7777_7777; 4], "code 7 is zero");
        assert_eq!(q.scales, [f16::ZERO], "no step");
    }

    #[test]
    fn a_weight_beyond_f16_is_named() {
        let mut weights = [0.5; 64];
        weights[40] = 7e4;
        let error = quantise(&weights, 32).expect_err("7e4").to_string();
        assert!(error.contains("row 1, column 8: weight 70000"), "{error}");
        weights[40] = f32::NAN;
        assert!(quantise(&weights, 64).is_err(), "not a number");
        assert!(quantise(&weights, 48).is_err(), "ragged");
        assert!(quantise(&weights, 0).is_err(), "no width");
    }
}
