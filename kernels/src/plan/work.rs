//! What a plan reads of memory and computes, by count.

use super::{Plan, PlanTotals};
use crate::{models::ModelSpec, role::Role};
use std::{iter::Sum, ops::Add};

/// Bytes that must be read, and operations that must be done with them, whatever the
/// kernel: of weights, or of cached keys and values. Activations, norms and the states of
/// gated DeltaNet are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes, scales and biases among them.
    pub bytes: u64,
    /// Operations, two for each multiply-add.
    pub flops: u64,
}

impl Work {
    /// Of a dispatch without weights.
    pub const NONE: Self = Self { bytes: 0, flops: 0 };
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            flops: self.flops + other.flops,
        }
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::NONE, Add::add)
    }
}

impl PlanTotals {
    /// What a token reads of weights, and computes with them.
    pub const fn work(&self) -> Work {
        Work {
            bytes: self.bytes_per_token,
            flops: self.flops_per_token,
        }
    }
}

impl Plan {
    /// What a decoded token's attention reads of the keys and values of `positions`
    /// positions, its own among them, and computes with them: a product with the keys and
    /// one with the values for each query head. Nothing of a prompt's plan.
    pub fn kv_work(&self, spec: &ModelSpec, positions: u64) -> Work {
        let roles = self.dispatches.iter().map(|dispatch| dispatch.variant.role);
        let attention = roles.filter(|role| {
            matches!(
                role,
                Role::Attention | Role::AttentionSplitk | Role::AttentionInt8
            )
        });
        let of_layer = |role: Role| {
            let format = role.kv_format()?;
            let bytes = format.position_bytes(spec.kv_layout(), self.elem);
            Some(Work {
                bytes: positions * bytes,
                flops: positions * 2 * 2 * spec.q_dim() as u64,
            })
        };
        attention.filter_map(of_layer).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Settings,
        features::Features,
        models,
        plan::{Phase, tests::plan},
    };

    #[test]
    fn a_token_multiplies_every_weight_once() {
        let found = plan("phi3-mini", &[], &Features::PUBLISHED).expect("a plan");
        let layer = 9216 * 3072 + 3072 * 3072 + 16_384 * 3072 + 3072 * 8192;
        let weights = 32 * layer + 32_064 * 3072;
        assert_eq!(found.totals().flops_per_token, 2 * weights, "two for each");
        let embedding = &found.dispatches[0];
        assert_eq!(embedding.work, Work::NONE, "{}", embedding.label);
        // Norms inside the projections are none of them.
        let choices = ["dp4a=1", "fusenorm=1", "splitk=0"];
        let fused = plan("phi3-mini", &choices, &Features::PUBLISHED).expect("a plan");
        assert_eq!(fused.totals().flops_per_token, 2 * weights, "fused");
    }

    #[test]
    fn a_chunk_reads_its_weights_once_for_all_its_tokens_and_the_head_for_one() {
        let spec = models::find("phi3-mini").expect("registered");
        let settings = Settings::resolve(&Features::PUBLISHED, &Default::default());
        let settings = settings.expect("the defaults");
        let of = |tokens, head| {
            let phase = Phase::Prefill { tokens, head };
            let found = Plan::build(&spec, &settings, &Features::PUBLISHED, phase);
            found.expect("a plan").totals()
        };
        let (one, many) = (of(1, false), of(64, false));
        assert_eq!(many.bytes_per_token, one.bytes_per_token, "read once");
        assert_eq!(many.flops_per_token, 64 * one.flops_per_token);
        let head = of(64, true).flops_per_token - many.flops_per_token;
        assert_eq!(head, 2 * 32_064 * 3072, "of one token");
    }

    #[test]
    fn a_token_multiplies_the_experts_that_it_takes() {
        let found = plan("qwen3-30b-a3b", &[], &Features::PUBLISHED).expect("a plan");
        let (d, f, slots, experts) = (2048, 768, 8, 128);
        let attention = d * (32 + 2 * 4) * 128 + 32 * 128 * d;
        let layer = attention + experts * d + slots * 3 * d * f;
        let weights = 48 * layer + 151_936 * d;
        assert_eq!(found.totals().flops_per_token, 2 * weights);
    }

    #[test]
    fn attention_works_in_the_layers_that_have_it() {
        let of = |model: &str, choices: &[&str]| {
            let spec = models::find(model).expect("registered");
            let found = plan(model, choices, &Features::PUBLISHED).expect("a plan");
            found.kv_work(&spec, 10)
        };
        let whole = of("phi3-mini", &["splitk=0"]);
        assert_eq!(whole.bytes, 10 * 32 * 2 * 3072 * 2, "f16 keys and values");
        assert_eq!(whole.flops, 10 * 32 * 2 * 2 * 3072);
        assert_eq!(of("phi3-mini", &["splitk=8"]), whole, "parts read as much");
        let int8 = of("phi3-mini", &["kv8=1", "splitk=0"]);
        assert_eq!(
            int8.bytes,
            10 * 32 * 2 * (3072 + 32 * 2),
            "codes and scales"
        );
        assert_eq!(int8.flops, whole.flops);
        // One layer of four, with 16 query heads on 4 of 256 elements.
        let hybrid = of("qwen35-4b", &[]);
        assert_eq!(hybrid.bytes, 10 * 8 * 2 * 4 * 256 * 2);
        assert_eq!(hybrid.flops, 10 * 8 * 2 * 2 * 16 * 256);
    }
}
