//! The tokenizer that a GGUF file describes, in the form of `tokenizer.json`.

use anyhow::{Result, bail, ensure};
use reference::gguf::{self, Gguf};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Longest token whose parts are looked for, in bytes: far beyond any published.
const MAX_TOKEN_BYTES: usize = 4096;

/// What splits a text before merges, by the GGUF's name of it.
const PRE_TOKENIZERS: &[(&[&str], Split)] = &[
    (&["gpt-2", "gpt2"], Split::Plain),
    (&["smollm", "starcoder", "refact"], Split::Digits),
    (&["llama-bpe", "llama3", "llama-v3"], Split::Regex(LLAMA3)),
    (&["qwen2"], Split::Regex(QWEN2)),
];

/// A way to split a text before merges.
#[derive(Clone, Copy)]
enum Split {
    /// GPT-2's own pattern.
    Plain,
    /// The same with each digit apart.
    Digits,
    /// A pattern of the model's.
    Regex(&'static str),
}

/// The patterns of the models' published `tokenizer.json`.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// GGML's kinds of tokens that matter here.
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// A token id of the metadata; `None` where the file has none.
pub(super) fn id(gguf: &Gguf, name: &str) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{name}");
    if !gguf.metadata().contains_key(&key) {
        return Ok(None);
    }
    let id = gguf.unsigned(&key)?;
    match u32::try_from(id) {
        Ok(id) => Ok(Some(id)),
        Err(_) => bail!("{}: {key}: expected a token id, found {id}", gguf.file()),
    }
}

/// The text of a token of a tokenizer in this form.
pub(super) fn token(described: &Value, id: u32) -> Option<String> {
    let vocab = described["model"]["vocab"].as_object()?;
    let found = vocab.iter().find(|(_, value)| **value == id)?;
    Some(found.0.clone())
}

fn flag(gguf: &Gguf, name: &str, default: bool) -> bool {
    let key = format!("tokenizer.ggml.{name}");
    if let Some(gguf::Value::Bool(value)) = gguf.metadata().get(&key) {
        *value
    } else {
        default
    }
}

/// What `tokenizer.json` would hold.
///
/// # Errors
/// A kind of tokenizer that is not known, or metadata that contradict each other.
pub(super) fn tokenizer_json(gguf: &Gguf) -> Result<Value> {
    let tokens = gguf.strings("tokenizer.ggml.tokens")?;
    let kinds = match gguf.metadata().get("tokenizer.ggml.token_type") {
        Some(_) => gguf.integers("tokenizer.ggml.token_type")?,
        None => vec![NORMAL; tokens.len()],
    };
    let file = gguf.file();
    ensure!(
        kinds.len() == tokens.len(),
        "{file}: {} tokens, but {} in tokenizer.ggml.token_type; fetch the file again",
        tokens.len(),
        kinds.len()
    );
    let mut vocab = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = vocab.insert(token.clone(), id.into()) {
            bail!("{file}: tokens {first} and {id} are both {token:?}; fetch the file again");
        }
    }
    let added: Vec<Value> = (tokens.iter().zip(&kinds).enumerate())
        .filter(|(_, (_, kind))| [UNKNOWN, CONTROL, USER_DEFINED].contains(kind))
        .map(|(id, (token, &kind))| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": kind != USER_DEFINED,
            })
        })
        .collect();
    let model = gguf.string("tokenizer.ggml.model")?;
    let mut described = match model {
        "gpt2" => byte_level(gguf, vocab)?,
        "llama" => sentence_pieces(gguf, &tokens, &kinds, vocab)?,
        other => bail!(
            "{file}: tokenizer.ggml.model: expected gpt2 (byte-level BPE) or llama \
             (SentencePiece), found {other}; read the text with the tokenizer.json of a \
             checkpoint folder"
        ),
    };
    described["version"] = "1.0".into();
    described["added_tokens"] = added.into();
    let bos_by_default = model == "llama" || described["model"]["ignore_merges"] == true;
    if flag(gguf, "add_bos_token", bos_by_default) {
        described["post_processor"] = with_bos(gguf, &tokens)?;
    }
    Ok(described)
}

/// BPE over bytes, merged in the order of the file.
fn byte_level(gguf: &Gguf, vocab: Map<String, Value>) -> Result<Value> {
    let file = gguf.file();
    let merges = gguf.strings("tokenizer.ggml.merges")?;
    let merges = merges.iter().map(|merge| match merge.split_once(' ') {
        Some((left, right)) => Ok(json!([left, right])),
        None => bail!("{file}: tokenizer.ggml.merges: expected two parts, found {merge:?}"),
    });
    let merges: Vec<Value> = merges.collect::<Result<_>>()?;
    let name = gguf.string("tokenizer.ggml.pre")?;
    let known = PRE_TOKENIZERS
        .iter()
        .find(|(names, _)| names.contains(&name));
    let Some(&(_, split)) = known else {
        let names: Vec<&str> = PRE_TOKENIZERS.iter().map(|(names, _)| names[0]).collect();
        bail!(
            "{file}: tokenizer.ggml.pre: expected one of {}, found {name}; read the text with the \
             tokenizer.json of a checkpoint folder",
            names.join(", ")
        );
    };
    let bytes = |use_regex: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": use_regex,
        })
    };
    let first = match split {
        Split::Plain => None,
        Split::Digits => Some(json!({ "type": "Digits", "individual_digits": true })),
        Split::Regex(pattern) => Some(json!({
            "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
            "invert": false,
        })),
    };
    let own = matches!(split, Split::Regex(_));
    let parts: Vec<Value> = first.into_iter().chain([bytes(!own)]).collect();
    // Qwen composes characters; Llama 3 takes a whole word that is a token as it is.
    let is = |of: &str| matches!(split, Split::Regex(pattern) if pattern == of);
    let normalizer = is(QWEN2).then(|| json!({ "type": "NFC" }));
    Ok(json!({
        "normalizer": normalizer,
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": parts },
        "decoder": bytes(true),
        "model": {
            "type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": is(LLAMA3),
        },
    }))
}

/// SentencePiece's BPE: merges by the score of what they make, bytes for what has
/// no token.
fn sentence_pieces(
    gguf: &Gguf,
    tokens: &[String],
    kinds: &[i64],
    vocab: Map<String, Value>,
) -> Result<Value> {
    let file = gguf.file();
    let scores = gguf.floats("tokenizer.ggml.scores")?;
    ensure!(
        scores.len() == tokens.len(),
        "{file}: {} tokens, but {} in tokenizer.ggml.scores; fetch the file again",
        tokens.len(),
        scores.len()
    );
    let merges = merges(file, tokens, kinds, &scores)?;
    let prefix = flag(gguf, "add_space_prefix", true);
    let mut normalizers = vec![json!({
        "type": "Replace", "pattern": { "String": " " }, "content": "▁",
    })];
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let unknown = kinds.iter().position(|&kind| kind == UNKNOWN);
    Ok(json!({
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": {
            "type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": true,
            "fuse_unk": true, "unk_token": unknown.map(|id| &tokens[id]),
        },
    }))
}

/// Every pair of tokens that makes a token, by the score of what it makes; of equal
/// ones the longer left part first.
fn merges(file: &str, tokens: &[String], kinds: &[i64], scores: &[f64]) -> Result<Vec<Value>> {
    let normal = || {
        tokens
            .iter()
            .zip(kinds)
            .zip(scores)
            .filter(|((_, k), _)| **k == NORMAL)
    };
    let known: BTreeMap<&str, ()> = normal()
        .map(|((token, _), _)| (token.as_str(), ()))
        .collect();
    let mut pairs = Vec::new();
    for ((token, _), &score) in normal() {
        ensure!(
            token.len() <= MAX_TOKEN_BYTES && !score.is_nan(),
            "{file}: a token of {} bytes with score {score}; expected up to {MAX_TOKEN_BYTES} \
             bytes and a number",
            token.len()
        );
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if known.contains_key(left) && known.contains_key(right) {
                pairs.push((score, left, right));
            }
        }
    }
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.len().cmp(&a.1.len())));
    Ok(pairs
        .into_iter()
        .map(|(_, left, right)| json!([left, right]))
        .collect())
}

/// The token that begins a text, in front of a plain one.
fn with_bos(gguf: &Gguf, tokens: &[String]) -> Result<Value> {
    let Some(id) = id(gguf, "bos_token_id")? else {
        bail!(
            "{}: metadata tokenizer.ggml.bos_token_id is missing",
            gguf.file()
        );
    };
    let Some(token) = tokens.get(id as usize) else {
        bail!(
            "{}: tokenizer.ggml.bos_token_id: expected one of {} tokens, found {id}",
            gguf.file(),
            tokens.len()
        );
    };
    let bos = json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let text = |id: &str, type_id: u32| json!({ "Sequence": { "id": id, "type_id": type_id } });
    Ok(json!({
        "type": "TemplateProcessing",
        "single": [bos, text("A", 0)],
        "pair": [bos, text("A", 0), text("B", 1)],
        "special_tokens": { token: { "id": token, "ids": [id], "tokens": [token] } },
    }))
}
