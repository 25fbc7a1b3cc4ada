//! Runs a study: one process per run, several at a time.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use study::Plan;
use train::{RunConfig, RunFolder, State};

use crate::screen::Screen;
use crate::{can_draw, cli, stop_flag};

/// How a study came to its end.
pub enum Outcome {
    Ended,
    SomeFailed,
    Stopped,
}

/// A run of the study on its way.
pub struct Job {
    pub config: RunConfig,
    pub folder: RunFolder,
    pub progress: Progress,
}

pub enum Progress {
    /// It was complete before this study started.
    Skipped,
    Waiting,
    Running(Child),
    Ended,
    Failed(String),
}

impl Job {
    /// `variant/seed-0`
    pub fn label(&self) -> String {
        format!("{}/seed-{}", self.config.variant, self.config.seed)
    }

    pub fn is_running(&self) -> bool {
        matches!(self.progress, Progress::Running(_))
    }
}

/// What is shown while a study works.
enum View {
    /// Our own screen over all runs.
    Screen(Box<Screen>),
    /// The dashboard of the only run at a time, drawn by its own process.
    Dashboard,
    /// Lines of all runs, each behind the name of its run.
    Plain,
}

/// Trains what is missing of a study and writes its report.
pub fn run_study(plan: &Plan, args: &cli::Run) -> Result<Outcome> {
    let stop = stop_flag()?;
    let study_folder = args.out.join(&plan.name);
    fs::create_dir_all(&study_folder).with_context(|| format!("{}: cannot be created", study_folder.display()))?;
    let mut jobs = vec![];
    for config in plan.runs() {
        let folder = plan.folder(&args.out, &config);
        let complete = set_up(&folder, &config, &study_folder)?;
        let progress = if complete { Progress::Skipped } else { Progress::Waiting };
        jobs.push(Job { config, folder, progress });
    }
    plan.write_study_file(&args.out)?;

    let waiting: VecDeque<usize> = (0..jobs.len()).filter(|&i| matches!(jobs[i].progress, Progress::Waiting)).collect();
    let skipped = jobs.len() - waiting.len();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let at_once = args.jobs.map_or(cores, usize::from).min(waiting.len()).max(1);
    let threads = (cores / at_once).max(1);
    let mut view = match (args.plain || !can_draw() || waiting.is_empty(), at_once) {
        (true, _) => View::Plain,
        (false, 1) => View::Dashboard,
        (false, _) => View::Screen(Box::new(Screen::open(plan)?)),
    };
    if matches!(view, View::Plain) {
        println!(
            "{}: {} variants x {} seeds, {} runs to do ({skipped} complete), {at_once} at a time with {threads} thread(s)",
            plan.name,
            plan.variants.len(),
            plan.settings.seeds,
            waiting.len()
        );
    }
    let stopped = supervise(&mut jobs, waiting, at_once, threads, &mut view, &stop);
    drop(view);
    let stopped = stopped?;
    report(&jobs, &study_folder)?;
    let failed = jobs.iter().any(|job| matches!(job.progress, Progress::Failed(_)));
    Ok(match (stopped, failed) {
        (true, _) => Outcome::Stopped,
        (_, true) => Outcome::SomeFailed,
        _ => Outcome::Ended,
    })
}

/// Whether the run is complete already. A run of another config that lies in its place is kept aside.
fn set_up(folder: &RunFolder, config: &RunConfig, study_folder: &Path) -> Result<bool> {
    let Some(status) = folder.status()? else { return Ok(false) };
    if folder.config().is_ok_and(|earlier| earlier == *config) {
        return Ok(matches!(status.state, State::Done | State::Diverged));
    }
    folder.lock()?;
    let aside =
        (1..).map(|n| study_folder.join(format!("replaced-{n}"))).find(|path| !path.join(label(config)).exists());
    let aside = aside.expect("some number is free").join(label(config));
    let parent = aside.parent().expect("a path in a folder");
    let moved = fs::create_dir_all(parent).and_then(|()| fs::rename(&folder.path, &aside));
    moved.with_context(|| format!("{}: cannot be moved to {}", folder.path.display(), aside.display()))?;
    eprintln!("{} held a run of another configuration; it is now in {}", folder.path.display(), aside.display());
    Ok(false)
}

fn label(config: &RunConfig) -> PathBuf {
    Path::new(&config.variant).join(format!("seed-{}", config.seed))
}

/// Keeps `at_once` runs going until none is left; true when it was asked to stop.
fn supervise(
    jobs: &mut [Job],
    mut waiting: VecDeque<usize>,
    at_once: usize,
    threads: usize,
    view: &mut View,
    stop: &std::sync::atomic::AtomicBool,
) -> Result<bool> {
    let mut asked = false;
    loop {
        while !asked && jobs.iter().filter(|job| job.is_running()).count() < at_once {
            let Some(next) = waiting.pop_front() else { break };
            let child = spawn(&jobs[next], threads, view)?;
            jobs[next].progress = Progress::Running(child);
        }
        if !jobs.iter().any(Job::is_running) {
            return Ok(asked);
        }
        if let View::Screen(screen) = view {
            screen.draw(jobs, at_once)?;
            if screen.asks_to_stop()? {
                stop.store(true, Ordering::Relaxed);
            }
        }
        for job in jobs.iter_mut() {
            collect(job)?;
        }
        // One dashboard stopped by its own key stops the study.
        let stopped_itself = jobs.iter().any(|job| matches!(&job.progress, Progress::Failed(why) if why == STOPPED));
        if !asked && (stop.load(Ordering::Relaxed) || stopped_itself) {
            asked = true;
            for job in jobs.iter_mut() {
                if let Progress::Running(child) = &mut job.progress {
                    ask_to_stop(child);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Why a run that was asked to stop has no result.
const STOPPED: &str = "stopped on request";

/// Takes note of a run that has ended.
fn collect(job: &mut Job) -> Result<()> {
    let Progress::Running(child) = &mut job.progress else { return Ok(()) };
    let Some(status) = child.try_wait().context("waiting for a run")? else { return Ok(()) };
    job.progress = match status.code() {
        Some(0 | 3) => Progress::Ended,
        Some(4) => Progress::Failed("another process is working in its folder".into()),
        Some(75) => Progress::Failed(STOPPED.into()),
        _ => {
            let message = job.folder.status().ok().flatten().and_then(|status| status.message);
            Progress::Failed(message.unwrap_or_else(|| format!("{status}; see {}/log.txt", job.folder.path.display())))
        }
    };
    Ok(())
}

fn spawn(job: &Job, threads: usize, view: &View) -> Result<Child> {
    let path = &job.folder.path;
    fs::create_dir_all(path).with_context(|| format!("{}: cannot be created", path.display()))?;
    let log = OpenOptions::new().create(true).append(true).open(path.join("log.txt"));
    let log = log.with_context(|| format!("{}: the log cannot be written", path.display()))?;
    let mut command = std::process::Command::new(std::env::current_exe().context("where this program lies")?);
    command.arg("worker").arg(path).arg(toml::to_string(&job.config)?).arg("--command").arg(command_line());
    command.env("RAYON_NUM_THREADS", threads.to_string());
    // Memory that one step frees the next step needs again: giving it back in between costs about 4% of the time.
    command.env("MIMALLOC_PURGE_DELAY", "-1");
    match view {
        View::Dashboard => command.arg("--dashboard"),
        View::Plain => command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log),
        View::Screen(_) => command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log),
    };
    let mut child = command.spawn().context("starting a run")?;
    if let Some(lines) = child.stdout.take() {
        let label = job.label();
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                // A closed pipe is no reason to end the runs.
                let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{label}  {line}\n").as_bytes());
            }
        });
    }
    Ok(child)
}

/// The command as typed, but for the path of the program.
fn command_line() -> String {
    let quoted = |arg: String| if arg.contains([' ', '"', '\'', '$']) { format!("'{arg}'") } else { arg };
    std::iter::once("ablate".to_string()).chain(std::env::args().skip(1).map(quoted)).collect::<Vec<_>>().join(" ")
}

#[cfg(unix)]
fn ask_to_stop(child: &mut Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        // It may have ended in the meantime.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

#[cfg(not(unix))]
fn ask_to_stop(child: &mut Child) {
    let _ = child.kill();
}

/// Prints what was found and what failed, and writes the report's files.
fn report(jobs: &[Job], study_folder: &Path) -> Result<()> {
    let comparison = study::write_report(study_folder)?;
    let mut text = format!("\n{}\n", comparison.plain());
    let mut failures = jobs.iter().filter_map(|job| match &job.progress {
        Progress::Failed(why) => Some(format!("{:<24}  {why}\n", job.label())),
        _ => None,
    });
    if let Some(first) = failures.next() {
        text += &format!("Without a result:\n{first}{}\n", failures.collect::<String>());
    }
    text += &format!("Report: {}\n", study_folder.join("report.html").display());
    crate::print(&text)?;
    Ok(())
}
