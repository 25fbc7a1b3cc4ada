//! A whole study, and the same runs in compiled PyTorch.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result};
use data::Dataset;
use serde::{Deserialize, Serialize};
use study::Plan;
use train::EVAL_BATCH_SIZE;

use super::contestant::{Process, pytorch, pytorch_job};
use crate::cli::{Bench, Opponent, Run};
use crate::{print, processes};

#[derive(Serialize)]
pub struct EndToEnd {
    n_runs: usize,
    at_once: usize,
    /// Seconds of the study, texts and report included.
    ours: f64,
    pytorch: Option<Pytorch>,
}

#[derive(Serialize)]
struct Pytorch {
    /// Seconds of the same runs: start, compilation, training steps and evaluations on windows of random tokens.
    seconds: f64,
    /// Seconds of these that compilation took, summed over runs.
    compilation: f64,
}

/// What PyTorch says of a run.
#[derive(Deserialize)]
struct Done {
    compilation: f64,
}

pub fn measure(plan: &mut Plan, args: &Bench) -> Result<EndToEnd> {
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let run = Run { study: args.study.clone(), jobs: None, plain: true, out: folder.path().into() };
    let start = Instant::now();
    processes::run_study(plan, &run)?;
    let ours = start.elapsed().as_secs_f64();
    let n_runs = plan.runs().len();
    let at_once = processes::cores().min(n_runs);
    let pytorch = args.against.contains(&Opponent::Pytorch).then(|| all_in_pytorch(plan, at_once)).transpose()?;
    print(&format!("\nThis study, {n_runs} runs, {at_once} at a time: {ours:.1} s.\n"))?;
    if let Some(Pytorch { seconds, compilation }) = &pytorch {
        print(&format!(
            "The same runs in compiled PyTorch: {seconds:.1} s, {:.2} times as long; of that, compilation took {:.1} s \
             in each run.\n",
            seconds / ours,
            compilation / n_runs as f64
        ))?;
    }
    Ok(EndToEnd { n_runs, at_once, ours, pytorch })
}

/// Runs with a thread each, as many at a time as ours.
fn all_in_pytorch(plan: &Plan, at_once: usize) -> Result<Pytorch> {
    let mut jobs = VecDeque::new();
    for config in plan.runs() {
        let batches = Dataset::load(&config.data, config.model.seq_len)?;
        let sizes: Vec<[usize; 2]> =
            batches.valid_batches(EVAL_BATCH_SIZE).map(|batch| [batch.windows.batch, batch.windows.seq]).collect();
        let mut job = pytorch_job(&config, true);
        job["valid_batches"] = serde_json::to_value(sizes)?;
        jobs.push_back(job);
    }
    let start = Instant::now();
    let mut compilation = 0.0;
    let jobs = std::sync::Mutex::new(jobs);
    std::thread::scope(|scope| -> Result<()> {
        let one_after_the_other = || -> Result<f64> {
            let mut compilation = 0.0;
            loop {
                let Some(job) = jobs.lock().expect("nobody panics while holding it").pop_front() else {
                    return Ok(compilation);
                };
                let silence = "python3 ended without an answer; it needs torch";
                let done: Done = Process::start(&mut pytorch(&job, 1), silence)?.answer()?;
                compilation += done.compilation;
            }
        };
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(one_after_the_other)).collect();
        for thread in threads {
            compilation += thread.join().expect("it does not panic")?;
        }
        Ok(())
    })?;
    Ok(Pytorch { seconds: start.elapsed().as_secs_f64(), compilation })
}
