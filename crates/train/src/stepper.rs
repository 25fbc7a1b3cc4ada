//! Training steps by themselves, for measuring.

use std::time::Instant;

use anyhow::Result;
use burn::train::Learner;
use data::Dataset;

use crate::RunConfig;
use crate::learner::{LanguageModel, gradients, learner, update};

/// A run without a folder, a dashboard or an evaluation.
pub struct Stepper {
    config: RunConfig,
    data: Dataset,
    learner: Learner<LanguageModel>,
    step: usize,
}

impl Stepper {
    /// A run at its first step.
    ///
    /// # Errors
    /// A config that cannot be run, a corpus that cannot be used.
    pub fn new(config: &RunConfig) -> Result<Self> {
        config.validate()?;
        let data = Dataset::load(&config.data, config.model.seq_len)?;
        let learner = learner(config, &config.backend.device()?.autodiff());
        Ok(Stepper { config: config.clone(), data, learner, step: 0 })
    }

    /// Takes `n` steps, each with its batch, its loss, its gradients and its update. Returns the seconds of each.
    pub fn steps(&mut self, n: usize) -> Vec<f64> {
        let step = |_| {
            let start = Instant::now();
            self.step += 1;
            let batch = self.data.train_batch(self.config.seed, self.step, self.config.train.batch_size);
            let (_, grads, _) = gradients(&self.learner, batch, &self.config);
            update(&mut self.learner, grads);
            start.elapsed().as_secs_f64()
        };
        (0..n).map(step).collect()
    }
}
