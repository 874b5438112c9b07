//! `generate` and `chat`: text in, text out.

use super::{LayersArg, answer, choices, counted};
use crate::{
    device::Gpu,
    engine::{Arm, Engine},
    generate::{self, Chat, Reply, StopReason},
    interrupt,
    model::Source,
    text::{self, Message, Text},
};
use ::kernels::{
    Plan, Settings,
    models::{self, DEFAULT_MODEL},
    sampling::{Draw, Sampling},
};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use reference::{Checkpoint, folder::Verify};
use serde_json::json;
use std::io::{self, BufRead, IsTerminal as _, Write as _};

/// Seed of a reply where none is given.
const DEFAULT_SEED: u32 = 42;
/// Positions of a chat where none are given, as far as the model holds them.
const CHAT_CONTEXT: usize = 4096;

/// A model that reads and writes text.
#[derive(Debug, Args)]
pub(super) struct TextModelArgs {
    /// The model's id or published name; by default that of the weights named, or
    /// smollm2-135m
    #[arg(long)]
    pub(super) model: Option<String>,
    /// `gguf`, a GGUF file or the folder of an MLC or MLX checkpoint with its tokenizer;
    /// by default those that `fetch` has of the model
    #[arg(long)]
    pub(super) weights: Option<String>,
    #[command(flatten)]
    layers: LayersArg,
    /// A flag's value; FLAG alone takes its first value that is not off; repeatable
    #[arg(long = "flag", value_name = "FLAG=VALUE")]
    pub(super) flags: Vec<String>,
    /// Adapter whose name contains this
    #[arg(long, value_name = "NAME")]
    pub(super) adapter: Option<String>,
}

impl TextModelArgs {
    /// Where the weights are, and what reads and writes their text: the tokenizer beside
    /// them, since another is of other weights.
    pub(super) fn source(&self) -> Result<(Source, Text)> {
        let id = self.model.as_deref().unwrap_or(DEFAULT_MODEL);
        models::find(id)?;
        let (named, layers) = (self.weights.as_deref(), self.layers.layers);
        let path = text::source(id, named)?;
        let source = match named {
            None | Some("gguf") => Source::published(id, path.clone(), layers)?,
            Some(_) => Source::at(path.clone(), layers)?,
        };
        if let Some(model) = &self.model
            && models::find(model)?.id != source.spec.id
        {
            bail!(
                "--model {model}: the weights are those of {}; leave --model out",
                source.spec.id
            );
        }
        Ok((source, Text::open(&path)?))
    }
}

/// The weights of a source of [`TextModelArgs::source`], which are never synthetic.
pub(super) fn read(source: &Source) -> Result<Checkpoint> {
    source.load(0, Verify::Once)
}

/// How the next token is chosen.
#[derive(Debug, Args)]
struct SamplingArgs {
    /// 0 takes the likeliest token; above, one is drawn
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Keep the likeliest tokens that have this share of the probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Keep tokens at least this likely, relative to the likeliest
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Keep this many of the likeliest tokens; 0 keeps all
    #[arg(long, default_value_t = 0)]
    top_k: u32,
    /// The same seed draws the same text
    #[arg(long, default_value_t = DEFAULT_SEED)]
    seed: u32,
}

impl SamplingArgs {
    fn sampling(&self) -> Result<Sampling> {
        let draw = Draw {
            temperature: self.temperature,
            top_p: self.top_p,
            min_p: self.min_p,
            top_k: self.top_k,
            seed: self.seed,
        };
        let sampling = Sampling::new(draw)?;
        let plain = Draw {
            temperature: 0.0,
            seed: self.seed,
            ..Draw::PLAIN
        };
        if sampling == Sampling::Greedy && draw != plain {
            bail!(
                "--top-p, --min-p and --top-k do nothing at temperature 0; add --temperature, 1 \
                 for instance"
            );
        }
        Ok(sampling)
    }
}

#[derive(Debug, Args)]
pub(super) struct GenerateArgs {
    /// The text to go on from
    #[arg(long, allow_hyphen_values = true)]
    prompt: String,
    /// Make the prompt the user's message in the model's chat template
    #[arg(long)]
    chat: bool,
    /// What the model is told before a chat
    #[arg(
        long,
        value_name = "TEXT",
        requires = "chat",
        allow_hyphen_values = true
    )]
    system: Option<String>,
    /// Most tokens of the reply
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    model: TextModelArgs,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ChatArgs {
    /// What the model is told first
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Most tokens of a reply
    #[arg(long, default_value_t = 512)]
    tokens: usize,
    /// Positions of the KV cache; by default 4096, or what the model holds
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    model: TextModelArgs,
}

/// Prints a piece of text at once. A reader that has gone is no error.
fn show(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("writing to standard output")
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(super) fn run_generate(args: &GenerateArgs) -> Result<u8> {
    let sampling = args.sampling.sampling()?;
    let choices = choices(&args.model.flags)?;
    if args.tokens == 0 {
        bail!("--tokens 0: expected at least one");
    }
    let (source, text) = args.model.source()?;
    let spec = &source.spec;
    let prompt = if args.chat {
        Chat::new(args.system.as_deref()).ask(&text, &args.prompt)?
    } else {
        text.encode(&args.prompt, true)?
    };
    generate::require_prompt(spec, prompt.len())?;
    text.require_within(&prompt, spec.vocab_size)?;
    let gpu = Gpu::open(args.model.adapter.as_deref())?;
    let settings = Settings::resolve(&gpu.features, &choices)?.with_sampling(sampling);
    Plan::require(spec, &settings, &gpu.features)?;
    let weights = read(&source)?;
    let context = prompt
        .len()
        .saturating_add(args.tokens)
        .min(spec.max_context());
    let mut engine = Engine::new(&gpu, &weights, context, None)?;
    let arm = engine.arm(&settings)?;
    interrupt::listen();
    let streams = !args.json;
    let reply = generate::reply(&engine, &arm, &text, &prompt, args.tokens, |part| {
        if streams { show(part) } else { Ok(()) }
    })?;
    let title = &weights.provenance().title;
    let document = json!({
        "model": spec.id,
        "title": title,
        "adapter": gpu.info.name,
        "settings": settings.values(),
        "sampling": match sampling {
            Sampling::Greedy => json!("greedy"),
            Sampling::Drawn(draw) => json!({
                "temperature": typed(draw.temperature),
                "top_p": typed(draw.top_p),
                "min_p": typed(draw.min_p),
                "top_k": draw.top_k,
                "seed": draw.seed,
            }),
        },
        "prompt_tokens": prompt.len(),
        "tokens": reply.tokens,
        "text": reply.text,
        "ttft_ms": reply.ttft_ns as f64 * 1e-6,
        "decode_tok_s": reply.decode_tok_s(),
        "stop_reason": reply.stop_reason,
    });
    if args.json {
        answer(true, &document, "")?;
    } else {
        show("\n")?;
        eprintln!(
            "{title} on {}: {}",
            gpu.info.name,
            summary(&prompt, &reply, context)
        );
    }
    Ok(0)
}

/// A number as it was typed, not as the nearest f32.
fn typed(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// What a reply took, and why it ended.
fn summary(prompt: &[u32], reply: &Reply, context: usize) -> String {
    let rate = reply.decode_tok_s();
    let rate = rate.map_or(String::new(), |rate| format!(", then {rate:.1} tokens/s"));
    let ended = match reply.stop_reason {
        StopReason::Stop => "",
        StopReason::Length => "; stopped at --tokens",
        StopReason::Context => "; stopped, the context is full",
        StopReason::Interrupted => "; stopped by Ctrl-C",
    };
    format!(
        "prompt {}, {} prefilled, {} reused; reply {}, first after {:.0} ms{rate}; {} of {context} \
         positions{ended}",
        counted(prompt.len(), "token"),
        reply.prefilled.tokens,
        reply.prefilled.reused,
        counted(reply.tokens.len(), "token"),
        reply.ttft_ns as f64 * 1e-6,
        positions(prompt.len(), reply.tokens.len(), reply.stop_reason),
    )
}

/// Positions of the KV cache that a reply leaves taken. The last token is fed only where
/// the model gave a stop id after it.
fn positions(prompt: usize, tokens: usize, stop_reason: StopReason) -> usize {
    let fed = match stop_reason {
        StopReason::Stop => tokens,
        StopReason::Length | StopReason::Context | StopReason::Interrupted => {
            tokens.saturating_sub(1)
        }
    };
    prompt + fed
}

/// Reads a line; none at the end of the input.
fn line(prompt: &str) -> Result<Option<String>> {
    if io::stdin().is_terminal() {
        show(prompt)?;
    }
    interrupt::waiting(true);
    let read = next_line(&mut io::stdin().lock(), || {
        eprintln!("not sent: the line is not UTF-8; write it in UTF-8");
    });
    interrupt::waiting(false);
    read.context("reading standard input")
}

/// The next line in UTF-8; those that are not are `refused`.
fn next_line(input: &mut impl BufRead, refused: impl Fn()) -> io::Result<Option<String>> {
    loop {
        let mut bytes = Vec::new();
        if input.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(None);
        }
        match String::from_utf8(bytes) {
            Ok(line) => return Ok(Some(line.trim().to_owned())),
            Err(_) => refused(),
        }
    }
}

pub(super) fn run_chat(args: &ChatArgs) -> Result<u8> {
    let sampling = args.sampling.sampling()?;
    let choices = choices(&args.model.flags)?;
    if args.tokens == 0 {
        bail!("--tokens 0: expected at least one");
    }
    let (source, text) = args.model.source()?;
    let spec = &source.spec;
    // Without a template this is where it is said.
    text.chat(&[Message::user("")])?;
    let most = spec.max_context();
    let context = args.context.unwrap_or_else(|| CHAT_CONTEXT.min(most));
    if context == 0 || context > most {
        bail!(
            "--context {context}: expected 1 to {most}, what {} holds",
            spec.id
        );
    }
    let gpu = Gpu::open(args.model.adapter.as_deref())?;
    let settings = Settings::resolve(&gpu.features, &choices)?.with_sampling(sampling);
    Plan::require(spec, &settings, &gpu.features)?;
    let weights = read(&source)?;
    let mut engine = Engine::new(&gpu, &weights, context, None)?;
    let arm = engine.arm(&settings)?;
    interrupt::listen();
    eprintln!(
        "{} on {}. /new begins another chat, /quit or the end of the input ends; Ctrl-C stops a \
         reply.",
        weights.provenance().title,
        gpu.info.name
    );
    let mut session = Session {
        engine: &engine,
        arm: &arm,
        text: &text,
        chat: Chat::new(args.system.as_deref()),
        system: args.system.as_deref(),
        tokens: args.tokens,
    };
    while let Some(message) = line("> ")? {
        match message.as_str() {
            "" => {}
            "/quit" => break,
            "/new" => session.chat = Chat::new(session.system),
            message => {
                if !session.turn(message)? {
                    break;
                }
            }
        }
    }
    Ok(0)
}

/// A chat at a terminal.
struct Session<'s> {
    engine: &'s Engine<'s>,
    arm: &'s Arm,
    text: &'s Text,
    chat: Chat,
    system: Option<&'s str>,
    tokens: usize,
}

impl Session<'_> {
    /// Answers a message; false where the user ends the chat.
    fn turn(&mut self, message: &str) -> Result<bool> {
        let mut prompt = match self.chat.ask(self.text, message) {
            Ok(prompt) => prompt,
            Err(error) => {
                eprintln!("not sent: {error:#}");
                return Ok(true);
            }
        };
        while prompt.len() >= self.engine.memory.context() {
            match self.shorten(message, prompt.len())? {
                Some(shorter) => prompt = shorter,
                None => return Ok(true),
            }
            if prompt.is_empty() {
                return Ok(false);
            }
        }
        let vocab = self.engine.weights.spec().vocab_size;
        self.text.require_within(&prompt, vocab)?;
        let reply = generate::reply(self.engine, self.arm, self.text, &prompt, self.tokens, show)?;
        show("\n")?;
        let context = self.engine.memory.context();
        eprintln!("[{}]", summary(&prompt, &reply, context));
        self.chat.answer(&reply);
        interrupt::waiting(true);
        Ok(true)
    }

    /// Asks what to do with a chat that does not fit: the tokens of a shorter one; none
    /// where the message is not sent, no tokens where the user ends the chat.
    fn shorten(&mut self, message: &str, tokens: usize) -> Result<Option<Vec<u32>>> {
        let context = self.engine.memory.context();
        let mut alone = Chat::new(self.system);
        if alone.ask(self.text, message)?.len() >= context {
            eprintln!(
                "not sent: this message alone leaves no room for a reply in {context} positions; \
                 shorten it, or start with a larger --context"
            );
            self.chat.take_back();
            return Ok(None);
        }
        eprintln!(
            "the chat has {tokens} tokens with this message, and the context has {context} \
             positions. d: drop the oldest question and answer; n: send it in a new chat; c: take \
             it back; q: quit"
        );
        loop {
            let Some(choice) = line("d, n, c or q> ")? else {
                return Ok(Some(vec![]));
            };
            match choice.as_str() {
                "d" if self.chat.drop_oldest() => return self.chat.prompt(self.text).map(Some),
                "d" => eprintln!("there is nothing older; n, c or q"),
                "n" => {
                    self.chat = Chat::new(self.system);
                    return self.chat.ask(self.text, message).map(Some);
                }
                "c" => {
                    self.chat.take_back();
                    return Ok(None);
                }
                "q" | "/quit" => return Ok(Some(vec![])),
                other => eprintln!("expected d, n, c or q, found {other:?}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_line_that_is_not_utf_8_is_refused_alone() {
        let mut input = &b" one \n\xff\xfe\ntwo"[..];
        let refused = Cell::new(0);
        let mut next = || next_line(&mut input, || refused.set(refused.get() + 1));
        assert_eq!(next().expect("read").as_deref(), Some("one"), "first");
        assert_eq!(next().expect("read").as_deref(), Some("two"), "past it");
        assert_eq!(next().expect("read"), None, "the end");
        assert_eq!(refused.get(), 1, "one line");
    }

    #[test]
    fn no_more_positions_are_taken_than_there_are() {
        // A prompt of 9 in 16 positions gives 8 tokens: nothing follows the last.
        assert_eq!(positions(9, 8, StopReason::Context), 16, "full");
        assert_eq!(positions(9, 8, StopReason::Length), 16, "not fed");
        assert_eq!(positions(9, 7, StopReason::Stop), 16, "all fed");
        assert_eq!(positions(9, 0, StopReason::Stop), 9, "no reply");
        assert_eq!(positions(9, 0, StopReason::Interrupted), 9, "no reply");
    }
}
