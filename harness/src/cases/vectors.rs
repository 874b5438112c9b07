//! The kernels on golden module vectors. Their inputs are f32, and for f16 forms are
//! rounded to f16 first: a kernel is judged tightly against the reference on the
//! rounded inputs, and against the golden result within the bound that the
//! golden data's README gives an f16 engine. The reference itself holds the
//! unrounded vectors in `reference/tests/roles.rs`.

mod layers;
mod quant;

use super::{
    bench::{Bench, Judged, model},
    data::Values,
    roles::{self as cases, Attended, Cache, Chunk},
};
use anyhow::{Context as _, Result, bail, ensure};
use half::f16;
use kernels::{
    ModelSpec, QuantFormat, Role, Variant,
    kv::pages_for,
    variants::{Load, VARIANTS},
};
use reference::{
    Packed,
    golden::Golden,
    matrix::ScaleValues,
    numerics::widen,
    roles::{attention::AttentionShape, attention_splitk},
};

/// Golden results that a role is held against.
#[derive(Debug)]
pub(crate) struct Vectors {
    /// The role.
    role: Role,
    /// The formats of weights that they are in.
    formats: &'static [QuantFormat],
    /// Their file in the folder of golden data.
    pub(crate) file: &'static str,
    run: fn(&mut Bench<'_>, Variant, &Golden) -> Result<()>,
}

const fn of(
    role: Role,
    file: &'static str,
    run: fn(&mut Bench<'_>, Variant, &Golden) -> Result<()>,
) -> Vectors {
    Vectors {
        role,
        formats: &[QuantFormat::Q4f16_1],
        file,
        run,
    }
}

const DENSE: &str = "modules/dense.safetensors";
const DELTA_NET: &str = "modules/gdn.safetensors";
const EXPERTS: &str = "modules/moe.safetensors";
const MLC: &str = "quant/q4f16_1.safetensors";
const GGUF: &str = "quant/gguf.safetensors";
const MLX: &str = "quant/mlx_affine.safetensors";

/// Formats with a zero point of 7.
const OF_MLC: &[QuantFormat] = &[QuantFormat::Q4f16_1, QuantFormat::Q4f32_1];
const OF_GGUF: &[QuantFormat] = &[QuantFormat::Q4_0, QuantFormat::Q8_0];
const AFFINE: &[QuantFormat] = &[
    QuantFormat::Affine4G32,
    QuantFormat::Affine4G64,
    QuantFormat::Affine3G64,
    QuantFormat::Affine8G32,
    QuantFormat::Affine8G64,
];

/// Every role that has golden results; the others are part of a model's.
pub(crate) const VECTORS: &[Vectors] = &[
    of(Role::Embedding, MLC, quant::embedding).in_formats(OF_MLC),
    of(Role::Embedding, GGUF, quant::embedding).in_formats(OF_GGUF),
    of(Role::Embedding, MLX, quant::embedding).in_formats(AFFINE),
    of(Role::RmsNorm, DENSE, norm),
    of(Role::Attention, DENSE, attention),
    of(Role::AttentionSplitk, DENSE, attention_splitk),
    of(Role::AttentionCombine, DENSE, attention_combine),
    of(Role::AttentionPrefill, DENSE, attention_prefill),
    of(Role::Int4Matmul, MLC, quant::int4_matmul).in_formats(OF_MLC),
    of(Role::Int4Matmul, GGUF, quant::int4_matmul).in_formats(OF_GGUF),
    of(Role::Int4Matmul, MLX, quant::int4_matmul).in_formats(AFFINE),
    of(Role::FusedFfn, DENSE, fused_ffn),
    of(Role::SiluMul, DENSE, silu_mul),
    of(Role::AddNorm, DENSE, norm),
    of(Role::Add3Norm, DENSE, norm),
    of(Role::Rope, DENSE, rope),
    of(Role::QkNorm, DENSE, qk_norm),
    of(Role::QkNormRopeAppend, DENSE, qk_norm_rope_append),
    of(Role::GatedQkvSplit, DELTA_NET, layers::gated_qkv_split),
    of(Role::AttnGate, DELTA_NET, layers::attn_gate),
    of(Role::GdnConv, DELTA_NET, layers::gdn_conv),
    of(Role::GdnConvSeq, DELTA_NET, layers::gdn_conv),
    of(Role::GdnGates, DELTA_NET, layers::gdn_gates),
    of(Role::GdnRecur, DELTA_NET, layers::gdn_recur),
    of(Role::GdnNormOut, DELTA_NET, layers::gdn_norm_out),
    of(Role::MoeRouterTopk, EXPERTS, layers::moe_router_topk),
    of(Role::MoeCombine, EXPERTS, layers::moe_combine),
];

impl Vectors {
    const fn in_formats(self, formats: &'static [QuantFormat]) -> Self {
        Self { formats, ..self }
    }

    /// Whether a variant is held against them: not one that rounds its activations.
    pub(crate) fn hold(&self, variant: Variant) -> bool {
        let format = variant.format;
        let same = self.role == variant.role && variant.load != Load::Dp4a;
        same && format.is_none_or(|format| self.formats.contains(&format))
    }

    /// Holds a variant against them.
    pub(crate) fn run(&self, bench: &mut Bench<'_>, variant: Variant) -> Result<()> {
        let Some(folder) = &bench.golden else {
            bail!("no folder of golden data; set ZEROTVM_GOLDEN");
        };
        let golden = Golden::open(folder.join(self.file))?;
        (self.run)(bench, variant, &golden)
    }
}

/// README of the golden data: relative rms of a dense f16 engine.
const F16_REL_RMS: f64 = 0.005;

/// Requires every output within its limit, and `out` near the golden result.
fn require(judged: &[Judged], out: &str, golden: &[f32]) -> Result<()> {
    judged.iter().try_for_each(Judged::require)?;
    let judged = judged.iter().find(|judged| judged.name == out);
    near(&judged.context("an output")?.found, golden)
}

fn near(found: &[f64], golden: &[f32]) -> Result<()> {
    ensure!(
        found.len() == golden.len(),
        "{} elements, the golden result has {}",
        found.len(),
        golden.len()
    );
    let square = |x: f64| x * x;
    let differences = found.iter().zip(golden).map(|(f, g)| f - f64::from(*g));
    let error: f64 = differences.map(square).sum();
    let size: f64 = golden.iter().map(|g| square(f64::from(*g))).sum();
    let relative = (error / size).sqrt();
    ensure!(
        relative <= F16_REL_RMS,
        "relative rms {relative:.2e} from the golden result"
    );
    Ok(())
}

/// The name of every result in the file that begins with `wanted`, without
/// `result` at its end.
fn results(golden: &Golden, wanted: &str, result: &str) -> Result<Vec<String>> {
    let names = golden.names()?;
    let names: Vec<String> = names
        .iter()
        .filter(|name| name.starts_with(wanted))
        .filter_map(|name| name.strip_suffix(result))
        .map(str::to_owned)
        .collect();
    ensure!(!names.is_empty(), "no {wanted}*{result} in the golden data");
    Ok(names)
}

/// The number in a dotted name after `key`: `hd64` gives 64.
fn number(name: &str, key: &str) -> Result<f64> {
    let mut values = name.split('.').filter_map(|part| part.strip_prefix(key));
    let number = values.find_map(|value| value.parse().ok());
    number.with_context(|| format!("{name}: no number after {key}"))
}

/// Golden rows `[T, D]` and their norm.
struct Norm {
    name: String,
    spec: ModelSpec,
    x: Vec<f32>,
    gamma: Vec<f32>,
    y: Vec<f32>,
}

fn norms(golden: &Golden) -> Result<Vec<Norm>> {
    let norm = |name: String| {
        let (base, eps) = name.split_once(".eps").context("an epsilon in the name")?;
        let x = golden.f32(&format!("{base}.x"))?;
        let gamma = golden.f32(&format!("{base}.gamma"))?.data;
        let y = golden.f32(&format!("{name}.y"))?.data;
        let spec = ModelSpec {
            hidden_size: x.shape[1],
            rms_norm_eps: eps.parse()?,
            ..model()
        };
        Ok(Norm {
            x: x.data,
            name,
            spec,
            gamma,
            y,
        })
    };
    let names = results(golden, "rms.", ".y")?;
    names.into_iter().map(norm).collect()
}

fn norm(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    for norm in norms(golden)? {
        let (spec, x, gamma) = (&norm.spec, &norm.x, &norm.gamma);
        // A delta of zero leaves the residual as it is.
        let zero = &vec![0.0; x.len()][..];
        let (output, judged) = if variant.role == Role::RmsNorm {
            ("out", cases::rms_norm(bench, variant, spec, x, gamma))
        } else if variant.role == Role::Add3Norm {
            let addends = [zero, x, zero];
            (
                "normed",
                cases::add3_norm(bench, variant, spec, addends, gamma),
            )
        } else {
            (
                "normed",
                cases::add_norm(bench, variant, spec, zero, x, gamma),
            )
        };
        judged
            .and_then(|judged| require(&judged, output, &norm.y))
            .with_context(|| norm.name.clone())?;
    }
    Ok(())
}

/// The rows that a head is as wide as, each as query, as key and as value.
fn qk_norm(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    let mut run = 0;
    for norm in norms(golden)? {
        let head = norm.spec.hidden_size;
        if head > 256 {
            continue;
        }
        let spec = ModelSpec {
            num_attention_heads: 1,
            num_key_value_heads: 1,
            head_dim: head,
            rotary_dim: head,
            hidden_size: 64,
            ..norm.spec
        };
        let heads = norm.x.chunks_exact(head);
        let qkv: Vec<f32> = heads.flat_map(|x| [x, x, x].concat()).collect();
        let gammas = [&norm.gamma[..], &norm.gamma];
        let judged = cases::qk_norm(bench, variant, &spec, &qkv, gammas)?;
        for out in ["q", "k"] {
            require(&judged, out, &norm.y).with_context(|| norm.name.clone())?;
        }
        run += 1;
    }
    ensure!(run > 0, "no golden norm is as narrow as a head");
    Ok(())
}

/// Golden heads `[T, heads, HD]`, each as query, as key and as value, and what
/// their rotation to the positions is.
struct Rotation {
    name: String,
    spec: ModelSpec,
    x: Vec<f32>,
    qkv: Vec<f32>,
    positions: Vec<i32>,
    y: Vec<f32>,
}

fn rotations(golden: &Golden) -> Result<Vec<Rotation>> {
    let rotation = |name: String| {
        let x = golden.f32(&format!("{name}.x"))?;
        let y = golden.f32(&format!("{name}.y"))?.data;
        let positions = golden.i32(&format!("{name}.pos"))?.data;
        ensure!(positions.contains(&4095), "{name}: {positions:?}");
        let heads = x.shape[1];
        let spec = ModelSpec {
            num_attention_heads: heads,
            num_key_value_heads: heads,
            head_dim: x.shape[2],
            rotary_dim: number(&name, "rot")? as usize,
            rope_theta: number(&name, "theta")?,
            ..model()
        };
        let x = x.data;
        let rows = x.chunks_exact(heads * spec.head_dim);
        let qkv = rows.flat_map(|x| [x, x, x].concat()).collect();
        Ok(Rotation {
            name,
            spec,
            x,
            qkv,
            positions,
            y,
        })
    };
    let names = results(golden, "rope.", ".y")?;
    names.into_iter().map(rotation).collect()
}

fn rope(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    for case in rotations(golden)? {
        let (spec, qkv) = (&case.spec, &case.qkv);
        let judged = cases::rope(bench, variant, spec, qkv, &case.positions, 0, true)?;
        require(&judged, "q", &case.y).with_context(|| case.name.clone())?;
        require(&judged, "k", &case.y).with_context(|| case.name.clone())?;
    }
    Ok(())
}

/// A rotation is linear: of normalised heads it is the golden result over each
/// head's root mean square.
fn qk_norm_rope_append(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    for case in rotations(golden)? {
        let spec = ModelSpec {
            max_pages: 256,
            ..case.spec
        };
        let ones = vec![1.0; spec.head_dim];
        let heads = case.x.chunks_exact(spec.head_dim);
        let normed: Vec<f32> = heads
            .zip(case.y.chunks_exact(spec.head_dim))
            .flat_map(|(x, y)| {
                let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
                let scale = (squares / spec.head_dim as f64 + spec.rms_norm_eps).sqrt();
                y.iter().map(move |&y| (f64::from(y) / scale) as f32)
            })
            .collect();
        let cache = Cache::empty(&spec, Values(2).permutation(spec.max_pages), 0);
        let judged = cases::qk_norm_rope_append(
            bench,
            variant,
            &spec,
            &case.qkv,
            [&ones, &ones],
            &cache,
            &case.positions,
        )?;
        require(&judged, "q", &normed).with_context(|| case.name.clone())?;
        require(&judged, "k", &normed).with_context(|| case.name.clone())?;
    }
    Ok(())
}

/// Golden results of one query, and of the queries of a chunk.
const ONE: &str = "attn.decode.";
const CHUNK: &str = "attn.chunk.";

/// Golden queries over shuffled pages.
struct Decode {
    name: String,
    spec: ModelSpec,
    attended: Attended,
    out: Vec<f32>,
}

fn queries(golden: &Golden, kind: &str) -> Result<Vec<Decode>> {
    let mut values = Values(1);
    let names = results(golden, kind, ".out")?;
    let query = |name: String| {
        let tensor = |part: &str| golden.f32(&format!("{name}.{part}"));
        let (q, k) = (tensor("q")?, tensor("k")?);
        let spec = ModelSpec {
            num_attention_heads: q.shape[1],
            num_key_value_heads: k.shape[1],
            head_dim: q.shape[2],
            max_pages: 16,
            rotary_dim: q.shape[2],
            ..model()
        };
        ensure!(pages_for(k.shape[0]) < spec.max_pages, "{name}: pages");
        let attended = Attended {
            q: q.data,
            k: k.data,
            v: tensor("v")?.data,
            table: values.permutation(spec.max_pages),
            first_page: 0,
            offset: 0,
        };
        let out = tensor("out")?.data;
        Ok(Decode {
            name,
            spec,
            attended,
            out,
        })
    };
    names.into_iter().map(query).collect()
}

/// Golden chunks: the newest tokens of a sequence that is cached already.
fn attention_prefill(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    for Decode {
        name,
        spec,
        attended,
        out,
    } in queries(golden, CHUNK)?
    {
        let tokens = attended.q.len() / spec.q_dim();
        let before = attended.k.len() / spec.kv_dim() - tokens;
        ensure!(tokens > 1, "{name}: a chunk has tokens");
        let chunk = Chunk {
            q: attended.q.clone(),
            positions: (0..tokens).map(|token| (before + token) as i32).collect(),
            cached: attended,
        };
        let judged = cases::attention_prefill(bench, variant, &spec, &chunk)?;
        require(&judged, "out", &out).with_context(|| name)?;
    }
    Ok(())
}

fn attention(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    for query in queries(golden, ONE)? {
        let judged = cases::attention(bench, variant, &query.spec, &query.attended)?;
        require(&judged, "out", &query.out).with_context(|| query.name.clone())?;
    }
    Ok(())
}

const PARTS: [u32; 4] = [2, 3, 8, 16];

/// The parts, and what each form of the combination makes of them.
fn attention_splitk(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    for query in queries(golden, ONE)? {
        let (spec, attended) = (&query.spec, &query.attended);
        for parts in PARTS {
            let case = || format!("{} in {parts} parts", query.name);
            let judged = cases::attention_splitk(bench, variant, spec, attended, parts)?;
            judged[0].require().with_context(case)?;
            let partials: Vec<f32> = judged[0].found.iter().map(|&x| x as f32).collect();
            let combines = VARIANTS.iter();
            let of_its_type =
                |v: &&Variant| v.role == Role::AttentionCombine && v.elem == variant.elem;
            for &combine in combines.filter(of_its_type) {
                let judged = cases::attention_combine(bench, combine, spec, &partials, parts)?;
                require(&judged, "out", &query.out).with_context(case)?;
                let whole = Judged {
                    name: "out",
                    found: judged[0].found.clone(),
                    expected: cases::whole(variant, spec, attended, 1),
                };
                whole.require().with_context(case)?;
            }
        }
    }
    Ok(())
}

/// The combination of the reference's parts.
fn attention_combine(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    for query in queries(golden, ONE)? {
        let Attended { q, k, v, .. } = &query.attended;
        let [q, k, v] = [q, k, v].map(|x| widen(x));
        let shape = AttentionShape::of(&query.spec);
        for parts in PARTS {
            let partials = attention_splitk::compute(&q, &k, &v, shape, parts as usize);
            let partials: Vec<f32> = partials.into_iter().map(|x| x as f32).collect();
            let judged = cases::attention_combine(bench, variant, &query.spec, &partials, parts)?;
            require(&judged, "out", &query.out)
                .with_context(|| format!("{} in {parts} parts", query.name))?;
        }
    }
    Ok(())
}

fn silu_mul(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    let tensor = |part: &str| golden.f32(&format!("swiglu.{part}"));
    let (gate, up, y) = (tensor("gate")?, tensor("up")?, tensor("y")?);
    let units = y.shape[1];
    let rows = gate
        .data
        .chunks_exact(units)
        .zip(up.data.chunks_exact(units));
    let gate_up: Vec<f32> = rows.flat_map(|(gate, up)| [gate, up].concat()).collect();
    let judged = cases::silu_mul(bench, variant, units, &gate_up)?;
    require(&judged, "out", &y.data)
}

/// `fused_ffn` takes gate and up from its own projection. A weight row with one
/// code 8 at K = 0 and the gate as its scale, and x = (1, 0, ...), make the
/// projection exactly the gate.
fn fused_ffn(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    let tensor = |part: &str| golden.f32(&format!("swiglu.{part}"));
    let (gate, up, y) = (tensor("gate")?, tensor("up")?, tensor("y")?);
    let (units, k) = (y.shape[1], 64);
    let mut x = vec![0.0; k];
    x[0] = 1.0;
    let rows = gate
        .data
        .chunks_exact(units)
        .zip(up.data.chunks_exact(units));
    for ((gate, up), y) in rows.zip(y.data.chunks_exact(units)) {
        let rows = gate.iter().chain(up);
        let scales = rows.flat_map(|&g| [f16::from_f32(g), f16::ONE]);
        let w = Packed {
            format: QuantFormat::Q4f16_1,
            rows: 2 * units,
            k,
            words: [0x7777_7778, 0x7777_7777, 0x7777_7777, 0x7777_7777].repeat(k / 32 * 2 * units),
            scales: ScaleValues::F16(scales.collect()),
            biases: vec![],
        };
        let judged = cases::fused_ffn(bench, variant, &w, &x, units)?;
        require(&judged, "out", y)?;
    }
    Ok(())
}
