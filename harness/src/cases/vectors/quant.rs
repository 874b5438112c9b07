//! Matrices of each format as another implementation packed them, with the weights
//! that it dequantised.

use super::{cases, require, results};
use crate::cases::{
    bench::Bench,
    data::{Kind, Values},
};
use anyhow::{Context as _, Result, ensure};
use half::{bf16, f16};
use kernels::{Elem, QuantFormat, Variant, variants::Batch};
use reference::{Packed, golden::Golden, matrix::ScaleValues, numerics::widen};

/// A golden matrix and its dequantised weights.
struct Quantised {
    name: String,
    w: Packed,
    dequant: Vec<f32>,
}

/// What the names of golden matrices in a format begin with, and hold.
fn naming(format: QuantFormat) -> (&'static str, String) {
    match format {
        QuantFormat::Q4f16_1 | QuantFormat::Q4f32_1 => ("q4f16_1.", String::new()),
        QuantFormat::Q4_0 => ("gguf.Q4_0.", String::new()),
        QuantFormat::Q8_0 => ("gguf.Q8_0.", String::new()),
        QuantFormat::Affine4G32
        | QuantFormat::Affine4G64
        | QuantFormat::Affine3G64
        | QuantFormat::Affine8G32
        | QuantFormat::Affine8G64 => {
            let of_format = format!(".b{}.g{}.", format.bits(), format.group_size());
            ("mlx.", of_format)
        }
    }
}

fn matrices(golden: &Golden, format: QuantFormat) -> Result<Vec<Quantised>> {
    let (begin, hold) = naming(format);
    let names = results(golden, begin, ".dequant")?.into_iter();
    // Scales in f32 would have to be rounded, and that error is not a kernel's.
    let names = names.filter(|name| name.contains(&hold) && !name.ends_with(".f32"));
    let all: Vec<Quantised> = names
        .map(|name| matrix(golden, name, format))
        .collect::<Result<_>>()?;
    ensure!(!all.is_empty(), "no golden matrix in {format}");
    Ok(all)
}

fn matrix(golden: &Golden, name: String, format: QuantFormat) -> Result<Quantised> {
    let dequant = golden.f32(&format!("{name}.dequant"))?;
    let (rows, k) = (dequant.shape[0], dequant.shape[1]);
    let mut biases = vec![];
    let (words, scales) = match format {
        QuantFormat::Q4f16_1 | QuantFormat::Q4f32_1 => {
            let words = golden.u32(&format!("{name}.q_weight"))?.data;
            (words, golden.f16(&format!("{name}.q_scale"))?.data)
        }
        QuantFormat::Q4_0 => q4_0(&golden.u8(&format!("{name}.blocks"))?.data),
        QuantFormat::Q8_0 => q8_0(&golden.u8(&format!("{name}.blocks"))?.data),
        QuantFormat::Affine4G32
        | QuantFormat::Affine4G64
        | QuantFormat::Affine3G64
        | QuantFormat::Affine8G32
        | QuantFormat::Affine8G64 => {
            let halves = |part: &str| -> Result<Vec<f16>> {
                let name = format!("{name}.{part}");
                if let Ok(values) = golden.f16(&name) {
                    return Ok(values.data);
                }
                let bits = golden.u16(&format!("{name}_bf16_bits"))?.data;
                let wide = bits.iter().map(|&bits| bf16::from_bits(bits).to_f32());
                Ok(wide.map(f16::from_f32).collect())
            };
            let scales = halves("scales")?;
            biases = halves("biases")?;
            (golden.u32(&format!("{name}.weight"))?.data, scales)
        }
    };
    let w = Packed {
        format,
        rows,
        k,
        words,
        scales: match format {
            QuantFormat::Q4f32_1 => ScaleValues::F32(scales.iter().map(|s| s.to_f32()).collect()),
            QuantFormat::Q4f16_1
            | QuantFormat::Q4_0
            | QuantFormat::Q8_0
            | QuantFormat::Affine4G32
            | QuantFormat::Affine4G64
            | QuantFormat::Affine3G64
            | QuantFormat::Affine8G32
            | QuantFormat::Affine8G64 => ScaleValues::F16(scales),
        },
        biases,
    };
    w.matrix().check().with_context(|| name.clone())?;
    Ok(Quantised {
        name,
        w,
        dequant: dequant.data,
    })
}

/// Codes in the order of K, and scales, of GGUF blocks: a scale and sixteen bytes,
/// whose low nibbles are the first half of a block and high nibbles the second.
fn q4_0(blocks: &[u8]) -> (Vec<u32>, Vec<f16>) {
    let (blocks, _) = blocks.as_chunks::<18>();
    let scales = blocks.iter().map(|b| f16::from_le_bytes([b[0], b[1]]));
    let words = blocks.iter().flat_map(|block| {
        let code = |i: usize| u32::from(block[2 + i % 16] >> (i / 16 * 4) & 15);
        [0, 8, 16, 24].map(|first| (0..8).fold(0, |word, i| word | code(first + i) << (4 * i)))
    });
    (words.collect(), scales.collect())
}

/// Codes and scales of GGUF blocks: a scale and 32 signed bytes.
fn q8_0(blocks: &[u8]) -> (Vec<u32>, Vec<f16>) {
    let (blocks, _) = blocks.as_chunks::<34>();
    let scales = blocks.iter().map(|b| f16::from_le_bytes([b[0], b[1]]));
    let words = blocks.iter().flat_map(|block| {
        let (words, _) = block[2..].as_chunks::<4>();
        words
            .iter()
            .map(|&word| u32::from_le_bytes(word) ^ 0x8080_8080)
    });
    (words.collect(), scales.collect())
}

/// Every row, which is what a token looks up.
pub(super) fn embedding(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    let format = variant.format.context("a format of weights")?;
    for case in matrices(golden, format)? {
        let name = || case.name.clone();
        let ids: Vec<u32> = (0..case.w.rows as u32).collect();
        let judged = cases::embedding(bench, variant, &case.w, &ids)?;
        require(&judged, "out", &case.dequant).with_context(name)?;
        let rounded = widen(&cases::held(variant, &case.dequant));
        ensure!(
            format.is_affine() || judged[0].found == rounded,
            "{}: more than one rounding",
            case.name
        );
    }
    Ok(())
}

/// Matrices that are multiplied in another format than q4f16_1 or type than f16;
/// each is compiled for.
const FEW: usize = 2;

/// Every product that the variant can form, or some, of golden activations where
/// there are any.
pub(super) fn int4_matmul(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    let format = variant.format.context("a format of weights")?;
    let step = variant.k_step();
    let most = match (variant.in_base_format(), variant.elem) {
        (true, Elem::F16) => usize::MAX,
        (true | false, Elem::F16 | Elem::F32) => FEW,
    };
    let mut values = Values(1);
    let mut run = 0;
    for mut case in matrices(golden, format)? {
        if run == most {
            break;
        }
        let name = || case.name.clone();
        let products: Vec<(Vec<f32>, Vec<f32>)> = match golden.f32(&format!("{}.x", case.name)) {
            Ok(x) => {
                let y = golden.f32(&format!("{}.y", case.name))?.data;
                let rows = x.data.chunks_exact(case.w.k);
                let rows = rows.zip(y.chunks_exact(case.w.rows));
                rows.map(|(x, y)| (x.to_vec(), y.to_vec())).collect()
            }
            Err(_) => {
                // Groups follow each other, so rows may be joined.
                let weights = case.w.rows * case.w.k;
                if !case.w.k.is_multiple_of(step) && weights.is_multiple_of(step) {
                    (case.w.rows, case.w.k) = (weights / step, step);
                }
                let x = values.activations(case.w.k, Kind::Ordinary, 0.7);
                let rows = case.dequant.chunks_exact(case.w.k);
                let y = rows.map(|w| {
                    let terms = w.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                    terms.sum::<f64>() as f32
                });
                let y = y.collect();
                vec![(x, y)]
            }
        };
        if !case.w.k.is_multiple_of(step) {
            continue;
        }
        for (i, (x, y)) in products.into_iter().enumerate() {
            // A tile of four takes the vector four times.
            let copies = if variant.batch == Batch::Four { 4 } else { 1 };
            let (x, y) = (x.repeat(copies), y.repeat(copies));
            let judged = cases::int4_matmul(bench, variant, &case.w, &x)?;
            require(&judged, "out", &y).with_context(|| format!("{} x {i}", name()))?;
        }
        run += 1;
    }
    // The narrow loads take every shape, the wide ones one at least.
    let least = if step <= 64 { FEW } else { 1 };
    ensure!(run >= least, "only {run} golden matrices multiplied");
    Ok(())
}
