//! A weight matrix in any format, and its products with activations in f64.
//!
//! All products of one format add in one fixed order, so that [`Matrix::matvec`]
//! and [`Matrix::matmul`] agree bit for bit and a prefill equals the same tokens
//! fed one by one. Every weight is exact in f64. The f64 sums are themselves off
//! by less than `k * 2^-53` relative to `sum |w_i x_i|`: nine orders below any
//! f32 limit.

mod codes;
mod q4f16_1;

use half::f16;
use kernels::quant::QuantFormat;
use rayon::prelude::*;

/// Rows that one parallel job computes.
const JOB_ROWS: usize = 32;
/// Lanes of a sum over a row.
const LANES: usize = 8;

/// Group scales, borrowed, in the type of the format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scales<'a> {
    /// f16.
    F16(&'a [f16]),
    /// f32.
    F32(&'a [f32]),
}

impl<'a> Scales<'a> {
    /// Number of scales.
    pub const fn len(self) -> usize {
        match self {
            Self::F16(scales) => scales.len(),
            Self::F32(scales) => scales.len(),
        }
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// One scale, exact.
    ///
    /// # Panics
    /// When there is none at `i`.
    pub fn get(self, i: usize) -> f64 {
        match self {
            Self::F16(scales) => f64::from(scales[i].to_f32()),
            Self::F32(scales) => f64::from(scales[i]),
        }
    }

    /// Their bytes, little-endian.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::F16(scales) => bytemuck::cast_slice(scales),
            Self::F32(scales) => bytemuck::cast_slice(scales),
        }
    }

    fn is_of(self, format: QuantFormat) -> bool {
        let ty = match self {
            Self::F16(_) => kernels::Elem::F16,
            Self::F32(_) => kernels::Elem::F32,
        };
        format.scale_type() == ty
    }
}

/// Group scales that own their values.
#[derive(Clone, Debug, PartialEq)]
pub enum ScaleValues {
    /// f16.
    F16(Vec<f16>),
    /// f32.
    F32(Vec<f32>),
}

impl ScaleValues {
    /// The same, borrowed.
    pub fn as_scales(&self) -> Scales<'_> {
        match self {
            Self::F16(scales) => Scales::F16(scales),
            Self::F32(scales) => Scales::F32(scales),
        }
    }
}

/// A matrix that owns its parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    /// Format of the weights.
    pub format: QuantFormat,
    /// Output rows.
    pub rows: usize,
    /// Input width.
    pub k: usize,
    /// Codes `[rows, words_per_row]`, lowest bits first along K.
    pub words: Vec<u32>,
    /// Scales `[rows, scales_per_row]`.
    pub scales: ScaleValues,
    /// Biases of the same shape; none where the format is symmetric.
    pub biases: Vec<f16>,
}

impl Packed {
    /// The same, borrowed. The parts need not fill the shape; [`Matrix::check`]
    /// says whether they do.
    pub fn matrix(&self) -> Matrix<'_> {
        Matrix {
            format: self.format,
            rows: self.rows,
            k: self.k,
            words: &self.words,
            scales: self.scales.as_scales(),
            biases: &self.biases,
        }
    }
}

/// A matrix `[rows, k]`, borrowed from a checkpoint:
/// `w[r][i] = (code - zero point) * scale + bias`, exact in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matrix<'a> {
    /// Format of the weights.
    pub format: QuantFormat,
    /// Output rows.
    pub rows: usize,
    /// Input width, whole groups.
    pub k: usize,
    /// Codes `[rows, words_per_row]`, lowest bits first along K.
    pub words: &'a [u32],
    /// Scales `[rows, scales_per_row]`.
    pub scales: Scales<'a>,
    /// Biases of the same shape; none where the format is symmetric.
    pub biases: &'a [f16],
}

/// Parts that do not fill the shape they are said to have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// K cannot be cut into groups.
    #[error("k = {k} is not a multiple of the {format} group of {}", format.group_size())]
    Width {
        /// The format.
        format: QuantFormat,
        /// The width.
        k: usize,
    },
    /// Scales of the wrong type.
    #[error("a {format} matrix needs scales in {}", format.scale_type().name())]
    ScaleType {
        /// The format.
        format: QuantFormat,
    },
    /// A part has the wrong length.
    #[error("a {format} matrix [{rows}, {k}] needs {expected} {part}, found {found}")]
    Length {
        /// The format.
        format: QuantFormat,
        /// Output rows.
        rows: usize,
        /// Input width.
        k: usize,
        /// `words`, `scales` or `biases`.
        part: &'static str,
        /// Elements that the shape needs.
        expected: usize,
        /// Elements that are there.
        found: usize,
    },
}

/// What a code stands for in one group: `(code - zero point) * scale + bias`.
#[derive(Clone, Copy, Debug)]
struct Group {
    scale: f64,
    bias: f64,
}

impl<'a> Matrix<'a> {
    /// `count` rows from `first` on.
    ///
    /// # Panics
    /// When it has not as many.
    pub fn part(&self, first: usize, count: usize) -> Self {
        let of = |per_row: usize| first * per_row..(first + count) * per_row;
        let scales = of(self.format.scales_per_row(self.k));
        Self {
            rows: count,
            words: &self.words[of(self.format.words_per_row(self.k))],
            scales: match self.scales {
                Scales::F16(all) => Scales::F16(&all[scales.clone()]),
                Scales::F32(all) => Scales::F32(&all[scales.clone()]),
            },
            biases: if self.format.is_affine() {
                &self.biases[scales]
            } else {
                self.biases
            },
            ..*self
        }
    }

    /// A q4f16_1 matrix `[rows, k]` over codes `[rows, k/8]` and scales
    /// `[rows, k/32]`.
    ///
    /// # Errors
    /// When `k` is no multiple of 32 or a part has another length.
    pub fn new(
        rows: usize,
        k: usize,
        words: &'a [u32],
        scales: &'a [f16],
    ) -> Result<Self, MatrixError> {
        let matrix = Self {
            format: QuantFormat::Q4f16_1,
            rows,
            k,
            words,
            scales: Scales::F16(scales),
            biases: &[],
        };
        matrix.check()?;
        Ok(matrix)
    }

    /// Whether the parts fill the shape in the format.
    ///
    /// # Errors
    /// [`MatrixError`], naming the first that does not.
    pub fn check(&self) -> Result<(), MatrixError> {
        let &Self {
            format, rows, k, ..
        } = self;
        if !k.is_multiple_of(format.group_size()) {
            return Err(MatrixError::Width { format, k });
        }
        if !self.scales.is_of(format) {
            return Err(MatrixError::ScaleType { format });
        }
        let scales = format.scales_per_row(k);
        let biases = if format.is_affine() { scales } else { 0 };
        let parts = [
            ("words", format.words_per_row(k), self.words.len()),
            ("scales", scales, self.scales.len()),
            ("biases", biases, self.biases.len()),
        ];
        for (part, per_row, found) in parts {
            let expected = rows.saturating_mul(per_row);
            if found != expected {
                return Err(MatrixError::Length {
                    format,
                    rows,
                    k,
                    part,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }

    /// `rows` of its rows, from `first` on.
    ///
    /// # Panics
    /// When it has not so many.
    pub fn slice(&self, first: usize, rows: usize) -> Self {
        let (words, groups) = (
            self.format.words_per_row(self.k),
            self.format.scales_per_row(self.k),
        );
        let groups = first * groups..(first + rows) * groups;
        Self {
            rows,
            words: &self.words[first * words..(first + rows) * words],
            scales: match self.scales {
                Scales::F16(scales) => Scales::F16(&scales[groups.clone()]),
                Scales::F32(scales) => Scales::F32(&scales[groups.clone()]),
            },
            biases: if self.format.is_affine() {
                &self.biases[groups]
            } else {
                &[]
            },
            ..*self
        }
    }

    /// A copy that owns its parts.
    pub fn to_packed(&self) -> Packed {
        Packed {
            format: self.format,
            rows: self.rows,
            k: self.k,
            words: self.words.to_vec(),
            scales: match self.scales {
                Scales::F16(scales) => ScaleValues::F16(scales.to_vec()),
                Scales::F32(scales) => ScaleValues::F32(scales.to_vec()),
            },
            biases: self.biases.to_vec(),
        }
    }

    /// Bytes of codes, scales and biases.
    pub fn bytes(&self) -> u64 {
        (4 * self.words.len() + self.scales.bytes().len() + 2 * self.biases.len()) as u64
    }

    /// Codes of one row, less the zero point, into `out`, `[k]`.
    fn codes_into(&self, row: usize, out: &mut [f64]) {
        let words = self.format.words_per_row(self.k);
        let words = &self.words[row * words..][..words];
        codes::decode(self.format, words, out);
    }

    /// The groups of one row.
    fn groups(&self, row: usize) -> impl Iterator<Item = Group> {
        let groups = self.format.scales_per_row(self.k);
        let affine = self.format.is_affine();
        let (scales, biases) = (self.scales, self.biases);
        (row * groups..(row + 1) * groups).map(move |at| Group {
            scale: scales.get(at),
            bias: if affine {
                f64::from(biases[at].to_f32())
            } else {
                0.0
            },
        })
    }

    /// What `row` is made of, element by element: the product of code and scale,
    /// and the bias. Both are exact.
    ///
    /// # Panics
    /// When `row` is out of range.
    pub fn row_terms(&self, row: usize) -> Vec<(f64, f64)> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let mut codes = vec![0.0; self.k];
        self.codes_into(row, &mut codes);
        let groups = codes.chunks_exact(self.format.group_size());
        groups
            .zip(self.groups(row))
            .flat_map(|(codes, group)| codes.iter().map(move |c| (c * group.scale, group.bias)))
            .collect()
    }

    /// Dequantises `row` into `out`, `[k]`, exactly.
    fn weights_into(&self, row: usize, out: &mut [f64]) {
        self.codes_into(row, out);
        let groups = out.chunks_exact_mut(self.format.group_size());
        for (out, group) in groups.zip(self.groups(row)) {
            for w in out {
                *w = *w * group.scale + group.bias;
            }
        }
    }

    /// Dequantises `row` into `out`, `[k]`, as the nearest f32; exact in q4f16_1,
    /// whose weights have at most 15 significant bits.
    ///
    /// # Panics
    /// When `row` is out of range or `out` is not `[k]`.
    pub fn row_into(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.k, "a row has k elements");
        let mut weights = vec![0.0; self.k];
        self.weights_into(row, &mut weights);
        for (out, w) in out.iter_mut().zip(weights) {
            *out = w as f32;
        }
    }

    /// `y = W x` for `x` of `[k]`, giving `[rows]`.
    ///
    /// # Panics
    /// When `x` is not `[k]` or the parts do not fill the shape.
    pub fn matvec(&self, x: &[f64]) -> Vec<f64> {
        self.assert_shape(x.len());
        if let Some(fast) = q4f16_1::Rows::of(self) {
            return self.by_row(|row, _| fast.dot(row, x));
        }
        self.by_row(|row, scratch| {
            self.weights_into(row, scratch);
            dot(scratch, x)
        })
    }

    /// Sum of the magnitudes of all terms that a kernel adds for each row,
    /// `[rows]`: `|w[r][i] x[i]|`, in affine formats `|code scale x[i]| + |bias
    /// x[i]|`, since they are added apart and may cancel. It is what the rounding
    /// errors of a dot product are measured against.
    ///
    /// # Panics
    /// As [`Self::matvec`].
    pub fn matvec_abs(&self, x: &[f64]) -> Vec<f64> {
        self.assert_shape(x.len());
        let x: Vec<f64> = x.iter().map(|x| x.abs()).collect();
        let group_size = self.format.group_size();
        self.by_row(|row, codes| {
            self.codes_into(row, codes);
            let groups = codes.chunks_exact(group_size).zip(self.groups(row));
            let groups = groups.zip(x.chunks_exact(group_size));
            groups
                .map(|((codes, group), x)| {
                    let codes = codes.iter().zip(x).map(|(c, x)| c.abs() * x);
                    let codes: f64 = codes.sum();
                    codes * group.scale.abs() + group.bias.abs() * x.iter().sum::<f64>()
                })
                .sum()
        })
    }

    /// What `sum` makes of each row, given scratch of `[k]`.
    fn by_row(&self, sum: impl Fn(usize, &mut [f64]) -> f64 + Sync) -> Vec<f64> {
        let mut y = vec![0.0; self.rows];
        y.par_chunks_mut(JOB_ROWS).enumerate().for_each_init(
            || vec![0.0; self.k],
            |scratch, (job, out)| {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = sum(job * JOB_ROWS + i, scratch);
                }
            },
        );
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
        let fast = q4f16_1::Rows::of(self);
        // [rows][tokens], so that a job writes one contiguous part.
        let mut by_row = vec![0.0; self.rows * xs.len()];
        by_row
            .par_chunks_mut(JOB_ROWS * xs.len())
            .enumerate()
            .for_each_init(
                || vec![0.0; self.k],
                |scratch, (job, out)| {
                    for (i, out) in out.chunks_exact_mut(xs.len()).enumerate() {
                        let row = job * JOB_ROWS + i;
                        if let Some(fast) = fast {
                            fast.dot_all(row, xs, scratch, out);
                            continue;
                        }
                        self.weights_into(row, scratch);
                        for (out, x) in out.iter_mut().zip(xs) {
                            *out = dot(scratch, x);
                        }
                    }
                },
            );
        (0..xs.len())
            .map(|t| by_row.iter().skip(t).step_by(xs.len()).copied().collect())
            .collect()
    }

    fn assert_shape(&self, x: usize) {
        assert_eq!(x, self.k, "a product with [{}, {}]", self.rows, self.k);
        if let Err(error) = self.check() {
            panic!("{error}");
        }
    }
}

/// `w x`, the same order of additions for every caller.
fn dot(w: &[f64], x: &[f64]) -> f64 {
    let (w, w_rest) = w.as_chunks::<LANES>();
    let (x, x_rest) = x.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (w, x) in w.iter().zip(x) {
        for lane in 0..LANES {
            lanes[lane] += w[lane] * x[lane];
        }
    }
    let rest: f64 = w_rest.iter().zip(x_rest).map(|(w, x)| w * x).sum();
    lanes.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests;
