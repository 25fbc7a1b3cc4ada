//! What a study's runs have left in their folders, and what moves before any is trained.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use disk::{is_locked, lock};
use study::Report;
use train::{BadFile, Existing, RunConfig, RunFolder, new_aside};

use crate::warn;

/// The runs of a study, or those that choose its learning rates.
pub struct Inventory {
    /// Their folder.
    folder: PathBuf,
    pub entries: Vec<Entry>,
}

/// One of them.
pub struct Entry {
    pub config: RunConfig,
    pub folder: RunFolder,
    pub found: Found,
    /// Where the run is complete, set aside for another version of the study.
    aside: Option<RunFolder>,
}

/// What there is of a run.
pub enum Found {
    Complete,
    Missing,
    HalfFinished,
    /// Something else in its place, and what.
    Other(String),
    /// Files that cannot be read, and why: they stay as they are.
    Unreadable(String),
}

impl Entry {
    /// Whether the run is to be trained.
    pub fn is_missing(&self) -> bool {
        self.aside.is_none() && matches!(self.found, Found::Missing | Found::HalfFinished | Found::Other(_))
    }
}

impl Inventory {
    /// Looks into the folders of runs below `folder`; moves nothing.
    ///
    /// # Errors
    /// A half-finished run of another config.
    pub fn of(folder: PathBuf, configs: Vec<RunConfig>) -> Result<Self> {
        let entry = |config: RunConfig| {
            let run = RunFolder::within(&folder, &config.variant, config.seed);
            let found = match run.existing(&config) {
                Ok(Existing::Nothing) => Found::Missing,
                Ok(Existing::Ended(_)) => Found::Complete,
                Ok(Existing::HalfFinished) => Found::HalfFinished,
                // Its process may be about to write what it needs to go on.
                Ok(Existing::Other(_)) if is_locked(&run.path) => Found::HalfFinished,
                Ok(Existing::Other(what)) => Found::Other(what),
                Err(error) if error.is::<BadFile>() => Found::Unreadable(unreadable(&error)),
                Err(error) => return Err(error),
            };
            let is_replaced = matches!(found, Found::Missing | Found::HalfFinished | Found::Other(_));
            let aside = if is_replaced { run.found_aside(&config) } else { None };
            Ok(Entry { config, folder: run, found, aside })
        };
        let entries = configs.into_iter().map(entry).collect::<Result<_>>()?;
        Ok(Inventory { folder, entries })
    }

    /// Sets aside what lies in the place of runs, with a copy of the study's report if they are its own and not those that choose its
    /// rates, and brings back what was set aside earlier.
    ///
    /// # Errors
    /// A folder that is in use, or a disk that fails.
    pub fn rearrange(&mut self, study_folder: &Path) -> Result<()> {
        let (mut reasons, mut n_aside, mut n_back) = (BTreeSet::new(), 0, 0);
        let mut aside = None;
        for Entry { config, folder, found, aside: back } in &mut self.entries {
            if matches!(found, Found::Other(_)) || back.is_some() && folder.path.exists() {
                if aside.is_none() {
                    let folder = new_aside(&self.folder)?;
                    if self.folder == study_folder {
                        keep_reports(study_folder, &folder)?;
                    }
                    aside = Some(folder);
                }
                let _lock = lock(&folder.path)?;
                folder.set_aside(config)?;
            }
            if let Found::Other(what) = found {
                reasons.insert(std::mem::take(what));
                n_aside += 1;
                *found = Found::Missing;
            }
            if let Some(from) = back.take() {
                let parent = folder.path.parent().unwrap_or(Path::new(""));
                let moved = fs::create_dir_all(parent).and_then(|()| fs::rename(&from.path, &folder.path));
                moved.with_context(|| {
                    format!("{}: cannot be moved to {}", from.path.display(), folder.path.display())
                })?;
                n_back += 1;
                *found = Found::Complete;
            }
        }
        let runs = |n: usize| if n == 1 { "1 run".to_string() } else { format!("{n} runs") };
        if let Some(aside) = aside.filter(|_| n_aside > 0) {
            let reasons: Vec<String> = reasons.into_iter().collect();
            let more = if reasons.len() > 3 { "; ..." } else { "" };
            let why = reasons[..reasons.len().min(3)].join("; ") + more;
            let with = if self.folder == study_folder { ", with the report so far" } else { "" };
            warn(&format!("{} set aside in {}{with}: {why}", runs(n_aside), aside.display()));
        }
        if n_back > 0 {
            warn(&format!(
                "{} of this study had been set aside and {} used again",
                runs(n_back),
                if n_back == 1 { "is" } else { "are" }
            ));
        }
        Ok(())
    }
}

/// Copies a study's reports.
fn keep_reports(study_folder: &Path, aside: &Path) -> Result<()> {
    for name in Report::FILES {
        let (from, to) = (study_folder.join(name), aside.join(name));
        if from.is_file() {
            fs::copy(&from, &to)
                .with_context(|| format!("{}: cannot be copied to {}", from.display(), to.display()))?;
        }
    }
    Ok(())
}

/// Why a run cannot be used, and what can be done.
fn unreadable(error: &anyhow::Error) -> String {
    format!("{error:#}; restore the file, or move the run's folder away to train it again")
}
