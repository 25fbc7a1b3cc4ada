//! One run from its config to its last checkpoint.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::Device;
use burn::train::renderer::MetricsRenderer;
use burn::train::renderer::tui::TuiMetricsRendererWrapper;
use burn::train::{Interrupter, SupervisedTraining, TrainingStrategy};
use data::{DataError, Dataset};
use disk::{Locked, lock_within};

use crate::checkpoint::{Checkpoints, TrainState};
use crate::events::now;
use crate::fit::StepLoop;
use crate::folder::{Resumed, is_there, unwritable};
use crate::learner::{LanguageModel, learner, resumed};
use crate::line_renderer::LineRenderer;
use crate::metrics::{NoLog, ScalarMetric};
use crate::records::{self, WhenAsked};
use crate::{ConfigError, Existing, Meta, RunConfig, RunFolder, State};

/// How a run came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    Done,
    /// Loss or gradient stopped being finite in this step, or the loss leapt and was not to.
    Diverged {
        step: usize,
        /// Where, and from what.
        message: String,
    },
    /// Asked to stop after this step.
    Stopped {
        step: usize,
    },
}

/// What a run shows while it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Display {
    /// burn's dashboard, which takes over the terminal.
    Dashboard,
    /// A line every few seconds on standard output.
    Plain,
}

/// Which program runs, and as what.
pub struct Provenance {
    pub commit: String,
    pub version: String,
    pub command: String,
    /// Of a GPU: which it is, and how far it is from the CPU, in words.
    pub selftest: Option<String>,
}

/// What burn's dashboard panics with when it is told to stop at once.
const KILLED: &str = "Killing training from user input.";

/// Trains `config` in `folder` and keeps the weights of its last step. It ends early once `stop` is true, and goes on from
/// there when it is called again.
///
/// # Errors
/// A config that cannot be run, or is not that of the run in the folder; a corpus that cannot be used, a folder that is in use
/// or cannot be written.
pub fn run(
    config: &RunConfig,
    folder: &Path,
    provenance: Provenance,
    display: Display,
    stop: Arc<AtomicBool>,
) -> Result<Ending> {
    run_in(&RunFolder::new(folder), config, provenance, display, stop)
}

/// Longest time for which a run waits for another process in its folder.
pub(crate) const LEFT_OVER: Duration = Duration::from_secs(30);

pub(crate) fn run_in(
    folder: &RunFolder,
    config: &RunConfig,
    provenance: Provenance,
    display: Display,
    stop: Arc<AtomicBool>,
) -> Result<Ending> {
    config.validate()?;
    folder.storage.create_dir(&folder.path).with_context(|| unwritable(&folder.path))?;
    // A process that was left over by a study that was killed saves its state first.
    let should_stop = || stop.load(Ordering::Relaxed);
    let _lock = match lock_within(&folder.path, LEFT_OVER, should_stop) {
        Err(Locked::Held { .. }) if should_stop() => return Ok(Ending::Stopped { step: 0 }),
        taken => taken?,
    };
    let existing = folder.existing(config)?;
    match &existing {
        // Whoever had the lock may have brought the run to its end.
        Existing::Complete(ending) => return Ok(ending.clone()),
        Existing::Nothing | Existing::HalfFinished | Existing::Shorter(_) => {}
        Existing::Another(what) | Existing::Unusable(what) => {
            return Err(folder.refuse(format!("holds something else ({what}); move it away")).into());
        }
    }
    let checkpoints = Checkpoints::open(folder, config)?;
    if let Existing::Shorter(_) = existing {
        // Check that it can resume before its status says otherwise.
        planned_text(config)?;
        checkpoints.newest(|_| Ok(()))?;
    }
    let step = folder.status().ok().flatten().map_or(0, |status| status.step);
    // In this order: no run that is to be given more steps may look done.
    folder.set_status(State::Running, step, None)?;
    folder.set_config(config)?;
    let caught = catch_unwind(AssertUnwindSafe(|| train(config, folder, checkpoints, provenance, display, stop)));
    // That of the last checkpoint.
    let step = folder.status().ok().flatten().map_or(step, |status| status.step);
    let result = caught.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        match message.unwrap_or("a panic without a message") {
            KILLED => Ok(Ending::Stopped { step }),
            message => Err(anyhow::anyhow!("internal error: {message}")),
        }
    });
    match &result {
        Ok(Ending::Done) => {}
        Ok(Ending::Diverged { step, message }) => folder.set_ended(State::Diverged, *step, Some(message.clone()))?,
        Ok(Ending::Stopped { step }) => folder.set_status(State::Stopped, *step, None)?,
        Err(error) => {
            // The error itself matters more than a second one about the status.
            let _ = folder.set_status(State::Failed, step, Some(format!("{error:#}")));
        }
    }
    result
}

/// The text of a run, which must be the one that it was planned with.
///
/// # Errors
/// It is another now, or cannot be read.
pub fn planned_text(config: &RunConfig) -> Result<Dataset> {
    let data = Dataset::load(&config.data, config.model.seq_len)?;
    if data.origin.sha256 != config.corpus_sha256 {
        let planned = config.corpus_sha256.clone();
        let what = format!("corpus `{}`", config.data.corpus);
        return Err(DataError::Changed { what, found: data.origin.sha256, planned }.into());
    }
    let found = data.tokenizer.sha256()?;
    if found != config.tokenizer_sha256 {
        let what = format!("tokenizer {}", config.data.tokenizer);
        return Err(DataError::Changed { what, found, planned: config.tokenizer_sha256.clone() }.into());
    }
    if data.tokenizer.vocab_size() != config.vocab_size {
        let found = data.tokenizer.vocab_size();
        return Err(ConfigError(format!("vocab_size = {}: the corpus has {found} token ids", config.vocab_size)).into());
    }
    Ok(data)
}

fn train(
    config: &RunConfig,
    folder: &RunFolder,
    checkpoints: Checkpoints,
    provenance: Provenance,
    display: Display,
    stop: Arc<AtomicBool>,
) -> Result<Ending> {
    let data = planned_text(config)?;
    let device = config.backend.device()?.autodiff();
    let resumed = checkpoints.newest(|checkpoint| {
        let state = checkpoint.state.clone();
        Ok((resumed(config, &device, checkpoint)?, state))
    })?;
    folder.set_tokenizer(&data.tokenizer.to_json()?)?;
    let fresh = meta(config, &data, provenance);
    let (learner, from) = match resumed {
        Some((learner, state)) => {
            let again =
                Resumed { step: state.step, commit: fresh.commit.clone(), cpu: fresh.cpu.clone(), at: fresh.started };
            // One that is gone does not keep a run from its end; one that cannot be read is not written over.
            let mut meta = if is_there(&folder.meta_path())? { folder.meta()? } else { fresh };
            meta.resumed.push(again);
            folder.set_meta(&meta)?;
            tracing::info!(step = state.step, "goes on");
            (learner, state)
        }
        None => {
            folder.set_meta(&fresh)?;
            tracing::info!(study = config.study, variant = config.variant, seed = config.seed, "starts");
            (learner(config, &device), TrainState::default())
        }
    };
    let (model_sender, optimizer_sender, schedule_sender, receiver) = records::channels();
    let steps = Arc::new(StepLoop {
        config: config.clone(),
        data: Arc::new(data),
        device,
        folder: folder.clone(),
        checkpoints,
        from,
        receiver: Mutex::new(receiver),
        stop,
        ending: Mutex::new(None),
    });
    let interrupter = Interrupter::new();
    let renderer: Box<dyn MetricsRenderer> = match display {
        Display::Dashboard => Box::new(TuiMetricsRendererWrapper::new(interrupter.clone(), None)),
        Display::Plain => Box::new(LineRenderer::new()),
    };
    let result = with_metrics(SupervisedTraining::new(&folder.path, Arc::new(NoLoader), Arc::new(NoLoader)))
        .with_application_logger(None)
        .with_metric_logger(NoLog)
        .with_custom_checkpointers(model_sender, optimizer_sender, schedule_sender)
        .with_checkpointing_strategy(WhenAsked)
        .with_training_strategy(TrainingStrategy::Custom(steps.clone()))
        .with_interrupter(interrupter)
        .renderer(renderer)
        .label(&format!("{} / {} / seed {}", config.study, config.variant, config.seed))
        .launch(learner);
    let ending = steps.ending.lock().expect("no panic while it is held").take();
    let (ending, state) = ending.context("burn's learner did not call the step loop")??;
    if let Some(error) = result.error {
        return Err(anyhow::anyhow!("burn's learner stopped: {error}"));
    }
    if ending == Ending::Done {
        save(&result.model, folder)?;
        folder.set_ended(State::Done, config.train.steps, None)?;
        // What is left over is in nobody's way.
        if let Err(error) = steps.checkpoints.clear(&state) {
            tracing::warn!("{error:#}");
        }
    }
    tracing::info!(?ending, "ends");
    Ok(ending)
}

/// Registers every number that the dashboard shows.
fn with_metrics(training: SupervisedTraining<LanguageModel>) -> SupervisedTraining<LanguageModel> {
    training
        .metric_train_numeric(ScalarMetric::loss())
        .metric_valid_numeric(ScalarMetric::loss())
        .metric_train_numeric(ScalarMetric::perplexity())
        .metric_valid_numeric(ScalarMetric::perplexity())
        .metric_train_numeric(ScalarMetric::learning_rate())
        .metric_train_numeric(ScalarMetric::tokens_per_second())
        .metric_train_numeric(ScalarMetric::time_left())
}

/// Writes the weights as safetensors, under their module paths.
fn save(model: &LanguageModel, folder: &RunFolder) -> Result<()> {
    let path = folder.weights_path();
    let mut store = SafetensorsStore::from_bytes(None).clear_metadata().metadata("format", "pt");
    model.decoder.save_into(&mut store)?;
    let bytes = store.get_bytes()?;
    let write = || {
        folder.storage.create_dir(path.parent().expect("a file in a folder"))?;
        folder.storage.write_whole(&path, &bytes)
    };
    write().with_context(|| unwritable(&path))
}

fn meta(config: &RunConfig, data: &Dataset, provenance: Provenance) -> Meta {
    let budget = config.model.budget(config.vocab_size);
    let mut system = sysinfo::System::new();
    system.refresh_cpu_all();
    let cpu = system.cpus().first().map_or("unknown".to_string(), |cpu| cpu.brand().trim().to_string());
    Meta {
        commit: provenance.commit,
        version: provenance.version,
        burn: "0.22.1".into(),
        os: sysinfo::System::long_os_version().unwrap_or_else(|| std::env::consts::OS.into()),
        cpu,
        threads: std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(0),
        command: provenance.command,
        corpus_sha256: data.origin.sha256.clone(),
        n_params: budget.params.total(),
        flops_per_token: budget.flops.total(),
        split_rule: data.origin.split_rule.clone(),
        account: data.account.clone(),
        started: now() as u64,
        selftest: provenance.selftest,
        resumed: vec![],
    }
}

/// burn asks for data loaders; the step loop takes its batches by number instead, so that a step is a pure function.
struct NoLoader;

impl<B: Send + 'static> DataLoader<B> for NoLoader {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<B> + 'a> {
        Box::new(NoBatches(PhantomData))
    }

    fn num_items(&self) -> usize {
        0
    }

    fn to_device(&self, _device: &Device) -> Arc<dyn DataLoader<B>> {
        Arc::new(NoLoader)
    }

    fn slice(&self, _start: usize, _end: usize) -> Arc<dyn DataLoader<B>> {
        Arc::new(NoLoader)
    }
}

struct NoBatches<B>(PhantomData<B>);

impl<B> Iterator for NoBatches<B> {
    type Item = Result<B, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        None
    }
}

impl<B> DataLoaderIterator<B> for NoBatches<B> {
    fn progress(&self) -> Progress {
        Progress::new(0, 0, None)
    }
}
