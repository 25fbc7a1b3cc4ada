//! Checkpoints: all that a run needs to go on as if nothing had happened.
//!
//! `checkpoints/step-N/` holds weights and moments as burn writes them, the rest of the state, and last of all `manifest`: a line
//! of JSON with the size and the BLAKE3 hash of each file, and a line with that line's own. A checkpoint is written under another
//! name, brought to the disk, and renamed; it is then read back, and only after that older ones are removed. So there is always one
//! that is whole.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use serde::{Deserialize, Serialize};

use crate::folder::{FileHash, damaged, is_there, missing, read_file, read_text, unwritable};
use crate::format::{Record, from_json, in_oldest_format, stamped};
use crate::journal::LogPosition;
use crate::spike::Window;
use crate::{BadFile, RunConfig, RunFolder};

/// What a run carries from step to step beside weights and moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrainState {
    /// Optimizer steps taken.
    pub(crate) step: usize,
    /// Tokens that were predicted in training.
    pub(crate) tokens: usize,
    pub(crate) window: Window,
    /// The step of the lowest validation loss, and its bits.
    pub(crate) best: Option<(usize, u64)>,
    /// Where the metrics stood; `None` before the first checkpoint.
    pub(crate) metrics: Option<LogPosition>,
    /// Where the looks inside stood, if there are any.
    pub(crate) probes: Option<LogPosition>,
}

/// A run's state as it was between a step and its evaluation.
pub(crate) struct Checkpoint {
    pub(crate) model: ModuleRecord,
    /// burn's `OptimizerRecord`, not read yet: it says of nothing that it misses it.
    pub(crate) optimizer: Bytes,
    pub(crate) state: TrainState,
}

const MANIFEST: &str = "manifest";
const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optimizer.bpk";
const STATE: &str = "state.json";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    step: usize,
    /// BLAKE3 of the run's config, but for what may change from one half of a run to the other.
    config: String,
    files: BTreeMap<String, FileHash>,
}

fn name(step: usize) -> String {
    format!("{STEP}{step:08}")
}

/// The step of the checkpoint that has this name, if it is one.
fn step_of(found: &OsStr) -> Option<usize> {
    let step = found.to_str()?.strip_prefix(STEP)?.parse().ok()?;
    (OsStr::new(&name(step)) == found).then_some(step)
}

/// BLAKE3 of all of a config that both halves of a run share, the same for every version of the program.
fn config_hash(config: &RunConfig) -> String {
    blake3::hash(in_oldest_format(config.trajectory()).to_string().as_bytes()).to_string()
}

/// The checkpoints of a run.
pub(crate) struct Checkpoints {
    run: RunFolder,
    config: RunConfig,
    path: PathBuf,
}

impl Checkpoints {
    /// Those in a run's folder; what was left half-written is removed.
    ///
    /// # Errors
    /// Something else is in their place, or the folder cannot be written.
    pub(crate) fn open(run: &RunFolder, config: &RunConfig) -> Result<Self> {
        let path = run.checkpoints_path();
        // Old checkpoints are removed, and nothing is removed behind a link.
        if fs::symlink_metadata(&path).is_ok_and(|meta| !meta.is_dir()) {
            return Err(BadFile::new(&path, "is not a folder of this run; move it away").into());
        }
        run.storage.create_dir(&path).with_context(|| unwritable(&path))?;
        let checkpoints = Checkpoints { run: run.clone(), config: config.clone(), path };
        for left in checkpoints.entries()? {
            if left.file_name().is_some_and(|name| starts_with(name, PARTIAL)) {
                checkpoints.remove(&left)?;
            }
        }
        Ok(checkpoints)
    }

    /// Whether a run's folder has any.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn are_in(run: &RunFolder) -> Result<bool, BadFile> {
        let path = run.checkpoints_path();
        if !is_there(&path)? {
            return Ok(false);
        }
        let entries = fs::read_dir(&path).map_err(|error| missing(&path, error))?;
        Ok(entries.flatten().any(|entry| step_of(&entry.file_name()).is_some()))
    }

    fn entries(&self) -> Result<Vec<PathBuf>> {
        let read = || fs::read_dir(&self.path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
        read().with_context(|| format!("{}: cannot be read", self.path.display()))
    }

    /// The steps of those that are there, the newest first.
    fn steps(&self) -> Result<Vec<usize>> {
        let mut steps: Vec<usize> = self.entries()?.iter().filter_map(|path| step_of(path.file_name()?)).collect();
        steps.sort_by(|a, b| b.cmp(a));
        Ok(steps)
    }

    /// Tries each, the newest first, and returns what `take` makes of the first that is whole; `None` if there is none at all. Those
    /// before it that are not are named in the log, and get another name.
    ///
    /// # Errors
    /// There are some and none can be used; one that another version wrote; a folder that cannot be read or written.
    pub(crate) fn newest<T>(&self, take: impl Fn(Checkpoint) -> Result<T, String>) -> Result<Option<T>> {
        let mut unusable = vec![];
        for step in self.steps()? {
            let path = self.path.join(name(step));
            let problem = match self.read(step) {
                Ok(checkpoint) => match take(checkpoint) {
                    Ok(taken) => {
                        for (path, problem) in unusable {
                            self.set_aside(path, problem)?;
                        }
                        return Ok(Some(taken));
                    }
                    Err(problem) => BadFile::new(&path, problem),
                },
                // It is good, for another program.
                Err(problem) if problem.is_of_another_format() => return Err(problem.into()),
                Err(problem) => problem,
            };
            unusable.push((path, problem));
        }
        match unusable.into_iter().next() {
            None => Ok(None),
            // To start anew would be to throw away what may still be mended.
            Some((_, problem)) => {
                let path = &self.run.path;
                let problem =
                    format!("has no checkpoint that can be used ({problem}); mend it, or move the folder away");
                Err(BadFile::new(path, problem).into())
            }
        }
    }

    fn set_aside(&self, path: PathBuf, problem: BadFile) -> Result<()> {
        tracing::warn!("{problem}: this checkpoint is not used");
        let aside = self.path.join(format!("{UNUSABLE}{}", path.file_name().unwrap_or_default().display()));
        if aside.exists() {
            self.remove(&aside)?;
        }
        self.run.storage.rename(&path, &aside).with_context(|| unwritable(&aside))
    }

    /// Whether one is whole and of this run.
    fn check(&self, step: usize) -> Result<(), BadFile> {
        let folder = self.path.join(name(step));
        let manifest = read_manifest(&folder)?;
        if manifest.step != step {
            return Err(BadFile::new(&folder, "is of another step than its name says"));
        }
        if manifest.config != config_hash(&self.config) {
            return Err(BadFile::new(&folder, "is of another configuration"));
        }
        if !manifest.files.keys().eq([MODEL, OPTIMIZER, STATE]) {
            return Err(BadFile::new(&folder, "has a manifest of other files"));
        }
        manifest.files.iter().try_for_each(|(name, entry)| entry.check(&folder.join(name)))
    }

    /// Reads one that is whole.
    fn read(&self, step: usize) -> Result<Checkpoint, BadFile> {
        self.check(step)?;
        let folder = self.path.join(name(step));
        let file = |name: &str| read_file(&folder.join(name));
        let state: TrainState = from_json(Record::State, &folder.join(STATE), &read_text(&folder.join(STATE))?)?;
        if state.step != step {
            return Err(BadFile::new(&folder, "holds the state of another step"));
        }
        let probes = state.probes.as_ref().filter(|_| self.config.probe.on);
        for (mark, path) in [(state.metrics.as_ref(), self.run.metrics_path()), (probes, self.run.probes_path())] {
            mark.map(|mark| mark.read(&path)).transpose()?;
        }
        let model = ModuleRecord::from_bytes(Bytes::from_bytes_vec(file(MODEL)?))
            .map_err(|error| BadFile::new(&folder.join(MODEL), damaged(error)))?;
        Ok(Checkpoint { model, optimizer: Bytes::from_bytes_vec(file(OPTIMIZER)?), state })
    }

    /// Writes one, and removes those that the config does not keep.
    ///
    /// # Errors
    /// A disk that is full or fails. Older checkpoints are there still.
    pub(crate) fn save(&self, model: ModuleRecord, optimizer: OptimizerRecord, state: &TrainState) -> Result<()> {
        let storage = &*self.run.storage;
        let path = self.path.join(name(state.step));
        let partial = self.path.join(format!("{PARTIAL}{}", name(state.step)));
        storage.create_dir(&partial).with_context(|| unwritable(&partial))?;
        let mut files = BTreeMap::new();
        let mut write = |name: &str, bytes: &[u8]| {
            files.insert(name.to_string(), FileHash::of(bytes));
            let path = partial.join(name);
            storage.write(&path, bytes).and_then(|()| storage.sync(&path)).with_context(|| unwritable(&path))
        };
        // One after the other, for each is in memory twice.
        write(MODEL, &model.into_bytes()?)?;
        write(OPTIMIZER, &optimizer.into_bytes()?)?;
        write(STATE, serde_json::to_string(&stamped(state))?.as_bytes())?;
        let manifest = Manifest { step: state.step, config: config_hash(&self.config), files };
        let manifest = serde_json::to_string(&stamped(&manifest))?;
        let finish = || {
            let sealed = format!("{manifest}\n{}\n", blake3::hash(manifest.as_bytes()));
            storage.write(&partial.join(MANIFEST), sealed.as_bytes())?;
            storage.sync(&partial.join(MANIFEST))?;
            storage.sync(&partial)?;
            storage.rename(&partial, &path)?;
            storage.sync(&self.path)
        };
        finish().with_context(|| unwritable(&path))?;
        // Only what can be read is worth more than the one before it.
        self.check(state.step).map_err(|problem| std::io::Error::other(problem.to_string()))?;
        tracing::info!(step = state.step, "checkpoint");
        self.prune(self.config.checkpoint.keep_last, state)
    }

    /// Removes all but the newest few and, if it is asked for, that of the lowest validation loss.
    ///
    /// # Errors
    /// A folder that cannot be written.
    fn prune(&self, keep: usize, state: &TrainState) -> Result<()> {
        let best = state.best.map(|(step, _)| step).filter(|_| self.config.checkpoint.keep_best);
        for step in self.steps()?.into_iter().skip(keep).filter(|&step| Some(step) != best) {
            self.remove(&self.path.join(name(step)))?;
        }
        Ok(())
    }

    /// Removes what a run that is done does not need: it can only be given more steps if its rate is constant.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub(crate) fn clear(&self, state: &TrainState) -> Result<()> {
        self.prune(usize::from(self.config.train.is_constant()), state)?;
        let is_unusable = |path: &PathBuf| path.file_name().is_some_and(|name| starts_with(name, UNUSABLE));
        self.entries()?.iter().filter(|path| is_unusable(path)).try_for_each(|path| self.remove(path))
    }

    /// Removes a folder at once: what is left of it, if this is cut short, is swept up by the next process.
    fn remove(&self, path: &Path) -> Result<()> {
        let name = path.file_name().unwrap_or_default();
        let mut going = OsString::from(PARTIAL);
        going.push(name);
        let going = self.path.join(going);
        let remove = || match starts_with(name, PARTIAL) {
            true => self.run.storage.remove(path),
            false => self.run.storage.rename(path, &going).and_then(|()| self.run.storage.remove(&going)),
        };
        remove().with_context(|| format!("{}: cannot be removed", path.display()))
    }

    /// The newest as a path below the run's folder, for a message; `None` if there is none that can be seen.
    pub(crate) fn last(&self) -> Option<String> {
        Some(format!("checkpoints/{}", name(*self.steps().ok()?.first()?)))
    }
}

/// How the name of a checkpoint begins.
const STEP: &str = "step-";

/// How the name of a checkpoint begins that is being written, or removed.
const PARTIAL: &str = ".partial-";

/// How the name of a checkpoint begins that was damaged.
const UNUSABLE: &str = "unusable-";

fn starts_with(name: &OsStr, with: &str) -> bool {
    name.as_encoded_bytes().starts_with(with.as_bytes())
}

fn read_manifest(folder: &Path) -> Result<Manifest, BadFile> {
    let path = folder.join(MANIFEST);
    let text = read_text(&path)?;
    let whole = text.split_once('\n').filter(|(line, hash)| blake3::hash(line.as_bytes()).to_string() + "\n" == *hash);
    let (line, _) = whole.ok_or_else(|| BadFile::new(&path, "is damaged: it has another hash than its own"))?;
    from_json(Record::Manifest, &path, line)
}
