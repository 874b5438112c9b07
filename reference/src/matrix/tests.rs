//! Unit tests of the module above.

use super::*;

fn example(rows: usize, k: usize) -> (Vec<u32>, Vec<f16>) {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state ^ (state >> 15)
    };
    let words = (0..rows * k / 8).map(|_| next()).collect();
    let scales = (0..rows * k / 32)
        .map(|_| f16::from_f32((next() % 1000) as f32 / 500.0 - 1.0))
        .collect();
    (words, scales)
}

#[test]
fn codes_run_from_the_lowest_nibble() {
    let words = [0x7654_3210, 0xfedc_ba98, 0x7777_7777, 0x7777_7777];
    let scales = [f16::from_f32(0.5)];
    let matrix = Matrix::new(1, 32, &words, &scales).expect("fits");
    let mut row = [f32::NAN; 32];
    matrix.row_into(0, &mut row);
    for (code, w) in row[..16].iter().enumerate() {
        assert_eq!(*w, (code as f32 - 7.0) * 0.5, "code {code}");
    }
    assert!(row[16..].iter().all(|&w| w == 0.0), "code 7 is zero");
}

#[test]
fn products_agree_with_the_dequantised_row() {
    let (rows, k) = (67, 576);
    let (words, scales) = example(rows, k);
    let matrix = Matrix::new(rows, k, &words, &scales).expect("fits");
    let xs: Vec<Vec<f64>> = (0..7)
        .map(|t| {
            (0..k)
                .map(|i| ((i * 7 + t * 13) % 31) as f64 - 15.3)
                .collect()
        })
        .collect();
    let borrowed: Vec<&[f64]> = xs.iter().map(Vec::as_slice).collect();
    let batch = matrix.matmul(&borrowed);
    let mut row = vec![0.0; k];
    for (x, batch) in xs.iter().zip(&batch) {
        let y = matrix.matvec(x);
        assert_eq!(&y, batch, "matmul is matvec, bit for bit");
        let magnitudes = matrix.matvec_abs(x);
        for r in 0..rows {
            matrix.row_into(r, &mut row);
            let terms = row.iter().zip(x).map(|(&w, x)| f64::from(w) * x);
            let exact: f64 = terms.clone().sum();
            let magnitude: f64 = terms.map(f64::abs).sum();
            assert!((y[r] - exact).abs() <= 1e-13 * magnitude, "row {r}");
            assert!(
                (magnitudes[r] - magnitude).abs() <= 1e-13 * magnitude,
                "row {r}: sum of magnitudes"
            );
        }
    }
}

#[test]
fn wrong_lengths_are_named() {
    let error = Matrix::new(2, 64, &[0; 15], &[f16::ZERO; 4]).expect_err("one word short");
    assert_eq!(
        error.to_string(),
        "a q4f16_1 matrix [2, 64] needs 16 words, found 15",
        "message"
    );
    assert!(Matrix::new(1, 40, &[0; 5], &[f16::ZERO]).is_err(), "K % 32");
    assert!(
        Matrix::new(usize::MAX, 64, &[], &[]).is_err(),
        "a huge count is an error, not an overflow"
    );
}

/// A matrix of random codes, every second scale negative.
fn packed(format: QuantFormat, rows: usize, k: usize) -> Packed {
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state ^ (state >> 15)
    };
    let words = (0..rows * format.words_per_row(k))
        .map(|_| next())
        .collect();
    let groups = rows * format.scales_per_row(k);
    let mut number = || (next() % 1999) as f32 / 1000.0 - 1.0;
    let scales = match format.scale_type() {
        kernels::Elem::F16 => {
            ScaleValues::F16((0..groups).map(|_| f16::from_f32(number())).collect())
        }
        kernels::Elem::F32 => ScaleValues::F32((0..groups).map(|_| number()).collect()),
    };
    let biases = if format.is_affine() { groups } else { 0 };
    Packed {
        format,
        rows,
        k,
        words,
        scales,
        biases: (0..biases).map(|_| f16::from_f32(number())).collect(),
    }
}

/// The code at a place of a row, taken bit by bit.
fn code(w: &Packed, row: usize, i: usize) -> u32 {
    let bits = w.format.bits();
    let row = &w.words[row * w.format.words_per_row(w.k)..];
    let bit = |at: usize| row[at / 32] >> (at % 32) & 1;
    (0..bits).map(|b| bit(bits * i + b) << b).sum()
}

#[test]
fn every_format_decodes_and_multiplies_as_its_definition_says() {
    for &format in QuantFormat::ALL {
        let (rows, k) = (3, 576);
        let w = packed(format, rows, k);
        let matrix = w.matrix();
        matrix.check().expect("the parts fit");
        let xs: Vec<Vec<f64>> = (0..6)
            .map(|t| {
                (0..k)
                    .map(|i| ((i * 7 + t * 13) % 31) as f64 - 15.3)
                    .collect()
            })
            .collect();
        let borrowed: Vec<&[f64]> = xs.iter().map(Vec::as_slice).collect();
        let batch = matrix.matmul(&borrowed);
        for (x, batch) in xs.iter().zip(&batch) {
            let y = matrix.matvec(x);
            assert_eq!(&y, batch, "{format}: matmul is matvec, bit for bit");
            let magnitudes = matrix.matvec_abs(x);
            for r in 0..rows {
                let groups = format.scales_per_row(k);
                let term = |i: usize| {
                    let at = r * groups + i / format.group_size();
                    let bias = w.biases.get(at).map_or(0.0, |b| b.to_f64());
                    let code = f64::from(code(&w, r, i) as i32 - format.zero_point());
                    (code * matrix.scales.get(at), bias)
                };
                let terms: Vec<(f64, f64)> = (0..k).map(term).collect();
                assert_eq!(matrix.row_terms(r), terms, "{format}: row {r}");
                let exact: f64 = terms.iter().zip(x).map(|((s, b), x)| (s + b) * x).sum();
                let sizes = terms.iter().zip(x);
                let size: f64 = sizes.map(|((s, b), x)| (s.abs() + b.abs()) * x.abs()).sum();
                assert!((y[r] - exact).abs() <= 1e-13 * size, "{format}: row {r}");
                assert!(
                    (magnitudes[r] - size).abs() <= 1e-13 * size,
                    "{format}: row {r}, sizes"
                );
            }
        }
    }
}

#[test]
fn parts_of_another_format_are_named() {
    let wrong = |change: &dyn Fn(&mut Packed)| {
        let mut w = packed(QuantFormat::Affine4G64, 2, 128);
        change(&mut w);
        let error = w.matrix().check().expect_err("changed");
        error.to_string()
    };
    let error = wrong(&|w| w.biases.truncate(3));
    assert_eq!(
        error, "a affine4_g64 matrix [2, 128] needs 4 biases, found 3",
        "a bias is missing"
    );
    let error = wrong(&|w| w.k = 96);
    assert!(error.contains("affine4_g64 group of 64"), "{error}");
    let error = wrong(&|w| w.scales = ScaleValues::F32(vec![0.0; 4]));
    assert!(error.contains("scales in f16"), "{error}");
}
