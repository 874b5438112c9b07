//! The keys of a configuration. Unknown keys are refused.

use super::{FolderError, field};
use kernels::models::{Experts, Family, GatedDeltaNet, ModelSpec, RopeScaling, registry};
use kernels::quant::QuantFormat;
use kernels::suggest;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Most KV pages of a model that the registry does not know.
const MAX_PAGES: usize = 512;
/// Most frequencies of RoPE: those of a head of 256.
const MAX_FACTORS: usize = 128;

/// An object of a configuration.
pub(crate) struct Fields<'a> {
    /// The file.
    pub(crate) file: PathBuf,
    /// What stands before a key where an error names it.
    pub(crate) prefix: &'static str,
    /// The object.
    pub(crate) map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The keys of a whole file.
    pub(crate) const fn of(file: PathBuf, map: &'a Map<String, Value>) -> Self {
        let prefix = "";
        Self { file, prefix, map }
    }
}

impl Fields<'_> {
    /// A key whose value is wrong.
    pub(crate) fn error(
        &self,
        key: &str,
        expected: impl ToString,
        found: Option<&Value>,
    ) -> FolderError {
        let found = found.map_or("nothing".into(), |value| {
            let text = value.to_string();
            text.chars().take(80).collect::<String>()
        });
        field(
            &self.file,
            format!("{}{key}", self.prefix),
            expected,
            found,
            "",
        )
    }

    /// Refuses keys that are neither `used` nor `ignored`, since they could change
    /// the arithmetic unseen, and values other than the `only` ones.
    pub(crate) fn check_keys(
        &self,
        used: &[&str],
        ignored: &[&str],
        only: &[(&str, Value)],
    ) -> Result<(), FolderError> {
        for (key, value) in self.map {
            let known = || used.iter().chain(ignored);
            if !known().any(|k| k == key) {
                let known: Vec<&str> = known().copied().collect();
                return Err(self.error(
                    key,
                    match suggest::nearest(key, &known) {
                        Some(near) => format!("no such key (did you mean {near}?)"),
                        None => "no such key, as it may change the arithmetic".into(),
                    },
                    Some(value),
                ));
            }
        }
        for (key, only) in only {
            match self.map.get(*key) {
                Some(value) if value != only => return Err(self.error(key, only, Some(value))),
                Some(_) | None => (),
            }
        }
        Ok(())
    }

    /// True or false; false where the key is absent.
    pub(crate) fn flag(&self, key: &str) -> Result<bool, FolderError> {
        match self.map.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            other => Err(self.error(key, "true or false", other)),
        }
    }

    /// Width of a head: its key, or the model's width over its heads.
    pub(crate) fn head_dim(&self) -> Result<usize, FolderError> {
        match self.map.get("head_dim") {
            None => Ok(self
                .size("hidden_size")?
                .checked_div(self.size("num_attention_heads")?)
                .unwrap_or(0)),
            Some(_) => self.size("head_dim"),
        }
    }

    /// Pages that hold as many positions as `key` says.
    pub(crate) fn pages(&self, key: &str) -> Result<usize, FolderError> {
        let context = match self.map.get(key) {
            None => MAX_PAGES * kernels::kv::PAGE_SIZE,
            Some(_) => self.size(key)?,
        };
        Ok(kernels::kv::pages_for(context).clamp(1, MAX_PAGES))
    }

    /// A positive integer that fits the kernels.
    pub(crate) fn size(&self, key: &str) -> Result<usize, FolderError> {
        const MOST: u64 = 1 << 24;
        let value = self.map.get(key);
        match value.and_then(Value::as_u64) {
            Some(size) if (1..=MOST).contains(&size) => Ok(size as usize),
            Some(_) | None => {
                let expected = format!("an integer from 1 to {MOST}");
                Err(self.error(key, expected, value))
            }
        }
    }

    /// A positive number.
    pub(crate) fn number(&self, key: &str, default: Option<f64>) -> Result<f64, FolderError> {
        let value = self.map.get(key);
        match (value.and_then(Value::as_f64), default) {
            (Some(number), _) if number > 0.0 && number <= 1e12 => Ok(number),
            (None, Some(default)) if value.is_none() => Ok(default),
            (Some(_) | None, _) => {
                let expected = "a number above 0, up to 1e12";
                Err(self.error(key, expected, value))
            }
        }
    }

    /// Token ids that end a reply.
    pub(crate) fn stop_ids(&self) -> Result<Vec<u32>, FolderError> {
        let value = self.map.get("eos_token_id");
        let ids = match value {
            None => return Ok(Vec::new()),
            Some(Value::Array(ids)) => ids.as_slice(),
            Some(id) => std::slice::from_ref(id),
        };
        ids.iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<_>>()
            .ok_or_else(|| self.error("eos_token_id", "token ids", value))
    }

    /// How RoPE is scaled: `rope_scaling`, whose kind is its `rope_type` or, in older
    /// configurations, its `type`.
    fn rope_scaling(&self) -> Result<Option<RopeScaling>, FolderError> {
        const KEY: &str = "rope_scaling";
        let map = match self.map.get(KEY) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Object(map)) => map,
            other => return Err(self.error(KEY, "an object or null", other)),
        };
        let of = |key: &str| format!("{KEY}.{key}");
        let kind = map.get("rope_type").or(map.get("type"));
        let fields = Fields {
            file: self.file.clone(),
            prefix: "",
            map,
        };
        // Errors of the inner object name the outer key too.
        let number = |key: &str| match map.get(key).and_then(Value::as_f64) {
            Some(number) => Ok(number),
            None => Err(self.error(&of(key), "a number", map.get(key))),
        };
        let known: &[&str] = match kind.and_then(Value::as_str) {
            Some("default") => return Ok(None),
            Some("llama3") => &[
                "rope_type",
                "type",
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            ],
            // Its first name was "su".
            Some("longrope" | "su") => &[
                "rope_type",
                "type",
                "short_factor",
                "long_factor",
                "original_max_position_embeddings",
            ],
            Some(_) | None => {
                let expected = "llama3, longrope or default";
                return Err(self.error(&of("rope_type"), expected, kind));
            }
        };
        if let Some((key, value)) = map.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            let expected = "no such key, as it may change the arithmetic";
            return Err(self.error(&of(key), expected, Some(value)));
        }
        if kind.and_then(Value::as_str) == Some("llama3") {
            return Ok(Some(RopeScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_position_embeddings: fields
                    .size("original_max_position_embeddings")?,
            }));
        }
        let list = |key: &str| {
            let numbers = map.get(key).and_then(Value::as_array);
            let numbers = numbers.filter(|list| list.len() <= MAX_FACTORS);
            let numbers = numbers.and_then(|list| list.iter().map(Value::as_f64).collect());
            numbers.ok_or_else(|| {
                let expected = format!("up to {MAX_FACTORS} numbers");
                self.error(&of(key), expected, map.get(key))
            })
        };
        let original = "original_max_position_embeddings";
        Ok(Some(RopeScaling::Longrope {
            short_factor: list("short_factor")?,
            long_factor: list("long_factor")?,
            original_max_position_embeddings: if map.contains_key(original) {
                fields.size(original)?
            } else {
                self.size(original)?
            },
            max_position_embeddings: self.size("max_position_embeddings")?,
        }))
    }

    /// The model without its names and stop ids, its matrices in q4f16_1;
    /// `records` bounds the number of layers, `theta` and `context` are the keys of
    /// RoPE's base and of the positions.
    pub(crate) fn dimensions(
        &self,
        family: Family,
        records: usize,
        theta: &str,
        context: &str,
    ) -> Result<ModelSpec, FolderError> {
        let hidden_size = self.size("hidden_size")?;
        let num_hidden_layers = self.size("num_hidden_layers")?;
        let num_attention_heads = self.size("num_attention_heads")?;
        // A layer has at least ten records, so this bounds the list of parameters.
        if num_hidden_layers > records {
            return Err(self.error(
                "num_hidden_layers",
                format!("at most the {records} records that the weights have, or can have"),
                self.map.get("num_hidden_layers"),
            ));
        }
        let head_dim = self.head_dim()?;
        let rotary_factor = self.number("partial_rotary_factor", Some(1.0))?;
        let tie_word_embeddings = self.flag("tie_word_embeddings")?;
        let delta_net = self.delta_net(family, num_hidden_layers)?;
        let experts = self.experts(family)?;
        // An expert's width, where there is no other.
        let width = match experts {
            Some(_) => "moe_intermediate_size",
            None => "intermediate_size",
        };
        Ok(ModelSpec {
            id: String::new(),
            title: String::new(),
            aliases: Vec::new(),
            family,
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: self.size("num_key_value_heads")?,
            head_dim,
            intermediate_size: self.size(width)?,
            vocab_size: self.size("vocab_size")?,
            rotary_dim: (rotary_factor * head_dim as f64).round() as usize,
            rope_theta: self.number(theta, None)?,
            rope_scaling: self.rope_scaling()?,
            rms_norm_eps: self.number("rms_norm_eps", None)?,
            tie_word_embeddings,
            max_pages: self.pages(context)?,
            stop_ids: Vec::new(),
            format: QuantFormat::Q4f16_1,
            other_formats: Vec::new(),
            attn_output_gate: delta_net.is_some(),
            delta_net,
            experts,
        })
    }

    /// The layers of a hybrid that have a state.
    fn delta_net(
        &self,
        family: Family,
        layers: usize,
    ) -> Result<Option<GatedDeltaNet>, FolderError> {
        match family {
            Family::Llama | Family::Phi3 | Family::Qwen3 => return Ok(None),
            Family::Qwen35 | Family::Qwen36Moe => (),
        }
        let net = GatedDeltaNet {
            linear_num_key_heads: self.size("linear_num_key_heads")?,
            linear_num_value_heads: self.size("linear_num_value_heads")?,
            linear_key_head_dim: self.size("linear_key_head_dim")?,
            linear_value_head_dim: self.size("linear_value_head_dim")?,
            linear_conv_kernel_dim: self.size("linear_conv_kernel_dim")?,
            full_attention_interval: self.size("full_attention_interval")?,
        };
        const KINDS: &str = "layer_types";
        if let Some(stated) = self.map.get(KINDS) {
            let every = net.full_attention_interval;
            let kinds = (1..=layers).map(|n| match n % every {
                0 => "full_attention",
                _ => "linear_attention",
            });
            if *stated != Value::from(kinds.collect::<Vec<_>>()) {
                let expected = format!("full_attention at every layer of {every}");
                return Err(self.error(KINDS, expected, Some(stated)));
            }
        }
        Ok(Some(net))
    }

    /// The experts of a model that has any.
    fn experts(&self, family: Family) -> Result<Option<Experts>, FolderError> {
        if !self.map.contains_key("num_experts") {
            return Ok(None);
        }
        let shared = "shared_expert_intermediate_size";
        let shared_expert = family == Family::Qwen36Moe;
        if shared_expert && self.size(shared)? != self.size("moe_intermediate_size")? {
            let expected = "moe_intermediate_size, as the experts have one stack";
            return Err(self.error(shared, expected, self.map.get(shared)));
        }
        Ok(Some(Experts {
            num_experts: self.size("num_experts")?,
            num_experts_per_tok: self.size("num_experts_per_tok")?,
            // The hybrids' configurations may leave it out.
            norm_topk_prob: match self.map.get("norm_topk_prob") {
                None => shared_expert,
                Some(_) => self.flag("norm_topk_prob")?,
            },
            shared_expert,
        }))
    }
}

/// The registered model that this is, or the model under its folder's name.
pub(crate) fn named(dir: &Path, spec: ModelSpec) -> ModelSpec {
    let name = dir
        .file_name()
        .map_or("checkpoint".into(), |n| n.to_string_lossy().into_owned());
    registered(&spec).unwrap_or(ModelSpec {
        id: name.clone(),
        title: name,
        ..spec
    })
}

/// The registered model that is equal in everything that decides the arithmetic, in
/// the formats that were found.
pub(crate) fn registered(found: &ModelSpec) -> Option<ModelSpec> {
    let mut known = registry().into_iter();
    known.find_map(|known| {
        let named = ModelSpec {
            id: known.id.clone(),
            title: known.title.clone(),
            aliases: known.aliases.clone(),
            max_pages: known.max_pages,
            stop_ids: known.stop_ids.clone(),
            ..found.clone()
        };
        let in_its_formats = ModelSpec {
            format: known.format,
            other_formats: known.other_formats.clone(),
            ..named.clone()
        };
        (in_its_formats == known).then_some(named)
    })
}
