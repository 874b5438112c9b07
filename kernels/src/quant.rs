//! Quantisation formats of the weight matrices.

use serde::{Deserialize, Serialize};

/// How a weight matrix `[rows, k]` is stored: codes packed along K, lowest bits
/// first, and for each group of weights a scale and, in affine formats, a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum QuantFormat {
    /// MLC's symmetric 4-bit format: groups of 32, f16 scales; `w = (code - 7) * scale`.
    #[serde(rename = "q4f16_1")]
    Q4f16_1,
    /// The same with f32 scales.
    #[serde(rename = "q4f32_1")]
    Q4f32_1,
    /// GGUF's symmetric 4-bit format: groups of 32, f16 scales; `w = (code - 8) * scale`.
    #[serde(rename = "q4_0")]
    Q4_0,
    /// GGUF's symmetric 8-bit format: groups of 32, f16 scales; `w = (code - 128) *
    /// scale`. GGUF's signed bytes with their highest bit flipped.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// MLX affine, 4 bits, groups of 32; `w = code * scale + bias`.
    #[serde(rename = "affine4_g32")]
    Affine4G32,
    /// MLX affine, 4 bits, groups of 64.
    #[serde(rename = "affine4_g64")]
    Affine4G64,
    /// MLX affine, 3 bits in one bitstream per row, groups of 64.
    #[serde(rename = "affine3_g64")]
    Affine3G64,
    /// MLX affine, 8 bits, groups of 32.
    #[serde(rename = "affine8_g32")]
    Affine8G32,
    /// MLX affine, 8 bits, groups of 64.
    #[serde(rename = "affine8_g64")]
    Affine8G64,
}

/// Codes in one `u32` of a 4-bit format.
pub const CODES_PER_WORD: usize = 8;

impl QuantFormat {
    /// Every format.
    pub const ALL: &'static [Self] = &[
        Self::Q4f16_1,
        Self::Q4f32_1,
        Self::Q4_0,
        Self::Q8_0,
        Self::Affine4G32,
        Self::Affine4G64,
        Self::Affine3G64,
        Self::Affine8G32,
        Self::Affine8G64,
    ];

    /// Those whose codes do not straddle words.
    pub const OF_WHOLE_WORDS: &'static [Self] = &[
        Self::Q4f16_1,
        Self::Q4f32_1,
        Self::Q4_0,
        Self::Q8_0,
        Self::Affine4G32,
        Self::Affine4G64,
        Self::Affine8G32,
        Self::Affine8G64,
    ];

    /// Those of four bits.
    pub const OF_FOUR_BITS: &'static [Self] = &[
        Self::Q4f16_1,
        Self::Q4f32_1,
        Self::Q4_0,
        Self::Affine4G32,
        Self::Affine4G64,
    ];

    /// Those that forms of textures are written for: what MLC's checkpoints and GGUF
    /// files of the default model hold.
    pub const IN_TEXTURES: &'static [Self] = &[Self::Q4f16_1, Self::Q8_0, Self::Affine4G32];

    /// Its name: the published one, or for MLX's affine formats bits and group.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4f16_1 => "q4f16_1",
            Self::Q4f32_1 => "q4f32_1",
            Self::Q4_0 => "q4_0",
            Self::Q8_0 => "q8_0",
            Self::Affine4G32 => "affine4_g32",
            Self::Affine4G64 => "affine4_g64",
            Self::Affine3G64 => "affine3_g64",
            Self::Affine8G32 => "affine8_g32",
            Self::Affine8G64 => "affine8_g64",
        }
    }

    /// Bits of one code.
    pub const fn bits(self) -> usize {
        match self {
            Self::Q4f16_1 | Self::Q4f32_1 | Self::Q4_0 | Self::Affine4G32 | Self::Affine4G64 => 4,
            Self::Affine3G64 => 3,
            Self::Q8_0 | Self::Affine8G32 | Self::Affine8G64 => 8,
        }
    }

    /// Weights along K that share one scale.
    pub const fn group_size(self) -> usize {
        match self {
            Self::Q4f16_1
            | Self::Q4f32_1
            | Self::Q4_0
            | Self::Q8_0
            | Self::Affine4G32
            | Self::Affine8G32 => 32,
            Self::Affine4G64 | Self::Affine3G64 | Self::Affine8G64 => 64,
        }
    }

    /// Whether every group has a bias beside its scale.
    pub const fn is_affine(self) -> bool {
        match self {
            Self::Q4f16_1 | Self::Q4f32_1 | Self::Q4_0 | Self::Q8_0 => false,
            Self::Affine4G32
            | Self::Affine4G64
            | Self::Affine3G64
            | Self::Affine8G32
            | Self::Affine8G64 => true,
        }
    }

    /// What is subtracted from a code before it is scaled; 0 in affine formats.
    pub const fn zero_point(self) -> i32 {
        match self {
            Self::Q4f16_1 | Self::Q4f32_1 => 7,
            Self::Q4_0 => 8,
            Self::Q8_0 => 128,
            Self::Affine4G32
            | Self::Affine4G64
            | Self::Affine3G64
            | Self::Affine8G32
            | Self::Affine8G64 => 0,
        }
    }

    /// Type of scales and biases.
    pub const fn scale_type(self) -> Elem {
        match self {
            Self::Q4f32_1 => Elem::F32,
            Self::Q4f16_1
            | Self::Q4_0
            | Self::Q8_0
            | Self::Affine4G32
            | Self::Affine4G64
            | Self::Affine3G64
            | Self::Affine8G32
            | Self::Affine8G64 => Elem::F16,
        }
    }

    /// `u32` words of packed codes in one row of `k` weights.
    pub const fn words_per_row(self, k: usize) -> usize {
        k * self.bits() / 32
    }

    /// Scales in one row of `k` weights; in affine formats as many biases.
    pub const fn scales_per_row(self, k: usize) -> usize {
        k / self.group_size()
    }

    /// Bytes of codes, scales and biases of a `[rows, k]` matrix.
    pub const fn matrix_bytes(self, rows: usize, k: usize) -> u64 {
        let of_group = self.scale_type().bytes() * if self.is_affine() { 2 } else { 1 };
        (rows * (self.words_per_row(k) * 4 + self.scales_per_row(k) * of_group)) as u64
    }
}

/// Type of a floating-point element in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Elem {
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl Elem {
    /// Its WGSL type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

impl std::fmt::Display for QuantFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

const _: () = assert!(
    QuantFormat::Q4f16_1.matrix_bytes(1, 32) == 18,
    "a q4f16_1 group of 32 weights is 16 bytes of codes and one f16 scale"
);
