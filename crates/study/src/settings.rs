//! A study as typed: the baseline, and what each variant changes.

use data::DataConfig;
use kernels::Kernels;
use model::ModelConfig;
use serde::{Deserialize, Serialize};
use train::{Backend, CheckpointConfig, ProbeConfig, RunConfig, TrainConfig};

/// The baseline, compiled in: every key with its default.
pub(crate) const BASELINE: &str = include_str!("../../../experiments/baseline.toml");

/// How budgets are made comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Matching {
    /// Each variant's `d_ff` gives its feed-forward the reference's number of parameters or, where that leaves the models
    /// more than 1% apart, the whole model.
    Params,
    /// Each variant's `d_ff` gives its feed-forward the reference's operations per token or, where that leaves the models
    /// more than 1% apart, the whole model.
    Flops,
    /// Every variant keeps the `d_ff` that is written; its budget may differ.
    Width,
    /// Runs that no study matched.
    #[serde(skip_deserializing)]
    Loose,
}

/// Everything that a study file can set, all of it present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) description: String,
    /// Number of runs of each variant; they train from seeds 0, 1, ...
    pub(crate) seeds: usize,
    #[serde(rename = "match")]
    pub(crate) matching: Matching,
    /// Percent of perplexity within which a difference counts as none.
    pub(crate) margin: f64,
    /// Runs of each variant at each rate of a sweep.
    pub(crate) tuning_seeds: usize,
    /// Name of the configuration that variants are compared with.
    pub(crate) reference: String,
    pub(crate) model: ModelConfig,
    pub(crate) data: DataConfig,
    pub(crate) train: TrainConfig,
    pub(crate) checkpoint: CheckpointConfig,
    pub(crate) probe: ProbeConfig,
}

/// The baseline as the config of a run, before a text is read.
pub fn baseline(backend: Backend) -> RunConfig {
    let Settings { model, data, train, checkpoint, probe, .. } =
        toml::from_str(BASELINE).expect("the baseline is valid");
    RunConfig {
        study: "baseline".into(),
        variant: "baseline".into(),
        seed: 0,
        backend,
        kernels: Kernels::Fused,
        corpus_sha256: String::new(),
        tokenizer_sha256: String::new(),
        vocab_size: 0,
        redefined: vec![],
        model,
        data,
        train,
        checkpoint,
        probe,
    }
}

/// The margin of equivalence of the baseline, in percent of perplexity.
pub fn default_margin() -> f64 {
    let settings: Settings = toml::from_str(BASELINE).expect("the baseline is valid");
    settings.margin
}
