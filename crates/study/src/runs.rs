//! Runs made anywhere, compared as if they were a study.

use std::path::PathBuf;

use anyhow::Result;
use train::{BadFile, ConfigError, RunFolder};

use crate::Comparison;
use crate::plan::{Study, Variant};
use crate::results::{RunResult, StudyResults};
use crate::settings::Matching;

/// Compares run folders. Runs that differ by their seed alone are one variant; the first is the reference.
///
/// # Errors
/// A folder that is not a run's, a run that has not started, runs that cannot be compared.
pub fn compare(folders: &[PathBuf], margin: f64) -> Result<Comparison> {
    let mut groups: Vec<Vec<RunResult>> = vec![];
    for path in folders {
        let run = RunResult::read(&RunFolder::new(path))?
            .ok_or_else(|| BadFile::new(path, "is not the folder of a run that has started"))?;
        let of_group = |group: &&mut Vec<RunResult>| run.config.differences(&group[0].config).is_empty();
        match groups.iter_mut().find(of_group) {
            Some(group) if group.iter().any(|other| other.config.seed == run.config.seed) => {
                let problem = format!("has the configuration and the seed of another run, {}", group[0].config.label());
                return Err(ConfigError(format!("{}: {problem}: a seed counts once", path.display())).into());
            }
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    let first = &groups[0][0];
    let mut variants: Vec<Variant> = vec![];
    for group in &groups {
        let config = &group[0].config;
        let is_taken = |name: &str| variants.iter().any(|variant| variant.name == name);
        let mut name = config.variant.clone();
        if is_taken(&name) {
            name = (2..).map(|n| format!("{}-{n}", config.variant)).find(|name| !is_taken(name)).unwrap_or_default();
        }
        let changes = config.differences(&first.config);
        variants.push(Variant { name, changes, d_ff: config.model.d_ff, levels: vec![], lr: None, config: None });
    }
    let study = Study {
        name: "runs".into(),
        description: "Runs that are compared as they are.".into(),
        matching: Matching::Loose,
        margin,
        // As many as there are; none is missing.
        seeds: 0,
        grid: vec![],
        sweep: None,
        variants,
    };
    let results = StudyResults { study, runs: groups, curves: vec![], left_out: vec![] };
    results.check_alike()?;
    Ok(Comparison::of(&results))
}
