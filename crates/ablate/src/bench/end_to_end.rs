//! A whole study, and the same runs in compiled PyTorch.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result};
use data::Dataset;
use serde::{Deserialize, Serialize};
use study::Plan;
use train::{ConfigError, EVAL_BATCH_SIZE};

use super::candidate::{NO_TORCH, Process, pytorch, pytorch_job};
use crate::cli::{Bench, How, Opponent};
use crate::print;
use crate::processes::{self, Outcome};

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
    if plan.study.sweep.is_some() {
        return Err(ConfigError(
            "bench --study: a study whose rates are tuned trains more than its runs; give train.lr".into(),
        )
        .into());
    }
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let how = How { jobs: None, max_memory: None, plain: true, out: folder.path().into() };
    let start = Instant::now();
    if !matches!(processes::run_study(plan, &how)?, Outcome::Ended) {
        return Err(ConfigError("the study did not come to its end, so its time says nothing".into()).into());
    }
    let ours = start.elapsed().as_secs_f64();
    let n_runs = plan.runs().len();
    let at_once = crate::resources::cores().min(n_runs);
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
    let runs = plan.runs();
    // All runs of a study share their text and their windows.
    let data = Dataset::load(&runs[0].data, runs[0].model.seq_len)?;
    let sizes: Vec<[usize; 2]> =
        data.valid_batches(EVAL_BATCH_SIZE).map(|batch| [batch.windows.batch, batch.windows.seq]).collect();
    for config in runs {
        let mut job = pytorch_job(&config, true);
        job["valid_batches"] = serde_json::to_value(&sizes)?;
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
                let done: Done = Process::start(&mut pytorch(&job, 1), NO_TORCH)?.answer()?;
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
