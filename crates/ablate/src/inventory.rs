//! What a study's runs have left in their folders, and what is set aside before any is trained.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use disk::{is_locked, lock};
use study::Report;
use train::{BadFile, Existing, RunConfig, RunFolder, all_aside, is_there, new_aside, write_whole};

use crate::warn;

/// The runs of a study, or those that choose its learning rates.
pub struct Inventory {
    study_folder: PathBuf,
    /// Where the runs are below it.
    pub place: PathBuf,
    pub entries: Vec<Entry>,
}

/// One of them.
pub struct Entry {
    pub config: RunConfig,
    pub folder: RunFolder,
    /// What is in its folder; why that cannot be read, in which case it stays as it is.
    pub existing: Result<Existing, String>,
    /// Where the run is complete, set aside for another version of the study.
    aside: Option<RunFolder>,
}

/// What makes room for a run before it is trained or moved back.
struct Move<'a> {
    entry: &'a mut Entry,
    why: String,
    /// The run goes on from what is there, of which a copy is kept.
    is_copy: bool,
}

impl Entry {
    fn of(folder: RunFolder, config: RunConfig) -> Result<Self> {
        let look = || -> Result<(Existing, Option<RunFolder>)> {
            match folder.existing(&config)? {
                complete @ Existing::Complete(_) => Ok((complete, None)),
                // Its process may be about to write what it needs to go on.
                Existing::Unusable(_) if is_locked(&folder.path) => Ok((Existing::HalfFinished, None)),
                Existing::Shorter(why) => match folder.find_aside(&config)? {
                    // A study that was stopped has kept a copy already.
                    None if folder.find_aside(&folder.config()?)?.is_some() => Ok((Existing::HalfFinished, None)),
                    aside => Ok((Existing::Shorter(why), aside)),
                },
                other => Ok((other, folder.find_aside(&config)?)),
            }
        };
        let (existing, aside) = match look() {
            Ok((existing, aside)) => (Ok(existing), aside),
            Err(error) => (Err(error.downcast::<BadFile>()?.to_string()), None),
        };
        Ok(Entry { config, folder, existing, aside })
    }

    pub fn is_complete(&self) -> bool {
        matches!(self.existing, Ok(Existing::Complete(_)))
    }

    pub fn needs_training(&self) -> bool {
        self.existing.is_ok() && !self.is_complete() && self.aside.is_none()
    }

    fn plan_move(&mut self) -> Result<Option<Move<'_>>> {
        let (why, is_copy) = match &self.existing {
            Ok(Existing::Another(why) | Existing::Unusable(why)) => (why.clone(), false),
            Ok(Existing::Shorter(why)) => (why.clone(), self.aside.is_none()),
            Ok(Existing::Nothing | Existing::HalfFinished) if self.aside.is_some() && is_there(&self.folder.path)? => {
                ("a complete run of this configuration was set aside earlier".into(), false)
            }
            _ => return Ok(None),
        };
        Ok(Some(Move { entry: self, why, is_copy }))
    }
}

impl Inventory {
    /// Looks into the folders of runs in `place` below a study's folder; moves nothing.
    ///
    /// # Errors
    /// A half-finished run of another config.
    pub fn of(study_folder: &Path, place: &Path, configs: Vec<RunConfig>) -> Result<Self> {
        let folder = study_folder.join(place);
        let entry = |config: RunConfig| Entry::of(RunFolder::within(&folder, &config.variant, config.seed), config);
        let entries = configs.into_iter().map(entry).collect::<Result<_>>()?;
        Ok(Inventory { study_folder: study_folder.into(), place: place.into(), entries })
    }

    /// Sets aside what is in the place of runs, with a copy of the study's report, and moves back what was set aside earlier.
    ///
    /// # Errors
    /// A folder that is in use, or a disk that fails.
    pub fn arrange(&mut self) -> Result<()> {
        let folder = self.study_folder.join(&self.place);
        // Before anything is moved.
        let mut to_move_back = self.entries.iter().filter_map(|entry| entry.aside.as_ref());
        to_move_back.try_for_each(|from| check_disk(from, &folder))?;
        let mut moves = vec![];
        for entry in &mut self.entries {
            moves.extend(entry.plan_move()?);
        }
        for Move { entry, is_copy, .. } in &moves {
            lock(&entry.folder.path)?;
            if !is_copy {
                check_disk(&entry.folder, &folder)?;
            }
        }
        if !moves.is_empty() {
            set_aside(&folder, &self.study_folder, moves)?;
        }
        self.move_back()
    }

    fn move_back(&mut self) -> Result<()> {
        let (mut n, mut from_where) = (0, BTreeSet::new());
        let mut move_all = || {
            for Entry { config, folder, existing, aside } in &mut self.entries {
                let Some(from) = aside.take() else { continue };
                let parent = folder.path.parent().unwrap_or(Path::new(""));
                fs::create_dir_all(parent).with_context(|| format!("{}: cannot be created", parent.display()))?;
                from.move_to(&folder.path)?;
                n += 1;
                from_where.extend(from.path.ancestors().nth(2).map(|aside| aside.display().to_string()));
                *existing = Ok(folder.existing(config)?);
            }
            Ok(())
        };
        let moved = move_all();
        if n > 0 {
            let from_where: Vec<String> = from_where.into_iter().collect();
            warn(&format!("{} moved back from {}, and not trained again", runs(n), from_where.join(", ")));
        }
        moved
    }
}

/// Refuses a run whose folder cannot be renamed to one below `place`.
fn check_disk(run: &RunFolder, place: &Path) -> Result<()> {
    // Of a link, it is the link that moves.
    let (from, to) = (fs::symlink_metadata(&run.path), fs::metadata(place));
    if from.with_context(|| unreadable(&run.path))?.dev() == to.with_context(|| unreadable(place))?.dev() {
        return Ok(());
    }
    Err(run
        .refuse(format!("is on another disk than {}: move it there, or choose another --out", place.display()))
        .into())
}

fn unreadable(path: &Path) -> String {
    format!("{}: cannot be read", path.display())
}

fn runs(n: usize) -> String {
    if n == 1 { "1 run".to_string() } else { format!("{n} runs") }
}

/// Moves runs below `folder` aside, or copies them, and says what was done, also if it cannot be finished.
fn set_aside(folder: &Path, study_folder: &Path, moves: Vec<Move>) -> Result<()> {
    let (aside, has_report) = folder_for(folder, study_folder, &moves)?;
    let (mut moved, mut copied) = ((0, BTreeSet::new()), (0, BTreeSet::new()));
    let carry_out = || {
        for Move { entry: Entry { config, folder, existing, .. }, why, is_copy } in moves {
            let _lock = lock(&folder.path)?;
            if folder.existing(config).ok().as_ref() != existing.as_ref().ok() {
                return Err(folder.refuse("another process has changed it; run the command again").into());
            }
            if is_copy {
                folder.copy_aside(&aside, config)?;
            } else {
                folder.set_aside(&aside, config)?;
                *existing = Ok(Existing::Nothing);
            }
            let (n, reasons) = if is_copy { &mut copied } else { &mut moved };
            *n += 1;
            reasons.insert(why);
        }
        Ok(())
    };
    let done = carry_out();
    let with = if has_report { ", with the report so far" } else { "" };
    for ((n, reasons), what) in [(moved, "set aside in"), (copied, "to be continued, after a copy to")] {
        let n_reasons = reasons.len();
        let mut reasons: Vec<String> = reasons.into_iter().take(3).collect();
        reasons.extend((n_reasons > 3).then(|| "...".into()));
        if n > 0 {
            warn(&format!("{} {what} {}{with}: {}", runs(n), aside.display(), reasons.join("; ")));
        }
    }
    done
}

/// A folder for what is set aside, and whether the study's report is in it: of earlier ones, that which has this report and no longer
/// these runs.
fn folder_for(folder: &Path, study_folder: &Path, moves: &[Move]) -> Result<(PathBuf, bool)> {
    let results = |folder: &Path| fs::read(folder.join("results.json")).ok();
    let own = results(study_folder);
    let is_free =
        |aside: &PathBuf| moves.iter().all(|own| fs::symlink_metadata(aside.join(own.entry.config.label())).is_err());
    let mut earlier = all_aside(folder)?.into_iter().map(|(_, aside)| aside);
    if let Some(earlier) = earlier.find(|aside| results(aside) == own && is_free(aside)) {
        return Ok((earlier, own.is_some()));
    }
    let aside = new_aside(folder)?;
    match keep_report(study_folder, &aside) {
        Ok(has_report) => Ok((aside, has_report)),
        Err(error) => {
            // Nothing else is in it yet.
            let _ = fs::remove_dir_all(&aside);
            Err(error)
        }
    }
}

/// Copies a study's report, if there is one.
fn keep_report(study_folder: &Path, aside: &Path) -> Result<bool> {
    let mut any = false;
    for name in Report::FILES {
        let from = study_folder.join(name);
        if from.is_file() {
            let bytes = fs::read(&from).with_context(|| unreadable(&from))?;
            write_whole(&aside.join(name), &bytes)?;
            any = true;
        }
    }
    Ok(any)
}
