//! A study as a list of runs, for schedulers that start each by its number.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use disk::lock;
use serde::{Deserialize, Serialize};
use study::{Plan, Study};
use train::{BadFile, ConfigError, Display, RunConfig, RunFolder, read_text, write_whole};

use crate::processes::{is_complete, make_room};
use crate::{devices, processes, stop, train_run};

/// One run of a plan: a line of `plan.jsonl`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub index: usize,
    /// Its folder, below that of the plan.
    pub run: PathBuf,
    pub config: RunConfig,
}

/// All runs of a study that can be started now: those that choose learning rates, and when all of these have ended, its own.
pub struct Tasks {
    study: Study,
    pub folder: PathBuf,
    pub all: Vec<Task>,
    /// Whether the study's own runs are to follow.
    pub are_tuning: bool,
}

impl Tasks {
    /// The tasks of a study whose results go below `out`.
    ///
    /// # Errors
    /// Damaged runs of a sweep.
    pub fn of(plan: &mut Plan, out: &Path) -> Result<Self> {
        let folder = out.join(&plan.study.name);
        let (tuning, mut configs) = plan.tuning_runs();
        let mut place = tuning;
        let mut are_tuning = false;
        for config in &configs {
            let run = RunFolder::within(&folder.join(&place), &config.variant, config.seed);
            are_tuning |= !is_complete(&run, config)?;
        }
        if !are_tuning {
            if !configs.is_empty() {
                plan.choose_rates(&folder)?;
            }
            (place, configs) = (PathBuf::new(), plan.runs());
        }
        let task = |(index, config): (usize, RunConfig)| Task { index, run: place.join(config.label()), config };
        let all = configs.into_iter().enumerate().map(task).collect();
        Ok(Tasks { study: plan.study.clone(), folder, all, are_tuning })
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

    /// The numbers of the runs that are not complete.
    ///
    /// # Errors
    /// A damaged run.
    pub fn missing(&self) -> Result<Vec<usize>> {
        let mut missing = vec![];
        for task in &self.all {
            if !is_complete(&RunFolder::new(self.folder.join(&task.run)), &task.config)? {
                missing.push(task.index);
            }
        }
        Ok(missing)
    }
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
        let task: Task = serde_json::from_str(line).map_err(|error| error.to_string())?;
        task.config.validate().map_err(|error| error.to_string())?;
        let mut parts = task.run.components();
        if task.index != index || !parts.all(|part| matches!(part, std::path::Component::Normal(_))) {
            return Err("its number or its folder is not that of a plan".to_string());
        }
        Ok(task)
    };
    let damaged = |line: usize, error: String| BadFile::new(file, format!("line {line} is no run of a plan: {error}"));
    let text = read_text(file)?;
    let tasks = text.lines().enumerate().map(|line| task(line).map_err(|error| damaged(line.0 + 1, error)));
    Ok(tasks.collect::<Result<_, _>>()?)
}

/// Variables in which schedulers say which run of an array this is.
const NUMBERS: [&str; 2] = ["SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"];

/// Trains a run of a plan in this process, unless it is complete.
pub fn run(file: &Path, index: Option<usize>) -> Result<u8> {
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
    let folder = file.parent().unwrap_or(Path::new(""));
    let run = RunFolder::new(folder.join(&task.run));
    let stop = stop::of_worker(false)?;
    if is_complete(&run, &task.config)? {
        return Ok(0);
    }
    devices::checked(task.config.backend)?;
    make_room(&run, &task.config, folder)?;
    train_run(&task.config, &run.path, processes::command_line(), Display::Plain, stop)
}
