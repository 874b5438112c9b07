//! The record of a measurement: what a run writes down, how it survives a
//! kill, and which numbers may be drawn from it.
//!
//! - [`record`]: the line types of a journal, with their units;
//! - [`journal`]: the append-only writer, the reader and [`journal::AbRun`];
//! - [`stats`]: block statistics, intervals, the verdict (pure functions);
//! - [`summary`]: the answer of an A/B run, drawn from its record alone.
//!
//! Nothing here reads a clock, a GPU or the environment: everything comes from
//! the caller or from the journal, so the same record gives the same answer.

pub mod journal;
pub mod record;
pub mod stats;
pub mod summary;
