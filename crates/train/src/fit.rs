//! The training loop, inside burn's `Learner`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result};
use burn::data::dataloader::Progress;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use burn::train::{
    EventProcessorTraining, Learner, LearnerEvent, SupervisedLearningStrategy, SupervisedTrainingEventProcessor,
    TrainLoader, TrainingComponents, TrainingItem, ValidLoader,
};
use data::{Batch, Dataset, Split};
use rand::Rng;
use random::stream;

use crate::checkpoint::{Checkpoints, TrainState};
use crate::config::OnSpike;
use crate::diverged::first_not_finite;
use crate::evaluate::{BATCH_SIZE, evaluate};
use crate::journal::{Journal, MetricLine};
use crate::learner::{LanguageModel, Report, gradients, update};
use crate::records::Outlet;
use crate::{Ending, RunConfig, RunFolder, State};

/// Steps through a run: a pure function of the config and the corpus but for the clock.
pub(crate) struct StepLoop {
    pub(crate) config: RunConfig,
    pub(crate) data: Arc<Dataset>,
    pub(crate) device: Device,
    pub(crate) folder: RunFolder,
    pub(crate) checkpoints: Checkpoints,
    /// Where the run stands: at its first step, or where it was interrupted.
    pub(crate) from: TrainState,
    /// The learner's state, each time that burn is asked for it.
    pub(crate) outlet: Mutex<Outlet>,
    /// Whether the run is to stop.
    pub(crate) stop: Arc<AtomicBool>,
    /// How the run ended, and its state then; filled by `fit`, whose signature is burn's.
    pub(crate) ending: Mutex<Option<Result<(Ending, TrainState)>>>,
}

type Components = TrainingComponents<LanguageModel>;

impl SupervisedLearningStrategy<LanguageModel> for StepLoop {
    fn fit(
        &self,
        mut components: Components,
        mut learner: Learner<LanguageModel>,
        _train: TrainLoader<LanguageModel>,
        _valid: ValidLoader<LanguageModel>,
        _starting_epoch: usize,
    ) -> (LanguageModel, SupervisedTrainingEventProcessor<LanguageModel>) {
        let mut state = self.from.clone();
        let ending = self.steps(&mut learner, &mut components, &mut state).map(|ending| (ending, state));
        *self.ending.lock().expect("no panic while it is held") = Some(ending);
        (learner.model(), components.event_processor)
    }
}

impl StepLoop {
    /// A checkpoint lies between a step and its evaluation, so that a run can stop in the middle of either.
    fn steps(
        &self,
        learner: &mut Learner<LanguageModel>,
        components: &mut Components,
        state: &mut TrainState,
    ) -> Result<Ending> {
        let RunConfig { train, checkpoint, .. } = &self.config;
        let mut journal = Journal::open(&self.folder, &self.config, state.metrics.as_ref())?;
        let start = Instant::now();
        let all = LearnerEvent::StartSplit { epoch_number: 1, total_items: train.steps };
        components.event_processor.process_train(all)?;
        let mut saved = state.step;
        loop {
            let is_last = state.step == train.steps;
            let evaluates = state.step > 0 && (state.step.is_multiple_of(train.eval_every) || is_last);
            let is_due = state.step.is_multiple_of(checkpoint.every) || is_last || evaluates && checkpoint.keep_best;
            let should_stop = self.should_stop(components);
            if saved < state.step && (is_due || should_stop) {
                self.save(learner, components, state, &journal)?;
                saved = state.step;
            }
            if should_stop {
                return Ok(Ending::Stopped { step: state.step });
            }
            if evaluates {
                match self.evaluate(learner, components, state, &mut journal)? {
                    // Asked to stop: back to where that is done.
                    None => continue,
                    Some(loss) if !loss.is_finite() => {
                        let why = format!("step {}: the validation loss is {loss}", state.step);
                        return self.diverged(&journal, state.step, why);
                    }
                    Some(_) if is_last => break,
                    Some(_) => {}
                }
            }
            if let Some(why) = self.step(learner, components, state, &mut journal, start)? {
                return self.diverged(&journal, state.step + 1, format!("step {}: {why}", state.step + 1));
            }
        }
        components.event_processor.process_train(LearnerEvent::EndSplit(1))?;
        journal.sync()?;
        Ok(Ending::Done)
    }

    /// Whether a signal or the dashboard asks for it.
    fn should_stop(&self, components: &Components) -> bool {
        self.stop.load(Ordering::Relaxed) || components.interrupter.should_stop()
    }

    /// One step of training; why the run cannot go on, if it cannot.
    fn step(
        &self,
        learner: &mut Learner<LanguageModel>,
        components: &mut Components,
        state: &mut TrainState,
        journal: &mut Journal,
        start: Instant,
    ) -> Result<Option<String>> {
        let RunConfig { seed, train, .. } = &self.config;
        let step = state.step + 1;
        let step_start = Instant::now();
        let batch = self.data.train_batch(*seed, step, train.batch_size);
        self.seed_dropout(step);
        let (output, grads, grad_norm) = gradients(learner, &batch, &self.config);
        let loss = output.loss();
        if !loss.is_finite() || !grad_norm.is_finite() {
            return Ok(Some(self.not_finite(&learner.model(), step, &batch, &grads, loss)));
        }
        let spike = state.window.spike(loss);
        state.window.push(loss);
        if let Some(z) = spike {
            let what = format!("the loss {loss:.4} is {z:.1} standard deviations above the mean of those before it");
            tracing::warn!(step, "spike: {what}");
            if train.on_spike == OnSpike::Stop {
                return Ok(Some(format!("{what}, and train.on_spike = \"stop\"")));
            }
        }
        let is_skipped = spike.is_some() && train.on_spike == OnSpike::Skip;
        let lr = update(learner, (!is_skipped).then_some(grads));
        state.step = step;
        state.tokens += output.n_tokens;

        let seconds = step_start.elapsed().as_secs_f64();
        journal.write(&MetricLine {
            lr: Some(lr),
            grad_norm: Some(grad_norm),
            spike,
            ..MetricLine::new(step, Split::Train, loss, seconds)
        })?;
        let done = (step - self.from.step) as f64;
        let seconds_left = start.elapsed().as_secs_f64() / done * (train.steps - step) as f64;
        let tokens_per_second = output.n_tokens as f64 / seconds;
        let report = Report { lr, tokens_per_second, seconds_left, ..output };
        components.event_processor.process_train(LearnerEvent::ProcessedItem(self.item(step, report)))?;
        Ok(None)
    }

    /// The validation loss, which is written down if it is finite; `None` if a stop was asked for before there was one.
    fn evaluate(
        &self,
        learner: &Learner<LanguageModel>,
        components: &mut Components,
        state: &mut TrainState,
        journal: &mut Journal,
    ) -> Result<Option<f64>> {
        let start = Instant::now();
        let should_stop = || self.should_stop(components);
        let report = evaluate(&learner.model().valid(), &self.data, BATCH_SIZE, should_stop);
        let Some(report) = report else { return Ok(None) };
        let loss = report.loss();
        if !loss.is_finite() {
            return Ok(Some(loss));
        }
        if state.best.is_none_or(|(_, bits)| loss < f64::from_bits(bits)) {
            state.best = Some((state.step, loss.to_bits()));
        }
        let bits = report.nats / std::f64::consts::LN_2;
        journal.write(&MetricLine {
            bits_per_byte: Some(bits / self.data.valid_bytes as f64),
            classes: report.classes.iter().map(|(&class, (nats, n))| (class, nats / *n as f64)).collect(),
            ..MetricLine::new(state.step, Split::Valid, loss, start.elapsed().as_secs_f64())
        })?;
        tracing::info!(step = state.step, loss, "evaluated");
        components.event_processor.process_valid(LearnerEvent::ProcessedItem(self.item(state.step, report)))?;
        Ok(Some(loss))
    }

    fn item(&self, step: usize, report: Report) -> TrainingItem<Report> {
        TrainingItem::new(report, Progress::new(step, self.config.train.steps, Some("steps".into())), Some(step), None)
    }

    fn seed_dropout(&self, step: usize) {
        self.device.seed(stream(self.config.seed, &format!("dropout/{step}")).next_u64());
    }

    /// Writes a checkpoint.
    fn save(
        &self,
        learner: &Learner<LanguageModel>,
        components: &mut Components,
        state: &mut TrainState,
        journal: &Journal,
    ) -> Result<()> {
        journal.sync()?;
        state.metrics = Some(journal.mark());
        // Running statistics lag one step behind until a model for inference is made of the one in training.
        drop(learner.model().valid());
        let checkpointer = components.checkpointer.as_mut().context("burn was given checkpointers")?;
        checkpointer.checkpoint(learner, state.step, &components.event_store);
        let outlet = self.outlet.lock().expect("no panic while it is held");
        let (model, optimizer) = (outlet.model.recv()?, outlet.optimizer.recv()?);
        self.checkpoints.save(model, optimizer, state)?;
        self.folder.set_status(State::Running, state.step, None)
    }

    /// Where a step's numbers stopped being finite, in words.
    fn not_finite(
        &self,
        model: &LanguageModel,
        step: usize,
        batch: &Batch,
        grads: &GradientsParams,
        loss: f64,
    ) -> String {
        let what = if loss.is_finite() { "the norm of the gradient" } else { "the loss" };
        // The same parts and the same dropout as in the step.
        self.seed_dropout(step);
        let parts = batch.split(self.config.train.accumulate);
        let first = first_not_finite(model, parts, grads).unwrap_or("none by itself: a sum overflows".into());
        let starts = self.data.train_starts(self.config.seed, step, batch.batch);
        let starts: Vec<String> = starts.iter().map(usize::to_string).collect();
        format!(
            "{what} is not a finite number; the first tensor that is not: {first}; its batch is of the windows that start at \
             training tokens {}",
            starts.join(", ")
        )
    }

    fn diverged(&self, journal: &Journal, step: usize, why: String) -> Result<Ending> {
        journal.sync()?;
        let last = self.checkpoints.last().unwrap_or("none".into());
        Ok(Ending::Diverged { step, message: format!("{why}; last checkpoint: {last}") })
    }
}
