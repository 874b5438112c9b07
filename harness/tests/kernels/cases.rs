//! Every case of every variant of a role: its properties, drawn from seeds, and
//! its golden vectors.
//!
//! The seeds follow from one: `PROPTEST_RNG_SEED` sets it and `PROPTEST_CASES`
//! how many cases are drawn. A failure prints the command that runs it again.

#![allow(clippy::disallowed_methods, reason = "a test is its own command line")]

use crate::support;
use harness::cases::{self, Bench, Case, DRAWN, SEED};
use kernels::{Elem, Role};
use proptest::test_runner::{Config, RngSeed};
use std::collections::BTreeSet;

/// Cases drawn of a property in the slower sweep.
const ALL_DRAWN: usize = 64;

fn every_case(test: &str, role: Role) {
    let test = format!("cases::{test}");
    let Some(gpu) = support::adapter(&test) else {
        return;
    };
    let config = Config::default();
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => SEED,
    };
    let drawn = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => config.cases as usize,
        None if support::all() => ALL_DRAWN,
        None => DRAWN,
    };
    let at_size = support::subgroup_size(&gpu).is_some();
    let of_role = |case: &Case| {
        let variant = case.variant();
        // A size has a part in sums, whatever the types of their terms are.
        let few_types = variant.in_base_format() || variant.elem.max(variant.out) == Elem::F16;
        let of_size = variant.uses_subgroups() && few_types && case.is_drawn();
        variant.role == role && (!at_size || of_size)
    };
    let mut missing = BTreeSet::new();
    for case in cases::all().filter(of_role) {
        let golden = match case.golden_file() {
            Some(file) if missing.contains(file) => continue,
            Some(file) => match support::golden_folder(&test, file) {
                Some(folder) => Some(folder),
                None => {
                    missing.insert(file);
                    continue;
                }
            },
            None => None,
        };
        let mut bench = Bench::new(&gpu, golden);
        for seed in case.seeds(seed, drawn) {
            if let Err(error) = case.run(&mut bench, seed) {
                panic!("{error:#}");
            }
        }
    }
}

/// One test for each role.
macro_rules! roles {
    ($($name:ident: $role:ident,)*) => {
        $(#[test]
        fn $name() {
            every_case(stringify!($name), Role::$role);
        })*

        #[test]
        fn every_role_has_its_test_and_every_variant_a_drawn_property() {
            assert_eq!([$(Role::$role),*], *Role::ALL, "the roles with a test");
            for variant in kernels::variants::VARIANTS.iter() {
                let id = format!("{}/{variant}/drawn", variant.role);
                cases::find(&id).expect("a drawn property");
            }
        }
    };
}

roles! {
    embedding: Embedding,
    rms_norm: RmsNorm,
    qkv_fused: QkvFused,
    qkv_fused_scratch: QkvFusedScratch,
    qkv_fused_norm: QkvFusedNorm,
    attention: Attention,
    attention_splitk: AttentionSplitk,
    attention_combine: AttentionCombine,
    attention_int8: AttentionInt8,
    attention_prefill: AttentionPrefill,
    attention_prefill_int8: AttentionPrefillInt8,
    int4_matmul: Int4Matmul,
    int4_matmul_add: Int4MatmulAdd,
    int4_matmul_moe: Int4MatmulMoe,
    fused_ffn: FusedFfn,
    fused_ffn_prologue: FusedFfnPrologue,
    fused_ffn_norm: FusedFfnNorm,
    silu_mul: SiluMul,
    add_norm: AddNorm,
    add3_norm: Add3Norm,
    kv_append: KvAppend,
    kv_quantize_int8: KvQuantizeInt8,
    rope: Rope,
    qk_norm: QkNorm,
    qk_norm_rope_append: QkNormRopeAppend,
    gated_qkv_split: GatedQkvSplit,
    attn_gate: AttnGate,
    gdn_conv: GdnConv,
    gdn_conv_seq: GdnConvSeq,
    gdn_conv_commit: GdnConvCommit,
    gdn_gates: GdnGates,
    gdn_recur: GdnRecur,
    gdn_norm_out: GdnNormOut,
    moe_router_logits: MoeRouterLogits,
    moe_router_topk: MoeRouterTopk,
    moe_combine: MoeCombine,
    argmax: Argmax,
    sample_reduce: SampleReduce,
    sample_select: SampleSelect,
}

#[test]
fn ids_are_unique_and_an_unknown_one_names_the_nearest() {
    let ids: Vec<String> = cases::all().map(|case| case.id()).collect();
    let unique: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len(), "ids");
    let error = cases::find("rope/rope/drown")
        .expect_err("a slip")
        .to_string();
    assert!(error.contains("did you mean `rope/rope/drawn`?"), "{error}");
    assert!(error.len() < 500, "no list of every case: {error}");
}
