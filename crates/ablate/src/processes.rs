//! Runs a study: one process per run, several at a time.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use disk::lock;
use study::{Comparison, Plan, Report, Study, TUNING};
use train::{Existing, RunConfig, RunFolder};

use crate::inventory::{Entry, Inventory};
use crate::resources::{check_space, cores, most_at_once};
use crate::screen::{Screen, UiAction};
use crate::stop::Requests;
use crate::terminal_guard::TerminalGuard;
use crate::{can_draw, cli, devices, print, set_aside_unusable, stop, warn};

/// How a study came to its end.
pub enum Outcome {
    Ended,
    AllDiverged,
    SomeFailed,
    DiskFull,
    Stopped,
}

/// A run of the study on its way.
pub struct Job {
    pub config: RunConfig,
    pub folder: RunFolder,
    pub progress: Progress,
    /// Whether it was stopped by itself, so that the others go on.
    is_let_go: bool,
    /// Whether it crashed once, and was started again.
    is_retried: bool,
}

pub enum Progress {
    /// It was complete before this study started.
    Complete,
    Waiting,
    Running(Worker),
    /// Done, or diverged.
    Ended,
    Stopped,
    Failed(Failure),
}

/// Why a run has no result.
pub struct Failure {
    pub message: String,
    /// Whether the disk is full, which would befall the next run too.
    is_disk: bool,
}

impl Failure {
    fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), is_disk: false }
    }
}

/// The process of a run.
pub struct Worker {
    child: Child,
    /// Passes its lines on, in the plain view.
    lines: Option<JoinHandle<()>>,
}

/// What is shown while a study works.
enum View {
    /// Our own screen over all runs.
    Screen(Box<Screen>),
    /// The dashboard of the only run at a time, drawn by its own process.
    Dashboard(TerminalGuard),
    /// Lines of all runs, each behind the name of its run.
    Plain,
}

/// Trains what is missing of a study and writes its report.
pub fn run_study(plan: &mut Plan, how: &cli::How) -> Result<Outcome> {
    let tuning_runs = plan.tuning_runs();
    let most = plan.runs().len().max(tuning_runs.len());
    let at_once = most_at_once(plan, how.jobs.map_or(cores(), usize::from).min(most), how.max_memory)?;
    let stop = stop::on_signal()?;
    // Once, before any run asks for it.
    devices::selftest_stamp(plan.backend())?;
    let folder = how.out.join(&plan.study.name);
    fs::create_dir_all(&folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    // One study in a folder at a time: it may move runs and it owns `study.json`.
    let _lock = lock(&folder)?;
    Study::check_earlier(&folder)?;
    if !tuning_runs.is_empty() {
        let jobs = carry_out(plan, tuning_runs, &folder, Path::new(TUNING), at_once, how.plain, &stop)?;
        if let Some(outcome) = incomplete(&jobs) {
            // Rates that were chosen among what is left would not be those that the study asks for.
            print(&format!("\nLearning rates are not chosen yet. {}", without_result(&jobs)))?;
            return Ok(outcome);
        }
        plan.choose_rates(&folder)?;
    }
    let jobs = carry_out(plan, plan.runs(), &folder, Path::new(""), at_once, how.plain, &stop)?;
    if stop.stop_at_once() {
        return Ok(Outcome::Stopped);
    }
    let comparison = report(&jobs, &folder)?;
    Ok(match incomplete(&jobs) {
        Some(outcome) => outcome,
        None if !comparison.left_out.is_empty() => Outcome::SomeFailed,
        // Asked for while the report was written.
        None if stop.stop() => Outcome::Stopped,
        None if comparison.all_diverged() => Outcome::AllDiverged,
        None => Outcome::Ended,
    })
}

/// How a study ended some of whose runs have no result.
fn incomplete(jobs: &[Job]) -> Option<Outcome> {
    let failures =
        || jobs.iter().filter_map(|job| if let Progress::Failed(why) = &job.progress { Some(why) } else { None });
    if failures().any(|failure| failure.is_disk) {
        Some(Outcome::DiskFull)
    } else if jobs.iter().any(Job::is_stopped) {
        Some(Outcome::Stopped)
    } else {
        failures().next().map(|_| Outcome::SomeFailed)
    }
}

/// Trains those of these runs that are not complete in `place` below a study's folder.
fn carry_out(
    plan: &Plan,
    configs: Vec<RunConfig>,
    study_folder: &Path,
    place: &Path,
    at_once: usize,
    plain: bool,
    stop: &Requests,
) -> Result<Vec<Job>> {
    let (n_variants, n_runs) = (plan.study.variants.len(), configs.len());
    // All that could be refused is, before anything is moved or written.
    let mut inventory = Inventory::of(study_folder, place, configs)?;
    let missing: Vec<&Entry> = inventory.entries.iter().filter(|entry| entry.needs_training()).collect();
    check_space(&missing, at_once.min(missing.len()), study_folder)?;
    inventory.arrange()?;
    plan.study.write(study_folder)?;
    let mut jobs: Vec<Job> = inventory.entries.into_iter().map(Job::of).collect();
    let waiting: VecDeque<usize> = (0..jobs.len()).filter(|&i| matches!(jobs[i].progress, Progress::Waiting)).collect();
    let at_once = at_once.min(waiting.len()).max(1);
    let threads = (cores() / at_once).max(1);
    let train = |job: &Job| (job.config.train.warmup_steps, job.config.train.steps);
    if let Some((warmup, steps)) = jobs.iter().map(train).find(|(warmup, steps)| warmup * 3 > *steps) {
        let share = 100 * warmup / steps;
        warn(&format!(
            "train.warmup_steps = {warmup} is {share}% of {steps} steps: the full learning rate is hardly used"
        ));
    }
    let mut view = match (plain || !can_draw() || waiting.is_empty(), at_once) {
        (true, _) => View::Plain,
        (false, 1) => View::Dashboard(TerminalGuard::new()),
        (false, _) => View::Screen(Box::new(Screen::open(plan)?)),
    };
    if matches!(view, View::Plain) {
        let n_complete = jobs.iter().filter(|job| matches!(job.progress, Progress::Complete)).count();
        let n_begun = waiting.iter().filter(|&&i| jobs[i].folder.is_begun()).count();
        let name = &plan.study.name;
        let what = if place == Path::new("") { name.clone() } else { format!("{name}, learning rates") };
        print(&format!(
            "{what}: {n_variants} variants, {n_runs} runs, {} to do ({} complete, {n_begun} half-finished), {at_once} at a time with \
             {threads} thread{}\n",
            waiting.len(),
            n_complete,
            if threads == 1 { "" } else { "s" },
        ))?;
    }
    let supervised = supervise(&mut jobs, waiting, at_once, threads, &mut view, stop);
    if let (View::Dashboard(terminal), true) = (&view, stop.stop_at_once()) {
        terminal.take_back();
    }
    // The terminal is given back before anything else is said.
    drop(view);
    supervised?;
    Ok(jobs)
}

/// Keeps `at_once` runs going until none is left or a stop is asked for.
fn supervise(
    jobs: &mut [Job],
    mut waiting: VecDeque<usize>,
    at_once: usize,
    threads: usize,
    view: &mut View,
    stop: &Requests,
) -> Result<()> {
    let mut asked = false;
    loop {
        while !asked && !stop.stop() && jobs.iter().filter(|job| job.is_running()).count() < at_once {
            let Some(next) = waiting.pop_front() else { break };
            jobs[next].progress = match spawn(&jobs[next], threads, view) {
                Ok(worker) => Progress::Running(worker),
                Err(error) => {
                    let is_disk = is_full(&jobs[next]);
                    Progress::Failed(Failure { message: format!("{error:#}"), is_disk })
                }
            };
        }
        if !jobs.iter().any(Job::is_running) {
            return Ok(());
        }
        if let View::Screen(screen) = view {
            screen.draw(jobs, at_once)?;
            match screen.wish(jobs.len())? {
                Some(UiAction::StopAll) => stop.add(),
                Some(UiAction::Stop(i)) => match jobs[i].progress {
                    Progress::Running(_) => {
                        jobs[i].is_let_go = true;
                        jobs[i].ask_to_stop();
                    }
                    Progress::Waiting => {
                        jobs[i].is_let_go = true;
                        jobs[i].progress = Progress::Stopped;
                        waiting.retain(|&waiting| waiting != i);
                    }
                    _ => {}
                },
                None => {}
            }
        }
        if stop.stop_at_once() {
            jobs.iter_mut().for_each(Job::kill);
            return Ok(());
        }
        for (i, job) in jobs.iter_mut().enumerate() {
            job.collect(view, asked)?;
            if matches!(job.progress, Progress::Waiting) && job.is_retried && !waiting.contains(&i) {
                waiting.push_front(i);
            }
        }
        // A run that was stopped from its own dashboard stops the study, and so does a disk that is full.
        let ends_all = |job: &Job| match &job.progress {
            Progress::Stopped => !job.is_let_go,
            Progress::Failed(failure) => failure.is_disk,
            _ => false,
        };
        if !asked && (stop.stop() || jobs.iter().any(ends_all)) {
            asked = true;
            jobs.iter().for_each(Job::ask_to_stop);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

impl Job {
    fn of(Entry { config, folder, existing, .. }: Entry) -> Self {
        let progress = match existing {
            Ok(Existing::Complete(_)) => Progress::Complete,
            Ok(_) => Progress::Waiting,
            Err(why) => Progress::Failed(Failure::new(why)),
        };
        Job { config, folder, progress, is_let_go: false, is_retried: false }
    }

    pub fn is_running(&self) -> bool {
        matches!(self.progress, Progress::Running(_))
    }

    /// Whether it was stopped, or never started for a stop.
    fn is_stopped(&self) -> bool {
        matches!(self.progress, Progress::Stopped | Progress::Waiting)
    }

    /// Takes note of its end, which may have been asked for.
    fn collect(&mut self, view: &View, asked: bool) -> Result<()> {
        let Progress::Running(worker) = &mut self.progress else { return Ok(()) };
        let Some(code) = worker.child.try_wait().context("waiting for a run")? else { return Ok(()) };
        if let Some(lines) = worker.lines.take() {
            lines.join().expect("passing lines on does not panic");
        }
        if let (None, View::Dashboard(terminal)) = (code.code(), view) {
            terminal.take_back();
        }
        let log = || format!("see {}", self.folder.path.join("log.txt").display());
        let status = self.folder.status().ok().flatten();
        self.progress = match code.code() {
            Some(0 | 3) => Progress::Ended,
            Some(75) => Progress::Stopped,
            // Before it listens, a request ends it as any program.
            None if asked || self.is_let_go => Progress::Stopped,
            // Ended from outside, as for want of memory: it may come through a second time.
            None if !self.is_retried => {
                warn(&format!("{}: its process was ended ({code}); it is started again", self.config.label()));
                self.is_retried = true;
                Progress::Waiting
            }
            None => Progress::Failed(Failure::new(format!("its process was ended twice ({code}); {}", log()))),
            Some(code) => {
                let holder =
                    || (code == 4).then(|| lock(&self.folder.path).err().map(|held| held.to_string())).flatten();
                let message = status.and_then(|status| status.message).or_else(holder);
                let what = if code == 6 { "its files could not be written" } else { "it failed" };
                let message = message.unwrap_or_else(|| format!("{what} (exit code {code}); {}", log()));
                Progress::Failed(Failure { message, is_disk: code == 6 && is_full(self) })
            }
        };
        Ok(())
    }

    /// Ends it where it is; what it has saved is kept.
    fn kill(&mut self) {
        if let Progress::Running(worker) = &mut self.progress {
            // It may have ended in the meantime.
            let _ = worker.child.kill().and_then(|()| worker.child.wait());
            self.progress = Progress::Stopped;
        }
    }

    fn ask_to_stop(&self) {
        if let Progress::Running(worker) = &self.progress {
            ask_to_stop(&worker.child);
        }
    }
}

/// Whether the disk is too full for the checkpoints of a run.
fn is_full(job: &Job) -> bool {
    disk::free_space(&job.folder.path).is_ok_and(|free| (free as f64) < job.config.disk_needs().meanwhile)
}

/// This program, to be started again. Its file may have been replaced since: on Linux the system still knows it.
pub fn own_program() -> Result<Command> {
    let running = Path::new("/proc/self/exe");
    let program =
        if running.exists() { running.into() } else { std::env::current_exe().context("where this program lies")? };
    Ok(Command::new(program))
}

/// Asks a run's process to stop in good order.
pub fn ask_to_stop(child: &Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        // It may have ended in the meantime.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::USR1);
    }
}

fn spawn(job: &Job, threads: usize, view: &View) -> Result<Worker> {
    let path = &job.folder.path;
    if job.is_retried {
        // Before its log is opened, which would move with it.
        set_aside_unusable(&job.folder, &job.config, || false)?;
    }
    fs::create_dir_all(path).with_context(|| format!("{}: cannot be created", path.display()))?;
    let log = open_log(path)?;
    let mut command = worker(path, &job.config)?;
    command.env("RAYON_NUM_THREADS", threads.to_string());
    // Memory that one step frees the next step needs again: giving it back in between costs about 4% of the time.
    command.env("MIMALLOC_PURGE_DELAY", "-1");
    // In a process group of its own the terminal's signals reach a run through this process, once.
    match view {
        View::Dashboard(_) => command.arg("--dashboard"),
        View::Plain => command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log),
        View::Screen(_) => command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log),
    };
    let mut child = command.spawn().context("starting a run")?;
    let label = job.config.label();
    let pass_on = |lines| {
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                // A reader that has gone is no reason to end the runs.
                let _ = print(&format!("{label}  {line}\n"));
            }
        })
    };
    let lines = child.stdout.take().map(pass_on);
    Ok(Worker { child, lines })
}

/// The log of a run, to be written to.
pub fn open_log(folder: &Path) -> Result<File> {
    let path = folder.join("log.txt");
    disk::open_to_append(&path).with_context(|| format!("{}: cannot be written", path.display()))
}

/// The process of a run, to be started.
pub fn worker(folder: &Path, config: &RunConfig) -> Result<Command> {
    let mut command = own_program()?;
    command.arg("worker").arg(folder).arg(config.to_toml()).arg("--command").arg(command_line());
    command.arg("--parent").arg(std::process::id().to_string());
    Ok(command)
}

/// The command as typed, but for the path of the program.
pub fn command_line() -> String {
    let quoted = |arg: String| if arg.contains([' ', '"', '\'', '$']) { format!("'{arg}'") } else { arg };
    std::iter::once("ablate".to_string())
        .chain(std::env::args_os().skip(1).map(|arg| quoted(arg.to_string_lossy().into_owned())))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Which runs have none, and why; nothing if all have.
fn without_result(jobs: &[Job]) -> String {
    let is_full = jobs.iter().any(|job| matches!(&job.progress, Progress::Failed(why) if why.is_disk));
    let without = jobs.iter().filter_map(|job| match &job.progress {
        Progress::Failed(why) => Some((job, why.message.as_str())),
        Progress::Waiting if is_full => Some((job, "not started: the disk is full")),
        Progress::Waiting => Some((job, "not started: stopped on request")),
        Progress::Stopped if is_full => Some((job, "stopped: the disk is full")),
        Progress::Stopped => Some((job, "stopped on request")),
        _ => None,
    });
    let lines: String = without.map(|(job, why)| format!("{:<24}  {why}\n", job.config.label())).collect();
    let begun = jobs.iter().filter(|job| job.is_stopped()).any(|job| job.folder.is_begun());
    let saved = if begun { "What was done is saved: the same command goes on.\n" } else { "" };
    if lines.is_empty() { lines } else { format!("Without a result:\n{lines}{saved}\n") }
}

/// Writes the report, and prints what was found and what failed.
fn report(jobs: &[Job], study_folder: &Path) -> Result<Comparison> {
    let report = Report::read(study_folder)?;
    let mut text = format!("\n{}\n", report.comparison.plain());
    text += &without_result(jobs);
    print(&text)?;
    report.write(study_folder)?;
    print(&format!("Report: {}\n", study_folder.join("report.html").display()))?;
    Ok(report.comparison)
}
