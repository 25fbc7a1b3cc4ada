//! What the run folders of a study hold.

use std::path::Path;

use anyhow::Result;
use data::Split;
use train::{BadFile, Meta, MetricLine, RunConfig, State};

use crate::Matching;
use crate::plan::{StudyFile, run_folder};
use crate::roughness::roughness;

/// A study with its runs as far as they have come.
#[derive(Clone, Debug)]
pub struct StudyResults {
    pub name: String,
    pub description: String,
    pub matching: Matching,
    /// The reference first.
    pub variants: Vec<VariantResults>,
}

/// The runs of one variant, by seed.
#[derive(Clone, Debug)]
pub struct VariantResults {
    pub name: String,
    /// What differs from the reference, as `key = value`.
    pub changes: Vec<String>,
    pub runs: Vec<RunResult>,
}

/// One run that has started.
#[derive(Clone, Debug)]
pub struct RunResult {
    pub state: State,
    pub message: Option<String>,
    pub config: RunConfig,
    pub meta: Meta,
    pub metrics: Vec<MetricLine>,
}

impl StudyResults {
    /// Reads the study in `folder`. Runs that have not started are left out.
    ///
    /// # Errors
    /// A folder that is not a study's, or a damaged file.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("study.json");
        let text = std::fs::read_to_string(&path).map_err(|error| {
            BadFile::new(&path, format!("cannot be read, so this is not a study's folder: {error}"))
        })?;
        let file: StudyFile = serde_json::from_str(&text)
            .map_err(|error| BadFile::new(&path, format!("is damaged or of another version: {error}")))?;
        let mut variants = vec![];
        for (name, changes) in file.variants {
            let mut runs = vec![];
            for seed in 0..file.seeds as u64 {
                runs.extend(RunResult::read(folder, &name, seed)?);
            }
            variants.push(VariantResults { name, changes, runs });
        }
        Ok(StudyResults { name: file.name, description: file.description, matching: file.matching, variants })
    }
}

impl RunResult {
    fn read(study: &Path, variant: &str, seed: u64) -> Result<Option<Self>> {
        let folder = run_folder(study, variant, seed);
        let Some(status) = folder.status()? else { return Ok(None) };
        if !folder.path.join("meta.json").exists() {
            return Ok(None);
        }
        Ok(Some(RunResult {
            state: status.state,
            message: status.message,
            config: folder.config()?,
            meta: folder.meta()?,
            metrics: folder.metrics()?,
        }))
    }

    fn of(&self, split: Split) -> impl Iterator<Item = &MetricLine> {
        self.metrics.iter().filter(move |line| line.split == split)
    }

    /// Points (step, loss in nats per token) of a split.
    pub fn curve(&self, split: Split) -> Vec<(f64, f64)> {
        self.of(split).map(|line| (line.step as f64, line.loss)).collect()
    }

    /// The evaluation after the last step, of a run that is done.
    pub fn last(&self) -> Option<&MetricLine> {
        self.of(Split::Valid).last().filter(|_| self.state == State::Done)
    }

    /// The lowest evaluation: chosen by looking, so biased towards low.
    pub fn best(&self) -> Option<&MetricLine> {
        self.of(Split::Valid).min_by(|a, b| a.loss.total_cmp(&b.loss))
    }

    /// Training speed by the median step; evaluation is not in it.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let mut seconds: Vec<f64> = self.of(Split::Train).map(|line| line.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        let median = *seconds.get(seconds.len() / 2)?;
        Some((self.config.train.batch_size * self.config.model.seq_len) as f64 / median)
    }

    /// Roughness of the early training loss, in nats; see [`roughness`].
    pub fn roughness(&self) -> Option<f64> {
        let losses: Vec<f64> = self.of(Split::Train).map(|line| line.loss).collect();
        roughness(&losses, self.config.train.steps)
    }
}
