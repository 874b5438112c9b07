//! RoPE's frequencies where a model scales them.

use serde::{Deserialize, Serialize};

/// How a model's RoPE differs from plain frequencies. Names are those of the Hugging
/// Face configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case")]
pub enum RopeScaling {
    /// Low frequencies are divided by a factor, high ones are kept, and those between
    /// are mixed (Llama 3.1 and later).
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Wavelengths above the original positions over this are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below the original positions over this are high frequencies.
        high_freq_factor: f64,
        /// Positions that the model was first trained on.
        original_max_position_embeddings: usize,
    },
    /// Each frequency is divided by a factor of its own, for a short or for a long
    /// context; rotated values are scaled (Phi-3.5, Phi-4-mini).
    Longrope {
        /// Factors of a context up to the original positions, `[rotary_dim / 2]`.
        short_factor: Vec<f64>,
        /// Factors of a longer context.
        long_factor: Vec<f64>,
        /// Positions that the model was first trained on.
        original_max_position_embeddings: usize,
        /// Positions that the model takes.
        max_position_embeddings: usize,
    },
}

impl RopeScaling {
    /// Scales `frequencies`, `[rotary_dim / 2]`, for a KV cache of `context` positions.
    /// A cache holds rotated keys, so one set of frequencies serves all of it.
    pub(super) fn apply(&self, frequencies: &mut [f64], context: usize) {
        match self {
            &Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let original = original_max_position_embeddings as f64;
                for f in frequencies {
                    let wavelength = std::f64::consts::TAU / *f;
                    let turns = original / wavelength;
                    if wavelength > original / low_freq_factor {
                        *f /= factor;
                    } else if wavelength >= original / high_freq_factor {
                        let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        *f = (1.0 - kept) * *f / factor + kept * *f;
                    }
                }
            }
            Self::Longrope {
                short_factor,
                long_factor,
                original_max_position_embeddings,
                ..
            } => {
                let factors = if context > *original_max_position_embeddings {
                    long_factor
                } else {
                    short_factor
                };
                for (f, factor) in frequencies.iter_mut().zip(factors) {
                    *f /= factor;
                }
            }
        }
    }

    /// What rotated queries and keys are multiplied by.
    pub fn attention_factor(&self) -> f64 {
        match *self {
            Self::Llama3 { .. } => 1.0,
            Self::Longrope {
                original_max_position_embeddings,
                max_position_embeddings,
                ..
            } => {
                let original = original_max_position_embeddings as f64;
                let stretch = max_position_embeddings as f64 / original;
                if stretch <= 1.0 {
                    1.0
                } else {
                    (1.0 + stretch.ln() / original.ln()).sqrt()
                }
            }
        }
    }

    /// What is wrong with it for a model of `pairs` rotated pairs.
    pub(super) fn problem(&self, pairs: usize) -> Option<String> {
        match self {
            &Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => {
                let fits = factor >= 1.0 && low > 0.0 && high > low && original > 0;
                let all_finite = factor.is_finite() && high.is_finite();
                (!fits || !all_finite).then(|| {
                    format!(
                        "llama3 RoPE: factor {factor}, low_freq_factor {low}, high_freq_factor \
                         {high}, original_max_position_embeddings {original}; expected a factor \
                         from 1, 0 < low < high and positions above 0"
                    )
                })
            }
            Self::Longrope {
                short_factor,
                long_factor,
                original_max_position_embeddings: original,
                max_position_embeddings: most,
            } => {
                let lists = [("short_factor", short_factor), ("long_factor", long_factor)];
                for (name, list) in lists {
                    let positive = list.iter().all(|f| f.is_finite() && *f > 0.0);
                    if list.len() != pairs || !positive {
                        return Some(format!(
                            "longrope: {name} has {} numbers; expected {pairs}, one above 0 for \
                             each rotated pair",
                            list.len()
                        ));
                    }
                }
                (*original < 2 || most < original).then(|| {
                    format!(
                        "longrope: original_max_position_embeddings {original} and \
                         max_position_embeddings {most}; expected 2 at least, and as many or more"
                    )
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `LlamaRotaryEmbedding` with the configuration of Llama-3.2-1B, worked
    /// out by hand from its formula.
    #[test]
    fn llama3_divides_low_keeps_high_and_mixes_between() {
        let scaling = RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        let plain: Vec<f64> = (0..32)
            .map(|i| 5e5_f64.powf(-f64::from(i) / 32.0))
            .collect();
        let mut scaled = plain.clone();
        scaling.apply(&mut scaled, 4096);
        assert_eq!(scaled[0], 1.0, "a wavelength of 2 pi");
        assert_eq!(scaled[31], plain[31] / 32.0, "a wavelength of 2e6");
        // Pair 17: wavelength 2 pi 5e5^(17/32) = 6708, 1.2213 turns in 8192.
        let kept = (8192.0 * plain[17] / std::f64::consts::TAU - 1.0) / 3.0;
        assert!((0.0..1.0).contains(&kept), "{kept}");
        let expected = plain[17] * (kept + (1.0 - kept) / 32.0);
        assert!((scaled[17] - expected).abs() < 1e-15, "{}", scaled[17]);
        assert_eq!(scaling.attention_factor(), 1.0, "values are not scaled");
    }

    #[test]
    fn longrope_goes_by_the_context_and_scales_values() {
        let scaling = RopeScaling::Longrope {
            short_factor: vec![1.0, 2.0],
            long_factor: vec![1.5, 8.0],
            original_max_position_embeddings: 4096,
            max_position_embeddings: 131_072,
        };
        let scaled = |context| {
            let mut frequencies = [1.0, 0.5];
            scaling.apply(&mut frequencies, context);
            frequencies
        };
        assert_eq!(scaled(4096), [1.0, 0.25], "short");
        assert_eq!(scaled(4097), [1.0 / 1.5, 0.0625], "long");
        let factor = scaling.attention_factor();
        // sqrt(1 + ln 32 / ln 4096) = sqrt(1 + 5/12).
        assert!(
            (factor - (17.0_f64 / 12.0).sqrt()).abs() < 1e-15,
            "{factor}"
        );
        assert_eq!(scaling.problem(2), None, "whole");
        let problem = scaling.problem(3).expect("two factors");
        assert!(
            problem.contains("short_factor has 2 numbers; expected 3"),
            "{problem}"
        );
    }
}
