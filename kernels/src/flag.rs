//! Flags: the published switches that select variants and plans, as one table.
//! `ab --flag`, the help text, the documentation and the plan all read it.

mod choices;
mod error;

pub use choices::{choices_for, parse_choice};
pub use error::FlagError;

use crate::{
    features::Features,
    kv::KvFormat,
    plan::MAX_CHUNK,
    quant::{Elem, QuantFormat},
    role::Role,
    sampling::Sampling,
    suggest,
    variants::{Load, Reduce, Tile, Variant},
};
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
    /// Flags that must be on for it to do anything; it is off where one is not.
    pub needs: &'static [&'static str],
    /// A flag whose explicit choice it takes over where nobody chose it.
    pub follows: Option<&'static str>,
    /// Flags that cannot be on beside it.
    pub excludes: &'static [&'static str],
    /// The value that a variant asks of it; `None` where it has no say.
    pub selects: fn(&Variant) -> Option<Value>,
    /// What an A/B of it is judged on.
    pub metric: Metric,
    /// Whether it changes values beyond the order of sums, so that an A/B of it also asks
    /// what the text loses.
    pub lossy: bool,
}

/// A row without relations to others, which is off and judged on decoded tokens.
const PLAIN: Flag = Flag {
    name: "",
    doc: "",
    values: Values::Switch,
    default: |_| Value::Off,
    needs: &[],
    follows: None,
    excludes: &[],
    selects: |_| None,
    metric: Metric::Decode,
    lossy: false,
};

const fn switch(on: bool) -> Value {
    if on { Value::On } else { Value::Off }
}

/// [`Value::On`] for the variants that a switch selects.
const fn on_if(selected: bool) -> Option<Value> {
    if selected { Some(Value::On) } else { None }
}

/// Subgroup forms are the default wherever they run, save on a CPU adapter, whose
/// lanes want to be rows.
const fn sg_default(features: &Features) -> Value {
    switch(features.subgroup_size.is_some() && !features.cpu)
}

/// Whether it is a subgroup form of these roles; `dp4a` has a flag of its own.
fn is_subgroup(variant: &Variant, roles: &[Role]) -> bool {
    let subgroup = variant.reduce == Reduce::Subgroup && variant.load != Load::Dp4a;
    subgroup && roles.contains(&variant.role)
}

/// Whether it is an `int4_matmul` of this load that is no row form.
fn is_matmul_load(variant: &Variant, load: Load) -> bool {
    let strided = !matches!(variant.reduce, Reduce::Row | Reduce::Gemm);
    variant.role == Role::Int4Matmul && strided && variant.load == load
}

fn is_affine(variant: &Variant) -> bool {
    variant.format.is_some_and(QuantFormat::is_affine)
}

/// Every flag.
pub const FLAGS: &[Flag] = &[
    Flag {
        name: "splitk",
        doc: "attention over N parts of the pages, merged by a combine dispatch per layer (decode)",
        values: Values::Count(2, 16),
        default: |_| Value::Count(8),
        excludes: &["kv8"],
        selects: |v| {
            let parts = matches!(v.role, Role::AttentionSplitk | Role::AttentionCombine);
            parts.then_some(Value::Count(8))
        },
        ..PLAIN
    },
    Flag {
        name: "rowwise",
        doc: "int4_matmul, qkv_fused and fused_ffn with eight output rows per invocation, attention \
              with one position per invocation, 16-byte loads, no reduction across invocations; \
              the default on CPU adapters",
        default: |features| switch(features.cpu),
        excludes: &["vec4", "vec4h", "vec4aff", "vec4affw", "vec4moe", "sg"],
        selects: |v| on_if(v.reduce == Reduce::Row),
        ..PLAIN
    },
    Flag {
        name: "texture",
        doc: "the row form loads weights from 2-D textures and shares activations in a subgroup; \
              the default on CPU adapters",
        default: |features| switch(features.cpu),
        needs: &["rowwise"],
        selects: |v| on_if(v.load == Load::Texture),
        ..PLAIN
    },
    Flag {
        name: "sg",
        doc: "the family of subgroup forms, of any subgroup size; the default where the adapter has \
              subgroups and is no CPU",
        default: sg_default,
        excludes: &["rowwise"],
        selects: |v| on_if(v.reduce == Reduce::Subgroup),
        ..PLAIN
    },
    Flag {
        name: "sgqkv",
        doc: "qkv_fused adds by subgroup",
        default: sg_default,
        needs: &["sg"],
        follows: Some("sg"),
        selects: |v| on_if(is_subgroup(v, PROJECTIONS)),
        ..PLAIN
    },
    Flag {
        name: "sgffn",
        doc: "fused_ffn adds by subgroup, four units per workgroup, activations in workgroup memory",
        default: sg_default,
        needs: &["sg"],
        follows: Some("sg"),
        selects: |v| on_if(is_subgroup(v, &[Role::FusedFfn, Role::FusedFfnPrologue])),
        ..PLAIN
    },
    Flag {
        name: "sgattn",
        doc: "attention, whole and in parts, reduces by subgroup",
        default: sg_default,
        needs: &["sg"],
        follows: Some("sg"),
        selects: |v| on_if(is_subgroup(v, &[Role::Attention, Role::AttentionSplitk])),
        ..PLAIN
    },
    Flag {
        name: "vec4attn",
        doc: "attention by subgroup, whole and in parts, with 256 invocations for each head and part \
              and 16-byte loads",
        default: sg_default,
        needs: &["sgattn"],
        follows: Some("sgattn"),
        selects: |v| {
            let roles = &[Role::Attention, Role::AttentionSplitk];
            is_subgroup(v, roles).then_some(switch(v.load == Load::Vec4))
        },
        ..PLAIN
    },
    Flag {
        name: "sgargmax",
        doc: "argmax reduces by subgroup",
        default: sg_default,
        needs: &["sg"],
        follows: Some("sg"),
        selects: |v| on_if(is_subgroup(v, &[Role::Argmax])),
        ..PLAIN
    },
    Flag {
        name: "vec4argmax",
        doc: "argmax by subgroup loads four logits at once, and eight times before it compares; \
              needs a vocabulary of whole fours",
        default: sg_default,
        needs: &["sgargmax"],
        follows: Some("sgargmax"),
        selects: |v| {
            let found = is_subgroup(v, &[Role::Argmax]);
            found.then_some(switch(v.load == Load::Vec4))
        },
        ..PLAIN
    },
    Flag {
        name: "sggdn",
        doc: "recurrence and norm of gated DeltaNet add by subgroup",
        default: sg_default,
        needs: &["sg"],
        follows: Some("sg"),
        selects: |v| on_if(is_subgroup(v, &[Role::GdnRecur, Role::GdnNormOut])),
        ..PLAIN
    },
    Flag {
        name: "sgmoe",
        doc: "moe_router_topk finds and adds by subgroup",
        default: sg_default,
        needs: &["sg"],
        follows: Some("sg"),
        selects: |v| on_if(is_subgroup(v, &[Role::MoeRouterTopk])),
        ..PLAIN
    },
    Flag {
        name: "matmul",
        doc: "rows of a workgroup of int4_matmul: one (scalar), or with sg four (tiled) or eight \
              (tiled8) that share their activations",
        values: Values::Names(MATMUL),
        default: |features| named(MATMUL, sg_default(features).count() as usize),
        needs: &["sg"],
        follows: Some("sg"),
        selects: |v| {
            let at = match v.tile {
                Tile::One => 0,
                Tile::Two | Tile::Four => 1,
                Tile::Eight | Tile::Sixteen | Tile::ThirtyTwo => 2,
            };
            is_subgroup(v, PRODUCTS).then_some(named(MATMUL, at))
        },
        ..PLAIN
    },
    Flag {
        name: "vec4",
        doc: "int4_matmul in symmetric formats loads 32 weights at once; needs K % 1024 == 0",
        default: |features| switch(!features.cpu),
        excludes: &["rowwise"],
        selects: |v| on_if(is_matmul_load(v, Load::Vec4) && !is_affine(v)),
        ..PLAIN
    },
    Flag {
        name: "vec4h",
        doc: "int4_matmul in symmetric formats loads 16 weights at once where vec4 does not; needs \
              K % 512 == 0",
        default: |features| switch(!features.cpu),
        follows: Some("vec4"),
        excludes: &["rowwise"],
        selects: |v| on_if(is_matmul_load(v, Load::Vec2) && !is_affine(v)),
        ..PLAIN
    },
    Flag {
        name: "vec4aff",
        doc: "int4_matmul in affine formats of 4 and 8 bits loads two words at once; needs K % 512 \
              == 0, of 8 bits K % 256 == 0",
        default: |features| switch(!features.cpu),
        follows: Some("vec4"),
        excludes: &["rowwise", "vec4affw"],
        selects: |v| on_if(is_matmul_load(v, Load::Vec2) && is_affine(v)),
        ..PLAIN
    },
    Flag {
        name: "vec4affw",
        doc: "int4_matmul in affine formats loads four words at once, of 3 bits three; needs K % \
              1024 == 0, of 8 bits K % 512 == 0",
        excludes: &["rowwise", "vec4aff"],
        selects: |v| on_if(is_matmul_load(v, Load::Vec4) && is_affine(v)),
        ..PLAIN
    },
    Flag {
        name: "vec4moe",
        doc: "products with the matrices of experts and of their router load two words at once; \
              needs K % 512 == 0, of 8 bits K % 256 == 0",
        excludes: &["rowwise"],
        selects: |v| {
            let experts = matches!(v.role, Role::Int4MatmulMoe | Role::MoeRouterLogits);
            on_if(experts && v.load == Load::Vec2)
        },
        ..PLAIN
    },
    Flag {
        name: "vec4gdn",
        doc: "the recurrence of gated DeltaNet loads and stores four elements of its state at once",
        selects: |v| on_if(v.role == Role::GdnRecur && v.load == Load::Vec4),
        ..PLAIN
    },
    Flag {
        name: "vec4qkv",
        doc: "qkv_fused by subgroup loads 32 weights at once; needs D % 1024 == 0",
        default: sg_default,
        needs: &["sgqkv"],
        follows: Some("sgqkv"),
        excludes: &["qkvtile"],
        selects: |v| on_if(is_subgroup(v, PROJECTIONS) && v.load == Load::Vec4),
        ..PLAIN
    },
    Flag {
        name: "qkvtile",
        doc: "qkv_fused by subgroup with two pairs of rows per workgroup, which share activations",
        needs: &["sgqkv"],
        excludes: &["vec4qkv"],
        selects: |v| on_if(is_subgroup(v, PROJECTIONS) && v.tile != Tile::One),
        ..PLAIN
    },
    Flag {
        name: "dp4a",
        doc: "matrices of four bits multiply activations rounded to int8 in groups of 32, four \
              products at once: those of a decoded token by subgroup, with gemm those of a prompt",
        needs: &["sg"],
        selects: |v| on_if(v.load == Load::Dp4a),
        lossy: true,
        ..PLAIN
    },
    Flag {
        name: "dp4arows",
        doc: "rows of a workgroup of dp4a, which share the rounding of activations: 8, 32, or by the \
              matrix's rows, 32 from 8192 on",
        values: Values::Names(DP4A_ROWS),
        needs: &["dp4a"],
        default: |_| named(DP4A_ROWS, 0),
        selects: |v| {
            let at = if v.rows_per_workgroup() > 8 { 2 } else { 1 };
            v.is_dp4a_of_one().then_some(named(DP4A_ROWS, at))
        },
        ..PLAIN
    },
    Flag {
        name: "fusenorm",
        doc: "norms inside the dp4a projections behind them, made by every workgroup, and additions \
              to the residual inside those before: five dispatches a layer (decode)",
        needs: &["dp4a"],
        excludes: &["kv8", "fuseprologue"],
        selects: |v| {
            let roles = [Role::QkvFusedNorm, Role::FusedFfnNorm, Role::Int4MatmulAdd];
            on_if(roles.contains(&v.role))
        },
        ..PLAIN
    },
    Flag {
        name: "logits",
        doc: "type of the logits that the head gives and argmax reads",
        values: Values::Names(ELEMENTS),
        default: |_| named(ELEMENTS, 0),
        selects: |v| (v.out == Elem::F32).then_some(named(ELEMENTS, 1)),
        ..PLAIN
    },
    Flag {
        name: "chunk",
        doc: "prompts in chunks of up to N tokens, every matrix read once for a chunk's tile of \
              tokens; off, token by token (prefill)",
        values: Values::Count(2, MAX_CHUNK as u32),
        default: |_| Value::Count(MAX_CHUNK as u32),
        selects: |v| v.is_of_chunk().then_some(Value::Count(MAX_CHUNK as u32)),
        metric: Metric::Prefill,
        ..PLAIN
    },
    Flag {
        name: "gemm",
        doc: "matrices multiply a chunk in tiles of tokens by rows, staged in workgroup memory, \
              and the feed-forward layer in two dispatches (prefill); needs chunk and q4f16_1 \
              weights, with dp4a any of four bits",
        needs: &["chunk"],
        selects: |v| on_if(v.reduce == Reduce::Gemm),
        metric: Metric::Prefill,
        ..PLAIN
    },
    Flag {
        name: "gdnscan",
        doc: "the recurrence of gated DeltaNet takes eight tokens of a chunk at once, not one after \
              the other (prefill); needs chunk",
        needs: &["chunk"],
        selects: |v| on_if(v.role == Role::GdnRecur && v.is_batched()),
        metric: Metric::Prefill,
        ..PLAIN
    },
    Flag {
        name: "reuse",
        doc: "a prompt that begins as the tokens in the KV cache runs only what is new in it",
        default: |_| Value::On,
        metric: Metric::SecondTurn,
        ..PLAIN
    },
    Flag {
        name: "fuseqk",
        doc: "QK-norm, RoPE and KV append in one dispatch (decode); needs a model with QK-norm",
        default: |_| Value::On,
        excludes: &["kv8"],
        selects: |v| on_if(v.role == Role::QkNormRopeAppend),
        ..PLAIN
    },
    Flag {
        name: "fuseprologue",
        doc: "the norm before the feed-forward layer inside fused_ffn, made by every workgroup, and \
              both additions to the residual in the next norm (decode)",
        excludes: &["fusenorm"],
        selects: |v| on_if(matches!(v.role, Role::FusedFfnPrologue | Role::Add3Norm)),
        ..PLAIN
    },
    Flag {
        name: "kv8",
        doc: "keys and values cached as int8 codes with an f16 scale per head, by a quantise \
              dispatch per layer",
        excludes: &["splitk", "fuseqk", "fusenorm"],
        selects: |v| on_if(v.role == Role::QkvFusedScratch || v.is_of_int8()),
        lossy: true,
        ..PLAIN
    },
    Flag {
        name: "elem",
        doc: "type of activations, KV cache and gammas; sums are f32 in either",
        values: Values::Names(ELEMENTS),
        default: |features| named(ELEMENTS, usize::from(!features.shader_f16)),
        selects: |v| Some(named(ELEMENTS, usize::from(v.elem == Elem::F32))),
        lossy: true,
        ..PLAIN
    },
];

/// The products.
const PRODUCTS: &[Role] = &[Role::Int4Matmul, Role::Int4MatmulMoe, Role::MoeRouterLogits];
/// The fused projections.
const PROJECTIONS: &[Role] = &[Role::QkvFused, Role::QkvFusedScratch];
/// Values of `matmul`.
const MATMUL: &[&str] = &["scalar", "tiled", "tiled8"];
/// Rows of a matrix from which on large tiles of `dp4a` fill a large GPU.
const MANY_ROWS: usize = 8192;
/// Values of `dp4arows`.
const DP4A_ROWS: &[&str] = &[AUTO, "8", "32"];
/// The value of a flag that leaves the choice to the plan.
const AUTO: &str = "auto";
/// Values of `elem` and `logits`.
const ELEMENTS: &[&str] = &["f16", "f32"];

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

    /// Whether this value selects the variant, as far as the flag has a say.
    pub fn takes(&self, variant: &Variant, value: Value) -> bool {
        (self.selects)(variant).is_none_or(|asked| match self.values {
            Values::Count(..) => asked.is_on() == value.is_on(),
            Values::Names([AUTO, ..]) if !value.is_on() => true,
            Values::Switch | Values::Names(_) => asked == value,
        })
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

/// Every flag's value on one adapter, with what gave way to what.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    values: BTreeMap<&'static str, Value>,
    explicit: BTreeSet<&'static str>,
    /// Flags that were on by default and are off beside an explicit choice; those
    /// that need them are off with them.
    pub notes: Vec<String>,
    sampling: Sampling,
}

impl Settings {
    /// Fills in defaults around explicit choices. A default follows the explicit
    /// choice of the flag it follows, gives way to one that excludes it, and is off
    /// without what it needs. Two explicit choices that exclude each other, and one
    /// whose need is off, are errors.
    ///
    /// # Errors
    /// Names the two flags.
    pub fn resolve(features: &Features, choices: &Choices) -> Result<Self, FlagError> {
        let mut settings = Self {
            values: BTreeMap::new(),
            explicit: choices.keys().copied().collect(),
            notes: Vec::new(),
            sampling: Sampling::Greedy,
        };
        // What is followed stands in front of what follows it.
        let mut led = choices.clone();
        for flag in FLAGS {
            let leader = flag.follows.and_then(|other| led.get(other)).copied();
            if let (Some(leader), false) = (leader, led.contains_key(flag.name)) {
                let value = if leader.is_on() {
                    flag.first_on()
                } else {
                    flag.off()
                };
                led.insert(flag.name, value);
            }
            let value = led.get(flag.name).copied();
            let value = value.unwrap_or_else(|| (flag.default)(features));
            settings.values.insert(flag.name, value);
        }
        for flag in FLAGS {
            if !settings.demands(flag.name) {
                continue;
            }
            for &other in flag.excludes {
                if settings.demands(other) {
                    return Err(FlagError::Excluded {
                        first: flag.name,
                        second: other,
                    });
                }
                if settings.switch_off(other) {
                    settings
                        .notes
                        .push(format!("{other} is off: {} excludes it", flag.name));
                }
            }
        }
        for flag in FLAGS {
            let off = |need: &&&str| !settings.get(need).is_on();
            let Some(need) = flag.needs.iter().find(off) else {
                continue;
            };
            if !settings.get(flag.name).is_on() {
                continue;
            }
            if settings.demands(flag.name) {
                let choose = settings.lacked(flag, features);
                let flag = flag.name;
                return Err(FlagError::Needs { flag, need, choose });
            }
            settings.switch_off(flag.name);
        }
        Ok(settings)
    }

    /// The same settings with the next token chosen so.
    #[must_use]
    pub const fn with_sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// How the next token is chosen; greedily where nobody says otherwise.
    pub const fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Switches a default off; whether it was on.
    fn switch_off(&mut self, name: &'static str) -> bool {
        let off = Flag::find(name).map_or(Value::Off, Flag::off);
        self.values.insert(name, off).is_some_and(Value::is_on)
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

    /// Whether every flag takes the variant.
    pub fn take(&self, variant: &Variant) -> bool {
        let takes = |flag: &Flag| flag.takes(variant, self.get(flag.name));
        FLAGS.iter().all(takes)
    }

    /// Whether a form of `dp4a`, where nobody chose its rows of a workgroup, has those for a
    /// matrix of `rows` rows.
    pub fn takes_dp4a(&self, variant: &Variant, rows: usize) -> bool {
        let fits = (rows >= MANY_ROWS) == (variant.rows_per_workgroup() > 8);
        !variant.is_dp4a_of_one() || self.get("dp4arows").is_on() || fits
    }

    /// The type of activations.
    pub fn elem(&self) -> Elem {
        if self.get("elem").is_on() {
            Elem::F32
        } else {
            Elem::F16
        }
    }

    /// The chosen flags that select one of `forms` but not `first`, which goes before
    /// it, each with what to say of that.
    pub(crate) fn shadowed(
        &self,
        forms: &[&Variant],
        first: &Variant,
    ) -> Vec<(&'static str, String)> {
        let only = |flag: &Flag, a: &Variant, b: &Variant| {
            (flag.selects)(a).is_some() && (flag.selects)(b).is_none()
        };
        let chosen = FLAGS.iter().filter(|flag| self.demands(flag.name));
        let shadowed = chosen.filter_map(|flag| {
            let form = forms.iter().find(|form| only(flag, form, first))?;
            let by = FLAGS
                .iter()
                .filter(|flag| self.get(flag.name).is_on() && only(flag, first, form));
            let by: Vec<&str> = by.map(|flag| flag.name).collect();
            let by = match by.is_empty() {
                true => String::new(),
                false => format!(" while {} is on", by.join(", ")),
            };
            Some((flag.name, format!("{first} goes before {form}{by}")))
        });
        shadowed.collect()
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

#[cfg(test)]
mod tests;
