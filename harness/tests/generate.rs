//! Text from a model: replies against the CPU reference, chats, perplexity, and what
//! is refused. The model is `llama-tiny`, whose vocabulary of 1003 is a multiple of
//! nothing, with a tokenizer of single bytes that is made here.

#![allow(clippy::disallowed_methods, reason = "a test is its own command line")]

mod support;

use harness::{
    check,
    engine::{Engine, every},
    generate, model, ppl,
    text::Text,
};
use kernels::{
    Features, Settings,
    flag::Choices,
    sampling::{Draw, Sampling},
};
use reference::{
    Checkpoint, folder,
    golden::Golden,
    roles::{argmax, sample_select},
};
use serde_json::{Map, Value, json};
use std::{
    io::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

/// Largest difference of a logit of a dense model in f16: the golden data's README.
const F16_WORST: f64 = 0.032;
const VOCAB: u32 = 1003;

/// The characters of byte-level tokens, in the order of bytes.
fn byte_characters() -> Vec<char> {
    let mut others = '\u{100}'..;
    (0..=u8::MAX)
        .map(|byte| match byte {
            0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
            _ => others.next().expect("68 characters"),
        })
        .collect()
}

/// A folder of llama-tiny with a tokenizer and a chat template.
fn tiny(test: &str) -> Option<TempDir> {
    let source = support::golden(test, "llama-tiny")?;
    let dir = TempDir::new().expect("a temporary folder");
    for entry in std::fs::read_dir(&source).expect("a folder") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).expect("copied");
    }
    let mut vocab = Map::new();
    for (id, character) in byte_characters().into_iter().enumerate() {
        vocab.insert(character.to_string(), id.into());
    }
    for id in 256..VOCAB - 2 {
        vocab.insert(format!("[{id}]"), id.into());
    }
    let special = ["<user>", "<end>"];
    for (token, id) in special.into_iter().zip(VOCAB - 2..) {
        vocab.insert(token.into(), id.into());
    }
    let added = special.into_iter().zip(VOCAB - 2..).map(|(token, id)| {
        json!({
            "id": id, "content": token, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        })
    });
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<_>>(),
        "pre_tokenizer": bytes,
        "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    let template = "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}<user>\
                    {% else %}{{ m.content }}<end>{% endif %}{% endfor %}";
    let config = json!({ "eos_token": "<end>", "chat_template": template });
    for (name, value) in [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", config),
    ] {
        std::fs::write(dir.path().join(name), value.to_string()).expect("written");
    }
    Some(dir)
}

fn zerotvm(dir: &Path, words: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerotvm"));
    let dir = dir.to_str().expect("a path in UTF-8");
    let words = words.split_whitespace();
    command.args(words).args(["--weights", dir]).args(more);
    command.stdin(Stdio::null());
    command
}

/// The JSON document of a command that ran.
fn document(mut command: Command) -> Value {
    let output = command.arg("--json").output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().expect("a list").iter();
    ids.map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Tokens are those of the reference up to its first near tie.
fn require_greedy(weights: &Checkpoint, prompt: &[u32], found: &[u32]) {
    let settings = Settings::resolve(&Features::PUBLISHED, &Choices::new()).expect("defaults");
    let expected = check::Expectation::new(weights, prompt, found.len() - 1, &settings);
    let expected = expected.expect("the reference runs");
    for (step, (found, row)) in found.iter().zip(&expected.logits).enumerate() {
        let best = argmax::compute(row).expect("no NaN") as u32;
        if best != *found {
            let gap = argmax::top2_gap(row).expect("logits");
            assert!(
                gap < 2.0 * F16_WORST,
                "step {step}: {found}, not {best}, gap {gap}"
            );
            // What follows another token is another text.
            assert!(
                step > 4,
                "a near tie at step {step} leaves nothing to compare"
            );
            return;
        }
    }
}

#[test]
fn greedy_replies_are_the_references() {
    let test = "greedy_replies_are_the_references";
    let (Some(_adapter), Some(dir)) = (support::adapter(test), tiny(test)) else {
        return;
    };
    let weights = folder::read(dir.path(), &|_, _| {}).expect("a checkpoint");
    let text = Text::open(dir.path()).expect("a tokenizer");
    for prompt in ["x", "Hello, 東京!"] {
        let command = zerotvm(dir.path(), "generate --tokens 21", &["--prompt", prompt]);
        let found = document(command);
        let prompt_ids = text.encode(prompt, true).expect("ids");
        assert_eq!(found["prompt_tokens"], prompt.len(), "a token a byte");
        assert_eq!(found["stop_reason"], "length", "{found}");
        let tokens = ids(&found["tokens"]);
        assert_eq!(tokens.len(), 21, "as many as asked");
        assert_eq!(
            found["text"],
            text.decode(&tokens),
            "the text of the tokens"
        );
        assert!(found["ttft_ms"].as_f64().expect("ms") > 0.0, "{found}");
        assert!(
            found["decode_tok_s"].as_f64().expect("a rate") > 0.0,
            "{found}"
        );
        require_greedy(&weights, &prompt_ids, &tokens);
    }
    let one = document(zerotvm(
        dir.path(),
        "generate --tokens 1",
        &["--prompt", "x"],
    ));
    assert_eq!(ids(&one["tokens"]).len(), 1, "{one}");
    assert_eq!(one["decode_tok_s"], Value::Null, "nothing was decoded");
}

#[test]
fn text_comes_whole_and_alone() {
    let test = "text_comes_whole_and_alone";
    let (Some(_adapter), Some(dir)) = (support::adapter(test), tiny(test)) else {
        return;
    };
    let words = "generate --chat --tokens 9";
    let prompt = ["--prompt", "hi"];
    let output = zerotvm(dir.path(), words, &prompt)
        .output()
        .expect("it starts");
    let shown = String::from_utf8(output.stdout).expect("whole characters");
    let found = document(zerotvm(dir.path(), words, &prompt));
    let text = found["text"].as_str().expect("text");
    assert_eq!(shown, format!("{text}\n"), "standard output is the reply");
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(notes.contains("prompt 4 tokens"), "{notes}");
    assert_eq!(
        found["prompt_tokens"], 4,
        "the template's two, and two bytes"
    );
}

#[test]
fn a_seed_draws_the_same_text_and_another_another() {
    let test = "a_seed_draws_the_same_text_and_another_another";
    let (Some(_adapter), Some(dir)) = (support::adapter(test), tiny(test)) else {
        return;
    };
    let run = |more: &str| {
        let words = format!("generate --tokens 12 --prompt x {more}");
        ids(&document(zerotvm(dir.path(), &words, &[]))["tokens"])
    };
    let first = run("--temperature 1 --seed 5");
    assert_eq!(first, run("--temperature 1 --seed 5"), "the same seed");
    assert_ne!(first, run("--temperature 1 --seed 6"), "another seed");
    let only = run("--temperature 1 --top-k 1");
    assert_eq!(only, run(""), "of one token the likeliest is drawn");
}

/// Every token that the GPU draws is one that the reference may draw from the same
/// logits, and the dispatches that draw it pass their checks.
#[test]
fn drawn_tokens_are_the_references() {
    let test = "drawn_tokens_are_the_references";
    let (Some(gpu), Some(dir)) = (support::adapter(test), tiny(test)) else {
        return;
    };
    let weights = folder::read(dir.path(), &|_, _| {}).expect("a checkpoint");
    let draw = Draw {
        temperature: 0.8,
        top_p: 0.9,
        min_p: 0.01,
        top_k: 50,
        seed: 11,
    };
    for choices in ["logits=f16", "logits=f32"] {
        let settings = support::settings(&gpu, &[choices]);
        let settings = settings.with_sampling(Sampling::new(draw).expect("a draw"));
        let mut engine = Engine::new(&gpu, &weights, 64, None).expect("an engine");
        let arm = engine.arm(&settings).expect("an arm");
        let prompt = [3, 9, 500, 77];
        engine.prefill(&arm.prefill, &prompt).expect("a prompt");
        let mut same = 0;
        for position in prompt.len() - 1..40 {
            if position >= prompt.len() {
                engine.decode(&arm.decode, position, 1).expect("a token");
            }
            let token = engine.token().expect("a token") as usize;
            let logits = engine.logits(&arm.decode.plan).expect("logits");
            let at = position as u32;
            let may = sample_select::may_draw(&logits, &draw, at, token);
            assert!(may, "{choices}, position {position}: {token}");
            same += usize::from(sample_select::compute(&logits, &draw, at) == Some(token));
        }
        // A boundary within rounding is rare.
        assert!(same >= 36, "{choices}: {same} of 37 tokens are equal");
        let checks = check::roles(&engine, &arm.decode, 41, every).expect("captured");
        let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
        assert!(failed.is_empty(), "{failed:#?}");
        for role in ["sample_reduce", "sample_select"] {
            assert!(checks.iter().any(|check| check.role == role), "{role}");
        }
    }
}

#[test]
fn what_cannot_be_generated_is_refused() {
    let test = "what_cannot_be_generated_is_refused";
    let Some(dir) = tiny(test) else {
        return;
    };
    let long = "a".repeat(8193);
    let refused = |words: &str, more: &[&str], part: &str| {
        let output = zerotvm(dir.path(), words, more)
            .output()
            .expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}: {errors}");
        assert!(errors.contains(part), "{words}: {errors}");
        assert!(output.stdout.is_empty(), "{words}: nothing is printed");
    };
    refused("generate", &["--prompt", ""], "the prompt has no tokens");
    refused(
        "generate",
        &["--prompt", &long],
        "the prompt has 8193 tokens",
    );
    refused(
        "generate --tokens 0",
        &["--prompt", "x"],
        "expected at least one",
    );
    refused(
        "generate --prompt x --top-k 3",
        &[],
        "do nothing at temperature 0",
    );
    refused(
        "generate --prompt x --temperature -1",
        &[],
        "0, or 0.001 to 1000",
    );
    refused(
        "generate --prompt x --temperature 1 --top-p 2",
        &[],
        "0.000001 to 1",
    );
    refused(
        "generate --prompt x --model phi3-mini",
        &[],
        "leave --model out",
    );
    refused("generate --prompt x --system y", &[], "--chat");
    refused("chat --context 0", &[], "expected 1 to");
    refused("generate --prompt x --layers 99", &[], "expected 1 to");
    refused("ppl --window 1", &[], "--window 1");
    refused("ppl --window 0", &[], "expected 2 to");
    refused("ppl --tokens 100", &[], "--tokens 100: no window of 256");
    std::fs::write(dir.path().join("empty.txt"), "").expect("written");
    let empty = dir.path().join("empty.txt").display().to_string();
    refused("ppl", &["--text", &empty], "the text is empty");
    refused("ppl --text nowhere.txt", &[], "nowhere.txt");
    std::fs::remove_file(dir.path().join("tokenizer_config.json")).expect("removed");
    refused("generate --chat --prompt x", &[], "no chat template");
    refused("chat", &[], "no chat template");
    std::fs::remove_file(dir.path().join("tokenizer.json")).expect("removed");
    refused("generate --prompt x", &[], "tokenizer.json: no such file");
}

#[test]
fn synthetic_weights_have_nothing_to_say() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerotvm"));
    let output = command
        .args(["generate", "--weights", "synthetic", "--prompt", "x"])
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("random weights have no tokenizer"),
        "{errors}"
    );
}

#[test]
fn a_full_context_ends_a_reply() {
    let test = "a_full_context_ends_a_reply";
    let (Some(gpu), Some(dir)) = (support::adapter(test), tiny(test)) else {
        return;
    };
    let weights = folder::read(dir.path(), &|_, _| {}).expect("a checkpoint");
    let text = Text::open(dir.path()).expect("a tokenizer");
    let settings = Settings::resolve(&gpu.features, &Choices::new()).expect("defaults");
    let mut engine = Engine::new(&gpu, &weights, 16, None).expect("an engine");
    let arm = engine.arm(&settings).expect("an arm");
    for (prompt, tokens) in [(9, 8), (16, 1)] {
        let prompt: Vec<u32> = (10..10 + prompt).collect();
        let reply = generate::reply(&engine, &arm, &text, &prompt, 100, |_| Ok(()));
        let reply = reply.expect("a reply");
        assert_eq!(
            reply.stop_reason,
            generate::StopReason::Context,
            "{reply:?}"
        );
        // The last token needs no position: nothing follows it.
        assert_eq!(reply.tokens.len(), tokens, "{reply:?}");
    }
}

fn chat(dir: &Path, words: &str, lines: &str) -> (Output, Vec<String>, String) {
    let mut command = zerotvm(dir, words, &[]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(lines.as_bytes()).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    let replies = notes.lines().filter(|line| line.starts_with("[prompt"));
    let replies = replies.map(str::to_owned).collect();
    (output, replies, notes)
}

#[test]
fn a_chat_prefills_only_the_new_turn() {
    let test = "a_chat_prefills_only_the_new_turn";
    let (Some(_adapter), Some(dir)) = (support::adapter(test), tiny(test)) else {
        return;
    };
    let (output, replies, notes) = chat(dir.path(), "chat --tokens 7", "hello\n\nyou\n/new\nx\n");
    assert_eq!(output.status.code(), Some(0), "{notes}");
    assert_eq!(replies.len(), 3, "{notes}");
    assert!(
        replies[0].contains("prompt 7 tokens, 7 prefilled, 0 reused"),
        "{notes}"
    );
    // The last of 7 tokens of the reply was not fed; `<end><user>you<user>` is new.
    assert!(
        replies[1].contains("prompt 20 tokens, 7 prefilled, 13 reused"),
        "{notes}"
    );
    assert!(
        replies[2].contains("prompt 3 tokens, "),
        "a chat of its own: {notes}"
    );
    assert!(!output.stdout.is_empty(), "replies");
}

#[test]
fn a_chat_that_does_not_fit_asks_what_to_do() {
    let test = "a_chat_that_does_not_fit_asks_what_to_do";
    let (Some(_adapter), Some(dir)) = (support::adapter(test), tiny(test)) else {
        return;
    };
    let words = "chat --tokens 8 --context 32";
    let long = "a".repeat(40);
    let turns = "hello\nworld\nagain\n";
    for (choice, replies, part) in [
        ("d\n", 3, "prompt "),
        ("n\n", 3, "prompt 7 tokens"),
        ("c\nx\n", 2, "take it back"),
        ("z\nq\n", 2, "expected d, n, c or q"),
        ("", 2, "the chat has"),
    ] {
        let lines = format!("{turns}{choice}");
        let (output, found, notes) = chat(dir.path(), words, &lines);
        assert_eq!(output.status.code(), Some(0), "{choice:?}: {notes}");
        assert!(
            notes.contains("the context has 32 positions"),
            "{choice:?}: {notes}"
        );
        assert!(found.len() >= replies, "{choice:?}: {notes}");
        assert!(notes.contains(part), "{choice:?}: {notes}");
    }
    let (output, replies, notes) = chat(dir.path(), words, &format!("{long}\nhi\n"));
    assert_eq!(output.status.code(), Some(0), "{notes}");
    assert!(
        notes.contains("this message alone leaves no room"),
        "{notes}"
    );
    assert_eq!(replies.len(), 1, "the next message is answered: {notes}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_a_reply_and_not_the_chat() {
    use std::io::Read as _;
    let test = "ctrl_c_stops_a_reply_and_not_the_chat";
    let (Some(_adapter), Some(dir)) = (support::adapter(test), tiny(test)) else {
        return;
    };
    let mut command = zerotvm(dir.path(), "chat --tokens 4000", &[]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"hello\n").expect("written");
    let stdout = child.stdout.as_mut().expect("piped");
    stdout.read_exact(&mut [0]).expect("the reply begins");
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill runs").success(), "the signal is sent");
    stdin.write_all(b"/new\n/quit\n").expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let notes = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{notes}");
    assert!(notes.contains("stopped by Ctrl-C"), "{notes}");
}

#[test]
fn perplexity_is_the_golden_one() {
    let test = "perplexity_is_the_golden_one";
    let (Some(gpu), Some(dir)) = (support::adapter(test), tiny(test)) else {
        return;
    };
    let weights = folder::read(dir.path(), &|_, _| {}).expect("a checkpoint");
    let golden = Golden::open(dir.path().join("expected.safetensors")).expect("golden data");
    let tokens = golden.i32("p2.input_ids").expect("ids").data;
    let tokens: Vec<u32> = tokens.iter().map(|&id| id as u32).collect();
    let expected = f64::from(golden.f32("p2.mean_nll").expect("a mean").data[0]);
    let settings = Settings::resolve(&gpu.features, &Choices::new()).expect("defaults");
    let mut engine = Engine::new(&gpu, &weights, tokens.len(), None).expect("an engine");
    let arm = engine.arm(&settings).expect("an arm");
    let found = ppl::measure(&engine, &[arm], &tokens, tokens.len(), |_| {}).expect("one window");
    assert_eq!(found.predicted, tokens.len() - 1, "all but the first");
    let nll = found.settings[0].nll;
    // An nll moves by at most twice what a logit does.
    assert!(
        (nll - expected).abs() < 2.0 * F16_WORST,
        "{nll}, not {expected}"
    );
    assert!(
        !found.interrupted && found.difference.is_none(),
        "{found:?}"
    );
}

#[test]
fn perplexity_of_two_settings_is_paired() {
    let test = "perplexity_of_two_settings_is_paired";
    let (Some(_adapter), Some(dir)) = (support::adapter(test), tiny(test)) else {
        return;
    };
    let words = "ppl --tokens 70 --window 32";
    let found = document(zerotvm(dir.path(), words, &["--flag", "kv8=1"]));
    let measured = &found["measured"];
    assert_eq!(measured["windows"], 2, "whole windows alone: {found}");
    assert_eq!(measured["predicted"], 62, "{found}");
    let nll = |at: usize| measured["settings"][at]["nll"].as_f64().expect("an nll");
    let difference = measured["difference"]["nll"]
        .as_f64()
        .expect("a difference");
    assert!((nll(1) - nll(0) - difference).abs() < 1e-9, "{found}");
    assert!(
        difference != 0.0 && difference.abs() < 0.05,
        "int8 changes little: {found}"
    );
    assert_eq!(found["settings"][1]["kv8"], 1, "{found}");
    let same = zerotvm(dir.path(), words, &["--flag", "reuse=0"]).output();
    let errors = same.expect("it starts").stderr;
    let errors = String::from_utf8_lossy(&errors);
    assert!(errors.contains("the same kernels"), "{errors}");
}

/// The real model, from its own file: what it says is what the reference says.
#[test]
fn smollm2_says_what_the_reference_says() {
    let test = "smollm2_says_what_the_reference_says";
    let (Some(_adapter), Some(file)) = (
        support::adapter(test),
        support::fetched(test, "smollm2-135m"),
    ) else {
        return;
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerotvm"));
    let question = "Why is the sky blue? Answer in two sentences.";
    let words = ["generate", "--chat", "--tokens", "12", "--prompt", question];
    command.args(words);
    let found = document(command);
    let text = Text::open(&file).expect("a tokenizer");
    let weights = model::load("smollm2-135m", Some("gguf"), 0).expect("weights");
    assert_eq!(
        found["prompt_tokens"],
        model::CHAT_SKY.len(),
        "the golden prompt"
    );
    let tokens = ids(&found["tokens"]);
    assert_eq!(
        found["text"],
        text.decode(&tokens),
        "the text of the tokens"
    );
    let settings = Settings::resolve(&Features::PUBLISHED, &Choices::new()).expect("defaults");
    let expected = check::Expectation::new(&weights, model::CHAT_SKY, 11, &settings);
    for (step, row) in expected
        .expect("the reference runs")
        .logits
        .iter()
        .enumerate()
    {
        let best = argmax::compute(row).expect("no NaN") as u32;
        if best != tokens[step] {
            let gap = argmax::top2_gap(row).expect("logits");
            // The golden data's README: up to 0.11 in a logit of this model.
            assert!(
                gap < 0.22,
                "step {step}: {}, not {best}, gap {gap}",
                tokens[step]
            );
            return;
        }
    }
}
