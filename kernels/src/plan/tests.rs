//! Unit tests of the module above.

use super::*;
use crate::{flag, models, role::Access};

pub(super) fn plan(model: &str, choices: &[&str], features: &Features) -> Result<Plan, PlanError> {
    plan_of(&registered(model), choices, features)
}

fn registered(model: &str) -> ModelSpec {
    models::find(model).expect("registered")
}

/// Flags as they are typed.
fn chosen(choices: &[&str]) -> flag::Choices {
    let mut chosen = flag::Choices::new();
    for choice in choices {
        flag::parse_choice(choice, &mut chosen).expect("a valid choice");
    }
    chosen
}

fn plan_of(spec: &ModelSpec, choices: &[&str], features: &Features) -> Result<Plan, PlanError> {
    let chosen = chosen(choices);
    let settings = Settings::resolve(features, &chosen).expect("no conflict");
    Plan::build(spec, &settings, features, Phase::Decode)
}

#[test]
fn a_slowed_plan_reads_and_dispatches_more_and_overwrites_only() {
    let spec = models::find("phi3-mini").expect("registered");
    let settings =
        Settings::resolve(&Features::PUBLISHED, &flag::Choices::new()).expect("defaults");
    let plan = Plan::build(&spec, &settings, &Features::PUBLISHED, Phase::Decode).expect("a plan");
    let slowed = plan.slowed(0.06);
    let (plain, more) = (plan.totals(), slowed.totals());
    let grown = |after: f64, before: f64| after / before - 1.0;
    let bytes = grown(more.bytes_per_token as f64, plain.bytes_per_token as f64);
    let dispatches = grown(
        f64::from(more.dispatches_per_token),
        f64::from(plain.dispatches_per_token),
    );
    assert!((0.06..0.15).contains(&bytes), "bytes grew by {bytes}");
    assert!(
        (0.06..0.15).contains(&dispatches),
        "dispatches grew by {dispatches}"
    );
    for pair in slowed.dispatches.windows(2).filter(|p| p[0] == p[1]) {
        let in_place = pair[0].variant.bindings().any(|b| b.in_place);
        assert!(!in_place, "{} is repeated", pair[0].label);
    }
    assert_eq!(plan.slowed(0.0), plan, "no more work");
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
        ("phi3-mini", &["fuseprologue=1"], 228),
        ("phi3-mini", &["splitk=0", "fuseprologue=1"], 196),
        ("smollm2-135m", &["kv8=1"], 244),
        ("qwen3-4b", &["kv8=1"], 364),
        ("qwen35-4b", &[], 348),
        ("qwen35-4b", &["splitk=0"], 340),
        ("qwen36-35b-a3b", &[], 634),
        ("qwen36-35b-a3b", &["splitk=0"], 624),
        ("qwen3-30b-a3b", &[], 676),
    ] {
        for &format in QuantFormat::ALL {
            let spec = ModelSpec {
                format,
                ..registered(model)
            };
            let plan = plan_of(&spec, choices, &Features::PUBLISHED).expect("a plan");
            let found = plan.dispatches_per_token();
            assert_eq!(found, expected, "{model} {choices:?} {format}");
            let totals = plan.totals();
            assert_eq!(totals.by_role.values().sum::<u32>(), expected, "by role");
        }
    }
}

/// Flags that choose the form of a kernel; the others choose the dispatches.
const FORM_FLAGS: [&str; 19] = [
    "rowwise", "texture", "sg", "sgqkv", "sgffn", "sgattn", "sgargmax", "sggdn", "sgmoe", "matmul",
    "vec4", "vec4h", "vec4aff", "vec4affw", "vec4moe", "vec4gdn", "vec4qkv", "qkvtile", "logits",
];

/// Every value of a flag, as it is typed.
fn typed(flag: &Flag) -> Vec<String> {
    match flag.values {
        flag::Values::Switch => vec!["0".into(), "1".into()],
        flag::Values::Names(names) => names.iter().map(|&name| name.into()).collect(),
        flag::Values::Count(low, high) => {
            vec!["0".into(), low.to_string(), high.to_string()]
        }
    }
}

/// A form never changes the number of dispatches; what a model cannot have is
/// refused with a reason, and is the same whatever the dispatches.
#[test]
fn flags_of_forms_leave_the_dispatches_as_they_are() {
    let cpu = Features {
        cpu: true,
        ..Features::PUBLISHED
    };
    for (model, others, expected, impossible) in [
        (
            "phi3-mini",
            &["splitk=8"][..],
            260,
            &[
                "sggdn=1",
                "sgmoe=1",
                "vec4h=1",
                "vec4aff=1",
                "vec4affw=1",
                "vec4moe=1",
                "vec4gdn=1",
            ][..],
        ),
        (
            "phi3-mini",
            &["splitk=0"],
            228,
            &[
                "sggdn=1",
                "sgmoe=1",
                "vec4h=1",
                "vec4aff=1",
                "vec4affw=1",
                "vec4moe=1",
                "vec4gdn=1",
            ],
        ),
        (
            "qwen3-4b",
            &["splitk=8"],
            328,
            &[
                "sgqkv=1",
                "sggdn=1",
                "sgmoe=1",
                "vec4aff=1",
                "vec4affw=1",
                "vec4moe=1",
                "vec4gdn=1",
                "vec4qkv=1",
                "qkvtile=1",
            ],
        ),
        (
            "qwen3-4b",
            &["splitk=0"],
            292,
            &[
                "sgqkv=1",
                "sggdn=1",
                "sgmoe=1",
                "vec4aff=1",
                "vec4affw=1",
                "vec4moe=1",
                "vec4gdn=1",
                "vec4qkv=1",
                "qkvtile=1",
            ],
        ),
        (
            "qwen3-4b",
            &["splitk=0", "fuseqk=0"],
            364,
            &[
                "sgqkv=1",
                "sggdn=1",
                "sgmoe=1",
                "vec4aff=1",
                "vec4affw=1",
                "vec4moe=1",
                "vec4gdn=1",
                "vec4qkv=1",
                "qkvtile=1",
            ],
        ),
    ] {
        for features in [Features::PUBLISHED, cpu] {
            let mut refused = Vec::new();
            for name in FORM_FLAGS {
                let flag = Flag::find(name).expect("a flag");
                for value in typed(flag) {
                    let choice = format!("{name}={value}");
                    let mut choices = others.to_vec();
                    choices.push(&choice);
                    // What it needs is chosen with it.
                    let on = flag.parse(&value).expect("its value").is_on();
                    let needs = flag.needs.iter().filter(|_| on);
                    let with: Vec<String> = needs
                        .flat_map(|need| [(*need).to_owned(), "sg=1".into()])
                        .filter(|need| !(need == "sg=1" && flag.needs == ["rowwise"]))
                        .collect();
                    choices.extend(with.iter().map(String::as_str));
                    match plan(model, &choices, &features) {
                        Ok(plan) => {
                            let found = plan.dispatches_per_token();
                            assert_eq!(found, expected, "{model} {choices:?}");
                        }
                        Err(error) => refused.push((choice, error.to_string())),
                    }
                }
            }
            let names: Vec<&str> = refused.iter().map(|(choice, _)| choice.as_str()).collect();
            // Where vec4 is the default, it leaves vec4h nothing of a model that it fits.
            let shadowed = |choice: &str| features.cpu && choice == "vec4h=1";
            let mut impossible = impossible.to_vec();
            impossible.retain(|choice| !shadowed(choice));
            assert_eq!(names, impossible, "{model} {others:?}: {refused:?}");
        }
    }
}

/// The forms of one model's dispatches, by role, in the order of the plan.
fn forms(spec: &ModelSpec, choices: &[&str]) -> Vec<String> {
    let plan = plan_of(spec, choices, &Features::PUBLISHED).expect("a plan");
    let mut ids: Vec<String> = Vec::new();
    for dispatch in &plan.dispatches {
        let id = dispatch.variant.id();
        if dispatch.variant.format.is_some() && !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

#[test]
fn flags_select_the_published_forms() {
    let phi3 = |choices: &[&str]| forms(&registered("phi3-mini"), choices);
    let tiled = [
        "embedding",
        "qkv_fused_sg_vec4",
        "int4_matmul_tiled_vec4",
        "fused_ffn_tiled_sg",
    ];
    assert_eq!(phi3(&[]), tiled, "by default");
    let tree = ["embedding", "qkv_fused", "int4_matmul_vec4", "fused_ffn"];
    assert_eq!(phi3(&["sg=0"]), tree, "without the family");
    for (choice, expected) in [
        ("matmul=tiled8", "int4_matmul_tiled8_vec4"),
        ("matmul=scalar", "int4_matmul_sg_vec4"),
        ("vec4=0", "int4_matmul_tiled"),
        ("vec4qkv=0", "qkv_fused_sg"),
        ("qkvtile=1", "qkv_fused_tiled_sg"),
        ("sgqkv=0", "qkv_fused"),
        ("sgffn=0", "fused_ffn"),
        ("logits=f32", "int4_matmul_f32_tiled_vec4"),
    ] {
        let found = phi3(&[choice]);
        assert!(found.iter().any(|id| id == expected), "{choice}: {found:?}");
    }
    // 2560 and 4096 and 9728: D, Q and F of Qwen3-4B.
    let widths = ["int4_matmul_tiled_vec4h", "int4_matmul_tiled_vec4"];
    let found = forms(&registered("qwen3-4b"), &[]);
    assert!(
        widths.iter().all(|w| found.iter().any(|id| id == w)),
        "{found:?}"
    );
    let roles = |choices: &[&str]| {
        let plan = plan("phi3-mini", choices, &Features::PUBLISHED).expect("a plan");
        let ids = plan.dispatches.iter().map(|d| d.variant.id());
        let ids: BTreeSet<String> = ids
            .filter(|id| id.starts_with("attention_splitk") || id.starts_with("argmax"))
            .collect();
        ids.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(
        roles(&[]),
        ["argmax_sg_vec4", "attention_splitk_sg_vec4"],
        "by default"
    );
    assert_eq!(
        roles(&["sgattn=0"]),
        ["argmax_sg_vec4", "attention_splitk"],
        "sgattn"
    );
    assert_eq!(
        roles(&["sgargmax=0"]),
        ["argmax", "attention_splitk_sg_vec4"],
        "sgargmax"
    );
    assert_eq!(
        roles(&["vec4attn=0", "vec4argmax=0"]),
        ["argmax_sg", "attention_splitk_sg"],
        "one load at a time"
    );
    // 8192 rows and more take the large tile.
    let dp4a = [
        "embedding",
        "qkv_fused_dp4a32",
        "int4_matmul_dp4a8",
        "fused_ffn_dp4a32",
        "int4_matmul_dp4a32",
    ];
    let found = phi3(&["dp4a=1"]);
    let all = dp4a.iter().all(|id| found.iter().any(|f| f == id));
    assert!(all, "{found:?}");
    let found = phi3(&["dp4a=1", "dp4arows=8"]);
    assert!(found.iter().all(|id| !id.contains("dp4a32")), "{found:?}");
}

/// Forms of Phi-3's size in a format, and its 4-bit affine words.
#[test]
fn flags_select_the_same_forms_in_every_format() {
    for &format in QuantFormat::ALL {
        let spec = ModelSpec {
            format,
            ..registered("phi3-mini")
        };
        let affine = format.is_affine();
        let suffix = if format == QuantFormat::Q4f16_1 {
            String::new()
        } else {
            format!("_{format}")
        };
        let wide = match (format == QuantFormat::Affine3G64, affine) {
            (true, _) => "",
            (false, true) => "_vec4h",
            (false, false) => "_vec4",
        };
        for (choices, forms_by_role) in [
            (
                &[][..],
                [
                    "qkv_fused_sg_vec4",
                    "int4_matmul_tiled$",
                    "fused_ffn_tiled_sg",
                ],
            ),
            (&["sg=0"], ["qkv_fused", "int4_matmul$", "fused_ffn"]),
            (
                &["rowwise=1"],
                [
                    "qkv_fused_row_vec4",
                    "int4_matmul_row_vec4",
                    "fused_ffn_row_vec4",
                ],
            ),
            (
                &["matmul=tiled8", "qkvtile=1"],
                [
                    "qkv_fused_tiled_sg",
                    "int4_matmul_tiled8$",
                    "fused_ffn_tiled_sg",
                ],
            ),
            (
                &["matmul=scalar", "vec4qkv=0", "sgffn=0"],
                ["qkv_fused_sg", "int4_matmul_sg$", "fused_ffn"],
            ),
            (
                &["vec4=0", "kv8=1"],
                [
                    "qkv_fused_scratch_sg_vec4",
                    "int4_matmul_tiled",
                    "fused_ffn_tiled_sg",
                ],
            ),
        ] {
            let found = forms(&spec, choices);
            for form in ["embedding"].iter().chain(&forms_by_role) {
                let id = format!("{}{suffix}", form.replace('$', wide));
                assert!(found.contains(&id), "{choices:?}: {id} of {found:?}");
            }
            assert_eq!(found.len(), 4, "{choices:?}: {found:?}");
        }
        let head = format!("int4_matmul_f32_tiled{wide}{suffix}");
        let found = forms(&spec, &["logits=f32"]);
        assert!(found.contains(&head), "{head} of {found:?}");
        let refused = |choice: &str| plan_of(&spec, &[choice], &Features::PUBLISHED).is_err();
        assert_eq!(refused("vec4=1"), affine, "{format}");
        assert_eq!(refused("vec4affw=1"), !affine, "{format}");
        assert_eq!(refused("vec4aff=1"), wide != "_vec4h", "{format}");
        if affine {
            let found = forms(&spec, &["vec4affw=1"]);
            let id = format!("int4_matmul_tiled_vec4{suffix}");
            assert!(found.contains(&id), "{id} of {found:?}");
        }
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
                ("smollm2-135m", "fuseprologue=1"),
                ("qwen3-4b", "kv8=1"),
                ("qwen35-4b", "splitk=0"),
                ("qwen35-4b", "kv8=1"),
                ("qwen36-35b-a3b", "splitk=8"),
                ("qwen3-30b-a3b", "splitk=8"),
            ] {
                let spec = models::find(model).expect("registered");
                let chosen = chosen(&[choice]);
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

/// A model whose matrices are in affine formats, the down projections of layer 1 in
/// another.
fn mixed() -> ModelSpec {
    let other = |layer, tensor, format| models::TensorFormat {
        layer,
        tensor,
        format,
    };
    ModelSpec {
        format: QuantFormat::Affine4G64,
        other_formats: vec![
            other(None, Tensor::Embedding, QuantFormat::Affine8G32),
            other(Some(1), Tensor::Down, QuantFormat::Affine3G64),
        ],
        ..models::find("qwen3-4b").expect("registered")
    }
}

#[test]
fn every_matrix_goes_by_its_own_format() {
    let spec = mixed();
    let features = Features::PUBLISHED;
    let settings = Settings::resolve(&features, &flag::Choices::new()).expect("no conflict");
    let plan = Plan::build(&spec, &settings, &features, Phase::Decode).expect("a plan");
    let format = |label: &str| {
        let mut dispatches = plan.dispatches.iter();
        let dispatch = dispatches.find(|d| d.label == label).expect(label);
        let storage = dispatch.variant.storage_bindings();
        assert_eq!(dispatch.buffers.len(), storage.count(), "{label}");
        let biases = dispatch.buffers.last().expect("bindings");
        let is = |b: &&Buffer| {
            matches!(
                b,
                Buffer::Param {
                    part: Part::Biases,
                    ..
                }
            )
        };
        assert!(Some(biases).filter(is).is_some(), "{label}: biases last");
        dispatch.variant.format
    };
    assert_eq!(format("embed"), Some(QuantFormat::Affine8G32), "embedding");
    assert_eq!(
        format("lm_head"),
        Some(QuantFormat::Affine8G32),
        "tied head"
    );
    assert_eq!(
        format("layers.0.down"),
        Some(QuantFormat::Affine4G64),
        "the model's"
    );
    assert_eq!(
        format("layers.1.down"),
        Some(QuantFormat::Affine3G64),
        "its own"
    );
    let (d, layer) = (
        2560,
        2560 * (4096 + 2 * 1024) + 4096 * 2560 + 2560 * 2 * 9728,
    );
    let down = 9728 * d;
    // Of 64 weights: 32 bytes of codes (24 in 3 bits), a scale and a bias; of 32 in 8
    // bits as many codes.
    let bytes = 36 * (layer * 36 + down * 36) / 64 - down * 8 / 64 + 151_936 * d * 36 / 32;
    assert_eq!(plan.totals().bytes_per_token, bytes, "bytes");
}

#[test]
fn a_form_that_is_not_written_for_the_format_says_so() {
    let features = Features::PUBLISHED;
    let chosen = chosen(&["rowwise=1", "texture=1"]);
    let settings = Settings::resolve(&features, &chosen).expect("no conflict");
    let error = Plan::build(&mixed(), &settings, &features, Phase::Decode)
        .expect_err("textures hold q4f16_1")
        .to_string();
    assert!(error.contains("flag texture"), "{error}");
    assert!(
        error.contains("no form that it selects, in affine4_g64 weights"),
        "{error}"
    );
}

/// Dispatches of layer 0 before attention.
fn first_labels(choices: &[&str], phase: Phase) -> Vec<String> {
    let spec = models::find("qwen3-4b").expect("registered");
    let chosen = chosen(choices);
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
    for model in [
        "smollm2-135m",
        "phi3-mini",
        "qwen3-4b",
        "qwen35-4b",
        "qwen36-35b-a3b",
    ] {
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
fn gemm_needs_chunks() {
    let spec = models::find("smollm2-135m").expect("registered");
    let features = Features::PUBLISHED;
    let build = |choices: &[&str], tokens| {
        let chosen = chosen(choices);
        let settings = Settings::resolve(&features, &chosen).map_err(|e| e.to_string())?;
        let phase = Phase::Prefill { tokens, head: true };
        Plan::build(&spec, &settings, &features, phase).map_err(|e| e.to_string())
    };
    let error = build(&["gemm=1", "chunk=0"], 1).expect_err("nothing to multiply");
    assert!(error.contains("gemm") && error.contains("chunk"), "{error}");
    let error = build(&["gdnscan=1"], 1).expect_err("no layer has a state");
    assert_eq!(
        error,
        "flag gdnscan cannot be used with smollm2-135m: a prompt dispatches no form that it \
         selects, in q4f16_1 weights and f16 activations; it selects gdn_recur"
    );
    let plan = build(&["gemm=1"], 41).expect("a plan");
    let roles = plan.totals().by_role;
    assert_eq!(roles.get("silu_mul"), Some(&30), "a layer's feed-forward");
    assert_eq!(roles.get("fused_ffn"), None, "in two dispatches");
    let four = build(&[], 4).expect("a plan").variants();
    let ids: Vec<String> = four.iter().map(Variant::id).collect();
    let m4 = "int4_matmul_batched_m4".to_owned();
    assert!(ids.contains(&m4), "four tokens: {ids:?}");
}

#[test]
fn rows_fold_into_z_past_the_limit() {
    assert_eq!(fold(65_535, 65_535), [65_535, 1, 1], "at the limit");
    assert_eq!(fold(65_536, 65_535), [32_768, 1, 2], "past it");
    assert_eq!(fold(151_936, 65_535), [50_646, 1, 3], "a large vocabulary");
}

#[test]
fn a_matrix_that_one_binding_cannot_hold_is_bound_in_parts() {
    let spec = models::find("qwen3-4b").expect("registered");
    let whole = Features::PUBLISHED;
    let small = Features {
        max_storage_binding_bytes: 128 << 20,
        ..whole
    };
    let plan = |features: &Features| {
        let settings = Settings::resolve(features, &flag::Choices::new()).expect("no conflict");
        Plan::build(&spec, &settings, features, Phase::Decode).expect("a plan")
    };
    let (whole, small) = (plan(&whole), plan(&small));
    assert!(
        whole.dispatches.iter().all(|d| d.rows().is_none()),
        "nothing is cut where it fits"
    );
    // 151,936 rows of 1,280 bytes are 185 MiB.
    assert_eq!(
        small.dispatches_per_token(),
        whole.dispatches_per_token() + 2,
        "embedding and head in two parts each"
    );
    assert_eq!(
        small.totals().bytes_per_token,
        whole.totals().bytes_per_token,
        "the same bytes"
    );
    for site in ["embed", "lm_head"] {
        let parts: Vec<_> = small
            .dispatches
            .iter()
            .filter(|d| d.label.starts_with(site))
            .map(|d| d.rows().expect("a part"))
            .collect();
        let mut next = 0;
        for part in &parts {
            assert_eq!(part.first, next, "{site}: rows one after the other");
            assert!(part.first.is_multiple_of(128), "{site}: outputs aligned");
            assert!(part.count * 1280 <= 128 << 20, "{site}: it fits");
            next += part.count;
        }
        assert_eq!(next, 151_936, "{site}: every row");
    }
}

/// WebGPU refuses a buffer that a dispatch both reads and writes, or writes twice;
/// drivers that do not have been seen to compute garbage.
#[test]
fn no_dispatch_reads_and_writes_one_buffer() {
    let cpu = Features {
        cpu: true,
        ..Features::PUBLISHED
    };
    let mut dispatches = 0;
    for spec in models::registry() {
        for features in [Features::PUBLISHED, cpu] {
            for choice in ["splitk=0", "splitk=8", "fuseqk=0", "fuseprologue=1"] {
                let chosen = chosen(&[choice]);
                let settings = Settings::resolve(&features, &chosen).expect("no conflict");
                let prompt = |tokens| Phase::Prefill { tokens, head: true };
                for phase in [Phase::Decode, prompt(1), prompt(64)] {
                    // Models without a plan have nothing to check.
                    let Ok(plan) = Plan::build(&spec, &settings, &features, phase) else {
                        continue;
                    };
                    for dispatch in plan.dispatches {
                        require_apart(&dispatch);
                        dispatches += 1;
                    }
                }
            }
        }
    }
    assert!(dispatches > 1000, "{dispatches} dispatches");
}

fn require_apart(dispatch: &Dispatch) {
    let bindings = dispatch.variant.storage_bindings();
    let bound: Vec<_> = bindings.zip(&dispatch.buffers).collect();
    for (at, (binding, buffer)) in bound.iter().enumerate() {
        for (other, same) in &bound[at + 1..] {
            let written = [binding.access, other.access].contains(&Access::ReadWrite);
            assert!(
                !(written && buffer == same),
                "{}: {} and {} are {buffer:?}",
                dispatch.label,
                binding.name,
                other.name
            );
        }
    }
}

/// Dispatches of a prompt's chunk in the published form, the feed-forward layer in two.
#[test]
fn a_chunk_of_a_hybrid_has_the_published_dispatches() {
    let settings = |choice: &str| {
        let chosen = chosen(&[choice]);
        Settings::resolve(&Features::PUBLISHED, &chosen).expect("no conflict")
    };
    let phase = Phase::Prefill {
        tokens: 33,
        head: false,
    };
    let spec = registered("qwen35-4b");
    let plan = Plan::build(&spec, &settings("gemm=1"), &Features::PUBLISHED, phase);
    assert_eq!(plan.expect("a plan").dispatches_per_token(), 394, "spec.md");
}

/// A stack of experts that one binding cannot hold is bound by whole experts.
#[test]
fn a_stack_of_experts_is_bound_in_parts() {
    let spec = registered("qwen36-35b-a3b");
    let most = 128 << 20;
    let small = Features {
        max_storage_binding_bytes: most,
        ..Features::PUBLISHED
    };
    let settings = Settings::resolve(&small, &flag::Choices::new()).expect("no conflict");
    let plan = Plan::build(&spec, &settings, &small, Phase::Decode).expect("a plan");
    for site in ["expert_gate", "expert_up", "expert_down"] {
        let label = format!("layers.3.{site}");
        let parts = plan
            .dispatches
            .iter()
            .filter(|d| d.label.starts_with(&label));
        let parts: Vec<_> = parts
            .map(|d| (d.rows().expect("a part"), &d.uniform))
            .collect();
        assert_eq!(parts.len(), 2, "{site}: 257 experts of 512 KiB");
        let mut next = 0;
        for (rows, uniform) in parts {
            let of_expert = uniform[2] as usize;
            assert_eq!(rows.first, next * of_expert, "{site}: one after the other");
            assert_eq!(uniform[9] as usize, next, "{site}: the first expert");
            next += uniform[10] as usize;
            assert_eq!(
                rows.count,
                uniform[10] as usize * of_expert,
                "{site}: whole ones"
            );
            let bytes = spec.format.words_per_row(2048 * 512 / of_expert) * 4 * rows.count;
            assert!(bytes as u64 <= most, "{site}: it fits");
        }
        assert_eq!(next, 257, "{site}: every expert");
    }
}
