//! Seeded operands, ordinary and adversarial.

use half::f16;
use kernels::quant::{Elem, QuantFormat};
use reference::{Packed, matrix::ScaleValues};
use results::draw::split_mix;

/// A seeded stream, so that a case is its parameters and a seed.
#[derive(Debug)]
pub(crate) struct Values(pub(crate) u64);

/// What the values of a vector are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// About normal, one in 50 ten times larger.
    Ordinary,
    /// Ordinary, with every 61st channel 50 times larger.
    OutlierChannels,
    /// Subnormal in f16: below 2^-14.
    Subnormal,
    /// So large that a sum or a square overflows f16, and no value does.
    Large,
    /// All zero.
    Zero,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Ordinary,
        Self::OutlierChannels,
        Self::Subnormal,
        Self::Large,
        Self::Zero,
    ];
}

/// What the weights of a matrix are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WeightKind {
    /// Every code, scales about 0.01.
    Ordinary,
    /// Half of the scales are zero, and all of the first row's.
    ZeroScales,
    /// Subnormal scales.
    SubnormalScales,
    /// Half of the scales are negative.
    NegativeScales,
    /// Each row's first half is the greatest weight and its second half the least:
    /// on equal activations a serial f16 accumulator overflows where the sum is
    /// small.
    Cancelling,
}

impl WeightKind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Ordinary,
        Self::ZeroScales,
        Self::SubnormalScales,
        Self::NegativeScales,
        Self::Cancelling,
    ];
}

/// A word of a row of [`WeightKind::Cancelling`] whose first code is that of the
/// weight `at`.
fn cancelling_codes(format: QuantFormat, at: usize, k: usize) -> u32 {
    let (greatest, least, middle) = match format {
        QuantFormat::Q4f16_1 | QuantFormat::Q4f32_1 => (0xeeee_eeee, 0, 0x7777_7777),
        QuantFormat::Q4_0 => (0xffff_ffff, 0x1111_1111, 0x8888_8888),
        QuantFormat::Affine4G32 | QuantFormat::Affine4G64 => (u32::MAX, 0, 0x8888_8888),
        QuantFormat::Q8_0 => (u32::MAX, 0x0101_0101, 0x8080_8080),
        QuantFormat::Affine8G32 | QuantFormat::Affine8G64 => (u32::MAX, 0, 0x8080_8080),
        // Its groups of 64 leave no middle.
        QuantFormat::Affine3G64 => (u32::MAX, 0, 0),
    };
    if at < k / 64 * 32 {
        greatest
    } else if at >= k.div_ceil(64) * 32 {
        least
    } else {
        middle
    }
}

impl Values {
    fn bits(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// At least 0, below 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    fn normal(&mut self) -> f64 {
        (0..6).map(|_| self.uniform()).sum::<f64>() * 2f64.sqrt() - 18f64.sqrt()
    }

    /// `n` values, not rounded to the type of any variant, of spread `spread`, which subnormal and large ones ignore.
    pub(crate) fn activations(&mut self, n: usize, kind: Kind, spread: f64) -> Vec<f32> {
        let mut value = |i: usize| match kind {
            Kind::Ordinary => {
                let outlier = if self.uniform() < 0.02 { 10.0 } else { 1.0 };
                self.normal() * spread * outlier
            }
            Kind::OutlierChannels => {
                let outlier = if i % 61 == 7 { 50.0 } else { 1.0 };
                self.normal() * spread * outlier
            }
            Kind::Subnormal => f16::from_bits(self.bits() as u16 & 0x83ff).to_f64(),
            Kind::Large => (20_000.0 + 10_000.0 * self.uniform()) * self.normal().signum(),
            Kind::Zero => 0.0,
        };
        (0..n).map(|i| value(i) as f32).collect()
    }

    pub(crate) fn packed(
        &mut self,
        format: QuantFormat,
        rows: usize,
        k: usize,
        kind: WeightKind,
    ) -> Packed {
        let words_per_row = format.words_per_row(k);
        let scales_per_row = format.scales_per_row(k);
        let words = (0..rows * words_per_row).map(|i| {
            let at = i % words_per_row * 32 / format.bits();
            match kind {
                WeightKind::Cancelling => cancelling_codes(format, at, k),
                WeightKind::Ordinary
                | WeightKind::ZeroScales
                | WeightKind::SubnormalScales
                | WeightKind::NegativeScales => self.bits() as u32,
            }
        });
        let words = words.collect();
        // Codes of 8 bits are wider, and weights are to be as large.
        let size = 15.0 / f64::from((1 << format.bits()) - 1);
        let scales = (0..rows * scales_per_row).map(|i| {
            let ordinary = (0.002 + 0.02 * self.uniform()) * size;
            let half = self.uniform() < 0.5;
            f16::from_f64(match kind {
                WeightKind::Ordinary => ordinary,
                WeightKind::ZeroScales if half || i < scales_per_row => 0.0,
                WeightKind::ZeroScales => ordinary,
                WeightKind::SubnormalScales => {
                    return f16::from_bits(self.bits() as u16 & 0x03ff);
                }
                WeightKind::NegativeScales if half => -ordinary,
                WeightKind::NegativeScales => ordinary,
                WeightKind::Cancelling => 1.0,
            })
        });
        let scales: Vec<f16> = scales.collect();
        let biased: &[f16] = if format.is_affine() { &scales } else { &[] };
        let biases = biased.iter().map(|&scale| self.bias(format, scale, kind));
        let biases = biases.collect();
        Packed {
            format,
            rows,
            k,
            words,
            biases,
            scales: match format.scale_type() {
                Elem::F16 => ScaleValues::F16(scales),
                Elem::F32 => ScaleValues::F32(scales.iter().map(|s| s.to_f32()).collect()),
            },
        }
    }

    /// A bias that about centres its group; where scales are zero, one of that
    /// size all the same.
    fn bias(&mut self, format: QuantFormat, scale: f16, kind: WeightKind) -> f16 {
        let middle = f64::from((1 << format.bits()) - 1) / 2.0;
        let centring = -middle * scale.to_f64();
        f16::from_f64(match kind {
            WeightKind::Ordinary | WeightKind::NegativeScales => {
                centring * (0.8 + 0.4 * self.uniform())
            }
            WeightKind::ZeroScales => centring + 0.1 * (self.uniform() - 0.5),
            WeightKind::SubnormalScales => {
                return f16::from_bits(self.bits() as u16 & 0x83ff);
            }
            WeightKind::Cancelling => centring,
        })
    }

    /// A permutation of `0..n`.
    pub(crate) fn permutation(&mut self, n: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }
}

/// What the logits are like.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Logits {
    Ordinary,
    /// All equal: the lowest index wins.
    Equal,
    /// The greatest stands in several places.
    Ties,
    /// All below zero.
    Negative,
    /// All minus infinity but one.
    AlmostAllInfinite,
    /// The last is the greatest.
    Last,
    /// All within what f16 cannot tell apart, the last alone above the others.
    Close,
}

pub(crate) const LOGITS: [Logits; 7] = [
    Logits::Ordinary,
    Logits::Equal,
    Logits::Ties,
    Logits::Negative,
    Logits::AlmostAllInfinite,
    Logits::Last,
    Logits::Close,
];

impl Logits {
    pub(crate) fn of(self, values: &mut Values, vocab: usize) -> Vec<f32> {
        let mut logits = values.activations(vocab, Kind::Ordinary, 4.0);
        match self {
            Self::Ordinary => {}
            Self::Equal => logits.fill(-1.5),
            Self::Ties => {
                for _ in 0..8 {
                    logits[values.below(vocab)] = 300.0;
                }
            }
            Self::Negative => logits.iter_mut().for_each(|x| *x = -1.0 - x.abs()),
            Self::AlmostAllInfinite => {
                logits.fill(f32::NEG_INFINITY);
                logits[values.below(vocab)] = f16::MIN.to_f32();
            }
            Self::Last => logits[vocab - 1] = f16::MAX.to_f32(),
            Self::Close => {
                logits.fill(7.0);
                logits[vocab - 1] = 7.0 + 1.0 / 4096.0;
            }
        }
        logits
    }
}
