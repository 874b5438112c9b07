//! How the next token is chosen from the logits: the greatest, or drawn.

/// Parts of the vocabulary that `sample_reduce` takes on their own.
pub const SAMPLE_PARTS: usize = 64;

/// Smallest `top_p`: its product with a sum of weights is no subnormal f32.
const LEAST_TOP_P: f32 = 1e-6;
/// Smallest temperature: a difference of logits over it is a finite f32.
const LEAST_TEMPERATURE: f32 = 1e-3;
/// Largest temperature; beyond it every token is as likely as any.
const GREATEST_TEMPERATURE: f32 = 1e3;

/// How the next token is chosen. A setting of a plan and no flag: it changes what is
/// said, not how fast.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sampling {
    /// The greatest logit, the lowest index of equals.
    #[default]
    Greedy,
    /// Drawn at random.
    Drawn(Draw),
}

/// A draw. With `w = e^((l - max l) / temperature)`, a token is kept where `w` is at
/// least `min_p`, where fewer than `top_k` tokens have a greater `w`, and where those
/// with a greater `w` have less than `top_p` of the sum of all. Of the kept tokens
/// one is drawn with the probability of its `w`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// What differences of logits are divided by.
    pub temperature: f32,
    /// Share of the probability that is kept; 1 keeps all.
    pub top_p: f32,
    /// Least probability that is kept, of the greatest; 0 keeps all.
    pub min_p: f32,
    /// Tokens that are kept, and those as likely as the last; 0 keeps all.
    pub top_k: u32,
    /// What the drawn numbers follow from, with the position.
    pub seed: u32,
}

/// A number that no draw can have.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} {found}: expected {expected}")]
pub struct SamplingError {
    name: &'static str,
    found: f32,
    expected: &'static str,
}

impl Draw {
    /// A draw from all tokens as they are likely.
    pub const PLAIN: Self = Self {
        temperature: 1.0,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        seed: 0,
    };

    /// The random number of a position: 24 bits, as a share of 1.
    pub const fn share(&self, position: u32) -> f64 {
        (lowbias32(self.seed ^ lowbias32(position)) >> 8) as f64 / (1_u32 << 24) as f64
    }
}

impl Sampling {
    /// Greedy at temperature 0, else this draw.
    ///
    /// # Errors
    /// Names the number that is out of its range.
    pub fn new(draw: Draw) -> Result<Self, SamplingError> {
        let within = |name, found: f32, holds: bool, expected| match holds {
            true => Ok(()),
            false => Err(SamplingError {
                name,
                found,
                expected,
            }),
        };
        let Draw {
            temperature,
            top_p,
            min_p,
            ..
        } = draw;
        let warm = (LEAST_TEMPERATURE..=GREATEST_TEMPERATURE).contains(&temperature);
        within(
            "temperature",
            temperature,
            warm || temperature == 0.0,
            "0, or 0.001 to 1000",
        )?;
        let p = (LEAST_TOP_P..=1.0).contains(&top_p);
        within("top-p", top_p, p, "0.000001 to 1")?;
        within(
            "min-p",
            min_p,
            (0.0..1.0).contains(&min_p),
            "0 to less than 1",
        )?;
        Ok(if warm {
            Self::Drawn(draw)
        } else {
            Self::Greedy
        })
    }
}

/// Chris Wellons' hash `lowbias32` of 32 bits.
pub const fn lowbias32(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        let refused = |draw, part: &str| {
            let error = Sampling::new(draw).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        };
        let plain = Draw::PLAIN;
        for temperature in [-1.0, f32::NAN, f32::INFINITY, 1e-9] {
            refused(
                Draw {
                    temperature,
                    ..plain
                },
                "0, or 0.001 to 1000",
            );
        }
        refused(
            Draw {
                top_p: 0.0,
                ..plain
            },
            "top-p 0",
        );
        refused(
            Draw {
                top_p: 1.5,
                ..plain
            },
            "0.000001 to 1",
        );
        refused(
            Draw {
                min_p: 1.0,
                ..plain
            },
            "less than 1",
        );
        refused(
            Draw {
                min_p: -0.1,
                ..plain
            },
            "min-p -0.1",
        );
        let cold = Draw {
            temperature: 0.0,
            ..plain
        };
        assert_eq!(Sampling::new(cold), Ok(Sampling::Greedy), "temperature 0");
        assert_eq!(Sampling::new(plain), Ok(Sampling::Drawn(plain)), "a draw");
    }

    #[test]
    fn random_numbers_are_spread_and_repeatable() {
        // Values of the hash's publication are not at hand; this holds it as it is.
        assert_eq!(lowbias32(0), 0, "zero stays");
        let draw = Draw {
            seed: 7,
            ..Draw::PLAIN
        };
        let shares: Vec<f64> = (0..4096).map(|at| draw.share(at)).collect();
        assert!(shares.iter().all(|s| (0.0..1.0).contains(s)), "shares");
        let mean = shares.iter().sum::<f64>() / 4096.0;
        // Its standard deviation is 0.0045.
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        let other = Draw { seed: 8, ..draw };
        let same = (0..4096)
            .filter(|&at| other.share(at) == draw.share(at))
            .count();
        assert!(same < 3, "another seed draws other numbers");
    }
}
