//! Unit tests of the module above.

use super::*;
use crate::{flag, models};

fn plan(model: &str, choices: &[&str], features: &Features) -> Result<Plan, PlanError> {
    let spec = models::find(model).expect("registered");
    let mut chosen = flag::Choices::new();
    for choice in choices {
        flag::parse_choice(choice, &mut chosen).expect("a valid choice");
    }
    let settings = Settings::resolve(features, &chosen).expect("no conflict");
    Plan::build(&spec, &settings, features, Phase::Decode)
}

#[test]
fn published_dispatch_totals() {
    for (model, choices, expected) in [
        ("phi3-mini", &[][..], 260),
        ("phi3-mini", &["splitk=0"], 228),
        ("smollm2-135m", &[], 244),
        ("smollm2-135m", &["splitk=0"], 214),
        ("smollm2-135m", &["rowwise=1"], 244),
        ("qwen3-4b", &[], 328),
        ("qwen3-4b", &["splitk=0"], 292),
        ("qwen3-4b", &["splitk=0", "fuseqk=0"], 364),
        ("phi3-mini", &["kv8=1"], 260),
        ("smollm2-135m", &["kv8=1"], 244),
        ("qwen3-4b", &["kv8=1"], 364),
    ] {
        let plan = plan(model, choices, &Features::PUBLISHED).expect("a plan");
        assert_eq!(plan.dispatches_per_token(), expected, "{model} {choices:?}");
        let totals = plan.totals();
        assert_eq!(totals.by_role.values().sum::<u32>(), expected, "by role");
    }
}

#[test]
fn phi3_reads_2_09_gb_per_token() {
    let plan = plan("phi3-mini", &[], &Features::PUBLISHED).expect("a plan");
    let bytes = plan.totals().bytes_per_token;
    let weights = 32 * (9216 * 3072 + 3072 * 3072 + 16_384 * 3072 + 3072 * 8192) + 32_064 * 3072;
    assert_eq!(bytes, weights / 32 * 18, "4.5 bits per weight");
}

#[test]
fn bindings_and_uniforms_match_the_role_tables() {
    let cpu = Features {
        cpu: true,
        ..Features::PUBLISHED
    };
    for features in [Features::PUBLISHED, cpu] {
        let prefill = |tokens| Phase::Prefill { tokens, head: true };
        for phase in [Phase::Decode, prefill(1), prefill(64)] {
            for (model, choice) in [
                ("smollm2-135m", "splitk=0"),
                ("smollm2-135m", "splitk=8"),
                ("qwen3-4b", "fuseqk=0"),
                ("qwen3-4b", "fuseqk=1"),
                ("smollm2-135m", "kv8=1"),
                ("qwen3-4b", "kv8=1"),
            ] {
                let spec = models::find(model).expect("registered");
                let mut chosen = flag::Choices::new();
                flag::parse_choice(choice, &mut chosen).expect("a valid choice");
                let settings = Settings::resolve(&features, &chosen).expect("no conflict");
                let plan = Plan::build(&spec, &settings, &features, phase).expect("a plan");
                for dispatch in plan.dispatches {
                    let variant = dispatch.variant;
                    assert_eq!(
                        dispatch.buffers.len(),
                        variant.storage_bindings().count(),
                        "{}",
                        dispatch.label
                    );
                    assert_eq!(
                        dispatch.uniform.len(),
                        variant.uniform().len(),
                        "{}",
                        dispatch.label
                    );
                }
            }
        }
    }
}

#[test]
fn an_impossible_choice_names_its_constraint() {
    let error = plan("smollm2-135m", &["vec4=1"], &Features::PUBLISHED)
        .expect_err("576 and 1536 are no multiples of 1024")
        .to_string();
    assert!(
        error.contains("K = 576 is not a multiple of 1024"),
        "{error}"
    );
    let error = plan("phi3-mini", &["fuseqk=1"], &Features::PUBLISHED)
        .expect_err("Phi-3 normalises no heads")
        .to_string();
    assert!(error.contains("no QK-norm"), "{error}");
}

/// Dispatches of layer 0 before attention.
fn first_labels(choices: &[&str], phase: Phase) -> Vec<String> {
    let spec = models::find("qwen3-4b").expect("registered");
    let mut chosen = flag::Choices::new();
    for choice in choices {
        flag::parse_choice(choice, &mut chosen).expect("a valid choice");
    }
    let settings = Settings::resolve(&Features::PUBLISHED, &chosen).expect("no conflict");
    let plan = Plan::build(&spec, &settings, &Features::PUBLISHED, phase).expect("a plan");
    let labels = plan.dispatches.into_iter().map(|d| d.label);
    labels
        .filter_map(|label| label.strip_prefix("layers.0.").map(str::to_owned))
        .take_while(|site| site != "attention")
        .collect()
}

#[test]
fn qwen3_normalises_heads_between_projection_and_rotation() {
    let unfused = ["input_norm", "qkv", "qk_norm", "rope", "kv_append"];
    let prefill = Phase::Prefill {
        tokens: 5,
        head: false,
    };
    assert_eq!(first_labels(&[], prefill), unfused, "a prompt token");
    assert_eq!(
        first_labels(&["fuseqk=0"], Phase::Decode),
        unfused,
        "a decoded token"
    );
    assert_eq!(
        first_labels(&[], Phase::Decode),
        ["input_norm", "qkv", "qk_norm_rope_append"],
        "fused"
    );
}

#[test]
fn a_chunk_runs_in_one_dispatch_a_site_and_within_the_limits() {
    for model in ["smollm2-135m", "phi3-mini", "qwen3-4b"] {
        let spec = models::find(model).expect("registered");
        let features = Features::PUBLISHED;
        let settings = Settings::resolve(&features, &flag::Choices::new()).expect("defaults");
        let dispatches = |tokens| {
            let phase = Phase::Prefill { tokens, head: true };
            let plan = Plan::build(&spec, &settings, &features, phase);
            plan.map(|plan| plan.dispatches)
        };
        let one = dispatches(1).expect("a token");
        let most = dispatches(MAX_CHUNK).expect("a chunk");
        assert_eq!(one.len(), most.len(), "{model}: as many dispatches");
        for dispatch in &most {
            let within = |n: &u32| (1..=features.max_workgroups_per_dimension).contains(n);
            assert!(dispatch.grid.iter().all(within), "{}", dispatch.label);
        }
        for tokens in [0, MAX_CHUNK + 1] {
            let error = dispatches(tokens).expect_err("no chunk").to_string();
            assert!(error.contains("expected 1 to 64"), "{error}");
        }
    }
}

#[test]
fn rows_fold_into_z_past_the_limit() {
    assert_eq!(fold(65_535, 65_535), [65_535, 1, 1], "at the limit");
    assert_eq!(fold(65_536, 65_535), [32_768, 1, 2], "past it");
    assert_eq!(fold(151_936, 65_535), [50_646, 1, 3], "a large vocabulary");
}
