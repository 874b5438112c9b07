//! The vocabulary of the Zero-TVM workbench, as data: kernel roles and their
//! bindings, quantisation formats, KV-cache layout, models, flags, variants and
//! dispatch plans. It opens no file and no device; everything else iterates
//! the tables in here.
//!
//! Reading order: [`role`] (what a kernel is), [`quant`] and [`kv`] (how its
//! operands lie in memory), [`models`] (the shapes it meets), [`variants`] (how
//! it may be written), [`flag`] (who chooses), [`plan`] (what one token
//! dispatches).

pub mod features;
pub mod flag;
pub mod kv;
pub mod models;
pub mod plan;
pub mod quant;
pub mod role;
pub mod sampling;
pub mod suggest;
pub mod variants;
pub mod wgsl;

pub use features::Features;
pub use flag::{Flag, Settings, Value};
pub use models::{ModelSpec, Tensor};
pub use plan::{Dispatch, Phase, Plan};
pub use quant::{Elem, QuantFormat};
pub use role::Role;
pub use variants::Variant;
