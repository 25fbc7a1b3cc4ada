//! Training steps by themselves, for measuring.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use burn::train::Learner;
use data::Dataset;
use kernels::{Part, take_spent};
use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::RunConfig;
use crate::learner::{LanguageModel, PendingLoss, gradients, learner, pending_step, update};

/// A run without a folder, a dashboard or an evaluation.
pub struct Stepper {
    config: RunConfig,
    data: Dataset,
    learner: Learner<LanguageModel>,
    step: usize,
}

/// What some steps took.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Round {
    /// The seconds of each step.
    pub seconds: Vec<f64>,
    /// Seconds of all of them that went into cutting batches.
    pub data: f64,
    /// Seconds of all of them that went into each kind of work; nothing where burn's own operations compute.
    pub parts: BTreeMap<Part, f64>,
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

    /// Takes `n` steps, each with its batch, its loss, its gradients and its update.
    pub fn steps(&mut self, n: usize) -> Round {
        let (mut turn, mut pending, whole) = (Round::default(), None, Instant::now());
        Part::VARIANTS.iter().for_each(|&part| _ = take_spent(part));
        for _ in 0..n {
            let start = Instant::now();
            self.step += 1;
            let batch = self.data.train_batch(self.config.seed, self.step, self.config.train.batch_size);
            turn.data += start.elapsed().as_secs_f64();
            if self.config.backend.is_cpu() {
                let (_, grads, _) = gradients(&self.learner, &batch, &self.config, self.step);
                update(&mut self.learner, Some(grads));
            } else {
                // As in a run, which does not wait for each step.
                pending = Some(pending_step(&mut self.learner, &batch, &self.config, self.step).0);
            }
            turn.seconds.push(start.elapsed().as_secs_f64());
        }
        if let Some(last) = pending {
            // No step has waited for its numbers: what they take is known of all together.
            PendingLoss::read(&[last]);
            turn.seconds = vec![whole.elapsed().as_secs_f64() / n as f64; n];
        }
        let spent = Part::VARIANTS.iter().map(|&part| (part, take_spent(part)));
        turn.parts = spent.filter(|&(_, seconds)| seconds > 0.0).collect();
        turn
    }
}
