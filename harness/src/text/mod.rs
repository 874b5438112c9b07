//! Text to token ids and back: the tokenizer, chat template and stop ids of a
//! checkpoint folder or a GGUF file.

mod gguf;
mod pieces;
mod shield;
mod template;

pub use pieces::Stream;
pub use shield::Shielded;
pub use template::{Message, Template};

use anyhow::{Context as _, Result, anyhow, bail};
use pieces::Pieces;
use reference::{
    convert::{Beside, Content},
    gguf::Gguf,
};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use tokenizers::Tokenizer;

/// Largest JSON file of a tokenizer: several times the largest published.
const MAX_JSON_BYTES: u64 = 256 << 20;
/// A message that no template writes by itself.
const PROBE: &str = "zqxjzqxj";

/// What turns text into a model's token ids, and back.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    pieces: Pieces,
    /// The model's chat template; `None` where the checkpoint has none.
    pub template: Option<Template>,
    /// Ids that end a reply.
    stops: BTreeSet<u32>,
    /// The file that it came from.
    source: PathBuf,
}

/// What the files beside a tokenizer say of it.
#[derive(Debug, Default)]
struct Config {
    bos_token: Option<String>,
    eos_token: Option<String>,
    /// Ids that end generation.
    eos_ids: Vec<u32>,
    template: Option<TemplateText>,
}

/// A chat template as it is stored.
#[derive(Debug)]
struct TemplateText {
    /// The file, with the key in it where it has others.
    source: String,
    text: String,
}

impl Config {
    /// What the metadata of a GGUF file say beside its tokenizer.
    fn of_gguf(gguf: &Gguf, described: &Value) -> Result<Self> {
        let token = |key: &str| -> Result<Option<String>> {
            let Some(id) = gguf::id(gguf, key)? else {
                return Ok(None);
            };
            Ok(gguf::token(described, id))
        };
        let mut eos_ids = Vec::new();
        for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            eos_ids.extend(gguf::id(gguf, key)?);
        }
        let key = "tokenizer.chat_template";
        let template = gguf.metadata().get(key).map(|_| gguf.string(key));
        let template = template.transpose()?.map(|text| TemplateText {
            source: format!("{}: metadata {key}", gguf.file()),
            text: text.to_owned(),
        });
        Ok(Self {
            bos_token: token("bos_token_id")?,
            eos_token: token("eos_token_id")?,
            eos_ids,
            template,
        })
    }
}

/// The files that tell a checkpoint folder what a GGUF file says of its text;
/// [`Text::from_folder`] reads from them what [`Text::from_gguf`] does.
///
/// # Errors
/// As [`Text::open`].
pub fn files_of_gguf(gguf: &Gguf, path: &Path) -> Result<Vec<Beside>> {
    // What no tokenizer can be made of is not written either.
    Text::from_gguf(gguf, path)?;
    let described = gguf::tokenizer_json(gguf)?;
    let config = Config::of_gguf(gguf, &described)?;
    let mut beside = Map::new();
    let texts = [
        ("bos_token", config.bos_token),
        ("eos_token", config.eos_token),
        ("chat_template", config.template.map(|found| found.text)),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            beside.insert(key.to_owned(), text.into());
        }
    }
    let file = |name: &str, value: &Value| -> Result<Beside> {
        Ok(Beside {
            name: name.to_owned(),
            content: Content::Bytes(serde_json::to_vec_pretty(value)?),
        })
    };
    Ok(vec![
        file("tokenizer.json", &described)?,
        file("tokenizer_config.json", &Value::Object(beside))?,
        file(
            "generation_config.json",
            &json!({ "eos_token_id": config.eos_ids }),
        )?,
    ])
}

impl Text {
    /// Reads the tokenizer of a checkpoint folder, or of a GGUF file.
    ///
    /// # Errors
    /// A file that is missing or cannot be read, naming it and what it should hold.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            Self::from_folder(path)
        } else {
            Self::from_gguf(&Gguf::open(path)?, path)
        }
    }

    /// Reads `tokenizer.json`, and where they are there `tokenizer_config.json`,
    /// `generation_config.json` and `chat_template.jinja`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_folder(dir: &Path) -> Result<Self> {
        let file = dir.join("tokenizer.json");
        let bytes = read(&file)?.with_context(|| {
            format!(
                "{}: no such file; a checkpoint folder needs its tokenizer to read and write text",
                file.display()
            )
        })?;
        let mut config = Config::default();
        let beside = dir.join("tokenizer_config.json");
        if let Some(found) = read_json(&beside)? {
            config.bos_token = special(&found["bos_token"]);
            config.eos_token = special(&found["eos_token"]);
            let text = chat_template(&found["chat_template"]);
            let source = || beside.display().to_string();
            config.template = text.map(|text| TemplateText {
                source: source(),
                text,
            });
        }
        if let Some(found) = read_json(&dir.join("generation_config.json"))? {
            let ids = &found["eos_token_id"];
            let ids = ids
                .as_array()
                .map_or(std::slice::from_ref(ids), Vec::as_slice);
            let ids = ids.iter().filter_map(Value::as_u64);
            config.eos_ids = ids.filter_map(|id| u32::try_from(id).ok()).collect();
        }
        let alone = dir.join("chat_template.jinja");
        if let Some(text) = read(&alone)? {
            let source = alone.display().to_string();
            let text = String::from_utf8(text).map_err(|_| anyhow!("{source}: not UTF-8"))?;
            config.template = Some(TemplateText { source, text });
        }
        Self::new(&file, &bytes, config)
    }

    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_gguf(gguf: &Gguf, path: &Path) -> Result<Self> {
        let described = gguf::tokenizer_json(gguf)?;
        let config = Config::of_gguf(gguf, &described)?;
        Self::new(path, &serde_json::to_vec(&described)?, config)
    }

    fn new(source: &Path, tokenizer: &[u8], config: Config) -> Result<Self> {
        let shown = source.display();
        let tokenizer = Tokenizer::from_bytes(tokenizer)
            .map_err(|error| anyhow!("{shown}: no tokenizer that can be read: {error}"))?;
        let pieces = Pieces::of(&tokenizer).with_context(|| shown.to_string())?;
        let template = config.template.map(|TemplateText { source, text }| {
            let tokens = [&config.bos_token, &config.eos_token];
            let tokens = tokens.map(|token| token.as_deref().unwrap_or_default());
            Template::new(&source, &text, tokens)
        });
        let template = template.transpose()?;
        let mut stops: BTreeSet<u32> = config.eos_ids.into_iter().collect();
        if let Some(eos) = &config.eos_token {
            let id = tokenizer.token_to_id(eos).with_context(|| {
                format!("{shown}: the end token {eos:?} is no token of the tokenizer")
            })?;
            stops.insert(id);
        }
        let mut text = Self {
            tokenizer,
            pieces,
            template,
            stops,
            source: source.to_owned(),
        };
        text.stops.extend(text.end_of_turn());
        Ok(text)
    }

    /// The special token that the chat template puts behind a reply.
    fn end_of_turn(&self) -> Option<u32> {
        let messages = [Message::user("a"), Message::assistant(PROBE)];
        let text = self.template.as_ref()?.render(&messages, false).ok()?;
        let (_, after) = text.rsplit_once(PROBE)?;
        let first = *self
            .tokenizer
            .encode(after, false)
            .ok()?
            .get_ids()
            .first()?;
        let special = self
            .tokenizer
            .get_added_vocabulary()
            .get_added_tokens_decoder();
        special
            .get(&first)
            .is_some_and(|token| token.special)
            .then_some(first)
    }

    /// The ids that end a reply: the end tokens of the tokenizer and of
    /// `generation_config.json`, and what the chat template puts behind a reply.
    pub const fn stops(&self) -> &BTreeSet<u32> {
        &self.stops
    }

    /// The ids of a text. `add_special` adds what the tokenizer puts around a plain
    /// text; a rendered chat has it already.
    ///
    /// # Errors
    /// When the tokenizer refuses the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encoded = self.tokenizer.encode(text, add_special);
        let encoded = encoded
            .map_err(|error| anyhow!("{}: the text has no ids: {error}", self.source.display()))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The text of ids, special tokens left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = self.stream();
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Text of ids that come one by one.
    pub fn stream(&self) -> Stream<'_> {
        Stream::new(&self.tokenizer, self.pieces)
    }

    /// A chat up to where the model's reply begins.
    ///
    /// # Errors
    /// Without a template, or where it refuses the messages.
    pub fn chat(&self, messages: &[Message]) -> Result<String> {
        let Some(template) = &self.template else {
            bail!(
                "{}: no chat template; expected one in tokenizer_config.json, \
                 chat_template.jinja or the GGUF's tokenizer.chat_template; leave --chat out",
                self.source.display()
            );
        };
        template.render(messages, true)
    }

    /// Refuses ids that a model has no row for.
    ///
    /// # Errors
    /// Names the id and the size of the vocabulary.
    pub fn require_within(&self, ids: &[u32], vocab_size: usize) -> Result<()> {
        match ids.iter().find(|&&id| id as usize >= vocab_size) {
            None => Ok(()),
            Some(id) => bail!(
                "{}: its token {id} is beyond the model's vocabulary of {vocab_size}; tokenizer \
                 and weights are of different models",
                self.source.display()
            ),
        }
    }
}

/// The bytes of a file; `None` where there is none.
fn read(file: &Path) -> Result<Option<Vec<u8>>> {
    let info = match std::fs::metadata(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        info => info.with_context(|| file.display().to_string())?,
    };
    if info.len() > MAX_JSON_BYTES {
        bail!(
            "{}: expected up to {MAX_JSON_BYTES} bytes, found {}",
            file.display(),
            info.len()
        );
    }
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    Ok(Some(bytes))
}

fn read_json(file: &Path) -> Result<Option<Value>> {
    let Some(bytes) = read(file)? else {
        return Ok(None);
    };
    let value = serde_json::from_slice(&bytes).with_context(|| file.display().to_string())?;
    Ok(Some(value))
}

/// A special token: its text, or an object that has it.
fn special(value: &Value) -> Option<String> {
    let text = value.as_str().or_else(|| value["content"].as_str());
    text.map(str::to_owned)
}

/// A chat template: its text, or a list of named ones that has a default.
fn chat_template(value: &Value) -> Option<String> {
    let named = || {
        let all = value.as_array()?;
        let default = all.iter().find(|one| one["name"] == "default");
        default?["template"].as_str()
    };
    value.as_str().or_else(named).map(str::to_owned)
}

/// The file or folder that a command's weights bring their tokenizer in.
///
/// # Errors
/// Synthetic weights, or a model whose weights cannot be had.
pub fn source(model: &str, weights: Option<&str>) -> Result<PathBuf> {
    match weights {
        Some("synthetic") => bail!(
            "--weights synthetic: random weights have no tokenizer and nothing to say; name a \
             checkpoint or leave --weights out"
        ),
        None | Some("gguf") => crate::model::published(model, weights),
        Some(path) => Ok(path.into()),
    }
}
