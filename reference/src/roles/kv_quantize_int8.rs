//! `kv_quantize_int8`: keys and values as int8 codes with a scale per head.
//!
//! The scale is `max |x| / 127`, at least [`FLOOR`]; a code is `x / scale` rounded
//! to the nearest, of two the even one. Codes are of the scale before it is
//! stored, readers multiply them by what is stored.

use super::{RoleError, kv_append::locate};
use crate::{
    Expected, Numerics,
    bounds::{DIVISION, Store},
    numerics::round_to_f16,
};
use half::f16;
use kernels::kv::{Int8Layout, Side};

/// Largest code, and least but for its sign.
const MOST: f64 = 127.0;
/// Least scale, as the f32 that a kernel has.
pub const FLOOR: f64 = 1e-8_f32 as f64;

/// Keys or values of one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantised {
    /// Codes, `[kv_heads, head_dim]`.
    pub codes: Vec<i8>,
    /// Their scales, `[kv_heads]`.
    pub scales: Vec<f64>,
}

impl Quantised {
    /// What readers take them for, `[kv_heads, head_dim]`.
    pub fn decode(&self) -> Vec<f64> {
        let head_dim = self.codes.len() / self.scales.len().max(1);
        let heads = self.codes.chunks(head_dim.max(1)).zip(&self.scales);
        heads
            .flat_map(|(codes, scale)| codes.iter().map(move |&code| f64::from(code) * scale))
            .collect()
    }
}

/// Scale of a head before it is stored.
fn scale_of(head: &[f64]) -> f64 {
    let most = head.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    (most / MOST).max(FLOOR)
}

/// The code of a quotient.
fn code_of(quotient: f64) -> f64 {
    quotient.round_ties_even().clamp(-MOST, MOST)
}

fn heads_of(x: &[f64], head_dim: usize) -> std::slice::ChunksExact<'_, f64> {
    assert!(
        head_dim > 0 && x.len().is_multiple_of(head_dim),
        "kv_quantize_int8: whole heads of {head_dim}, found {} elements",
        x.len()
    );
    x.chunks_exact(head_dim)
}

/// `x` `[kv_heads, head_dim]`, the keys or the values of one position.
/// The stored scale is f16, whatever activations are.
///
/// # Panics
/// When `x` does not consist of whole heads.
pub fn compute(x: &[f64], head_dim: usize, numerics: Numerics) -> Quantised {
    let (mut codes, mut scales) = (Vec::with_capacity(x.len()), Vec::new());
    for head in heads_of(x, head_dim) {
        let scale = scale_of(head);
        codes.extend(head.iter().map(|x| code_of(x / scale) as i8));
        scales.push(match numerics {
            Numerics::Formula => scale,
            Numerics::Faithful(_) => round_to_f16(scale),
        });
    }
    Quantised { codes, scales }
}

/// What a kernel may give for `x`.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedCodes {
    /// Codes, `[kv_heads, head_dim]`.
    pub codes: Expected,
    /// Their scales as stored, `[kv_heads]`.
    pub scales: Expected,
}

/// [`compute`] with limits. The scale is off by one division and its store. The
/// quotient is off by that division and its own, relatively by `e`; rounding is
/// monotonic, so its code lies between those of `(1 - e)` and `(1 + e)` times the
/// true quotient. Unless a tie lies between them they are one code, and the
/// kernel must give it; else the value stands half way and the limit allows both.
///
/// # Panics
/// As [`compute`].
pub fn expected(x: &[f64], head_dim: usize) -> ExpectedCodes {
    let e = (1.0 + DIVISION) / (1.0 - DIVISION) - 1.0;
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for head in heads_of(x, head_dim) {
        let scale = scale_of(head);
        scales.push((scale, Store::F16.limit(scale, DIVISION * scale)));
        codes.extend(head.iter().map(|x| {
            let quotient = x / scale;
            let off = e * quotient.abs();
            let (low, high) = (code_of(quotient - off), code_of(quotient + off));
            (0.5 * (low + high), 0.5 * (high - low))
        }));
    }
    ExpectedCodes {
        codes: Expected::from_pairs(codes),
        scales: Expected::from_pairs(scales),
    }
}

/// One layer's int8 pages.
#[derive(Clone, Debug, PartialEq)]
pub struct Pages {
    /// Words of four codes, the first in the lowest byte.
    pub codes: Vec<u32>,
    /// Scales.
    pub scales: Vec<f16>,
}

impl Pages {
    /// `pages` pages whose words and scales are all these.
    pub fn filled(layout: Int8Layout, pages: usize, word: u32, scale: f16) -> Self {
        Self {
            codes: vec![word; pages * layout.page_words()],
            scales: vec![scale; pages * layout.page_scales()],
        }
    }

    fn slot(
        &self,
        layout: Int8Layout,
        table: &[u32],
        position: usize,
    ) -> Result<(usize, usize), RoleError> {
        let (page, slot) = locate(table, position)?;
        let held = self.scales.len() / layout.page_scales();
        match usize::try_from(page) {
            Ok(page) if page < held => Ok((page, slot)),
            _ => Err(RoleError::Page { page, pages: held }),
        }
    }

    /// The keys or values of one position.
    ///
    /// # Errors
    /// When the position has no page in the table or the buffers.
    pub fn read(
        &self,
        layout: Int8Layout,
        table: &[u32],
        position: usize,
        side: Side,
    ) -> Result<Quantised, RoleError> {
        let (page, slot) = self.slot(layout, table, position)?;
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for head in 0..layout.kv_heads {
            let first = layout.word_index(page, head, slot, side);
            let words = &self.codes[first..first + layout.words()];
            codes.extend(words.iter().flat_map(|w| w.to_le_bytes()).map(|b| b as i8));
            scales.push(self.scales[layout.scale_index(page, head, slot, side)].to_f64());
        }
        Ok(Quantised { codes, scales })
    }

    /// Stores keys and values of one position; a negative one (padding) is skipped.
    ///
    /// # Errors
    /// As [`Self::read`].
    ///
    /// # Panics
    /// When they are not `[kv_heads, head_dim]`.
    pub fn write(
        &mut self,
        layout: Int8Layout,
        table: &[u32],
        position: i32,
        [k, v]: [&Quantised; 2],
    ) -> Result<(), RoleError> {
        let Ok(position) = usize::try_from(position) else {
            return Ok(());
        };
        let (page, slot) = self.slot(layout, table, position)?;
        for (side, values) in [(Side::K, k), (Side::V, v)] {
            assert_eq!(
                [values.scales.len(), values.codes.len()],
                [layout.kv_heads, layout.kv_heads * layout.head_dim],
                "kv_quantize_int8: [kv_heads, head_dim]"
            );
            let heads = values.codes.chunks_exact(layout.head_dim);
            for (head, (codes, &scale)) in heads.zip(&values.scales).enumerate() {
                let first = layout.word_index(page, head, slot, side);
                let words = self.codes[first..].iter_mut().zip(codes.chunks_exact(4));
                for (word, codes) in words {
                    *word = u32::from_le_bytes(
                        [codes[0], codes[1], codes[2], codes[3]].map(|c| c as u8),
                    );
                }
                self.scales[layout.scale_index(page, head, slot, side)] = f16::from_f64(scale);
            }
        }
        Ok(())
    }

    /// What readers take positions `0..len` of one side for, `[len, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn gather(
        &self,
        layout: Int8Layout,
        table: &[u32],
        side: Side,
        len: usize,
    ) -> Result<Vec<f64>, RoleError> {
        let mut out = Vec::new();
        for position in 0..len {
            out.extend(self.read(layout, table, position, side)?.decode());
        }
        Ok(out)
    }
}
