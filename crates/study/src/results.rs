//! What the run folders of a study hold.

use std::f64::consts::LN_2;
use std::path::Path;

use anyhow::Result;
use data::{Class, Split};
use train::{
    BadFile, ConfigError, Meta, MetricLine, ProbeLine, RunConfig, RunFolder, State, is_there, median, read_text,
};

use crate::plan::{Study, Variant};
use crate::rates::RateCurve;
use crate::roughness::roughness;
use crate::stats::mean_and_deviation;

/// A study with its runs as far as they have come.
pub(crate) struct StudyResults {
    pub(crate) study: Study,
    /// The started runs of each variant, in the study's order and by seed.
    pub(crate) runs: Vec<Vec<RunResult>>,
    /// Of a study with a sweep: each variant's loss by learning rate.
    pub(crate) curves: Vec<RateCurve>,
    /// Why runs that are there are left out: they cannot be read, or are not of the study.
    pub(crate) left_out: Vec<String>,
}

/// One run that has started.
pub(crate) struct RunResult {
    pub(crate) state: State,
    /// The step that it has come to; of a run that diverged, that in which it did.
    pub(crate) step: usize,
    pub(crate) config: RunConfig,
    pub(crate) meta: Meta,
    pub(crate) metrics: Vec<MetricLine>,
    /// What was seen inside, where anyone looked.
    pub(crate) probes: Vec<ProbeLine>,
    /// Why it ended, if it did not end well.
    pub(crate) message: Option<String>,
    /// Text that the model wrote, of one run of a variant.
    pub(crate) sample: Option<String>,
}

impl StudyResults {
    /// Reads the study in `folder`. Runs that have not started are left out; those that cannot be read are, too, and named.
    ///
    /// # Errors
    /// A folder that is not a study's, or runs that cannot be compared.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let mut study = Study::read(folder)?;
        let (mut runs, mut left_out) = (vec![], vec![]);
        for variant in &study.variants {
            let mut started = vec![];
            for seed in 0..study.seeds as u64 {
                match RunResult::of_study(folder, variant, seed) {
                    // Of a sweep that has not come to its end, or was done again, there may be runs at rates of before.
                    Ok(run) => started
                        .extend(run.filter(|run| study.sweep.is_none() || variant.lr == Some(run.config.train.lr))),
                    Err(error) => left_out.push(format!("{error:#}")),
                }
            }
            runs.push(started);
        }
        // Of a study that is being given more steps there may be runs that have not been given theirs: as if not started.
        let latest = runs.iter().flatten().max_by_key(|run| run.meta.last_started());
        if let Some(steps) = latest.map(|run| run.config.train.steps) {
            runs.iter_mut().for_each(|own: &mut Vec<RunResult>| own.retain(|run| run.config.train.steps == steps));
        }
        for (variant, own) in study.variants.iter_mut().zip(&runs) {
            // Older studies did not say. That of its runs without their rate is that of those that chose it.
            variant.config = variant.config.take().or_else(|| Some(own.first()?.config.clone()));
        }
        let mut curves = vec![];
        for (sweep, variant) in study.sweep.iter().flat_map(|sweep| study.variants.iter().map(move |own| (sweep, own)))
        {
            let curve = RateCurve::read(folder, variant, sweep);
            curves.push(curve.unwrap_or_else(|error| {
                left_out.push(format!("{error:#}"));
                RateCurve::unknown(sweep)
            }));
        }
        let results = StudyResults { study, runs, curves, left_out };
        results.check_alike()?;
        Ok(results)
    }

    /// Refuses to compare runs that were not made on equal terms.
    ///
    /// # Errors
    /// Runs of other backends, corpora, tokenizers, or numbers of tokens.
    pub(crate) fn check_alike(&self) -> Result<(), ConfigError> {
        let mut runs = self.runs.iter().flatten();
        let Some(first) = runs.next() else { return Ok(()) };
        for run in runs {
            let (a, b) = (&first.config, &run.config);
            let differs = [
                ("backend", a.backend == b.backend),
                ("corpus", a.corpus_sha256 == b.corpus_sha256),
                ("tokenizer", a.tokenizer_sha256 == b.tokenizer_sha256),
                ("seq_len", a.model.seq_len == b.model.seq_len),
                ("number of steps", a.train.steps == b.train.steps),
                ("batch size", a.train.batch_size == b.train.batch_size),
            ];
            if let Some((what, _)) = differs.into_iter().find(|(_, same)| !same) {
                let (a, b) = (a.label(), b.label());
                return Err(ConfigError(format!("{b} has another {what} than {a}: they cannot be compared")));
            }
        }
        Ok(())
    }
}

impl RunResult {
    /// The run of a study, if it has started.
    ///
    /// # Errors
    /// A damaged file, or the run of another variant, seed or configuration.
    fn of_study(study_folder: &Path, variant: &Variant, seed: u64) -> Result<Option<Self>> {
        let folder = RunFolder::within(study_folder, &variant.name, seed);
        let Some(run) = RunResult::read(&folder)? else { return Ok(None) };
        let problem = |problem: String| Err(BadFile::new(&folder.path, problem).into());
        if (run.config.variant.as_str(), run.config.seed) != (variant.name.as_str(), seed) {
            let label = run.config.label();
            return problem(format!("holds the run {label}: its config.toml was changed, or it was moved"));
        }
        run.check(&folder, variant, None)?;
        // One that is to be given more steps has not come to its end.
        let is_shorter = variant.config.as_ref().is_some_and(|config| run.config.train.steps < config.train.steps);
        Ok(Some(run).filter(|_| !is_shorter))
    }

    /// Refuses the run of another configuration than its variant's now, at the rate `lr` if it is a tuning run.
    pub(crate) fn check(&self, folder: &RunFolder, variant: &Variant, lr: Option<f64>) -> Result<()> {
        let Some(config) = variant.config.clone() else { return Ok(()) };
        let RunConfig { variant, seed, probe, .. } = self.config.clone();
        let mut config = RunConfig { variant, seed, probe, ..config };
        config.train.lr = lr.unwrap_or(config.train.lr);
        if config.continues(&self.config) {
            return Ok(());
        }
        let differences = config.changes_since(&self.config);
        Err(BadFile::new(
            &folder.path,
            format!("does not match the study's configuration ({differences}); run the study again"),
        )
        .into())
    }

    /// What a run's folder holds, if it has started.
    ///
    /// # Errors
    /// A damaged file.
    pub(crate) fn read(folder: &RunFolder) -> Result<Option<Self>> {
        let Some(status) = folder.status()? else { return Ok(None) };
        // A run that was cut short at its very start has left nothing to report.
        let has_begun = is_there(&folder.path.join("meta.json"))? && is_there(&folder.metrics_path())?;
        if !has_begun && !matches!(status.state, State::Done | State::Diverged) {
            return Ok(None);
        }
        // Before the hashes are checked: a file of a newer format is no damaged one.
        let (config, meta) = (folder.config()?, folder.meta()?);
        folder.check(&status)?;
        let metrics = folder.metrics()?;
        let probes = folder.probes(&config, status.state)?;
        let steps = config.train.steps;
        let is_whole = metrics.last().is_some_and(|line| line.step == steps && line.split == Split::Valid);
        if status.state == State::Done && !is_whole {
            let problem = format!("ends before the evaluation of step {steps}, though the run is done");
            return Err(BadFile::new(&folder.metrics_path(), problem).into());
        }
        let sample = read_text(&folder.sample_path()).ok();
        let (state, step, message) = (status.state, status.step, status.message);
        Ok(Some(RunResult { state, step, config, meta, metrics, probes, message, sample }))
    }

    fn of(&self, split: Split) -> impl Iterator<Item = &MetricLine> {
        self.metrics.iter().filter(move |line| line.split == split)
    }

    /// Points (step, loss in nats per token) of a split.
    pub(crate) fn curve(&self, split: Split) -> Vec<(f64, f64)> {
        self.of(split).map(|line| (line.step as f64, line.loss)).collect()
    }

    /// The evaluation after the last step, of a run that is done.
    pub(crate) fn last(&self) -> Option<&MetricLine> {
        self.of(Split::Valid).last().filter(|_| self.state == State::Done)
    }

    /// The lowest evaluation: chosen by looking, so biased towards low.
    pub(crate) fn best(&self) -> Option<&MetricLine> {
        self.of(Split::Valid).min_by(|a, b| a.loss.total_cmp(&b.loss))
    }

    /// Training speed by the median step, of a run that is done; evaluation is not in it.
    pub(crate) fn tokens_per_second(&self) -> Option<f64> {
        self.last()?;
        let step = median(self.of(Split::Train).map(|line| line.seconds).collect())?;
        Some((self.config.train.batch_size * self.config.model.seq_len) as f64 / step)
    }

    /// Bits of the text's facts that the model knows at the end: what they hold, less what its loss on them is.
    pub(crate) fn knowledge_bits(&self) -> Option<f64> {
        let account = self.meta.account.as_ref()?;
        let n_tokens = account.classes.get(&Class::Fact)?.n_tokens;
        let left = self.last()?.classes.get(&Class::Fact)? * n_tokens as f64;
        Some((account.fact_nats? - left) / LN_2)
    }

    /// Validation loss at the end less the mean training loss of the last tenth of the steps, in nats: what is lost from one
    /// text to the other, and from training to evaluation.
    pub(crate) fn gap(&self) -> Option<f64> {
        let from = self.config.train.steps * 9 / 10;
        let late: Vec<f64> = self.of(Split::Train).filter(|line| line.step > from).map(|line| line.loss).collect();
        (!late.is_empty()).then_some(())?;
        Some(self.last()?.loss - late.iter().sum::<f64>() / late.len() as f64)
    }

    /// Spikes in 1,000 steps, of a run that is done.
    pub(crate) fn spike_rate(&self) -> Option<f64> {
        self.last()?;
        let n = self.of(Split::Train).filter(|line| line.spike.is_some()).count();
        Some(1000.0 * n as f64 / self.config.train.steps as f64)
    }

    /// Deviation of the gradient's norm over its mean in the steps after the warm-up, of a run that is done.
    pub(crate) fn grad_variation(&self) -> Option<f64> {
        self.last()?;
        let late = self.of(Split::Train).filter(|line| line.step > self.config.train.warmup_steps);
        let (mean, deviation) = mean_and_deviation(&late.filter_map(|line| line.grad_norm).collect::<Vec<_>>())?;
        (mean > 0.0).then_some(deviation? / mean)
    }

    /// Steps until the validation loss is as low as this, on straight lines between evaluations, and at most those of the first
    /// evaluation; `None` if it never is.
    pub(crate) fn steps_to(&self, loss: f64) -> Option<f64> {
        let curve = self.curve(Split::Valid);
        let i = curve.iter().position(|point| point.1 <= loss)?;
        let (step, at) = curve[i];
        let Some((before, above)) = i.checked_sub(1).map(|i| curve[i]) else { return Some(step) };
        Some(before + (step - before) * (above - loss) / (above - at))
    }

    /// Roughness of the early training loss, in nats, of a run that is done; see [`roughness`].
    pub(crate) fn roughness(&self) -> Option<f64> {
        self.last()?;
        let losses: Vec<f64> = self.of(Split::Train).map(|line| line.loss).collect();
        roughness(&losses, self.config.train.steps)
    }
}
