//! The mutants: each a fault that a kernel could have, as an edit of rendered text.

use super::{Mutant, mutant};

const QUANT: &[&str] = &["int4_matmul", "int4_matmul_vec4h", "int4_matmul_vec4", "int4_matmul_row_vec4", "int4_matmul_row_texture", "qkv_fused", "qkv_fused_row_vec4", "qkv_fused_row_texture", "qkv_fused_scratch", "qkv_fused_scratch_row_vec4", "qkv_fused_scratch_row_texture", "fused_ffn", "fused_ffn_row_vec4", "fused_ffn_row_texture", "int4_matmul_sg", "int4_matmul_sg_vec4h", "int4_matmul_sg_vec4", "int4_matmul_tiled", "int4_matmul_tiled_vec4h", "int4_matmul_tiled_vec4", "int4_matmul_tiled8", "int4_matmul_tiled8_vec4h", "int4_matmul_tiled8_vec4", "qkv_fused_sg", "qkv_fused_sg_vec4", "qkv_fused_tiled_sg", "fused_ffn_tiled_sg"];
const WORD: &[&str] = &["int4_matmul", "qkv_fused", "fused_ffn", "int4_matmul_sg", "int4_matmul_tiled", "int4_matmul_tiled8", "qkv_fused_sg", "qkv_fused_tiled_sg", "fused_ffn_tiled_sg"];
const WIDE: &[&str] = &["int4_matmul_vec4", "int4_matmul_row_vec4", "int4_matmul_row_texture", "qkv_fused_row_vec4", "qkv_fused_row_texture", "fused_ffn_row_vec4", "fused_ffn_row_texture", "int4_matmul_sg_vec4", "int4_matmul_tiled_vec4", "int4_matmul_tiled8_vec4", "qkv_fused_sg_vec4"];
const VEC4X: &[&str] = &["int4_matmul_vec4h", "int4_matmul_vec4", "int4_matmul_sg_vec4h", "int4_matmul_sg_vec4", "int4_matmul_tiled_vec4h", "int4_matmul_tiled_vec4", "int4_matmul_tiled8_vec4h", "int4_matmul_tiled8_vec4", "qkv_fused_sg_vec4", "fused_ffn_tiled_sg"];
const SCALARX: &[&str] = &["int4_matmul", "qkv_fused", "fused_ffn", "int4_matmul_sg", "int4_matmul_tiled", "int4_matmul_tiled8", "qkv_fused_sg", "qkv_fused_tiled_sg"];
const PACKED: &[&str] = &[
    "int4_matmul_row_vec4",
    "qkv_fused_row_vec4",
    "fused_ffn_row_vec4",
];
const TEXTURE: &[&str] = &[
    "int4_matmul_row_texture",
    "qkv_fused_row_texture",
    "fused_ffn_row_texture",
];
const TREE_MM: &[&str] = &["int4_matmul", "int4_matmul_vec4h", "int4_matmul_vec4"];
const TREE_BATCHED: &[&str] = &["int4_matmul_batched_dyn", "fused_ffn_batched_dyn"];
const BATCHED_MM: &[&str] = &[
    "int4_matmul_batched_dyn",
    "int4_matmul_batched_dyn_row_vec4",
    "int4_matmul_batched_dyn_row_texture",
];
const BATCHED_FFN: &[&str] = &[
    "fused_ffn_batched_dyn",
    "fused_ffn_batched_dyn_row_vec4",
    "fused_ffn_batched_dyn_row_texture",
];
const BATCHED: &[&str] = &[
    "int4_matmul_batched_dyn",
    "int4_matmul_batched_dyn_row_vec4",
    "int4_matmul_batched_dyn_row_texture",
    "fused_ffn_batched_dyn",
    "fused_ffn_batched_dyn_row_vec4",
    "fused_ffn_batched_dyn_row_texture",
];
const ROW_MM: &[&str] = &["int4_matmul_row_vec4", "int4_matmul_row_texture"];
const NORMS: &[&str] = &["rms_norm", "add_norm"];
const EVERY_NORM: &[&str] = &["rms_norm", "add_norm", "qk_norm", "qk_norm_rope_append"];
const HEAD_NORMS: &[&str] = &["qk_norm", "qk_norm_rope_append"];
const QK_NORM: &[&str] = &["qk_norm"];
const QK_APPEND: &[&str] = &["qk_norm_rope_append"];
const QKV: &[&str] = &["qkv_fused", "qkv_fused_row_vec4", "qkv_fused_row_texture", "qkv_fused_sg", "qkv_fused_sg_vec4", "qkv_fused_tiled_sg"];
const EVERY_QKV: &[&str] = &["qkv_fused", "qkv_fused_row_vec4", "qkv_fused_row_texture", "qkv_fused_scratch", "qkv_fused_scratch_row_vec4", "qkv_fused_scratch_row_texture"];
const SCRATCH: &[&str] = &["qkv_fused_scratch", "qkv_fused_scratch_row_vec4", "qkv_fused_scratch_row_texture"];
const ROW_QKV: &[&str] = &["qkv_fused_row_vec4", "qkv_fused_row_texture"];
const ROW_FFN: &[&str] = &["fused_ffn_row_vec4", "fused_ffn_row_texture"];
const FFN: &[&str] = &["fused_ffn", "fused_ffn_row_vec4", "fused_ffn_row_texture", "fused_ffn_tiled_sg"];
const ATT: &[&str] = &["attention", "attention_row_vec4", "attention_splitk", "attention_splitk_row_vec4", "attention_int8", "attention_int8_row_vec4", "attention_prefill", "attention_prefill_row_vec4", "attention_prefill_int8", "attention_prefill_int8_row_vec4", "attention_sg", "attention_splitk_sg"];
const TREE_ATT: &[&str] = &["attention", "attention_splitk", "attention_int8", "attention_prefill", "attention_prefill_int8"];
const ROW_ATT: &[&str] = &["attention_row_vec4", "attention_splitk_row_vec4", "attention_int8_row_vec4", "attention_prefill_row_vec4", "attention_prefill_int8_row_vec4"];
const PLAIN_ATT: &[&str] = &["attention", "attention_row_vec4", "attention_splitk", "attention_splitk_row_vec4", "attention_prefill", "attention_prefill_row_vec4", "attention_sg", "attention_splitk_sg"];
const PLAIN_TREE: &[&str] = &["attention", "attention_splitk", "attention_prefill"];
const PLAIN_ROW: &[&str] = &["attention_row_vec4", "attention_splitk_row_vec4", "attention_prefill_row_vec4"];
const INT8_ATT: &[&str] = &["attention_int8", "attention_int8_row_vec4", "attention_prefill_int8", "attention_prefill_int8_row_vec4"];
const INT8_TREE: &[&str] = &["attention_int8", "attention_prefill_int8"];
const INT8_ROW: &[&str] = &["attention_int8_row_vec4", "attention_prefill_int8_row_vec4"];
const ONE_QUERY: &[&str] = &["attention", "attention_row_vec4", "attention_splitk", "attention_splitk_row_vec4", "attention_int8", "attention_int8_row_vec4", "attention_sg", "attention_splitk_sg"];
const CHUNK: &[&str] = &["attention_prefill", "attention_prefill_row_vec4", "attention_prefill_int8", "attention_prefill_int8_row_vec4"];
const WHOLE: &[&str] = &["attention", "attention_row_vec4", "attention_int8", "attention_int8_row_vec4", "attention_sg"];
const SPLIT: &[&str] = &["attention_splitk", "attention_splitk_row_vec4", "attention_splitk_sg"];
const COMBINE: &[&str] = &["attention_combine"];
const EMBEDDING: &[&str] = &["embedding"];
const ROPE: &[&str] = &["rope"];
const KV_APPEND: &[&str] = &["kv_append"];
const KV_QUANTIZE: &[&str] = &["kv_quantize_int8"];
const SILU_MUL: &[&str] = &["silu_mul"];
const ARGMAX: &[&str] = &["argmax"];
const ZERO_POINT: &[&str] = &["int4_matmul", "int4_matmul_vec4h", "int4_matmul_vec4", "int4_matmul_row_vec4", "int4_matmul_row_texture", "qkv_fused", "qkv_fused_row_vec4", "qkv_fused_row_texture", "fused_ffn", "fused_ffn_row_vec4", "fused_ffn_row_texture", "int4_matmul_sg", "int4_matmul_sg_vec4h", "int4_matmul_sg_vec4", "int4_matmul_tiled", "int4_matmul_tiled_vec4h", "int4_matmul_tiled_vec4", "int4_matmul_tiled8", "int4_matmul_tiled8_vec4h", "int4_matmul_tiled8_vec4", "qkv_fused_sg", "qkv_fused_sg_vec4", "qkv_fused_tiled_sg", "fused_ffn_tiled_sg", "embedding"];
const SG_MM_1: &[&str] = &["int4_matmul_sg", "int4_matmul_sg_vec4h", "int4_matmul_sg_vec4"];
const SG_MM_4: &[&str] = &["int4_matmul_tiled", "int4_matmul_tiled_vec4h", "int4_matmul_tiled_vec4"];
const SG_MM_8: &[&str] = &["int4_matmul_tiled8", "int4_matmul_tiled8_vec4h", "int4_matmul_tiled8_vec4"];
const SG_MM_TILED: &[&str] = &["int4_matmul_tiled", "int4_matmul_tiled_vec4h", "int4_matmul_tiled_vec4", "int4_matmul_tiled8", "int4_matmul_tiled8_vec4h", "int4_matmul_tiled8_vec4"];
const SG_QKV_1: &[&str] = &["qkv_fused_sg", "qkv_fused_sg_vec4"];
const SG_QKV_2: &[&str] = &["qkv_fused_tiled_sg"];
const SG_FFN: &[&str] = &["fused_ffn_tiled_sg"];
const SG_ATT: &[&str] = &["attention_sg", "attention_splitk_sg"];
const SG_MATRIX: &[&str] = &["int4_matmul_sg", "int4_matmul_sg_vec4h", "int4_matmul_sg_vec4", "int4_matmul_tiled", "int4_matmul_tiled_vec4h", "int4_matmul_tiled_vec4", "int4_matmul_tiled8", "int4_matmul_tiled8_vec4h", "int4_matmul_tiled8_vec4", "qkv_fused_sg", "qkv_fused_sg_vec4", "qkv_fused_tiled_sg", "fused_ffn_tiled_sg"];
const SG_SUM: &[&str] = &["int4_matmul_sg", "int4_matmul_sg_vec4h", "int4_matmul_sg_vec4", "int4_matmul_tiled", "int4_matmul_tiled_vec4h", "int4_matmul_tiled_vec4", "int4_matmul_tiled8", "int4_matmul_tiled8_vec4h", "int4_matmul_tiled8_vec4", "qkv_fused_sg", "qkv_fused_sg_vec4", "qkv_fused_tiled_sg", "fused_ffn_tiled_sg", "attention_sg", "attention_splitk_sg"];
const BLOCK_ATT: &[&str] = &["attention", "attention_splitk", "attention_int8", "attention_prefill", "attention_prefill_int8", "attention_sg", "attention_splitk_sg"];
const PLAIN_BLOCK: &[&str] = &["attention", "attention_splitk", "attention_prefill", "attention_sg", "attention_splitk_sg"];
const ROW_OR_SG_ATT: &[&str] = &["attention_row_vec4", "attention_splitk_row_vec4", "attention_int8_row_vec4", "attention_prefill_row_vec4", "attention_prefill_int8_row_vec4", "attention_sg", "attention_splitk_sg"];
const SG_ARGMAX: &[&str] = &["argmax_sg"];
const EVERY_ARGMAX: &[&str] = &["argmax", "argmax_sg"];
const STRIDED_MM: &[&str] = &["int4_matmul", "int4_matmul_vec4h", "int4_matmul_vec4", "int4_matmul_sg", "int4_matmul_tiled", "int4_matmul_tiled8"];
const STRIDED_D: &[&str] = &["qkv_fused", "fused_ffn", "qkv_fused_sg", "qkv_fused_tiled_sg", "fused_ffn_tiled_sg"];
const SG_MM_WIDE: &[&str] = &["int4_matmul_sg_vec4h", "int4_matmul_sg_vec4", "int4_matmul_tiled_vec4h", "int4_matmul_tiled_vec4", "int4_matmul_tiled8_vec4h", "int4_matmul_tiled8_vec4"];
const FFN_DOT_ROWS: &[&str] = &["fused_ffn_row_vec4", "fused_ffn_row_texture", "fused_ffn_tiled_sg"];

/// Every mutant, by what it breaks.
pub const MUTANTS: &[Mutant] = &[
    // packed weights
    mutant("nibble_order", QUANT, "the high nibble is taken for the lower code", "dot(even_codes(word), a.even) + dot(odd_codes(word), a.odd)", "dot(odd_codes(word), a.even) + dot(even_codes(word), a.odd)"),
    mutant("zero_point_8", ZERO_POINT, "codes are centred on 8, as in Q4_0, not on 7", "const ZERO_POINT = 7.0;", "const ZERO_POINT = 8.0;"),
    mutant("scale_of_wider_groups", WORD, "groups of 64 weights", "scales_per_row + i / 4u]", "scales_per_row + i / 8u]"),
    mutant("scale_of_narrower_groups", &["int4_matmul_vec4h", "int4_matmul_sg_vec4h", "int4_matmul_tiled_vec4h", "int4_matmul_tiled8_vec4h"], "groups of 16 weights", "scales_per_row + i / 2u]", "scales_per_row + i]"),
    mutant("scale_of_next_group", WIDE, "the next group's scale", "scales_per_row + i])", "scales_per_row + i + 1u])"),
    mutant("scale_row_stride", QUANT, "a row of scales is one too long", "row * scales_per_row", "row * (scales_per_row + 1u)"),
    mutant("activation_order_scalar", SCALARX, "two activations are exchanged", "f32(x[k + 2u]), f32(x[k + 4u])", "f32(x[k + 4u]), f32(x[k + 2u])"),
    mutant("activation_order_vec4", VEC4X, "activations are not interleaved as the codes are", "vec4<f32>(low.xz, high.xz)", "vec4<f32>(low.xy, high.xy)"),
    mutant("activation_order_packed", PACKED, "even and odd activations are exchanged", "vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(a.y, b.y, c.y, d.y)", "vec4<f32>(a.y, b.y, c.y, d.y), vec4<f32>(a.x, b.x, c.x, d.x)"),
    mutant("broadcast_of_wrong_lane", TEXTURE, "the last word is taken from a neighbour", "subgroupBroadcast(word, 3u)", "subgroupBroadcast(word, 2u)"),
    mutant("texture_width", TEXTURE, "texels past the first row of the texture are read from it", "vec2<u32>(i % TEXTURE_WIDTH, i / TEXTURE_WIDTH)", "vec2<u32>(i % TEXTURE_WIDTH, 0u)"),
    // int4_matmul
    mutant("tail_skipped", STRIDED_MM, "what is left of K after whole strides is dropped", "i < u.K_PACKED / LOAD_WORDS; i += THREADS", "i < u.K_PACKED / LOAD_WORDS / THREADS * THREADS; i += THREADS"),
    mutant("tail_skipped_row", ROW_MM, "the last load of a row is dropped", "i < u.K_PACKED / LOAD_WORDS; i++", "i < u.K_PACKED / LOAD_WORDS - 1u; i++"),
    mutant("f16_accumulator", TREE_MM, "sums of an invocation are rounded to f16", "sum += dot_load(row, i, u.K_PACKED, u.SCALES_PER_ROW, activations(i, at));", "sum = f32(f16(sum + dot_load(row, i, u.K_PACKED, u.SCALES_PER_ROW, activations(i, at))));"),
    mutant("f16_accumulator_row", ROW_MM, "sums of an invocation are rounded to f16", "low_sums += dot_rows(low, i, u.K_PACKED, u.SCALES_PER_ROW, a);", "low_sums = vec4<f32>(vec4<f16>(low_sums + dot_rows(low, i, u.K_PACKED, u.SCALES_PER_ROW, a)));"),
    mutant("barrier_before_tree", &["int4_matmul", "int4_matmul_vec4h", "int4_matmul_vec4", "qkv_fused", "fused_ffn"], "the tree starts before every sum is stored", "sums[at.tid] = sum;\n  workgroupBarrier();", "sums[at.tid] = sum;"),
    mutant("barrier_in_tree", &["int4_matmul", "int4_matmul_vec4h", "int4_matmul_vec4", "qkv_fused", "fused_ffn"], "a level of the tree starts before the one above is done", "sums[at.tid + width];\n    }\n    workgroupBarrier();", "sums[at.tid + width];\n    }"),
    mutant("tree_starts_low", &["int4_matmul", "int4_matmul_vec4h", "int4_matmul_vec4", "qkv_fused", "fused_ffn"], "half of the workgroup's sums is left out", "var width = THREADS / 2u", "var width = THREADS / 4u"),
    mutant("last_rows_unguarded", TREE_MM, "workgroups past the last row store too", "  if (row >= u.packGridDimX) {\n    return;\n  }\n", ""),
    mutant("last_rows_unguarded_row", ROW_MM, "invocations past the last row store too", "if (row < u.packGridDimX) {", "if (row < u.packGridDimX + THREADS) {"),
    mutant("rows_unclamped", ROW_MM, "rows past the last are read", "min(first + THREADS * vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(u.packGridDimX - 1u))", "first + THREADS * vec4<u32>(0u, 1u, 2u, 3u)").equivalent("their sums are not stored, and a read outside a binding or texture is defined to do no harm"),
    mutant("idle_groups", &["int4_matmul_row_vec4", "int4_matmul_row_texture", "qkv_fused_row_vec4", "qkv_fused_row_texture", "fused_ffn_row_vec4", "fused_ffn_row_texture"], "workgroups past the last output do not stop early", "  if (group_first >= u.packGridDimX) {\n    return;\n  }\n", "").equivalent("their outputs are all past the last, and each store is guarded; only time is lost"),
    mutant("fold_ignored", &["int4_matmul", "int4_matmul_vec4h", "int4_matmul_vec4", "qkv_fused", "fused_ffn"], "rows past the first layer of a folded grid are not computed", "at.wg.z * at.num_wg.x + at.wg.x", "at.wg.x"),
    mutant("norm_fold_ignored", EVERY_NORM, "tokens past the first layer of a folded grid are not computed", "wg.z * num_wg.x + wg.x", "wg.x"),
    mutant("element_fold_ignored", &["embedding", "rope", "kv_append"], "elements past the first layer of a folded grid are not computed", "wg.z * num_wg.x + wg.x", "wg.x"),
    mutant("fold_ignored_row", &["int4_matmul_row_vec4", "int4_matmul_row_texture", "qkv_fused_row_vec4", "qkv_fused_row_texture", "fused_ffn_row_vec4", "fused_ffn_row_texture"], "rows past the first layer of a folded grid are not computed", "(at.wg.z * at.num_wg.x + at.wg.x)", "(at.wg.x)"),
    // sums by subgroup
    mutant("sg_last_subgroup", SG_SUM, "the last subgroup's sum is dropped", "for (var i = 1u; i < num_subgroups; i++) {", "for (var i = 1u; i < num_subgroups - 1u; i++) {"),
    mutant("sg_of_32", SG_SUM, "subgroups are taken to have 32 invocations", "for (var i = 1u; i < num_subgroups; i++) {", "for (var i = 1u; i < THREADS / 32u; i++) {"),
    mutant("sg_lane_31", SG_SUM, "lane 31 stores for its subgroup", "at.lane == subgroupBroadcastFirst(at.lane)", "at.lane == 31u"),
    mutant("sg_own_sum", SG_SUM, "one invocation's sum is taken for its subgroup's", "let sum = subgroup_add(value);", "let sum = value;"),
    mutant("sg_one_place", SG_SUM, "every subgroup stores in the first one's place", "subgroup_sums[at.subgroup] = sum;", "subgroup_sums[0] = sum;"),
    mutant("sg_barrier", SG_SUM, "sums are added before every subgroup has stored", "subgroup_sums[at.subgroup] = sum;\n  }\n  workgroupBarrier();", "subgroup_sums[at.subgroup] = sum;\n  }"),
    mutant("sg_fold_ignored", SG_MATRIX, "outputs past the first layer of a folded grid are not computed", "(wg.z * num_wg.x + wg.x)", "(wg.x)"),
    mutant("sg_last_rows_unguarded", &["int4_matmul_sg", "int4_matmul_sg_vec4h", "int4_matmul_sg_vec4", "qkv_fused_sg", "qkv_fused_sg_vec4"], "workgroups past the last output store too", "  if (first >= u.packGridDimX) {\n    return;\n  }\n", ""),
    mutant("sg_idle_groups", &["int4_matmul_tiled", "int4_matmul_tiled_vec4h", "int4_matmul_tiled_vec4", "int4_matmul_tiled8", "int4_matmul_tiled8_vec4h", "int4_matmul_tiled8_vec4", "qkv_fused_tiled_sg", "fused_ffn_tiled_sg"], "workgroups past the last output do not stop early", "  if (first >= u.packGridDimX) {\n    return;\n  }\n", "").equivalent("their outputs are all past the last, and each store is guarded; only time is lost"),
    mutant("sg_tile_unguarded", SG_MM_TILED, "rows of a tile past the last are stored", " && first + tid < u.packGridDimX", ""),
    mutant("sg_tile_unclamped", SG_MM_TILED, "rows past the last are read", "min(first + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(u.packGridDimX - 1u))", "first + vec4<u32>(0u, 1u, 2u, 3u)").equivalent("their sums are not stored, and a read outside a binding is defined to do no harm"),
    mutant("sg_tile_row_order", SG_MM_4, "rows of a tile are stored in another order", "Out(sums[tid])", "Out(sums[3u - tid])"),
    mutant("sg_second_four", SG_MM_8, "the second four rows of a tile are the first four", "four_rows(first + 4u)", "four_rows(first)"),
    mutant("sg_second_four_added", SG_MM_8, "the second four rows are not added over the subgroup", "Sum(subgroupAdd(value[0]), subgroupAdd(value[1]))", "Sum(subgroupAdd(value[0]), value[1])"),
    mutant("sg_f16_accumulator", SG_MM_1, "sums of an invocation are rounded to f16", "sums += dot_tile(first, i, activations(i, at));", "sums = Sum(f16(sums + dot_tile(first, i, activations(i, at))));"),
    mutant("sg_f16_accumulator_2", SG_QKV_1, "sums of an invocation are rounded to f16", "sums += dot_tile(first, i, activations(i, at));", "sums = Sum(vec2<f16>(sums + dot_tile(first, i, activations(i, at))));"),
    mutant("sg_f16_accumulator_4", &["int4_matmul_tiled", "int4_matmul_tiled_vec4h", "int4_matmul_tiled_vec4", "qkv_fused_tiled_sg"], "sums of an invocation are rounded to f16", "sums += dot_tile(first, i, activations(i, at));", "sums = Sum(vec4<f16>(sums + dot_tile(first, i, activations(i, at))));"),
    mutant("sg_f16_sum", SG_MM_1, "a subgroup's sum is rounded to f16", "return subgroupAdd(value);", "return Sum(f16(subgroupAdd(value)));"),
    mutant("sg_tail_skipped_wide", SG_MM_WIDE, "what is left of K after whole strides is dropped", "i < u.K_PACKED / LOAD_WORDS; i += THREADS", "i < u.K_PACKED / LOAD_WORDS / THREADS * THREADS; i += THREADS").equivalent("K is a multiple of one load of every invocation, so nothing is left"),
    mutant("sg_qkv_tail_skipped_wide", &["qkv_fused_sg_vec4"], "what is left of K after whole strides is dropped", "i < D_PACKED / LOAD_WORDS; i += THREADS", "i < D_PACKED / LOAD_WORDS / THREADS * THREADS; i += THREADS").equivalent("D is a multiple of one load of every invocation, so nothing is left"),
    mutant("sg_qkv_second_pair", SG_QKV_2, "the second pair of a tile is the first", "pair_rows(min(first + 1u, u.packGridDimX - 1u))", "pair_rows(first)"),
    mutant("sg_qkv_pairs_mixed", SG_QKV_2, "the pairs of a tile are exchanged", "select(sums.xy, sums.zw, tid == 1u)", "select(sums.zw, sums.xy, tid == 1u)"),
    mutant("sg_qkv_unguarded", SG_QKV_2, "a pair past the last is stored", "if (tid < 2u && pair < u.packGridDimX) {", "if (tid < 2u) {").equivalent("heads are a multiple of 32 wide, so no tile of two pairs is cut"),
    mutant("sg_ffn_gate_and_up", SG_FFN, "the gate multiplies silu of up", "silu(total[0][at.tid]) * total[1][at.tid]", "silu(total[1][at.tid]) * total[0][at.tid]"),
    mutant("sg_ffn_f16_product", SG_FFN, "both factors are rounded to f16 before they are multiplied", "Act(silu(total[0][at.tid]) * total[1][at.tid])", "Act(silu(total[0][at.tid])) * Act(total[1][at.tid])"),
    mutant("sg_ffn_unguarded", SG_FFN, "units of a tile past the last are stored", " && unit < u.packGridDimX", ""),
    mutant("sg_ffn_barrier", SG_FFN, "rows are multiplied before every activation is in workgroup memory", "x[k + 3u]);\n  }\n  workgroupBarrier();", "x[k + 3u]);\n  }"),
    mutant("sg_ffn_tail", SG_FFN, "what is left of the activations after whole strides is not copied", "i < D / 4; i += THREADS", "i < D / 4 / THREADS * THREADS; i += THREADS"),
    // logits in f32
    mutant("f16_logits", &["int4_matmul_f32", "int4_matmul_f32_vec4h", "int4_matmul_f32_vec4"], "logits are rounded to f16", "Out(sums[0])", "Out(f16(sums[0]))"),
    mutant("f16_logits_row", &["int4_matmul_f32_row_vec4", "int4_matmul_f32_row_texture"], "logits are rounded to f16", "Out(sums[r])", "Out(f16(sums[r]))"),
    mutant("sg_f16_logits", &["int4_matmul_f32_sg", "int4_matmul_f32_sg_vec4h", "int4_matmul_f32_sg_vec4"], "logits are rounded to f16", "Out(sums)", "Out(f16(sums))"),
    mutant("sg_f16_logits_4", &["int4_matmul_f32_tiled", "int4_matmul_f32_tiled_vec4h", "int4_matmul_f32_tiled_vec4"], "logits are rounded to f16", "Out(sums[tid])", "Out(f16(sums[tid]))"),
    mutant("sg_f16_logits_8", &["int4_matmul_f32_tiled8", "int4_matmul_f32_tiled8_vec4h", "int4_matmul_f32_tiled8_vec4"], "logits are rounded to f16", "Out(select(sums[0], sums[1], tid >= 4u)[tid % 4u])", "Out(f16(select(sums[0], sums[1], tid >= 4u)[tid % 4u]))"),
    mutant("argmax_f16_logits", &["argmax_f32", "argmax_f32_sg"], "logits are rounded to f16 before they are compared", "f32(logits[i])", "f32(f16(logits[i]))"),
    // several vectors
    mutant("batched_rows_unguarded", BATCHED_MM, "rows past the last are stored, over the next token's", "row < u.packGridDimX && token < token_count()", "token < token_count()"),
    mutant("batched_units_unguarded", BATCHED_FFN, "units past the last are stored", "unit < u.packGridDimX && token < token_count()", "token < token_count()"),
    mutant("batched_tokens_unguarded", BATCHED_MM, "tokens past the last are stored", "row < u.packGridDimX && token < token_count()", "row < u.packGridDimX"),
    mutant("batched_ffn_tokens_unguarded", BATCHED_FFN, "tokens past the last are stored", "unit < u.packGridDimX && token < token_count()", "unit < u.packGridDimX"),
    mutant("batched_token_stride", BATCHED, "a token's activations are taken to be one load longer", "activations(tokens.y * loads + i, at)", "activations(tokens.y * (loads + 1u) + i, at)"),
    mutant("batched_token_repeated", BATCHED, "the last token of a tile has the activations of the one before", "activations(tokens.w * loads + i, at)", "activations(tokens.z * loads + i, at)"),
    mutant("batched_tiles_overlap", BATCHED, "tiles hold three tokens", "return at.wg.y * 4u;", "return at.wg.y * 3u;"),
    mutant("batched_first_tile", BATCHED, "every tile is the first", "return at.wg.y * 4u;", "return 0u;"),
    mutant("batched_output_stride", BATCHED_MM, "a token's outputs are stored one row further", "out[token * u.packGridDimX + row]", "out[token * (u.packGridDimX + 1u) + row]"),
    mutant("batched_ffn_output_stride", BATCHED_FFN, "a token's outputs are stored one unit further", "out[token * FFN_DIM + unit]", "out[token * (FFN_DIM + 1) + unit]"),
    mutant("batched_tile_transposed", &["int4_matmul_batched_dyn"], "rows and tokens of a tile are exchanged", "sums[0][at.tid % 4u][at.tid / 4u]", "sums[0][at.tid / 4u][at.tid % 4u]"),
    mutant("batched_gate_and_up_swapped", &["fused_ffn_batched_dyn"], "the gate is multiplied and the up projection gates", "sums[0][n][t], sums[0][n + 2u][t]", "sums[0][n + 2u][t], sums[0][n][t]"),
    mutant("batched_gate_and_up_swapped_row", &["fused_ffn_batched_dyn_row_vec4", "fused_ffn_batched_dyn_row_texture"], "the gate is multiplied and the up projection gates", "gate[n][t], up[n][t]", "up[n][t], gate[n][t]"),
    mutant("batched_silu_is_sigmoid", BATCHED_FFN, "the gate is not multiplied", "Act(gate / (1.0 + exp(-gate)) * up)", "Act(1.0 / (1.0 + exp(-gate)) * up)"),
    mutant("batched_tail_skipped", &["int4_matmul_batched_dyn"], "what is left of K after whole strides is dropped", "i < u.K_PACKED / LOAD_WORDS; i += THREADS", "i < u.K_PACKED / LOAD_WORDS / THREADS * THREADS; i += THREADS"),
    mutant("batched_tail_skipped_row", &["int4_matmul_batched_dyn_row_vec4", "int4_matmul_batched_dyn_row_texture"], "the last load of a row is dropped", "i < u.K_PACKED / LOAD_WORDS; i++", "i < u.K_PACKED / LOAD_WORDS - 1u; i++"),
    mutant("batched_f16_accumulator", &["int4_matmul_batched_dyn"], "sums of an invocation are rounded to f16", "sum[0] += dot_tokens(rows.x, i, u.K_PACKED, u.SCALES_PER_ROW, a);", "sum[0] = vec4<f32>(vec4<f16>(sum[0] + dot_tokens(rows.x, i, u.K_PACKED, u.SCALES_PER_ROW, a)));"),
    mutant("batched_f16_accumulator_row", &["int4_matmul_batched_dyn_row_vec4", "int4_matmul_batched_dyn_row_texture"], "sums of an invocation are rounded to f16", "low_sums[0] += dot_tokens(low.x, i, u.K_PACKED, u.SCALES_PER_ROW, a);", "low_sums[0] = vec4<f32>(vec4<f16>(low_sums[0] + dot_tokens(low.x, i, u.K_PACKED, u.SCALES_PER_ROW, a)));"),
    mutant("batched_barrier_before_tree", TREE_BATCHED, "the tree starts before every sum is stored", "sums[at.tid] = sum;\n  workgroupBarrier();", "sums[at.tid] = sum;"),
    mutant("batched_barrier_in_tree", TREE_BATCHED, "a level of the tree starts before the one above is done", "sums[at.tid + width];\n    }\n    workgroupBarrier();", "sums[at.tid + width];\n    }"),
    mutant("batched_tree_starts_low", TREE_BATCHED, "half of the workgroup's sums is left out", "var width = THREADS / 2u", "var width = THREADS / 4u"),
    mutant("batched_fold_ignored", BATCHED, "rows past the first layer of a folded grid are not computed", "at.wg.z * at.num_wg.x + at.wg.x", "at.wg.x"),
    // qkv_fused
    mutant("qkv_rope_sign", EVERY_QKV, "the rotation's sine has the wrong sign", "sums.x * turn.x - sums.y * turn.y", "sums.x * turn.x + sums.y * turn.y"),
    mutant("qkv_rope_transposed", EVERY_QKV, "neighbours are rotated, not halves", "vec2<u32>(p, p + HALF_ROTARY)", "vec2<u32>(2u * p, 2u * p + 1u)"),
    mutant("qkv_rope_on_values", EVERY_QKV, "values are rotated too", "rows.x < Q_DIM + KV_DIM && p < HALF_ROTARY", "p < HALF_ROTARY"),
    mutant("qkv_rope_whole_head", EVERY_QKV, "the part of a head past rotary_dim is rotated too", "rows.x < Q_DIM + KV_DIM && p < HALF_ROTARY", "rows.x < Q_DIM + KV_DIM"),
    mutant("qkv_unrotated_rows", EVERY_QKV, "pairs past rotary_dim overlap", "ROTARY_DIM + 2u * (p - HALF_ROTARY)", "ROTARY_DIM + (p - HALF_ROTARY)"),
    mutant("qkv_position_offset", EVERY_QKV, "the position in front of the sequence's is taken", "position_map[u.position_map_elem_offset]", "position_map[0]"),
    mutant("qkv_page_off_by_one", QKV, "the last slot of a page is stored in the next", "page_values[position / PAGE_SIZE]", "page_values[(position + 1u) / PAGE_SIZE]"),
    mutant("qkv_page_table_ignored", QKV, "pages are taken in their order, not in the table's", "let page = u32(page_values[position / PAGE_SIZE]);", "let page = position / PAGE_SIZE;"),
    mutant("qkv_pages_offset", QKV, "the offset of the pages is left out", "slot_index(position) + u32(u.pages_elem_offset)", "slot_index(position)"),
    mutant("qkv_values_over_keys", QKV, "values are stored over keys", "    at += V_PAGE_OFFSET;\n", ""),
    mutant("qkv_swapped_keys_and_values", QKV, "keys are stored as values and values as keys", "    at += V_PAGE_OFFSET;\n  }", "  } else {\n    at += V_PAGE_OFFSET;\n  }"),
    mutant("qkv_head_offset", QKV, "heads are taken to lie side by side in a slot", "kv_row.x / HEAD_DIM * HEAD_PAGE_STRIDE", "kv_row.x / HEAD_DIM * HEAD_DIM"),
    mutant("scratch_swapped", SCRATCH, "keys are stored as values and values as keys", "if (rows.x < KV_DIM) {", "if (rows.x >= KV_DIM) {"),
    mutant("scratch_pair_exchanged", SCRATCH, "the halves of a pair of keys are exchanged", "k_out[rows.x] = Act(values.x);\n    k_out[rows.y] = Act(values.y);", "k_out[rows.x] = Act(values.y);\n    k_out[rows.y] = Act(values.x);"),
    mutant("scratch_values_place", SCRATCH, "values are stored behind the keys", "v_out[rows.x - KV_DIM]", "v_out[rows.x]"),
    mutant("qkv_f16_accumulator_row", ROW_QKV, "sums of an invocation are rounded to f16", "low += dot_rows(low_rows, i, D_PACKED, D_SCALES, a);", "low = vec4<f32>(vec4<f16>(low + dot_rows(low_rows, i, D_PACKED, D_SCALES, a)));"),
    mutant("qkv_tail_skipped", STRIDED_D, "what is left of K after whole strides is dropped", "i < D_PACKED / LOAD_WORDS; i += THREADS", "i < D_PACKED / LOAD_WORDS / THREADS * THREADS; i += THREADS"),
    mutant("qkv_tail_skipped_row", &["qkv_fused_row_vec4", "qkv_fused_row_texture", "fused_ffn_row_vec4", "fused_ffn_row_texture"], "the last load of a row is dropped", "i < D_PACKED / LOAD_WORDS; i++", "i < D_PACKED / LOAD_WORDS - 1u; i++"),
    mutant("qkv_last_pairs_unguarded", &["qkv_fused"], "workgroups past the last pair store too", "  if (pair >= u.packGridDimX) {\n    return;\n  }\n", ""),
    mutant("qkv_last_pairs_unguarded_row", ROW_QKV, "pairs past the last are stored", "if (pairs[n] < u.packGridDimX) {", "if (true) {").equivalent("they stand for the last pair, a pair of values and so not rotated: its own result is stored again"),
    // fused_ffn
    mutant("gate_and_up_swapped", &["fused_ffn"], "the gate multiplies silu of up", "silu(sums[0].x) * sums[0].y", "silu(sums[0].y) * sums[0].x"),
    mutant("gate_and_up_swapped_row", ROW_FFN, "the gate multiplies silu of up", "silu(gate[n]) * up[n]", "silu(up[n]) * gate[n]"),
    mutant("silu_without_negation", FFN, "silu of the wrong sign", "exp(-gate)", "exp(gate)"),
    mutant("silu_is_sigmoid", FFN, "the gate is left out of silu", "return gate / (1.0 + exp(-gate));", "return 1.0 / (1.0 + exp(-gate));"),
    mutant("up_off_by_one", &["fused_ffn"], "up rows start one too early", "dot_load(unit + FFN_DIM,", "dot_load(unit + FFN_DIM - 1u,"),
    mutant("up_off_by_one_row", FFN_DOT_ROWS, "up rows start one too early", "dot_rows(gate_rows + FFN_DIM,", "dot_rows(gate_rows + FFN_DIM - 1u,"),
    mutant("ffn_f16_product", &["fused_ffn"], "both factors are rounded to f16 before they are multiplied", "Act(silu(sums[0].x) * sums[0].y)", "Act(silu(sums[0].x)) * Act(sums[0].y)"),
    mutant("ffn_f16_product_row", ROW_FFN, "both factors are rounded to f16 before they are multiplied", "Act(silu(gate[n]) * up[n])", "Act(silu(gate[n])) * Act(up[n])"),
    mutant("ffn_last_units_unguarded", &["fused_ffn"], "workgroups past the last unit store too", "  if (unit >= u.packGridDimX) {\n    return;\n  }\n", ""),
    mutant("ffn_last_units_unguarded_row", ROW_FFN, "invocations past the last unit store too", "if (units[n] < u.packGridDimX) {", "if (units[n] < u.packGridDimX + THREADS) {"),
    // attention
    mutant("gqa_modulo", ATT, "queries share keys by modulo, not in groups", "head / GQA_GROUP", "head % KV_HEADS"),
    mutant("kv_head_offset", PLAIN_ATT, "heads are taken to lie side by side in a slot", "kv_head * HEAD_PAGE_STRIDE", "kv_head * HEAD_DIM"),
    mutant("score_unscaled", TREE_ATT, "scores are not divided by the root of the head's width", "f32(q[first + dim]) * u.sm_scale", "f32(q[first + dim])"),
    mutant("score_unscaled_row", ROW_ATT, "half of a score is not divided by the root of the head's width", "eight.high * u.sm_scale", "eight.high"),
    mutant("rescale_inverted", BLOCK_ATT, "sums so far are scaled up where they must be scaled down", "exp(largest - block_largest)", "exp(block_largest - largest)"),
    mutant("rescale_inverted_row", ROW_ATT, "sums so far are scaled up where they must be scaled down", "exp(before - largest)", "exp(largest - before)"),
    mutant("denominator_not_rescaled", TREE_ATT, "the denominator keeps the weights of an older maximum", "    denominator *= rescale;\n", ""),
    mutant("denominator_not_rescaled_row", ROW_OR_SG_ATT, "the denominator keeps the weights of an older maximum", "denominator * rescale + weight", "denominator + weight"),
    mutant("sums_not_rescaled", BLOCK_ATT, "the sums keep the weights of an older maximum", "sums[d] *= rescale;", ""),
    mutant("sums_not_rescaled_row", PLAIN_ROW, "the sums keep the weights of an older maximum", "(*sums)[i] * rescale + weight", "(*sums)[i] + weight"),
    mutant("maximum_from_zero", ATT, "the running maximum starts at zero", "const EMPTY_MAX = -50000.0;", "const EMPTY_MAX = 0.0;"),
    mutant("weight_without_maximum", BLOCK_ATT, "the maximum is not taken off", "exp(score - largest)", "exp(score)"),
    mutant("weight_without_maximum_row", ROW_ATT, "the maximum is not taken off", "exp(score - largest)", "exp(score)"),
    mutant("attention_f16_accumulator", PLAIN_BLOCK, "sums over positions are rounded to f16", "(*sums)[d] += weight * f32(kv_pages[at + V_PAGE_OFFSET + d * THREADS + tid]);", "(*sums)[d] = f32(f16((*sums)[d] + weight * f32(kv_pages[at + V_PAGE_OFFSET + d * THREADS + tid])));"),
    mutant("attention_f16_accumulator_row", PLAIN_ROW, "sums over positions are rounded to f16", "(*sums)[i] = (*sums)[i] * rescale + weight * eight.low;", "(*sums)[i] = vec4<f32>(vec4<f16>((*sums)[i] * rescale + weight * eight.low));"),
    mutant("f16_score", PLAIN_TREE, "scores are summed in f16", "score += query[dim] * f32(kv_pages[at + dim]);", "score = f32(f16(score + query[dim] * f32(kv_pages[at + dim])));"),
    mutant("values_are_keys", PLAIN_BLOCK, "keys are summed, not values", "kv_pages[at + V_PAGE_OFFSET + d * THREADS + tid]", "kv_pages[at + d * THREADS + tid]"),
    mutant("values_are_keys_row", PLAIN_ROW, "keys are summed, not values", "(at + V_PAGE_OFFSET) / 8u + i / 2u", "at / 8u + i / 2u"),
    mutant("keys_and_values_swapped", PLAIN_TREE, "scores are formed with values", "f32(kv_pages[at + dim])", "f32(kv_pages[at + V_PAGE_OFFSET + dim])"),
    mutant("page_off_by_one", ONE_QUERY, "the last slot of a page is read from the next", "first_page() + position / PAGE_SIZE", "first_page() + (position + 1u) / PAGE_SIZE"),
    mutant("page_table_ignored", ONE_QUERY, "pages are taken in their order, not in the table's", "u32(page_values[entry])", "(position / PAGE_SIZE)"),
    mutant("first_page_ignored", ONE_QUERY, "the sequence's pages are taken from the start of the table", "u32(u.page_values_elem_offset) + first_page() +", "u32(u.page_values_elem_offset) +"),
    mutant("table_offset_ignored", ONE_QUERY, "the offset of the page table is left out", "u32(u.page_values_elem_offset) + first_page()", "first_page()"),
    mutant("slot_stride", PLAIN_ATT, "slots are taken to hold every head", "(position % PAGE_SIZE) * HEAD_DIM", "(position % PAGE_SIZE) * KV_DIM"),
    mutant("pages_offset_ignored", ONE_QUERY, "the offset of the pages is left out", "return u32(u.pages_elem_offset);", "return 0u;"),
    mutant("int8_head_offset", INT8_ATT, "heads are taken to have one slot each", "kv_head * KV_SCALES_HEAD_STRIDE", "kv_head * 2u"),
    mutant("int8_slot_stride", INT8_ATT, "keys and values are taken to have one scale", "(position % PAGE_SIZE) * 2u", "(position % PAGE_SIZE)"),
    mutant("int8_scales_offset_ignored", &["attention_int8", "attention_int8_row_vec4"], "the offset of the scales is left out", "return u32(u.scales_elem_offset);", "return 0u;"),
    mutant("int8_score_unscaled", INT8_ATT, "a score is of codes, not of keys", "return score * scale(at);", "return score;"),
    mutant("int8_score_of_value_scale", INT8_ATT, "a score has the scale of the values", "return score * scale(at);", "return score * scale(at + 1u);"),
    mutant("int8_value_of_key_scale", INT8_ATT, "values have the scale of the keys", "weight * scale(at + 1u)", "weight * scale(at)"),
    mutant("int8_values_are_keys", INT8_TREE, "keys are summed, not values", "kv_pages[first_word(at + 1u) + dim / 4u]", "kv_pages[first_word(at) + dim / 4u]"),
    mutant("int8_values_are_keys_row", INT8_ROW, "keys are summed, not values", "kv_pages[first_word(at + 1u) / 4u + i / 4u]", "kv_pages[first_word(at) / 4u + i / 4u]"),
    mutant("int8_unsigned_keys", INT8_ATT, "codes are taken for unsigned", "unpack4xI8(word)", "unpack4xU8(word)"),
    mutant("int8_unsigned_values", INT8_TREE, "codes of values are taken for unsigned", "bitcast<i32>(kv_pages", "(kv_pages"),
    mutant("int8_code_order", INT8_TREE, "codes are taken from the high end of a word", "8u * (dim % 4u)", "8u * (3u - dim % 4u)"),
    mutant("int8_half_of_keys", INT8_TREE, "the second half of a head's words is not read", "i < KV_I8_WORDS; i++", "i < KV_I8_WORDS / 2u; i++"),
    mutant("int8_sums_not_rescaled_row", INT8_ROW, "some sums keep the weights of an older maximum", "(*sums)[i + 3u] * rescale", "(*sums)[i + 3u]"),
    mutant("int8_word_order_row", INT8_ROW, "two words of a load are exchanged", "dot((*query)[i], codes(words.x))", "dot((*query)[i], codes(words.y))"),
    mutant("chunk_page_off_by_one", CHUNK, "the last slot of a page is read from the next", "page_values[position / PAGE_SIZE]", "page_values[(position + 1u) / PAGE_SIZE]"),
    mutant("chunk_page_table_ignored", CHUNK, "pages are taken in their order, not in the table's", "u32(page_values[position / PAGE_SIZE])", "(position / PAGE_SIZE)"),
    mutant("chunk_sees_the_future", CHUNK, "a token attends to the one after it", "u32(position_map[token] + 1)", "u32(position_map[token] + 2)"),
    mutant("chunk_misses_itself", CHUNK, "a token does not attend to itself", "u32(position_map[token] + 1)", "u32(position_map[token])"),
    mutant("chunk_sees_the_chunk", CHUNK, "every token attends to what the last one does", "u32(position_map[token] + 1)", "u32(position_map[u.seq_len - 1u] + 1)"),
    mutant("chunk_padding_stored", CHUNK, "a padded token is stored", "  if (denominator <= 0.0) {\n    return;\n  }\n", ""),
    mutant("chunk_length_ignored", CHUNK, "tokens past the chunk's length are stored", "  if (token >= u.seq_len) {\n    return vec2<u32>(0u);\n  }\n", ""),
    mutant("chunk_row_stride", CHUNK, "rows of queries are taken to hold keys and values too", "token * Q_DIM", "token * QKV_DIM"),
    mutant("last_position_dropped", WHOLE, "the newest position is not attended to", "vec2<u32>(0u, length())", "vec2<u32>(0u, length() - 1u)"),
    mutant("first_position_dropped", WHOLE, "the first position is not attended to", "vec2<u32>(0u, length())", "vec2<u32>(1u, length())"),
    mutant("position_past_the_end", WHOLE, "a slot past the sequence is attended to", "vec2<u32>(0u, length())", "vec2<u32>(0u, length() + 1u)"),
    mutant("barrier_after_query", TREE_ATT, "scores are formed before the query is loaded", "* u.sm_scale;\n  }\n  workgroupBarrier();", "* u.sm_scale;\n  }"),
    mutant("barrier_after_scores", TREE_ATT, "the maximum is taken before every score is stored", "scores[tid] = score;\n    workgroupBarrier();", "scores[tid] = score;"),
    mutant("barrier_after_weights", TREE_ATT, "values are summed before every weight is stored", "weights[tid] = exp(score - largest);\n    workgroupBarrier();", "weights[tid] = exp(score - largest);"),
    mutant("barrier_before_merge", PLAIN_ROW, "invocations are merged before each has stored its part", "[dim % 4u];\n  }\n  workgroupBarrier();", "[dim % 4u];\n  }").needs_other_hardware("a workgroup of 8 is one vector of the software driver, whose lanes store before any of them reads"),
    mutant("merge_without_maximum", ROW_ATT, "invocations are merged relative to their own maximum", "largest = max(largest, maxima[j]);", "largest = max(largest, maxima[tid]);"),
    mutant("merge_weight_missing", ROW_ATT, "denominators are merged without their weight", "denominator += denominators[j] * weight;", "denominator += denominators[j];"),
    mutant("merge_outputs_unweighted", ROW_ATT, "outputs are merged without their weight", "outputs[j * HEAD_DIM + d * THREADS + tid] * weight;", "outputs[j * HEAD_DIM + d * THREADS + tid];"),
    mutant("merge_drops_last", ROW_ATT, "the last invocation's part is not merged", "  denominator = 0.0;\n  for (var j = 0u; j < THREADS; j++) {", "  denominator = 0.0;\n  for (var j = 0u; j < THREADS - 1u; j++) {"),
    // attention_splitk
    mutant("part_end_early", SPLIT, "a part ends one position early", "(part + 1u) * span", "(part + 1u) * span - 1u"),
    mutant("part_end_late", SPLIT, "a part takes the first position of the next", "(part + 1u) * span", "(part + 1u) * span + 1u"),
    mutant("part_pages_rounded_down", SPLIT, "pages that the parts do not divide are dropped", "(pages + u.num_splits - 1u) / u.num_splits", "pages / u.num_splits"),
    mutant("part_in_positions", SPLIT, "parts do not hold whole pages", "/ u.num_splits * PAGE_SIZE", "/ u.num_splits * (PAGE_SIZE - 1u)"),
    mutant("part_past_the_length", SPLIT, "the last part runs to the end of its page", "min(vec2<u32>(part * span, (part + 1u) * span), vec2<u32>(length()))", "vec2<u32>(part * span, (part + 1u) * span)"),
    mutant("part_of_other_head", SPLIT, "parts are stored by part first", "(head * u.num_splits + part) * PARTIAL_LEN", "(head + part * HEADS) * PARTIAL_LEN"),
    mutant("partial_denominator_missing", SPLIT, "a part's denominator is not stored", "partials[at + 1u] = denominator;", "partials[at + 1u] = 1.0;"),
    mutant("partial_output_place", SPLIT, "outputs are stored one place too early", "partials[at + 2u + d * THREADS + tid]", "partials[at + 1u + d * THREADS + tid]"),
    mutant("empty_part_not_returned", &["attention_splitk_row_vec4", "attention_row_vec4"], "an empty part is not left early", "  if (range.x >= range.y) {\n    store(head, wg.x, tid, EMPTY_MAX, 0.0, &merged);\n    return;\n  }\n", "").equivalent("the loop does not run, every maximum is EMPTY_MAX and every sum zero, so the same is stored after the merge"),
    // attention by subgroup
    mutant("sg_score_unscaled", SG_ATT, "scores are not divided by the root of the head's width", "f32(q[first + d * THREADS + tid]) * u.sm_scale", "f32(q[first + d * THREADS + tid])"),
    mutant("sg_query_order", SG_ATT, "dimensions of the query are taken in the order of invocations", "q[first + d * THREADS + tid]", "q[first + tid * DIMS + d]"),
    mutant("sg_score_last_subgroup", SG_ATT, "the last subgroup's part of a score is dropped", "for (var i = 0u; i < num_subgroups; i++) {\n        score", "for (var i = 0u; i < num_subgroups - 1u; i++) {\n        score"),
    mutant("sg_score_of_32", SG_ATT, "a score is taken to be one subgroup's sum", "for (var i = 0u; i < num_subgroups; i++) {\n        score", "for (var i = 0u; i < 1u; i++) {\n        score"),
    mutant("sg_f16_score", SG_ATT, "scores are summed in f16", "product += (*query)[d] * f32(kv_pages[at + d * THREADS + tid]);", "product = f32(f16(product + (*query)[d] * f32(kv_pages[at + d * THREADS + tid])));"),
    mutant("sg_maximum_last_subgroup", SG_ATT, "the last subgroup's maximum is dropped", "for (var i = 0u; i < num_subgroups; i++) {\n      block", "for (var i = 0u; i < num_subgroups - 1u; i++) {\n      block"),
    mutant("sg_own_maximum", SG_ATT, "one invocation's score is taken for its subgroup's maximum", "let subgroup_largest = subgroupMax(score);", "let subgroup_largest = score;"),
    mutant("sg_keys_and_values", SG_ATT, "scores are formed with values", "f32(kv_pages[at + d * THREADS + tid])", "f32(kv_pages[at + V_PAGE_OFFSET + d * THREADS + tid])"),
    mutant("sg_barrier_after_parts", SG_ATT, "scores are added before every subgroup has stored its part", "score_parts[at.subgroup][j] = part;\n      }\n    }\n    workgroupBarrier();", "score_parts[at.subgroup][j] = part;\n      }\n    }"),
    mutant("sg_barrier_after_maxima", SG_ATT, "the maximum is taken before every subgroup has stored its own", "maxima[at.subgroup] = subgroup_largest;\n    }\n    workgroupBarrier();", "maxima[at.subgroup] = subgroup_largest;\n    }"),
    mutant("sg_barrier_after_weights", SG_ATT, "values are summed before every weight is stored", "weights[tid] = weight;\n    workgroupBarrier();", "weights[tid] = weight;"),
    mutant("sg_idle_weight", SG_ATT, "an invocation past the block adds to the denominator", "select(0.0, exp(score - largest), tid < count)", "exp(score - largest)").equivalent("its score is -50000, whose exponential is zero beside every score above -49890"),
    // attention_combine
    mutant("combine_weight_missing", COMBINE, "parts are added without the weight of their maximum", "let weight = exp(partials[at] - largest);", "let weight = 1.0;"),
    mutant("combine_weight_inverted", COMBINE, "parts are weighted by the inverse", "exp(partials[at] - largest)", "exp(largest - partials[at])"),
    mutant("combine_denominator_unweighted", COMBINE, "denominators are added without their weight", "partials[at + 1u] * weight", "partials[at + 1u]"),
    mutant("combine_maximum_of_first", COMBINE, "the first part's maximum is taken for the largest", "largest = max(largest, partials[base + part * PARTIAL_LEN]);", "largest = max(largest, partials[base]);"),
    mutant("combine_empty_maximum", COMBINE, "the maximum of an empty part counts", "    if (partials[base + part * PARTIAL_LEN + 1u] > 0.0) {\n      largest", "    {\n      largest"),
    mutant("combine_empty_part", COMBINE, "the output of an empty part counts", "      if (partials[at + 1u] > 0.0) {\n        let", "      {\n        let"),
    mutant("combine_output_place", COMBINE, "outputs are read one place too early", "partials[at + 2u + dim]", "partials[at + 1u + dim]"),
    mutant("combine_last_part", COMBINE, "the last part is dropped", "    for (var part = 0u; part < u.num_splits; part++) {\n      let", "    for (var part = 0u; part < u.num_splits - 1u; part++) {\n      let"),
    mutant("combine_undivided", COMBINE, "the sum is not divided", "Act(sum / denominator)", "Act(sum)"),
    // norms
    mutant("gamma_plus_one", NORMS, "gamma is taken as a difference to one", "* f32(gamma[i])", "* (1.0 + f32(gamma[i]))"),
    mutant("eps_times_10", EVERY_NORM, "epsilon is ten times too large", "+ RMS_EPS)", "+ 10.0 * RMS_EPS)"),
    mutant("eps_missing", EVERY_NORM, "epsilon is left out", "+ RMS_EPS)", ")"),
    mutant("mean_of_threads", NORMS, "the mean is over one element too many", "sums[0] / f32(D)", "sums[0] / f32(D + 1u)"),
    mutant("norm_barrier_before_tree", EVERY_NORM, "the tree starts before every sum is stored", "sums[tid] = sum;\n  workgroupBarrier();", "sums[tid] = sum;"),
    mutant("norm_barrier_in_tree", EVERY_NORM, "a level of the tree starts before the one above is done", "sums[tid + width];\n    }\n    workgroupBarrier();", "sums[tid + width];\n    }"),
    mutant("norm_tail_skipped", &["rms_norm"], "what is left of a row after whole strides is not summed", "i < D; i += THREADS) {\n    let value", "i < D / THREADS * THREADS; i += THREADS) {\n    let value"),
    mutant("add_norm_tail_skipped", &["add_norm"], "what is left of a row after whole strides is not stored", "i < D; i += THREADS) {\n    normed", "i < D / THREADS * THREADS; i += THREADS) {\n    normed"),
    mutant("norm_f16_accumulator", &["rms_norm"], "squares are summed in f16", "sum += value * value;", "sum = f32(f16(sum + value * value));"),
    mutant("add_norm_f16_accumulator", &["add_norm"], "squares are formed and summed in f16", "sum += f32(added) * f32(added);", "sum = f32(f16(sum + f32(added * added)));"),
    mutant("norm_last_tokens_unguarded", NORMS, "workgroups past the last token store too", "  if (token >= u.packGridDimX) {\n    return;\n  }\n", ""),
    mutant("residual_sign", &["add_norm"], "the delta is taken off", "a[base + i] + b[base + i]", "a[base + i] - b[base + i]"),
    mutant("residual_is_b", &["add_norm"], "the residual is stored without the delta", "residual[base + i] = added;", "residual[base + i] = b[base + i];"),
    mutant("normed_from_unrounded", &["add_norm"], "the sum is normalised before it is rounded", "Act(f32(residual[base + i]) * scale", "Act((f32(a[base + i]) + f32(b[base + i])) * scale"),
    mutant("square_of_unrounded", &["add_norm"], "the mean square is of the sum before it is rounded", "sum += f32(added) * f32(added);", "let exact = f32(a[base + i]) + f32(b[base + i]);\n    sum += exact * exact;"),
    // qk_norm, qk_norm_rope_append
    mutant("head_mean_of_threads", HEAD_NORMS, "the mean is over the workgroup, not over the head", "sums[0] / f32(HEAD_DIM)", "sums[0] / f32(THREADS)"),
    mutant("head_norm_dropped", HEAD_NORMS, "heads are multiplied by gamma alone", "let scale = inverseSqrt(sums[0] / f32(HEAD_DIM) + RMS_EPS);", "let scale = 1.0;"),
    mutant("head_norm_by_square", HEAD_NORMS, "heads are divided by the mean square, not by its root", "inverseSqrt(sums[0] / f32(HEAD_DIM) + RMS_EPS)", "1.0 / (sums[0] / f32(HEAD_DIM) + RMS_EPS)"),
    mutant("head_tree_starts_low", HEAD_NORMS, "half of the workgroup's sums is left out", "var width = THREADS / 2u", "var width = THREADS / 4u"),
    mutant("qk_gammas_swapped", QK_NORM, "queries have the keys' gamma and keys the queries'", "gamma = f32(q_gamma[dim]);\n    } else {\n      gamma = f32(k_gamma[dim]);", "gamma = f32(k_gamma[dim]);\n    } else {\n      gamma = f32(q_gamma[dim]);"),
    mutant("qk_gamma_plus_one", QK_NORM, "gamma is taken as a difference to one", "values[d] * scale * gamma", "values[d] * scale * (1.0 + gamma)"),
    mutant("qk_gamma_order", QK_NORM, "gammas are taken in the order of invocations", "let dim = d * THREADS + tid;", "let dim = tid * DIMS + d;"),
    mutant("qk_f16_accumulator", QK_NORM, "squares are summed in f16", "sum += values[d] * values[d];", "sum = f32(f16(sum + values[d] * values[d]));"),
    mutant("qk_values_too", QK_NORM, "a head of values is taken for a key", "let head = group % (HEADS + KV_HEADS);", "let head = group % (HEADS + KV_HEADS) + 1u;"),
    mutant("qk_token_stride", QK_NORM, "rows are taken to hold no values", "* QKV_DIM + head * HEAD_DIM + tid", "* (Q_DIM + KV_DIM) + head * HEAD_DIM + tid"),
    mutant("qk_unguarded", QK_NORM, "workgroups past the last head normalise too", "  if (group >= u.packGridDimX || group >= u.seq_len * (HEADS + KV_HEADS)) {\n    return;\n  }\n", ""),
    mutant("qk_append_gammas_swapped", QK_APPEND, "queries have the keys' gamma and keys the queries'", "  if (head < HEADS) {\n    return vec2<f32>(f32(q_gamma", "  if (head >= HEADS) {\n    return vec2<f32>(f32(q_gamma"),
    mutant("qk_append_gamma_transposed", QK_APPEND, "the gammas of a pair of a key are exchanged", "vec2<f32>(f32(k_gamma[dims.x]), f32(k_gamma[dims.y]))", "vec2<f32>(f32(k_gamma[dims.y]), f32(k_gamma[dims.x]))"),
    mutant("qk_append_gamma_missing", QK_APPEND, "gamma is left out", "values[n] * scale * gammas(head, dims)", "values[n] * scale"),
    mutant("qk_append_f16_accumulator", QK_APPEND, "squares are summed in f16", "sum += dot(values[n], values[n]);", "sum = f32(f16(sum + dot(values[n], values[n])));"),
    mutant("qk_append_rope_sign", QK_APPEND, "the rotation's sine has the wrong sign", "normed.x * turn.x - normed.y * turn.y", "normed.x * turn.x + normed.y * turn.y"),
    mutant("qk_append_transposed", QK_APPEND, "neighbours are rotated, not halves", "vec2<u32>(pair, pair + HALF_ROTARY)", "vec2<u32>(2u * pair, 2u * pair + 1u)"),
    mutant("qk_append_whole_head", QK_APPEND, "the part of a head past rotary_dim is rotated too", "if (pair < HALF_ROTARY) {\n        let turn", "{\n        let turn"),
    mutant("qk_append_unrotated", QK_APPEND, "pairs past rotary_dim overlap", "ROTARY_DIM + 2u * (pair - HALF_ROTARY)", "ROTARY_DIM + (pair - HALF_ROTARY)"),
    mutant("qk_append_padding", QK_APPEND, "a padded token is stored", "if (position < 0) {", "if (position < -1) {"),
    mutant("qk_append_page_off_by_one", QK_APPEND, "the last slot of a page is stored in the next", "page_values[position / PAGE_SIZE]", "page_values[(position + 1u) / PAGE_SIZE]"),
    mutant("qk_append_page_table_ignored", QK_APPEND, "pages are taken in their order, not in the table's", "let page = u32(page_values[position / PAGE_SIZE]);", "let page = position / PAGE_SIZE;"),
    mutant("qk_append_head_offset", QK_APPEND, "heads are taken to lie side by side in a slot", "head * HEAD_PAGE_STRIDE", "head * HEAD_DIM"),
    mutant("qk_append_values_over_keys", QK_APPEND, "values are stored over keys", "head - HEADS - KV_HEADS) + V_PAGE_OFFSET", "head - HEADS - KV_HEADS)"),
    mutant("qk_append_values_of_first_head", QK_APPEND, "every head of values is the first", "let base = token * QKV_DIM + head * HEAD_DIM;", "let base = token * QKV_DIM + min(head, HEADS + KV_HEADS) * HEAD_DIM;"),
    mutant("qk_append_unguarded", QK_APPEND, "workgroups past the last head store too", "  if (group >= u.packGridDimX || group >= u.seq_len * QKV_HEADS) {\n    return;\n  }\n", ""),
    // embedding
    mutant("embedding_nibble_order", EMBEDDING, "codes are taken from the high end of a word", "4u * (k % 8u)", "4u * (7u - k % 8u)"),
    mutant("embedding_scale_group", EMBEDDING, "the last weight of a group has the next group's scale", "k / GROUP_SIZE", "(k + 1u) / GROUP_SIZE"),
    mutant("embedding_first_id", EMBEDDING, "every token is the first", "ids[i / D]", "ids[0]"),
    mutant("embedding_f32_product", EMBEDDING, "the product is formed in f32 and rounded once", "(Act(code) - Act(ZERO_POINT)) * Act(scales[token * D_SCALES + k / GROUP_SIZE])", "Act((f32(code) - f32(ZERO_POINT)) * f32(scales[token * D_SCALES + k / GROUP_SIZE]))").equivalent("a product of two f16 values is exact in f32, so rounding it to f16 is what the f16 product does"),
    mutant("embedding_unguarded", EMBEDDING, "invocations past the last element store too", " || i >= u.seq_len * D", ""),
    // rope
    mutant("rope_sign", ROPE, "the rotation's sine has the wrong sign", "value * turn.x - f32(qkv[i + HALF_ROTARY]) * turn.y", "value * turn.x + f32(qkv[i + HALF_ROTARY]) * turn.y"),
    mutant("rope_transposed", ROPE, "the first half is rotated with its neighbour", "f32(qkv[i + HALF_ROTARY])", "f32(qkv[i + 1u])"),
    mutant("rope_frequency", ROPE, "frequencies are those of interleaved pairs", "inv_freq[dim % HALF_ROTARY]", "inv_freq[dim / 2u]"),
    mutant("rope_whole_head", ROPE, "the part of a head past rotary_dim is rotated too", "u.apply_rope != 0 && dim < ROTARY_DIM", "u.apply_rope != 0"),
    mutant("rope_always", ROPE, "apply_rope is not read", "u.apply_rope != 0 && dim < ROTARY_DIM", "dim < ROTARY_DIM"),
    mutant("rope_first_position", ROPE, "every token has the first token's position", "position_map[u32(u.position_map_elem_offset) + token]", "position_map[u32(u.position_map_elem_offset)]"),
    mutant("rope_values_place", ROPE, "values are stored a row too far", "v_out[token * KV_DIM + row - Q_DIM - KV_DIM]", "v_out[token * KV_DIM + row - Q_DIM]"),
    mutant("rope_on_values", ROPE, "the first head of values is taken for a key", "  if (row >= Q_DIM + KV_DIM) {", "  if (row >= Q_DIM + KV_DIM + HEAD_DIM) {"),
    mutant("rope_unguarded", ROPE, "invocations past the last element store too", " || i >= u32(u.seq_len) * QKV_DIM", ""),
    mutant("turn_unreduced", &["rope", "qkv_fused", "qkv_fused_row_vec4", "qkv_fused_row_texture", "qk_norm_rope_append"], "two pi is rounded to 6.28125", "(angle - turns * 6.28125) - turns * 0.0019353072", "angle - turns * 6.28125"),
    mutant("sine_and_cosine_swapped", &["rope", "qkv_fused", "qkv_fused_row_vec4", "qkv_fused_row_texture", "qk_norm_rope_append"], "sine and cosine are exchanged", "vec2<f32>(cos(reduced), sin(reduced))", "vec2<f32>(sin(reduced), cos(reduced))"),
    // kv_append
    mutant("append_padding", KV_APPEND, "a padded token is stored", "if (position < 0) {", "if (position < -1) {"),
    mutant("append_page_off_by_one", KV_APPEND, "the last slot of a page is stored in the next", "page_values[position / PAGE_SIZE]", "page_values[(position + 1u) / PAGE_SIZE]"),
    mutant("append_page_table_ignored", KV_APPEND, "pages are taken in their order, not in the table's", "let page = u32(page_values[position / PAGE_SIZE]);", "let page = position / PAGE_SIZE;"),
    mutant("append_swapped", KV_APPEND, "keys are stored as values and values as keys", "kv_pages[at] = k[i];\n  kv_pages[at + V_PAGE_OFFSET] = v[i];", "kv_pages[at] = v[i];\n  kv_pages[at + V_PAGE_OFFSET] = k[i];"),
    mutant("append_head_offset", KV_APPEND, "heads are taken to lie side by side in a slot", "head * HEAD_PAGE_STRIDE", "head * HEAD_DIM"),
    mutant("append_pages_offset", KV_APPEND, "the offset of the pages is left out", "+ u32(u.pages_elem_offset) + dim", "+ dim"),
    mutant("append_unguarded", KV_APPEND, "invocations past the last element store too", " || i >= u32(u.ntoken) * KV_DIM", ""),
    // kv_quantize_int8
    mutant("quantize_padding", KV_QUANTIZE, "a padded token is stored", "if (position < 0) {", "if (position < -1) {"),
    mutant("quantize_page_off_by_one", KV_QUANTIZE, "the last slot of a page is stored in the next", "page_values[position / PAGE_SIZE]", "page_values[(position + 1u) / PAGE_SIZE]"),
    mutant("quantize_page_table_ignored", KV_QUANTIZE, "pages are taken in their order, not in the table's", "let page = u32(page_values[position / PAGE_SIZE]);", "let page = position / PAGE_SIZE;"),
    mutant("quantize_swapped", KV_QUANTIZE, "keys are stored as values and values as keys", "if (side == 0u) {", "if (side == 1u) {"),
    mutant("quantize_head_stride", KV_QUANTIZE, "heads are taken to have one slot each", "head * KV_SCALES_HEAD_STRIDE", "head * 2u"),
    mutant("quantize_32_words", KV_QUANTIZE, "one word of each invocation is written, whatever the width of a head", "  for (var i = tid; i < KV_I8_WORDS; i += THREADS) {", "  for (var i = tid; i < min(KV_I8_WORDS, THREADS); i += THREADS) {"),
    mutant("quantize_truncates", KV_QUANTIZE, "codes are rounded towards zero", "round(x / scale)", "trunc(x / scale)"),
    mutant("quantize_by_stored_scale", KV_QUANTIZE, "codes are of the scale as it is stored", "round(x / scale)", "round(x / f32(f16(scale)))"),
    mutant("quantize_by_128", KV_QUANTIZE, "the scale is of codes up to 128", "largest[0] / 127.0", "largest[0] / 128.0"),
    mutant("quantize_without_floor", KV_QUANTIZE, "a head of zeros is divided by zero", "max(largest[0] / 127.0, 1e-8)", "largest[0] / 127.0"),
    mutant("quantize_signed_maximum", KV_QUANTIZE, "the largest value is taken, not the largest magnitude", "max(most, abs(element(side, first + dim)))", "max(most, element(side, first + dim))"),
    mutant("quantize_maximum_of_threads", KV_QUANTIZE, "one value of each invocation is looked at", "dim < HEAD_DIM; dim += THREADS", "dim < THREADS; dim += THREADS"),
    mutant("quantize_tree_starts_low", KV_QUANTIZE, "half of the maxima are left out", "var width = THREADS / 2u", "var width = THREADS / 4u"),
    mutant("quantize_barrier_before_tree", KV_QUANTIZE, "the tree starts before every maximum is stored", "largest[tid] = most;\n  workgroupBarrier();", "largest[tid] = most;"),
    mutant("quantize_barrier_in_tree", KV_QUANTIZE, "a level of the tree starts before the one above is done", "largest[tid + width]);\n    }\n    workgroupBarrier();", "largest[tid + width]);\n    }"),
    mutant("quantize_unclamped", KV_QUANTIZE, "codes are not clamped", "clamp(round(x / scale), vec4<f32>(-127.0), vec4<f32>(127.0))", "round(x / scale)").equivalent("the scale is that of the largest magnitude, so a quotient is 127 within the division's accuracy, and rounds to 127"),
    mutant("quantize_pages_offset", KV_QUANTIZE, "the offset of the codes is left out", "u32(u.pages_elem_offset) + at * KV_I8_WORDS", "at * KV_I8_WORDS"),
    mutant("quantize_scales_offset", KV_QUANTIZE, "the offset of the scales is left out", "kv_scales[u32(u.scales_elem_offset) + at]", "kv_scales[at]"),
    mutant("quantize_unguarded", KV_QUANTIZE, "workgroups past the last head store too", "  if (wg.x >= u.packGridDimX) {\n    return;\n  }\n", ""),
    // silu_mul
    mutant("silu_mul_swapped", SILU_MUL, "the gate multiplies silu of up", "Act(gate / (1.0 + exp(-gate)) * up)", "Act(up / (1.0 + exp(-up)) * gate)"),
    mutant("silu_mul_without_negation", SILU_MUL, "silu of the wrong sign", "exp(-gate)", "exp(gate)"),
    mutant("silu_mul_rounded_early", SILU_MUL, "silu is rounded before it is multiplied", "Act(gate / (1.0 + exp(-gate)) * up)", "Act(gate / (1.0 + exp(-gate))) * Act(up)"),
    mutant("silu_mul_row_stride", SILU_MUL, "every row is the first", "let at = i / FFN_DIM * 2u * FFN_DIM + i % FFN_DIM;", "let at = i % FFN_DIM;"),
    mutant("silu_mul_interleaved", SILU_MUL, "gates and ups are taken in turn", "gate_up[at + FFN_DIM]", "gate_up[at + 1u]"),
    mutant("silu_mul_fold_ignored", SILU_MUL, "elements past the first layer of a folded grid are not computed", "wg.z * num_wg.x + wg.x", "wg.x"),
    mutant("silu_mul_unguarded", SILU_MUL, "invocations past the last element store too", " || i >= u.seq_len * FFN_DIM", ""),
    // argmax
    mutant("tie_to_highest_in_tree", ARGMAX, "the highest index wins a tie between invocations", "best_index[other] < best_index[tid]", "best_index[other] > best_index[tid]"),
    mutant("tie_ignored_in_tree", ARGMAX, "a tie between invocations goes to the lower invocation", "if (greater || tie) {", "if (greater) {"),
    mutant("tie_to_highest_in_scan", EVERY_ARGMAX, "the highest index wins a tie within an invocation", "if (logit > best.value) {", "if (logit >= best.value) {"),
    mutant("argmax_from_zero", EVERY_ARGMAX, "a logit below zero is never the largest", "Best(-3.0e38, 0u)", "Best(0.0, 0u)"),
    mutant("argmax_tail_skipped", EVERY_ARGMAX, "what is left of the vocabulary after whole strides is not scanned", "i < VOCAB; i += THREADS", "i < VOCAB / THREADS * THREADS; i += THREADS"),
    mutant("argmax_barrier_before_tree", ARGMAX, "the tree starts before every candidate is stored", "best_index[tid] = best.index;\n  workgroupBarrier();", "best_index[tid] = best.index;"),
    mutant("argmax_barrier_in_tree", ARGMAX, "a level of the tree starts before the one above is done", "      }\n    }\n    workgroupBarrier();", "      }\n    }"),
    mutant("argmax_sg_tie_to_highest", SG_ARGMAX, "the highest index wins a tie within a subgroup", "subgroupMin(select(VOCAB, best.index, best.value == value))", "subgroupMax(select(0u, best.index, best.value == value))"),
    mutant("argmax_sg_index_of_any", SG_ARGMAX, "a subgroup's index is that of an invocation with a lesser logit", "select(VOCAB, best.index, best.value == value)", "best.index"),
    mutant("argmax_sg_tie_between", SG_ARGMAX, "the highest index wins a tie between subgroups", "best_index[other] < best_index[first]", "best_index[other] > best_index[first]"),
    mutant("argmax_sg_tie_ignored", SG_ARGMAX, "a tie between subgroups goes to the lower subgroup", "if (greater || tie) {", "if (greater) {"),
    mutant("argmax_sg_last_subgroup", SG_ARGMAX, "the last subgroup's best is dropped", "other < num_subgroups", "other < num_subgroups - 1u"),
    mutant("argmax_sg_of_32", SG_ARGMAX, "subgroups are taken to have 32 invocations", "other < num_subgroups", "other < THREADS / 32u"),
    mutant("argmax_sg_lane_31", SG_ARGMAX, "lane 31 stores for its subgroup", "lane == subgroupBroadcastFirst(lane)", "lane == 31u"),
    mutant("argmax_sg_barrier", SG_ARGMAX, "the best is taken before every subgroup has stored", "best_index[subgroup] = index;\n  }\n  workgroupBarrier();", "best_index[subgroup] = index;\n  }"),
    mutant("argmax_index_lost", ARGMAX, "the index does not follow its value", "        best_index[tid] = best_index[other];\n", ""),
];
