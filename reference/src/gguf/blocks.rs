//! Block types of GGUF tensors, and their values.
//!
//! Layouts are those of llama.cpp's `ggml-common.h`; Q4_0, Q4_1, Q8_0, Q4_K and
//! Q6_K are proven bit for bit by the golden `quant/gguf`.

use half::{bf16, f16};

/// How a tensor's rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockType {
    /// One f32 per value.
    F32,
    /// One f16 per value.
    F16,
    /// 32 values: f16 `d`, 16 bytes of codes; `w = (code - 8) * d`.
    Q4_0,
    /// 32 values: f16 `d` and `m`, 16 bytes of codes; `w = code * d + m`.
    Q4_1,
    /// 32 values: f16 `d`, 32 signed bytes; `w = code * d`.
    Q8_0,
    /// 256 values in groups of 16: 2-bit codes, 4-bit scales and minima.
    Q2K,
    /// 256 values in groups of 16: 3-bit codes, 6-bit scales.
    Q3K,
    /// 256 values in groups of 32: 4-bit codes, 6-bit scales and minima;
    /// `w = code * (d * scale) - dmin * min`.
    Q4K,
    /// 256 values in groups of 32: 5-bit codes, 6-bit scales and minima.
    Q5K,
    /// 256 values in groups of 16: 6-bit codes, 8-bit scales.
    Q6K,
    /// One bf16 per value.
    Bf16,
}

impl BlockType {
    /// Every supported type.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Bf16,
    ];

    /// GGML's number.
    pub const fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Bf16 => 30,
        }
    }

    /// GGML's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Bf16 => "BF16",
        }
    }

    /// Values in one block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    pub(super) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

/// Decodes whole blocks to f32.
///
/// # Panics
/// When `blocks` and `out` do not hold the same number of values.
pub fn dequantise(block_type: BlockType, blocks: &[u8], out: &mut [f32]) {
    assert_eq!(
        blocks.len() / block_type.block_bytes() * block_type.block_len(),
        out.len(),
        "blocks and output hold the same values"
    );
    let blocks = blocks.chunks_exact(block_type.block_bytes());
    let outs = out.chunks_exact_mut(block_type.block_len());
    for (block, out) in blocks.zip(outs) {
        match block_type {
            BlockType::F32 => {
                out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
            }
            BlockType::F16 => out[0] = half_at(block, 0).to_f32(),
            BlockType::Bf16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
            BlockType::Q4_0 => {
                let d = half_at(block, 0).to_f32();
                nibbles(&block[2..], out, |code| (f32::from(code) - 8.0) * d);
            }
            BlockType::Q4_1 => {
                let (d, m) = (half_at(block, 0).to_f32(), half_at(block, 2).to_f32());
                nibbles(&block[4..], out, |code| f32::from(code) * d + m);
            }
            BlockType::Q8_0 => {
                let d = half_at(block, 0).to_f32();
                for (out, &code) in out.iter_mut().zip(&block[2..]) {
                    *out = f32::from(code as i8) * d;
                }
            }
            BlockType::Q2K => q2_k(block, out),
            BlockType::Q3K => q3_k(block, out),
            BlockType::Q4K | BlockType::Q5K => {
                let groups = groups_of_32(block);
                let mut codes = [0; 256];
                codes_of_32(block_type, block, &mut codes);
                for (i, (out, &code)) in out.iter_mut().zip(&codes).enumerate() {
                    let (scale, min) = groups[i / 32];
                    *out = scale * f32::from(code) - min;
                }
            }
            BlockType::Q6K => q6_k(block, out),
        }
    }
}

pub(super) fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

/// Low nibbles are the first half of a block, high nibbles the second.
fn nibbles(codes: &[u8], out: &mut [f32], weight: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(codes.len());
    for ((low, high), &code) in low.iter_mut().zip(high).zip(codes) {
        *low = weight(code & 15);
        *high = weight(code >> 4);
    }
}

/// Scale and minimum of the eight groups of a Q4_K or Q5_K block.
pub(super) fn groups_of_32(block: &[u8]) -> [(f32, f32); 8] {
    let (d, dmin) = (half_at(block, 0).to_f32(), half_at(block, 2).to_f32());
    let packed = &block[4..16];
    std::array::from_fn(|group| {
        let (scale, min) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            let low = packed[group + 4];
            (
                low & 15 | packed[group - 4] >> 6 << 4,
                low >> 4 | packed[group] >> 6 << 4,
            )
        };
        (d * f32::from(scale), dmin * f32::from(min))
    })
}

/// The codes of a Q4_K or Q5_K block in the order of its values: of each 64, low
/// nibbles come first.
pub(super) fn codes_of_32(block_type: BlockType, block: &[u8], out: &mut [u8; 256]) {
    let five_bits = block_type == BlockType::Q5K;
    let nibbles = if five_bits {
        &block[48..]
    } else {
        &block[16..]
    };
    for (i, out) in out.iter_mut().enumerate() {
        let group = i / 32;
        let byte = nibbles[group / 2 * 32 + i % 32];
        *out = byte >> (group % 2 * 4) & 15;
        if five_bits {
            *out |= (block[16 + i % 32] >> group & 1) << 4;
        }
    }
}

/// Two bits of the code of value `i` of a Q2_K or Q3_K block.
fn two_bits(codes: &[u8], i: usize) -> u8 {
    codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half_at(block, 80).to_f32(), half_at(block, 82).to_f32());
    for (i, out) in out.iter_mut().enumerate() {
        let scale = scales[i / 16];
        let code = f32::from(two_bits(codes, i));
        *out = d * f32::from(scale & 15) * code - dmin * f32::from(scale >> 4);
    }
}

fn q3_k(block: &[u8], out: &mut [f32]) {
    let (high, codes, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108).to_f32();
    for (i, out) in out.iter_mut().enumerate() {
        let group = i / 16;
        // Four low bits of the sixteen scales in eight bytes, two high bits in four.
        let low = packed[group % 8] >> (group / 8 * 4) & 15;
        let scale = low | (packed[8 + group % 4] >> (group / 4 * 2) & 3) << 4;
        let has_high = high[i % 32] >> (i / 32) & 1 == 1;
        let code = f32::from(two_bits(codes, i)) - if has_high { 0.0 } else { 4.0 };
        *out = d * (f32::from(scale) - 32.0) * code;
    }
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208).to_f32();
    for (i, out) in out.iter_mut().enumerate() {
        let (part, quarter) = (i / 128, i % 128 / 32);
        let nibble = low[part * 64 + quarter % 2 * 32 + i % 32] >> (quarter / 2 * 4) & 15;
        let code = nibble | (high[part * 32 + i % 32] >> (quarter * 2) & 3) << 4;
        *out = d * f32::from(scales[i / 16] as i8) * (f32::from(code) - 32.0);
    }
}
