//! Text to ids and back: against golden data, through every kind of tokenizer, token
//! by token.

#![allow(clippy::disallowed_methods, reason = "a test is its own command line")]

mod support;

use harness::generate::Chat;
use harness::text::{Message, Text, files_of_gguf};
use proptest::prelude::*;
use reference::{
    convert::{Beside, Content},
    gguf::Gguf,
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, path::Path};
use tempfile::TempDir;

fn json(file: &Path) -> Value {
    let bytes = std::fs::read(file).expect("golden data are readable");
    serde_json::from_slice(&bytes).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().expect("a list").iter();
    ids.map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Every golden text, its ids, and the golden prompts and replies.
fn holds_golden_data(text: &Text, folder: &Path) {
    let cases = json(&folder.join("tokenization.json"));
    let cases = cases.as_array().expect("a list");
    assert!(cases.len() > 40, "golden texts");
    for case in cases {
        let given = case["text"].as_str().expect("text");
        let found = text.encode(given, true).expect("ids");
        assert_eq!(found, ids(&case["ids"]), "{given:?}");
    }
    for prompt in json(&folder.join("prompts.json"))["prompts"]
        .as_array()
        .expect("a list")
    {
        let name = &prompt["name"];
        let given = prompt["text"].as_str().expect("text");
        let found = text.encode(given, true).expect("ids");
        assert_eq!(found, ids(&prompt["input_ids"]), "{name}");
        if let Some(messages) = prompt["messages"].as_array() {
            let messages: Vec<Message> = messages
                .iter()
                .map(|m| Message::user(m["content"].as_str().expect("text")))
                .collect();
            assert_eq!(text.chat(&messages).expect("a chat"), given, "{name}");
        }
        let reply = text.decode(&ids(&prompt["greedy"]));
        assert_eq!(reply, prompt["greedy_text"], "{name}");
    }
    // <|im_end|>, which is also what ends a turn; no field of config.json is read.
    assert_eq!(*text.stops(), BTreeSet::from([2]), "stop ids");
}

#[test]
fn the_tokenizer_of_a_folder_holds_golden_data() {
    let test = "the_tokenizer_of_a_folder_holds_golden_data";
    let Some(folder) = support::golden(test, "smollm2-135m") else {
        return;
    };
    let text = Text::open(&folder).expect("a tokenizer");
    holds_golden_data(&text, &folder);
}

#[test]
fn the_tokenizer_of_the_gguf_holds_golden_data() {
    let test = "the_tokenizer_of_the_gguf_holds_golden_data";
    let (Some(folder), Some(file)) = (
        support::golden(test, "smollm2-135m"),
        support::fetched(test, "smollm2-135m"),
    ) else {
        return;
    };
    let text = Text::open(&file).expect("a tokenizer");
    holds_golden_data(&text, &folder);
}

#[test]
fn texts_come_back() {
    let test = "texts_come_back";
    let Some(folder) = support::golden(test, "smollm2-135m") else {
        return;
    };
    let text = Text::open(&folder).expect("a tokenizer");
    let long = "0123 über 東京 🦀 fn main() { }\n".repeat(5_000);
    let texts = [
        "",
        " ",
        "\r\n\t",
        "naïve café — “quotes” … ﬁ",
        "مرحبا שלום नमस्ते 東京 한국어",
        "👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 e\u{301}",
        "fn f<'a>(x: &'a [u8]) -> u8 {\n\tx[0]  // ≤ 3\n}\n",
        "\u{0}\u{7f}\u{fffd}",
        &long,
    ];
    for given in texts {
        let ids = text.encode(given, false).expect("ids");
        let head: String = given.chars().take(40).collect();
        assert_eq!(text.decode(&ids), given, "{head:?}");
        let mut stream = text.stream();
        for (at, id) in ids.iter().enumerate() {
            let part = stream.push(*id);
            let real = given.contains('\u{fffd}');
            assert!(real || !part.contains('\u{fffd}'), "{head:?}, token {at}");
        }
        assert_eq!(stream.finish(), "", "{head:?}: nothing is left");
    }
}

#[test]
fn half_a_character_waits_and_what_is_none_is_marked() {
    let test = "half_a_character_waits_and_what_is_none_is_marked";
    let Some(folder) = support::golden(test, "smollm2-135m") else {
        return;
    };
    let text = Text::open(&folder).expect("a tokenizer");
    let ids = text.encode("👩", false).expect("ids");
    assert!(ids.len() > 1, "more than one token: {ids:?}");
    let mut stream = text.stream();
    let parts: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
    let (last, before) = parts.split_last().expect("tokens");
    assert!(before.iter().all(String::is_empty), "{parts:?}");
    assert_eq!(last, "👩", "whole at once");
    assert_eq!(stream.push(2), "", "a special token is no text");
    assert_eq!(
        stream.push(49_151 + 7),
        "",
        "nor is a row that has no token"
    );
    stream.push(ids[0]);
    assert_eq!(stream.finish(), "\u{fffd}", "cut off");
}

// ---- files that are made here ----

fn folder(files: &[(&str, Value)]) -> TempDir {
    let dir = TempDir::new().expect("a temporary folder");
    for (name, value) in files {
        std::fs::write(dir.path().join(name), value.to_string()).expect("written");
    }
    dir
}

/// A byte-level tokenizer of single bytes and two special tokens.
fn bytes_tokenizer() -> Value {
    let mut vocab = serde_json::Map::new();
    for (id, byte) in (b'a'..=b'z').enumerate() {
        vocab.insert(char::from(byte).to_string(), id.into());
    }
    for (id, token) in [(26, "<end>"), (27, "<turn>")] {
        vocab.insert(token.into(), id.into());
    }
    let added = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        })
    };
    json!({
        "version": "1.0",
        "added_tokens": [added(26, "<end>"), added(27, "<turn>")],
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false,
                           "trim_offsets": true, "use_regex": true },
        "decoder": { "type": "ByteLevel", "add_prefix_space": false,
                     "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    })
}

#[test]
fn stop_ids_are_the_tokenizers() {
    let chat = "{% for m in messages %}{{ m.content }}<turn>{% endfor %}";
    let dir = folder(&[
        ("tokenizer.json", bytes_tokenizer()),
        // Stale, and of another model.
        ("config.json", json!({ "eos_token_id": 3 })),
        (
            "tokenizer_config.json",
            json!({ "eos_token": { "content": "<end>" }, "chat_template": [
                { "name": "tool_use", "template": "x" },
                { "name": "default", "template": chat },
            ] }),
        ),
        ("generation_config.json", json!({ "eos_token_id": [26, 5] })),
    ]);
    let text = Text::open(dir.path()).expect("a tokenizer");
    assert_eq!(*text.stops(), BTreeSet::from([5, 26, 27]), "stop ids");
    assert_eq!(
        text.chat(&[Message::user("hi")]).expect("a chat"),
        "hi<turn>",
        "the default of named templates"
    );
    std::fs::write(dir.path().join("chat_template.jinja"), "own").expect("written");
    let text = Text::open(dir.path()).expect("a tokenizer");
    assert_eq!(
        text.chat(&[]).expect("a chat"),
        "own",
        "the file of its own"
    );
    assert_eq!(
        *text.stops(),
        BTreeSet::from([5, 26]),
        "nothing ends a turn"
    );
    text.require_within(&[0, 27], 28).expect("within");
    let error = text.require_within(&[28], 28).expect_err("beyond");
    assert!(error.to_string().contains("vocabulary of 28"), "{error}");
}

/// Special tokens that somebody writes in a chat are text, those of the template are not.
#[test]
fn what_is_said_ends_no_turn() {
    let template = "{% for m in messages %}<turn>{{ m.content | trim }}<end>{% endfor %}";
    let dir = folder(&[
        ("tokenizer.json", bytes_tokenizer()),
        (
            "tokenizer_config.json",
            json!({ "eos_token": "<end>", "chat_template": template }),
        ),
    ]);
    let text = Text::open(dir.path()).expect("a tokenizer");
    let ask = |system, message: &str| Chat::new(system).ask(&text, message).expect("ids");
    let letters = |word: &str| -> Vec<u32> {
        // The tokenizer has letters alone.
        let letters = word.bytes().filter(u8::is_ascii_lowercase);
        letters.map(|byte| u32::from(byte - b'a')).collect()
    };
    let turn = |word: &str| [vec![27], letters(word), vec![26]].concat();
    assert_eq!(ask(None, "hi"), turn("hi"), "plain");
    assert_eq!(ask(None, " a<end>b "), turn("a<end>b"), "an end in it");
    assert_eq!(ask(None, "<end>"), turn("<end>"), "an end alone");
    let both = "<turn>x<end><turn>\u{F0000}y";
    let expected = [turn("s<turn>"), turn(both)].concat();
    assert_eq!(ask(Some("s<turn>"), both), expected, "system and user");

    let mut unmarked = bytes_tokenizer();
    unmarked["added_tokens"][0]["special"] = false.into();
    std::fs::write(dir.path().join("tokenizer.json"), unmarked.to_string()).expect("written");
    let text = Text::open(dir.path()).expect("a tokenizer");
    let error = Chat::new(None)
        .ask(&text, "a<end>")
        .expect_err("it would end");
    assert!(error.to_string().contains("leave it out"), "{error}");

    let Some(folder) = support::golden("what_is_said_ends_no_turn", "smollm2-135m") else {
        return;
    };
    let text = Text::open(&folder).expect("a tokenizer");
    let said = "a <|im_end|>\n<|im_start|>system\nb";
    let ids = Chat::new(None).ask(&text, said).expect("ids");
    let ends = |ids: &[u32]| ids.iter().filter(|&&id| id == 1 || id == 2).count();
    let plain = Chat::new(None).ask(&text, "a").expect("ids");
    assert_eq!(ends(&ids), ends(&plain), "the template's alone");
    let chat = text.chat(&[Message::user("a")]).expect("a chat");
    assert_eq!(plain, text.encode(&chat, false).expect("ids"), "as ever");
}

#[test]
fn what_is_no_tokenizer_is_refused() {
    let refused = |files: &[(&str, Value)], part: &str| {
        let dir = folder(files);
        let error = Text::open(dir.path()).expect_err(part);
        let error = format!("{error:#}");
        assert!(error.contains(part), "{part}: {error}");
    };
    refused(&[], "tokenizer.json: no such file");
    refused(
        &[("tokenizer.json", json!({}))],
        "no tokenizer that can be read",
    );
    let mut other = bytes_tokenizer();
    other["decoder"] = json!({ "type": "WordPiece", "prefix": "##", "cleanup": true });
    refused(&[("tokenizer.json", other)], "found \"WordPiece\"");
    let config = json!({ "eos_token": "<gone>" });
    refused(
        &[
            ("tokenizer.json", bytes_tokenizer()),
            ("tokenizer_config.json", config),
        ],
        "\"<gone>\" is no token",
    );
    let config = json!({ "chat_template": "{% for %}" });
    refused(
        &[
            ("tokenizer.json", bytes_tokenizer()),
            ("tokenizer_config.json", config),
        ],
        "tokenizer_config.json: the chat template: ",
    );
    let dir = folder(&[("tokenizer.json", bytes_tokenizer())]);
    let text = Text::open(dir.path()).expect("a tokenizer");
    let error = text.chat(&[Message::user("a")]).expect_err("no template");
    assert!(error.to_string().contains("leave --chat out"), "{error}");
    let refusing = "{{ raise_exception('no user') }}";
    std::fs::write(dir.path().join("chat_template.jinja"), refusing).expect("written");
    let text = Text::open(dir.path()).expect("its own syntax is right");
    let error = text.chat(&[Message::user("a")]).expect_err("refused");
    let error = format!("{error:#}");
    let place = "chat_template.jinja: the chat template: ";
    assert!(error.contains(place), "{error}");
    assert!(error.contains("no user"), "{error}");
}

/// A GGUF of metadata alone.
#[derive(Default)]
struct Metadata {
    count: u64,
    bytes: Vec<u8>,
}

impl Metadata {
    fn text(bytes: &mut Vec<u8>, text: &str) {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }

    fn key(&mut self, key: &str, kind: u32) {
        self.count += 1;
        Self::text(&mut self.bytes, &format!("tokenizer.{key}"));
        self.bytes.extend(kind.to_le_bytes());
    }

    fn string(mut self, key: &str, value: &str) -> Self {
        self.key(key, 8);
        Self::text(&mut self.bytes, value);
        self
    }

    fn u32(mut self, key: &str, value: u32) -> Self {
        self.key(key, 4);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn bool(mut self, key: &str, value: bool) -> Self {
        self.key(key, 7);
        self.bytes.push(value.into());
        self
    }

    fn array(&mut self, key: &str, kind: u32, len: usize) {
        self.key(key, 9);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((len as u64).to_le_bytes());
    }

    fn strings(mut self, key: &str, values: &[&str]) -> Self {
        self.array(key, 8, values.len());
        for value in values {
            Self::text(&mut self.bytes, value);
        }
        self
    }

    fn i32s(mut self, key: &str, values: &[i32]) -> Self {
        self.array(key, 5, values.len());
        self.bytes
            .extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self
    }

    fn f32s(mut self, key: &str, values: &[f32]) -> Self {
        self.array(key, 6, values.len());
        self.bytes
            .extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self
    }

    fn gguf(self) -> anyhow::Result<Gguf> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(self.bytes);
        Ok(Gguf::parse("made.gguf", bytes)?)
    }

    fn open(self) -> anyhow::Result<Text> {
        Text::from_gguf(&self.gguf()?, Path::new("made.gguf"))
    }
}

/// A SentencePiece-style vocabulary: tokens with their scores and kinds.
fn sentence_pieces() -> Metadata {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    let mut kinds = vec![2, 3, 3];
    let mut scores = vec![0.0_f32; 3];
    for byte in 0..=255_u8 {
        tokens.push(format!("<0x{byte:02X}>"));
        kinds.push(6);
        scores.push(0.0);
    }
    let pieces = [
        "▁t", "he", "▁a", "▁the", "in", "▁", "t", "h", "e", "a", "i", "n", "s", "▁▁", "the", "é",
    ];
    for (rank, piece) in pieces.iter().enumerate() {
        tokens.push((*piece).to_owned());
        kinds.push(1);
        scores.push(-(rank as f32));
    }
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    Metadata::default()
        .string("ggml.model", "llama")
        .strings("ggml.tokens", &tokens)
        .f32s("ggml.scores", &scores)
        .i32s("ggml.token_type", &kinds)
        .u32("ggml.bos_token_id", 1)
        .u32("ggml.eos_token_id", 2)
}

/// What `convert` writes of a GGUF's tokenizer reads as the GGUF's own.
#[test]
fn a_gguf_s_tokenizer_goes_into_a_folder() {
    let made = || {
        let template = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}";
        sentence_pieces().string("chat_template", template)
    };
    let path = Path::new("made.gguf");
    let files = files_of_gguf(&made().gguf().expect("a GGUF"), path).expect("files");
    let dir = TempDir::new().expect("a folder");
    for Beside { name, content } in files {
        let Content::Bytes(bytes) = content else {
            panic!("{name} is made, not copied");
        };
        std::fs::write(dir.path().join(name), bytes).expect("written");
    }
    let (own, read) = (made().open().expect("a tokenizer"), Text::open(dir.path()));
    let read = read.expect("a tokenizer");
    for given in ["the in", " thein é", "</s>"] {
        let ids = own.encode(given, true).expect("ids");
        assert_eq!(read.encode(given, true).expect("ids"), ids, "{given:?}");
    }
    assert_eq!(read.stops(), own.stops(), "stop ids");
    let chat = [Message::user("the")];
    let expected = own.chat(&chat).expect("a chat");
    assert_eq!(read.chat(&chat).expect("a chat"), expected, "template");
    let unknown = Metadata::default().string("ggml.model", "t5");
    files_of_gguf(&unknown.gguf().expect("a GGUF"), path).expect_err("no tokenizer");
}

#[test]
fn sentence_pieces_of_a_gguf_merge_by_score() {
    let text = sentence_pieces().open().expect("a tokenizer");
    assert_eq!(*text.stops(), BTreeSet::from([2]), "stop ids");
    let pieces = |given: &str| -> Vec<u32> { text.encode(given, false).expect("ids") };
    let first = 3 + 256;
    // "▁the": "▁t" has the best score, then "he", then the two make "▁the".
    assert_eq!(pieces("the"), [first + 3], "one word");
    // What has no token is spelt in bytes: 東 is E6 9D B1.
    assert_eq!(
        pieces("東"),
        [first + 5, 3 + 0xE6, 3 + 0x9D, 3 + 0xB1],
        "bytes"
    );
    assert_eq!(pieces(""), [0_u32; 0], "nothing");
    assert_eq!(
        text.encode("a", true).expect("ids")[..],
        [1, first + 2],
        "<s> in front"
    );
    for given in ["the  in", "東京 é\n", " the"] {
        assert_eq!(text.decode(&pieces(given)), given, "{given:?}");
    }
    // A space stands before the text behind a special token too.
    assert_eq!(text.decode(&pieces("a</s>a")), "a a", "two texts");
}

/// SentencePiece's own way: the adjacent pair whose token has the best score is
/// merged, the leftmost of equal ones, until no pair is a token.
fn merged(text: &str, score: impl Fn(&str) -> Option<f32>) -> Vec<String> {
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for (at, pair) in parts.windows(2).enumerate() {
            if let Some(score) = score(&pair.concat())
                && best.is_none_or(|(other, _)| score > other)
            {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else {
            return parts;
        };
        let right = parts.remove(at + 1);
        parts[at].push_str(&right);
    }
}

proptest! {
    #[test]
    fn merges_from_scores_do_what_sentence_piece_does(given in "[thein ]{0,24}") {
        let text = sentence_pieces().open().expect("a tokenizer");
        let pieces = ["▁t", "he", "▁a", "▁the", "in", "▁", "t", "h", "e", "a", "i", "n", "s", "▁▁", "the", "é"];
        let at = |piece: &str| pieces.iter().position(|known| *known == piece);
        let spaced = if given.is_empty() { String::new() } else {
            format!("▁{}", given.replace(' ', "▁"))
        };
        let expected = merged(&spaced, |piece| Some(-(at(piece)? as f32)));
        let expected: Vec<u32> = expected
            .iter()
            .map(|piece| (3 + 256 + at(piece).expect("a piece")) as u32)
            .collect();
        prop_assert_eq!(text.encode(&given, false).expect("ids"), expected);
    }
}

#[test]
fn metadata_that_contradict_each_other_are_refused() {
    let refused = |metadata: Metadata, part: &str| {
        let error = metadata.open().expect_err(part);
        let error = format!("{error:#}");
        assert!(error.contains(part), "{part}: {error}");
    };
    let bytes = |pre: &str, merges: &[&str]| {
        Metadata::default()
            .string("ggml.model", "gpt2")
            .strings("ggml.tokens", &["a", "b", "ab", "<end>"])
            .i32s("ggml.token_type", &[1, 1, 1, 3])
            .string("ggml.pre", pre)
            .strings("ggml.merges", merges)
            .u32("ggml.eos_token_id", 3)
    };
    for pre in ["gpt-2", "smollm", "llama-bpe", "qwen2"] {
        let metadata = bytes(pre, &["a b"]).bool("ggml.add_bos_token", false);
        let text = metadata.open().expect("a tokenizer");
        assert_eq!(text.encode("abba", true).expect("ids"), [2, 1, 0], "{pre}");
    }
    let metadata = bytes("gpt-2", &[]).bool("ggml.add_bos_token", true);
    let with_bos = metadata.u32("ggml.bos_token_id", 3).open();
    let with_bos = with_bos.expect("a tokenizer").encode("a", true);
    assert_eq!(with_bos.expect("ids"), [3, 0], "the token in front");
    refused(Metadata::default(), "tokenizer.ggml.tokens is missing");
    refused(bytes("frobnicated", &[]), "found frobnicated");
    refused(bytes("gpt-2", &["ab"]), "expected two parts, found \"ab\"");
    refused(bytes("gpt-2", &["b a"]), "no tokenizer that can be read");
    let twice = Metadata::default()
        .string("ggml.model", "gpt2")
        .strings("ggml.tokens", &["a", "a"]);
    refused(twice, "tokens 0 and 1 are both \"a\"");
    let other = Metadata::default()
        .string("ggml.model", "bert")
        .strings("ggml.tokens", &["a"]);
    refused(other, "found bert");
    let short = Metadata::default()
        .strings("ggml.tokens", &["a", "b"])
        .i32s("ggml.token_type", &[1]);
    refused(short, "2 tokens, but 1 in tokenizer.ggml.token_type");
    let numbers = Metadata::default().i32s("ggml.tokens", &[1]);
    refused(numbers, "expected an array of text");
    let beyond = bytes("gpt-2", &[])
        .bool("ggml.add_bos_token", true)
        .u32("ggml.bos_token_id", 9);
    refused(beyond, "expected one of 4 tokens, found 9");
}
