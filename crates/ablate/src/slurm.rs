//! A study on a cluster: a Slurm job array with one task a run, and a report behind it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use study::{RunState, Table, run_state};
use toml::de::{DeTable, ValueDeserializer};
use train::format::{Record, from_json, stamped};
use train::{BadFile, ConfigError, RunFolder, is_there, read_text, write_whole};

use crate::cli::Submit;
use crate::tasks::{Tasks, planned};
use crate::{plan, print, studies};

/// The table `[slurm]` of a study file.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// Longest time of a task, as Slurm writes it: [days-]hours:minutes:seconds. A run that needs longer goes on in the next.
    time: String,
    partition: Option<String>,
    /// GPUs of each task.
    gpus: u32,
    /// Cores of each task, and threads that it computes with.
    cpus: u32,
    /// Tasks at a time; 0: as many as the cluster gives.
    concurrency: u32,
    /// Whether a task that was preempted, or came to the end of its time, is queued again.
    requeue: bool,
    /// Seconds before the end of its time at which a task is told, so that it can save.
    signal_seconds: u32,
    /// Further options of sbatch, as ["--account=lab"].
    options: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            time: "01:00:00".into(),
            partition: None,
            gpus: 0,
            cpus: 1,
            concurrency: 0,
            requeue: true,
            signal_seconds: 60,
            options: vec![],
        }
    }
}

impl Settings {
    /// That of a study file, or the defaults.
    ///
    /// # Errors
    /// An unknown key, or a value that sbatch could not take, with its line.
    fn read(file: &Path) -> Result<Self> {
        let shown = file.display();
        let text = disk::read_small_text(file);
        let text = text.map_err(|error| ConfigError(format!("{shown}: cannot be read: {error}")))?;
        let line = |offset: usize| 1 + text[..offset.min(text.len())].matches('\n').count();
        let document = DeTable::parse(&text).map_err(|error| {
            let at = error.span().map_or(1, |span| line(span.start));
            ConfigError(format!("{shown}:{at}: {}", error.message().replace('\n', " ")))
        })?;
        let Some((name, value)) = document.get_ref().iter().find(|(key, _)| key.get_ref() == "slurm") else {
            return Ok(Settings::default());
        };
        let start = name.span().start;
        let Some(table) = value.get_ref().as_table() else {
            let problem = format!("{shown}:{}: slurm is a section: write [slurm] and its keys", line(start));
            return Err(ConfigError(problem).into());
        };
        let wrong = |key: &str, problem: String| {
            let own = table.iter().find(|(own, _)| own.get_ref() == key);
            ConfigError(format!("{shown}:{}: [slurm]: {problem}", line(own.map_or(start, |(own, _)| own.span().start))))
        };
        let mut all = toml::Table::new();
        for (key, value) in table.iter() {
            let key = key.get_ref().to_string();
            let said = |error: toml::de::Error| error.message().replace('\n', " ");
            let value = toml::Value::deserialize(ValueDeserializer::from(value.clone()))
                .map_err(|error| wrong(&key, format!("{key}: {}", said(error))))?;
            // By itself, so that what is wrong with it is said with its name.
            Settings::deserialize(toml::Table::from_iter([(key.clone(), value.clone())]))
                .map_err(|error| wrong(&key, format!("{key} = {value}: {}", said(error))))?;
            all.insert(key, value);
        }
        let slurm = Settings::deserialize(all).expect("each of its keys has been read");
        slurm.check().map_err(|(key, problem)| wrong(key, problem))?;
        Ok(slurm)
    }

    /// What sbatch could not take: the key, and the problem in words.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let is_word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
        for (key, value) in [("time", Some(&self.time)), ("partition", self.partition.as_ref())] {
            if let Some(value) = value.filter(|value| !is_word(value)) {
                return Err((key, format!("{key} = {value:?}: must be one word")));
            }
        }
        if let Some(option) =
            self.options.iter().find(|option| !option.starts_with('-') || option.contains(char::is_control))
        {
            let problem = format!("options: {option:?} is none of sbatch's; write it as \"--account=lab\"");
            return Err(("options", problem));
        }
        if let Some(option) = self.options.iter().find(|option| OWNED.iter().any(|owned| is_option(option, owned))) {
            return Err(("options", format!("options: {option:?} is for the program to set")));
        }
        // Slurm may be a minute early.
        let least = u64::from(self.signal_seconds) + 120;
        match seconds(&self.time) {
            None => return Err(("time", format!("time = {:?}: must be [days-]hours:minutes:seconds", self.time))),
            Some(time) if self.requeue && time < least => {
                let problem =
                    format!("time = {:?}: leaves a task no time to train; {least} seconds are the least", self.time);
                return Err(("time", problem));
            }
            Some(_) => {}
        }
        if self.cpus == 0 {
            return Err(("cpus", "cpus = 0: a task needs one".into()));
        }
        Ok(())
    }
}

/// Options that say what the jobs are.
const OWNED: [&str; 7] = ["--array", "--signal", "--output", "--wrap", "--parsable", "--test-only", "--chdir"];

/// Options that say who asks, which the job of the report needs too.
const WHO: [&str; 7] = ["--account", "-A", "--qos", "-q", "--reservation", "--clusters", "-M"];

fn is_option(text: &str, name: &str) -> bool {
    text.split(['=', ' ']).next() == Some(name)
}

/// What was submitted: `slurm/jobs.json` in a study's folder.
#[derive(Debug, Serialize, Deserialize)]
struct Jobs {
    array: u64,
    /// The job behind it, once it is submitted.
    after: Option<u64>,
}

impl Jobs {
    fn path(folder: &Path) -> PathBuf {
        folder.join("slurm/jobs.json")
    }

    fn read(folder: &Path) -> Result<Option<Self>> {
        let path = Jobs::path(folder);
        if !is_there(&path)? {
            return Ok(None);
        }
        Ok(Some(from_json(Record::Jobs, &path, &read_text(&path)?)?))
    }

    fn write(&self, folder: &Path) -> Result<()> {
        write_whole(&Jobs::path(folder), &(serde_json::to_string(&stamped(self))? + "\n"))
    }
}

/// Refuses to change a plan whose tasks Slurm has in its queue: they are started by their numbers.
///
/// # Errors
/// [`Queued`], or a damaged file.
pub fn refuse_if_queued(folder: &Path) -> Result<()> {
    let Some(Jobs { array, .. }) = Jobs::read(folder)? else { return Ok(()) };
    // Who cannot ask the queue has none here.
    match queue(array) {
        Some(tasks) if !tasks.is_empty() => Err(Queued { folder: folder.into(), job: array, n: tasks.len() }.into()),
        _ => Ok(()),
    }
}

/// Tasks of a study are in Slurm's queue.
#[derive(Debug, thiserror::Error)]
#[error("{}: {n} tasks of job {job} are in the queue; wait for them, or `scancel {job}` first", folder.display())]
pub struct Queued {
    folder: PathBuf,
    job: u64,
    n: usize,
}

/// Submits what is missing of a study, or prints how.
///
/// # Errors
/// A study that cannot be planned, tasks in the queue, a Slurm that refuses.
pub fn submit(args: &Submit) -> Result<u8> {
    let settings = Settings::read(&studies::find(&args.study.study)?)?;
    let mut plan = plan(&args.study)?;
    let out = std::path::absolute(&args.out).context("where the results go")?;
    let mut tasks = Tasks::of(&mut plan, &out)?;
    if tasks.missing.is_empty() {
        if !args.dry_run {
            // Some may be complete where they were set aside.
            refuse_if_queued(&tasks.folder)?;
            tasks.write()?;
        }
        return print(&format!("{}: all {} runs are complete\n", plan.study.name, tasks.all.len()));
    }
    if args.after_tuning && tasks.are_tuning {
        // To submit them once more, and again when they fail again, would have no end.
        let runs = tasks.missing.iter().map(|&index| tasks.all[index].run.display().to_string());
        print(&format!(
            "Learning rates cannot be chosen; without a result: {}\n",
            runs.collect::<Vec<_>>().join(", ")
        ))?;
        return Ok(1);
    }
    let scripts = Scripts {
        settings: &settings,
        tasks: &tasks,
        memory: plan.memory_bytes(),
        program: std::env::current_exe().context("where this program lies")?,
        here: std::env::current_dir().context("the folder that this is started in")?,
    };
    let (array, after) = (scripts.array()?, scripts.after()?);
    if args.dry_run {
        return print(&format!("{array}\n{after}"));
    }
    // The job behind an array submits what is next.
    if !args.after_tuning {
        refuse_if_queued(&tasks.folder)?;
    }
    tasks.write()?;
    let folder = tasks.folder.join("slurm");
    fs::create_dir_all(&folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    let [array_file, after_file] = ["array.sh", "after.sh"].map(|name| folder.join(name));
    write_whole(&array_file, &array)?;
    write_whole(&after_file, &after)?;
    let array = sbatch(&array_file, &[])?;
    Jobs { array, after: None }.write(&tasks.folder)?;
    // However its runs end: what is missing is said in the report.
    let after = sbatch(&after_file, &[format!("--dependency=afterany:{array}")])?;
    Jobs { array, after: Some(after) }.write(&tasks.folder)?;
    let what = if tasks.are_tuning { "runs that choose learning rates; the study's own follow" } else { "runs" };
    print(&format!(
        "job {array}: {} {what}\njob {after}: {} when these have ended\n`ablate status {}` says how far they are\n",
        tasks.missing.len(),
        if tasks.are_tuning { "submits what is next" } else { "the report" },
        plan.study.name
    ))
}

/// The number of the job that a script became.
fn sbatch(script: &Path, options: &[String]) -> Result<u64> {
    let output = Command::new("sbatch").arg("--parsable").args(options).arg(script).stdin(Stdio::null()).output();
    let output = output.map_err(|error| ConfigError(format!("sbatch cannot be started ({error}): is Slurm here?")))?;
    let said = String::from_utf8_lossy(&output.stdout);
    // With several clusters the number comes before the name of one.
    match said.trim().split(';').next().unwrap_or_default().parse() {
        Ok(job) if output.status.success() => Ok(job),
        _ if output.status.success() => bail!("sbatch printed {said:?}, which is no number of a job"),
        _ => bail!(
            "sbatch refused {}: {}",
            script.display(),
            String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")
        ),
    }
}

struct Scripts<'a> {
    settings: &'a Settings,
    tasks: &'a Tasks,
    /// Bytes of memory of a run, where they are known.
    memory: Option<f64>,
    program: PathBuf,
    here: PathBuf,
}

impl Scripts<'_> {
    /// A script with these options and those that both jobs have; the study's own come last, for the last counts.
    fn script(&self, name: &str, options: Vec<String>, body: &str) -> Result<String> {
        // Slurm puts numbers in place of what follows a percent sign.
        let logs = self.tasks.folder.join("slurm").display().to_string().replace('%', "%%");
        let study = self.tasks.folder.file_name().unwrap_or_default().to_string_lossy();
        let mut all = vec![
            format!("--job-name=ablate-{study}{name}"),
            format!("--chdir={}", self.here.display()),
            format!("--output={logs}/{}", if name.is_empty() { "%A_%a.log" } else { "%j.log" }),
            "--open-mode=append".to_string(),
        ];
        all.extend(self.settings.partition.iter().map(|partition| format!("--partition={partition}")));
        all.extend(options);
        let is_for_it = |option: &&String| name.is_empty() || WHO.iter().any(|who| is_option(option, who));
        all.extend(self.settings.options.iter().filter(is_for_it).cloned());
        let mut script = "#!/bin/bash\n".to_string();
        for option in all {
            if option.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER) {
                return Err(ConfigError(format!("{option:?}: sbatch takes no such name")).into());
            }
            script += &format!("#SBATCH {}\n", quoted_option(&option));
        }
        Ok(script + body)
    }

    /// The script of each task.
    fn array(&self) -> Result<String> {
        let Settings { time, gpus, cpus, concurrency, requeue, signal_seconds, .. } = self.settings;
        let at_once = if *concurrency > 0 { format!("%{concurrency}") } else { String::new() };
        let mut options = vec![
            format!("--array={}{at_once}", ranges(&self.tasks.missing)),
            format!("--time={time}"),
            "--ntasks=1".to_string(),
            format!("--cpus-per-task={cpus}"),
            format!("--signal=B:USR1@{signal_seconds}"),
            if *requeue { "--requeue" } else { "--no-requeue" }.to_string(),
        ];
        if let Some(memory) = self.memory {
            // Half as much again as the estimate, for a task that takes more is ended.
            options.push(format!("--mem={}M", (1.5 * memory / f64::from(1 << 20)).ceil()));
        }
        if *gpus > 0 {
            options.push(format!("--gpus={gpus}"));
        }
        let requeues = if *requeue { "yes" } else { "" };
        let (program, file) = (quoted(&self.program), quoted(&self.tasks.file()));
        let body = format!(
            r#"
export RAYON_NUM_THREADS=$SLURM_CPUS_PER_TASK MIMALLOC_PURGE_DELAY=-1
out_of_time=
run=
# USR1 comes before the time is up, TERM when the task is preempted or cancelled: either way the run saves its state.
trap 'out_of_time={requeues}; [ -z "$run" ] || kill -USR1 "$run"' USR1
trap '[ -z "$run" ] || kill -USR1 "$run"' TERM
{program} run --plan {file} &
run=$!
# A signal ends `wait`, not the run; its code is there once it has ended.
while kill -0 "$run" 2> /dev/null; do wait "$run"; done
wait "$run"
code=$?
case $code in
0 | 3) exit 0 ;; # done; or diverged, which is a result
75) [ -n "$out_of_time" ] && scontrol requeue "$SLURM_JOB_ID" && exit 0 ;; # goes on in the next
esac
exit "$code"
"#
        );
        self.script("", options, &body)
    }

    /// The script that runs when all tasks have ended.
    fn after(&self) -> Result<String> {
        let program = quoted(&self.program);
        let command = if self.tasks.are_tuning {
            // Now the learning rates can be chosen: the same command submits what comes next.
            let ours = |arg: &std::ffi::OsString| arg == "--dry-run" || arg == "--after-tuning";
            let args = std::env::args_os().skip(1).filter(|arg| !ours(arg)).map(|arg| quoted(Path::new(&arg)));
            args.fold(program, |command, arg| format!("{command} {arg}")) + " --after-tuning"
        } else {
            format!("{program} report {}", quoted(&self.tasks.folder))
        };
        self.script("-report", vec!["--time=00:10:00".into()], &format!("\nexec {command}\n"))
    }
}

/// An option in a comment of a script, whole whatever is in it.
fn quoted_option(option: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:@%+".contains(c);
    if option.chars().all(is_plain) {
        return option.into();
    }
    format!("\"{}\"", option.replace('\\', r"\\").replace('"', "\\\""))
}

/// A word of a shell's command.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// A time as Slurm writes it: minutes, minutes:seconds, hours:minutes:seconds, and those with days before.
fn seconds(time: &str) -> Option<u64> {
    let (days, rest) = match time.split_once('-') {
        Some((days, rest)) => (Some(days.parse::<u64>().ok()?), rest),
        None => (None, time),
    };
    let parts: Vec<u64> = rest.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [hours, minutes, seconds] = match (days, &parts[..]) {
        (_, &[hours, minutes, seconds]) => [hours, minutes, seconds],
        (Some(_), &[hours, minutes]) => [hours, minutes, 0],
        (Some(_), &[hours]) => [hours, 0, 0],
        (None, &[minutes, seconds]) => [0, minutes, seconds],
        (None, &[minutes]) => [0, minutes, 0],
        _ => return None,
    };
    days.unwrap_or(0)
        .checked_mul(24)?
        .checked_add(hours)?
        .checked_mul(60)?
        .checked_add(minutes)?
        .checked_mul(60)?
        .checked_add(seconds)
}

/// Numbers in order, as Slurm writes them: `0-2,5`.
fn ranges(numbers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = vec![];
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text =
        |(first, last): (usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(",")
}

/// Prints how far each planned run is, and what the queue says of it.
pub fn status(folder: &Path) -> Result<u8> {
    let tasks = planned(folder)?;
    if tasks.is_empty() {
        let problem =
            "holds no plan; `ablate plan` and `ablate submit` write one, and `ablate list FOLDER` lists runs without";
        return Err(BadFile::new(folder, problem).into());
    }
    let jobs = Jobs::read(folder)?;
    let queued = |job: Option<u64>| job.map_or(Some(BTreeMap::new()), queue);
    let (queue, after) =
        (queued(jobs.as_ref().map(|jobs| jobs.array)), queued(jobs.as_ref().and_then(|jobs| jobs.after)));
    let mut table = Table::new(&["run", "state", "step", "queue"]);
    let mut n_ended = 0;
    for task in &tasks {
        let run = RunFolder::new(folder.join(&task.run));
        let (state, step) = run_state(&run);
        n_ended += usize::from(matches!(state, Some(RunState::Done | RunState::Diverged)));
        let steps = task.config(folder).map_or("?".into(), |config| config.train.steps.to_string());
        let of_queue = match &queue {
            // Nobody could be asked.
            None => "?".into(),
            Some(queue) => queue.get(&task.index.to_string()).cloned().unwrap_or_else(|| "-".into()),
        };
        table.rows.push(vec![
            task.run.display().to_string(),
            state.map_or("not started", Into::into).into(),
            format!("{step}/{steps}"),
            of_queue,
        ]);
    }
    print(&table.plain())?;
    let report = match after.unwrap_or_default().into_values().next() {
        Some(state) => format!("; the job behind them is {state}"),
        None => String::new(),
    };
    print(&format!("{n_ended} of {} runs have ended{report}\n", tasks.len()))
}

/// What Slurm says of the tasks of a job, by their numbers; nothing of those that have left its queue. `None` if it cannot be asked.
fn queue(job: u64) -> Option<BTreeMap<String, String>> {
    let format = "--Format=ArrayTaskID:32,StateCompact:16,Reason:64";
    let output =
        Command::new("squeue").args(["--noheader", "--array", format, &format!("--jobs={job}")]).output().ok()?;
    // A job that has left long ago is one that Slurm does not know any more.
    let is_unknown = String::from_utf8_lossy(&output.stderr).contains("Invalid job id");
    if !output.status.success() && !is_unknown {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (number, state) = (words.next()?, words.next()?);
        let why = words.collect::<Vec<_>>().join(" ");
        let state = if why.is_empty() || why == "None" { state.to_string() } else { format!("{state} ({why})") };
        Some((number.to_string(), state))
    };
    Some(text.lines().filter_map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn times_are_read_as_slurm_does() {
        let times = ["90", "90:30", "1:02:03", "2-1", "2-1:30", "2-1:30:05"].map(|time| seconds(time).unwrap());
        assert_eq!(times, [5400, 5430, 3723, 176_400, 178_200, 178_205]);
        assert!(["", "1h", "1:2:3:4", "-1", "99999999999999999999"].iter().all(|time| seconds(time).is_none()));
    }

    #[test]
    fn an_option_stays_one_word() {
        assert_eq!(quoted_option("--time=01:00:00"), "--time=01:00:00");
        assert_eq!(quoted_option(r#"--chdir=/a b/o'c"d\e#f"#), r#""--chdir=/a b/o'c\"d\\e#f""#);
    }

    #[test]
    fn settings_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("study.toml");
        let read = |text: &str| {
            fs::write(&file, text).unwrap();
            Settings::read(&file).map_err(|error| error.to_string())
        };
        assert_eq!(read("").unwrap(), Settings::default());
        let settings = read("[slurm]\ncpus = 4\noptions = [\"--account=lab\"]").unwrap();
        assert_eq!((settings.cpus, settings.options), (4, vec!["--account=lab".to_string()]));
        for (text, part) in [
            ("cpu = 4", "unknown field `cpu`"),
            ("cpus = 0", "a task needs one"),
            ("options = [\"--array=1\"]", "is for the program to set"),
            ("time = \"1\\n#SBATCH --uid=0\"", "time = \"1\\n#SBATCH --uid=0\": must be one word"),
            ("time = 5", "time = 5: invalid type: integer `5`, expected a string"),
            ("cpus = -1", "cpus = -1: invalid value: integer `-1`, expected u32"),
            ("options = \"--x\"", "options = \"--x\": invalid type: string \"--x\", expected a sequence"),
            ("time = \"soon\"", "must be [days-]hours:minutes:seconds"),
            ("time = \"00:01:00\"", "180 seconds are the least"),
            ("options = [\"--x\\nrm\"]", "is none of sbatch's"),
        ] {
            let error = read(&format!("[slurm]\ngpus = 0\n{text}")).unwrap_err();
            assert!(error.contains(part) && error.contains("study.toml:3: [slurm]: "), "{error}");
        }
        // What is wrong with a default is wrong because of the section.
        assert!(
            read("\n[slurm]\nsignal_seconds = 9999")
                .unwrap_err()
                .contains("study.toml:2: [slurm]: time = \"01:00:00\"")
        );
        assert!(
            read("slurm = 3").unwrap_err().ends_with("study.toml:1: slurm is a section: write [slurm] and its keys")
        );
        assert!(read("\na = ").unwrap_err().contains("study.toml:2: "));
    }
}
