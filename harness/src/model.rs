//! The model of a command: its weights and its prompt.

use crate::env;
use anyhow::{Context as _, Result, anyhow, bail};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use kernels::{ModelSpec, models};
use reference::{
    Checkpoint,
    checkpoint::Container,
    fetch,
    folder::{self, Verification, Verify},
    gguf, synth,
};
use results::draw::split_mix;
use std::path::{Path, PathBuf};

/// Seed of synthetic weights and of seeded prompts when none is given.
pub const DEFAULT_SEED: u64 = 42;

/// The default prompt, as token ids of SmolLM2: `chat_sky` of the golden data.
pub const CHAT_SKY: &[u32] = &include!("chat_sky.in");

/// A prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// `chat_sky`, or `N seeded ids`.
    pub name: String,
    /// Token ids.
    pub ids: Vec<u32>,
}

/// Progress of a download on standard error: a bar, or lines where no terminal is there.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    /// Tenths of a step that were told in lines.
    tenths: u64,
}

/// A step of fewer bytes is over before a line about it is read.
const LONG_STEP_BYTES: u64 = 200 << 20;

impl Default for Bar {
    fn default() -> Self {
        let bar = ProgressBar::no_length();
        if let Ok(style) = ProgressStyle::with_template(
            "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        ) {
            bar.set_style(style);
        }
        Self { bar, tenths: 0 }
    }
}

/// A bar on standard error that counts up to a total of its own.
pub fn counting(what: &str) -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {percent} % {eta}") {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar
}

impl fetch::Progress for Bar {
    fn phase(&mut self, text: &str) {
        self.tenths = 0;
        self.bar.set_message(text.to_owned());
        if self.bar.is_hidden() {
            eprintln!("{text}");
        }
    }

    fn bytes(&mut self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        let tenths = (done * 10).checked_div(total).unwrap_or(0);
        if self.bar.is_hidden() && total >= LONG_STEP_BYTES && tenths > self.tenths {
            self.tenths = tenths;
            eprintln!("{} % of {}", tenths * 10, HumanBytes(total));
        }
    }
}

/// Fetches the published weights of a model: a file, or a checkpoint folder.
///
/// # Errors
/// Every source that was tried and why it failed.
pub fn fetch(model: &str) -> Result<PathBuf> {
    with_bar(|bar| fetch::fetch(model, &env::sources(), bar))
}

/// The published weights of a model that a command runs unless it is told others. A
/// file is fetched where needed; a folder, of gigabytes, must be in a cache. `weights`
/// may say `gguf`: then they must be a file.
///
/// # Errors
/// Why they cannot be had, and what would help.
pub fn published(model: &str, weights: Option<&str>) -> Result<PathBuf> {
    let download = fetch::download_of(model)?;
    match (download.form, weights) {
        (fetch::Form::File(_), _) => fetch(model),
        (fetch::Form::Folder, None) => {
            with_bar(|bar| fetch::cached_download(download, &env::sources(), bar))
        }
        (fetch::Form::Folder, Some(weights)) => bail!(
            "--weights {weights}: {} is published as the folder {}; leave --weights out",
            download.model,
            download.repo
        ),
    }
}

fn with_bar(fetch: impl FnOnce(&mut Bar) -> Result<PathBuf, fetch::FetchError>) -> Result<PathBuf> {
    let mut bar = Bar::default();
    let path = fetch(&mut bar);
    bar.bar.finish_and_clear();
    Ok(path?)
}

/// The weights that a command asks for, found and not yet read.
#[derive(Debug)]
pub struct Source {
    /// The model, or its first layers, in the formats of its weights.
    pub spec: ModelSpec,
    layers: Option<usize>,
    /// The file or folder; none of synthetic weights.
    path: Option<PathBuf>,
}

impl Source {
    /// `None` finds the weights of [`published`] where they can be had and synthetic ones
    /// otherwise; else `gguf`, `synthetic`, or a path. `layers` takes the model's first ones.
    ///
    /// # Errors
    /// When what was named cannot be had, or is no checkpoint.
    pub fn find(model: &str, weights: Option<&str>, layers: Option<usize>) -> Result<Self> {
        let published = match weights {
            Some("synthetic") => None,
            Some("gguf") => Some(published(model, weights)?),
            Some(path) => return Self::at(path.into(), layers),
            None => match published(model, None) {
                Ok(path) => Some(path),
                Err(error) => {
                    let id = models::find(model)?.id;
                    eprintln!("note: {id}: real weights cannot be had: {error:#}");
                    None
                }
            },
        };
        match published {
            Some(path) => Self::published(model, path, layers),
            None => Ok(Self {
                spec: first_layers(models::find(model)?, layers)?,
                layers,
                path: None,
            }),
        }
    }

    /// Those of a GGUF file or a checkpoint folder, of which headers or configuration are
    /// read.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn at(path: PathBuf, layers: Option<usize>) -> Result<Self> {
        let spec = if path.is_dir() {
            folder::require_weights(&path)?;
            folder::describe(&path)?
        } else if path.is_file() {
            gguf::Model::new(&gguf::Gguf::open(&path)?)?.stored_spec()?
        } else {
            return Err(nothing_at(&path));
        };
        Ok(Self {
            spec: first_layers(spec, layers)?,
            layers,
            path: Some(path),
        })
    }

    /// The same of [`published`] weights, which must be those of the model.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn published(model: &str, path: PathBuf, layers: Option<usize>) -> Result<Self> {
        let shown = path.display().to_string();
        let found = Self::at(path, layers)?;
        let expected = models::find(model)?.id;
        if found.spec.id != expected {
            bail!(
                "{shown}: expected the weights of {expected}, found those of {}; run them with \
                 --weights {shown}",
                found.spec.id
            );
        }
        Ok(found)
    }

    /// Reads the weights, shards hashed as often as `verify` says; synthetic ones follow
    /// from `seed`.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn load(&self, seed: u64, verify: Verify) -> Result<Checkpoint> {
        let loaded = match &self.path {
            Some(path) => open(path, verify)?,
            None => synthetic(&self.spec, seed)?,
        };
        match self.layers {
            None => Ok(loaded),
            Some(layers) => loaded.truncated(layers).with_context(|| of_option(layers)),
        }
    }
}

/// Loads the weights that a command asks for, as [`Source::find`] finds them. Shards are
/// hashed once.
///
/// # Errors
/// When what was named cannot be had or loaded.
pub fn load(model: &str, weights: Option<&str>, seed: u64) -> Result<Checkpoint> {
    Source::find(model, weights, None)?.load(seed, Verify::Once)
}

/// A model, or its first layers where that is said.
///
/// # Errors
/// When it has not so many.
pub fn first_layers(spec: ModelSpec, layers: Option<usize>) -> Result<ModelSpec> {
    match layers {
        None => Ok(spec),
        Some(layers) => spec.truncated(layers).with_context(|| of_option(layers)),
    }
}

fn of_option(layers: usize) -> String {
    format!("--layers {layers}")
}

/// Loads a GGUF file or a checkpoint folder.
///
/// # Errors
/// What is wrong with it.
pub fn open(path: &Path, verify: Verify) -> Result<Checkpoint> {
    let silent = |_: u64, _: u64| {};
    if path.is_dir() {
        let stamps = env::cache_dir().join("verified");
        let verification = Verification {
            verify,
            stamps: Some(&stamps),
        };
        Ok(folder::read_with(path, verification, &silent)?)
    } else if path.is_file() {
        Ok(gguf::load(path, &silent)?)
    } else {
        Err(nothing_at(path))
    }
}

fn nothing_at(path: &Path) -> anyhow::Error {
    anyhow!(
        "--weights {}: no such file or folder; expected `gguf`, `synthetic`, a GGUF file or the \
         folder of an MLC or MLX checkpoint",
        path.display()
    )
}

/// The model of an id or published name, or the one that a configuration describes: a
/// folder, its configuration itself, or a GGUF file. Weights need not be there.
///
/// # Errors
/// A name that is not known, or a configuration of no model.
pub fn described(name: &str) -> Result<ModelSpec> {
    let path = Path::new(name);
    let ends_in = |ending| path.extension().is_some_and(|found| found == ending);
    match models::find(name) {
        Err(_) if path.is_dir() || path.is_file() && ends_in("json") => Ok(folder::describe(path)?),
        Err(_) if path.is_file() => {
            let gguf = gguf::Gguf::open(path)?;
            Ok(gguf::Model::new(&gguf)?.spec().clone())
        }
        Err(_) if path.components().count() > 1 || ends_in("json") || ends_in("gguf") => bail!(
            "--model {name}: no such file or folder; expected the name of a model, a folder with \
             its configuration, or a GGUF file"
        ),
        found => Ok(found?),
    }
}

fn synthetic(spec: &ModelSpec, seed: u64) -> Result<Checkpoint> {
    synth::checkpoint(spec, seed).with_context(|| format!("synthetic weights of {}", spec.id))
}

/// Whether the weights are seeded random numbers.
pub fn is_synthetic(weights: &Checkpoint) -> bool {
    weights.provenance().weights == Container::Synthetic
}

/// The prompt of a command: `length` seeded ids, or the embedded chat prompt
/// where the vocabulary holds it.
///
/// # Errors
/// A length of zero, or beyond the model's context.
pub fn prompt(spec: &ModelSpec, length: Option<usize>, seed: u64) -> Result<Prompt> {
    match length {
        Some(0) => bail!("--prompt 0: expected at least one token"),
        Some(length) if length > spec.max_context() => bail!(
            "--prompt {length}: {} holds {} positions",
            spec.id,
            spec.max_context()
        ),
        None if spec.id == models::DEFAULT_MODEL => Ok(Prompt {
            name: "chat_sky".into(),
            ids: CHAT_SKY.to_vec(),
        }),
        _ => {
            let length = length.unwrap_or(CHAT_SKY.len());
            let mut state = seed;
            let ids = (0..length)
                .map(|_| (split_mix(&mut state) % spec.vocab_size as u64) as u32)
                .collect();
            Ok(Prompt {
                name: format!("{length} seeded ids"),
                ids,
            })
        }
    }
}
