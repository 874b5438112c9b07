//! The q4f16_1 quantiser and the GGUF block decoders against golden data, bit
//! for bit.

mod common;

use half::f16;
use kernels::quant::QuantFormat;
use proptest::prelude::*;
use reference::gguf::{self, BlockType};
use reference::golden::Golden;
use reference::matrix::{Packed, ScaleValues};
use reference::quantise;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn q4f16_1_equals_golden() {
    let golden = Golden::open(common::golden().join("quant/q4f16_1.safetensors")).expect("golden");
    let mut cases = 0;
    for name in golden.names().expect("names") {
        let Some(case) = name.strip_suffix(".q_weight") else {
            continue;
        };
        let words = golden.u32(&name).expect("q_weight");
        let scales = golden.f16(&format!("{case}.q_scale")).expect("q_scale");
        let dequant = golden.f32(&format!("{case}.dequant")).expect("dequant");
        let k = dequant.shape[1];
        let ours = quantise::dequantise(&words.data, &scales.data, k);
        assert_eq!(bits(&ours), bits(&dequant.data), "{case}, dequantised");
        // `allcodes` has code 15 and no raw weights: no quantiser makes it.
        if let Ok(raw) = golden.f32(&format!("{case}.raw")) {
            let ours = quantise::quantise(&raw.data, k).expect("finite");
            assert_eq!(ours.words, words.data, "{case}, codes");
            assert_eq!(ours.scales, scales.data, "{case}, scales");
        }
        cases += 1;
    }
    assert_eq!(cases, 7, "all cases");
}

/// Codes and weights of MLX's matrices, with scales as they are in f16.
#[test]
fn affine_weights_equal_golden() {
    let golden =
        Golden::open(common::golden().join("quant/mlx_affine.safetensors")).expect("golden");
    let mut cases = 0;
    for &format in QuantFormat::ALL.iter().filter(|f| f.is_affine()) {
        let case = format!("mlx.8x256.b{}.g{}.f16", format.bits(), format.group_size());
        let part = |part: &str| format!("{case}.{part}");
        let dequant = golden.f32(&part("dequant")).expect("dequant");
        let w = Packed {
            format,
            rows: dequant.shape[0],
            k: dequant.shape[1],
            words: golden.u32(&part("weight")).expect("words").data,
            scales: ScaleValues::F16(golden.f16(&part("scales")).expect("scales").data),
            biases: golden.f16(&part("biases")).expect("biases").data,
        };
        let w = w.matrix();
        w.check().expect("the parts fit");
        let codes = golden.u8(&part("codes")).expect("codes").data;
        for row in 0..w.rows {
            let mut ours = vec![0.0; w.k];
            w.row_into(row, &mut ours);
            let golden = &dequant.data[row * w.k..][..w.k];
            assert_eq!(bits(&ours), bits(golden), "{case}: row {row}");
            for (i, (product, _)) in w.row_terms(row).into_iter().enumerate() {
                let scale = w.scales.get((row * w.k + i) / format.group_size());
                let code = f64::from(codes[row * w.k + i]);
                assert_eq!(product, code * scale, "{case}: row {row}, code {i}");
            }
        }
        cases += 1;
    }
    assert_eq!(cases, 5, "all formats");
}

/// Every 3-bit code in every phase of its stream.
#[test]
fn three_bit_streams_equal_golden() {
    let golden =
        Golden::open(common::golden().join("quant/mlx_affine.safetensors")).expect("golden");
    let codes = golden.u8("mlx.stream3.codes").expect("codes");
    let (rows, k) = (codes.shape[0], codes.shape[1]);
    let w = Packed {
        format: QuantFormat::Affine3G64,
        rows,
        k,
        words: golden.u32("mlx.stream3.weight").expect("words").data,
        scales: ScaleValues::F16(vec![f16::ONE; rows * k / 64]),
        biases: vec![f16::ZERO; rows * k / 64],
    };
    w.matrix().check().expect("the parts fit");
    let mut row = vec![0.0; k];
    for (r, codes) in codes.data.chunks_exact(k).enumerate() {
        w.matrix().row_into(r, &mut row);
        assert!(
            row.iter().zip(codes).all(|(w, &c)| *w == f32::from(c)),
            "row {r}"
        );
    }
}

/// Three types of three sizes, and two K-quants of two.
const GGUF_CASES: usize = 13;

#[test]
fn gguf_blocks_equal_golden() {
    let golden = Golden::open(common::golden().join("quant/gguf.safetensors")).expect("golden");
    let mut cases = 0;
    for name in golden.names().expect("names") {
        let Some(case) = name.strip_suffix(".blocks") else {
            continue;
        };
        let of_case = |t: &BlockType| case.starts_with(&format!("gguf.{}.", t.name()));
        let block_type = BlockType::ALL.into_iter().find(of_case).expect("a type");
        {
            let blocks = golden.u8(&format!("{case}.blocks")).expect("blocks");
            let dequant = golden.f32(&format!("{case}.dequant")).expect("dequant");
            let mut ours = vec![0.0; dequant.data.len()];
            gguf::dequantise(block_type, &blocks.data, &mut ours);
            assert_eq!(bits(&ours), bits(&dequant.data), "{case}");
            cases += 1;
        }
    }
    assert_eq!(cases, GGUF_CASES, "all cases");
}

/// Matrices of affine formats are those that MLX's quantiser makes, bit for bit.
#[test]
fn affine_quantiser_equals_golden() {
    let golden =
        Golden::open(common::golden().join("quant/mlx_affine.safetensors")).expect("golden");
    let mut cases = 0;
    for name in golden.names().expect("names") {
        let Some(case) = name.strip_suffix(".raw") else {
            continue;
        };
        let is = |f: &&QuantFormat| {
            let of_format = format!(".b{}.g{}.", f.bits(), f.group_size());
            f.is_affine() && case.contains(&of_format)
        };
        let Some(&format) = QuantFormat::OF_WHOLE_WORDS.iter().find(is) else {
            continue;
        };
        // The type that was quantised is that of scales and biases.
        let Ok(scales) = golden.f16(&format!("{case}.scales")) else {
            continue;
        };
        let biases = golden.f16(&format!("{case}.biases")).expect("biases");
        let words = golden.u32(&format!("{case}.weight")).expect("words");
        let raw = golden.f32(&format!("{case}.raw")).expect("raw");
        let k = raw.shape[1];
        let groups = format.scales_per_row(k);
        let mut found = (
            vec![0; format.words_per_row(k)],
            vec![f16::ZERO; groups],
            vec![f16::ZERO; groups],
        );
        for (r, row) in raw.data.chunks_exact(k).enumerate() {
            // Only what f16 holds was quantised.
            let row: Vec<f32> = row.iter().map(|&w| f16::from_f32(w).to_f32()).collect();
            quantise::quantise_row_affine(format, &row, &mut found.0, &mut found.1, &mut found.2)
                .expect("finite");
            let at = |n: usize| r * n..(r + 1) * n;
            assert_eq!(found.1, scales.data[at(groups)], "{case}, row {r}: scales");
            assert_eq!(found.2, biases.data[at(groups)], "{case}, row {r}: biases");
            assert_eq!(
                found.0,
                words.data[at(found.0.len())],
                "{case}, row {r}: codes"
            );
        }
        cases += 1;
    }
    assert!(cases >= 4, "{cases} cases");
}

proptest! {
    #[test]
    fn error_is_at_most_half_a_step(weights in prop::collection::vec(-8.0_f32..8.0, 64)) {
        let quantised = quantise::quantise(&weights, 64).expect("finite");
        let back = quantise::dequantise(&quantised.words, &quantised.scales, 64);
        for (i, (a, b)) in weights.iter().zip(&back).enumerate() {
            let step = quantised.scales[i / 32].to_f32();
            // f16 rounding of weight and scale comes on top.
            let bound = 0.5 * step + 8.0 * f16::EPSILON.to_f32() * step.max(a.abs());
            prop_assert!((a - b).abs() <= bound, "{a} became {b}, step {step}");
        }
        prop_assert!(
            quantised.words.iter().all(|w| (0..8).all(|i| w >> (4 * i) & 15 <= 14)),
            "codes 0 to 14"
        );
    }

    #[test]
    fn any_weights_are_quantised_or_refused(weights in prop::collection::vec(any::<f32>(), 32)) {
        let _ = quantise::quantise(&weights, 32);
    }
}
