//! Flags: the published switches that select variants and plans, as one table.
//! `ab --flag`, the help text, the documentation and the plan all read it.

use crate::{Elem, features::Features, kv::KvFormat, plan::MAX_CHUNK, suggest};
use serde::{Serialize, Serializer};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// A switch, or a count of zero.
    Off,
    /// A switch that is on.
    On,
    /// A count of at least one.
    Count(u32),
    /// A named choice.
    Named {
        /// Its name.
        name: &'static str,
        /// Whether it is another than the plain one.
        on: bool,
    },
}

impl Value {
    /// Whether the flag does anything.
    pub const fn is_on(self) -> bool {
        !matches!(self, Self::Off | Self::Named { on: false, .. })
    }

    /// The count; 0 when off, 1 for a switch or a named choice that is on.
    pub const fn count(self) -> u32 {
        match self {
            Self::Off | Self::Named { on: false, .. } => 0,
            Self::On | Self::Named { on: true, .. } => 1,
            Self::Count(n) => n,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named { name, .. } => f.write_str(name),
            Self::Off | Self::On | Self::Count(_) => write!(f, "{}", self.count()),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Named { name, .. } => serializer.serialize_str(name),
            Self::Off | Self::On | Self::Count(_) => serializer.serialize_u32(self.count()),
        }
    }
}

/// The values that a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// 0 or 1.
    Switch,
    /// 0, or a count in this inclusive range.
    Count(u32, u32),
    /// One of these names, the plain choice first.
    Names(&'static [&'static str]),
}

/// Which phase a flag can change; a flag that touches only prefill is judged
/// on prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Time of decoded tokens.
    Decode,
    /// Time of the prompt.
    Prefill,
    /// Time to the first token of a second turn, whose prompt begins with the first.
    SecondTurn,
}

/// A row of the flag table.
#[derive(Debug)]
pub struct Flag {
    /// Published name.
    pub name: &'static str,
    /// What it changes, in one sentence.
    pub doc: &'static str,
    /// The values it takes.
    pub values: Values,
    /// Its value on an adapter when nobody chose.
    pub default: fn(&Features) -> Value,
    /// Flags that cannot be on beside it.
    pub excludes: &'static [&'static str],
    /// What an A/B of it is judged on.
    pub metric: Metric,
}

/// Every flag.
pub const FLAGS: &[Flag] = &[
    Flag {
        name: "splitk",
        doc: "attention over N parts of the pages, merged by a combine dispatch per layer (decode)",
        values: Values::Count(2, 16),
        default: |_| Value::Count(8),
        excludes: &["kv8"],
        metric: Metric::Decode,
    },
    Flag {
        name: "rowwise",
        doc: "int4_matmul, qkv_fused and fused_ffn with eight output rows per invocation, attention \
              with one position per invocation, 16-byte loads, no reduction across invocations; \
              the default on CPU adapters",
        values: Values::Switch,
        default: |features| {
            if features.cpu { Value::On } else { Value::Off }
        },
        excludes: &["vec4", "vec4h"],
        metric: Metric::Decode,
    },
    Flag {
        name: "texture",
        doc: "the row form loads weights from 2-D textures and shares activations in a subgroup; \
              the default on CPU adapters",
        values: Values::Switch,
        default: |features| {
            if features.cpu { Value::On } else { Value::Off }
        },
        excludes: &[],
        metric: Metric::Decode,
    },
    Flag {
        name: "vec4",
        doc: "int4_matmul loads 32 weights at once; needs K % 1024 == 0",
        values: Values::Switch,
        default: |features| {
            if features.cpu { Value::Off } else { Value::On }
        },
        excludes: &["rowwise"],
        metric: Metric::Decode,
    },
    Flag {
        name: "vec4h",
        doc: "int4_matmul loads 16 weights at once where vec4 cannot; needs K % 512 == 0",
        values: Values::Switch,
        default: |features| {
            if features.cpu { Value::Off } else { Value::On }
        },
        excludes: &["rowwise"],
        metric: Metric::Decode,
    },
    Flag {
        name: "chunk",
        doc: "prompts in chunks of up to N tokens, every matrix read once for a chunk's tile of \
              tokens; off, token by token (prefill)",
        values: Values::Count(2, MAX_CHUNK as u32),
        default: |_| Value::Count(MAX_CHUNK as u32),
        excludes: &[],
        metric: Metric::Prefill,
    },
    Flag {
        name: "gemm",
        doc: "matrices multiply a chunk in tiles of 32 tokens by 32 rows, staged in workgroup \
              memory, and the feed-forward layer in two dispatches (prefill); needs chunk",
        values: Values::Switch,
        default: |_| Value::Off,
        excludes: &[],
        metric: Metric::Prefill,
    },
    Flag {
        name: "reuse",
        doc: "a prompt that begins as the tokens in the KV cache runs only what is new in it",
        values: Values::Switch,
        default: |_| Value::On,
        excludes: &[],
        metric: Metric::SecondTurn,
    },
    Flag {
        name: "fuseqk",
        doc: "QK-norm, RoPE and KV append in one dispatch (decode); needs a model with QK-norm",
        values: Values::Switch,
        default: |_| Value::On,
        excludes: &["kv8"],
        metric: Metric::Decode,
    },
    Flag {
        name: "kv8",
        doc: "keys and values cached as int8 codes with an f16 scale per head, by a quantise \
              dispatch per layer",
        values: Values::Switch,
        default: |_| Value::Off,
        excludes: &["splitk", "fuseqk"],
        metric: Metric::Decode,
    },
    Flag {
        name: "elem",
        doc: "type of activations, KV cache and gammas; sums are f32 in either",
        values: Values::Names(&["f16", "f32"]),
        default: |features| named(&["f16", "f32"], if features.shader_f16 { 0 } else { 1 }),
        excludes: &[],
        metric: Metric::Decode,
    },
];

/// Names that look like flags but set up a run instead of selecting a kernel.
pub const SETTINGS: &[&str] = &["ctx", "layers", "model", "profile", "sig"];

impl Flag {
    /// Finds a flag by name.
    ///
    /// # Errors
    /// Says that a setting is a setting, or lists the flags and the nearest match.
    pub fn find(name: &str) -> Result<&'static Self, FlagError> {
        if let Some(flag) = FLAGS.iter().find(|f| f.name == name) {
            return Ok(flag);
        }
        if SETTINGS.contains(&name) {
            return Err(FlagError::Setting(name.to_owned()));
        }
        Err(FlagError::Unknown {
            name: name.to_owned(),
            known: suggest::known(name, FLAGS.iter().map(|f| f.name)),
        })
    }

    /// Reads a value of this flag.
    ///
    /// # Errors
    /// Says which values the flag takes.
    pub fn parse(&self, text: &str) -> Result<Value, FlagError> {
        let value = match (self.values, text) {
            (Values::Names(names), _) => names
                .iter()
                .position(|&name| name == text)
                .map(|at| named(names, at)),
            (_, "0" | "off" | "false") => Some(Value::Off),
            (Values::Switch, "1" | "on" | "true") => Some(Value::On),
            (Values::Switch, _) => None,
            (Values::Count(low, high), _) => text
                .parse()
                .ok()
                .filter(|n| (low..=high).contains(n))
                .map(Value::Count),
        };
        value.ok_or_else(|| FlagError::Value {
            name: self.name,
            found: text.to_owned(),
            expected: self.expected(),
        })
    }

    /// The values it takes, in words.
    pub fn expected(&self) -> String {
        match self.values {
            Values::Switch => "0 or 1".into(),
            Values::Count(low, high) => format!("0, or {low} to {high}"),
            Values::Names(names) => format!("one of {}", names.join(", ")),
        }
    }

    /// The value that selects nothing.
    pub const fn off(&self) -> Value {
        match self.values {
            Values::Switch | Values::Count(..) => Value::Off,
            Values::Names(names) => named(names, 0),
        }
    }

    /// The first value that is on.
    pub const fn first_on(&self) -> Value {
        match self.values {
            Values::Switch => Value::On,
            Values::Count(low, _) => Value::Count(low),
            Values::Names(names) => named(names, 1),
        }
    }

    /// The arms of an A/B of this flag: off, against its default or, where that
    /// is off, its first value that is on.
    pub fn arms(&self, features: &Features) -> [Value; 2] {
        let default = (self.default)(features);
        let on = if default.is_on() {
            default
        } else {
            self.first_on()
        };
        [self.off(), on]
    }
}

const fn named(names: &'static [&'static str], at: usize) -> Value {
    Value::Named {
        name: names[at],
        on: at > 0,
    }
}

/// Explicitly chosen values, by flag name.
pub type Choices = BTreeMap<&'static str, Value>;

/// Reads `name=value` (or `name`, which is the flag's first value that is on)
/// into `choices`.
///
/// # Errors
/// Unknown name or value; a flag given twice.
pub fn parse_choice(text: &str, choices: &mut Choices) -> Result<(), FlagError> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (text.trim(), None),
    };
    let flag = Flag::find(name)?;
    let value = match value {
        Some(value) => flag.parse(value)?,
        None => flag.first_on(),
    };
    match choices.insert(flag.name, value) {
        Some(before) if before != value => Err(FlagError::Twice {
            name: flag.name,
            first: before,
            second: value,
        }),
        _ => Ok(()),
    }
}

/// Every flag's value on one adapter, with what gave way to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<&'static str, Value>,
    explicit: BTreeSet<&'static str>,
    /// Flags that were on by default and are off beside an explicit choice.
    pub notes: Vec<String>,
}

impl Settings {
    /// Fills in defaults around explicit choices. A default gives way to an
    /// explicit choice that excludes it; two explicit choices that exclude each
    /// other are an error.
    ///
    /// # Errors
    /// Names the two flags.
    pub fn resolve(features: &Features, choices: &Choices) -> Result<Self, FlagError> {
        let mut values: BTreeMap<_, _> = FLAGS
            .iter()
            .map(|f| (f.name, (f.default)(features)))
            .collect();
        // vec4h follows vec4: switching the wider load off alone leaves scalar loads.
        if choices.get("vec4") == Some(&Value::Off) && !choices.contains_key("vec4h") {
            values.insert("vec4h", Value::Off);
        }
        values.extend(choices);
        let mut notes = Vec::new();
        for flag in FLAGS {
            let chosen_on = choices.get(flag.name).is_some_and(|v| v.is_on());
            if !chosen_on {
                continue;
            }
            for &other in flag.excludes {
                if choices.get(other).is_some_and(|v| v.is_on()) {
                    return Err(FlagError::Excluded {
                        first: flag.name,
                        second: other,
                    });
                }
                if values.insert(other, Value::Off).is_some_and(Value::is_on) {
                    notes.push(format!("{other} is off: {} excludes it", flag.name));
                }
            }
        }
        Ok(Self {
            values,
            explicit: choices.keys().copied().collect(),
            notes,
        })
    }

    /// The value of a flag.
    ///
    /// # Panics
    /// For a name that is not in the table.
    pub fn get(&self, name: &str) -> Value {
        *self
            .values
            .get(name)
            .unwrap_or_else(|| panic!("flag {name} is not in the table"))
    }

    /// The type of activations.
    pub fn elem(&self) -> Elem {
        if self.get("elem").is_on() {
            Elem::F32
        } else {
            Elem::F16
        }
    }

    /// Whether the flag was chosen, not defaulted, and is on.
    pub fn demands(&self, name: &str) -> bool {
        self.explicit.contains(name) && self.get(name).is_on()
    }

    /// How keys and values are cached.
    pub fn kv_format(&self) -> KvFormat {
        if self.get("kv8").is_on() {
            KvFormat::Int8
        } else {
            KvFormat::Plain
        }
    }

    /// All values by name.
    pub const fn values(&self) -> &BTreeMap<&'static str, Value> {
        &self.values
    }
}

/// What can be wrong with a flag on a command line.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FlagError {
    /// No such flag.
    #[error("unknown flag `{name}`; {known}")]
    Unknown {
        /// As typed.
        name: String,
        /// What exists.
        known: String,
    },
    /// A setting where a flag was expected.
    #[error("`{0}` is a setting, not a flag: it sets up a run and selects no kernel")]
    Setting(String),
    /// A value that the flag does not take.
    #[error("flag {name}: `{found}` is not one of its values; expected {expected}")]
    Value {
        /// The flag.
        name: &'static str,
        /// As typed.
        found: String,
        /// What it takes.
        expected: String,
    },
    /// Two values for one flag.
    #[error("flag {name} is given twice: {first} and {second}")]
    Twice {
        /// The flag.
        name: &'static str,
        /// Its first value.
        first: Value,
        /// Its second value.
        second: Value,
    },
    /// Two explicit choices that cannot be on together.
    #[error("flags {first} and {second} exclude each other; choose one")]
    Excluded {
        /// One flag.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: Features = Features {
        cpu: true,
        ..Features::PUBLISHED
    };

    fn choices(texts: &[&str]) -> Choices {
        let mut choices = Choices::new();
        for text in texts {
            parse_choice(text, &mut choices).expect("a valid choice");
        }
        choices
    }

    #[test]
    fn the_table_is_unique_documented_and_symmetric() {
        for (i, flag) in FLAGS.iter().enumerate() {
            assert!(!flag.doc.is_empty(), "{} is documented", flag.name);
            assert!(
                FLAGS[..i].iter().all(|f| f.name != flag.name),
                "{} stands once",
                flag.name
            );
            assert!(
                !SETTINGS.contains(&flag.name),
                "{} is no setting",
                flag.name
            );
            for other in flag.excludes {
                let other = Flag::find(other).expect("an excluded flag exists");
                assert!(
                    other.excludes.contains(&flag.name),
                    "{} and {} exclude each other",
                    flag.name,
                    other.name
                );
            }
        }
    }

    #[test]
    fn arms_are_off_against_default_or_first_on() {
        let splitk = Flag::find("splitk").expect("a flag");
        assert_eq!(splitk.arms(&CPU), [Value::Off, Value::Count(8)], "default");
        let elem = Flag::find("elem").expect("a flag").arms(&CPU);
        assert_eq!(elem.map(|v| v.to_string()), ["f16", "f32"], "names");
        let vec4 = Flag::find("vec4").expect("a flag");
        assert_eq!(vec4.arms(&CPU), [Value::Off, Value::On], "first on value");
    }

    #[test]
    fn a_default_gives_way_and_says_so() {
        let settings = Settings::resolve(&CPU, &choices(&["vec4=1"])).expect("no conflict");
        assert_eq!(settings.get("rowwise"), Value::Off, "gave way");
        assert_eq!(
            settings.notes,
            ["rowwise is off: vec4 excludes it"],
            "said so"
        );
    }

    #[test]
    fn explicit_conflicts_and_bad_values_are_errors() {
        let both = choices(&["vec4", "rowwise"]);
        let error = Settings::resolve(&CPU, &both).expect_err("excluded");
        assert!(error.to_string().contains("exclude each other"), "{error}");
        let mut none = Choices::new();
        for (text, part) in [
            ("splitk=1", "expected 0, or 2 to 16"),
            ("splitkk", "did you mean `splitk`"),
            ("ctx=4", "is a setting"),
            ("vec4=maybe", "expected 0 or 1"),
            ("elem=f64", "expected one of f16, f32"),
            ("elem=0", "expected one of f16, f32"),
        ] {
            let error = parse_choice(text, &mut none).expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
