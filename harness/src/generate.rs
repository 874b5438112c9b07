//! A reply: a prompt's tokens in, new tokens and their text out as they come.

use crate::{
    engine::{Arm, Engine, Prefilled, TOKENS_PER_SUBMIT},
    interrupt,
    text::{Message, Text},
};
use anyhow::{Result, bail};
use kernels::ModelSpec;
use serde::Serialize;
use std::time::Instant;

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model gave a stop id.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The KV cache is full.
    Context,
    /// The user stopped it.
    Interrupted,
}

/// What came after a prompt.
#[derive(Debug)]
pub struct Reply {
    /// Ids, the stop id left out.
    pub tokens: Vec<u32>,
    /// Their text, special tokens left out.
    pub text: String,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// What the prompt took.
    pub prefilled: Prefilled,
    /// Nanoseconds to the first token.
    pub ttft_ns: u64,
    /// Tokens that were decoded after the first, those past a stop id too.
    pub decoded: usize,
    /// Nanoseconds that these took.
    pub decode_ns: u64,
}

impl Reply {
    /// Decoded tokens per second; `None` where the first token was the only one.
    pub fn decode_tok_s(&self) -> Option<f64> {
        (self.decoded > 0).then(|| self.decoded as f64 / (self.decode_ns as f64 * 1e-9))
    }
}

/// Refuses a prompt that no cache of the model holds, or that has no token.
///
/// # Errors
/// Says how many tokens it has and how many fit.
pub fn require_prompt(spec: &ModelSpec, tokens: usize) -> Result<()> {
    if tokens == 0 {
        bail!(
            "the prompt has no tokens, and {} begins no text by itself; write something, or \
             choose --chat",
            spec.id
        );
    }
    if tokens > spec.max_context() {
        bail!(
            "the prompt has {tokens} tokens, {} holds {}; shorten it",
            spec.id,
            spec.max_context()
        );
    }
    Ok(())
}

/// Runs a prompt and decodes up to `most` tokens after it, giving their text to
/// `show` as it comes. What the cache holds of the prompt is not run again.
///
/// Several tokens are decoded for each readback; those that follow a stop id among
/// them are thrown away.
///
/// # Errors
/// An empty or too long prompt, a device error, or what `show` returns.
pub fn reply(
    engine: &Engine<'_>,
    arm: &Arm,
    text: &Text,
    prompt: &[u32],
    most: usize,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<Reply> {
    let start = Instant::now();
    let prefilled = engine.prefill(&arm.prefill, prompt)?;
    let first = engine.token()?;
    let mut reply = Reply {
        tokens: Vec::new(),
        text: String::new(),
        stop_reason: StopReason::Length,
        prefilled,
        ttft_ns: crate::engine::nanos(start),
        decoded: 0,
        decode_ns: 0,
    };
    let mut stream = text.stream();
    let mut new = vec![first];
    // The position of the last of `new`, which is fed next.
    let mut position = prompt.len();
    'bursts: loop {
        for id in std::mem::take(&mut new) {
            if reply.tokens.len() == most {
                break 'bursts;
            }
            if text.stops().contains(&id) {
                reply.stop_reason = StopReason::Stop;
                break 'bursts;
            }
            reply.tokens.push(id);
            let part = stream.push(id);
            if !part.is_empty() {
                show(&part)?;
                reply.text.push_str(&part);
            }
        }
        let room = engine.memory.context() - position;
        let count = (most - reply.tokens.len()).min(TOKENS_PER_SUBMIT).min(room);
        if interrupt::asked() {
            reply.stop_reason = StopReason::Interrupted;
            break;
        }
        if count == 0 {
            if reply.tokens.len() < most {
                reply.stop_reason = StopReason::Context;
            }
            break;
        }
        let decoded = engine.decode(&arm.decode, position, count)?;
        reply.decoded += count;
        reply.decode_ns += decoded.wall_ns;
        new = engine.generated(position, count)?;
        position += count;
    }
    let rest = stream.finish();
    if !rest.is_empty() {
        show(&rest)?;
        reply.text.push_str(&rest);
    }
    Ok(reply)
}

/// A chat.
#[derive(Debug, Default)]
pub struct Chat {
    turns: Vec<Turn>,
}

/// A message, and the tokens of a reply as the model made them.
#[derive(Debug)]
struct Turn {
    message: Message,
    made: Vec<u32>,
}

impl Turn {
    const fn said(message: Message) -> Self {
        Self {
            message,
            made: vec![],
        }
    }
}

impl Chat {
    /// A chat that begins with what the model is told, if anything.
    pub fn new(system: Option<&str>) -> Self {
        let system = system.map(Message::system).map(Turn::said);
        Self {
            turns: system.into_iter().collect(),
        }
    }

    /// Adds what the user says and returns the tokens up to the reply.
    ///
    /// # Errors
    /// What the template refuses; the message is then not added.
    pub fn ask(&mut self, text: &Text, message: &str) -> Result<Vec<u32>> {
        self.turns.push(Turn::said(Message::user(message)));
        let asked = self.prompt(text);
        if asked.is_err() {
            self.turns.pop();
        }
        asked
    }

    /// The tokens up to the next reply. Replies are the tokens that were made, which
    /// their text need not give again, wherever the template writes a reply as it was;
    /// so the tokens begin with those of the turn before.
    ///
    /// # Errors
    /// What the template refuses.
    pub fn prompt(&self, text: &Text) -> Result<Vec<u32>> {
        let messages: Vec<Message> = self.turns.iter().map(|t| t.message.clone()).collect();
        // What is said holds no special token.
        let shielded = text.shield(&messages)?;
        let messages = &shielded.messages;
        let all = text.chat(messages)?;
        let mut ids = Vec::new();
        let mut at = 0;
        for (index, turn) in self.turns.iter().enumerate() {
            if turn.made.is_empty() {
                continue;
            }
            let before = text.chat(&messages[..index])?;
            let follows = all.strip_prefix(&before);
            let content = &messages[index].content;
            let follows = follows.is_some_and(|rest| rest.starts_with(content));
            if follows && before.len() >= at {
                ids.extend(text.encode_shielded(&all[at..before.len()], &shielded)?);
                ids.extend(&turn.made);
                at = before.len() + content.len();
            }
        }
        ids.extend(text.encode_shielded(&all[at..], &shielded)?);
        Ok(ids)
    }

    /// Adds the reply.
    pub fn answer(&mut self, reply: &Reply) {
        self.turns.push(Turn {
            message: Message::assistant(&*reply.text),
            made: reply.tokens.clone(),
        });
    }

    /// Takes back what the user said last.
    pub fn take_back(&mut self) {
        self.turns.pop_if(|turn| turn.message.role == "user");
    }

    /// Drops the oldest question and its answer; whether there was one.
    pub fn drop_oldest(&mut self) -> bool {
        let asks = |turn: &Turn| turn.message.role == "user";
        let mut questions = (0..self.turns.len()).filter(|&at| asks(&self.turns[at]));
        let (Some(first), Some(next)) = (questions.next(), questions.next()) else {
            return false;
        };
        self.turns.drain(first..next);
        true
    }
}
