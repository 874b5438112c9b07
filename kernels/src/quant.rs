//! Quantisation formats of the weight matrices.

use serde::{Deserialize, Serialize};

/// How a weight matrix `[rows, k]` is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum QuantFormat {
    /// MLC's symmetric 4-bit format: groups of 32 along K share one f16 scale,
    /// eight codes per `u32`, lowest nibble first; `w = (code - 7) * scale`.
    #[serde(rename = "q4f16_1")]
    Q4f16_1,
}

/// Codes in one `u32` of a 4-bit format.
pub const CODES_PER_WORD: usize = 8;

impl QuantFormat {
    /// The published name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4f16_1 => "q4f16_1",
        }
    }

    /// Bits of one code.
    pub const fn bits(self) -> usize {
        match self {
            Self::Q4f16_1 => 4,
        }
    }

    /// Weights along K that share one scale.
    pub const fn group_size(self) -> usize {
        match self {
            Self::Q4f16_1 => 32,
        }
    }

    /// The code that decodes to zero.
    pub const fn zero_point(self) -> i32 {
        match self {
            Self::Q4f16_1 => 7,
        }
    }

    /// `u32` words of packed codes in one row of `k` weights.
    pub const fn words_per_row(self, k: usize) -> usize {
        k * self.bits() / 32
    }

    /// Scales in one row of `k` weights.
    pub const fn scales_per_row(self, k: usize) -> usize {
        k / self.group_size()
    }

    /// Bytes of codes and scales of a `[rows, k]` matrix.
    pub const fn matrix_bytes(self, rows: usize, k: usize) -> u64 {
        (rows * (self.words_per_row(k) * 4 + self.scales_per_row(k) * 2)) as u64
    }
}

const _: () = assert!(
    QuantFormat::Q4f16_1.matrix_bytes(1, 32) == 18,
    "a q4f16_1 group of 32 weights is 16 bytes of codes and one f16 scale"
);
