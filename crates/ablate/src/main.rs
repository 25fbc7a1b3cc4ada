//! `ablate`: the command line, the terminal and the processes of a study.

mod borrowed;
mod cli;
mod processes;
mod screen;
mod stop;
mod studies;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::CommandFactory;
use data::DataError;
use model::{Contract, Finding, Rule};
use strum::VariantArray;
use study::{Override, Plan};
use train::{Backend, BadFile, ConfigError, Display, Ending, Locked, Provenance, RunConfig, RunFolder, Sampling};

use cli::{Cli, Command};
use processes::Outcome;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let command = Cli::read().command;
    // A panic is an internal error, whose code is 1.
    match std::panic::catch_unwind(|| dispatch(command)) {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(error)) => {
            warn(&format!("ablate: {error:#}"));
            ExitCode::from(exit_code(&error))
        }
        Err(_) => ExitCode::from(1),
    }
}

fn dispatch(command: Command) -> Result<u8> {
    match command {
        Command::Run(run) => {
            let plan = plan(&run.study)?;
            Ok(match processes::run_study(&plan, &run)? {
                Outcome::Ended => 0,
                Outcome::SomeFailed => 1,
                Outcome::AllDiverged => 3,
                Outcome::Stopped => 75,
            })
        }
        Command::Report(report) => {
            let named = report.out.join(&report.study);
            let folder = if named.is_dir() { named } else { report.study.into() };
            let report = study::Report::read(&folder)?;
            print(&format!("{}\n", report.comparison.plain()))?;
            report.write(&folder)?;
            print(&format!("Report: {}\n", folder.join("report.html").display()))
        }
        Command::List => print(&list()),
        Command::Show(args) => print(&plan(&args)?.to_string()),
        Command::Sample(args) => {
            let sampling =
                Sampling { prompt: args.prompt, n_tokens: args.tokens, temperature: args.temperature, seed: args.seed };
            print(&(train::sample(&RunFolder::new(args.run), &sampling)? + "\n"))
        }
        Command::Check => check(),
        Command::Export(args) => {
            let out = args.out.unwrap_or_else(|| args.run.join("hf"));
            match args.to {
                cli::Format::Hf => train::hf::export(&RunFolder::new(args.run), &out)?,
            }
            print(&format!("{}\n", out.display()))
        }
        Command::Import(args) => {
            let imported = train::hf::import(&args.folder)?;
            let name = args.out.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned());
            let config = study::imported(&name, imported.model.clone(), imported.vocab_size, Backend::Flex);
            imported.write(&RunFolder::new(&args.out), &config)?;
            print(&format!("{}\n", args.out.display()))
        }
        Command::Completions { shell } => {
            let mut script = vec![];
            clap_complete::generate(shell, &mut Cli::command(), "ablate", &mut script);
            print(&String::from_utf8(script)?)
        }
        Command::Worker(worker) => work(worker),
    }
}

/// Prints a result. A reader that has gone is no error.
fn print(text: &str) -> Result<u8> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(0),
    }
}

/// Says something beside the results. There is nowhere to complain if that fails.
fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn plan(args: &cli::Study) -> Result<Plan> {
    let mut overrides = vec![];
    for text in &args.set {
        overrides.push(Override::from_assignment(text)?);
    }
    overrides.extend(args.seeds.map(|n| Override::from_option("--seeds", "seeds", n)));
    overrides.extend(args.steps.map(|n| Override::from_option("--steps", "train.steps", n)));
    Plan::read(&studies::find(&args.study)?, &overrides, args.backend)
}

fn list() -> String {
    let studies = studies::all();
    let width = studies.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, path): &(String, std::path::PathBuf)| {
        let description = study::description(path).unwrap_or_else(|error| format!("({error})"));
        format!("{name:<width$}  {description}\n")
    };
    studies.iter().map(line).collect()
}

/// Prints the contract table; 1 if a part does not behave as it should.
fn check() -> Result<u8> {
    let built_in = Backend::VARIANTS.iter().filter(|backend| backend.is_cpu() && backend.require().is_ok());
    let devices = built_in.map(|backend| backend.device()).collect::<Result<Vec<_>, _>>()?;
    let contracts = model::contracts(&devices);
    let width = contracts.iter().map(|contract| contract.part.len()).max().unwrap_or(0);
    let cell = |finding: &Finding| match (finding.holds, finding.is_as_expected()) {
        (None, _) => "-",
        (Some(true), true) => "yes",
        (Some(false), true) => "no*",
        (Some(true), false) => "YES!",
        (Some(false), false) => "NO!",
    };
    let mut text = format!("{:width$}", "part");
    for rule in Rule::VARIANTS {
        text += &format!("  {}", <&str>::from(rule));
    }
    text += "\n";
    let mut surprises = vec![];
    for Contract { part, findings } in &contracts {
        text += &format!("{part:width$}");
        for finding in findings {
            let name = <&str>::from(finding.rule);
            text += &format!("  {:>1$}", cell(finding), name.len());
            if !finding.is_as_expected() {
                surprises.push(format!("{part}: {name} should be {}\n", if finding.expected { "yes" } else { "no" }));
            }
        }
        text += "\n";
    }
    text += "\n* as it must be. BatchNorm mixes the tokens of a batch, later ones too, and evaluates by other statistics than it \
             trains by;\n  InstanceNorm and the pooled GroupNorm mix positions; the L2 norm has its epsilon outside the \
             root. Shift- and scale-free\n  are properties, neither good nor bad: RMSNorm is not shift-free, LayerNorm is.\n";
    text += &match surprises.as_slice() {
        [] => "Everything is as it must be.\n".to_string(),
        surprises => surprises.concat(),
    };
    print(&text)?;
    Ok(u8::from(!surprises.is_empty()))
}

/// Trains one run; the parent reads its folder.
fn work(worker: cli::Worker) -> Result<u8> {
    let config: RunConfig = toml::from_str(&worker.config).map_err(|error| ConfigError(error.to_string()))?;
    let stop = stop::of_worker(worker.dashboard)?;
    // A run whose study was killed must not train on unseen.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    std::fs::create_dir_all(&worker.folder)
        .with_context(|| format!("{}: cannot be created", worker.folder.display()))?;
    let log = std::fs::OpenOptions::new().create(true).append(true).open(worker.folder.join("log.txt"));
    let log = log.with_context(|| format!("{}: the log cannot be written", worker.folder.display()))?;
    tracing_subscriber::fmt().with_writer(Arc::new(log)).with_ansi(false).init();
    let provenance = Provenance {
        commit: env!("ABLATE_COMMIT").into(),
        version: env!("CARGO_PKG_VERSION").into(),
        command: worker.command,
    };
    let display = if worker.dashboard { Display::Dashboard } else { Display::Plain };
    Ok(match train::run(&config, &worker.folder, provenance, display, stop)? {
        Ending::Done => 0,
        Ending::Diverged { .. } => 3,
        Ending::Stopped { .. } => 75,
    })
}

/// Whether standard output can show a dashboard.
fn can_draw() -> bool {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !dumb
}

fn exit_code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<ConfigError>() {
            return 2;
        }
        if cause.is::<Locked>() {
            return 4;
        }
        if cause.is::<DataError>() || cause.is::<BadFile>() {
            return 5;
        }
        if cause.is::<std::io::Error>() {
            return 6;
        }
    }
    1
}
