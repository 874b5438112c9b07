//! Hybrids and experts on an adapter: every role within its derived bound, the state
//! that a chunk leaves, and the state that a prompt goes back to.

mod support;

use harness::{
    check,
    engine::{Arm, Engine, every},
    model,
};
use kernels::{
    Elem, ModelSpec,
    models::{self, Experts, GatedDeltaNet, Mixer},
};
use reference::{Checkpoint, folder, synth};
use support::{adapter, settings};

/// Four seeded layers with heads of few elements.
fn synthetic(model: &str) -> Checkpoint {
    let whole = models::find(model).expect("registered");
    let spec = ModelSpec {
        hidden_size: 256,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 64,
        rotary_dim: 32,
        intermediate_size: 128,
        vocab_size: 300,
        max_pages: 16,
        delta_net: whole.delta_net.map(|net| GatedDeltaNet {
            linear_num_key_heads: 2,
            linear_num_value_heads: 4,
            linear_key_head_dim: 64,
            linear_value_head_dim: 32,
            ..net
        }),
        experts: whole.experts.map(|experts| Experts {
            num_experts: 12,
            num_experts_per_tok: 3,
            ..experts
        }),
        ..whole
    };
    synth::checkpoint(&spec, 5).expect("synthetic weights")
}

fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens as u32)
        .map(|i| (i * 37 + i * i * 11) % 300)
        .collect()
}

#[test]
fn every_role_is_within_its_derived_bound() {
    let Some(gpu) = adapter("every_role_is_within_its_derived_bound") else {
        return;
    };
    for (model, choices) in [
        (
            "qwen35-4b",
            &[&[][..], &["sg=1"], &["elem=f32", "gdnscan=1"], &["kv8=1"]][..],
        ),
        (
            "qwen36-35b-a3b",
            &[&[], &["sg=1", "elem=f32"], &["chunk=0", "rowwise=0"]],
        ),
        ("qwen3-30b-a3b", &[&[], &["rowwise=0", "elem=f32"]]),
    ] {
        let weights = synthetic(model);
        for choices in choices {
            let mut engine = Engine::new(&gpu, &weights, 128, None).expect("engine");
            let arm = engine.arm(&settings(&gpu, choices)).expect("arm");
            // A whole chunk, and a second that is short.
            let prompt = prompt(69);
            let checks = check::model(&engine, &arm, &prompt, 3).expect("runs");
            check::require_passed(&checks, weights.spec())
                .unwrap_or_else(|error| panic!("{model} {choices:?}: {error:#}"));
        }
    }
}

/// Real routers come near ties: there the reference takes the experts of the GPU, and says
/// what it thinks of them.
#[test]
fn experts_near_a_tie_are_those_of_the_gpu() {
    let test = "experts_near_a_tie_are_those_of_the_gpu";
    let Some(gpu) = adapter(test) else {
        return;
    };
    for name in ["qwen36-moe-tiny", "qwen36-moe-q3-tiny"] {
        let Some(dir) = support::golden(test, name) else {
            continue;
        };
        let weights = folder::read(&dir, &|_, _| {}).expect("the golden model loads");
        let prompt = model::prompt(weights.spec(), None, model::DEFAULT_SEED).expect("a prompt");
        let settings = settings(&gpu, &[]);
        let mut engine = Engine::new(&gpu, &weights, 80, None).expect("engine");
        let arm = engine.arm(&settings).expect("arm");
        let expected = check::Expectation::new(&weights, &prompt.ids, check::STEPS, &settings);
        let expected = expected.expect("the reference runs");
        let greedy = check::greedy(&engine, &arm, &expected).expect("runs");
        assert_eq!(
            greedy.checks[0].stage, "experts",
            "{name}: the choice is judged"
        );
        let tokens = prompt.ids.len() + check::STEPS;
        let layers = weights.spec().num_hidden_layers;
        assert_eq!(
            greedy.checks[0].elements,
            (layers * tokens) as u64,
            "{name}"
        );
        check::require_passed(&greedy.checks, weights.spec()).expect(name);
    }
}

/// Ring and state of every layer that has them.
fn remembered(engine: &Engine<'_>) -> Vec<[Vec<f32>; 2]> {
    let spec = engine.weights.spec();
    let layers = 0..spec.num_hidden_layers;
    let layers = layers.filter(|&layer| spec.mixer(layer) == Mixer::DeltaNet);
    let read = |layer| engine.memory.read_recurrent(engine.gpu, layer, Elem::F16);
    layers.map(|layer| read(layer).expect("read")).collect()
}

fn fed(engine: &Engine<'_>, arm: &Arm, prompt: &[u32]) -> (Vec<[Vec<f32>; 2]>, Vec<f64>) {
    engine.prefill_whole(&arm.prefill, prompt).expect("prefill");
    let logits = engine.logits(&arm.decode.plan).expect("logits");
    (remembered(engine), logits)
}

#[test]
fn a_chunk_leaves_the_state_that_its_tokens_leave() {
    let Some(gpu) = adapter("a_chunk_leaves_the_state_that_its_tokens_leave") else {
        return;
    };
    for model in ["qwen35-4b", "qwen36-35b-a3b"] {
        let weights = synthetic(model);
        let mut engine = Engine::new(&gpu, &weights, 128, None).expect("engine");
        let [chunks, short, steps] = ["chunk=64", "chunk=3", "chunk=0"]
            .map(|choice| engine.arm(&settings(&gpu, &[choice])).expect("arm"));
        let prompt = prompt(70);
        let (state, logits) = fed(&engine, &steps, &prompt);
        for (name, arm) in [("chunk=64", &chunks), ("chunk=3", &short)] {
            let (left, found) = fed(&engine, arm, &prompt);
            assert!(left == state, "{model} {name}: another state");
            assert!(found == logits, "{model} {name}: other logits");
        }
    }
}

#[test]
fn a_prompt_goes_back_to_the_state_that_it_shares() {
    let Some(gpu) = adapter("a_prompt_goes_back_to_the_state_that_it_shares") else {
        return;
    };
    let weights = synthetic("qwen35-4b");
    let mut engine = Engine::new(&gpu, &weights, 256, None).expect("engine");
    let arm = engine.arm(&settings(&gpu, &[])).expect("arm");
    let first = prompt(90);
    engine.prefill_whole(&arm.prefill, &first).expect("prefill");
    engine.decode(&arm.decode, first.len(), 5).expect("a reply");
    let reply = engine.generated(first.len() - 1, 5).expect("logged");

    // The whole reply, a part of it in other tokens, the prompt again, a part of it; a
    // chunk of four has a form of its own, whose sums have another order.
    let longer = |parts: &[&[u32]]| parts.concat();
    for (name, again, reused) in [
        ("the reply", longer(&[&first, &reply, &[7, 8, 9]]), 95),
        (
            "another reply",
            longer(&[&first, &reply[..2], &[4, 5, 6]]),
            90,
        ),
        ("the same prompt", first.clone(), 64),
        ("a part of it", longer(&[&first[..70], &[1, 2, 3]]), 64),
        ("its start", longer(&[&first[..60], &[1, 2, 3]]), 0),
    ] {
        // Each time from the first prompt and its reply.
        engine.prefill_whole(&arm.prefill, &first).expect("prefill");
        engine.decode(&arm.decode, first.len(), 5).expect("a reply");
        let done = engine.prefill(&arm.prefill, &again).expect("prefill");
        assert_eq!(done.reused, reused, "{name}: reused");
        assert_eq!(done.tokens, again.len() - reused, "{name}: run");
        let (state, logits) = (
            remembered(&engine),
            engine.logits(&arm.decode.plan).expect("logits"),
        );
        let (fresh, expected) = fed(&engine, &arm, &again);
        assert!(state == fresh, "{name}: another state");
        assert!(logits == expected, "{name}: other logits");
    }
}

#[test]
fn a_program_on_the_state_of_other_tokens_is_refused() {
    let Some(gpu) = adapter("a_program_on_the_state_of_other_tokens_is_refused") else {
        return;
    };
    let weights = synthetic("qwen35-4b");
    let mut engine = Engine::new(&gpu, &weights, 128, None).expect("engine");
    let arm = engine.arm(&settings(&gpu, &[])).expect("arm");
    let prompt = prompt(20);
    engine
        .prefill_whole(&arm.prefill, &prompt)
        .expect("prefill");
    // Off by one, as a checkpoint may be.
    for position in [19, 21] {
        let error = engine
            .decode(&arm.decode, position, 1)
            .expect_err("another position");
        assert!(
            error.to_string().contains("on the state of another"),
            "{error:#}"
        );
    }
    let mut visited = 0;
    engine
        .run_captured(&arm.decode, 20, every, |_| {
            visited += 1;
            Ok(())
        })
        .expect("the next");
    assert_eq!(visited, arm.decode.plan.dispatches.len(), "every dispatch");
    engine.memory.snapshot(&gpu).expect("copied");
    engine.decode(&arm.decode, 21, 2).expect("goes on");
    engine.memory.restore(&gpu).expect("copied back");
    engine
        .decode(&arm.decode, 21, 2)
        .expect("from the snapshot");
}
