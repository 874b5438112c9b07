//! The Zero-TVM workbench's commands, and the only code that sees a GPU.

pub mod ab;
mod again;
pub mod bench;
pub mod cases;
pub mod check;
pub mod cli;
mod counted;
pub mod device;
pub mod dialects;
pub mod diff;
pub mod engine;
pub mod env;
pub mod expectations;
pub mod generate;
pub mod golden;
pub mod interrupt;
pub mod kernel;
pub mod model;
pub mod mutants;
pub mod ppl;
mod progress;
pub mod roof;
pub mod text;
pub mod timer;
pub mod tint;
