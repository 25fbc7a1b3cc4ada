//! What a run's folder already contains, and where it is moved if the run cannot resume from it.
//!
//! Nothing that took training is ever written over: a run is complete, is resumed, or is moved whole to `replaced-N` in the study's
//! folder. What cannot be read is an error, and stays.

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
    /// The run, ended after fewer steps at a constant learning rate: it goes on from there. How the config differs.
    Shorter(String),
    /// An ended run of another config, and how that differs.
    Another(String),
    /// Files of an interrupted run that cannot be resumed, and why not.
    Unusable(String),
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
        self.look(config).map_err(|error| match error.downcast::<BadFile>() {
            Ok(file) => file.and("restore the file, or move the run's folder away to train it again").into(),
            Err(error) => error,
        })
    }

    fn look(&self, config: &RunConfig) -> Result<Existing> {
        let status = self.status()?;
        let ending = status.as_ref().and_then(Status::ending);
        let has_checkpoint = Checkpoints::are_in(self)?;
        // Whatever config is asked for: what cannot be read is neither moved nor written over.
        if ending.is_some() || is_there(&self.meta_path())? {
            self.meta()?;
        }
        let is_needed = ending.is_some() || has_checkpoint || is_there(&self.config_path())?;
        let earlier = if is_needed { Some(self.config()?) } else { None };
        status.iter().filter(|_| ending.is_some()).try_for_each(|status| self.check(status))?;
        let is_gone = "status.json is missing";
        Ok(match (ending, earlier) {
            // It had come to its end.
            _ if status.is_none() && is_there(&self.weights_path())? => Existing::Unusable(is_gone.into()),
            (Some(ending), Some(earlier)) if config.is_same_run(&earlier) => Existing::Complete(ending),
            (Some(_), Some(earlier)) if has_checkpoint && config.continues(&earlier) => {
                Existing::Shorter(config.changes_since(&earlier))
            }
            (Some(_), Some(earlier)) => Existing::Another(config.changes_since(&earlier)),
            (None, Some(earlier)) if has_checkpoint && config.continues(&earlier) => Existing::HalfFinished,
            (None, Some(earlier)) if has_checkpoint => return Err(self.refuse_another(config, &earlier).into()),
            _ if !self.has_results() => Existing::Nothing,
            _ if status.is_none() => Existing::Unusable(is_gone.into()),
            _ => Existing::Unusable("no checkpoint to resume from".into()),
        })
    }

    /// That the run cannot go on, and why.
    pub fn refuse(&self, problem: impl Into<String>) -> Refused {
        Refused { path: self.path.clone(), problem: problem.into() }
    }

    fn refuse_another(&self, config: &RunConfig, earlier: &RunConfig) -> Refused {
        let way_on = match earlier.redefined.is_empty() {
            true => "finish it with its original command (in meta.json), choose another --out",
            false => "finish it with the version that started it, choose another --out",
        };
        let differences = config.changes_since(earlier);
        self.refuse(format!(
            "holds a half-finished run of another configuration ({differences}); {way_on}, or move it away"
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
        let make_absolute = || {
            // A relative one would lead elsewhere from there.
            let mut other = self.path.clone().into_os_string();
            other.push(".partial");
            std::os::unix::fs::symlink(fs::canonicalize(&self.path)?, &other)?;
            self.storage.rename(Path::new(&other), &self.path)
        };
        let is_relative = fs::read_link(&self.path).is_ok_and(|target| target.is_relative());
        let moved = if is_relative { make_absolute() } else { Ok(()) };
        let moved = moved.and_then(|()| self.storage.rename(&self.path, to));
        moved.with_context(|| format!("{}: cannot be moved to {}", self.path.display(), to.display()))
    }

    /// Copies all that is here into `aside`, a folder of [`new_aside`], whole or not at all. The caller holds the lock.
    ///
    /// # Errors
    /// A disk that fails.
    pub fn copy_aside(&self, aside: &Path, config: &RunConfig) -> Result<()> {
        let (to, partial) = (self.within_aside(aside, config), aside.join(".partial"));
        let parent = to.parent().expect("a path in a folder");
        let copy = || {
            if fs::symlink_metadata(&partial).is_ok() {
                self.storage.remove(&partial)?;
            }
            disk::copy_folder(&self.path, &partial)?;
            self.storage.create_dir(parent)?;
            self.storage.rename(&partial, &to)?;
            self.storage.sync(parent)
        };
        copy().with_context(|| format!("{}: cannot be copied to {}", self.path.display(), to.display()))
    }

    /// The complete run of this config that was set aside from here, if there is one: the latest.
    ///
    /// # Errors
    /// There is none, but one that cannot be read and may be it.
    pub fn find_aside(&self, config: &RunConfig) -> Result<Option<RunFolder>> {
        let mut unreadable = None;
        for (_, aside) in all_aside(&self.place(config).0)?.into_iter().rev() {
            let run = RunFolder::new(self.within_aside(&aside, config));
            if run.is_of_another(config) {
                continue;
            }
            match run.existing(config) {
                Ok(Existing::Complete(_)) => return Ok(Some(run)),
                Err(error) if error.is::<BadFile>() => {
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

/// Sets aside what an interrupted run left in a run's folder if it cannot be resumed. Returns why not, and where it is now.
///
/// # Errors
/// As of [`RunFolder::existing`]; a complete run that would be written over, or is aside; a text with which the run could not begin; a
/// folder that another process holds.
pub fn set_aside_unusable(
    folder: &RunFolder,
    config: &RunConfig,
    should_stop: impl Fn() -> bool,
) -> Result<Option<(String, PathBuf)>> {
    let outdated = |why: String| {
        let problem = format!(
            "holds a complete run of another configuration ({why}): this plan is outdated; plan the study again"
        );
        Err(anyhow::Error::new(folder.refuse(problem)))
    };
    let mut _lock = None;
    let mut unusable = None;
    if is_there(&folder.path)? {
        _lock = match lock_within(&folder.path, LEFT_OVER, &should_stop) {
            Err(Locked::Held { .. }) if should_stop() => return Ok(None),
            taken => Some(taken?),
        };
        match folder.existing(config)? {
            Existing::Complete(_) => return Ok(None),
            Existing::Another(why) => return outdated(why),
            // Its study keeps a copy before it goes on.
            Existing::Shorter(why) if folder.find_aside(&folder.config()?)?.is_none() => return outdated(why),
            Existing::Unusable(why) => unusable = Some(why),
            _ => {}
        }
    }
    if let Some(aside) = folder.find_aside(config)? {
        let problem = format!("is complete in {}; plan the study again, which moves it back", aside.path.display());
        return Err(folder.refuse(problem).into());
    }
    let Some(why) = unusable else { return Ok(None) };
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
    let mut n = all_aside(place)?.last().map_or(0, |(n, _)| *n);
    loop {
        n += 1;
        let folder = aside(place, n);
        match fs::create_dir(&folder) {
            // Another run of the study was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|()| folder.clone()).with_context(|| unwritable(&folder)),
        }
    }
}

fn aside(place: &Path, n: u64) -> PathBuf {
    place.join(format!("replaced-{n}"))
}

/// All folders of what was set aside in a study's folder, or in that of its tuning runs, with their numbers, the oldest first.
///
/// # Errors
/// The folder cannot be read.
pub fn all_aside(place: &Path) -> Result<Vec<(u64, PathBuf)>, BadFile> {
    let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
    if !is_there(place)? {
        return Ok(vec![]);
    }
    let mut all = vec![];
    for entry in fs::read_dir(place).map_err(|error| missing(place, error))? {
        let name = entry.map_err(|error| missing(place, error))?.file_name();
        let n = name.to_str().and_then(|name| name.strip_prefix("replaced-")?.parse().ok());
        // Not of a name that is written otherwise, as `replaced-01`, or of a number that nobody gets to.
        all.extend(n.filter(|&n| n < 1 << 53 && aside(place, n).ends_with(&name)).map(|n| (n, aside(place, n))));
    }
    all.sort_unstable();
    Ok(all)
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
