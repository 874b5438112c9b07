//! Where kernels round.

use half::f16;
use kernels::{Elem, variants::INT8_GROUP};

/// Which of the two references runs (design.md, numeric truth).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// f64 from the dequantised weights on; catches a misread specification.
    Formula,
    /// As [`Numerics::Formula`] inside a dispatch, rounded to this type wherever
    /// a kernel stores activations: what limits are tight against.
    Faithful(Elem),
}

impl Numerics {
    /// A value as the next dispatch reads it.
    pub fn store(self, x: f64) -> f64 {
        match self {
            Self::Formula => x,
            Self::Faithful(Elem::F16) => round_to_f16(x),
            Self::Faithful(Elem::F32) => f64::from(x as f32),
        }
    }

    /// [`Self::store`] of a whole buffer.
    pub fn store_all(self, mut xs: Vec<f64>) -> Vec<f64> {
        xs.iter_mut().for_each(|x| *x = self.store(*x));
        xs
    }
}

/// Rounds to the nearest f16, ties to even; beyond 65,520 to infinity.
///
/// `half::f16::from_f64` rounds twice (through f32, or after dropping the low
/// 32 bits of the mantissa) and so misses some values close to a tie.
pub fn round_to_f16(x: f64) -> f64 {
    /// Exponent of the smallest normal f16.
    const MIN_EXPONENT: i32 = -14;
    /// Bits of an f16's fraction.
    const FRACTION_BITS: i32 = 10;
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let step = 2f64.powi(exponent.max(MIN_EXPONENT) - FRACTION_BITS);
    if exponent > 15 {
        return f64::INFINITY.copysign(x);
    }
    let rounded = (x / step).round_ties_even() * step;
    if rounded.abs() > f16::MAX.to_f64() {
        f64::INFINITY.copysign(x)
    } else {
        rounded
    }
}

/// How often a code of int8 activations goes into `x`, where the greatest magnitude of its
/// group is `most`.
pub fn int8_quotient(x: f64, most: f64) -> f64 {
    if most > 0.0 {
        INT8_MOST * x / most
    } else {
        0.0
    }
}

/// The code of a quotient: the nearest, of two the even one.
pub fn int8_code(quotient: f64) -> f64 {
    quotient.round_ties_even().clamp(-INT8_MOST, INT8_MOST)
}

/// Largest code of int8 activations.
const INT8_MOST: f64 = 127.0;

/// What int8 codes of activations stand for: groups of [`INT8_GROUP`] whose greatest
/// magnitude has the code 127.
///
/// # Panics
/// When the row is not whole groups.
pub fn int8_rounded(x: &[f64]) -> Vec<f64> {
    assert!(x.len().is_multiple_of(INT8_GROUP), "rows are whole groups");
    let groups = x.chunks_exact(INT8_GROUP).map(|group| {
        let most = group.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        let stands_for = move |&x: &f64| int8_code(int8_quotient(x, most)) * most / INT8_MOST;
        group.iter().map(stands_for)
    });
    groups.flatten().collect()
}

/// Decodes f16 values.
pub fn decode(values: &[f16]) -> Vec<f64> {
    values.iter().map(|v| v.to_f64()).collect()
}

/// f32 values, exactly.
pub fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_and_every_tie_rounds_right() {
        for bits in 0..0x7c00u16 {
            let lower = f16::from_bits(bits).to_f64();
            assert_eq!(round_to_f16(lower), lower, "{bits:#x}");
            assert_eq!(round_to_f16(-lower), -lower, "-{bits:#x}");
            // The successor of the largest finite value, as if unbounded.
            let upper = if bits == 0x7bff {
                65_536.0
            } else {
                f16::from_bits(bits + 1).to_f64()
            };
            let to = |up: bool| match (up, bits) {
                (true, 0x7bff) => f64::INFINITY,
                (true, _) => upper,
                (false, _) => lower,
            };
            let tie = (lower + upper) / 2.0;
            assert_eq!(round_to_f16(tie), to(bits % 2 == 1), "{bits:#x}: tie");
            assert_eq!(round_to_f16(tie.next_up()), to(true), "{bits:#x}: above");
            assert_eq!(round_to_f16(tie.next_down()), lower, "{bits:#x}: below");
        }
        assert!(round_to_f16(f64::NAN).is_nan(), "NaN stays");
        assert_eq!(round_to_f16(1e300), f64::INFINITY, "overflow");
        assert_eq!(round_to_f16(-1e300), f64::NEG_INFINITY, "overflow");
        assert_eq!(round_to_f16(1e-300), 0.0, "underflow");
    }
}
