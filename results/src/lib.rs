//! The record of a measurement: what a run writes down, how it survives a
//! kill, and which numbers may be drawn from it.
//!
//! - [`record`]: the line types of a journal, with their units;
//! - [`journal`]: the append-only writer, the reader and [`journal::AbRun`];
//! - [`stats`]: block statistics, intervals, the verdict, change points (pure functions);
//! - [`draw`]: seeded draws;
//! - [`roof`]: which rates of reading are void, and which suspicious;
//! - [`summary`]: the answer of an A/B run, drawn from its record alone;
//! - [`sheet`]: the tables of kernel times and of checked kernels, as CSV;
//! - [`external`]: figures of other engines, with what they were measured on;
//! - [`history`]: which results were superseded or withdrawn, and why;
//! - [`store`]: all of these, read from a folder;
//! - [`query`]: the store as tables that SQL can ask;
//! - [`merge`](mod@merge) and [`shard`]: parts of a sweep, and what joins them.
//!
//! Nothing here reads a clock, a GPU or the environment: everything comes from
//! the caller or from the journal, so the same record gives the same answer.

pub mod draw;
pub mod external;
pub mod history;
pub mod journal;
pub mod merge;
pub mod query;
pub mod record;
pub mod roof;
pub mod shard;
pub mod sheet;
pub mod stats;
pub mod store;
pub mod summary;
pub mod tokens;
