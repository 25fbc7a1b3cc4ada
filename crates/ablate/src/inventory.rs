//! What a study's runs have left in their folders, and what is set aside before any is trained.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use disk::{is_locked, lock};
use study::Report;
use train::{BadFile, Existing, RunConfig, RunFolder, all_aside, is_there, new_aside, write_whole};

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
    /// What is in its folder; why that cannot be read, in which case it stays as it is.
    pub existing: Result<Existing, String>,
    /// Where the run is complete, set aside for another version of the study.
    aside: Option<RunFolder>,
}

/// What happens to the folder of a run before it is trained.
struct Step<'a> {
    entry: &'a mut Entry,
    why: String,
    /// The run goes on from what is there, of which a copy is kept.
    is_copy: bool,
}

impl Entry {
    fn of(study_folder: &Path, config: RunConfig) -> Result<Self> {
        let folder = RunFolder::within(study_folder, &config.variant, config.seed);
        let look = || -> Result<(Existing, Option<RunFolder>)> {
            match folder.existing(&config)? {
                complete @ Existing::Complete(_) => Ok((complete, None)),
                // Its process may be about to write what it needs to go on.
                Existing::Remains(_) if is_locked(&folder.path) => Ok((Existing::HalfFinished, None)),
                other => Ok((other, folder.found_aside(&config)?)),
            }
        };
        let (existing, aside) = match look() {
            Ok((existing, aside)) => (Ok(existing), aside),
            Err(error) => (Err(unreadable(error)?), None),
        };
        Ok(Entry { config, folder, existing, aside })
    }

    pub fn is_complete(&self) -> bool {
        matches!(self.existing, Ok(Existing::Complete(_)))
    }

    /// Whether the run is to be trained.
    pub fn is_missing(&self) -> bool {
        self.existing.is_ok() && !self.is_complete() && self.aside.is_none()
    }

    /// What has to be kept elsewhere before the run is trained, or brought back.
    fn step(&mut self) -> Result<Option<Step<'_>>> {
        let (why, is_copy) = match &self.existing {
            Ok(Existing::Another(why) | Existing::Remains(why)) => (why.clone(), false),
            Ok(Existing::Shorter(why)) if self.aside.is_some() => (why.clone(), false),
            // It may have been kept before, by a study that was stopped.
            Ok(Existing::Shorter(_)) if self.folder.found_aside(&self.folder.config()?)?.is_some() => return Ok(None),
            Ok(Existing::Shorter(why)) => (why.clone(), true),
            Ok(Existing::Nothing | Existing::HalfFinished) if self.aside.is_some() && is_there(&self.folder.path)? => {
                ("not complete, as it is where it had been set aside".into(), false)
            }
            _ => return Ok(None),
        };
        Ok(Some(Step { entry: self, why, is_copy }))
    }
}

impl Inventory {
    /// Looks into the folders of runs below `folder`; moves nothing.
    ///
    /// # Errors
    /// A half-finished run of another config.
    pub fn of(folder: PathBuf, configs: Vec<RunConfig>) -> Result<Self> {
        let entries = configs.into_iter().map(|config| Entry::of(&folder, config)).collect::<Result<_>>()?;
        Ok(Inventory { folder, entries })
    }

    /// Sets aside what is in the place of runs, with a copy of the study's report, and brings back what was set aside earlier.
    ///
    /// # Errors
    /// A folder that is in use, or a disk that fails.
    pub fn arrange(&mut self, study_folder: &Path) -> Result<()> {
        let mut steps = vec![];
        for entry in &mut self.entries {
            steps.extend(entry.step()?);
        }
        // Before anything is moved.
        steps.iter().try_for_each(|step| lock(&step.entry.folder.path).map(drop))?;
        let set_aside = if steps.is_empty() { Ok(()) } else { set_aside(&self.folder, study_folder, steps) };
        set_aside.and_then(|()| self.bring_back())
    }

    fn bring_back(&mut self) -> Result<()> {
        let mut n = 0;
        let mut bring = || {
            for Entry { config, folder, existing, aside } in &mut self.entries {
                let Some(from) = aside.take() else { continue };
                let parent = folder.path.parent().unwrap_or(Path::new(""));
                fs::create_dir_all(parent).with_context(|| format!("{}: cannot be created", parent.display()))?;
                from.move_to(&folder.path)?;
                n += 1;
                *existing = Ok(folder.existing(config)?);
            }
            Ok(())
        };
        let brought = bring();
        if n > 0 {
            let (runs, are) = (runs(n), if n == 1 { "is" } else { "are" });
            warn(&format!("{runs} of this study had been set aside and {are} used again"));
        }
        brought
    }
}

fn runs(n: usize) -> String {
    if n == 1 { "1 run".to_string() } else { format!("{n} runs") }
}

/// Carries out the steps for runs below `folder`, and says what was done, also if it cannot be finished.
fn set_aside(folder: &Path, study_folder: &Path, steps: Vec<Step>) -> Result<()> {
    let (aside, has_report) = folder_for(folder, study_folder, &steps)?;
    let (mut reasons, mut n_copied, mut n_moved) = (BTreeSet::new(), 0, 0);
    let carry_out = || {
        for Step { entry: Entry { config, folder, existing, .. }, why, is_copy } in steps {
            let _lock = lock(&folder.path)?;
            if folder.existing(config).ok().as_ref() != existing.as_ref().ok() {
                return Err(folder.refuse("another process has changed it; give the same command again").into());
            }
            if is_copy {
                folder.copy_aside(&aside, config)?;
                n_copied += 1;
            } else {
                folder.set_aside(&aside, config)?;
                *existing = Ok(Existing::Nothing);
                n_moved += 1;
            }
            reasons.insert(why);
        }
        Ok(())
    };
    let done = carry_out();
    let reasons: Vec<String> = reasons.into_iter().collect();
    let more = if reasons.len() > 3 { "; ..." } else { "" };
    let why = reasons[..reasons.len().min(3)].join("; ") + more;
    let with = if has_report { ", with the report so far" } else { "" };
    for (n, what) in [(n_moved, "set aside"), (n_copied, "to go on, and kept as they were")] {
        if n > 0 {
            warn(&format!("{} {what} in {}{with}: {why}", runs(n), aside.display()));
        }
    }
    done
}

/// A folder for what is set aside, and whether the study's report is in it: of earlier ones, that which has this report and no longer
/// these runs.
fn folder_for(folder: &Path, study_folder: &Path, steps: &[Step]) -> Result<(PathBuf, bool)> {
    let results = |folder: &Path| fs::read(folder.join("results.json")).ok();
    let own = results(study_folder);
    let is_free =
        |aside: &PathBuf| steps.iter().all(|step| fs::symlink_metadata(aside.join(step.entry.config.label())).is_err());
    if let Some(earlier) = all_aside(folder)?.into_iter().find(|aside| results(aside) == own && is_free(aside)) {
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
            let bytes = fs::read(&from).with_context(|| format!("{}: cannot be read", from.display()))?;
            write_whole(&aside.join(name), &bytes)?;
            any = true;
        }
    }
    Ok(any)
}

/// Why a run cannot be used, and what can be done.
///
/// # Errors
/// It is not for want of a file.
fn unreadable(error: anyhow::Error) -> Result<String> {
    let file = error.downcast::<BadFile>()?;
    Ok(match file.is_of_another_format() {
        true => file.to_string(),
        false => file.and("restore the file, or move the run's folder away to train it again").to_string(),
    })
}
