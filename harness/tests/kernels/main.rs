//! Single kernels on an adapter: golden vectors of another implementation,
//! properties over ragged shapes and adversarial data, and the runner's own
//! checks.

#[path = "../support/mod.rs"]
mod support;

mod cases;
mod limits;
mod mutants;
mod runner;
mod subgroups;
