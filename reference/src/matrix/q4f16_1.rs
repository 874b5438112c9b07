//! Products with q4f16_1 rows, decoded byte by byte: four lanes per group of 32,
//! two lanes along the row.

use super::{Matrix, Scales};
use half::f16;
use kernels::quant::QuantFormat;

const GROUP: usize = QuantFormat::Q4f16_1.group_size();
/// `u32` words of codes in one group.
const GROUP_WORDS: usize = QuantFormat::Q4f16_1.words_per_row(GROUP);
/// Tokens whose sums one pass over a row keeps in registers.
const JOB_TOKENS: usize = 4;

/// What the two codes of a byte decode to, low nibble first, before the scale.
type CodePairs = [[f64; 2]; 256];

/// `code - 7`.
static VALUES: CodePairs = code_pairs();

const fn code_pairs() -> CodePairs {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut half = 0;
        while half < 2 {
            let code = (byte >> (4 * half)) as i32 & 15;
            pairs[byte][half] = (code - QuantFormat::Q4f16_1.zero_point()) as f64;
            half += 1;
        }
        byte += 1;
    }
    pairs
}

/// The rows of a matrix.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    groups: usize,
    words: &'a [u32],
    scales: &'a [f16],
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

impl<'a> Rows<'a> {
    /// The rows of a matrix in this format.
    pub(super) fn of(matrix: &Matrix<'a>) -> Option<Self> {
        match (matrix.format, matrix.scales) {
            (QuantFormat::Q4f16_1, Scales::F16(scales)) => Some(Self {
                groups: matrix.k / GROUP,
                words: matrix.words,
                scales,
            }),
            _ => None,
        }
    }

    fn row(&self, row: usize) -> Row<'a> {
        let groups = self.groups;
        Row {
            words: &self.words[row * groups * GROUP_WORDS..][..groups * GROUP_WORDS],
            scales: &self.scales[row * groups..][..groups],
        }
    }

    /// One row times `x`.
    pub(super) fn dot(&self, row: usize, x: &[f64]) -> f64 {
        self.row(row).dot(x)
    }

    /// The same sums for several tokens; `codes` is scratch of `[k]`.
    pub(super) fn dot_all(&self, row: usize, xs: &[&[f64]], codes: &mut [f64], out: &mut [f64]) {
        self.row(row).dot_all(xs, codes, out);
    }
}

impl<'a> Row<'a> {
    fn groups(self) -> impl Iterator<Item = Group<'a>> {
        let (groups, _) = self.words.as_chunks::<GROUP_WORDS>();
        groups.iter().zip(self.scales).map(|(words, scale)| Group {
            words,
            scale: f64::from(scale.to_f32()),
        })
    }

    fn dot(self, x: &[f64]) -> f64 {
        let (x, _) = x.as_chunks::<GROUP>();
        let mut total = [0.0; 2];
        for (group, x) in self.groups().zip(x) {
            let mut lanes = [0.0; 4];
            for (word, x) in group.words.iter().zip(x.as_chunks::<8>().0) {
                let [b0, b1, b2, b3] = word.to_le_bytes().map(|b| &VALUES[usize::from(b)]);
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
