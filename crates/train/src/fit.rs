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
use model::Units;

use crate::checkpoint::{Checkpoints, TrainState};
use crate::config::OnSpike;
use crate::diverged::first_not_finite;
use crate::evaluate::{BATCH_SIZE, evaluate};
use crate::journal::{MetricLine, MetricsLog};
use crate::learner::{LanguageModel, PendingLoss, StepOutput, gradients, learner, pending_step, update};
use crate::probe::Probes;
use crate::records::RecordReceiver;
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
    pub(crate) receiver: Mutex<RecordReceiver>,
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
        if !self.config.backend.is_cpu() {
            self.warm_up();
        }
        let mut run = || {
            let metrics = MetricsLog::open(&self.folder, &self.config, state.metrics.as_ref())?;
            let (start, last) = (Instant::now(), Instant::now());
            let probes = Probes::open(&self.folder, &self.config, state.probes.as_ref(), &self.data)?;
            let (learner, components, state) = (&mut learner, &mut components, &mut state);
            Running { of: self, learner, components, state, metrics, probes, pending: vec![], start, last }.steps()
        };
        let ending = run().map(|ending| (ending, state));
        *self.ending.lock().expect("no panic while it is held") = Some(ending);
        (learner.model(), components.event_processor)
    }
}

impl StepLoop {
    fn item(&self, step: usize, report: StepOutput) -> TrainingItem<StepOutput> {
        TrainingItem::new(report, Progress::new(step, self.config.train.steps, Some("steps".into())), Some(step), None)
    }

    /// Has a GPU compile what a step needs, and choose how to compute it, before the clock starts: with a learner that nobody needs.
    fn warm_up(&self) {
        let mut learner = learner(&self.config, &self.device);
        let batch = self.data.train_batch(self.config.seed, 1, self.config.train.batch_size);
        let (pending, _) = pending_step(&mut learner, &batch, &self.config, 1);
        PendingLoss::read(&[pending]);
    }

    /// Steps whose numbers are read together. On the CPU they are there at once; a GPU would have to come to a halt for each, and only
    /// where a spike decides about the next step it does.
    fn read_every(&self) -> usize {
        let waits = self.config.backend.is_cpu() || self.config.train.on_spike != OnSpike::Warn;
        if waits { 1 } else { READ_EVERY }
    }
}

const READ_EVERY: usize = 16;

/// A run on its way.
struct Running<'a> {
    of: &'a StepLoop,
    learner: &'a mut Learner<LanguageModel>,
    components: &'a mut Components,
    state: &'a mut TrainState,
    metrics: MetricsLog,
    probes: Probes<'a>,
    /// Steps that were taken and not looked at, each with its learning rate.
    pending: Vec<(PendingLoss, f64)>,
    start: Instant,
    /// When the last step was looked at.
    last: Instant,
}

/// A step whose numbers are not finite, and what is wrong.
type Wrong = (usize, String);

impl Running<'_> {
    /// A checkpoint lies between a step and its evaluation, so that a run can stop in the middle of either.
    fn steps(&mut self) -> Result<Ending> {
        let RunConfig { train, checkpoint, .. } = &self.of.config;
        let all = LearnerEvent::StartSplit { epoch_number: 1, total_items: train.steps };
        self.components.event_processor.process_train(all)?;
        let mut saved = self.state.step;
        loop {
            let step = self.state.step;
            let is_last = step == train.steps;
            let evaluates = step > 0 && (step.is_multiple_of(train.eval_every) || is_last);
            let is_due = step.is_multiple_of(checkpoint.every) || is_last || evaluates && checkpoint.keep_best;
            let should_stop = self.should_stop();
            let is_probed = self.probes.is_due(step);
            if (is_due || evaluates || is_probed || should_stop)
                && let Some(wrong) = self.read()?
            {
                return self.diverged(wrong);
            }
            if is_probed {
                self.probes.look(step, &self.learner.model())?;
                self.last = Instant::now();
            }
            if saved < step && (is_due || should_stop) {
                self.save()?;
                saved = step;
            }
            if should_stop {
                return Ok(Ending::Stopped { step });
            }
            if evaluates {
                match self.evaluate()? {
                    // Asked to stop: back to where that is done.
                    None => continue,
                    Some(loss) if !loss.is_finite() => {
                        return self.diverged((step, format!("the validation loss is {loss}")));
                    }
                    Some(_) if is_last => break,
                    Some(_) => {}
                }
            }
            if let Some(wrong) = self.step()? {
                return self.diverged(wrong);
            }
        }
        self.components.event_processor.process_train(LearnerEvent::EndSplit(1))?;
        self.metrics.sync()?;
        self.probes.sync()?;
        Ok(Ending::Done)
    }

    /// Whether a signal or the dashboard asks for it.
    fn should_stop(&self) -> bool {
        self.of.stop.load(Ordering::Relaxed) || self.components.interrupter.should_stop()
    }

    /// One step of training; what is wrong, if the run cannot go on.
    fn step(&mut self) -> Result<Option<Wrong>> {
        let RunConfig { seed, train, .. } = &self.of.config;
        let step = self.state.step + 1;
        let batch = self.of.data.train_batch(*seed, step, train.batch_size);
        self.probes.before(step, || self.learner.model());
        if self.of.read_every() > 1 {
            self.pending.push(pending_step(self.learner, &batch, &self.of.config, step));
            self.state.step = step;
            return if self.pending.len() < self.of.read_every() { Ok(None) } else { self.read() };
        }
        let (report, grads, norm) = gradients(self.learner, &batch, &self.of.config, step);
        let loss = report.loss();
        if !loss.is_finite() || !norm.is_finite() {
            let first = self.where_from(&self.learner.model(), step, &batch, &grads);
            return Ok(Some((step, self.not_finite(step, loss, &first))));
        }
        let spike = self.state.window.spike(loss);
        if let (Some(z), OnSpike::Stop) = (spike, train.on_spike) {
            return Ok(Some((step, format!("{}, and train.on_spike = \"stop\"", leap(loss, z)))));
        }
        let is_skipped = spike.is_some() && train.on_spike == OnSpike::Skip;
        let lr = update(self.learner, (!is_skipped).then_some(grads));
        self.state.step = step;
        self.note(step, report, norm, lr, spike, self.last.elapsed().as_secs_f64())?;
        self.last = Instant::now();
        Ok(None)
    }

    /// Looks at the steps that nobody has looked at; the first that is wrong.
    fn read(&mut self) -> Result<Option<Wrong>> {
        if self.pending.is_empty() {
            return Ok(None);
        }
        let (pending, rates): (Vec<PendingLoss>, Vec<f64>) = std::mem::take(&mut self.pending).into_iter().unzip();
        let first = self.state.step + 1 - pending.len();
        let numbers = PendingLoss::read(&pending);
        let seconds = self.last.elapsed().as_secs_f64() / pending.len() as f64;
        for (step, ((report, norm), lr)) in (first..).zip(numbers.into_iter().zip(rates)) {
            let loss = report.loss();
            if !loss.is_finite() || !norm.is_finite() {
                let why = self.not_finite(step, loss, "on a GPU its tensors are gone when that is seen");
                return Ok(Some((step, why)));
            }
            let spike = self.state.window.spike(loss);
            self.note(step, report, norm, lr, spike, seconds)?;
        }
        self.last = Instant::now();
        Ok(None)
    }

    /// Writes down a step whose numbers are finite.
    fn note(
        &mut self,
        step: usize,
        report: StepOutput,
        norm: f64,
        lr: f64,
        spike: Option<f64>,
        seconds: f64,
    ) -> Result<()> {
        let loss = report.loss();
        self.state.window.push(loss);
        self.state.tokens += report.n_tokens;
        if let Some(z) = spike {
            tracing::warn!(step, "spike: {}", leap(loss, z));
        }
        let line = MetricLine::new(step, Split::Train, loss, seconds);
        self.metrics.write(&MetricLine { lr: Some(lr), grad_norm: Some(norm), spike, ..line })?;
        let done = (self.state.step - self.of.from.step) as f64;
        let steps_left = (self.of.config.train.steps - self.state.step) as f64;
        let seconds_left = self.start.elapsed().as_secs_f64() / done * steps_left;
        let tokens_per_second = report.n_tokens as f64 / seconds;
        let report = StepOutput { lr, tokens_per_second, seconds_left, ..report };
        self.components.event_processor.process_train(LearnerEvent::ProcessedItem(self.of.item(step, report)))?;
        Ok(())
    }

    /// The validation loss, which is written down if it is finite; `None` if a stop was asked for before there was one.
    fn evaluate(&mut self) -> Result<Option<f64>> {
        let start = Instant::now();
        let model = self.learner.model().valid();
        let mut units = self.probes.counts_dead(self.state.step).then(Units::default);
        let report = evaluate(&model, &self.of.data, BATCH_SIZE, units.as_mut(), || self.should_stop());
        let Some(report) = report else { return Ok(None) };
        let loss = report.loss();
        if !loss.is_finite() {
            return Ok(Some(loss));
        }
        let step = self.state.step;
        if self.state.best.is_none_or(|(_, bits)| loss < f64::from_bits(bits)) {
            self.state.best = Some((step, loss.to_bits()));
        }
        let bits = report.nats / std::f64::consts::LN_2;
        if let Some(units) = units {
            self.probes.write_dead(step, &units)?;
        }
        self.metrics.write(&MetricLine {
            bits_per_byte: self.of.data.valid_bytes.map(|bytes| bits / bytes as f64),
            classes: report.classes.iter().map(|(&class, (nats, n))| (class, nats / *n as f64)).collect(),
            ..MetricLine::new(step, Split::Valid, loss, start.elapsed().as_secs_f64())
        })?;
        tracing::info!(step, loss, "evaluated");
        self.components.event_processor.process_valid(LearnerEvent::ProcessedItem(self.of.item(step, report)))?;
        self.last = Instant::now();
        Ok(Some(loss))
    }

    /// Writes a checkpoint.
    fn save(&mut self) -> Result<()> {
        self.metrics.sync()?;
        self.probes.sync()?;
        self.state.metrics = Some(self.metrics.mark());
        self.state.probes = self.probes.mark();
        // Running statistics lag one step behind until a model for inference is made of the one in training.
        drop(self.learner.model().valid());
        let checkpointer = self.components.checkpointer.as_mut().context("burn was given checkpointers")?;
        checkpointer.checkpoint(self.learner, self.state.step, &self.components.event_store);
        let receiver = self.of.receiver.lock().expect("no panic while it is held");
        let (model, optimizer) = (receiver.model.recv()?, receiver.optimizer.recv()?);
        self.of.checkpoints.save(model, optimizer, self.state)?;
        self.of.folder.set_status(State::Running, self.state.step, None)?;
        self.last = Instant::now();
        Ok(())
    }

    /// What of a step is not finite, where that began, and which windows it has seen.
    fn not_finite(&self, step: usize, loss: f64, first: &str) -> String {
        let what = if loss.is_finite() { "the norm of the gradient" } else { "the loss" };
        let RunConfig { seed, train, .. } = &self.of.config;
        let starts = self.of.data.train_starts(*seed, step, train.batch_size);
        let starts: Vec<String> = starts.iter().map(usize::to_string).collect();
        format!(
            "{what} is not a finite number; {first}; its batch is of the windows that start at training tokens {}",
            starts.join(", ")
        )
    }

    /// The first tensor of a step that is not finite, in words.
    fn where_from(&self, model: &LanguageModel, step: usize, batch: &Batch, grads: &GradientsParams) -> String {
        let first = first_not_finite(model, batch, &self.of.config, step, grads);
        format!("the first tensor that is not: {}", first.unwrap_or("none by itself: a sum overflows".into()))
    }

    fn diverged(&self, (step, why): Wrong) -> Result<Ending> {
        self.metrics.sync()?;
        self.probes.sync()?;
        let last = self.of.checkpoints.last().unwrap_or("none".into());
        Ok(Ending::Diverged { step, message: format!("step {step}: {why}; last checkpoint: {last}") })
    }
}

fn leap(loss: f64, z: f64) -> String {
    format!("the loss {loss:.4} is {z:.1} standard deviations above the mean of those before it")
}
