//! A golden folder: what it holds, read and checked.
//!
//! A golden folder is an MLC or MLX checkpoint, or `prompts.json` whose `gguf` has
//! the `sha256` of a file that can be fetched, and `expected.safetensors`. That file
//! has, for each prompt `P`, `P.input_ids` [n] and `P.logits` [n, V] or
//! `P.last_logits` [V] of the last position alone, and may have `P.logits_cached` [n, V] or `P.logits_cached_last` [1, V] (fed token by
//! token), `P.greedy` with `P.greedy_gap` [m], and stages of the forward pass:
//! `P.STAGE` [n, D] of every position, `P.last.STAGE` [1, D] of the last. Stages
//! are `embed`, `layers.L.` with `input_norm`, `mixer_out`, `post_attn_residual`,
//! `post_attn_norm`, `ffn_out` and `out`, of experts also `router_logits` [n, E], to which
//! `shared_gate_logit` [n, 1] is a further column, and `final_norm`.

use crate::model;
use anyhow::{Context as _, Result, bail, ensure};
use reference::{
    Checkpoint,
    fetch::{DOWNLOADS, Form},
    folder, gguf,
    golden::{Golden, Values},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// The file beside the checkpoint.
const EXPECTED: &str = "expected.safetensors";
/// The file that names the weights where they are not beside it.
const PROMPTS: &str = "prompts.json";
/// The stage of a router's logits, and what stands beside it.
pub(super) const ROUTER: &str = "router_logits";
pub(super) const SHARED_GATE: &str = "shared_gate_logit";

/// One prompt with its expected outputs.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) name: String,
    pub(super) ids: Vec<u32>,
    /// Rows by position.
    pub(super) logits: BTreeMap<usize, Vec<f64>>,
    /// Logits of single positions when fed token by token.
    pub(super) cached: BTreeMap<usize, Vec<f64>>,
    pub(super) greedy: Vec<u32>,
    pub(super) gaps: Vec<f64>,
    /// Stages in the order of computation.
    pub(super) stages: Vec<Stage>,
}

impl Prompt {
    /// Whether every position has expected logits, not the last alone.
    pub(super) fn has_all_rows(&self) -> bool {
        self.logits.len() == self.ids.len()
    }
}

/// Expected values of one stage.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) name: String,
    /// Rows by position.
    pub(super) rows: BTreeMap<usize, Vec<f64>>,
}

/// A golden folder in memory.
#[derive(Debug)]
pub struct Folder {
    /// The checkpoint.
    pub weights: Checkpoint,
    /// Tensors of the file that nothing is compared with.
    pub ignored: Vec<String>,
    pub(super) prompts: Vec<Prompt>,
}

impl Folder {
    /// Reads a folder and checks the shape of everything in it.
    ///
    /// # Errors
    /// When it is not of the form that this module describes.
    pub fn open(dir: &Path) -> Result<Self> {
        let shown = dir.display();
        ensure!(dir.exists(), "{shown}: no such folder");
        ensure!(dir.is_dir(), "{shown}: expected a folder, found a file");
        ensure!(
            dir.join(EXPECTED).is_file(),
            "{shown}: not a golden folder: it has no {EXPECTED}; expected it beside an MLC or MLX \
             checkpoint"
        );
        let weights = if dir.join(PROMPTS).is_file() {
            fetched(&dir.join(PROMPTS))?
        } else {
            folder::read(dir, &|_, _| {})?
        };
        let golden = Golden::open(dir.join(EXPECTED))?;
        let mut reader = Reader {
            golden: &golden,
            weights: &weights,
            unread: golden.names()?.into_iter().collect(),
        };
        let prompts = reader.prompts()?;
        Ok(Self {
            prompts,
            ignored: reader.unread.into_iter().collect(),
            weights,
        })
    }

    /// Positions that the longest prompt and its continuation take.
    pub(super) fn context(&self) -> usize {
        let positions = self.prompts.iter().map(|p| p.ids.len() + p.greedy.len());
        positions.max().unwrap_or(0)
    }
}

/// The weights that a list of prompts names.
fn fetched(prompts: &Path) -> Result<Checkpoint> {
    let shown = prompts.display();
    let text = std::fs::read(prompts).with_context(|| shown.to_string())?;
    let document: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| shown.to_string())?;
    let sha256 = document["gguf"]["sha256"].as_str();
    let sha256 = sha256.with_context(|| {
        format!(
            "{shown}: expected gguf.sha256, that of a file that can be fetched, and found none; \
             where the checkpoint lies in the folder itself, remove {PROMPTS}"
        )
    })?;
    let mut known = DOWNLOADS.iter();
    let is_it = |form: Form| matches!(form, Form::File(file) if file.sha256 == sha256);
    let download = known.find(|d| is_it(d.form)).with_context(|| {
        format!("{shown}: gguf.sha256: expected that of a file that can be fetched, found {sha256}")
    })?;
    Ok(gguf::load(&model::fetch(download.model)?, &|_, _| {})?)
}

struct Reader<'a> {
    golden: &'a Golden,
    weights: &'a Checkpoint,
    unread: BTreeSet<String>,
}

impl Reader<'_> {
    /// The file, as messages name it.
    fn shown(&self) -> std::path::Display<'_> {
        self.golden.file().display()
    }

    fn prompts(&mut self) -> Result<Vec<Prompt>> {
        let names: Vec<String> = self
            .unread
            .iter()
            .filter_map(|name| name.strip_suffix(".input_ids"))
            .map(str::to_owned)
            .collect();
        ensure!(
            !names.is_empty(),
            "{}: no prompt: expected tensors like p0.input_ids and p0.logits",
            self.shown()
        );
        names.into_iter().map(|name| self.prompt(name)).collect()
    }

    fn prompt(&mut self, name: String) -> Result<Prompt> {
        let (vocab, d) = {
            let spec = self.weights.spec();
            (spec.vocab_size, spec.hidden_size)
        };
        let ids = self.tokens(&format!("{name}.input_ids"))?;
        ensure!(
            !ids.is_empty(),
            "{}: {name}.input_ids is empty; expected one token at least",
            self.shown()
        );
        let last = ids.len() - 1;
        let one = format!("{name}.last_logits");
        let logits = if self.unread.contains(&one) {
            self.unread.remove(&format!("{name}.greedy_logit"));
            let row = self.rows(&one, 1, vocab)?.concat();
            BTreeMap::from([(last, row)])
        } else {
            let rows = self.rows(&format!("{name}.logits"), ids.len(), vocab)?;
            rows.into_iter().enumerate().collect()
        };
        let mut cached = BTreeMap::new();
        let all = format!("{name}.logits_cached");
        if self.unread.contains(&all) {
            cached.extend(self.rows(&all, ids.len(), vocab)?.into_iter().enumerate());
        }
        let one = format!("{name}.logits_cached_last");
        if self.unread.contains(&one) {
            cached.extend(
                self.rows(&one, 1, vocab)?
                    .into_iter()
                    .map(|row| (last, row)),
            );
        }
        let (mut greedy, mut gaps) = (vec![], vec![]);
        let tokens = format!("{name}.greedy");
        if self.unread.contains(&tokens) {
            greedy = self.tokens(&tokens)?;
            gaps = self
                .rows(&format!("{name}.greedy_gap"), 1, greedy.len())?
                .concat();
            if let Some(gap) = gaps.iter().find(|gap| gap.is_nan() || **gap < 0.0) {
                bail!(
                    "{}: {name}.greedy_gap: expected differences of two logits, 0 or above, \
                     found {gap}",
                    self.shown()
                );
            }
        }
        let mut stages = Vec::new();
        let spec = self.weights.spec();
        for stage in stages_of(spec.num_hidden_layers) {
            let routes = stage.ends_with(ROUTER);
            let d = match spec.experts.filter(|_| routes) {
                Some(experts) => experts.num_experts,
                None => d,
            };
            let mut rows = BTreeMap::new();
            let all = format!("{name}.{stage}");
            if self.unread.contains(&all) {
                rows.extend(self.rows(&all, ids.len(), d)?.into_iter().enumerate());
            }
            let one = format!("{name}.last.{stage}");
            if self.unread.contains(&one) {
                rows.extend(self.rows(&one, 1, d)?.into_iter().map(|row| (last, row)));
            }
            // The shared expert's gate is a row of the router.
            let gate = stage.replace(ROUTER, SHARED_GATE);
            for (name, count) in [
                (format!("{name}.{gate}"), ids.len()),
                (format!("{name}.last.{gate}"), 1),
            ] {
                if routes && self.unread.contains(&name) {
                    let gates = self.rows(&name, count, 1)?;
                    for (row, gate) in rows.values_mut().zip(gates) {
                        row.extend(gate);
                    }
                }
            }
            if !rows.is_empty() {
                stages.push(Stage { name: stage, rows });
            }
        }
        Ok(Prompt {
            name,
            ids,
            logits,
            cached,
            greedy,
            gaps,
            stages,
        })
    }

    /// Token ids of the model.
    fn tokens(&mut self, name: &str) -> Result<Vec<u32>> {
        self.unread.remove(name);
        let vocab = self.weights.spec().vocab_size;
        let shown = self.shown();
        let ids = self.golden.i32(name)?.data;
        let token = |id: i32| {
            let token = u32::try_from(id).ok().filter(|&t| (t as usize) < vocab);
            token.with_context(|| {
                format!("{shown}: {name}: {id} is outside the vocabulary of {vocab}")
            })
        };
        ids.into_iter().map(token).collect()
    }

    /// `rows` rows of `width` values; one row may be a vector.
    fn rows(&mut self, name: &str, rows: usize, width: usize) -> Result<Vec<Vec<f64>>> {
        self.unread.remove(name);
        let Values { shape, data } = self.golden.f32(name)?;
        if shape != [rows, width] && !(rows == 1 && shape == [width]) {
            bail!(
                "{}: {name}: expected [{rows}, {width}], found {shape:?}",
                self.shown()
            );
        }
        let row = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect();
        Ok(data.chunks_exact(width.max(1)).map(row).collect())
    }
}

/// Every stage that may be compared, in the order of computation.
fn stages_of(layers: usize) -> Vec<String> {
    let mut stages = vec!["embed".to_owned()];
    for layer in 0..layers {
        for stage in [
            "input_norm",
            "mixer_out",
            "post_attn_residual",
            "post_attn_norm",
            ROUTER,
            "ffn_out",
            "out",
        ] {
            stages.push(format!("layers.{layer}.{stage}"));
        }
    }
    stages.push("final_norm".into());
    stages
}
