//! The learning rate, a pure function of the step.

use burn::optim::LearningRate;
use burn::optim::lr_scheduler::{LrScheduler, LrSchedulerRecord};

use crate::TrainConfig;

impl TrainConfig {
    /// The learning rate of a step, counted from 1: linear warm-up to `lr`, then a half cosine down to `min_lr_factor`
    /// of it at the last step. Loshchilov and Hutter, 2017.
    pub fn lr_at(&self, step: usize) -> f64 {
        if step <= self.warmup_steps {
            return self.lr * step as f64 / self.warmup_steps as f64;
        }
        // Who only measures steps may take more of them.
        let done = (step - self.warmup_steps) as f64 / self.steps.saturating_sub(self.warmup_steps).max(1) as f64;
        let done = done.min(1.0);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
        self.lr * (self.min_lr_factor + (1.0 - self.min_lr_factor) * cosine)
    }
}

/// The same as a burn scheduler. It carries nothing but the step.
#[derive(Clone)]
pub(crate) struct Schedule {
    pub(crate) config: TrainConfig,
    pub(crate) step: usize,
}

impl LrScheduler for Schedule {
    fn step(&mut self) -> LearningRate {
        self.step += 1;
        self.config.lr_at(self.step)
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new().with_scalar("step", self.step as u64)
    }

    fn load_record(&mut self, record: LrSchedulerRecord) {
        self.step = record.scalar::<u64>("step").expect("a record of this scheduler") as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::tiny;

    #[test]
    fn warm_up_then_half_a_cosine() {
        let config = TrainConfig { steps: 110, warmup_steps: 10, lr: 1.0, min_lr_factor: 0.1, ..tiny().train };
        for (step, expected) in [(1, 0.1), (5, 0.5), (10, 1.0), (60, 0.55), (110, 0.1)] {
            assert!((config.lr_at(step) - expected).abs() < 1e-12, "step {step}: {}", config.lr_at(step));
        }
    }

    #[test]
    fn no_warm_up_and_one_beyond_the_end_are_defined() {
        let config = TrainConfig { steps: 10, warmup_steps: 0, lr: 1.0, min_lr_factor: 0.0, ..tiny().train };
        assert!(config.lr_at(1) < 1.0 && config.lr_at(10).abs() < 1e-12);
        let config = TrainConfig { warmup_steps: 20, ..config };
        assert_eq!(config.lr_at(10), 0.5);
        assert!(config.lr_at(21).is_finite() && config.lr_at(400) == 0.0);
    }

    #[test]
    fn burn_sees_the_same_rates() {
        let config = tiny().train;
        let mut schedule = Schedule { config: config.clone(), step: 0 };
        for step in 1..=config.steps {
            assert_eq!(LrScheduler::step(&mut schedule), config.lr_at(step));
        }
    }
}
