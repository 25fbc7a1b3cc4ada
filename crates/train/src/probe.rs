//! What a run writes down of what goes on inside its model: `probes.jsonl`.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result};
use data::{Batch, Dataset};
use model::{Measure, Units, Windows, updates};
use serde::{Deserialize, Serialize};

use crate::journal::{JsonlWriter, LogPosition};
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

impl ProbeLine {
    /// Whether a run of so many steps has this line. One that was given more steps has others too: its last look of before, and the
    /// units that were dead then. They stay in the file, for the checkpoint of before names what is in it.
    pub(crate) fn is_of(&self, config: &ProbeConfig, steps: usize) -> bool {
        let is_dead = self.values.contains_key(&Measure::Dead);
        if is_dead { self.step == steps } else { config.looks_after(self.step, steps) }
    }
}

/// Windows of a look.
pub(crate) const N_WINDOWS: usize = 8;

/// Looks into a model now and then, always at the first windows of the validation split.
pub(crate) struct Probes<'a> {
    config: ProbeConfig,
    /// Of the run.
    steps: usize,
    data: &'a Dataset,
    lines: Option<JsonlWriter>,
    last: Option<ProbeLine>,
    /// The model before the step after which it is looked at.
    before: Option<LanguageModel>,
}

impl<'a> Probes<'a> {
    /// An empty file, if there are to be looks; of a run that goes on, what was written up to a mark.
    ///
    /// # Errors
    /// A file that cannot be written, or does not hold any more what it held at the mark.
    pub(crate) fn open(
        folder: &RunFolder,
        config: &RunConfig,
        from: Option<&LogPosition>,
        data: &'a Dataset,
    ) -> Result<Self> {
        let (steps, config) = (config.train.steps, config.probe.clone());
        let is_on = config.on;
        let mut probes = Probes { config, steps, data, lines: None, last: None, before: None };
        if is_on {
            let path = folder.probes_path();
            let (lines, held) = JsonlWriter::open(folder, path, from)?;
            probes.last = held.into_iter().rfind(|line: &ProbeLine| line.is_of(&probes.config, steps));
            probes.lines = Some(lines);
        }
        Ok(probes)
    }

    /// Whether the model is to be looked at after a step, and has not been.
    pub(crate) fn is_due(&self, step: usize) -> bool {
        let is_new = self.last.as_ref().is_none_or(|line| line.step < step);
        is_new && self.config.looks_after(step, self.steps)
    }

    /// Keeps the model that a step is about to change, if it is looked at after that.
    pub(crate) fn before(&mut self, step: usize, model: impl FnOnce() -> LanguageModel) {
        self.before = self.is_due(step).then(model);
    }

    /// Looks at a model after a step.
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

    /// Whether the evaluation after a step is to count the units that are never active.
    pub(crate) fn counts_dead(&self, step: usize) -> bool {
        self.config.on && step == self.steps
    }

    /// Writes down which units the whole validation split has left silent.
    pub(crate) fn write_dead(&mut self, step: usize, units: &Units) -> Result<()> {
        let values = [(Measure::Dead, units.never_active().into_iter().map(Some).collect())].into();
        self.write(ProbeLine { step, values, silent: units.silent(), seconds: 0.0 })
    }

    fn write(&mut self, line: ProbeLine) -> Result<()> {
        if let Some(lines) = &mut self.lines {
            lines.write(&line)?;
            self.last = Some(line);
        }
        Ok(())
    }

    /// Returns when everything is on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.lines.as_ref().map_or(Ok(()), JsonlWriter::sync)
    }

    /// How far the file is, if there is one.
    pub(crate) fn mark(&self) -> Option<LogPosition> {
        self.lines.as_ref().map(JsonlWriter::mark)
    }
}

/// Share of the units that were silent then and are not now.
fn revived(now: &[usize], then: &[usize]) -> f64 {
    then.iter().filter(|unit| !now.contains(unit)).count() as f64 / then.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_four_silent_units_three_come_back() {
        assert_eq!(revived(&[2, 9], &[1, 2, 3, 4]), 0.75);
        assert!(revived(&[2], &[]).is_nan(), "none can come back");
    }

    #[test]
    fn a_run_has_the_lines_of_its_own_schedule() {
        let line = |step, measure| ProbeLine { step, values: [(measure, vec![])].into(), silent: vec![], seconds: 0.0 };
        let config = ProbeConfig { on: true, every: 4 };
        let is_of = |step, measure, steps| line(step, measure).is_of(&config, steps);
        assert!(is_of(0, Measure::Active, 13) && is_of(12, Measure::Active, 13) && is_of(13, Measure::Active, 13));
        assert!(is_of(13, Measure::Dead, 13));
        // Of 13 steps that became 20.
        assert!(!is_of(13, Measure::Active, 20) && !is_of(13, Measure::Dead, 20) && !is_of(12, Measure::Dead, 20));
    }
}
