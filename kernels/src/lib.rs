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
//FLAG
pub mod kv;
pub mod models;
//PLAN
pub mod quant;
//ROLE
pub mod suggest;
//VAR

pub use features::Features;
pub use models::{ModelSpec, Tensor};
pub use quant::QuantFormat;
