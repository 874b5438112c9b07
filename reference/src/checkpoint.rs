//! A model's weights in memory, complete, of the right shapes and formats.

use crate::matrix::{Matrix, Packed};
use half::f16;
use kernels::{
    models::{ModelSpec, Shape, SpecError, Tensor},
    quant::QuantFormat,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

// Files are little-endian, and so is every machine with an adapter to measure.
const _: () = assert!(
    cfg!(target_endian = "little"),
    "checkpoints are mapped as they lie"
);

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Container {
    /// An MLC checkpoint folder.
    Mlc,
    /// An MLX checkpoint folder.
    Mlx,
    /// A GGUF file, as stored or converted.
    Gguf,
    /// Seeded random numbers.
    Synthetic,
}

/// What a record and a report say about the weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Where the weights come from.
    pub weights: Container,
    /// The name to print, e.g. `SmolLM2 (GGUF, as stored)`.
    pub title: String,
    /// Lower-case hex: of the source file for [`Container::Gguf`], otherwise of
    /// the weights themselves ([`Checkpoint::payload_sha256`]).
    pub sha256: String,
    /// Further remarks, one sentence each.
    pub notes: Vec<String>,
}

/// One parameter as stored.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// A quantised matrix.
    Matrix(Packed),
    /// An f16 vector.
    Vector(Vec<f16>),
    /// A vector that stays in f32.
    Floats(Vec<f32>),
}

/// Address of a parameter: its layer, if it has one, and its kind.
pub type Key = (Option<usize>, Tensor);

/// Receives the steps done and their total, from any thread.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// A set of parameters that is not the model's.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The model itself is impossible.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A parameter that the model needs is absent.
    #[error("parameter {name} is missing; expected {expected}")]
    Missing {
        /// Published name.
        name: String,
        /// Expected shape.
        expected: String,
    },
    /// A parameter that the model does not have, or has twice.
    #[error("parameter {name} is unknown to {model} or given twice; remove it")]
    Unknown {
        /// Layer and kind.
        name: String,
        /// The model's id.
        model: String,
    },
    /// A parameter of the wrong shape or format.
    #[error("parameter {name}: expected {expected}, found {found}; weights and model differ")]
    Shape {
        /// Published name.
        name: String,
        /// Expected shape.
        expected: String,
        /// The shape found.
        found: String,
    },
}

/// All weights of a model. Every parameter of `spec.tensors()` is present and
/// has its shape.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    spec: ModelSpec,
    provenance: Provenance,
    tensors: BTreeMap<Key, Stored>,
}

impl Checkpoint {
    /// Checks that `tensors` are exactly the model's parameters. An empty
    /// `provenance.sha256` is filled with the payload's.
    ///
    /// # Errors
    /// Names the first parameter that is missing, unknown or of another shape.
    pub fn new(
        spec: ModelSpec,
        mut provenance: Provenance,
        tensors: impl IntoIterator<Item = (Key, Stored)>,
    ) -> Result<Self, CheckpointError> {
        spec.validate()?;
        let mut given = BTreeMap::new();
        for (key, stored) in tensors {
            if given.insert(key, stored).is_some() {
                return Err(unknown(&spec, key));
            }
        }
        let mut checked = BTreeMap::new();
        for key @ (layer, tensor) in spec.tensors() {
            let shape = spec.shape(tensor);
            let expected = || describe_in(shape, spec.format_of(layer, tensor));
            let name = || spec.param_name(layer, tensor);
            let Some(stored) = given.remove(&key) else {
                return Err(CheckpointError::Missing {
                    name: name(),
                    expected: expected(),
                });
            };
            if !fits(&stored, shape, spec.format_of(layer, tensor)) {
                return Err(CheckpointError::Shape {
                    name: name(),
                    expected: expected(),
                    found: describe_stored(&stored),
                });
            }
            checked.insert(key, stored);
        }
        if let Some(&key) = given.keys().next() {
            return Err(unknown(&spec, key));
        }
        let mut checkpoint = Self {
            spec,
            provenance: Provenance {
                sha256: String::new(),
                ..provenance.clone()
            },
            tensors: checked,
        };
        if provenance.sha256.is_empty() {
            provenance.sha256 = checkpoint.payload_sha256();
        }
        checkpoint.provenance = provenance;
        Ok(checkpoint)
    }

    /// The model's first `layers` layers, with its head behind them.
    ///
    /// # Errors
    /// As [`ModelSpec::truncated`].
    pub fn truncated(mut self, layers: usize) -> Result<Self, CheckpointError> {
        let spec = self.spec.truncated(layers)?;
        if spec.num_hidden_layers < self.spec.num_hidden_layers {
            let (kept, all) = (spec.num_hidden_layers, self.spec.num_hidden_layers);
            self.provenance
                .notes
                .push(format!("the first {kept} of {all} layers"));
            self.tensors
                .retain(|(layer, _), _| layer.is_none_or(|layer| layer < kept));
        }
        self.spec = spec;
        Ok(self)
    }

    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Where the weights come from.
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// A matrix of `spec.tensors()`; [`Tensor::LmHead`] of a tied model is its
    /// embedding.
    ///
    /// # Panics
    /// When the model has no such matrix: the caller's mistake.
    pub fn matrix(&self, layer: Option<usize>, tensor: Tensor) -> Matrix<'_> {
        match self.stored(layer, tensor) {
            Stored::Matrix(matrix) => matrix.matrix(),
            Stored::Vector(_) | Stored::Floats(_) => panic!("{tensor:?} is a vector"),
        }
    }

    /// A vector of `spec.tensors()`.
    ///
    /// # Panics
    /// When the model has no such vector: the caller's mistake.
    pub fn vector(&self, layer: Option<usize>, tensor: Tensor) -> &[f16] {
        match self.stored(layer, tensor) {
            Stored::Vector(values) => values,
            Stored::Matrix(_) => panic!("{tensor:?} is a matrix"),
            Stored::Floats(_) => panic!("{tensor:?} is in f32"),
        }
    }

    /// A vector of `spec.tensors()` that stays in f32.
    ///
    /// # Panics
    /// As [`Self::vector`].
    pub fn floats(&self, layer: Option<usize>, tensor: Tensor) -> &[f32] {
        match self.stored(layer, tensor) {
            Stored::Floats(values) => values,
            Stored::Matrix(_) | Stored::Vector(_) => panic!("{tensor:?} is not in f32"),
        }
    }

    fn stored(&self, layer: Option<usize>, tensor: Tensor) -> &Stored {
        let tensor = if tensor == Tensor::LmHead {
            self.spec.head_tensor()
        } else {
            tensor
        };
        self.tensors
            .get(&(layer, tensor))
            .unwrap_or_else(|| panic!("{} has no {tensor:?} in layer {layer:?}", self.spec.id))
    }

    /// Bytes of all parameters.
    pub fn payload_bytes(&self) -> u64 {
        let bytes = |stored: &Stored| match stored {
            Stored::Matrix(matrix) => matrix.matrix().bytes(),
            Stored::Vector(values) => 2 * values.len() as u64,
            Stored::Floats(values) => 4 * values.len() as u64,
        };
        self.tensors.values().map(bytes).sum()
    }

    /// Checksum of the weights in `spec.tensors()` order, lower-case hex:
    /// SHA-256 over one line `NAME HEX\n` per parameter, HEX being the SHA-256
    /// of its codes followed by its scales and biases (or of its vector),
    /// little-endian.
    /// Two levels, so that parameters are hashed in parallel.
    pub fn payload_sha256(&self) -> String {
        let lines: Vec<String> = self
            .spec
            .tensors()
            .into_par_iter()
            .map(|(layer, tensor)| {
                let mut hash = Sha256::new();
                match self.stored(layer, tensor) {
                    Stored::Matrix(matrix) => {
                        hash.update(bytemuck::cast_slice::<u32, u8>(&matrix.words));
                        hash.update(matrix.scales.as_scales().bytes());
                        hash.update(bytemuck::cast_slice::<f16, u8>(&matrix.biases));
                    }
                    Stored::Vector(values) => {
                        hash.update(bytemuck::cast_slice::<f16, u8>(values));
                    }
                    Stored::Floats(values) => {
                        hash.update(bytemuck::cast_slice::<f32, u8>(values));
                    }
                }
                let name = self.spec.param_name(layer, tensor);
                format!("{name} {}\n", hex(&hash.finalize()))
            })
            .collect();
        let mut hash = Sha256::new();
        for line in lines {
            hash.update(line);
        }
        hex(&hash.finalize())
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]])
        .map(char::from)
        .collect()
}

fn unknown(spec: &ModelSpec, (layer, tensor): Key) -> CheckpointError {
    CheckpointError::Unknown {
        name: match layer {
            Some(layer) => format!("{tensor:?} of layer {layer}"),
            None => format!("{tensor:?}"),
        },
        model: spec.id.clone(),
    }
}

fn fits(stored: &Stored, expected: Shape, format: QuantFormat) -> bool {
    match (stored, expected) {
        (Stored::Matrix(matrix), Shape::Matrix { rows, k }) => {
            (matrix.format, matrix.rows, matrix.k) == (format, rows, k)
                && matrix.matrix().check().is_ok()
        }
        (Stored::Vector(values), Shape::Vector { len }) => values.len() == len,
        (Stored::Floats(values), Shape::Floats { len }) => values.len() == len,
        (Stored::Matrix(_) | Stored::Vector(_) | Stored::Floats(_), _) => false,
    }
}

/// A shape in words, for errors.
pub(crate) fn describe(shape: Shape) -> String {
    match shape {
        Shape::Matrix { rows, k } => format!("a matrix [{rows}, {k}]"),
        Shape::Vector { len } => format!("a vector [{len}]"),
        Shape::Floats { len } => format!("a vector [{len}] in f32"),
    }
}

/// The same with the format of a matrix.
fn describe_in(shape: Shape, format: QuantFormat) -> String {
    match shape {
        Shape::Matrix { .. } => format!("{} in {format}", describe(shape)),
        Shape::Vector { .. } | Shape::Floats { .. } => describe(shape),
    }
}

fn describe_stored(stored: &Stored) -> String {
    match stored {
        Stored::Matrix(matrix) => match matrix.matrix().check() {
            Err(error) => error.to_string(),
            Ok(()) => {
                let &Packed {
                    format, rows, k, ..
                } = matrix;
                describe_in(Shape::Matrix { rows, k }, format)
            }
        },
        Stored::Vector(values) => format!("a vector [{}]", values.len()),
        Stored::Floats(values) => format!("a vector [{}] in f32", values.len()),
    }
}

impl crate::forward::Weights for Checkpoint {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn matrix(&self, layer: Option<usize>, tensor: Tensor) -> Matrix<'_> {
        self.matrix(layer, tensor)
    }

    fn vector(&self, layer: Option<usize>, tensor: Tensor) -> &[f16] {
        self.vector(layer, tensor)
    }

    fn floats(&self, layer: Option<usize>, tensor: Tensor) -> &[f32] {
        self.floats(layer, tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth;

    fn tiny() -> ModelSpec {
        ModelSpec {
            id: "tiny".into(),
            hidden_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 32,
            rotary_dim: 32,
            intermediate_size: 96,
            vocab_size: 40,
            ..kernels::models::find("smollm2-135m").expect("registered")
        }
    }

    #[test]
    fn wrong_sets_of_parameters_are_named() {
        let whole = synth::checkpoint(&tiny(), 1).expect("synthetic");
        let build = |edit: &dyn Fn(&mut BTreeMap<Key, Stored>)| {
            let mut tensors = whole.tensors.clone();
            edit(&mut tensors);
            Checkpoint::new(tiny(), whole.provenance.clone(), tensors)
                .map(|_| ())
                .map_err(|e| e.to_string())
        };
        assert_eq!(build(&|_| ()), Ok(()), "whole");
        let error = build(&|t| drop(t.remove(&(Some(1), Tensor::Down)))).expect_err("missing");
        assert_eq!(
            error,
            "parameter model.layers.1.mlp.down_proj is missing; expected a matrix [64, 96] in q4f16_1",
            "missing"
        );
        let error = build(&|t| {
            t.insert((None, Tensor::FinalNorm), Stored::Vector(vec![f16::ONE; 3]));
        })
        .expect_err("shape");
        assert!(
            error.contains("model.norm.weight: expected a vector [64], found a vector [3]"),
            "{error}"
        );
        let error = build(&|t| {
            t.insert((Some(2), Tensor::PostNorm), Stored::Vector(vec![]));
        })
        .expect_err("unknown");
        assert!(error.contains("PostNorm of layer 2 is unknown"), "{error}");
    }

    #[test]
    fn tied_head_is_the_embedding() {
        let checkpoint = synth::checkpoint(&tiny(), 1).expect("synthetic");
        assert_eq!(
            checkpoint.matrix(None, Tensor::LmHead),
            checkpoint.matrix(None, Tensor::Embedding),
            "tied"
        );
        assert_eq!(
            checkpoint.payload_bytes(),
            checkpoint
                .spec()
                .tensors()
                .iter()
                .map(|&(_, t)| match checkpoint.spec().shape(t) {
                    Shape::Matrix { rows, k } => (rows * k / 32 * 18) as u64,
                    Shape::Vector { len } => 2 * len as u64,
                    Shape::Floats { len } => 4 * len as u64,
                })
                .sum::<u64>(),
            "18 bytes a group"
        );
    }
}
