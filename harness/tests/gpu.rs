//! The kernels on an adapter against the reference: roles one by one, logits,
//! greedy tokens, and honesty about the page table. Without an adapter they are
//! listed as unrun, and in CI that is a failure.

mod support;

use harness::device::Gpu;
use harness::{check, engine::Engine};
use kernels::{Settings, flag};
use reference::{Checkpoint, mlc};
use std::path::Path;
use support::adapter;

fn llama_tiny() -> Checkpoint {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reference/tests/golden/llama-tiny");
    mlc::read(&dir, &|_, _| {}).expect("the committed golden model loads")
}

fn settings(gpu: &Gpu, choices: &[&str]) -> Settings {
    let mut chosen = flag::Choices::new();
    for choice in choices {
        flag::parse_choice(choice, &mut chosen).expect("a valid choice");
    }
    Settings::resolve(&gpu.features, &chosen).expect("no conflict")
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
        let arm = engine.arm(&settings(&gpu, &[])).expect("arm");
        engine.prefill(&arm, &ids).expect("prefill");
        let found = engine.logits().expect("logits");
        let check = check::logits(prompt, &found, &last);
        assert!(check.passed, "{prompt}: {:?}", check.note);
    }
}

#[test]
fn every_role_is_within_its_derived_bound_whatever_the_page_order() {
    let Some(gpu) = adapter("every_role_is_within_its_derived_bound_whatever_the_page_order")
    else {
        return;
    };
    let weights = llama_tiny();
    let prompt: Vec<u32> = (0..37).map(|i| i * 23 % 1003).collect();
    let mut logits = Vec::new();
    for table in [None, Some(vec![2, 0, 3, 1])] {
        for choices in [
            &["splitk=0"][..],
            &["splitk=8"],
            &["rowwise=0", "splitk=2"],
            &["rowwise=1", "splitk=16"],
        ] {
            let mut engine = Engine::new(&gpu, &weights, 64, table.clone()).expect("engine");
            let arm = engine.arm(&settings(&gpu, choices)).expect("arm");
            engine.prefill(&arm, &prompt).expect("prefill");
            let last = prompt.len() - 1;
            for program in [&arm.prefill_last, &arm.decode] {
                engine.set_token(prompt[last]);
                for check in check::roles(&engine, program, last).expect("roles") {
                    assert!(
                        check.passed,
                        "{choices:?}: {}: {:?}",
                        check.stage, check.note
                    );
                }
            }
            logits.push((choices, engine.logits().expect("logits")));
        }
    }
    let (identity, shuffled) = logits.split_at(4);
    assert_eq!(identity, shuffled, "page order changes nothing");
}

#[test]
fn the_recorder_records_the_plan() {
    let Some(gpu) = adapter("the_recorder_records_the_plan") else {
        return;
    };
    let weights = llama_tiny();
    for (choices, expected) in [(&["splitk=0"][..], 18), (&["splitk=8"], 20)] {
        let mut engine = Engine::new(&gpu, &weights, 64, None).expect("engine");
        let arm = engine.arm(&settings(&gpu, choices)).expect("arm");
        engine.prefill(&arm, &[1, 2, 3]).expect("prefill");
        let decoded = engine.decode(&arm.decode, 3, 5).expect("decode");
        assert_eq!(decoded.dispatches, 5 * expected, "2 + 2 layers + 2");
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
    engine.prefill(&arm, &prompt).expect("prefill");
    let right = check::greedy(&engine, &arm, &prompt, 12).expect("greedy");
    for check in right.checks {
        assert!(check.passed, "{}: {:?}", check.stage, check.note);
    }
    engine.prefill(&arm, &prompt).expect("prefill");
    let wrong = check::greedy(&engine, &arm, &[5, 900, 77, 13], 12).expect("greedy");
    assert!(
        wrong.checks.iter().any(|c| !c.passed),
        "another prompt's reference must not pass"
    );
}
