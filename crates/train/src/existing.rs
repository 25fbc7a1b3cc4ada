//! What lies in the place of a run before it is trained, and where it is kept if it has to make room.
//!
//! Nothing that took training is ever written over: it is the run and complete, it is the run and goes on, or it is set aside whole,
//! below `replaced-N` in the study's folder. What cannot be read is an error, and stays.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use disk::{Locked, lock_within};

use crate::checkpoint::Checkpoints;
use crate::folder::unwritable;
use crate::run::{LEFT_OVER, planned_text};
use crate::{Ending, RunConfig, RunFolder, State, Status};

/// What a run's folder holds, for a config.
#[derive(Debug, PartialEq, Eq)]
pub enum Existing {
    /// Nothing that took training.
    Nothing,
    /// The run, at its end; its files are what it wrote.
    Ended(Ending),
    /// A part of the run, and a checkpoint to go on from.
    HalfFinished,
    /// Something else, which has to make room, and what that is.
    Other(String),
}

/// A run that cannot go on as what is asked for.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", path.display(), problem)]
pub struct Refused {
    path: PathBuf,
    problem: String,
}

impl RunFolder {
    /// What lies here for a run of this config.
    ///
    /// # Errors
    /// A file that cannot be read or is not what the run wrote; [`Refused`] for a half-finished run of another config.
    pub fn existing(&self, config: &RunConfig) -> Result<Existing> {
        let status = self.status()?;
        let ending = status.as_ref().and_then(Status::ending);
        let has_checkpoint = Checkpoints::are_in(self);
        // Both are read also where nothing depends on them: they would be moved, or written over.
        if self.meta_path().exists() {
            self.meta()?;
        }
        let is_needed = ending.is_some() || has_checkpoint || self.config_path().exists();
        let earlier = if is_needed { Some(self.config()?) } else { None };
        let is_same = earlier
            .as_ref()
            .is_some_and(|earlier| config.continues(earlier) && config.train.steps == earlier.train.steps);
        match &status {
            Some(_) if ending.is_some() && is_same => self.check_files()?,
            // A config that was edited is no other config.
            Some(status) if ending.is_some() => self.check_reported(status)?,
            _ => {}
        }
        let other = |why: String| Ok(Existing::Other(why));
        match (ending, earlier) {
            (Some(_), Some(earlier)) if !config.continues(&earlier) => other(config.changes_since(&earlier)),
            (Some(ending), _) if is_same => Ok(Existing::Ended(ending)),
            (_, Some(earlier)) if has_checkpoint && config.continues(&earlier) => Ok(Existing::HalfFinished),
            (_, Some(earlier)) if has_checkpoint => Err(self.refuse_another(config, &earlier).into()),
            _ if !self.has_results() => Ok(Existing::Nothing),
            _ if status.is_none() => other("status.json is gone".into()),
            _ => other("no checkpoint to go on from".into()),
        }
    }

    pub(crate) fn refuse(&self, problem: String) -> Refused {
        Refused { path: self.path.clone(), problem }
    }

    fn refuse_another(&self, config: &RunConfig, earlier: &RunConfig) -> Refused {
        self.refuse(format!(
            "holds a half-finished run of another configuration ({}); finish it as it was (meta.json has its command), choose \
             another --out, or move it away",
            config.changes_since(earlier)
        ))
    }

    /// Moves all that is here to the newest folder of what was set aside, and returns its new place. The caller holds the lock.
    ///
    /// # Errors
    /// A disk that fails.
    pub fn set_aside(&self, config: &RunConfig) -> Result<PathBuf> {
        let (place, name) = self.place(config);
        let newest = numbers(&place).into_iter().max().unwrap_or(1);
        let paths = (newest..).map(|n| aside(&place, n).join(&name));
        let to = paths.into_iter().find(|path| fs::symlink_metadata(path).is_err()).expect("some number is free");
        let parent = to.parent().expect("a path in a folder");
        self.storage.create_dir(parent).with_context(|| unwritable(parent))?;
        let moved = self.storage.rename(&self.path, &to);
        moved.with_context(|| format!("{}: cannot be moved to {}", self.path.display(), to.display()))?;
        Ok(to)
    }

    /// The newest complete run of this config that was set aside from here.
    pub fn found_aside(&self, config: &RunConfig) -> Option<RunFolder> {
        let (place, name) = self.place(config);
        let mut numbers = numbers(&place);
        numbers.sort_by(|a, b| b.cmp(a));
        let folders = numbers.into_iter().map(|n| RunFolder::new(aside(&place, n).join(&name)));
        // One that cannot be read stays where it is.
        folders.into_iter().find(|folder| matches!(folder.existing(config), Ok(Existing::Ended(_))))
    }

    /// The folder in which runs are set aside from here, and the run's path in it.
    fn place(&self, config: &RunConfig) -> (PathBuf, PathBuf) {
        let label = PathBuf::from(config.label());
        let name = if self.path.ends_with(&label) { label } else { self.path.file_name().unwrap_or_default().into() };
        let place = self.path.ancestors().nth(name.components().count()).unwrap_or(Path::new(""));
        (place.into(), name)
    }
}

/// Sets aside what lies in a run's folder if that is not the run. Returns what it was and where it is now.
///
/// # Errors
/// As of [`RunFolder::existing`]; a text with which the run could not begin; a folder that another process holds.
pub fn make_room(
    folder: &RunFolder,
    config: &RunConfig,
    should_stop: impl Fn() -> bool,
) -> Result<Option<(String, PathBuf)>> {
    if !folder.path.exists() {
        return Ok(None);
    }
    let _lock = match lock_within(&folder.path, LEFT_OVER, &should_stop) {
        Err(Locked::Held { .. }) if should_stop() => return Ok(None),
        taken => taken?,
    };
    let Existing::Other(what) = folder.existing(config)? else { return Ok(None) };
    // Nothing makes room for a run that cannot begin.
    planned_text(config)?;
    Ok(Some((what, folder.set_aside(config)?)))
}

/// Starts a new folder of what is set aside in a study's folder, or in that of its tuning runs, for all that follow.
///
/// # Errors
/// A disk that fails.
pub fn new_aside(place: &Path) -> Result<PathBuf> {
    let folder = aside(place, numbers(place).into_iter().max().unwrap_or(0) + 1);
    fs::create_dir_all(&folder).with_context(|| unwritable(&folder))?;
    Ok(folder)
}

fn aside(place: &Path, number: usize) -> PathBuf {
    place.join(format!("replaced-{number}"))
}

/// The numbers of all such folders.
fn numbers(place: &Path) -> Vec<usize> {
    let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let number = |name: &str| name.parse::<u32>().ok().filter(|n| n.to_string() == name && *n < u32::MAX);
    let numbers = entries.filter_map(|entry| number(entry.file_name().to_str()?.strip_prefix("replaced-")?));
    numbers.map(|n| n as usize).collect()
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
