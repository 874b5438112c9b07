//! The CPU truth of the Zero-TVM workbench: checkpoints and where they come
//! from, quantisation, every role, and the full forward pass.
//!
//! Nothing in here reads an environment variable or opens a GPU: folders,
//! endpoints and commands come in as arguments ([`fetch::Sources`]).

pub mod checkpoint;
pub mod convert;
pub mod fetch;
pub mod gguf;
pub mod golden;
pub mod mlc;
pub mod quantise;
pub mod synth;

pub use checkpoint::{Checkpoint, Matrix, Provenance, Weights};
