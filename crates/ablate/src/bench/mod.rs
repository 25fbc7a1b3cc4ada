//! `ablate bench`: what the training step takes, and what others take in the same minutes.

mod contestant;
mod end_to_end;
mod parts;
mod scaling;
mod turns;

use anyhow::{Context, Result};
use serde::Serialize;
use train::write_whole;

use crate::cli::Bench;
use crate::plan;

pub use contestant::work;

pub fn run(args: &Bench) -> Result<u8> {
    let plan = plan(&args.study)?;
    if args.end_to_end {
        write(args, &end_to_end::measure(&plan, args)?)?;
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
