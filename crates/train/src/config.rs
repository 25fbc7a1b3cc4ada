//! What one run is: every number final.

use std::path::Path;

use data::{DataConfig, MOST_TOKENS};
use kernels::Kernels;
use model::{ModelConfig, check_fraction, check_positive};
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use crate::format::{Record, from_toml, stamped};
use crate::{Backend, BadFile, ConfigError};

/// The truth about a run, written to its folder as `config.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Name of the study, from its file.
    pub study: String,
    /// Name of the configuration within the study.
    pub variant: String,
    /// Seeds the weights, the order of the batches and dropout.
    pub seed: u64,
    pub backend: Backend,
    /// Whose operations compute; on a GPU, burn's.
    pub kernels: Kernels,
    /// SHA-256 of the corpus.
    pub corpus_sha256: String,
    /// SHA-256 of the tokenizer's `tokenizer.json`.
    pub tokenizer_sha256: String,
    /// Number of token ids.
    pub vocab_size: usize,
    /// What the version that trained this run computed differently under the same keys; empty for new runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redefined: Vec<String>,
    pub model: ModelConfig,
    pub data: DataConfig,
    pub train: TrainConfig,
    pub checkpoint: CheckpointConfig,
    pub probe: ProbeConfig,
}

/// When a run saves its state, and what it keeps of that. It changes no result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Steps between two checkpoints.
    pub every: usize,
    /// Newest checkpoints that are kept.
    pub keep_last: usize,
    /// Whether that of the lowest validation loss is kept too.
    pub keep_best: bool,
}

/// When a run looks at what goes on inside its model. It changes no result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeConfig {
    pub on: bool,
    /// Steps between two looks; the first is before the first step, the last behind the last.
    pub every: usize,
}

impl ProbeConfig {
    /// Whether a run of so many steps looks after this one.
    pub(crate) fn looks_after(&self, step: usize, steps: usize) -> bool {
        self.on && (step.is_multiple_of(self.every) || step == steps)
    }
}

/// What to do with a training loss that leaps out of those before it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Display, EnumString, IntoStaticStr, VariantArray, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum OnSpike {
    /// Say so in the log and in the metrics.
    Warn,
    /// The same, and let the optimizer leave out this step: weights and moments stay as they are, the schedule goes on.
    Skip,
    /// End the run as diverged.
    Stop,
}

pub(crate) fn label(variant: &str, seed: u64) -> String {
    format!("{variant}/seed-{seed}")
}

/// How a model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Optimizer steps.
    pub steps: usize,
    /// Windows in a batch.
    pub batch_size: usize,
    /// Peak learning rate.
    pub lr: f64,
    /// Learning rate at the last step, as a share of the peak.
    pub min_lr_factor: f64,
    /// Steps of linear warm-up to the peak.
    pub warmup_steps: usize,
    /// AdamW's decay of the first moment.
    pub beta1: f64,
    /// AdamW's decay of the second moment.
    pub beta2: f64,
    /// AdamW's weight decay, on matrices and embeddings only.
    pub weight_decay: f64,
    /// Largest global norm of the gradient; larger ones are scaled down to it.
    pub grad_clip: f64,
    /// Micro-batches of a batch, whose gradients are computed one after the other and added up: less memory for the same step.
    pub grad_accum_steps: usize,
    pub on_spike: OnSpike,
    /// Steps between evaluations on the whole validation split; the last step is always evaluated.
    pub eval_every: usize,
}

const MOST_STEPS: usize = 1_000_000_000;

impl RunConfig {
    /// `variant/seed-0`: its name within the study, and its folder below the study's.
    pub fn label(&self) -> String {
        label(&self.variant, self.seed)
    }

    /// The text of a `config.toml`.
    pub fn to_toml(&self) -> String {
        toml::to_string(&stamped(self)).expect("a config is a table")
    }

    /// Reads what [`RunConfig::to_toml`] wrote, here or in an older version, from the file at `path`.
    ///
    /// # Errors
    /// A damaged text, or one of another format.
    pub fn from_toml(path: &Path, text: &str) -> Result<Self, BadFile> {
        from_toml(Record::Config, path, text)
    }

    /// Checks everything that types do not.
    ///
    /// # Errors
    /// One sentence that names the key, its value and what would be right.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.backend.require()?;
        if self.kernels == Kernels::Fused && !self.backend.is_cpu() {
            let message = format!("kernels = \"fused\": must be \"plain\" with backend `{}`", self.backend);
            return Err(ConfigError(message));
        }
        if !(1..=MOST_TOKENS).contains(&self.vocab_size) {
            return Err(ConfigError(format!("vocab_size = {}: must be between 1 and {MOST_TOKENS}", self.vocab_size)));
        }
        self.model.validate().map_err(ConfigError)?;
        self.checkpoint.validate().map_err(ConfigError)?;
        if !(1..=MOST_STEPS).contains(&self.probe.every) {
            let message = format!("probe.every = {}: must be between 1 and {MOST_STEPS}", self.probe.every);
            return Err(ConfigError(message));
        }
        self.train.validate().map_err(ConfigError)
    }

    /// All of it that the weights depend on after each step: of a constant learning rate, not the number of steps.
    pub(crate) fn trajectory(&self) -> toml::Table {
        let mut table = toml::Table::try_from(self).expect("a config is a table");
        table.remove("checkpoint");
        table.remove("probe");
        if self.train.is_constant() {
            table["train"].as_table_mut().expect("a section").remove("steps");
        }
        table
    }

    /// Whether a run of this config can go on from the state of a run of an earlier one, bit for bit. What is saved may be
    /// another, and steps may be added at a constant rate; but nobody can look now at what nobody has looked at then.
    pub fn continues(&self, earlier: &RunConfig) -> bool {
        let is_seen = !self.probe.on || self.probe == earlier.probe;
        is_seen && self.trajectory() == earlier.trajectory() && self.train.steps >= earlier.train.steps
    }

    /// Whether a run of this config is that of an earlier one from its first step to its last.
    pub(crate) fn is_same_run(&self, earlier: &RunConfig) -> bool {
        self.continues(earlier) && self.train.steps == earlier.train.steps
    }

    /// What an earlier config has that this one has not, in words.
    pub fn changes_since(&self, earlier: &RunConfig) -> String {
        let mut changes = self.differences(earlier);
        if self.probe != earlier.probe {
            changes.push("another [probe]; probes cannot be recorded retroactively".into());
        }
        match changes.is_empty() {
            true => format!("{} of study {}, now {}", earlier.label(), earlier.study, self.label()),
            false => changes.join("; "),
        }
    }

    /// The keys in which an earlier config differs, as `train.steps = 40, now 800`: of those that can change a result, without
    /// the names and the seed.
    pub fn differences(&self, earlier: &RunConfig) -> Vec<String> {
        let (of_now, of_then) = (&self.redefined, &earlier.redefined);
        let redefined = of_now.iter().filter(|what| !of_then.contains(what));
        let redefined = redefined.chain(of_then.iter().filter(|what| !of_now.contains(what)));
        let table = |config: &RunConfig| toml::Table::try_from(config).expect("a config is a table");
        let (earlier, now) = (table(earlier), table(self));
        let mut all: Vec<String> =
            redefined.map(|what| format!("an earlier version computed {what} differently")).collect();
        for (section, value) in &now {
            match (value.as_table(), earlier.get(section).and_then(|value| value.as_table())) {
                _ if ["study", "variant", "seed", "redefined", "checkpoint", "probe"].contains(&section.as_str()) => {}
                (Some(now), Some(earlier)) => all.extend(now.iter().filter_map(|(key, value)| {
                    let before = earlier.get(key).filter(|before| *before != value)?;
                    Some(format!("{section}.{key} = {before}, now {value}"))
                })),
                _ if earlier.get(section) == Some(value) => {}
                // Two hashes tell nobody more than that they differ.
                _ if section.ends_with("_sha256") => {
                    all.push(format!("another {}", section.trim_end_matches("_sha256")))
                }
                _ => all.extend(earlier.get(section).map(|before| format!("{section} = {before}, now {value}"))),
            }
        }
        all
    }
}

impl CheckpointConfig {
    fn validate(&self) -> Result<(), String> {
        for (key, value, most) in [("every", self.every, MOST_STEPS), ("keep_last", self.keep_last, 1000)] {
            if !(1..=most).contains(&value) {
                return Err(format!("checkpoint.{key} = {value}: must be between 1 and {most}"));
            }
        }
        Ok(())
    }
}

impl TrainConfig {
    /// Whether the learning rate stays at its peak after the warm-up, so that it does not depend on the number of steps.
    pub(crate) fn is_constant(&self) -> bool {
        self.min_lr_factor == 1.0
    }

    fn validate(&self) -> Result<(), String> {
        for (key, value, most) in [
            ("steps", self.steps, MOST_STEPS),
            ("batch_size", self.batch_size, 1 << 16),
            ("eval_every", self.eval_every, MOST_STEPS),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("train.{key} = {value}: must be between 1 and {most}"));
            }
        }
        if self.grad_accum_steps == 0 || !self.batch_size.is_multiple_of(self.grad_accum_steps) {
            return Err(format!(
                "train.grad_accum_steps = {}: must be 1 or another divisor of train.batch_size = {}",
                self.grad_accum_steps, self.batch_size
            ));
        }
        check_positive("train.lr", self.lr)?;
        check_positive("train.grad_clip", self.grad_clip)?;
        if !(0.0..=1.0).contains(&self.min_lr_factor) {
            return Err(format!("train.min_lr_factor = {:?}: must be between 0 and 1", self.min_lr_factor));
        }
        check_fraction("train.beta1", self.beta1)?;
        check_fraction("train.beta2", self.beta2)?;
        if !(self.weight_decay >= 0.0 && (self.weight_decay as f32).is_finite()) {
            return Err(format!(
                "train.weight_decay = {:?}: must be 0 or a positive number up to 3.4e38",
                self.weight_decay
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use data::TokenizerKind;
    use model::{Ffn, Init, NormKind, NormPlacement, Position};

    /// A run that ends in a second.
    pub(crate) fn tiny() -> RunConfig {
        RunConfig {
            study: "test".into(),
            variant: "tiny".into(),
            seed: 0,
            backend: Backend::Flex,
            kernels: Kernels::Fused,
            corpus_sha256: String::new(),
            tokenizer_sha256: String::new(),
            vocab_size: 256,
            redefined: vec![],
            model: ModelConfig {
                seq_len: 16,
                d_model: 16,
                n_layers: 1,
                n_heads: 2,
                n_kv_heads: 2,
                d_ff: 24,
                norm: NormKind::RmsNorm,
                norm_placement: NormPlacement::Pre,
                ffn: Ffn::SwiGlu,
                position: Position::Rope,
                rope_theta: 10_000.0,
                bias: false,
                qk_norm: false,
                norm_groups: 4,
                init: Init::Gpt2,
                dropout: 0.0,
                alpha_attn: 1.0,
                alpha_ffn: 1.0,
                alpha_final: 1.0,
                embedding_scale: false,
            },
            data: DataConfig { corpus: "tales".into(), tokenizer: TokenizerKind::Byte },
            train: TrainConfig {
                steps: 12,
                batch_size: 2,
                lr: 1e-2,
                min_lr_factor: 0.1,
                warmup_steps: 2,
                beta1: 0.9,
                beta2: 0.95,
                weight_decay: 0.1,
                grad_clip: 1.0,
                grad_accum_steps: 1,
                on_spike: OnSpike::Warn,
                eval_every: 6,
            },
            checkpoint: CheckpointConfig { every: 3, keep_last: 2, keep_best: false },
            probe: ProbeConfig { on: false, every: 200 },
        }
    }

    fn check(change: impl FnOnce(&mut RunConfig), expected: &str) {
        let mut config = tiny();
        change(&mut config);
        assert_eq!(config.validate().unwrap_err().to_string(), expected);
    }

    #[test]
    fn wrong_numbers_are_named() {
        tiny().validate().unwrap();
        let positive = "must be a positive number that 32-bit floats hold, from about 1.2e-38 to 3.4e38";
        check(|c| c.train.lr = f64::NAN, &format!("train.lr = NaN: {positive}"));
        check(|c| c.train.lr = -1.0, &format!("train.lr = -1.0: {positive}"));
        check(|c| c.train.lr = 1e-46, &format!("train.lr = 1e-46: {positive}"));
        check(|c| c.train.grad_clip = 1e39, &format!("train.grad_clip = 1e39: {positive}"));
        check(|c| c.train.min_lr_factor = 1.5, "train.min_lr_factor = 1.5: must be between 0 and 1");
        check(|c| c.train.steps = 0, "train.steps = 0: must be between 1 and 1000000000");
        check(|c| c.train.beta2 = 1.0, "train.beta2 = 1.0: must be at least 0 and below 1");
        let rounded = "train.beta1 = 0.9999999999: must be at least 0 and below 1, as a 32-bit float too";
        check(|c| c.train.beta1 = 0.9999999999, rounded);
        let decay = "must be 0 or a positive number up to 3.4e38";
        check(|c| c.train.weight_decay = f64::INFINITY, &format!("train.weight_decay = inf: {decay}"));
        check(|c| c.train.weight_decay = 1e39, &format!("train.weight_decay = 1e39: {decay}"));
        let divisor = "train.grad_accum_steps = 3: must be 1 or another divisor of train.batch_size = 2";
        check(|c| c.train.grad_accum_steps = 3, divisor);
        check(|c| c.checkpoint.keep_last = 0, "checkpoint.keep_last = 0: must be between 1 and 1000");
        check(|c| c.model.n_heads = 3, "model.d_model = 16 is not divisible by model.n_heads = 3");
    }

    #[test]
    fn a_run_goes_on_only_as_what_it_was() {
        let earlier = tiny();
        let continues = |change: fn(&mut RunConfig)| {
            let mut now = tiny();
            change(&mut now);
            now.continues(&earlier)
        };
        assert!(continues(|_| {}) && continues(|c| c.checkpoint.every = 1));
        assert!(!continues(|c| c.train.lr = 2e-2) && !continues(|c| c.corpus_sha256 = "other".into()));
        assert!(!continues(|c| c.seed = 1) && !continues(|c| c.backend = Backend::Ndarray));
        // More steps stretch the cosine: the steps that were taken would have been others.
        assert!(!continues(|c| c.train.steps = 24) && !continues(|c| c.train.steps = 6));
        let constant = |steps| {
            let mut config = tiny();
            (config.train.min_lr_factor, config.train.steps) = (1.0, steps);
            config
        };
        assert!(constant(24).continues(&constant(12)) && !constant(6).continues(&constant(12)));
    }
}
