//! `ablate`: the command line, the terminal and the processes of a study.

mod bench;
mod claims;
mod cli;
mod corpora;
mod devices;
mod inventory;
mod processes;
mod rerun;
mod resources;
mod screen;
mod slurm;
mod stop;
mod studies;
mod tasks;
mod terminal_guard;
mod watch;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::CommandFactory;
use data::DataError;
use disk::Locked;
use fetch::FetchError;
use model::{Contract, Finding, Rule};
use strum::VariantArray;
use study::{Override, Plan, Table};
use train::{Backend, BadFile, ConfigError, Display, Ending, Provenance, Refused, RunConfig, RunFolder, Sampling};

use cli::{Cli, Command};
use processes::Outcome;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before there is another thread: threads inherit it.
    kernels::flush_denormals();
    if let Err(error) = stop::fail_on_large_files() {
        warn(&format!("ablate: {error}"));
    }
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
        Command::Run(cli::Run { plan: Some(file), index, .. }) => tasks::run(&file, index),
        Command::Run(cli::Run { index: Some(_), .. }) => Err(ConfigError("--index needs --plan".into()).into()),
        Command::Run(run) => {
            let study = run.study.expect("clap asks for a study or a plan");
            let mut plan = plan(&cli::Study { study, changes: run.changes })?;
            Ok(match processes::run_study(&mut plan, &run.how)? {
                Outcome::Ended => 0,
                Outcome::SomeFailed => 1,
                Outcome::AllDiverged => 3,
                Outcome::DiskFull => 6,
                Outcome::Stopped => 75,
            })
        }
        Command::Report(report) => {
            let folder = studies::results(&report.study, &report.out)?;
            let report = study::Report::read(&folder)?;
            print(&format!("{}\n", report.comparison.plain()))?;
            report.write(&folder)?;
            print(&format!("Report: {}\n", folder.join("report.html").display()))?;
            Ok(say_unreadable(&report.comparison.left_out))
        }
        Command::Plan(args) => {
            let mut tasks = tasks::Tasks::of(&mut plan(&args.study)?, &args.out)?;
            slurm::refuse_if_queued(&tasks.folder)?;
            tasks.write()?;
            print(&format!("{}: {} runs\n", tasks.file().display(), tasks.all.len()))?;
            Ok(if tasks.have_unreadable() { 5 } else { 0 })
        }
        Command::Submit(args) => slurm::submit(&args),
        Command::Status(args) => slurm::status(&studies::results(&args.study, &args.out)?),
        Command::List(args) => match &args.folder {
            None => print(&list()?),
            Some(folder) => {
                let (table, unreadable) = study::list(folder, args.state, &args.name, args.sort)?;
                print(&format!("{}{} runs\n", table.plain(), table.rows.len()))?;
                Ok(say_unreadable(&unreadable))
            }
        },
        Command::Watch(args) => watch::run(&args),
        Command::ExportMetrics(args) => print(&study::long_table(&studies::results(&args.study, &args.out)?)?),
        Command::Show(args) => {
            let plan = plan(&args)?;
            print(&format!("{plan}\n"))?;
            print(&bench::forecast(&plan)?)
        }
        Command::Sample(args) => {
            let sampling = Sampling {
                prompt: args.prompt,
                n_tokens: args.tokens as usize,
                temperature: args.temperature,
                seed: args.seed,
            };
            print(&(train::sample(&RunFolder::new(args.run), &sampling)? + "\n"))
        }
        Command::Check => check(),
        Command::Devices => devices::list(),
        Command::Selftest { backend } => devices::selftest(backend),
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
            let config = RunConfig {
                study: "imported".into(),
                variant: name,
                vocab_size: imported.vocab_size,
                model: imported.model.clone(),
                ..study::baseline(Backend::Flex)
            };
            imported.write(&RunFolder::new(&args.out), &config)?;
            print(&format!("{}\n", args.out.display()))
        }
        Command::Bench(args) => bench::run(&args),
        Command::Claims(args) => claims::run(&args),
        Command::Compare(args) => {
            let comparison = study::compare(&args.runs, args.margin.unwrap_or_else(study::default_margin))?;
            let changes = comparison.changes();
            let changes = if changes.is_empty() { changes } else { format!("\nAgainst the first:\n{changes}") };
            print(&(comparison.plain() + &changes))
        }
        Command::Rerun(args) => rerun::run(&args),
        Command::Data(command) => corpora::dispatch(command),
        Command::Completions { shell } => {
            let mut script = vec![];
            clap_complete::generate(shell, &mut Cli::command(), "ablate", &mut script);
            print(&String::from_utf8(script)?)
        }
        Command::Worker(worker) => work(worker),
        Command::Steps(args) => bench::work(&args),
    }
}

/// Names what is missing from a result because it cannot be read, and returns the exit code.
fn say_unreadable(problems: &[String]) -> u8 {
    problems.iter().for_each(|problem| warn(&format!("ablate: {problem}")));
    if problems.is_empty() { 0 } else { 5 }
}

/// Prints a result, its lines without what would command the terminal. A reader that has gone is no error.
fn print(text: &str) -> Result<u8> {
    let text: String = text.chars().map(|c| if matches!(c, '\n' | '\t') { c } else { plain(c) }).collect();
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(0),
    }
}

/// Says something beside the results. There is nowhere to complain if that fails.
fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(text));
}

/// A line without what would command the terminal: texts, and names of files and corpora, may hold it.
fn printable(line: &str) -> String {
    line.chars().map(plain).collect()
}

fn plain(c: char) -> char {
    if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }
}

fn plan(args: &cli::Study) -> Result<Plan> {
    let mut overrides = vec![];
    let cli::Changes { set, seeds, steps, backend, kernels } = &args.changes;
    for text in set {
        overrides.push(Override::from_assignment(text)?);
    }
    overrides.extend(seeds.map(|n| Override::from_option("--seeds", "seeds", n)));
    overrides.extend(steps.map(|n| Override::from_option("--steps", "train.steps", n)));
    Plan::read(&studies::find(&args.study)?, &overrides, *backend, *kernels)
}

fn list() -> Result<String, ConfigError> {
    let studies = studies::all();
    if studies.is_empty() {
        return Err(ConfigError(format!("there is no folder `{}` with studies here", studies::FOLDER)));
    }
    let width = studies.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, path): &(String, PathBuf)| {
        let description = study::description(path).unwrap_or_else(|error| format!("({error})"));
        format!("{:<width$}  {}\n", printable(name), printable(&description))
    };
    Ok(studies.iter().map(line).collect())
}

/// Prints the contract table; 1 if a part does not behave as it should.
fn check() -> Result<u8> {
    let built_in = Backend::VARIANTS.iter().filter(|backend| backend.is_cpu() && backend.require().is_ok());
    let devices = built_in.map(|backend| backend.device()).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<&str> = Rule::VARIANTS.iter().map(<&str>::from).collect();
    let mut table = Table::new(&[&["part"], names.as_slice()].concat());
    let mut surprises = String::new();
    for Contract { part, findings } in model::contracts(&devices) {
        let cell = |finding: &Finding| match (finding.holds, finding.is_as_expected()) {
            (None, _) => "-",
            (Some(true), true) => "yes",
            (Some(false), true) => "no*",
            (Some(true), false) => "YES!",
            (Some(false), false) => "NO!",
        };
        for finding in findings.iter().filter(|finding| !finding.is_as_expected()) {
            let should = if finding.expected { "yes" } else { "no" };
            surprises += &format!("{part}: {} should be {should}\n", <&str>::from(finding.rule));
        }
        let cells = findings.iter().map(|finding| cell(finding).to_string());
        table.rows.push(std::iter::once(part.clone()).chain(cells).collect());
    }
    let verdict = if surprises.is_empty() { "Everything is as it must be.\n" } else { surprises.as_str() };
    print(&format!("{}\n{CHECKED}{verdict}", table.plain()))?;
    Ok(u8::from(!surprises.is_empty()))
}

const CHECKED: &str = "\
* as it must be. In the first three columns: statistics over the batch or over positions see other tokens, and BatchNorm
evaluates by running ones. In shift-free and scale-free, which are neither good nor bad: only what subtracts a mean is
shift-free, and only what divides by a size is scale-free.
";

/// The process of one run; the parent reads its folder.
fn work(worker: cli::Worker) -> Result<u8> {
    let config = RunConfig::from_toml(Path::new("the config of a run"), &worker.config)?;
    let stop = stop::of_worker(worker.dashboard)?;
    // A run whose study was killed must not train on unseen.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::USR1))?;
    // It may have been killed before that.
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if worker.parent.is_some_and(|expected| parent != Some(expected)) {
        return Ok(75);
    }
    let display = if worker.dashboard { Display::Dashboard } else { Display::Plain };
    train_run(&config, &worker.folder, worker.command, display, stop)
}

/// Trains one run in this process.
fn train_run(
    config: &RunConfig,
    folder: &Path,
    command: String,
    display: Display,
    stop: Arc<AtomicBool>,
) -> Result<u8> {
    // Before its log is opened, which would move with it.
    set_aside_unusable(&RunFolder::new(folder), config, || stop.load(Ordering::Relaxed))?;
    std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    let log = processes::open_log(folder)?;
    tracing_subscriber::fmt().with_writer(Arc::new(log)).with_ansi(false).init();
    resources::start_threads(0)?;
    let version = env!("CARGO_PKG_VERSION").into();
    let selftest = devices::selftest_stamp(config.backend)?;
    let provenance = Provenance { commit: env!("ABLATE_COMMIT").into(), version, command, selftest };
    Ok(match train::run(config, folder, provenance, display, stop)? {
        Ending::Done => {
            if config.seed == 0 {
                write_sample(&RunFolder::new(folder));
            }
            0
        }
        Ending::Diverged { .. } => 3,
        Ending::Stopped { .. } => 75,
    })
}

/// Sets aside what an interrupted run left if it cannot be resumed, and says so.
fn set_aside_unusable(folder: &RunFolder, config: &RunConfig, should_stop: impl Fn() -> bool) -> Result<()> {
    if let Some((why, to)) = train::set_aside_unusable(folder, config, should_stop)? {
        warn(&format!("1 run set aside in {}: {why}", to.display()));
    }
    Ok(())
}

/// A text for the report, of one run of each variant. The run is good without.
fn write_sample(folder: &RunFolder) {
    let sampling = Sampling { prompt: String::new(), n_tokens: 200, temperature: 0.8, seed: 0 };
    let written = train::sample(folder, &sampling).and_then(|text| train::write_whole(&folder.sample_path(), &text));
    if let Err(error) = written {
        tracing::warn!("no sample of text: {error:#}");
    }
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
        if cause.is::<Refused>()
            || cause.is::<slurm::Queued>()
            || matches!(cause.downcast_ref(), Some(Locked::Held { .. }))
        {
            return 4;
        }
        match cause.downcast_ref() {
            Some(FetchError::NoAddress { .. }) => return 2,
            Some(FetchError::Locked(Locked::Held { .. })) => return 4,
            Some(FetchError::Unavailable { .. } | FetchError::BadFile { .. }) => return 5,
            Some(FetchError::Locked(_) | FetchError::Io { .. }) => return 6,
            None => {}
        }
        match cause.downcast_ref() {
            Some(
                DataError::BadSize { .. }
                | DataError::TooPlain { .. }
                | DataError::OtherTokenizer { .. }
                | DataError::NotTokens
                | DataError::Occupied { .. }
                | DataError::TokensAlready { .. },
            ) => return 2,
            Some(DataError::Unwritable { .. }) => return 6,
            _ => {}
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
