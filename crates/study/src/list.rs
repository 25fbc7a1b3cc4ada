//! The runs below a folder, whatever study they are of.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use data::Split;
use serde::Deserialize;
use strum::{EnumString, IntoStaticStr, VariantArray};
use train::{MetricLine, RunFolder, State};

use crate::Table;
use crate::compare::grouped;

/// How deep run folders lie below a folder of results, replaced and tuning runs included.
const MOST_LEVELS: usize = 6;

/// Bytes at the end of a file of metrics in which its last evaluation is looked for.
const TAIL: u64 = 16 * 1024;

/// What a run is doing, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray, IntoStaticStr, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum RunState {
    Running,
    /// It says that it runs, and no process holds its folder.
    Stale,
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
    /// Of its status, since 1970.
    seconds: u64,
}

/// The runs below `folder` that are in `state`, if one is given, and whose path holds `part`.
///
/// # Errors
/// A folder that cannot be read.
pub fn list(folder: &Path, state: Option<RunState>, part: &str, order: Order) -> Result<Table> {
    let mut paths = vec![];
    find(folder, MOST_LEVELS, &mut paths).with_context(|| format!("{}: cannot be read", folder.display()))?;
    let name = |path: &Path| path.strip_prefix(folder).unwrap_or(path).display().to_string();
    let mut runs: Vec<Listed> = paths
        .iter()
        .filter(|path| name(path).contains(part))
        .map(|path| Listed::read(name(path), path))
        .filter(|run| state.is_none_or(|state| run.state == state))
        .collect();
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
            shown(|line| format!("{:.4}", line.loss)),
            shown(|line| format!("{:.3}", line.perplexity)),
            train::duration(now.saturating_sub(run.seconds) as f64),
        ]);
    }
    Ok(table)
}

/// Folders with a status, links not followed.
fn find(folder: &Path, levels: usize, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if folder.join("status.json").is_file() {
        into.push(folder.into());
        return Ok(());
    }
    if levels == 0 {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find(&entry.path(), levels - 1, into)?;
        }
    }
    Ok(())
}

impl Listed {
    /// What can be read of a run; what cannot is left out, for a list is no place to stop.
    fn read(name: String, path: &Path) -> Self {
        /// The little of a config that a list shows.
        #[derive(Deserialize)]
        struct Config {
            train: Train,
        }
        #[derive(Deserialize)]
        struct Train {
            steps: usize,
        }
        let folder = RunFolder::new(path);
        let status = folder.status().ok().flatten();
        let valid = last_evaluation(&folder.metrics_path());
        let state = match status.as_ref().map_or(State::Failed, |status| status.state) {
            State::Running if !train::is_locked(path) => RunState::Stale,
            State::Running => RunState::Running,
            State::Stopped => RunState::Stopped,
            State::Failed => RunState::Failed,
            State::Diverged => RunState::Diverged,
            State::Done => RunState::Done,
        };
        let config =
            fs::read_to_string(path.join("config.toml")).ok().and_then(|text| toml::from_str::<Config>(&text).ok());
        let modified = fs::metadata(path.join("status.json")).and_then(|meta| meta.modified()).ok();
        let since = modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let evaluated = valid.as_ref().map_or(0, |line| line.step);
        Listed {
            name,
            state,
            step: status.map_or(0, |status| status.step).max(evaluated),
            steps: config.map(|config| config.train.steps),
            valid,
            seconds: since.map_or(0, |since| since.as_secs()),
        }
    }
}

/// The last evaluation near the end of a file of metrics.
fn last_evaluation(path: &Path) -> Option<MetricLine> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut bytes = vec![];
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().rev().filter(|line| line.contains("\"valid\""));
    lines.filter_map(|line| serde_json::from_str::<MetricLine>(line).ok()).find(|line| line.split == Split::Valid)
}
