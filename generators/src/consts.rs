//! Model constants injected in front of every kernel. They are abstract-typed,
//! so one constant serves as `u32`, `i32` and `f32`.

use kernels::{
    ModelSpec, Variant, kv,
    models::{Experts, GatedDeltaNet},
    sampling::SAMPLE_PARTS,
    variants::{SCAN_BLOCK, TEXTURE_WIDTH},
};
use std::fmt::Write as _;

/// The `const` lines of a model, for the variant's format of weights.
pub(crate) fn render(variant: Variant, spec: &ModelSpec) -> String {
    let kv = spec.kv_layout();
    let int8 = kv.int8();
    let format = variant.format.unwrap_or(spec.format);
    // Every kernel compiles under every model; one without such layers dispatches none
    // of theirs.
    let net = spec.delta_net.unwrap_or(GatedDeltaNet::PUBLISHED);
    let integers = [
        ("D", spec.hidden_size),
        ("HEADS", spec.num_attention_heads),
        ("KV_HEADS", spec.num_key_value_heads),
        ("HEAD_DIM", spec.head_dim),
        ("HALF_HEAD_DIM", spec.head_dim / 2),
        ("Q_DIM", spec.q_dim()),
        ("KV_DIM", spec.kv_dim()),
        ("QKV_DIM", spec.qkv_dim()),
        ("GQA_GROUP", spec.gqa_group()),
        ("FFN_DIM", spec.intermediate_size),
        ("VOCAB", spec.vocab_size),
        ("LONGEST_ROW", spec.longest_row()),
        ("D_PACKED", format.words_per_row(spec.hidden_size)),
        ("D_SCALES", format.scales_per_row(spec.hidden_size)),
        ("GROUP_SIZE", format.group_size()),
        ("PAGE_SIZE", kv::PAGE_SIZE),
        ("MAX_PAGES", spec.max_pages),
        ("HEAD_PAGE_STRIDE", kv.head_page_stride()),
        ("KV_PAGE_STRIDE", kv.page_stride()),
        ("V_PAGE_OFFSET", kv.v_page_offset()),
        ("KV_I8_WORDS", int8.words()),
        ("KV_SCALES_HEAD_STRIDE", int8.head_scales()),
        ("KV_SCALES_PAGE_STRIDE", int8.page_scales()),
        ("PARTIAL_LEN", kv::partial_len(spec.head_dim)),
        ("ROTARY_DIM", spec.rotary_dim),
        ("HALF_ROTARY", spec.rotary_dim / 2),
        ("TEXTURE_WIDTH", TEXTURE_WIDTH),
        ("SAMPLE_PARTS", SAMPLE_PARTS),
        ("GATED_QKV_DIM", spec.qkv_dim() + spec.q_dim()),
        ("GDN_K_HEADS", net.linear_num_key_heads),
        ("GDN_V_HEADS", net.linear_num_value_heads),
        ("GDN_DK", net.linear_key_head_dim),
        ("GDN_DV", net.linear_value_head_dim),
        ("GDN_KEY_DIM", net.key_dim()),
        ("GDN_VALUE_DIM", net.value_dim()),
        ("GDN_CONV_DIM", net.conv_dim()),
        ("GDN_PROJ_DIM", net.proj_dim()),
        ("GDN_Z_OFFSET", net.conv_dim()),
        ("GDN_A_OFFSET", net.conv_dim() + net.value_dim()),
        ("CONV_TAPS", net.linear_conv_kernel_dim),
        ("CONV_RING", net.ring_len()),
        ("MAX_EXPERTS", Experts::MAX_EXPERTS),
        ("SCAN_BLOCK", SCAN_BLOCK),
    ];
    let mut text = String::new();
    for (name, value) in integers {
        let _ = writeln!(text, "const {name} = {value};");
    }
    let _ = writeln!(text, "const ZERO_POINT = {}.0;", format.zero_point());
    let factor = spec.rope_attention_factor();
    let _ = writeln!(text, "const ROPE_ATTENTION_FACTOR = {factor:?};");
    let scale = 1.0 / (net.linear_key_head_dim as f64).sqrt();
    let _ = writeln!(text, "const GDN_SCALE = {scale:?};");
    let _ = writeln!(text, "const RMS_EPS = {:e};", spec.rms_norm_eps);
    // The maximum of an empty softmax: exp of a difference to it is 0, never NaN.
    let _ = writeln!(text, "const EMPTY_MAX = -50000.0;");
    text
}
