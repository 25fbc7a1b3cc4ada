//! What a run's folder holds before the run is trained, and where that is kept if the run does not go on from it.
//!
//! Nothing that took training is ever written over: it is the run and complete, the run goes on from it, or it is set aside whole,
//! below `replaced-N` in the study's folder. What cannot be read is an error, and stays.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use disk::{Locked, lock_within};

use crate::checkpoint::Checkpoints;
use crate::folder::{is_there, missing, unwritable};
use crate::run::{LEFT_OVER, planned_text};
use crate::{BadFile, Ending, RunConfig, RunFolder, State, Status};

/// What a run's folder holds, for a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Nothing that took training.
    Nothing,
    /// The run, at its end; its files are what it wrote.
    Complete(Ending),
    /// A part of the run, and a checkpoint to go on from.
    HalfFinished,
    /// The run, complete after fewer steps at a constant learning rate: it goes on from there. How the config differs.
    Shorter(String),
    /// A complete run of another config, and how that differs.
    Another(String),
    /// What an interrupted run left, and why it cannot go on from that.
    Remains(String),
}

/// A run that cannot go on as what is asked for.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", path.display(), problem)]
pub struct Refused {
    path: PathBuf,
    problem: String,
}

impl RunFolder {
    /// What is here for a run of this config.
    ///
    /// # Errors
    /// A file that cannot be read or is not what the run wrote; [`Refused`] for a half-finished run of another config.
    pub fn existing(&self, config: &RunConfig) -> Result<Existing> {
        let status = self.status()?;
        let ending = status.as_ref().and_then(Status::ending);
        let has_checkpoint = Checkpoints::are_in(self)?;
        // Whatever config is asked for: what cannot be read is neither moved nor written over.
        if ending.is_some() || is_there(&self.meta_path())? {
            self.meta()?;
        }
        let is_needed = ending.is_some() || has_checkpoint || is_there(&self.config_path())?;
        let earlier = if is_needed { Some(self.config()?) } else { None };
        if ending.is_some() {
            self.check_files()?;
        }
        let is_gone = "status.json is gone";
        Ok(match (ending, earlier) {
            // It had come to its end.
            _ if status.is_none() && is_there(&self.weights_path())? => Existing::Remains(is_gone.into()),
            (Some(ending), Some(earlier)) if config.is_same_run(&earlier) => Existing::Complete(ending),
            (Some(_), Some(earlier)) if has_checkpoint && config.continues(&earlier) => {
                Existing::Shorter(config.changes_since(&earlier))
            }
            (Some(_), Some(earlier)) => Existing::Another(config.changes_since(&earlier)),
            (None, Some(earlier)) if has_checkpoint && config.continues(&earlier) => Existing::HalfFinished,
            (None, Some(earlier)) if has_checkpoint => return Err(self.refuse_another(config, &earlier).into()),
            _ if !self.has_results() => Existing::Nothing,
            _ if status.is_none() => Existing::Remains(is_gone.into()),
            _ => Existing::Remains("no checkpoint to go on from".into()),
        })
    }

    /// That the run cannot go on, and why.
    pub fn refuse(&self, problem: impl Into<String>) -> Refused {
        Refused { path: self.path.clone(), problem: problem.into() }
    }

    fn refuse_another(&self, config: &RunConfig, earlier: &RunConfig) -> Refused {
        self.refuse(format!(
            "holds a half-finished run of another configuration ({}); finish it as it was (meta.json has its command), choose \
             another --out, or move it away",
            config.changes_since(earlier)
        ))
    }

    /// Moves all that is here into `aside`, a folder of [`new_aside`], and returns its new place. The caller holds the lock.
    ///
    /// # Errors
    /// A disk that fails.
    pub fn set_aside(&self, aside: &Path, config: &RunConfig) -> Result<PathBuf> {
        let to = self.within_aside(aside, config);
        let parent = to.parent().expect("a path in a folder");
        self.storage.create_dir(parent).with_context(|| unwritable(parent))?;
        self.move_to(&to)?;
        Ok(to)
    }

    /// Moves all that is here to a place where nothing is. Of a link to a folder elsewhere, the link.
    ///
    /// # Errors
    /// A disk that fails.
    pub fn move_to(&self, to: &Path) -> Result<()> {
        let move_link = || {
            // A relative one would lead elsewhere from there.
            std::os::unix::fs::symlink(fs::canonicalize(&self.path)?, to)?;
            self.storage.remove(&self.path)
        };
        let moved = if self.path.is_symlink() { move_link() } else { self.storage.rename(&self.path, to) };
        moved.with_context(|| format!("{}: cannot be moved to {}", self.path.display(), to.display()))
    }

    /// Copies all that is here into `aside`, a folder of [`new_aside`], whole or not at all. The caller holds the lock.
    ///
    /// # Errors
    /// A disk that fails.
    pub fn copy_aside(&self, aside: &Path, config: &RunConfig) -> Result<()> {
        let to = self.within_aside(aside, config);
        let unwritable = |error| anyhow::Error::new(error).context(unwritable(&to));
        disk::new_folder(&to, unwritable, |partial| disk::copy_files(&self.path, partial).map_err(unwritable))
    }

    /// The complete run of this config that was set aside from here, if there is one: the latest.
    ///
    /// # Errors
    /// There is none, but one that cannot be read and may be it.
    pub fn found_aside(&self, config: &RunConfig) -> Result<Option<RunFolder>> {
        let mut unreadable = None;
        for aside in all_aside(&self.place(config).0)?.into_iter().rev() {
            let run = RunFolder::new(self.within_aside(&aside, config));
            match run.existing(config) {
                Ok(Existing::Complete(_)) => return Ok(Some(run)),
                Err(error) if error.is::<BadFile>() && !run.is_of_another(config) => {
                    unreadable.get_or_insert(error);
                }
                _ => {}
            }
        }
        unreadable.map_or(Ok(None), Err)
    }

    /// Whether the config of a run that has ended is readable, what the run wrote, and another.
    fn is_of_another(&self, config: &RunConfig) -> bool {
        let status = self.status().ok().flatten();
        let is_whole = status.is_some_and(|status| self.check_config(&status).is_ok());
        is_whole && self.config().is_ok_and(|earlier| !config.is_same_run(&earlier))
    }

    /// The run's place in a folder of what was set aside.
    fn within_aside(&self, aside: &Path, config: &RunConfig) -> PathBuf {
        aside.join(self.place(config).1)
    }

    /// The folder in which runs are set aside from here, and the run's path in it.
    fn place(&self, config: &RunConfig) -> (PathBuf, PathBuf) {
        let label = PathBuf::from(config.label());
        // Whoever calls the library may train a run in a folder of any name.
        let name = if self.path.ends_with(&label) { label } else { self.path.file_name().unwrap_or_default().into() };
        let place = self.path.ancestors().nth(name.components().count()).unwrap_or(Path::new(""));
        (place.into(), name)
    }
}

/// Sets aside what an interrupted run left in a run's folder without a checkpoint. Returns why it cannot go on, and where it is now.
///
/// # Errors
/// As of [`RunFolder::existing`]; a complete run that would be written over; a text with which the run could not begin; a folder that
/// another process holds.
pub fn set_aside_remains(
    folder: &RunFolder,
    config: &RunConfig,
    should_stop: impl Fn() -> bool,
) -> Result<Option<(String, PathBuf)>> {
    // What is aside is brought back by the study; here, it would be trained again.
    let refuse_aside = || match folder.found_aside(config)? {
        Some(aside) => {
            let problem =
                format!("is complete in {}; plan the study again, which brings it back", aside.path.display());
            Err(anyhow::Error::new(folder.refuse(problem)))
        }
        None => Ok(None),
    };
    if !is_there(&folder.path)? {
        return refuse_aside();
    }
    let _lock = match lock_within(&folder.path, LEFT_OVER, &should_stop) {
        Err(Locked::Held { .. }) if should_stop() => return Ok(None),
        taken => taken?,
    };
    let complete = |why: &str| {
        folder.refuse(format!("holds a complete run of another configuration ({why}); plan the study again"))
    };
    let why = match folder.existing(config)? {
        Existing::Remains(why) => why,
        Existing::Another(why) => return Err(complete(&why).into()),
        // Its study keeps a copy before it goes on.
        Existing::Shorter(why) if folder.found_aside(&folder.config()?)?.is_none() => return Err(complete(&why).into()),
        Existing::Complete(_) => return Ok(None),
        _ => return refuse_aside(),
    };
    refuse_aside()?;
    // Nothing is moved for a run that cannot begin.
    planned_text(config)?;
    let aside = new_aside(&folder.place(config).0)?;
    Ok(Some((why, folder.set_aside(&aside, config)?)))
}

/// Makes a folder for what is set aside in a study's folder, or in that of its tuning runs.
///
/// # Errors
/// A disk that fails.
pub fn new_aside(place: &Path) -> Result<PathBuf> {
    let newest = numbers(place)?.last().copied().unwrap_or(0);
    for folder in (newest + 1..).map(|n| aside(place, n)) {
        match fs::create_dir(&folder) {
            // Another run of the study was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|()| folder.clone()).with_context(|| unwritable(&folder)),
        }
    }
    unreachable!("some number is free")
}

/// All folders of what was set aside in a study's folder, or in that of its tuning runs, the oldest first.
///
/// # Errors
/// The folder cannot be read.
pub fn all_aside(place: &Path) -> Result<Vec<PathBuf>, BadFile> {
    Ok(numbers(place)?.into_iter().map(|n| aside(place, n)).collect())
}

fn aside(place: &Path, number: u64) -> PathBuf {
    place.join(format!("replaced-{number}"))
}

fn numbers(place: &Path) -> Result<Vec<u64>, BadFile> {
    let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
    if !is_there(place)? {
        return Ok(vec![]);
    }
    let entries = fs::read_dir(place).map_err(|error| missing(place, error))?;
    let number = |name: &str| name.parse::<u64>().ok().filter(|n| n.to_string() == name && *n < u64::MAX);
    let numbers = entries.flatten().filter_map(|entry| number(entry.file_name().to_str()?.strip_prefix("replaced-")?));
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    Ok(numbers)
}

impl Status {
    /// How the run has ended, if it has.
    fn ending(&self) -> Option<Ending> {
        let message = || self.message.clone().unwrap_or_default();
        match self.state {
            State::Done => Some(Ending::Done),
            State::Diverged => Some(Ending::Diverged { step: self.step, message: message() }),
            _ => None,
        }
    }
}
