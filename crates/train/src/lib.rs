//! One run: a `RunConfig` and a corpus in, a run folder out.

mod backend;
mod bit_diff;
mod checkpoint;
mod config;
mod diverged;
mod evaluate;
mod events;
mod existing;
mod fit;
mod folder;
pub mod format;
pub mod hf;
#[cfg(test)]
mod interrupted;
mod journal;
mod learner;
mod line_renderer;
mod metrics;
mod op_bench;
mod operations;
mod probe;
mod records;
mod resources;
mod run;
mod sample;
mod schedule;
mod selftest;
mod spike;
mod stepper;

pub use backend::Backend;
pub use bit_diff::first_difference;
pub use config::{CheckpointConfig, OnSpike, ProbeConfig, RunConfig, TrainConfig};
pub use evaluate::BATCH_SIZE as EVAL_BATCH_SIZE;
pub use existing::{Existing, Refused, all_aside, new_aside, set_aside_unusable};
pub use folder::{BadFile, Meta, Resumed, RunFolder, State, Status, is_there, read_text, write_whole};
pub use journal::MetricLine;
pub use metrics::duration;
pub use op_bench::{Cost, costs, median};
pub use probe::ProbeLine;
pub use resources::DiskNeeds;
pub use run::{Display, Ending, Provenance, planned_text, run};
pub use sample::{Sampling, sample};
pub use selftest::{Agreement, selftest};
pub use stepper::{Round, Stepper};

/// A choice that cannot be run. One sentence that names the key, its value and what would be right.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);
