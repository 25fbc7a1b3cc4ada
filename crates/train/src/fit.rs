//! The training loop, inside burn's `Learner`.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Result;
use burn::data::dataloader::Progress;
use burn::module::Module;
use burn::tensor::Device;
use burn::train::{
    EventProcessorTraining, Learner, LearnerEvent, SupervisedLearningStrategy, SupervisedTrainingEventProcessor,
    TrainLoader, TrainingComponents, TrainingItem, ValidLoader,
};
use data::{Dataset, Split};
use rand::Rng;
use random::stream;

use crate::evaluate::{BATCH_SIZE, evaluate};
use crate::folder::{MetricLine, MetricsFile};
use crate::learner::{LanguageModel, Report, gradients, update};
use crate::{Ending, RunConfig, RunFolder};

/// Steps through a run: a pure function of the config and the corpus but for the clock.
pub(crate) struct StepLoop {
    pub(crate) config: RunConfig,
    pub(crate) data: Arc<Dataset>,
    pub(crate) device: Device,
    pub(crate) folder: RunFolder,
    /// How the run ended; filled by `fit`, whose signature is burn's.
    pub(crate) ending: Mutex<Option<Result<Ending>>>,
}

impl SupervisedLearningStrategy<LanguageModel> for StepLoop {
    fn fit(
        &self,
        components: TrainingComponents<LanguageModel>,
        mut learner: Learner<LanguageModel>,
        _train: TrainLoader<LanguageModel>,
        _valid: ValidLoader<LanguageModel>,
        _starting_epoch: usize,
    ) -> (LanguageModel, SupervisedTrainingEventProcessor<LanguageModel>) {
        let mut events = components.event_processor;
        let ending = self.steps(&mut learner, &mut events, || components.interrupter.should_stop());
        *self.ending.lock().expect("no panic while it is held") = Some(ending);
        (learner.model(), events)
    }
}

impl StepLoop {
    fn steps(
        &self,
        learner: &mut Learner<LanguageModel>,
        events: &mut SupervisedTrainingEventProcessor<LanguageModel>,
        should_stop: impl Fn() -> bool,
    ) -> Result<Ending> {
        let RunConfig { seed, train, .. } = &self.config;
        let mut metrics = MetricsFile::create(&self.folder, &self.config)?;
        let start = Instant::now();
        events.process_train(LearnerEvent::StartSplit { epoch_number: 1, total_items: train.steps })?;
        for step in 1..=train.steps {
            let step_start = Instant::now();
            let batch = self.data.train_batch(*seed, step, train.batch_size);
            self.device.seed(stream(*seed, &format!("dropout/{step}")).next_u64());
            let (output, grads, grad_norm) = gradients(learner, batch, &self.config);
            let loss = output.loss();
            if !loss.is_finite() || !grad_norm.is_finite() {
                return Ok(Ending::Diverged { step });
            }
            let lr = update(learner, grads);

            let seconds = step_start.elapsed().as_secs_f64();
            metrics.write(&MetricLine {
                lr: Some(lr),
                grad_norm: Some(grad_norm),
                ..MetricLine::new(step, Split::Train, loss, seconds)
            })?;
            let seconds_left = start.elapsed().as_secs_f64() / step as f64 * (train.steps - step) as f64;
            let speed = output.n_tokens as f64 / seconds;
            let progress = Progress::new(step, train.steps, Some("steps".into()));
            let item = |report: Report| TrainingItem::new(report, progress.clone(), Some(step), None);
            let report = Report { lr, tokens_per_second: speed, seconds_left, ..output };
            events.process_train(LearnerEvent::ProcessedItem(item(report)))?;

            if step % train.eval_every == 0 || step == train.steps {
                let eval_start = Instant::now();
                let report = evaluate(&learner.model().valid(), &self.data, BATCH_SIZE);
                let loss = report.loss();
                if !loss.is_finite() {
                    return Ok(Ending::Diverged { step });
                }
                let bits = report.nats / std::f64::consts::LN_2;
                metrics.write(&MetricLine {
                    bits_per_byte: Some(bits / self.data.valid_bytes as f64),
                    classes: report.classes.iter().map(|(&class, (nats, n))| (class, nats / *n as f64)).collect(),
                    ..MetricLine::new(step, Split::Valid, loss, eval_start.elapsed().as_secs_f64())
                })?;
                tracing::info!(step, loss, "evaluated");
                events.process_valid(LearnerEvent::ProcessedItem(item(report)))?;
            }
            if should_stop() && step < train.steps {
                return Ok(Ending::Stopped { step });
            }
        }
        events.process_train(LearnerEvent::EndSplit(1))?;
        metrics.sync()?;
        Ok(Ending::Done)
    }
}
