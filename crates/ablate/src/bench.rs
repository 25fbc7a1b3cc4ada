//! `ablate bench`: the training step against others, turn by turn in the same minutes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use kernels::Kernels;
use serde::Serialize;
use study::{Table, grouped, median};
use train::{ConfigError, RunConfig, Stepper, write_whole};

use crate::cli::{Bench, Opponent};
use crate::{plan, print};

/// The step in PyTorch, which is run as it is.
const PYTORCH: &str = include_str!("../../../bench/pytorch_step.py");

/// Steps that are taken before any is timed.
const WARM_UP: usize = 5;

/// What was measured of one model.
#[derive(Serialize)]
struct Measurement {
    variant: String,
    n_params: usize,
    tokens_per_step: usize,
    threads: u16,
    contestants: Vec<Times>,
}

/// The turns of one contestant.
#[derive(Serialize)]
struct Times {
    name: String,
    /// The median step of each turn, in seconds.
    turns: Vec<f64>,
    /// What came before the first turn and is not in it: the first step, which compiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_step: Option<f64>,
}

pub fn run(args: &Bench) -> Result<u8> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(args.threads.into())
        .use_current_thread()
        .build_global()
        .context("the threads cannot be started")?;
    let configs = plan(&args.study)?.runs().into_iter().filter(|run| run.seed == 0);
    let mut measurements = vec![];
    for config in configs {
        let measurement = measure(&config, args)?;
        print(&(measurement.table(args) + "\n"))?;
        measurements.push(measurement);
    }
    if let Some(path) = &args.json {
        write_whole(path, &(serde_json::to_string_pretty(&measurements)? + "\n"))?;
    }
    Ok(0)
}

fn measure(config: &RunConfig, args: &Bench) -> Result<Measurement> {
    let mut contestants = vec![Contestant::ours(config)?];
    if args.against.contains(&Opponent::Plain) {
        contestants.push(Contestant::ours(&RunConfig { kernels: Kernels::Plain, ..config.clone() })?);
    }
    if args.against.contains(&Opponent::Pytorch) {
        contestants.push(Contestant::pytorch(config, args.threads, false)?);
        contestants.push(Contestant::pytorch(config, args.threads, true)?);
    }
    for _ in 0..args.turns {
        for contestant in &mut contestants {
            let step = median(contestant.steps(args.steps_per_turn.into())?).context("a turn has a step")?;
            contestant.times.turns.push(step);
        }
    }
    Ok(Measurement {
        variant: config.variant.clone(),
        n_params: config.model.budget(config.vocab_size).params.total(),
        tokens_per_step: config.train.batch_size * config.model.seq_len,
        threads: args.threads,
        contestants: contestants.into_iter().map(|contestant| contestant.times).collect(),
    })
}

impl Measurement {
    /// Medians over the turns; ratios are taken turn by turn against the first contestant.
    fn table(&self, args: &Bench) -> String {
        let mut table =
            Table::new(&[&self.variant, "ms/step", "tokens/s", "ratio to the first", "lowest, highest", "first step"]);
        for times in &self.contestants {
            let step = median(times.turns.clone()).expect("every contestant has taken a turn");
            let pairs = times.turns.iter().zip(&self.contestants[0].turns);
            let mut ratios: Vec<f64> = pairs.map(|(own, first)| own / first).collect();
            ratios.sort_by(f64::total_cmp);
            table.rows.push(vec![
                times.name.clone(),
                format!("{:.2}", 1e3 * step),
                grouped((self.tokens_per_step as f64 / step) as usize),
                format!("{:.2}", ratios[ratios.len() / 2]),
                format!("{:.2}, {:.2}", ratios[0], ratios[ratios.len() - 1]),
                times.first_step.map_or("-".into(), |seconds| format!("{seconds:.1} s")),
            ]);
        }
        format!(
            "{} parameters, {} tokens a step, {} thread(s), {} turns of {} steps\n\n{}",
            grouped(self.n_params),
            grouped(self.tokens_per_step),
            self.threads,
            args.turns,
            args.steps_per_turn,
            table.plain()
        )
    }
}

/// Someone who takes training steps.
struct Contestant {
    times: Times,
    engine: Engine,
}

enum Engine {
    Ours(Box<Stepper>),
    Pytorch(Python),
}

struct Python {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Contestant {
    fn ours(config: &RunConfig) -> Result<Self> {
        let mut stepper = Stepper::new(config)?;
        stepper.steps(WARM_UP);
        let name = format!("{}, {}", <&str>::from(config.kernels), config.backend);
        let times = Times { name, turns: vec![], first_step: None };
        Ok(Contestant { times, engine: Engine::Ours(stepper.into()) })
    }

    fn pytorch(config: &RunConfig, threads: u16, compiled: bool) -> Result<Self> {
        let RunConfig { model, train, vocab_size, .. } = config;
        let job = serde_json::json!({ "model": model, "train": train, "vocab_size": vocab_size, "compile": compiled });
        let child = Command::new("python3")
            .args(["-c", PYTORCH, &job.to_string()])
            .env("RAYON_NUM_THREADS", threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child =
            child.map_err(|error| ConfigError(format!("--against pytorch: python3 cannot be run: {error}")))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("a pipe was asked for")?);
        let name = if compiled { "PyTorch, compiled" } else { "PyTorch, eager" };
        let mut python = Python { child, input, output };
        let ready: serde_json::Value = python.answer()?;
        python.steps(WARM_UP)?;
        let times = Times { name: name.into(), turns: vec![], first_step: ready["first_step"].as_f64() };
        Ok(Contestant { times, engine: Engine::Pytorch(python) })
    }

    /// The seconds of each of `n` steps.
    fn steps(&mut self, n: usize) -> Result<Vec<f64>> {
        match &mut self.engine {
            Engine::Ours(stepper) => Ok(stepper.steps(n)),
            Engine::Pytorch(python) => python.steps(n),
        }
    }
}

impl Python {
    fn steps(&mut self, n: usize) -> Result<Vec<f64>> {
        // If it has gone, there is no answer, and that says why.
        let _ = writeln!(self.input.as_mut().context("the pipe is open until the end")?, "{n}");
        self.answer()
    }

    /// A line of JSON from PyTorch.
    fn answer<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("PyTorch's answer")?;
        // Why it gave none, it has said on standard error, which is ours.
        serde_json::from_str(&line).map_err(|_| {
            let problem = "--against pytorch: python3 ended without an answer; it needs torch, and one of its models";
            ConfigError(problem.into()).into()
        })
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
