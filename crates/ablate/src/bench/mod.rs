//! `ablate bench`: what the training step takes, and what others take in the same minutes.

mod contestant;
mod end_to_end;
mod parts;
mod scaling;
mod turns;

use std::fs::OpenOptions;

use anyhow::{Context, Result};
use serde::Serialize;
use study::Plan;
use train::{ConfigError, DiskNeeds, median, write_whole};

use crate::cli::{Bench, Opponent};
use crate::resources::size;
use crate::{plan, resources};
use contestant::Contestant;

pub use contestant::work;

pub fn run(args: &Bench) -> Result<u8> {
    let mut plan = plan(&args.study)?;
    // What could not be said at the end is to be known now.
    if let Some(path) = &args.json {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    if args.against.contains(&Opponent::Pytorch) {
        contestant::look_for_torch()?;
    }
    let copies = usize::from(args.copies);
    if resources::most_at_once(&plan, copies, None)? < copies {
        return Err(ConfigError(format!("--copies {copies}: so many runs at a time do not fit into memory")).into());
    }
    if args.end_to_end {
        write(args, &end_to_end::measure(&mut plan, args)?)?;
    } else if args.parts {
        write(args, &parts::measure(&plan, args)?)?;
    } else if args.scaling {
        write(args, &scaling::measure(&plan, args)?)?;
    } else {
        let configs = plan.runs().into_iter().filter(|run| run.seed == 0);
        let measured: Result<Vec<_>> = configs.map(|config| turns::measure(&config, args)).collect();
        write(args, &measured?)?;
    }
    Ok(0)
}

/// Steps that are taken to tell how long a study takes.
const FORECAST_STEPS: usize = 10;

/// What a study will take, by some steps of each variant: in words.
///
/// # Errors
/// A config that cannot be run.
pub fn forecast(plan: &Plan) -> Result<String> {
    let tuning = plan.tuning_runs();
    let runs = plan.runs();
    let at_once = resources::most_at_once(plan, resources::cores().min(runs.len()), None)?;
    let (mut seconds, mut bytes, mut most_meanwhile) = (0.0, 0.0, 0.0f64);
    for config in runs.iter().filter(|run| run.seed == 0) {
        let step = if config.backend.is_cpu() {
            let answers = Contestant::ours(config, 1, 1)?.turn(FORECAST_STEPS)?;
            median(answers.into_iter().flat_map(|answer| answer.turn.seconds).collect())
                .context("some steps were taken")?
        } else {
            return Ok("how long it takes on a GPU is not measured here\n".into());
        };
        let n_runs = plan.study.seeds + tuning.len() / plan.study.variants.len();
        seconds += step * (config.train.steps * n_runs) as f64;
        let DiskNeeds { kept, meanwhile } = config.disk_needs();
        bytes += kept * n_runs as f64;
        most_meanwhile = meanwhile.max(most_meanwhile);
    }
    let memory = plan.memory_bytes().map(|bytes| format!("about {} of memory for each run\n", size(bytes)));
    Ok(format!(
        "about {} of training with {at_once} runs at a time, by {FORECAST_STEPS} steps of each variant just now; evaluation \
         comes on top\n{}about {} on disk, and {} more for checkpoints meanwhile\n",
        train::duration(seconds / at_once as f64),
        memory.unwrap_or_default(),
        size(bytes),
        size(most_meanwhile * at_once as f64)
    ))
}

/// Results where `--json` says, if it does.
fn write(args: &Bench, results: &impl Serialize) -> Result<()> {
    let Some(path) = &args.json else { return Ok(()) };
    write_whole(path, &(serde_json::to_string_pretty(results)? + "\n"))
}

/// The threads of this process, of which this one is the first.
fn start_threads(n: u16) -> Result<()> {
    let threads = rayon::ThreadPoolBuilder::new().num_threads(n.into()).use_current_thread();
    threads.build_global().context("the threads cannot be started")
}
