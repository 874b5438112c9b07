//! A weight matrix in `q4f16_1`, and its products with activations in f64.
//!
//! All products here add in one fixed order (four lanes per group of 32, two
//! lanes along the row), so that [`Matrix::matvec`] and [`Matrix::matmul`]
//! agree bit for bit and a prefill equals the same tokens fed one by one.
//! The f64 sums are themselves off by less than `k * 2^-53` relative to
//! `sum |w_i x_i|`: nine orders below any f32 limit.

use half::f16;
use kernels::quant::QuantFormat;
use rayon::prelude::*;

/// Weights along K that share one scale.
pub const GROUP: usize = QuantFormat::Q4f16_1.group_size();
/// `u32` words of codes in one group.
const GROUP_WORDS: usize = QuantFormat::Q4f16_1.words_per_row(GROUP);
/// Rows that one parallel job computes.
const JOB_ROWS: usize = 32;
/// Tokens whose sums one pass over a row keeps in registers.
const JOB_TOKENS: usize = 4;

/// What the two codes of a byte decode to, low nibble first, before the scale.
type CodePairs = [[f64; 2]; 256];

/// `code - 7`.
static VALUES: CodePairs = code_pairs(false);
/// `|code - 7|`.
static MAGNITUDES: CodePairs = code_pairs(true);

const fn code_pairs(magnitude: bool) -> CodePairs {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut half = 0;
        while half < 2 {
            let code = (byte >> (4 * half)) as i32 & 15;
            let value = code - QuantFormat::Q4f16_1.zero_point();
            let value = if magnitude { value.abs() } else { value };
            pairs[byte][half] = value as f64;
            half += 1;
        }
        byte += 1;
    }
    pairs
}

/// A `q4f16_1` matrix `[rows, k]`, borrowed from a checkpoint:
/// `w[r][i] = (code - 7) * scale`, exact in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matrix<'a> {
    /// Output rows.
    pub rows: usize,
    /// Input width, a multiple of 32.
    pub k: usize,
    /// Codes `[rows, k/8]`, eight per word, lowest nibble first along K.
    pub words: &'a [u32],
    /// Scales `[rows, k/32]`.
    pub scales: &'a [f16],
}

/// Codes or scales that do not fill the shape they are said to have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// K cannot be cut into groups.
    #[error("k = {k} is not a multiple of the q4f16_1 group of {GROUP}")]
    Width {
        /// The width.
        k: usize,
    },
    /// A part has the wrong length.
    #[error("a q4f16_1 matrix [{rows}, {k}] needs {expected} {part}, found {found}")]
    Length {
        /// Output rows.
        rows: usize,
        /// Input width.
        k: usize,
        /// `words` or `scales`.
        part: &'static str,
        /// Elements that the shape needs.
        expected: usize,
        /// Elements that are there.
        found: usize,
    },
}

impl<'a> Matrix<'a> {
    /// A matrix `[rows, k]` over codes `[rows, k/8]` and scales `[rows, k/32]`.
    ///
    /// # Errors
    /// When `k` is no multiple of 32 or a part has another length.
    pub fn new(
        rows: usize,
        k: usize,
        words: &'a [u32],
        scales: &'a [f16],
    ) -> Result<Self, MatrixError> {
        if !k.is_multiple_of(GROUP) {
            return Err(MatrixError::Width { k });
        }
        let format = QuantFormat::Q4f16_1;
        let parts = [
            ("words", format.words_per_row(k), words.len()),
            ("scales", format.scales_per_row(k), scales.len()),
        ];
        for (part, per_row, found) in parts {
            let expected = rows.saturating_mul(per_row);
            if found != expected {
                return Err(MatrixError::Length {
                    rows,
                    k,
                    part,
                    expected,
                    found,
                });
            }
        }
        Ok(Self {
            rows,
            k,
            words,
            scales,
        })
    }

    /// Codes and scales of one row.
    fn row(&self, row: usize) -> Row<'a> {
        let groups = self.k / GROUP;
        Row {
            words: &self.words[row * groups * GROUP_WORDS..][..groups * GROUP_WORDS],
            scales: &self.scales[row * groups..][..groups],
        }
    }

    /// Dequantises `row` into `out`, `[k]`; exact, since a weight has at most
    /// 15 significant bits.
    ///
    /// # Panics
    /// When `row` is out of range or `out` is not `[k]`.
    pub fn row_into(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.k, "a row has k elements");
        let mut codes = [0.0; GROUP];
        for (group, out) in self.row(row).groups().zip(out.chunks_exact_mut(GROUP)) {
            group.codes_into(&mut codes);
            for (out, code) in out.iter_mut().zip(codes) {
                *out = (code * group.scale) as f32;
            }
        }
    }

    /// `y = W x` for `x` of `[k]`, giving `[rows]`.
    ///
    /// # Panics
    /// When `x` is not `[k]` or the parts do not fill the shape.
    pub fn matvec(&self, x: &[f64]) -> Vec<f64> {
        self.product(x, &VALUES)
    }

    /// `sum_i |w[r][i] x[i]|` of each row, `[rows]`: what the rounding errors
    /// of a dot product are measured against.
    ///
    /// # Panics
    /// As [`Self::matvec`].
    pub fn matvec_abs(&self, x: &[f64]) -> Vec<f64> {
        let x: Vec<f64> = x.iter().map(|x| x.abs()).collect();
        let mut sums = self.product(&x, &MAGNITUDES);
        if self.scales.iter().any(|s| s.is_sign_negative()) {
            // Rare: our quantiser emits no negative scale. Row by row then.
            let mut row = vec![0.0; self.k];
            for (r, sum) in sums.iter_mut().enumerate() {
                self.row_into(r, &mut row);
                *sum = row
                    .iter()
                    .zip(&x)
                    .map(|(w, x)| f64::from(w.abs()) * x)
                    .sum();
            }
        }
        sums
    }

    fn product(&self, x: &[f64], pairs: &CodePairs) -> Vec<f64> {
        self.assert_shape(x.len());
        let mut y = vec![0.0; self.rows];
        y.par_chunks_mut(JOB_ROWS)
            .enumerate()
            .for_each(|(job, out)| {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = self.row(job * JOB_ROWS + i).dot(x, pairs);
                }
            });
        y
    }

    /// `W x` for each of `xs` (`[k]` each), giving `[rows]` for each. Every row
    /// is decoded once for all tokens; bit-equal to [`Self::matvec`].
    ///
    /// # Panics
    /// As [`Self::matvec`].
    pub fn matmul(&self, xs: &[&[f64]]) -> Vec<Vec<f64>> {
        for x in xs {
            self.assert_shape(x.len());
        }
        match xs {
            [] => return Vec::new(),
            [x] => return vec![self.matvec(x)],
            _ => {}
        }
        // [rows][tokens], so that a job writes one contiguous part.
        let mut by_row = vec![0.0; self.rows * xs.len()];
        by_row
            .par_chunks_mut(JOB_ROWS * xs.len())
            .enumerate()
            .for_each_init(
                || vec![0.0; self.k],
                |codes, (job, out)| {
                    for (i, out) in out.chunks_exact_mut(xs.len()).enumerate() {
                        self.row(job * JOB_ROWS + i).dot_all(xs, codes, out);
                    }
                },
            );
        (0..xs.len())
            .map(|t| by_row.iter().skip(t).step_by(xs.len()).copied().collect())
            .collect()
    }

    fn assert_shape(&self, x: usize) {
        assert_eq!(x, self.k, "a product with [{}, {}]", self.rows, self.k);
        if let Err(error) = Matrix::new(self.rows, self.k, self.words, self.scales) {
            panic!("{error}");
        }
    }
}

/// One row's codes `[k/8]` and scales `[k/32]`.
#[derive(Clone, Copy)]
struct Row<'a> {
    words: &'a [u32],
    scales: &'a [f16],
}

/// One group's codes and its scale.
struct Group<'a> {
    words: &'a [u32; GROUP_WORDS],
    scale: f64,
}

impl<'a> Row<'a> {
    fn groups(self) -> impl Iterator<Item = Group<'a>> {
        let (groups, _) = self.words.as_chunks::<GROUP_WORDS>();
        groups.iter().zip(self.scales).map(|(words, scale)| Group {
            words,
            scale: f64::from(scale.to_f32()),
        })
    }

    fn dot(self, x: &[f64], pairs: &CodePairs) -> f64 {
        let (x, _) = x.as_chunks::<GROUP>();
        let mut total = [0.0; 2];
        for (group, x) in self.groups().zip(x) {
            let mut lanes = [0.0; 4];
            for (word, x) in group.words.iter().zip(x.as_chunks::<8>().0) {
                let [b0, b1, b2, b3] = word.to_le_bytes().map(|b| &pairs[usize::from(b)]);
                lanes[0] += b0[0] * x[0];
                lanes[1] += b0[1] * x[1];
                lanes[2] += b1[0] * x[2];
                lanes[3] += b1[1] * x[3];
                lanes[0] += b2[0] * x[4];
                lanes[1] += b2[1] * x[5];
                lanes[2] += b3[0] * x[6];
                lanes[3] += b3[1] * x[7];
            }
            add_group(&mut total, lanes, group.scale);
        }
        total[0] + total[1]
    }

    /// The same sums for several tokens; `codes` is scratch of `[k]`.
    fn dot_all(self, xs: &[&[f64]], codes: &mut [f64], out: &mut [f64]) {
        let (codes, _) = codes.as_chunks_mut::<GROUP>();
        for (group, codes) in self.groups().zip(codes.iter_mut()) {
            group.codes_into(codes);
        }
        let mut tokens = xs.chunks_exact(JOB_TOKENS);
        let mut outs = out.chunks_exact_mut(JOB_TOKENS);
        for (xs, out) in tokens.by_ref().zip(outs.by_ref()) {
            let xs: [&[f64]; JOB_TOKENS] = std::array::from_fn(|t| xs[t]);
            out.copy_from_slice(&self.dot_codes(codes, xs));
        }
        for (x, out) in tokens.remainder().iter().zip(outs.into_remainder()) {
            [*out] = self.dot_codes(codes, [x]);
        }
    }

    fn dot_codes<const T: usize>(self, codes: &[[f64; GROUP]], xs: [&[f64]; T]) -> [f64; T] {
        let xs = xs.map(|x| &x.as_chunks::<GROUP>().0[..codes.len()]);
        let mut totals = [[0.0; 2]; T];
        for (g, (codes, scale)) in codes.iter().zip(self.scales).enumerate() {
            let scale = f64::from(scale.to_f32());
            let mut lanes = [[0.0; 4]; T];
            for i in (0..GROUP).step_by(4) {
                for t in 0..T {
                    let x = &xs[t][g];
                    for lane in 0..4 {
                        lanes[t][lane] += codes[i + lane] * x[i + lane];
                    }
                }
            }
            for t in 0..T {
                add_group(&mut totals[t], lanes[t], scale);
            }
        }
        totals.map(|[a, b]| a + b)
    }
}

impl Group<'_> {
    /// Decodes the group to `code - 7`.
    fn codes_into(&self, out: &mut [f64; GROUP]) {
        for (word, out) in self.words.iter().zip(out.as_chunks_mut::<8>().0) {
            for (byte, out) in word.to_le_bytes().iter().zip(out.as_chunks_mut::<2>().0) {
                *out = VALUES[usize::from(*byte)];
            }
        }
    }
}

fn add_group(total: &mut [f64; 2], lanes: [f64; 4], scale: f64) {
    total[0] += (lanes[0] + lanes[2]) * scale;
    total[1] += (lanes[1] + lanes[3]) * scale;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(rows: usize, k: usize) -> (Vec<u32>, Vec<f16>) {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state ^ (state >> 15)
        };
        let words = (0..rows * k / 8).map(|_| next()).collect();
        let scales = (0..rows * k / GROUP)
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
}
