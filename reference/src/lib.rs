//! The CPU truth of the Zero-TVM workbench: checkpoints and where they come
//! from, quantisation, every role, and the full forward pass.
//!
//! Nothing in here reads an environment variable or opens a GPU: folders,
//! endpoints and commands come in as arguments ([`fetch::Sources`]).

pub mod bounds;
pub mod checkpoint;
pub mod convert;
pub mod fetch;
pub mod folder;
pub mod forward;
pub mod gguf;
pub mod golden;
pub mod inspect;
pub mod matrix;
pub mod mlc;
pub mod mlx;
pub mod numerics;
pub mod quantise;
mod ranges;
pub mod roles;
pub mod synth;
mod tensors;

pub use bounds::Expected;
pub use checkpoint::{Checkpoint, Provenance};
pub use forward::{Forward, Int8, Weights};
pub use matrix::{Matrix, Packed};
pub use numerics::Numerics;
