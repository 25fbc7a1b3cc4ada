//! A study as a list of runs, for schedulers that start each by its number.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use disk::lock;
use serde::{Deserialize, Serialize};
use study::{Plan, Study, TUNING};
use train::{BadFile, ConfigError, Display, Ending, RunConfig, RunFolder, ended, planned_text, read_text, write_whole};

use crate::processes::{is_missing, make_room};
use crate::{processes, stop, train_run, warn};

/// One run of a plan: a line of `plan.jsonl`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub index: usize,
    /// Its folder, below that of the plan.
    pub run: PathBuf,
    /// The run's config as TOML: a number in JSON need not come back as it was.
    config: String,
}

impl Task {
    /// The run's config, if it is one, and the folder is its; whether it can be run here is another question.
    pub fn config(&self) -> Result<RunConfig, String> {
        let config: RunConfig = toml::from_str(&self.config).map_err(|error| error.message().replace('\n', " "))?;
        let label = PathBuf::from(config.label());
        if self.run != label && self.run != Path::new(TUNING).join(&label) {
            return Err(format!("its folder is not {}", label.display()));
        }
        Ok(config)
    }
}

/// All runs of a study that can be started now: those that choose learning rates, and when all of these have ended, its own.
pub struct Tasks {
    study: Study,
    pub folder: PathBuf,
    pub all: Vec<Task>,
    /// The numbers of those that are not complete.
    pub missing: Vec<usize>,
    /// Whether the study's own runs are to follow.
    pub are_tuning: bool,
}

impl Tasks {
    /// The tasks of a study whose results go below `out`.
    ///
    /// # Errors
    /// Damaged runs, half-finished ones of another config.
    pub fn of(plan: &mut Plan, out: &Path) -> Result<Self> {
        let folder = out.join(&plan.study.name);
        let (mut all, mut missing) = list(&folder, Path::new(TUNING), plan.tuning_runs())?;
        let are_tuning = !missing.is_empty();
        if !are_tuning {
            plan.choose_rates(&folder)?;
            (all, missing) = list(&folder, Path::new(""), plan.runs())?;
        }
        Ok(Tasks { study: plan.study.clone(), folder, all, missing, are_tuning })
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Writes the list, and what a report needs beside the run folders.
    ///
    /// # Errors
    /// A folder that is in use or cannot be written.
    pub fn write(&self) -> Result<()> {
        fs::create_dir_all(&self.folder).with_context(|| format!("{}: cannot be created", self.folder.display()))?;
        let _lock = lock(&self.folder)?;
        self.study.write(&self.folder)?;
        let lines: Result<String> = self.all.iter().map(|task| Ok(serde_json::to_string(task)? + "\n")).collect();
        write_whole(&self.file(), &lines?)
    }
}

/// The tasks of runs in `place` below a study's folder, and the numbers of those that are not complete.
fn list(study_folder: &Path, place: &Path, configs: Vec<RunConfig>) -> Result<(Vec<Task>, Vec<usize>)> {
    let (mut all, mut missing) = (vec![], vec![]);
    for (index, config) in configs.iter().enumerate() {
        let task = Task { index, run: place.join(config.label()), config: toml::to_string(config)? };
        if is_missing(&RunFolder::new(study_folder.join(&task.run)), config)? {
            missing.push(index);
        }
        all.push(task);
    }
    Ok((all, missing))
}

const FILE: &str = "plan.jsonl";

/// The tasks that were planned in a study's folder, if any were.
///
/// # Errors
/// A damaged plan.
pub fn planned(folder: &Path) -> Result<Vec<Task>> {
    let file = folder.join(FILE);
    if file.exists() { read(&file) } else { Ok(vec![]) }
}

fn read(file: &Path) -> Result<Vec<Task>> {
    let task = |(index, line): (usize, &str)| {
        let task: Result<Task, String> = serde_json::from_str(line).map_err(|error| error.to_string());
        let task =
            task.and_then(|task| if task.index == index { Ok(task) } else { Err("it has another number".into()) });
        task.map_err(|error| BadFile::new(file, format!("line {} is no run of a plan: {error}", index + 1)))
    };
    let text = read_text(file)?;
    let tasks: Result<_, BadFile> = text.lines().enumerate().map(task).collect();
    Ok(tasks?)
}

/// Variables in which schedulers say which run of an array this is.
const NUMBERS: [&str; 2] = ["SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"];

/// Trains a run of a plan in this process, unless it is complete.
///
/// # Errors
/// No number, a damaged plan, a half-finished run of another config, and those of training.
pub fn run(file: &Path, index: Option<usize>) -> Result<u8> {
    // First of all: who asks for a stop now is to be heard.
    let stop = stop::of_worker(false)?;
    let of_scheduler = || NUMBERS.iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
    let index = match (index, of_scheduler()) {
        (Some(index), _) => index,
        (None, Some((name, text))) => {
            text.parse().map_err(|_| ConfigError(format!("{name} = {text}: must be the number of a run")))?
        }
        (None, None) => {
            let names = NUMBERS.join(" or ");
            return Err(ConfigError(format!("--index is not given, and no scheduler has set {names}")).into());
        }
    };
    let tasks = read(file)?;
    let n = tasks.len();
    let task = tasks.into_iter().nth(index);
    let task = task.ok_or_else(|| ConfigError(format!("--index {index}: {} has {n} runs, from 0", file.display())))?;
    let wrong = |error| BadFile::new(file, format!("line {} is no run of a plan: {error}", index + 1));
    let config = task.config().map_err(wrong)?;
    let study_folder = file.parent().unwrap_or(Path::new(""));
    let run = RunFolder::new(study_folder.join(&task.run));
    config.validate()?;
    if !is_missing(&run, &config)? {
        return Ok(if matches!(ended(&run, &config)?, Some(Ending::Diverged { .. })) { 3 } else { 0 });
    }
    // Two above the run's: that of the study, or of its tuning runs.
    let place = run.path.ancestors().nth(2).unwrap_or(study_folder);
    // What is there is not moved away for a run that cannot begin.
    if run.path.exists() {
        planned_text(&config)?;
    }
    make_room(&run, &config, place)?;
    let code = train_run(&config, &run.path, processes::command_line(), Display::Plain, stop)?;
    if let Some(message) = run.status()?.and_then(|status| status.message) {
        warn(&format!("ablate: {message}"));
    }
    Ok(code)
}
