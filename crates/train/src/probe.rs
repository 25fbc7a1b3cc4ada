//! What a run writes down of what goes on inside its model: `probes.jsonl`.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use data::{Batch, Dataset};
use model::{Measure, Units, Windows, updates};
use serde::{Deserialize, Serialize};

use crate::folder::{damaged, read_text, unwritable};
use crate::learner::LanguageModel;
use crate::{ProbeConfig, RunConfig, RunFolder};

/// One line of `probes.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeLine {
    /// Optimizer steps taken when this was measured, from 0.
    pub step: usize,
    /// The values of each measure at its places; nothing where one is not a finite number.
    pub values: BTreeMap<Measure, Vec<Option<f64>>>,
    /// Of each block, the units of the feed-forward whose input is positive at no token that was looked at.
    pub silent: Vec<Vec<usize>>,
    /// Wall-clock seconds that it took.
    pub seconds: f64,
}

/// Windows of a look.
const N_WINDOWS: usize = 8;

/// Looks into a model now and then, always at the first windows of the validation split.
pub(crate) struct Probes<'a> {
    config: ProbeConfig,
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
        let (config, steps) = (config.probe.clone(), config.train.steps);
        let is_on = config.on;
        let mut probes = Probes { config, steps, data, folder: folder.clone(), file: None, last: None, before: None };
        if is_on {
            let path = folder.probes_path();
            let file = disk::open_to_append(&path).with_context(|| unwritable(&path))?;
            let mut kept = 0;
            if let Some(step) = from {
                for text in read_text(&path)?.split_inclusive('\n').filter(|text| text.ends_with('\n')) {
                    let line: ProbeLine = serde_json::from_str(text).map_err(|error| damaged(&path, &error))?;
                    // The last look of a run that is given more steps is none of these, and its dead units are not those of the end.
                    if line.step > step || !probes.is_due(line.step) || line.values.contains_key(&Measure::Dead) {
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
        self.config.on && is_new && (step.is_multiple_of(self.config.every) || step == self.steps)
    }

    /// Keeps the model that a step is about to change, if it is looked at behind that.
    pub(crate) fn before(&mut self, step: usize, model: impl FnOnce() -> LanguageModel) {
        self.before = self.is_due(step).then(model);
    }

    /// Looks at a model behind a step.
    pub(crate) fn look(&mut self, step: usize, model: &LanguageModel) -> Result<()> {
        let start = Instant::now();
        let first = self.data.valid_batches(N_WINDOWS).next().context("a validation split has a window")?;
        let Batch { inputs, targets, seq, .. } = &first.windows;
        let (mut values, units) = model.decoder.probe(Windows { inputs, targets, seq: *seq });
        if let Some(before) = self.before.take() {
            values.extend(updates(&before.decoder, &model.decoder));
        }
        let silent = units.silent();
        if let Some(last) = &self.last {
            values.insert(
                Measure::Revived,
                silent.iter().zip(&last.silent).map(|(now, then)| revived(now, then)).collect(),
            );
        }
        let finite = |values: Vec<f64>| values.into_iter().map(|value| value.is_finite().then_some(value)).collect();
        let values = values.into_iter().map(|(measure, values)| (measure, finite(values))).collect();
        self.write(ProbeLine { step, values, silent, seconds: start.elapsed().as_secs_f64() })
    }

    /// Whether the evaluation behind a step is to count the units that are never active.
    pub(crate) fn counts_dead(&self, step: usize) -> bool {
        self.config.on && step == self.steps
    }

    /// Writes down which units the whole validation split has left silent.
    pub(crate) fn write_dead(&mut self, step: usize, units: &Units) -> Result<()> {
        let values = [(Measure::Dead, units.never_active().into_iter().map(Some).collect())].into();
        self.write(ProbeLine { step, values, silent: units.silent(), seconds: 0.0 })
    }

    fn write(&mut self, line: ProbeLine) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
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
