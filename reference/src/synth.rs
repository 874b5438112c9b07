//! Seeded synthetic weights of any model's shape: the same bytes for the same
//! seed on every machine, so that a record's weights can be made again.
//!
//! Codes are uniform over -7..=7 (zero twice as often), so a row has mean zero.
//! Scales give each projection unit gain on a normalised input; the two
//! projections that write to the residual stream are smaller by
//! `sqrt(2 layers)`. The residual thus stays near 1, far inside f16, and logits
//! have a standard deviation of about 1.6 (measured on three models).

use crate::checkpoint::{
    Checkpoint, CheckpointError, Container, Key, Provenance, Stored, supported,
};
use half::f16;
use kernels::models::{ModelSpec, Shape, Tensor};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

/// Rows that one generator fills: enough to hide its seeding.
const ROWS_PER_STREAM: usize = 64;
/// Root mean square of the codes less 7, with 15 drawn as 7: sqrt(280 / 16).
const CODE_RMS: f64 = 4.183_300_132_670_378;
/// Scales of one matrix: the base times 0.5 to 1.5, in steps of 1/256.
const SCALE_FACTORS: usize = 256;

/// Makes all weights of `spec` from `seed`. The title is the model's with
/// "(synthetic weights)".
///
/// # Errors
/// When the model is impossible or of a family not yet supported.
pub fn checkpoint(spec: &ModelSpec, seed: u64) -> Result<Checkpoint, CheckpointError> {
    supported(spec)?;
    let tensors: Vec<(Key, Stored)> = spec
        .tensors()
        .into_par_iter()
        .map(|key| (key, parameter(spec, seed, key)))
        .collect();
    let provenance = Provenance {
        weights: Container::Synthetic,
        title: format!("{} (synthetic weights)", spec.title),
        sha256: String::new(),
        notes: vec![format!("synthetic weights of seed {seed}")],
    };
    Checkpoint::new(spec.clone(), provenance, tensors)
}

fn parameter(spec: &ModelSpec, seed: u64, (layer, tensor): Key) -> Stored {
    let name = spec.param_name(layer, tensor);
    match spec.shape(tensor) {
        Shape::Matrix { rows, k } => matrix(spec, tensor, &name, seed, rows, k),
        Shape::Vector { len } => {
            let mut random = stream(seed, &name, 0);
            // 0.75 to 1.25, exact in f16.
            let gamma = |bits: u32| f16::from_f32(0.75 + (bits >> 24) as f32 / 512.0);
            Stored::Vector((0..len).map(|_| gamma(random.next_u32())).collect())
        }
    }
}

fn matrix(
    spec: &ModelSpec,
    tensor: Tensor,
    name: &str,
    seed: u64,
    rows: usize,
    k: usize,
) -> Stored {
    let words_per_row = spec.format.words_per_row(k);
    let scales_per_row = spec.format.scales_per_row(k);
    let mut words = vec![0_u32; rows * words_per_row];
    let mut scales = vec![f16::ZERO; rows * scales_per_row];
    let table = scale_table(spec, tensor, k);
    words
        .par_chunks_mut(words_per_row * ROWS_PER_STREAM)
        .zip(scales.par_chunks_mut(scales_per_row * ROWS_PER_STREAM))
        .enumerate()
        .for_each(|(block, (words, scales))| {
            let mut random = stream(seed, name, block as u64);
            // Rows hold whole groups of 32, so words come in fours.
            for pair in words.chunks_exact_mut(2) {
                let bits = fold_code_15(random.next_u64());
                pair[0] = bits as u32;
                pair[1] = (bits >> 32) as u32;
            }
            for scales in scales.chunks_mut(8) {
                let bits = random.next_u64().to_le_bytes();
                for (scale, index) in scales.iter_mut().zip(bits) {
                    *scale = table[usize::from(index)];
                }
            }
        });
    Stored::Matrix {
        rows,
        k,
        words,
        scales,
    }
}

/// Turns every nibble of 15 into 7.
fn fold_code_15(bits: u64) -> u64 {
    let all_ones = bits & bits >> 1 & bits >> 2 & bits >> 3 & 0x1111_1111_1111_1111;
    bits - (all_ones << 3)
}

/// Scales to draw from. Rounded f64 to f32 to f16 by IEEE rules alone, hence
/// equal everywhere.
fn scale_table(spec: &ModelSpec, tensor: Tensor, k: usize) -> [f16; SCALE_FACTORS] {
    let residual = 1.0 / (2.0 * spec.num_hidden_layers as f64).sqrt();
    let unit = 1.0 / (k as f64).sqrt();
    let rms = match tensor {
        Tensor::Embedding if !spec.tie_word_embeddings => 1.0,
        Tensor::Embedding | Tensor::LmHead => 1.5 * unit,
        Tensor::Qkv | Tensor::GateUp => unit,
        // Averaging over positions and silu(g) * u shrink what these read.
        Tensor::O | Tensor::Down => 1.7 * unit * residual,
        Tensor::InputNorm
        | Tensor::QNorm
        | Tensor::KNorm
        | Tensor::PostNorm
        | Tensor::FinalNorm => 1.0,
    };
    std::array::from_fn(|i| {
        let factor = 0.5 + i as f64 / SCALE_FACTORS as f64;
        f16::from_f32((rms / CODE_RMS * factor) as f32)
    })
}

fn stream(seed: u64, name: &str, block: u64) -> Xoshiro256PlusPlus {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(block.to_le_bytes());
    hash.update(name);
    Xoshiro256PlusPlus::from_seed(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_15_becomes_7_and_nothing_else_changes() {
        assert_eq!(
            fold_code_15(0xfedc_ba98_7654_3210),
            0x7edc_ba98_7654_3210,
            "all codes"
        );
        assert_eq!(fold_code_15(u64::MAX), 0x7777_7777_7777_7777, "all 15");
    }
}
