//! A study as a list of runs, for schedulers that start each by its number.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use disk::lock;
use serde::{Deserialize, Serialize};
use study::{Plan, Study, TUNING};
use train::format::{Record, from_json, stamped};
use train::{BadFile, ConfigError, Display, Ending, Existing, RunConfig, RunFolder, is_there, read_text, write_whole};

use crate::inventory::{Entry, Inventory};
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
    /// The run's config, if it is one, and the folder is its; whether it can be run here is another question. `file` is the plan's.
    pub fn config(&self, file: &Path) -> Result<RunConfig, BadFile> {
        let config = RunConfig::from_toml(file, &self.config)?;
        let label = PathBuf::from(config.label());
        if self.run != label && self.run != Path::new(TUNING).join(&label) {
            let problem = format!("run {} is damaged: its folder is not {}", self.index, label.display());
            return Err(BadFile::new(file, problem));
        }
        // Now it is done as this version does it.
        Ok(RunConfig { redefined: vec![], ..config })
    }
}

/// All runs of a study that can be started now: those that choose learning rates, and when all of these have ended, its own.
pub struct Tasks {
    study: Study,
    pub folder: PathBuf,
    pub all: Vec<Task>,
    /// The numbers of those that are not complete.
    pub missing: Vec<usize>,
    inventory: Inventory,
    /// Whether the study's own runs are to follow.
    pub are_tuning: bool,
}

impl Tasks {
    /// The tasks of a study whose results go below `out`.
    ///
    /// # Errors
    /// Half-finished runs of another config, a damaged `study.json`. Runs that cannot be read are tasks, and warned of.
    pub fn of(plan: &mut Plan, out: &Path) -> Result<Self> {
        let folder = out.join(&plan.study.name);
        Study::check_earlier(&folder)?;
        // It would be written over.
        planned(&folder).map_err(|error| error.and("restore the file, or remove it: it is written again"))?;
        let tuning = Inventory::of(&folder, Path::new(TUNING), plan.tuning_runs())?;
        // Rates are chosen from runs in place, not from runs that are set aside.
        let tasks = Tasks::new(plan, &folder, tuning, |entry| !entry.is_complete());
        if !tasks.missing.is_empty() {
            return Ok(Tasks { are_tuning: true, ..tasks });
        }
        plan.choose_rates(&folder)?;
        let own = Inventory::of(&folder, Path::new(""), plan.runs())?;
        Ok(Tasks::new(plan, &folder, own, |entry| entry.needs_training() || entry.existing.is_err()))
    }

    fn new(plan: &Plan, folder: &Path, inventory: Inventory, is_missing: impl Fn(&Entry) -> bool) -> Self {
        let (mut all, mut missing) = (vec![], vec![]);
        for (index, entry) in inventory.entries.iter().enumerate() {
            all.push(Task { index, run: inventory.place.join(entry.config.label()), config: entry.config.to_toml() });
            // Its task will say so again, and fail.
            if let Err(why) = &entry.existing {
                warn(why);
            }
            if is_missing(entry) {
                missing.push(index);
            }
        }
        Tasks { study: plan.study.clone(), folder: folder.into(), all, missing, inventory, are_tuning: false }
    }

    /// Whether there is a run that cannot be read; it has been named.
    pub fn have_unreadable(&self) -> bool {
        self.inventory.entries.iter().any(|entry| entry.existing.is_err())
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Writes the list, and what a report needs beside the run folders, and has other runs make room.
    ///
    /// # Errors
    /// A folder that is in use or cannot be written.
    pub fn write(&mut self) -> Result<()> {
        fs::create_dir_all(&self.folder).with_context(|| format!("{}: cannot be created", self.folder.display()))?;
        let _lock = lock(&self.folder)?;
        self.inventory.arrange()?;
        self.study.write(&self.folder)?;
        let line = |task: &Task| Ok(serde_json::to_string(&stamped(task))? + "\n");
        let lines: Result<String> = self.all.iter().map(line).collect();
        write_whole(&self.file(), &lines?)
    }
}

const FILE: &str = "plan.jsonl";

/// The tasks that were planned in a study's folder, if any were.
///
/// # Errors
/// A damaged plan.
pub fn planned(folder: &Path) -> Result<Vec<Task>, BadFile> {
    let file = folder.join(FILE);
    if is_there(&file)? { read(&file) } else { Ok(vec![]) }
}

fn read(file: &Path) -> Result<Vec<Task>, BadFile> {
    let task = |(index, line): (usize, &str)| {
        let task: Task = from_json(Record::Task, file, line).map_err(|error: BadFile| error.at_line(index + 1))?;
        let problem = format!("line {} is not run {index} of a plan: it has another number", index + 1);
        if task.index == index { Ok(task) } else { Err(BadFile::new(file, problem)) }
    };
    let text = read_text(file)?;
    text.lines().enumerate().map(task).collect()
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
    let config = task.config(file)?;
    let study_folder = file.parent().unwrap_or(Path::new(""));
    let run = RunFolder::new(study_folder.join(&task.run));
    config.validate()?;
    match run.existing(&config)? {
        Existing::Complete(Ending::Diverged { .. }) => return Ok(3),
        Existing::Complete(_) => return Ok(0),
        _ => {}
    }
    let code = train_run(&config, &run.path, processes::command_line(), Display::Plain, stop)?;
    if let Some(message) = run.status()?.and_then(|status| status.message) {
        warn(&format!("ablate: {message}"));
    }
    Ok(code)
}
