//! Seeded synthetic weights of any model's shape: the same bytes for the same
//! seed on every machine, so that a record's weights can be made again.
//!
//! Codes of q4f16_1 are uniform over -7..=7 (zero twice as often), so a row has
//! mean zero; those of the other symmetric formats likewise. Codes of affine
//! formats are uniform over all, every second scale is negative, and a bias
//! centres its group. Scales give each projection unit gain on a normalised input; the two
//! projections that write to the residual stream are smaller by
//! `sqrt(2 layers)`. The residual thus stays near 1, far inside f16, and logits
//! have a standard deviation of about 1.6 (measured on three models).

use crate::checkpoint::{Checkpoint, CheckpointError, Container, Key, Provenance, Stored};
use crate::matrix::{Packed, ScaleValues};
use half::f16;
use kernels::models::{ModelSpec, Shape, Tensor};
use kernels::quant::{Elem, QuantFormat};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

/// Rows that one generator fills: enough to hide its seeding.
const ROWS_PER_STREAM: usize = 64;
/// Scales of one matrix: the base times 0.5 to 1.5, in steps of 1/256.
const SCALE_FACTORS: usize = 256;

/// Makes all weights of `spec` from `seed`. The title is the model's with
/// "(synthetic weights)".
///
/// # Errors
/// When the model is impossible.
pub fn checkpoint(spec: &ModelSpec, seed: u64) -> Result<Checkpoint, CheckpointError> {
    spec.validate()?;
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
        Shape::Matrix { rows, k } => {
            let format = spec.format_of(layer, tensor);
            let table = scale_table(spec, tensor, format, k);
            Stored::Matrix(matrix(format, &table, &name, seed, rows, k))
        }
        Shape::Vector { len } => {
            let mut random = stream(seed, &name, 0);
            // A gamma is 0.75 to 1.25, a tap -0.875 to 0.875, so that four give unit
            // gain; both exact in f16.
            let (least, step) = if tensor == Tensor::GdnConv {
                (-0.875, 1.75 / 256.0)
            } else {
                (0.75, 0.5 / 256.0)
            };
            let value = |bits: u32| f16::from_f32(least + (bits >> 24) as f32 * step);
            Stored::Vector((0..len).map(|_| value(random.next_u32())).collect())
        }
        Shape::Floats { len } => {
            let mut random = stream(seed, &name, 0);
            // Decays from about 0.4 to 0.999 a token.
            let (least, width) = if tensor == Tensor::GdnALog {
                (-2.0, 3.0)
            } else {
                (-5.0, 4.0)
            };
            let value = |bits: u32| least + (bits >> 8) as f32 / 16_777_216.0 * width;
            Stored::Floats((0..len).map(|_| value(random.next_u32())).collect())
        }
    }
}

fn matrix(
    format: QuantFormat,
    table: &[f32; SCALE_FACTORS],
    name: &str,
    seed: u64,
    rows: usize,
    k: usize,
) -> Packed {
    let words_per_row = format.words_per_row(k);
    let scales_per_row = format.scales_per_row(k);
    let mut words = vec![0_u32; rows * words_per_row];
    let mut factors = vec![0_u8; rows * scales_per_row];
    words
        .par_chunks_mut(words_per_row * ROWS_PER_STREAM)
        .zip(factors.par_chunks_mut(scales_per_row * ROWS_PER_STREAM))
        .enumerate()
        .for_each(|(block, (words, factors))| {
            let mut random = stream(seed, name, block as u64);
            // Rows hold whole groups of at least 128 bits, so words come in pairs.
            for pair in words.chunks_exact_mut(2) {
                let bits = centred(format, random.next_u64());
                pair[0] = bits as u32;
                pair[1] = (bits >> 32) as u32;
            }
            for factors in factors.chunks_mut(8) {
                let bits = random.next_u64().to_le_bytes();
                factors.copy_from_slice(&bits[..factors.len()]);
            }
        });
    let scale = |factor: &u8| table[usize::from(*factor)];
    let signed = |factor: &u8| match factor % 2 {
        0 => f16::from_f32(scale(factor)),
        _ => -f16::from_f32(scale(factor)),
    };
    let scales = match format.scale_type() {
        Elem::F32 => ScaleValues::F32(factors.iter().map(scale).collect()),
        Elem::F16 if format.is_affine() => ScaleValues::F16(factors.iter().map(signed).collect()),
        Elem::F16 => ScaleValues::F16(factors.iter().map(|f| f16::from_f32(scale(f))).collect()),
    };
    let biases = match &scales {
        ScaleValues::F16(scales) if format.is_affine() => {
            let middle = ((1 << format.bits()) - 1) as f32 / 2.0;
            let bias = |scale: &f16| f16::from_f32(-middle * scale.to_f32());
            scales.iter().map(bias).collect()
        }
        ScaleValues::F16(_) | ScaleValues::F32(_) => vec![],
    };
    Packed {
        format,
        rows,
        k,
        words,
        scales,
        biases,
    }
}

/// Random codes with a mean of the zero point: of the sixteen codes of a symmetric
/// format the one without a counterpart becomes the zero point.
fn centred(format: QuantFormat, bits: u64) -> u64 {
    const LOWEST: u64 = 0x1111_1111_1111_1111;
    match format {
        QuantFormat::Q4f16_1 | QuantFormat::Q4f32_1 => {
            let fifteen = bits & bits >> 1 & bits >> 2 & bits >> 3 & LOWEST;
            bits - (fifteen << 3)
        }
        QuantFormat::Q4_0 => {
            let zero = !(bits | bits >> 1 | bits >> 2 | bits >> 3) & LOWEST;
            bits | zero << 3
        }
        // Of the 256 codes one without a counterpart moves the mean by 1/512.
        QuantFormat::Q8_0
        | QuantFormat::Affine4G32
        | QuantFormat::Affine4G64
        | QuantFormat::Affine3G64
        | QuantFormat::Affine8G32
        | QuantFormat::Affine8G64 => bits,
    }
}

/// Mean square of the codes that [`centred`] draws, about their mean.
fn code_mean_square(format: QuantFormat) -> f64 {
    if format.is_affine() || format == QuantFormat::Q8_0 {
        let codes = f64::from(1 << format.bits());
        (codes * codes - 1.0) / 12.0
    } else {
        // Twice 1 + 4 + ... + 49 over sixteen codes.
        280.0 / 16.0
    }
}

/// Scales to draw from. Rounded f64 to f32 to f16 by IEEE rules alone, hence
/// equal everywhere.
fn scale_table(
    spec: &ModelSpec,
    tensor: Tensor,
    format: QuantFormat,
    k: usize,
) -> [f32; SCALE_FACTORS] {
    let residual = 1.0 / (2.0 * spec.num_hidden_layers as f64).sqrt();
    let unit = 1.0 / (k as f64).sqrt();
    let rms = match tensor {
        Tensor::Embedding if !spec.tie_word_embeddings => 1.0,
        Tensor::Embedding | Tensor::LmHead => 1.5 * unit,
        Tensor::Qkv
        | Tensor::GateUp
        | Tensor::GdnProj
        | Tensor::Router
        | Tensor::ExpertGate
        | Tensor::ExpertUp => unit,
        // Averaging over positions or experts and silu(g) * u shrink what these read.
        Tensor::O | Tensor::Down | Tensor::GdnOut | Tensor::ExpertDown => 1.7 * unit * residual,
        Tensor::InputNorm
        | Tensor::QNorm
        | Tensor::KNorm
        | Tensor::PostNorm
        | Tensor::FinalNorm
        | Tensor::GdnConv
        | Tensor::GdnALog
        | Tensor::GdnDtBias
        | Tensor::GdnNorm => 1.0,
    };
    let code_rms = code_mean_square(format).sqrt();
    std::array::from_fn(|i| {
        let factor = 0.5 + i as f64 / SCALE_FACTORS as f64;
        (rms / code_rms * factor) as f32
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
    fn the_code_without_a_counterpart_becomes_the_zero_point() {
        let all = 0xfedc_ba98_7654_3210;
        let of = |format| centred(format, all);
        assert_eq!(of(QuantFormat::Q4f16_1), 0x7edc_ba98_7654_3210, "15 is 7");
        assert_eq!(of(QuantFormat::Q4_0), 0xfedc_ba98_7654_3218, "0 is 8");
        assert_eq!(of(QuantFormat::Affine4G32), all, "every code");
        let fifteens = centred(QuantFormat::Q4f32_1, u64::MAX);
        assert_eq!(fifteens, 0x7777_7777_7777_7777, "all 15");
    }
}
