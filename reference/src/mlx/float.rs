//! A Hugging Face folder in floating point: what `convert` reads.
//!
//! Its names are those of MLX but for experts, which lie in one of three ways: each expert's
//! matrices apart (`experts.3.up_proj.weight`), gate and up of all joined
//! (`experts.gate_up_proj`, `[E, 2 F, D]`), or as MLX stacks them (`switch_mlp`). A hybrid
//! whose convolutions are `[C, 1, taps]` is as its authors published it, with gammas less 1;
//! MLX turns the ones, and adds 1 to the others.

use super::{
    CONFIG, Config, find, flattened, part_shape, parts, refuse_others, vector_name, vector_shape,
};
use crate::checkpoint::Key;
use crate::convert::{ConvertError, FloatModel};
use crate::folder::{self, FolderError, fields::Fields, read_json};
use crate::mlc;
use crate::tensors::{Dtype, TensorFile, Tensors};
use kernels::models::{ModelSpec, Shape, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A folder of a Hugging Face model in floating point.
#[derive(Debug)]
pub struct FloatFolder {
    dir: PathBuf,
    pub(super) spec: ModelSpec,
    tensors: Tensors,
    sources: BTreeMap<Key, Vec<Source>>,
    /// Whether gammas are stored less 1.
    less_one: bool,
}

/// Rows of a parameter that lie together.
#[derive(Debug)]
struct Source {
    tensor: String,
    /// The tensor's whole shape.
    shape: Vec<usize>,
    /// The first of its rows, all but its last dimension being one.
    first: usize,
    rows: usize,
}

/// How experts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// A matrix of each.
    Apart,
    /// Gate and up of all, joined.
    Joined,
    /// Stacks, as MLX has them.
    Stacked,
}

impl Layout {
    fn of(tensors: &Tensors) -> Self {
        let any = |part: &str| tensors.names().any(|name| name.contains(part));
        if any(".mlp.experts.gate_up_proj") {
            Self::Joined
        } else if any(".mlp.switch_mlp.") {
            Self::Stacked
        } else {
            Self::Apart
        }
    }
}

impl FloatFolder {
    /// Checks configuration and headers against each other.
    ///
    /// # Errors
    /// [`FolderError`], naming file and field.
    pub fn open(dir: &Path) -> Result<Self, FolderError> {
        folder::require_weights(dir)?;
        if dir.join(mlc::CONFIG).exists() {
            return Err(FolderError::Quantised {
                dir: dir.to_owned(),
                kind: "an MLC checkpoint",
            });
        }
        let map = flattened(read_json(&dir.join(CONFIG))?);
        let fields = Fields::of(dir.join(CONFIG), &map);
        let config = Config::new(&fields)?;
        if config.is_quantised() {
            return Err(FolderError::Quantised {
                dir: dir.to_owned(),
                kind: "an MLX checkpoint",
            });
        }
        let tensors = Tensors::open(dir)?;
        let spec = config.spec(dir, tensors.names().count())?;
        folder::require_valid(&spec, dir)?;
        let layout = Layout::of(&tensors);
        let less_one = spec.delta_net.is_some_and(|net| {
            let taps = net.linear_conv_kernel_dim as u64;
            let is_conv = |name: &&str| name.ends_with(".linear_attn.conv1d.weight");
            let conv = tensors.names().find(is_conv);
            let conv = conv.and_then(|name| tensors.find(name));
            conv.is_some_and(|conv| conv.shape().ends_with(&[1, taps]))
        });
        let mut sources = BTreeMap::new();
        let mut known = BTreeSet::new();
        for key in spec.tensors() {
            let of_key = sources_of(&spec, key, layout, less_one);
            for source in &of_key {
                let tensor = find(&tensors, &source.tensor, "floating point")?;
                tensor.require(&source.shape, Dtype::FLOATS)?;
                known.insert(source.tensor.clone());
            }
            sources.insert(key, of_key);
        }
        refuse_others(&tensors, &spec, &known)?;
        Ok(Self {
            dir: dir.to_owned(),
            spec,
            tensors,
            sources,
            less_one,
        })
    }

    fn find(&self, name: &str) -> Result<&TensorFile, FolderError> {
        find(&self.tensors, name, "floating point")
    }
}

/// Where the rows of a parameter lie, in their order; a vector is one row.
fn sources_of(spec: &ModelSpec, key: Key, layout: Layout, less_one: bool) -> Vec<Source> {
    let Shape::Matrix { k, .. } = spec.shape(key.1) else {
        let (base, len) = parts(spec, key).swap_remove(0);
        let mut shape = vector_shape(spec, key.1, len);
        if less_one && shape.len() == 3 {
            shape.swap(1, 2);
        }
        return vec![Source {
            tensor: vector_name(key.1, &base),
            shape,
            first: 0,
            rows: 1,
        }];
    };
    let mut all = Vec::new();
    for (base, rows) in parts(spec, key) {
        let whole = |tensor| Source {
            tensor,
            shape: part_shape(spec, &base, rows, k),
            first: 0,
            rows,
        };
        let stack = base.split_once(".switch_mlp.").zip(spec.experts);
        let Some(((mlp, part), experts)) = stack.filter(|_| layout != Layout::Stacked) else {
            all.push(whole(format!("{base}.weight")));
            continue;
        };
        let of_one = rows / experts.num_experts;
        let joined = layout == Layout::Joined;
        if joined && key.1 == Tensor::ExpertDown {
            all.push(whole(format!("{mlp}.experts.{part}")));
            continue;
        }
        all.extend((0..experts.num_experts).map(|expert| {
            if joined {
                let up = usize::from(key.1 == Tensor::ExpertUp);
                Source {
                    tensor: format!("{mlp}.experts.gate_up_proj"),
                    shape: vec![experts.num_experts, 2 * of_one, k],
                    first: (2 * expert + up) * of_one,
                    rows: of_one,
                }
            } else {
                Source {
                    tensor: format!("{mlp}.experts.{expert}.{part}.weight"),
                    shape: vec![of_one, k],
                    first: 0,
                    rows: of_one,
                }
            }
        }));
    }
    all
}

impl FloatModel for FloatFolder {
    fn input(&self) -> String {
        self.dir.display().to_string()
    }

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn rows(&self, key: Key, rows: Range<usize>, out: &mut [f32]) -> Result<(), ConvertError> {
        let k = out.len() / rows.len().max(1);
        let mut end = 0;
        for source in &self.sources[&key] {
            let start = end;
            end += source.rows;
            let wanted = rows.start.max(start)..rows.end.min(end);
            if wanted.is_empty() {
                continue;
            }
            let into = (wanted.start - rows.start) * k..(wanted.end - rows.start) * k;
            let first = source.first + wanted.start - start;
            let tensor = self.find(&source.tensor)?;
            tensor.floats(first * k, &mut out[into])?;
        }
        if self.less_one && is_less_one(key.1) {
            for gamma in out {
                *gamma += 1.0;
            }
        }
        Ok(())
    }
}

/// Whether a published hybrid stores this less 1.
const fn is_less_one(tensor: Tensor) -> bool {
    matches!(
        tensor,
        Tensor::InputNorm | Tensor::PostNorm | Tensor::FinalNorm | Tensor::QNorm | Tensor::KNorm
    )
}
