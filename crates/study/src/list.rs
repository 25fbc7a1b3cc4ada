//! The runs below a folder, whatever study they are of.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use data::Split;
use strum::{EnumString, IntoStaticStr, VariantArray};
use train::{BadFile, MetricLine, RunFolder, State, is_there};

use crate::Table;
use crate::numbers::{grouped, nats, perplexity};

/// How deep run folders lie below a folder of results, replaced and tuning runs included.
const MOST_LEVELS: usize = 6;

/// Bytes at the end of a file of metrics in which its last lines are looked for: more than a thousand lines.
const TAIL: u64 = 256 * 1024;

/// What a run is doing, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray, IntoStaticStr, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum RunState {
    Running,
    /// It says that it runs, and no process holds its folder.
    Stale,
    /// A file cannot be read, or is not what the run wrote.
    Unreadable,
    Stopped,
    Failed,
    Diverged,
    Done,
}

/// What runs are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, IntoStaticStr, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Order {
    Name,
    State,
    /// The last validation loss, the lowest first.
    Loss,
    /// The latest first.
    Time,
}

struct Listed {
    name: String,
    state: RunState,
    step: usize,
    steps: Option<usize>,
    valid: Option<MetricLine>,
    /// When it last wrote metrics, since 1970.
    seconds: u64,
}

/// The runs below `folder` that are in `state`, if one is given, and whose path holds `part`.
///
/// # Errors
/// `folder` cannot be read. Of what is below it and cannot, the problems are returned with the table.
pub fn list(folder: &Path, state: Option<RunState>, part: &str, order: Order) -> Result<(Table, Vec<String>)> {
    if !folder.exists() {
        return Err(BadFile::new(folder, "there is no such folder; a study makes its own when it is run").into());
    }
    fs::read_dir(folder).map_err(|error| BadFile::new(folder, format!("cannot be read: {error}")))?;
    let (mut paths, mut unreadable) = (vec![], vec![]);
    find(folder, MOST_LEVELS, &mut paths, &mut unreadable);
    // A name may hold what would break the line.
    let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let name = |path: &Path| -> String {
        path.strip_prefix(folder).unwrap_or(path).display().to_string().chars().map(printable).collect()
    };
    let mut runs: Vec<Listed> = vec![];
    for path in paths.iter().filter(|path| name(path).contains(part)) {
        let run = Listed::read(name(path), path).unwrap_or_else(|error| {
            unreadable.push(format!("{error:#}"));
            Listed::unreadable(name(path))
        });
        runs.extend(Some(run).filter(|run| state.is_none_or(|state| run.state == state)));
    }
    let loss = |run: &Listed| run.valid.as_ref().map_or(f64::INFINITY, |line| line.loss);
    runs.sort_by(|a, b| {
        let first = match order {
            Order::Name => Ordering::Equal,
            Order::State => a.state.cmp(&b.state),
            Order::Loss => loss(a).total_cmp(&loss(b)),
            Order::Time => b.seconds.cmp(&a.seconds),
        };
        first.then_with(|| a.name.cmp(&b.name))
    });
    let mut table = Table::new(&["run", "state", "step", "valid loss", "perplexity", "ago"]);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    for run in runs {
        let shown = |f: fn(&MetricLine) -> String| run.valid.as_ref().map_or("-".into(), f);
        table.rows.push(vec![
            run.name.clone(),
            <&str>::from(run.state).into(),
            format!("{}/{}", grouped(run.step), run.steps.map_or("?".into(), grouped)),
            shown(|line| nats(line.loss)),
            shown(|line| perplexity(line.perplexity)),
            train::duration(now.saturating_sub(run.seconds) as f64),
        ]);
    }
    Ok((table, unreadable))
}

/// Folders with a status, links not followed.
fn find(folder: &Path, levels: usize, into: &mut Vec<PathBuf>, unreadable: &mut Vec<String>) {
    if folder.join("status.json").is_file() {
        into.push(folder.into());
    } else if levels > 0 {
        let Ok(entries) = fs::read_dir(folder) else {
            return unreadable.push(format!("{}: cannot be read", folder.display()));
        };
        // What is being copied has a name that no run has.
        let is_folder = |entry: &fs::DirEntry| {
            entry.file_type().is_ok_and(|kind| kind.is_dir()) && !entry.file_name().as_encoded_bytes().starts_with(b".")
        };
        for entry in entries.flatten().filter(is_folder) {
            find(&entry.path(), levels - 1, into, unreadable);
        }
    }
}

/// The state of a run and the steps it has taken; no state if it has not started.
pub fn run_state(folder: &RunFolder) -> (Option<RunState>, usize) {
    let state = match folder.status() {
        Ok(status) => status.map(|status| state_of(status.state, &folder.path)),
        Err(_) => Some(RunState::Unreadable),
    };
    let (last_step, _) = last_lines(&folder.metrics_path());
    (state, last_step)
}

fn state_of(state: State, path: &Path) -> RunState {
    match state {
        State::Running if !disk::is_locked(path) => RunState::Stale,
        State::Running => RunState::Running,
        State::Stopped => RunState::Stopped,
        State::Failed => RunState::Failed,
        State::Diverged => RunState::Diverged,
        State::Done => RunState::Done,
    }
}

impl Listed {
    /// # Errors
    /// A file that cannot be read; of a run that has ended, one that is not what the run wrote.
    fn read(name: String, path: &Path) -> Result<Self> {
        let folder = RunFolder::new(path);
        let status = folder.status()?.context("its status is gone")?;
        // A process that has only begun may not have written one yet.
        let has_config = is_there(&path.join("config.toml"))?;
        let config = if has_config { Some(folder.config()?) } else { None };
        folder.check_reported(&status)?;
        let (last_step, valid) = last_lines(&folder.metrics_path());
        let modified = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
        let modified = modified(&folder.metrics_path()).or_else(|| modified(&path.join("status.json")));
        let since = modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        Ok(Listed {
            name,
            state: state_of(status.state, path),
            step: status.step.max(last_step),
            steps: config.map(|config| config.train.steps),
            valid,
            seconds: since.map_or(0, |since| since.as_secs()),
        })
    }

    /// A run of which nothing is known that could be trusted.
    fn unreadable(name: String) -> Self {
        Listed { name, state: RunState::Unreadable, step: 0, steps: None, valid: None, seconds: 0 }
    }
}

/// The last step and the last evaluation near the end of a file of metrics.
fn last_lines(path: &Path) -> (usize, Option<MetricLine>) {
    let text = tail(path).unwrap_or_default();
    let parsed = |line: &str| serde_json::from_str::<MetricLine>(line).ok();
    let step = text.lines().rev().find_map(parsed).map_or(0, |line| line.step);
    let valid = text.lines().rev().filter(|line| line.contains("\"valid\"")).filter_map(parsed);
    (step, valid.into_iter().find(|line| line.split == Split::Valid))
}

fn tail(path: &Path) -> Option<String> {
    let length = fs::metadata(path).ok().filter(|meta| meta.is_file())?.len();
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut bytes = vec![];
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
