//! What a run writes down step by step: `metrics.jsonl`, and the same for TensorBoard.

use std::collections::BTreeMap;
use std::fs::File;

use anyhow::{Context, Result};
use blake3::Hasher;
use data::{Class, Split};
use serde::{Deserialize, Serialize};

use crate::events::{EventsFile, now};
use crate::folder::{read_file, unwritable};
use crate::{BadFile, RunConfig, RunFolder};

/// One line of `metrics.jsonl`. Losses are in nats per token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricLine {
    /// Optimizer steps taken when this was measured, from 1.
    pub step: usize,
    pub split: Split,
    pub loss: f64,
    /// exp(loss)
    pub perplexity: f64,
    /// Validation only: loss in bits per UTF-8 byte of the text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bits_per_byte: Option<f64>,
    /// Validation of generated text only: loss by class of token.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub classes: BTreeMap<Class, f64>,
    /// Training only: learning rate of the step.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lr: Option<f64>,
    /// Training only: global norm of the gradient before clipping.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub grad_norm: Option<f64>,
    /// Training only, of a loss that leaps: standard deviations above the mean of the losses before it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub spike: Option<f64>,
    /// Wall-clock seconds that the step or the evaluation took; on a GPU, a step's share of those that were read together.
    pub seconds: f64,
}

impl MetricLine {
    pub(crate) fn new(step: usize, split: Split, loss: f64, seconds: f64) -> Self {
        MetricLine {
            step,
            split,
            loss,
            // JSON has no infinity.
            perplexity: loss.exp().min(f64::MAX),
            bits_per_byte: None,
            classes: BTreeMap::new(),
            lr: None,
            grad_norm: None,
            spike: None,
            seconds,
        }
    }
}

/// How far `metrics.jsonl` has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    bytes: u64,
    /// Of these bytes.
    blake3: String,
}

/// Both files, open at their end, so that others can follow them.
pub(crate) struct Journal {
    folder: RunFolder,
    metrics: File,
    /// Of all that is in it.
    hash: Hasher,
    events: EventsFile,
}

impl Journal {
    /// Empty files; of a run that goes on, what was written up to a mark.
    ///
    /// # Errors
    /// A file that cannot be written, or does not hold any more what it held at the mark.
    pub(crate) fn open(folder: &RunFolder, config: &RunConfig, from: Option<&Mark>) -> Result<Self> {
        let path = folder.metrics_path();
        let metrics = disk::open_to_append(&path).with_context(|| unwritable(&path))?;
        let hash = from.map_or_else(|| Ok(Hasher::new()), |mark| up_to(folder, mark))?;
        folder.storage.cut(&metrics, hash.count()).with_context(|| unwritable(&path))?;
        // A checkpoint that names what is in a file is worth nothing without the file.
        folder.storage.sync(&folder.path).with_context(|| unwritable(&path))?;
        let mut events = EventsFile::create(folder, config)?;
        if from.is_some() {
            let started = folder.meta()?.started as f64;
            let mut seconds = 0.0;
            for line in folder.metrics()? {
                seconds += line.seconds;
                events.scalars(started + seconds, line.step, &scalars(&line))?;
            }
        }
        Ok(Journal { folder: folder.clone(), metrics, hash, events })
    }

    pub(crate) fn write(&mut self, line: &MetricLine) -> Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        let written = self.folder.storage.append(&mut self.metrics, text.as_bytes());
        written.with_context(|| unwritable(&self.folder.metrics_path()))?;
        self.hash.update(text.as_bytes());
        self.events.scalars(now(), line.step, &scalars(line))
    }

    /// Returns when everything is on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        let path = self.folder.metrics_path();
        self.folder.storage.sync(&path).with_context(|| unwritable(&path))
    }

    /// How far it is.
    pub(crate) fn mark(&self) -> Mark {
        Mark { bytes: self.hash.count(), blake3: self.hash.finalize().to_string() }
    }
}

/// The hash of what `metrics.jsonl` held at a mark.
///
/// # Errors
/// It holds something else now.
pub(crate) fn up_to(folder: &RunFolder, mark: &Mark) -> Result<Hasher, BadFile> {
    let path = folder.metrics_path();
    let bytes = read_file(&path)?;
    let mut hash = Hasher::new();
    if let Some(bytes) = usize::try_from(mark.bytes).ok().and_then(|n| bytes.get(..n)) {
        hash.update(bytes);
        if hash.finalize().to_string() == mark.blake3 {
            return Ok(hash);
        }
    }
    Err(BadFile::new(&path, format!("its first {} bytes are not those that the run wrote", mark.bytes)))
}

/// The numbers of a line, each under its tag.
fn scalars(line: &MetricLine) -> Vec<(&'static str, f64)> {
    let tags = match line.split {
        Split::Train => ["train/loss", "train/perplexity"],
        Split::Valid => ["valid/loss", "valid/perplexity"],
    };
    let mut numbers = vec![(tags[0], line.loss), (tags[1], line.perplexity)];
    let more =
        [("train/lr", line.lr), ("train/grad_norm", line.grad_norm), ("valid/bits_per_byte", line.bits_per_byte)];
    numbers.extend(more.into_iter().filter_map(|(tag, number)| Some((tag, number?))));
    numbers
}
