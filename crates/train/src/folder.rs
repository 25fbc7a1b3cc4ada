//! The folder of a run: what is in it and how it is written.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use data::{Account, Tokenizer};
use disk::{Disk, Storage};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoints;
use crate::config::label;
use crate::format::{self, Record, stamped};
use crate::journal::MetricLine;
use crate::{ConfigError, ProbeLine, RunConfig};

/// Writes a file whole or not at all.
///
/// # Errors
/// An I/O error that names the file.
pub fn write_whole(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    Disk.write_whole(path, bytes.as_ref()).with_context(|| unwritable(path))
}

pub(crate) fn unwritable(path: &Path) -> String {
    format!("{}: cannot be written", path.display())
}

/// Whether there is something at a path.
///
/// # Errors
/// It cannot be known: what is above it cannot be read, or a link leads nowhere, as to a disk that is not mounted.
pub fn is_there(path: &Path) -> Result<bool, BadFile> {
    match fs::metadata(path) {
        Ok(_) => return Ok(true),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(missing(path, error)),
        Err(_) => {}
    }
    let nearest = path.ancestors().find(|path| fs::symlink_metadata(path).is_ok());
    match nearest.filter(|path| fs::metadata(path).is_err()) {
        Some(link) => Err(BadFile::new(link, "is a broken symbolic link")),
        None => Ok(false),
    }
}

/// Reads a regular file.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, BadFile> {
    match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => Err(BadFile::new(path, "is not a regular file")),
        _ => fs::read(path).map_err(|error| missing(path, error)),
    }
}

/// Reads a regular file of text.
///
/// # Errors
/// It is missing, damaged or something else.
pub fn read_text(path: &Path) -> Result<String, BadFile> {
    String::from_utf8(read_file(path)?).map_err(|error| BadFile::new(path, damaged(error)))
}

/// The tokenizer of a folder: its text, and what the text says.
pub(crate) fn read_tokenizer(folder: &Path) -> Result<(String, Tokenizer), BadFile> {
    let path = folder.join("tokenizer.json");
    let text = read_text(&path)?;
    let tokenizer = Tokenizer::from_json(&text).map_err(|error| BadFile::new(&path, format!("is damaged: {error}")))?;
    Ok((text, tokenizer))
}

/// Makes the folder `out` with what `fill` writes into it, whole or not at all.
///
/// # Errors
/// Something is there already, or `fill` failed.
pub(crate) fn new_folder(out: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if fs::symlink_metadata(out).is_ok() {
        return Err(ConfigError(format!("{}: exists already; choose another --out", out.display())).into());
    }
    disk::new_folder(out, |error| anyhow::Error::new(error).context(unwritable(out)), fill)
}

/// A run's folder. `study` reads it, `train` writes it.
#[derive(Clone)]
pub struct RunFolder {
    pub path: PathBuf,
    /// Through which everything in it is written.
    pub(crate) storage: Arc<dyn Storage>,
}

/// What a run was made with, in `meta.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub commit: String,
    pub version: String,
    pub burn: String,
    pub os: String,
    pub cpu: String,
    /// Threads that the run could use; 0 where nothing limited them.
    pub threads: usize,
    pub command: String,
    pub corpus_sha256: String,
    pub n_params: usize,
    pub flops_per_token: usize,
    /// Of a GPU: which it is, and how far it is from the CPU, in words.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub selftest: Option<String>,
    /// Where the run was interrupted and went on.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub resumed: Vec<Resumed>,
    /// How the corpus was parted, in words.
    pub split_rule: String,
    /// What is known of the validation text, where it was generated.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub account: Option<Account>,
    /// Seconds since 1970.
    pub started: u64,
}

impl Meta {
    /// When the run started, or last went on, in seconds since 1970.
    pub fn last_started(&self) -> u64 {
        self.resumed.last().map_or(self.started, |resumed| resumed.at)
    }

    /// The commits of the program that made the run, each with the processor.
    pub fn programs(&self) -> impl Iterator<Item = (&str, &str)> {
        let later = self.resumed.iter().map(|resumed| (resumed.commit.as_str(), resumed.cpu.as_str()));
        std::iter::once((self.commit.as_str(), self.cpu.as_str())).chain(later)
    }
}

/// A run that went on after an interruption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The steps that had been taken.
    pub step: usize,
    /// Of the program that went on.
    pub commit: String,
    pub cpu: String,
    /// Seconds since 1970.
    pub at: u64,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Running,
    Done,
    Diverged,
    Stopped,
    Failed,
}

/// `status.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub state: State,
    pub step: usize,
    /// What went wrong, in one sentence.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
    /// Of a run that has ended: what it wrote, by path below its folder.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub files: BTreeMap<String, FileHash>,
}

/// The size and the BLAKE3 hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileHash {
    bytes: u64,
    blake3: String,
}

impl FileHash {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        FileHash { bytes: bytes.len() as u64, blake3: blake3::hash(bytes).to_string() }
    }

    /// Of a file, which is read piece by piece.
    fn of_file(path: &Path) -> Result<Self, BadFile> {
        let unreadable = |error| missing(path, error);
        let mut hash = blake3::Hasher::new();
        hash.update_reader(File::open(path).map_err(unreadable)?).map_err(unreadable)?;
        Ok(FileHash { bytes: hash.count(), blake3: hash.finalize().to_string() })
    }

    /// Refuses a file that is not the one this was made of.
    pub(crate) fn check(&self, path: &Path) -> Result<(), BadFile> {
        let meta = fs::metadata(path).map_err(|error| missing(path, error))?;
        if !meta.is_file() || meta.len() != self.bytes {
            return Err(BadFile::new(path, format!("is damaged: it is not a file of {} bytes", self.bytes)));
        }
        match FileHash::of_file(path)? == *self {
            true => Ok(()),
            false => Err(BadFile::new(path, "is damaged: it is not what the run wrote, by its hash")),
        }
    }
}

const CONFIG: &str = "config.toml";

const META: &str = "meta.json";

const STATUS: &str = "status.json";

const METRICS: &str = "metrics.jsonl";

const PROBES: &str = "probes.jsonl";

const TOKENIZER: &str = "tokenizer.json";

const WEIGHTS: &str = "checkpoints/final/model.safetensors";

/// What a report reads of a run, but for its status.
const REPORTED: [&str; 4] = [CONFIG, META, METRICS, PROBES];

/// What else it leaves for others to read. The status of a run that has ended has the hashes of all of these.
const MODEL: [&str; 2] = [TOKENIZER, WEIGHTS];

impl RunFolder {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        RunFolder::on(path, Arc::new(Disk))
    }

    /// A folder on another disk.
    pub(crate) fn on(path: impl Into<PathBuf>, storage: Arc<dyn Storage>) -> Self {
        RunFolder { path: path.into(), storage }
    }

    /// The folder of a variant's run below the study's.
    pub fn within(study: &Path, variant: &str, seed: u64) -> Self {
        RunFolder::new(study.join(label(variant, seed)))
    }

    pub(crate) fn config_path(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    pub(crate) fn meta_path(&self) -> PathBuf {
        self.path.join(META)
    }

    pub fn metrics_path(&self) -> PathBuf {
        self.path.join(METRICS)
    }

    pub fn sample_path(&self) -> PathBuf {
        self.path.join("sample.txt")
    }

    pub fn weights_path(&self) -> PathBuf {
        self.path.join(WEIGHTS)
    }

    pub fn checkpoints_path(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Writes a file whole or not at all.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path.join(name);
        self.storage.write_whole(&path, text.as_bytes()).with_context(|| unwritable(&path))
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        self.write(name, &(serde_json::to_string_pretty(&stamped(value))? + "\n"))
    }

    pub(crate) fn set_config(&self, config: &RunConfig) -> Result<()> {
        self.write(CONFIG, &config.to_toml())
    }

    pub(crate) fn set_meta(&self, meta: &Meta) -> Result<()> {
        self.write_json(META, meta)
    }

    pub(crate) fn set_tokenizer(&self, json: &str) -> Result<()> {
        self.write(TOKENIZER, json)
    }

    pub(crate) fn set_status(&self, state: State, step: usize, message: Option<String>) -> Result<()> {
        self.write_json(STATUS, &Status { state, step, message, files: BTreeMap::new() })
    }

    /// Says how the run has ended, with the hashes of what it wrote.
    pub(crate) fn set_ended(&self, state: State, step: usize, message: Option<String>) -> Result<()> {
        let hash = |name: &&str| {
            let path = self.path.join(name);
            path.exists().then(|| Ok((name.to_string(), FileHash::of_file(&path)?)))
        };
        let files = REPORTED.iter().chain(&MODEL).filter_map(hash).collect::<Result<_>>()?;
        self.write_json(STATUS, &Status { state, step, message, files })
    }

    /// Refuses a run that has ended if a file is not what it wrote.
    ///
    /// # Errors
    /// The first file that is not.
    pub fn check(&self, status: &Status) -> Result<(), BadFile> {
        status.files.iter().try_for_each(|(name, hash)| hash.check(&self.path.join(name)))
    }

    /// The same of what a list reads: not of the weights, which may be large.
    ///
    /// # Errors
    /// The first file that is not what the run wrote.
    pub fn check_reported(&self, status: &Status) -> Result<(), BadFile> {
        let mut files = REPORTED.into_iter().filter_map(|name| Some((name, status.files.get(name)?)));
        files.try_for_each(|(name, hash)| hash.check(&self.path.join(name)))
    }

    /// The same of its config alone.
    pub(crate) fn check_config(&self, status: &Status) -> Result<(), BadFile> {
        status.files.get(CONFIG).map_or(Ok(()), |hash| hash.check(&self.config_path()))
    }

    /// Whether a run has left anything here that took training.
    pub(crate) fn has_results(&self) -> bool {
        let size = |name: &str| fs::symlink_metadata(self.path.join(name)).map_or(0, |meta| meta.len());
        [METRICS, PROBES, WEIGHTS].into_iter().any(|name| size(name) > 0)
    }

    /// The run's config.
    ///
    /// # Errors
    /// A folder without one, or a damaged file.
    pub fn config(&self) -> Result<RunConfig> {
        Ok(RunConfig::from_toml(&self.config_path(), &self.read(CONFIG)?)?)
    }

    /// The config of a run that is done.
    ///
    /// # Errors
    /// Another folder, or a config that no run could have.
    pub fn finished(&self) -> Result<RunConfig> {
        let status = self.status()?.filter(|status| status.state == State::Done);
        let status = status.ok_or_else(|| BadFile::new(&self.path, "is not the folder of a finished run"))?;
        self.check(&status)?;
        let config = self.config()?;
        config.validate().map_err(|error| BadFile::new(&self.config_path(), error.to_string()))?;
        Ok(config)
    }

    /// What the run was made with.
    ///
    /// # Errors
    /// A missing or damaged file.
    pub fn meta(&self) -> Result<Meta> {
        self.read_json(Record::Meta, META)
    }

    /// How far the run is; `None` before one has started here.
    ///
    /// # Errors
    /// A damaged file.
    pub fn status(&self) -> Result<Option<Status>> {
        if !is_there(&self.path.join(STATUS))? {
            return Ok(None);
        }
        self.read_json(Record::Status, STATUS).map(Some)
    }

    /// Whether the run can go on from a checkpoint.
    pub fn is_begun(&self) -> bool {
        Checkpoints::are_in(self).unwrap_or(false)
    }

    /// All lines of `metrics.jsonl`; a last line that was cut short by a crash is left out.
    ///
    /// # Errors
    /// A missing or damaged file.
    pub fn metrics(&self) -> Result<Vec<MetricLine>> {
        Ok(lines(&self.metrics_path())?)
    }

    pub(crate) fn probes_path(&self) -> PathBuf {
        self.path.join(PROBES)
    }

    /// All lines of `probes.jsonl` of a run of this config and state; none of one that is not looked into, or has only begun.
    ///
    /// # Errors
    /// A damaged file, or one that a run that is done has lost.
    pub fn probes(&self, config: &RunConfig, state: State) -> Result<Vec<ProbeLine>> {
        let RunConfig { probe, train, .. } = config;
        let path = self.probes_path();
        if !probe.on || state != State::Done && !is_there(&path)? {
            return Ok(vec![]);
        }
        let mut all: Vec<ProbeLine> = lines(&path)?;
        all.retain(|line| line.is_of(probe, train.steps));
        Ok(all)
    }

    pub(crate) fn read(&self, name: &str) -> Result<String> {
        Ok(read_text(&self.path.join(name))?)
    }

    fn read_json<T: DeserializeOwned>(&self, record: Record, name: &str) -> Result<T> {
        Ok(format::from_json(record, &self.path.join(name), &self.read(name)?)?)
    }
}

/// Every line of a file of JSON; a last one that was cut short is left out.
fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, BadFile> {
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(BadFile::new(path, "is not a regular file"));
    }
    read_lines(path, BufReader::new(File::open(path).map_err(|error| missing(path, error))?))
}

/// The same of what is read of a file.
pub(crate) fn read_lines<T: DeserializeOwned>(path: &Path, mut reader: impl BufRead) -> Result<Vec<T>, BadFile> {
    let mut lines = vec![];
    let mut text = String::new();
    while reader.read_line(&mut text).map_err(|error| BadFile::new(path, damaged(error)))? > 0 {
        if text.ends_with('\n') {
            lines.push(serde_json::from_str(&text).map_err(|error| BadFile::new(path, damaged(error)))?);
        }
        text.clear();
    }
    Ok(lines)
}

/// A file of a run folder that is absent or does not read as what it should be.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct BadFile {
    path: String,
    problem: String,
    is_of_another_format: bool,
}

impl BadFile {
    pub fn new(path: &Path, problem: impl Into<String>) -> Self {
        BadFile { path: path.display().to_string(), problem: problem.into(), is_of_another_format: false }
    }

    /// The same of a line, from 1.
    #[must_use]
    pub fn at_line(self, line: usize) -> Self {
        BadFile { path: format!("{}:{line}", self.path), ..self }
    }

    /// The same, and what can be done; for one of another format that is said already.
    #[must_use]
    pub fn and(self, way_on: &str) -> Self {
        let way_on = if self.is_of_another_format { String::new() } else { format!("; {way_on}") };
        BadFile { problem: self.problem + &way_on, ..self }
    }

    /// A file that another version of the program can read.
    pub(crate) fn of_format(path: &Path, format: u64, read: RangeInclusive<u64>) -> Self {
        let (first, last) = read.into_inner();
        let problem = format!(
            "is of format {format}, and this program reads formats {first} to {last}: use the version that wrote it"
        );
        BadFile { is_of_another_format: true, ..BadFile::new(path, problem) }
    }

    /// Whether another version of the program could read it.
    pub(crate) fn is_of_another_format(&self) -> bool {
        self.is_of_another_format
    }
}

pub(crate) fn missing(path: &Path, error: std::io::Error) -> BadFile {
    BadFile::new(path, format!("cannot be read: {error}"))
}

/// What is wrong with a file that does not read as what it should be.
pub(crate) fn damaged(error: impl std::fmt::Display) -> String {
    format!("is damaged: {}", error.to_string().lines().next().unwrap_or_default())
}
