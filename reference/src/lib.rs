//! The CPU truth of the Zero-TVM workbench: every kernel role and the whole
//! forward pass, in f64, with derived error limits. It knows no GPU.
//!
//! Reading order: [`matrix`] (quantised weights), [`numerics`] (where kernels
//! round), [`bounds`] (how far a kernel may be off, and why), [`roles`] (one
//! file per kernel role), [`forward`] (a token through the model).

pub mod bounds;
pub mod forward;
pub mod matrix;
pub mod numerics;
pub mod roles;

pub use bounds::Expected;
pub use forward::{Forward, Weights};
pub use matrix::Matrix;
pub use numerics::Numerics;
