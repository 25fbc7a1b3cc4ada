//! What a run writes down step by step: `metrics.jsonl`, and the same for TensorBoard.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use blake3::Hasher;
use data::{Class, Split};
use disk::Storage;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::events::{EventsFile, now};
use crate::folder::{read_file, read_lines, unwritable};
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

/// How far a file of lines has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogPosition {
    bytes: u64,
    /// Of these bytes.
    blake3: String,
}

impl LogPosition {
    /// What a file held at the mark, and its hash.
    ///
    /// # Errors
    /// It holds something else now.
    pub(crate) fn read(&self, path: &Path) -> Result<(Vec<u8>, Hasher), BadFile> {
        let mut hash = Hasher::new();
        let mut bytes = read_file(path)?;
        if let Ok(n) = usize::try_from(self.bytes)
            && n <= bytes.len()
        {
            bytes.truncate(n);
            hash.update(&bytes);
            if hash.finalize().to_string() == self.blake3 {
                return Ok((bytes, hash));
            }
        }
        Err(BadFile::new(path, format!("its first {} bytes are not those that the run wrote", self.bytes)))
    }
}

/// A file of lines of JSON, open at its end, so that others can follow it.
pub(crate) struct JsonlWriter {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    file: File,
    /// Of all that is in it.
    hash: Hasher,
}

impl JsonlWriter {
    /// An empty file; of a run that goes on, one that holds what was written up to a mark, and that.
    ///
    /// # Errors
    /// It cannot be written, or does not hold any more what it held at the mark.
    pub(crate) fn open<T: DeserializeOwned>(
        folder: &RunFolder,
        path: PathBuf,
        from: Option<&LogPosition>,
    ) -> Result<(Self, Vec<T>)> {
        let storage = folder.storage.clone();
        let (held, hash) = from.map_or_else(|| Ok((vec![], Hasher::new())), |mark| mark.read(&path))?;
        let lines = read_lines(&path, held.as_slice())?;
        let file = disk::open_to_append(&path).with_context(|| unwritable(&path))?;
        storage.cut(&file, hash.count()).with_context(|| unwritable(&path))?;
        // A checkpoint that names what is in a file is worth nothing without the file.
        storage.sync(&folder.path).with_context(|| unwritable(&path))?;
        Ok((JsonlWriter { storage, path, file, hash }, lines))
    }

    pub(crate) fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        self.storage.append(&mut self.file, text.as_bytes()).with_context(|| unwritable(&self.path))?;
        self.hash.update(text.as_bytes());
        Ok(())
    }

    /// Returns when everything is on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.storage.sync(&self.path).with_context(|| unwritable(&self.path))
    }

    /// How far it is.
    pub(crate) fn mark(&self) -> LogPosition {
        LogPosition { bytes: self.hash.count(), blake3: self.hash.finalize().to_string() }
    }
}

/// The metrics, and the same for TensorBoard.
pub(crate) struct MetricsLog {
    metrics: JsonlWriter,
    events: EventsFile,
}

impl MetricsLog {
    /// Empty files; of a run that goes on, what was written up to a mark.
    ///
    /// # Errors
    /// A file that cannot be written, or does not hold any more what it held at the mark.
    pub(crate) fn open(folder: &RunFolder, config: &RunConfig, from: Option<&LogPosition>) -> Result<Self> {
        let (metrics, held) = JsonlWriter::open::<MetricLine>(folder, folder.metrics_path(), from)?;
        let mut events = EventsFile::create(folder, config)?;
        if from.is_some() {
            let started = folder.meta()?.started as f64;
            let mut seconds = 0.0;
            for line in held {
                seconds += line.seconds;
                events.scalars(started + seconds, line.step, &scalars(&line))?;
            }
        }
        Ok(MetricsLog { metrics, events })
    }

    pub(crate) fn write(&mut self, line: &MetricLine) -> Result<()> {
        self.metrics.write(line)?;
        self.events.scalars(now(), line.step, &scalars(line))
    }

    /// Returns when the metrics are on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.metrics.sync()
    }

    /// How far the metrics are.
    pub(crate) fn mark(&self) -> LogPosition {
        self.metrics.mark()
    }
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
