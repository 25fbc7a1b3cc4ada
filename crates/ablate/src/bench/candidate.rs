//! Whoever takes training steps: a process that is told how many, and answers with what they took.
//!
//! Both kinds speak alike. A process says a line when it is ready; then each line it is given is a number of steps, and each of
//! its own is what they took.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use train::{ConfigError, Round, RunConfig, Stepper};

use crate::processes::own_program;
use crate::resources::start_threads;

/// The step in PyTorch, which is run as it is.
const PYTORCH: &str = include_str!("../../../../bench/pytorch_step.py");

/// Steps that are taken before any is timed.
const WARM_UP: usize = 5;

/// What a process says when it is ready.
#[derive(Deserialize, Serialize)]
pub struct Ready {
    /// Seconds of the first step, in which PyTorch compiles.
    pub first_step: f64,
    /// Floating-point operations per second of a large product; of ours.
    #[serde(default)]
    pub matrix_peak: Option<f64>,
}

/// What a process says after each number of steps.
#[derive(Deserialize, Serialize)]
pub struct Answer {
    #[serde(flatten)]
    pub turn: Round,
    /// Most memory that it has held so far, in bytes, where the system says so.
    pub peak_bytes: Option<u64>,
}

pub struct Candidate {
    pub name: String,
    pub ready: Ready,
    copies: Vec<Process>,
}

impl Candidate {
    /// As many of ours as there shall be copies, with `threads` each.
    pub fn ours(config: &RunConfig, threads: u16, copies: u16) -> Result<Self> {
        let config_text = toml::to_string(config)?;
        let start = || {
            let mut command = own_program()?;
            command.args(["steps", &config_text, &threads.to_string()]);
            Process::start(&mut command, "a process of ours ended without an answer")
        };
        let name = format!("{}, {}", <&str>::from(config.kernels), config.backend);
        Self::of((0..copies).map(|_| start()).collect::<Result<_>>()?, name)
    }

    /// As many of PyTorch's.
    pub fn pytorch(config: &RunConfig, threads: u16, copies: u16, compiled: bool) -> Result<Self> {
        let job = pytorch_job(config, compiled);
        let start = || Process::start(&mut pytorch(&job, threads), NO_TORCH);
        let name = if compiled { "PyTorch, compiled" } else { "PyTorch, eager" };
        Self::of((0..copies).map(|_| start()).collect::<Result<_>>()?, name.into())
    }

    fn of(mut copies: Vec<Process>, name: String) -> Result<Self> {
        let mut ready = None;
        for copy in &mut copies {
            ready = Some(copy.answer()?);
        }
        let mut candidate = Candidate { name, ready: ready.context("there is a copy at least")?, copies };
        candidate.turn(WARM_UP)?;
        Ok(candidate)
    }

    /// Has all copies take `n` steps at once.
    pub fn turn(&mut self, n: usize) -> Result<Vec<Answer>> {
        for copy in &mut self.copies {
            // If it has gone, there is no answer, and that says why.
            let _ = writeln!(copy.input.as_mut().context("the pipe is open until the end")?, "{n}");
        }
        self.copies.iter_mut().map(Process::answer).collect()
    }
}

/// What the script in PyTorch is told.
pub fn pytorch_job(config: &RunConfig, compiled: bool) -> serde_json::Value {
    let RunConfig { model, train, vocab_size, .. } = config;
    json!({ "model": model, "train": train, "vocab_size": vocab_size, "compile": compiled })
}

/// The script in PyTorch.
pub fn pytorch(job: &serde_json::Value, threads: u16) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", PYTORCH, &job.to_string()]).env("RAYON_NUM_THREADS", threads.to_string());
    command
}

pub const NO_TORCH: &str = "--against pytorch: python3 ended without an answer; it needs torch, and one of its models";

/// Whether there is a PyTorch to measure against.
///
/// # Errors
/// There is none.
pub fn look_for_torch() -> Result<(), ConfigError> {
    match Command::new("python3").args(["-c", "import torch"]).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(ConfigError("--against pytorch: python3 has no torch; install it, or leave this out".into())),
        Err(error) => Err(ConfigError(format!("--against pytorch: python3 cannot be run: {error}"))),
    }
}

/// A child that answers.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// What it means if there is no answer.
    silence: &'static str,
}

impl Process {
    pub fn start(command: &mut Command, silence: &'static str) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| ConfigError(format!("{program} cannot be run: {error}")))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("a pipe was asked for")?);
        Ok(Process { child, input, output, silence })
    }

    /// A line of JSON.
    pub fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("an answer")?;
        // Why it gave none, it has said on standard error, which is ours.
        serde_json::from_str(&line).map_err(|_| ConfigError(self.silence.into()).into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// One of our candidates, in its own process.
pub fn work(args: &crate::cli::Steps) -> Result<u8> {
    start_threads(args.threads)?;
    let config: RunConfig = toml::from_str(&args.config).map_err(|error| ConfigError(error.to_string()))?;
    let matrix_peak = Some(kernels::matrix_peak());
    let mut stepper = Stepper::new(&config)?;
    let start = Instant::now();
    stepper.steps(1);
    say(&Ready { first_step: start.elapsed().as_secs_f64(), matrix_peak })?;
    for line in std::io::stdin().lines() {
        let n = line?.parse().context("a number of steps")?;
        say(&Answer { turn: stepper.steps(n), peak_bytes: peak_bytes() })?;
    }
    Ok(0)
}

fn say(answer: &impl Serialize) -> Result<()> {
    crate::print(&(serde_json::to_string(answer)? + "\n"))?;
    Ok(())
}

/// The most memory that this process has held.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
