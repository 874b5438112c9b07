//! Public bug reports of similar systems, and what here would notice the same fault:
//! a case, a mutant that a case kills, or a test; or why nothing does.

use harness::{cases, mutants::MUTANTS};
use std::{collections::BTreeSet, fs, path::Path};

/// What covers an idea.
#[derive(Clone, Copy, Debug)]
enum By {
    /// A case of a kernel.
    Case(&'static str),
    /// A fault that a case must notice.
    Mutant(&'static str),
    /// A test: its file and its name.
    Test(&'static str, &'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

use By::{Case, Mutant, Nothing, Test};

/// An idea for a test, the reports it is taken from, and what covers it.
struct Idea {
    id: &'static str,
    reports: &'static str,
    fault: &'static str,
    by: &'static [By],
}

const fn idea(
    id: &'static str,
    reports: &'static str,
    fault: &'static str,
    by: &'static [By],
) -> Idea {
    Idea {
        id,
        reports,
        fault,
        by,
    }
}

/// Public reports by number, then the faults that the published system itself had.
#[rustfmt::skip]
const IDEAS: &[Idea] = &[
    idea("f16_overflow", "microsoft/onnxruntime#26732, #29599, #29611; ggml-org/llama.cpp#27321", "same-sign partial sums beyond 65,504 overflow an f16 accumulator", &[
        Mutant("f16_accumulator"), Mutant("attention_f16_accumulator"), Test("reference/tests/roles.rs", "an_f16_accumulator_is_caught"),
    ]),
    idea("exp_overflow", "gpuweb/gpuweb#4458; sonos/tract#2846; webonnx/wonnx#114", "an activation is NaN where exp overflows", &[
        Case("fused_ffn/fused_ffn/drawn"), Case("fused_ffn/fused_ffn/silu_saturates"), Test("reference/src/bounds.rs", "nothing_that_is_not_a_number_passes"),
    ]),
    idea("masked_row", "tracel-ai/burn#4694; ohdearquant/lattice#790", "a row with nothing to attend to is NaN", &[
        Case("attention_combine/attention_combine/drawn"), Mutant("combine_empty_part"), Mutant("weight_without_maximum"), Test("reference/tests/roles.rs", "an_empty_part_is_neutral"),
    ]),
    idea("row_stride", "ROCm/hip-ep#588", "the stride of a row is K/2 where blocks round it up", &[
        Mutant("scale_row_stride"), Test("reference/src/matrix/tests.rs", "wrong_lengths_are_named"),
    ]),
    idea("prefill_decode", "ml-explore/mlx#3912", "prefill is wrong where decode is right", &[
        Test("harness/tests/gpu.rs", "both_chains_store_the_same_keys_and_values"), Test("reference/tests/forward.rs", "a_prompt_longer_than_a_chunk_equals_single_steps"),
    ]),
    idea("tile_store", "microsoft/onnxruntime#32527", "a store off the tile's edge is out of bounds", &[
        Mutant("last_rows_unguarded"), Mutant("last_rows_unguarded_row"), Test("harness/tests/kernels/runner.rs", "a_write_past_the_end_a_missing_write_and_a_read_past_the_end_are_seen"),
    ]),
    idea("subgroup_size", "microsoft/onnxruntime#23637, #32306; ggml-org/llama.cpp#23040, #25734; gfx-rs/wgpu#9523", "a kernel takes the subgroup for 32 invocations", &[
        Mutant("broadcast_of_wrong_lane"), Case("int4_matmul/int4_matmul_row_texture/drawn"),
    ]),
    idea("reduction_length", "ericcurtin/vllm-vulkan#57", "a reduction is wrong from K = 256 on", &[
        Mutant("tree_starts_low"), Mutant("tail_skipped"), Case("int4_matmul/int4_matmul/drawn"),
    ]),
    idea("workgroups_65535", "ggml-org/llama.cpp#19965, #19535, #23750; sonos/tract#2820", "more than 65,535 workgroups are an error, or lost", &[
        Case("fused_ffn/fused_ffn/folded"), Mutant("fold_ignored"), Test("kernels/src/plan/tests.rs", "rows_fold_into_z_past_the_limit"), Test("harness/tests/kernels/runner.rs", "a_shader_that_the_device_refuses_is_an_error"),
    ]),
    idea("empty_operand", "gpuweb/gpuweb#686; ggml-org/llama.cpp#26146; gfx-rs/wgpu#3170", "a binding of no elements is rejected", &[
        Nothing("no dispatch of a plan binds an empty buffer: every token has a position and every matrix a row; an empty part of split-K is a part of a buffer"),
    ]),
    idea("aliased_bindings", "ggml-org/llama.cpp#27321, #26146", "one buffer is read and written in a dispatch", &[
        Test("kernels/src/plan/tests.rs", "no_dispatch_reads_and_writes_one_buffer"),
    ]),
    idea("constant_folding", "gfx-rs/wgpu#9499", "the shader compiler panics while folding a constant", &[
        Test("generators/tests/render.rs", "every_variant_renders_under_every_model"), Test("harness/tests/browser.rs", "tint_takes_every_text"),
    ]),
    idea("vocabulary_40001", "turboderp-org/exllamav2#778", "a vocabulary of 40,001 crashes where 40,000 works", &[
        Case("embedding/embedding/vocab_40001"), Case("int4_matmul/int4_matmul/vocab_40001"), Case("argmax/argmax/drawn"),
    ]),
    idea("hostile_header", "huggingface/candle#3533, #3876; zackshen/gguf#15", "a tiny file asks for gigabytes, divides by 0 or wraps", &[
        Test("reference/tests/gguf.rs", "counts_beyond_the_file"), Test("reference/tests/gguf.rs", "alignment_is_a_power_of_two"), Test("reference/tests/gguf.rs", "impossible_dimensions"), Test("reference/tests/gguf.rs", "random_bytes_never_panic"),
    ]),
    idea("loop_limit", "ggml-org/llama.cpp#13813", "a driver skips the rounds of a loop beyond some tens of thousands", &[
        Case("attention/attention/context_8192"), Test("harness/src/expectations.rs", "every_row_names_a_case_once_and_says_why"),
    ]),
    idea("ffn_f16", "zero-tvm", "fused_ffn accumulates in f16", &[Mutant("f16_accumulator"), Mutant("ffn_f16_product")]),
    idea("missing_barrier", "zero-tvm", "no barrier between a reduction and its reader", &[
        Mutant("barrier_before_tree"), Mutant("barrier_after_scores"), Mutant("argmax_barrier_in_tree"),
    ]),
    idea("decode_position", "zero-tvm", "decode is a position off", &[
        Mutant("last_position_dropped"), Mutant("position_past_the_end"), Mutant("rope_first_position"), Test("harness/tests/gpu.rs", "greedy_tokens_agree_and_a_wrong_reference_is_noticed"),
    ]),
    idea("binding_order", "zero-tvm", "bindings in another order compile and give garbage", &[
        Test("generators/tests/render.rs", "a_swapped_binding_and_a_swapped_uniform_field_are_refused"),
    ]),
    idea("residual_alias", "zero-tvm", "add_norm reads the residual that it writes", &[
        Test("kernels/src/plan/tests.rs", "no_dispatch_reads_and_writes_one_buffer"),
    ]),
    idea("uniform_size", "zero-tvm", "a uniform of wrong size or values, and the dispatch is skipped in silence", &[
        Test("kernels/src/plan/tests.rs", "bindings_and_uniforms_match_the_role_tables"), Test("harness/tests/gpu.rs", "the_recorder_records_the_plan"),
    ]),
    idea("head_dim_256", "zero-tvm", "only part of a head of 256 is written", &[Case("kv_append/kv_append/drawn"), Mutant("append_head_offset")]),
    idea("half_length", "zero-tvm", "a parameter of half its length is bound", &[
        Test("reference/src/checkpoint.rs", "wrong_sets_of_parameters_are_named"),
    ]),
    idea("f16_as_bf16", "zero-tvm", "F16 scales are read as bf16", &[Test("reference/tests/mlc.rs", "narrow_floats_go_by_their_own_dtype")]),
    idea("null_inv_freq", "zero-tvm", "the rotation frequencies are missing and nothing says so", &[
        Mutant("rope_frequency"), Test("harness/src/kernel.rs", "operands_are_matched_by_name_and_each_is_needed_once"),
    ]),
    idea("unreachable_flag", "zero-tvm", "a flag's value selects nothing, in silence", &[
        Test("kernels/src/plan/tests.rs", "an_impossible_choice_names_its_constraint"), Test("results/tests/summary.rs", "equal_code_is_no_change"),
    ]),
    idea("k_tail", "zero-tvm", "a trip count by division drops the tail of K", &[
        Mutant("tail_skipped"), Mutant("tail_skipped_row"), Mutant("qkv_tail_skipped"),
    ]),
    idea("grid_65535", "zero-tvm", "a grid past 65,535 invalidates the command buffer and another fault is blamed", &[
        Test("kernels/src/plan/tests.rs", "rows_fold_into_z_past_the_limit"), Test("harness/src/kernel.rs", "limits_are_checked_before_anything_is_encoded"),
    ]),
    idea("mixed_manifest", "zero-tvm", "a manifest and shards of two versions", &[
        Test("reference/tests/mlc.rs", "damaged_shards_are_refused"), Test("reference/tests/mlc.rs", "damaged_indexes_are_refused"), Test("reference/tests/fetch_folder.rs", "an_index_is_held_to_its_folder_and_its_hub"),
    ]),
    idea("empty_cached_file", "zero-tvm", "a cached file of no bytes is taken for whole", &[
        Test("reference/tests/fetch.rs", "a_wrong_part_is_dropped_and_fetched_anew"), Test("reference/tests/fetch.rs", "wrong_content_is_refused_and_removed"),
    ]),
    idea("affine_weights", "zero-tvm", "a kernel of symmetric weights is bound to affine ones", &[
        Test("reference/tests/mlc.rs", "odd_configurations_are_refused"),
    ]),
    idea("gated_delta_net", "zero-tvm", "wrong pairing of heads, a checkpoint off by one", &[
        Mutant("recur_key_head_modulo"), Test("harness/tests/hybrid.rs", "a_prompt_goes_back_to_the_state_that_it_shares"),
        Test("harness/tests/hybrid.rs", "a_program_on_the_state_of_other_tokens_is_refused"),
    ]),
    idea("storage_barrier", "zero-tvm", "no storageBarrier between a write and a read of a storage buffer by other invocations", &[
        Nothing("no kernel here reads in one dispatch what another invocation of it wrote to storage: add_norm reads back only its own elements"),
    ]),
];

/// The top of the checkout.
fn top() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn everything_that_covers_an_idea_exists() {
    let mutants: BTreeSet<&str> = MUTANTS.iter().map(|mutant| mutant.id).collect();
    for idea in IDEAS {
        for by in idea.by {
            match *by {
                Case(id) => {
                    cases::find(id).unwrap_or_else(|error| panic!("{}: {error}", idea.id));
                }
                Mutant(id) => assert!(mutants.contains(id), "{}: mutant {id}", idea.id),
                Test(file, name) => {
                    let text = fs::read_to_string(top().join(file));
                    let text = text.unwrap_or_else(|error| panic!("{}: {file}: {error}", idea.id));
                    let found = text.contains(&format!("fn {name}("));
                    assert!(found, "{}: {name} in {file}", idea.id);
                }
                Nothing(reason) => assert!(reason.len() > 20, "{}: a reason", idea.id),
            }
        }
    }
}

#[test]
fn ideas_are_unique_reported_and_covered_or_excused() {
    let ids: BTreeSet<&str> = IDEAS.iter().map(|idea| idea.id).collect();
    assert_eq!(ids.len(), IDEAS.len(), "ids");
    for idea in IDEAS {
        assert!(
            !idea.reports.is_empty() && !idea.fault.is_empty(),
            "{}",
            idea.id
        );
        assert!(!idea.by.is_empty(), "{}", idea.id);
        let excuses = idea.by.iter().filter(|by| matches!(by, Nothing(_))).count();
        let covers = idea.by.len() - excuses;
        assert!(
            excuses == 0 || covers == 0,
            "{}: covered and excused",
            idea.id
        );
    }
}
