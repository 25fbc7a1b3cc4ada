//! Runs made anywhere, compared as if they were a study.

use std::path::PathBuf;

use anyhow::Result;
use train::{BadFile, ConfigError, RunConfig, RunFolder};

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
        let of_group = |group: &&mut Vec<RunResult>| differences(&group[0].config, &run.config).is_empty();
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
        let changes = differences(&first.config, config);
        variants.push(Variant { name, changes, d_ff: config.model.d_ff, levels: vec![], lr: None });
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
    let results = StudyResults { study, runs: groups, curves: vec![] };
    results.check_alike()?;
    Ok(Comparison::of(&results))
}

/// The keys in which two configs differ, as `train.steps = 40, now 800`; not the names and the seed.
pub fn differences(earlier: &RunConfig, now: &RunConfig) -> Vec<String> {
    let table = |config: &RunConfig| toml::Table::try_from(config).expect("a config is a table");
    let (earlier, now) = (table(earlier), table(now));
    let mut all = vec![];
    for (section, value) in now.iter().filter(|(key, _)| !["study", "variant", "seed"].contains(&key.as_str())) {
        match (value.as_table(), earlier.get(section).and_then(|value| value.as_table())) {
            (Some(now), Some(earlier)) => all.extend(now.iter().filter_map(|(key, value)| {
                let before = earlier.get(key).filter(|before| *before != value)?;
                Some(format!("{section}.{key} = {before}, now {value}"))
            })),
            _ if earlier.get(section) != Some(value) => all.push(format!("another {section}")),
            _ => {}
        }
    }
    all
}
