//! The kernels on an adapter against the reference: roles one by one, logits,
//! greedy tokens, and honesty about the page table. Without an adapter they are
//! listed as unrun, and in CI that is a failure.

mod support;

use anyhow::Result;
use harness::{
    bench::{
        self,
        kernels::{self as kernel_times, Filter},
    },
    check,
    device::Gpu,
    engine::{Captured, Engine, Program, Turn, every},
    roof,
};
use kernels::{
    Elem, ModelSpec, QuantFormat, Role, Tensor, Variant,
    kv::Side,
    models::{self, Family},
    variants::Reduce,
};
use reference::{
    Checkpoint, Expected,
    bounds::{self, Store, Trig},
    mlc,
    numerics::{decode, widen},
    roles::{
        kv_append, qk_norm,
        qk_norm_rope_append::{self, HeadNorm},
        qkv_fused::{self, QkvForm, QkvShape},
        rope,
    },
    synth,
};
use std::{collections::BTreeSet, path::Path};
use support::{adapter, settings};

fn llama_tiny() -> Checkpoint {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reference/tests/golden/llama-tiny");
    mlc::read(&dir, &|_, _| {}).expect("the committed golden model loads")
}

/// Two seeded layers of the Qwen3 family, with queries wider than the residual.
fn qwen3_synthetic() -> Checkpoint {
    let spec = ModelSpec {
        hidden_size: 256,
        num_hidden_layers: 2,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        intermediate_size: 320,
        vocab_size: 1003,
        max_pages: 8,
        ..models::find("qwen3-4b").expect("registered")
    };
    assert_eq!(spec.family, Family::Qwen3, "family");
    assert!(spec.q_dim() > spec.hidden_size, "queries");
    synth::checkpoint(&spec, 1).expect("synthetic weights")
}

/// Golden logits of prompt `p2` and its greedy tokens, made by another
/// implementation.
#[test]
fn llama_tiny_agrees_with_the_golden_logits() {
    let Some(gpu) = adapter("llama_tiny_agrees_with_the_golden_logits") else {
        return;
    };
    let weights = llama_tiny();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reference/tests/golden/llama-tiny");
    let golden = reference::golden::Golden::open(dir.join("expected.safetensors")).expect("golden");
    for prompt in ["p0", "p1", "p2"] {
        let ids = golden.i32(&format!("{prompt}.input_ids")).expect("ids");
        let ids: Vec<u32> = ids.data.iter().map(|&id| id.unsigned_abs()).collect();
        let logits = golden.f32(&format!("{prompt}.logits")).expect("logits");
        let vocab = weights.spec().vocab_size;
        let last: Vec<f64> = logits.data[(ids.len() - 1) * vocab..]
            .iter()
            .map(|&x| f64::from(x))
            .collect();
        let mut engine = Engine::new(&gpu, &weights, 64, None).expect("engine");
        for (choice, elem) in [
            ("elem=f16", Elem::F16),
            ("elem=f32", Elem::F32),
            ("sg=1", Elem::F16),
            ("logits=f32", Elem::F16),
        ] {
            let arm = engine.arm(&settings(&gpu, &[choice])).expect("arm");
            engine.prefill_whole(&arm.prefill, &ids).expect("prefill");
            let found = engine.logits(&arm.decode.plan).expect("logits");
            let check = check::logits(prompt, &found, &last, check::Noise::default(), elem);
            assert!(check.passed, "{prompt} {choice}: {:?}", check.note);
        }
    }
}

#[test]
fn every_role_is_within_its_derived_bound_whatever_the_page_order() {
    let Some(gpu) = adapter("every_role_is_within_its_derived_bound_whatever_the_page_order")
    else {
        return;
    };
    let llama: [&[&str]; 12] = [
        &["fuseprologue=1", "splitk=0"],
        &["fuseprologue=1", "rowwise=0", "elem=f32"],
        &["fuseprologue=1", "sg=1", "kv8=1"],
        &["sg=1", "splitk=4"],
        &["sg=1", "matmul=tiled8", "qkvtile=1", "elem=f32", "splitk=0"],
        &["splitk=0"],
        &["rowwise=0", "splitk=2"],
        &["rowwise=1", "logits=f32", "splitk=16"],
        &["elem=f32", "rowwise=0"],
        &["elem=f32", "kv8=1"],
        &["rowwise=0", "kv8=1"],
        &["rowwise=1", "kv8=1"],
    ];
    roles_within_bounds(&gpu, &llama_tiny(), &llama);
    let qwen3: [&[&str]; 9] = [
        &["fuseprologue=1", "rowwise=0"],
        &["sg=1"],
        &["sg=1", "matmul=scalar", "logits=f32", "splitk=0"],
        &["splitk=0"],
        &["fuseqk=0"],
        &["rowwise=0", "splitk=2"],
        &["rowwise=1", "fuseqk=0", "splitk=16"],
        &["elem=f32", "rowwise=0", "fuseqk=0"],
        &["kv8=1"],
    ];
    roles_within_bounds(&gpu, &qwen3_synthetic(), &qwen3);
}

fn roles_within_bounds(gpu: &Gpu, weights: &Checkpoint, all: &[&[&str]]) {
    let prompt: Vec<u32> = (0..37).map(|i| i * 23 % 1003).collect();
    let mut logits = Vec::new();
    for table in [None, Some(vec![2, 0, 3, 1])] {
        for &choices in all {
            let mut engine = Engine::new(gpu, weights, 64, table.clone()).expect("engine");
            let arm = engine.arm(&settings(gpu, choices)).expect("arm");
            engine
                .prefill_whole(&arm.prefill, &prompt)
                .expect("prefill");
            let last = prompt.len() - 1;
            let chunk = arm.prefill.last_chunk(prompt.len());
            let program = engine.prefill_program(&arm.prefill, chunk.len(), true);
            let program = program.expect("a program");
            for (program, fed) in [(&*program, chunk), (&arm.decode, last..last + 1)] {
                engine.set_tokens(&prompt[fed.clone()]);
                for check in check::roles(&engine, program, fed.start, every).expect("roles") {
                    assert!(
                        check.passed,
                        "{choices:?}: {}: {:?}",
                        check.stage, check.note
                    );
                }
            }
            logits.push((choices, engine.logits(&arm.decode.plan).expect("logits")));
        }
    }
    let (identity, shuffled) = logits.split_at(all.len());
    assert_eq!(identity, shuffled, "page order changes nothing");
}

#[test]
fn a_layer_of_qwen3_4b_is_within_its_bounds() {
    let Some(gpu) = adapter("a_layer_of_qwen3_4b_is_within_its_bounds") else {
        return;
    };
    let all: [&[&str]; 3] = [
        &["rowwise=1", "splitk=0"],
        &["vec4=1", "vec4h=1", "fuseqk=0"],
        &["sg=1", "vec4=1"],
    ];
    layer_within_bounds(&gpu, "qwen3-4b", &all);
}

#[test]
fn a_layer_of_phi3_mini_is_within_its_bounds() {
    let Some(gpu) = adapter("a_layer_of_phi3_mini_is_within_its_bounds") else {
        return;
    };
    let all: [&[&str]; 3] = [
        &["rowwise=1"],
        &["rowwise=1", "fuseprologue=1", "kv8=1"],
        &["sg=1", "vec4=1", "vec4qkv=1", "fuseprologue=1"],
    ];
    layer_within_bounds(&gpu, "phi3-mini", &all);
}

/// One layer of a model as large as it is, with a small vocabulary.
fn layer_within_bounds(gpu: &Gpu, model: &str, all: &[&[&str]]) {
    let spec = ModelSpec {
        num_hidden_layers: 1,
        vocab_size: 1003,
        ..models::find(model).expect("registered")
    };
    let weights = synth::checkpoint(&spec, 1).expect("synthetic weights");
    let mut engine = Engine::new(gpu, &weights, 32, Some(vec![1, 0])).expect("engine");
    for choices in all {
        let arm = engine.arm(&settings(gpu, choices)).expect("arm");
        engine
            .prefill_whole(&arm.prefill, &[7, 7, 7])
            .expect("prefill");
        let program = engine.prefill_program(&arm.prefill, 2, true);
        for (program, tokens) in [(&*program.expect("a program"), 2), (&arm.decode, 1)] {
            engine.set_tokens(&[501, 77][..tokens]);
            for check in check::roles(&engine, program, 3, every).expect("roles") {
                let stage = &check.stage;
                assert!(check.passed, "{choices:?}: {stage}: {:?}", check.note);
            }
        }
    }
}

/// One small layer in each format of weights, all of whose matrices are multiplied by
/// subgroup forms.
#[test]
fn subgroup_forms_of_every_format_are_within_their_bounds() {
    let Some(gpu) = adapter("subgroup_forms_of_every_format_are_within_their_bounds") else {
        return;
    };
    for &format in QuantFormat::ALL {
        let spec = ModelSpec {
            hidden_size: 1024,
            num_hidden_layers: 1,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            intermediate_size: 512,
            vocab_size: 203,
            max_pages: 4,
            format,
            ..models::find("smollm2-135m").expect("registered")
        };
        let weights = synth::checkpoint(&spec, 1).expect("synthetic weights");
        let mut engine = Engine::new(&gpu, &weights, 32, Some(vec![1, 0])).expect("engine");
        for choices in [
            &["sg=1", "splitk=0"][..],
            &["sg=1", "matmul=tiled8", "qkvtile=1", "logits=f32"],
            &["sg=1", "matmul=scalar", "kv8=1"],
        ] {
            let arm = engine.arm(&settings(&gpu, choices)).expect("arm");
            for variant in arm.decode.plan.variants() {
                let multiplies = variant.format.is_some() && variant.role != Role::Embedding;
                if multiplies {
                    assert_eq!(variant.format, Some(format), "{choices:?}: {variant}");
                    assert_eq!(variant.reduce, Reduce::Subgroup, "{choices:?}: {variant}");
                }
            }
            engine
                .prefill_whole(&arm.prefill, &[7, 7, 7])
                .expect("prefill");
            engine.set_tokens(&[101]);
            for check in check::roles(&engine, &arm.decode, 3, every).expect("roles") {
                let stage = &check.stage;
                let note = &check.note;
                assert!(check.passed, "{format} {choices:?}: {stage}: {note:?}");
            }
        }
    }
}

/// What a time would be given for is done: no time is asserted.
#[test]
fn a_bench_repeats_its_tokens_and_the_roof_reads_every_word() {
    let Some(gpu) = adapter("a_bench_repeats_its_tokens_and_the_roof_reads_every_word") else {
        return;
    };
    let forms = roof::verify(&gpu).expect("the kernels count what they read");
    // Five numbers of loads in two orders.
    assert_eq!(forms.len(), 10, "{forms:?}");
    let weights = llama_tiny();
    let mut engine = Engine::new(&gpu, &weights, 64, None).expect("engine");
    for (choice, bytes) in [("kv8=0", 2), ("kv8=1", 1)] {
        let arm = engine.arm(&settings(&gpu, &[choice])).expect("arm");
        let mut repetitions = 0;
        let timed = bench::tokens(&engine, &arm, &[1, 2, 3], 5, 4, |index, _| {
            repetitions = index + 1;
            Ok(())
        });
        let timed = timed.expect("the same tokens each time");
        assert_eq!((timed.repetitions.len(), repetitions), (4, 4), "{timed:?}");
        let plan = &arm.decode.plan;
        assert_eq!(timed.dispatches_per_token, plan.dispatches_per_token());
        // Positions 4 to 8, six on average: keys and values of two layers.
        let spec = weights.spec();
        let values = (6 * 2 * 2 * spec.kv_dim()) as u64;
        let scales = 6 * 2 * 2 * spec.num_key_value_heads as u64 * 2 * (2 - bytes);
        assert_eq!(
            timed.kv_bytes_per_token,
            values * bytes + scales,
            "{choice}"
        );
        let flops = (6 * 2 * 2 * 2 * spec.q_dim()) as u64;
        assert_eq!(timed.kv_flops_per_token, flops, "{choice}");
    }
}

/// What `bench --kernels` times, run without a clock.
#[test]
fn a_rotation_writes_what_the_plan_writes() {
    let Some(gpu) = adapter("a_rotation_writes_what_the_plan_writes") else {
        return;
    };
    let weights = llama_tiny();
    let mut engine = Engine::new(&gpu, &weights, 64, None).expect("engine");
    for choice in ["rowwise=1", "rowwise=0", "kv8=1"] {
        let arm = engine.arm(&settings(&gpu, &[choice])).expect("arm");
        engine
            .prefill_whole(&arm.prefill, &[1, 2, 3])
            .expect("prefill");
        engine.decode(&arm.decode, 3, 2).expect("decode");
        let chunk = engine
            .prefill_program(&arm.prefill, 3, true)
            .expect("a chunk");
        engine.set_tokens(&[1, 2, 3]);
        engine.run(&chunk, 0).expect("it runs");
        let sites_of = |program: &Program| {
            let sites = kernel_times::sites(weights.spec(), &program.plan, &Filter::default());
            let sites = sites.expect("sites");
            let dispatches: usize = sites.iter().map(|site| site.dispatches_per_token).sum();
            let planned = program.plan.dispatches_per_token() as usize;
            assert_eq!(dispatches, planned, "every dispatch has a site");
            sites
        };
        for (program, site) in [&*chunk, &arm.decode].into_iter().flat_map(|program| {
            sites_of(program)
                .into_iter()
                .map(move |site| (program, site))
        }) {
            // More sets than the two layers have, one output for all, and one set.
            for (sets, one_output) in [(3, false), (3, true), (0, false)] {
                let turn = Turn {
                    weight_bytes: sets * site.weight_bytes,
                    one_output,
                };
                let rotation = engine.rotation(&arm, program, site.indices(), turn);
                let rotation = rotation.expect("bound");
                let expected = if site.weight_bytes == 0 {
                    1
                } else {
                    sets.max(1)
                };
                assert_eq!(rotation.weights as u64, expected, "{site:?}");
                let same = engine.require_same(program, site.indices(), &rotation);
                same.unwrap_or_else(|e| panic!("{choice}: {e:#}"));
                let left = engine.require_left(program, site.indices(), &rotation);
                left.unwrap_or_else(|e| panic!("{choice}: {e:#}"));
            }
        }
        // Another site's weights give something else.
        let sites = sites_of(&arm.decode);
        let of = |name: &str| sites.iter().find(|site| site.site == name).expect(name);
        let turn = Turn {
            weight_bytes: 0,
            one_output: false,
        };
        let (o, head) = (of("o").indices(), of("lm_head").indices());
        let rotation = engine
            .rotation(&arm, &arm.decode, &o[..1], turn)
            .expect("bound");
        engine
            .require_same(&arm.decode, &o[1..], &rotation)
            .expect_err("the second layer is not the first");
        engine
            .require_left(&arm.decode, &o[1..], &rotation)
            .expect_err("nor is what was left");
        let rotation = engine
            .rotation(&arm, &arm.decode, head, turn)
            .expect("bound");
        engine
            .require_same(&arm.decode, head, &rotation)
            .expect("the head");
    }
}

#[test]
fn the_recorder_records_the_plan() {
    let Some(gpu) = adapter("the_recorder_records_the_plan") else {
        return;
    };
    let (llama, qwen3) = (llama_tiny(), qwen3_synthetic());
    for (weights, choices, expected) in [
        (&llama, &["splitk=0"][..], 2 + 2 * 7 + 2),
        (&llama, &["splitk=8"], 2 + 2 * 8 + 2),
        (&qwen3, &["splitk=0"], 2 + 2 * 8 + 2),
        (&qwen3, &[], 2 + 2 * 9 + 2),
        (&qwen3, &["splitk=0", "fuseqk=0"], 2 + 2 * 10 + 2),
        (&llama, &["kv8=1"], 2 + 2 * 8 + 2),
        (&llama, &["splitk=0", "fuseprologue=1"], 2 + 2 * 6 + 2),
        (&qwen3, &["kv8=1"], 2 + 2 * 10 + 2),
    ] {
        let mut engine = Engine::new(&gpu, weights, 64, None).expect("engine");
        let arm = engine.arm(&settings(&gpu, choices)).expect("arm");
        engine
            .prefill_whole(&arm.prefill, &[1, 2, 3])
            .expect("prefill");
        let decoded = engine.decode(&arm.decode, 3, 5).expect("decode");
        assert_eq!(decoded.dispatches, 5 * expected, "{choices:?}: two layers");
        assert_eq!(
            arm.decode.plan.dispatches.len() as u64,
            expected,
            "the plan"
        );
    }
}

#[test]
fn greedy_tokens_agree_and_a_wrong_reference_is_noticed() {
    let Some(gpu) = adapter("greedy_tokens_agree_and_a_wrong_reference_is_noticed") else {
        return;
    };
    let weights = llama_tiny();
    let prompt = [5, 900, 77, 12];
    let mut engine = Engine::new(&gpu, &weights, 64, None).expect("engine");
    let arm = engine.arm(&settings(&gpu, &[])).expect("arm");
    let expected = |prompt| {
        check::Expectation::new(&weights, prompt, 12, &settings(&gpu, &[])).expect("reference")
    };
    let right = check::greedy(&engine, &arm, &expected(&prompt)).expect("greedy");
    for check in right.checks {
        assert!(check.passed, "{}: {:?}", check.stage, check.note);
    }
    // What the GPU is fed and what the reference was fed differ.
    let mut other = expected(&[5, 900, 77, 13]);
    other.prompt = prompt.to_vec();
    let wrong = check::greedy(&engine, &arm, &other).expect("greedy");
    assert!(
        wrong.checks.iter().any(|c| !c.passed),
        "another prompt's reference must not pass"
    );
}

/// With an int8 cache, against the reference with one; against the reference with
/// a plain cache the logits are further off.
#[test]
fn greedy_tokens_agree_over_an_int8_cache() {
    let Some(gpu) = adapter("greedy_tokens_agree_over_an_int8_cache") else {
        return;
    };
    let weights = llama_tiny();
    let prompt: Vec<u32> = (0..40).map(|i| i * 71 % 1003).collect();
    let mut engine = Engine::new(&gpu, &weights, 64, Some(vec![2, 0, 3, 1])).expect("engine");
    let arm = engine.arm(&settings(&gpu, &["kv8=1"])).expect("arm");
    let worst = |choice: &str| {
        let kind = settings(&gpu, &[choice]);
        let expected = check::Expectation::new(&weights, &prompt, 12, &kind).expect("reference");
        let greedy = check::greedy(&engine, &arm, &expected).expect("greedy");
        // Later rows are of whatever tokens a reference chose.
        (greedy.checks[0].worst_rel, greedy.checks)
    };
    let (int8, checks) = worst("kv8=1");
    for check in checks {
        assert!(check.passed, "{}: {:?}", check.stage, check.note);
    }
    let (plain, _) = worst("kv8=0");
    assert!(
        plain > 2.0 * int8,
        "relative rms {plain:.2e} from a plain cache, {int8:.2e} from an int8 one"
    );
}

/// A snapshot holds the caches of both formats, so that an arm restores its own.
#[test]
fn a_snapshot_restores_the_cache_of_each_arm() {
    let Some(gpu) = adapter("a_snapshot_restores_the_cache_of_each_arm") else {
        return;
    };
    let weights = llama_tiny();
    let mut engine = Engine::new(&gpu, &weights, 32, None).expect("engine");
    let plain = engine.arm(&settings(&gpu, &["splitk=0"])).expect("arm");
    let int8 = engine.arm(&settings(&gpu, &["kv8=1"])).expect("arm");
    let prompt = [5, 900, 77];
    let mut first = Vec::new();
    for arm in [&plain, &int8] {
        engine
            .prefill_whole(&arm.prefill, &prompt)
            .expect("prefill");
        first.push(engine.token().expect("token"));
    }
    engine.memory.snapshot(engine.gpu).expect("snapshot");
    let continued = |index: usize| {
        engine.memory.restore(engine.gpu).expect("restore");
        engine.set_token(first[index]);
        let program = [&plain.decode, &int8.decode][index];
        engine.decode(program, prompt.len(), 8).expect("decode");
        engine.logits(&program.plan).expect("logits")
    };
    let before = [continued(0), continued(1)];
    for arm in [&plain, &int8] {
        engine
            .prefill_whole(&arm.prefill, &[1, 2, 3, 4])
            .expect("another prompt");
    }
    assert_eq!(
        [continued(0), continued(1)],
        before,
        "as if nothing had been"
    );
    assert_ne!(before[0], before[1], "the caches differ");
}

/// What one chain stored at one position of one layer.
struct Entry {
    layer: usize,
    position: usize,
    /// The norm that was projected.
    x: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    /// What must be stored for `x`, and how far from it this chain may be.
    expected: [Expected; 2],
}

/// Feeds `tokens` through a program and gives what it stored, in order.
fn stored(engine: &Engine<'_>, program: &Program, tokens: &[u32]) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        engine.set_token(token);
        // The projection comes first, the append (or itself) stores.
        let mut projection = None;
        engine.run_captured(program, position, every, |captured| {
            let dispatch = captured.dispatch;
            let layer = dispatch
                .label
                .split('.')
                .nth(1)
                .and_then(|l| l.parse().ok());
            let is_qkv = dispatch.label.ends_with(".qkv");
            if let (true, Some(layer)) = (is_qkv, layer) {
                let x = captured.activations[&kernels::plan::Activation::Normed].clone();
                let expected = if engine.weights.spec().qk_norm() {
                    let qkv = &captured.activations[&kernels::plan::Activation::Qkv];
                    let variants = program.plan.variants();
                    expected_normed_kv(engine, &variants, layer, qkv, position)
                } else {
                    expected_kv(engine, &captured, layer, &x, position)
                };
                projection = Some((layer, x, expected));
            }
            let (Some([_, after]), true) = (
                &captured.kv,
                [Role::QkvFused, Role::QkNormRopeAppend, Role::KvAppend]
                    .contains(&dispatch.variant.role),
            ) else {
                return Ok(());
            };
            let spec = engine.weights.spec();
            let row = |side| -> Result<Vec<f64>> {
                let table = &engine.memory.page_table;
                let all = kv_append::gather(after, spec.kv_layout(), table, side, position + 1)?;
                Ok(widen(&all[position * spec.kv_dim()..]))
            };
            let (layer, x, expected) = projection.take().expect("projected before");
            entries.push(Entry {
                layer,
                position,
                x,
                k: row(Side::K)?,
                v: row(Side::V)?,
                expected,
            });
            Ok(())
        })?;
    }
    Ok(entries)
}

/// Keys and values of `x` with the limits of the chain that `captured` begins:
/// the fused one stores once, the other stores the projection too.
fn expected_kv(
    engine: &Engine<'_>,
    captured: &Captured<'_>,
    layer: usize,
    x: &[f64],
    position: usize,
) -> [Expected; 2] {
    let spec = engine.weights.spec();
    let w = engine.weights.matrix(Some(layer), Tensor::Qkv);
    let variant = captured.dispatch.variant;
    let sum = check::sum_form(variant, w.k);
    let (shape, table) = (QkvShape::of(spec), rope::Rope::of(spec));
    if variant.role == Role::QkvFused {
        let form = QkvForm {
            sum,
            trig: Trig::CONFORMANT,
            store: Store::F16,
        };
        let expected = qkv_fused::expected(w, x, shape, &table, position, form);
        return [expected.k, expected.v];
    }
    let errors = bounds::dot_errors(&w.matvec_abs(x), sum);
    let projected = Store::F16.expected(w.matvec(x), &errors);
    let y = shape.split(&projected.value);
    let limit = shape.split(&projected.limit);
    let trig = Trig::CONFORMANT;
    [
        rope::expected(&table, y.k, limit.k, position, trig, Store::F16),
        Expected {
            value: y.v.to_vec(),
            limit: limit.v.to_vec(),
        },
    ]
}

/// The same where heads are normalised, for a projection `qkv` as it is stored:
/// the fused chain stores once more, the other the norm and the rotation.
fn expected_normed_kv(
    engine: &Engine<'_>,
    variants: &BTreeSet<Variant>,
    layer: usize,
    qkv: &[f64],
    position: usize,
) -> [Expected; 2] {
    let spec = engine.weights.spec();
    let gamma = |tensor| decode(engine.weights.vector(Some(layer), tensor));
    let (q_gamma, k_gamma) = (gamma(Tensor::QNorm), gamma(Tensor::KNorm));
    let (shape, table) = (QkvShape::of(spec), rope::Rope::of(spec));
    let trig = Trig::CONFORMANT;
    let norm = variants
        .iter()
        .find(|v| [Role::QkNorm, Role::QkNormRopeAppend].contains(&v.role));
    let norm = *norm.expect("the plan normalises heads");
    let sum = check::head_form(norm, spec.head_dim);
    if norm.role == Role::QkNormRopeAppend {
        let norm = HeadNorm {
            q_gamma: &q_gamma,
            k_gamma: &k_gamma,
            eps: spec.rms_norm_eps,
        };
        let form = QkvForm {
            sum,
            trig,
            store: Store::F16,
        };
        let expected = qk_norm_rope_append::expected(qkv, shape, norm, &table, position, form);
        return [expected.k, expected.v];
    }
    let qkv = shape.split(qkv);
    let normed = qk_norm::expected(qkv.k, &k_gamma, spec.rms_norm_eps, sum, Store::F16);
    [
        rope::expected(
            &table,
            &normed.value,
            &normed.limit,
            position,
            trig,
            Store::F16,
        ),
        Expected {
            value: qkv.v.to_vec(),
            limit: vec![0.0; qkv.v.len()],
        },
    ]
}

/// Euclidean distance.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).powi(2))
        .sum::<f64>()
        .sqrt()
}

/// The chain of a prompt (`int4_matmul`, `qk_norm` where the model has it, `rope`,
/// `kv_append`) and the fused one
/// store the same keys and values, up to the sum of their limits and, from the
/// second layer on, to what the difference of their inputs makes.
#[test]
fn both_chains_store_the_same_keys_and_values() {
    let Some(gpu) = adapter("both_chains_store_the_same_keys_and_values") else {
        return;
    };
    for weights in [llama_tiny(), qwen3_synthetic()] {
        both_chains(&gpu, &weights);
    }
}

fn both_chains(gpu: &Gpu, weights: &Checkpoint) {
    // Across the edge of a page.
    let tokens: Vec<u32> = (0..19).map(|i| i * 71 % 1003).collect();
    for choices in [&["rowwise=0"][..], &["rowwise=1"]] {
        let mut engine = Engine::new(gpu, weights, 32, Some(vec![1, 0])).expect("engine");
        let arm = engine.arm(&settings(gpu, choices)).expect("arm");
        let program = engine.prefill_program(&arm.prefill, 1, false);
        let program = program.expect("a program");
        let unfused = stored(&engine, &program, &tokens).expect("the prompt's chain");
        let fused = stored(&engine, &arm.decode, &tokens).expect("the fused chain");
        let layers = weights.spec().num_hidden_layers;
        assert_eq!(unfused.len(), layers * tokens.len(), "every entry");
        assert_eq!(fused.len(), unfused.len(), "every entry");
        for (a, b) in unfused.iter().zip(&fused) {
            let at = format!("{choices:?}: layer {}, position {}", a.layer, a.position);
            assert_eq!((a.layer, a.position), (b.layer, b.position), "{at}");
            if a.layer == 0 {
                assert_eq!(a.x, b.x, "{at}: embedding and norm are the same kernels");
            }
            for (side, found, other) in [(0, &a.k, &b.k), (1, &a.v, &b.v)] {
                let (ours, theirs) = (&a.expected[side], &b.expected[side]);
                let limit = (0..found.len()).map(|i| {
                    let inputs = (ours.value[i] - theirs.value[i]).abs();
                    (other[i], ours.limit[i] + theirs.limit[i] + inputs)
                });
                let limits = Expected::from_pairs(limit);
                let worst = limits.worst(found).expect("elements");
                assert!(worst.used <= 1.0, "{at}, side {side}: {worst:?}");
                // The chains' inputs may not drift apart by more than f16 does.
                let relative = distance(found, other) / distance(other, &vec![0.0; other.len()]);
                assert!(relative <= 0.005, "{at}, side {side}: {relative:.2e} apart");
            }
        }
    }
}

/// Keys and values of every layer as they lie.
fn caches(engine: &Engine<'_>) -> Vec<Vec<u32>> {
    let layers = 0..engine.weights.spec().num_hidden_layers;
    let read = |layer| {
        engine
            .memory
            .read_kv(engine.gpu, layer, Elem::F16)
            .expect("pages")
    };
    let bits = |pages: Vec<f32>| pages.into_iter().map(f32::to_bits).collect();
    layers.map(read).map(bits).collect()
}

/// A chunk stores what its tokens store one by one, to the bit, where the matrices are
/// read in the same form: each sum has the same order. The bounds of the forms hold
/// where they differ, which the checks of the roles show.
#[test]
fn a_chunk_gives_the_bits_of_its_tokens() {
    let Some(gpu) = adapter("a_chunk_gives_the_bits_of_its_tokens") else {
        return;
    };
    for weights in [llama_tiny(), qwen3_synthetic()] {
        // Two chunks of 8, and one off the tile.
        let prompt: Vec<u32> = (0..21).map(|i| i * 71 % 1003).collect();
        for form in [
            &["rowwise=0", "sg=0", "vec4=0"][..],
            &["rowwise=1", "texture=0"],
            &["rowwise=1", "texture=1"],
        ] {
            let mut seen = Vec::new();
            for chunk in ["chunk=0", "chunk=8", "chunk=64"] {
                let choices = [form, &[chunk]].concat();
                let mut engine = Engine::new(&gpu, &weights, 32, Some(vec![1, 0])).expect("engine");
                let arm = engine.arm(&settings(&gpu, &choices)).expect("arm");
                let zeros = vec![0.0; engine.memory.layer_elements()];
                engine.memory.fill_kv(&gpu, &zeros).expect("filled");
                let done = engine.prefill_whole(&arm.prefill, &prompt);
                assert_eq!(done.expect("prefill").tokens, prompt.len(), "{choices:?}");
                let logits = engine.logits(&arm.decode.plan).expect("logits");
                seen.push((caches(&engine), logits, engine.token().expect("a token")));
            }
            assert!(seen[0] == seen[1], "{form:?}: chunks of 8 give other bits");
            assert!(seen[0] == seen[2], "{form:?}: one chunk gives other bits");
        }
    }
}

/// A prompt that begins as the cache runs only what is new, whatever the page order.
#[test]
fn a_prompt_reuses_what_the_cache_holds_of_it() {
    let Some(gpu) = adapter("a_prompt_reuses_what_the_cache_holds_of_it") else {
        return;
    };
    let weights = llama_tiny();
    let table = Some(vec![2, 0, 3, 1]);
    let mut engine = Engine::new(&gpu, &weights, 64, table).expect("engine");
    let on = engine.arm(&settings(&gpu, &["reuse=1"])).expect("arm");
    let off = engine.arm(&settings(&gpu, &["reuse=0"])).expect("arm");
    let first: Vec<u32> = (0..19).map(|i| i * 71 % 1003).collect();
    let work = |arm: &harness::engine::Arm, prompt: &[u32]| {
        let done = engine.prefill(&arm.prefill, prompt).expect("prefill");
        (done.reused, done.tokens)
    };
    assert_eq!(work(&on, &first), (0, 19), "the cache is empty");
    let whole = engine.logits(&on.decode.plan).expect("logits");
    assert_eq!(work(&on, &first), (18, 1), "the last token runs again");
    assert_eq!(
        engine.logits(&on.decode.plan).expect("logits"),
        whole,
        "to the bit"
    );
    let mut other = first.clone();
    other[11] = 5;
    assert_eq!(work(&on, &other), (11, 8), "from the first difference on");
    let found = engine.logits(&on.decode.plan).expect("logits");
    assert_eq!(work(&off, &other), (0, 19), "the flag is off");
    assert_eq!(
        engine.logits(&on.decode.plan).expect("logits"),
        found,
        "to the bit"
    );

    // A second turn: the prompt, the reply, and what is new.
    assert_eq!(work(&on, &first), (11, 8), "the other prompt's beginning");
    engine.decode(&on.decode, 19, 6).expect("decode");
    let reply = engine.generated(18, 7).expect("the reply");
    let second = [&first[..], &reply, &[3, 14, 15]].concat();
    assert_eq!(work(&on, &second), (25, 4), "its last token was not fed");
    let found = engine.logits(&on.decode.plan).expect("logits");
    let expected = check::Expectation::new(&weights, &second, 0, &settings(&gpu, &[]));
    let expected = expected.expect("reference");
    let check = check::logits(
        "second",
        &found,
        &expected.logits[0],
        expected.noise[0],
        Elem::F16,
    );
    assert!(check.passed, "{:?}", check.note);

    // What was overwritten or replaced is not reused.
    engine.set_token(7);
    engine.decode(&on.decode, 10, 1).expect("decode");
    assert_eq!(
        work(&on, &second),
        (10, 19),
        "position 10 has another token"
    );
    let zeros = vec![0.0; engine.memory.layer_elements()];
    engine.memory.fill_kv(&gpu, &zeros).expect("filled");
    assert_eq!(work(&on, &second), (0, 29), "other keys and values");
    engine.memory.forget();
    assert_eq!(work(&on, &second), (0, 29), "on demand");
    let int8 = engine.arm(&settings(&gpu, &["kv8=1"])).expect("arm");
    let done = engine.prefill(&int8.prefill, &second).expect("prefill");
    assert_eq!(done.reused, 0, "another cache");
}

/// Embedding and head in parts give the bits that they give whole, and each part is
/// within its bounds.
#[test]
fn a_head_in_parts_gives_the_same_logits() {
    let Some(mut gpu) = adapter("a_head_in_parts_gives_the_same_logits") else {
        return;
    };
    let spec = ModelSpec {
        num_hidden_layers: 1,
        vocab_size: 5000,
        ..models::find("smollm2-135m").expect("registered")
    };
    let weights = synth::checkpoint(&spec, 3).expect("synthetic weights");
    // Ids of the first part, the last, and both sides of a cut.
    let prompt = [4999, 0, 3071, 3072, 17];
    let whole = gpu.features.max_storage_binding_bytes;
    for form in [&["rowwise=0"][..], &["rowwise=1", "texture=0"]] {
        let mut seen = Vec::new();
        // 5,000 rows of 288 bytes are 1.44 MB, the largest other matrix 885 kB.
        for limit in [whole, 900_000] {
            gpu.features.max_storage_binding_bytes = limit;
            for chunk in ["chunk=0", "chunk=64"] {
                let choices = [form, &[chunk]].concat();
                let mut engine = Engine::new(&gpu, &weights, 32, None).expect("engine");
                let arm = engine.arm(&settings(&gpu, &choices)).expect("arm");
                let parts = arm.decode.plan.dispatches.iter();
                let parts = parts.filter(|d| d.rows().is_some()).count();
                assert_eq!(parts, if limit == whole { 0 } else { 4 }, "{limit}");
                engine
                    .prefill_whole(&arm.prefill, &prompt)
                    .expect("prefill");
                seen.push((
                    chunk,
                    engine.logits(&arm.decode.plan).expect("logits"),
                    engine.token().expect("a token"),
                ));
                engine.set_token(3071);
                for check in check::roles(&engine, &arm.decode, 5, every).expect("roles") {
                    assert!(check.passed, "{}: {:?}", check.stage, check.note);
                }
            }
        }
        let (whole, parts) = seen.split_at(2);
        assert!(whole == parts, "{form:?}: other logits from parts");
    }
}
