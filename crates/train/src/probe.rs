//! What a run writes down of what goes on inside its model: `probes.jsonl`.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use burn::module::Module;
use data::{Batch, Dataset};
use model::{Measure, Units, Windows, updates};
use serde::{Deserialize, Serialize};

use crate::evaluate::BATCH_SIZE;
use crate::folder::{damaged, read_text, unwritable};
use crate::learner::LanguageModel;
use crate::{RunConfig, RunFolder};

/// One line of `probes.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeLine {
    /// Optimizer steps taken when this was measured, from 0.
    pub step: usize,
    /// The values of each measure at its places; nothing where one is not a finite number.
    pub values: BTreeMap<Measure, Vec<Option<f64>>>,
    /// Of each block, the units of the feed-forward whose input is positive at no token of the validation split.
    pub silent: Vec<Vec<usize>>,
    /// Wall-clock seconds that it took.
    pub seconds: f64,
}

/// Looks into a model now and then, always at the first windows of the validation split.
pub(crate) struct Probes<'a> {
    every: usize,
    /// Of the run.
    steps: usize,
    data: &'a Dataset,
    folder: RunFolder,
    file: Option<File>,
    last: Option<ProbeLine>,
    /// The model before the step behind which it is looked at.
    before: Option<LanguageModel>,
}

impl<'a> Probes<'a> {
    /// With what was written up to a step, of a run that goes on from there.
    ///
    /// # Errors
    /// A file that is damaged or cannot be written.
    pub(crate) fn open(folder: &RunFolder, config: &RunConfig, from: Option<usize>, data: &'a Dataset) -> Result<Self> {
        let (every, steps) = (config.probe.every, config.train.steps);
        let mut probes = Probes { every, steps, data, folder: folder.clone(), file: None, last: None, before: None };
        if every > 0 {
            let path = folder.probes_path();
            let file = disk::open_to_append(&path).with_context(|| unwritable(&path))?;
            let mut kept = 0;
            if let Some(step) = from {
                for text in read_text(&path)?.split_inclusive('\n').filter(|text| text.ends_with('\n')) {
                    let line: ProbeLine = serde_json::from_str(text).map_err(|error| damaged(&path, &error))?;
                    // The last look of a run that is given more steps is none of these.
                    if line.step > step || !probes.is_due(line.step) {
                        break;
                    }
                    kept += text.len() as u64;
                    probes.last = Some(line);
                }
            }
            folder.storage.cut(&file, kept).with_context(|| unwritable(&path))?;
            folder.storage.sync(&folder.path).with_context(|| unwritable(&path))?;
            probes.file = Some(file);
        }
        Ok(probes)
    }

    /// Whether the model is to be looked at behind a step, and has not been.
    pub(crate) fn is_due(&self, step: usize) -> bool {
        let is_new = self.last.as_ref().is_none_or(|line| line.step < step);
        self.every > 0 && is_new && (step.is_multiple_of(self.every) || step == self.steps)
    }

    /// Keeps the model that a step is about to change, if it is looked at behind that.
    pub(crate) fn before(&mut self, step: usize, model: impl FnOnce() -> LanguageModel) {
        self.before = self.is_due(step).then(model);
    }

    /// Looks at a model behind a step.
    pub(crate) fn look(&mut self, step: usize, model: &LanguageModel) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let start = Instant::now();
        let batches = || self.data.valid_batches(BATCH_SIZE).map(|batch| batch.windows);
        let first = batches().next().context("a validation split has a window")?;
        let mut values = model.decoder.probe(windows(&first));
        if let Some(before) = self.before.take() {
            values.extend(updates(&before.decoder, &model.decoder));
        }
        let (still, mut units) = (model.valid(), Units::default());
        batches().for_each(|batch| units.add(&still.decoder, windows(&batch)));
        values.insert(Measure::NeverActive, units.never_active());
        let silent = units.silent();
        if let Some(last) = &self.last {
            values.insert(
                Measure::Revived,
                silent.iter().zip(&last.silent).map(|(now, then)| revived(now, then)).collect(),
            );
        }
        let finite = |values: Vec<f64>| values.into_iter().map(|value| value.is_finite().then_some(value)).collect();
        let values = values.into_iter().map(|(measure, values)| (measure, finite(values))).collect();
        let line = ProbeLine { step, values, silent, seconds: start.elapsed().as_secs_f64() };
        let text = serde_json::to_string(&line)? + "\n";
        let written = self.folder.storage.append(file, text.as_bytes());
        written.with_context(|| unwritable(&self.folder.probes_path()))?;
        self.last = Some(line);
        Ok(())
    }

    /// Returns when everything is on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        let path = self.folder.probes_path();
        match &self.file {
            None => Ok(()),
            Some(_) => self.folder.storage.sync(&path).with_context(|| unwritable(&path)),
        }
    }
}

fn windows(batch: &Batch) -> Windows<'_> {
    Windows { inputs: &batch.inputs, targets: &batch.targets, seq: batch.seq }
}

/// Share of the units that were silent then and are not now.
fn revived(now: &[usize], then: &[usize]) -> f64 {
    then.iter().filter(|unit| !now.contains(unit)).count() as f64 / then.len() as f64
}

impl RunFolder {
    pub(crate) fn probes_path(&self) -> PathBuf {
        self.path.join(PROBES)
    }

    /// All lines of `probes.jsonl`; none of a run that was not looked into.
    ///
    /// # Errors
    /// A damaged file.
    pub fn probes(&self) -> Result<Vec<ProbeLine>> {
        let path = self.probes_path();
        if path.exists() { self.lines(&path) } else { Ok(vec![]) }
    }
}

pub(crate) const PROBES: &str = "probes.jsonl";
