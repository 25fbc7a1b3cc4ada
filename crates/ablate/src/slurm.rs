//! A study on a cluster: a Slurm job array with one task a run, and a report behind it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use study::{RunState, Table, run_state};
use train::{BadFile, ConfigError, RunFolder, read_text, write_whole};

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
    /// Of each task.
    gpus: u32,
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
    /// An unknown key, or a value that sbatch could not take.
    fn read(file: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct File {
            #[serde(default)]
            slurm: Settings,
        }
        let wrong = |problem: String| ConfigError(format!("{}: [slurm]: {problem}", file.display()));
        let text = disk::read_small_text(file).map_err(|error| wrong(error.to_string()))?;
        let File { slurm } = toml::from_str(&text).map_err(|error| wrong(error.message().replace('\n', " ")))?;
        let is_word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
        for (key, value) in [("time", Some(&slurm.time)), ("partition", slurm.partition.as_ref())] {
            if value.is_some_and(|value| !is_word(value)) {
                return Err(wrong(format!("{key} must be one word")).into());
            }
        }
        if let Some(option) =
            slurm.options.iter().find(|option| !option.starts_with('-') || option.contains(char::is_control))
        {
            return Err(wrong(format!("options: {option:?} is none of sbatch's; write it as \"--account=lab\"")).into());
        }
        if slurm.cpus == 0 {
            return Err(wrong("cpus = 0: a task needs one".into()).into());
        }
        Ok(slurm)
    }
}

/// What was submitted: `slurm/jobs.json` in a study's folder.
#[derive(Debug, Serialize, Deserialize)]
struct Jobs {
    array: u64,
    after: u64,
}

/// Submits what is missing of a study, or prints how.
pub fn submit(args: &Submit) -> Result<u8> {
    let settings = Settings::read(&studies::find(&args.study.study)?)?;
    let mut plan = plan(&args.study)?;
    let out = std::path::absolute(&args.out).context("where the results go")?;
    let tasks = Tasks::of(&mut plan, &out)?;
    let missing = tasks.missing()?;
    if missing.is_empty() && !tasks.are_tuning {
        return print(&format!("{}: all {} runs are complete\n", plan.study.name, tasks.all.len()));
    }
    let scripts = Scripts {
        settings: &settings,
        tasks: &tasks,
        memory: plan.memory_bytes(),
        program: std::env::current_exe().context("where this program lies")?,
        here: std::env::current_dir().context("the folder that this is started in")?,
    };
    let (array, after) = (scripts.array(&missing), scripts.after());
    if args.dry_run {
        return print(&format!("{array}\n{after}"));
    }
    tasks.write()?;
    let folder = tasks.folder.join("slurm");
    fs::create_dir_all(&folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    let [array_file, after_file] = ["array.sh", "after.sh"].map(|name| folder.join(name));
    write_whole(&array_file, &array)?;
    write_whole(&after_file, &after)?;
    let array = sbatch(&array_file, &[])?;
    // However its runs end: what is missing is said in the report.
    let after = sbatch(&after_file, &[format!("--dependency=afterany:{array}")])?;
    write_whole(&folder.join("jobs.json"), &(serde_json::to_string(&Jobs { array, after })? + "\n"))?;
    let what = if tasks.are_tuning { "runs that choose learning rates; the study's own follow" } else { "runs" };
    print(&format!(
        "job {array}: {} {what}\njob {after}: {} when these have ended\n`ablate status {}` says how far they are\n",
        missing.len(),
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
    /// The options that both jobs have.
    fn head(&self, name: &str) -> String {
        let folder = self.tasks.folder.join("slurm");
        let study = self.tasks.folder.file_name().unwrap_or_default().to_string_lossy();
        let mut lines = vec![
            format!("--job-name=ablate-{study}{name}"),
            format!("--chdir={}", self.here.display()),
            format!("--output={}/{}", folder.display(), if name.is_empty() { "%A_%a.log" } else { "%j.log" }),
            "--open-mode=append".to_string(),
        ];
        lines.extend(self.settings.partition.iter().map(|partition| format!("--partition={partition}")));
        lines.extend(self.settings.options.iter().cloned());
        lines.iter().fold("#!/bin/bash\n".into(), |script, line| script + &format!("#SBATCH {}\n", quoted_option(line)))
    }

    /// The script of each task.
    fn array(&self, missing: &[usize]) -> String {
        let Settings { time, gpus, cpus, concurrency, requeue, signal_seconds, .. } = self.settings;
        let at_once = if *concurrency > 0 { format!("%{concurrency}") } else { String::new() };
        let mut script = self.head("");
        let mut option = |line: String| script += &format!("#SBATCH {line}\n");
        option(format!("--array={}{at_once}", ranges(missing)));
        option(format!("--time={time}"));
        option(format!("--cpus-per-task={cpus}"));
        if let Some(memory) = self.memory {
            // Half as much again as the estimate, for a task that takes more is ended.
            option(format!("--mem={}M", (1.5 * memory / f64::from(1 << 20)).ceil()));
        }
        option(format!("--signal=B:USR1@{signal_seconds}"));
        option(if *requeue { "--requeue" } else { "--no-requeue" }.into());
        if *gpus > 0 {
            option(format!("--gpus-per-task={gpus}"));
        }
        let requeues = if *requeue { "yes" } else { "" };
        let (program, file) = (quoted(&self.program), quoted(&self.tasks.file()));
        script
            + &format!(
                r#"
export RAYON_NUM_THREADS=$SLURM_CPUS_PER_TASK MIMALLOC_PURGE_DELAY=-1
{program} run --plan {file} &
run=$!
out_of_time=
# USR1 comes before the time is up, TERM when the task is preempted or cancelled: either way the run saves its state.
trap 'out_of_time={requeues}; kill -USR1 "$run"' USR1
trap 'kill -USR1 "$run"' TERM
# A signal ends `wait`, not the run.
while wait "$run"; code=$?; kill -0 "$run" 2> /dev/null; do :; done
case $code in
0 | 3) exit 0 ;; # done; or diverged, which is a result
75) [ -n "$out_of_time" ] && scontrol requeue "$SLURM_JOB_ID" && exit 0 ;; # goes on in the next
esac
exit "$code"
"#
            )
    }

    /// The script that runs when all tasks have ended.
    fn after(&self) -> String {
        let program = quoted(&self.program);
        let command = if self.tasks.are_tuning {
            // Now the learning rates can be chosen: the same command submits what comes next.
            let args = std::env::args_os().skip(1).filter(|arg| arg != "--dry-run").map(|arg| quoted(Path::new(&arg)));
            args.fold(program, |command, arg| format!("{command} {arg}"))
        } else {
            format!("{program} report {}", quoted(&self.tasks.folder))
        };
        format!("{}#SBATCH --time=00:10:00\n\nexec {command}\n", self.head("-report"))
    }
}

/// An option in a comment of a script, where Slurm takes spaces for the end of it.
fn quoted_option(option: &str) -> String {
    if option.contains([' ', '"']) { format!("\"{}\"", option.replace('"', "\\\"")) } else { option.into() }
}

/// A word of a shell's command.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
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
    let jobs_file = folder.join("slurm/jobs.json");
    let jobs: Option<Jobs> = match jobs_file.exists() {
        true => Some(
            serde_json::from_str(&read_text(&jobs_file)?)
                .map_err(|error| BadFile::new(&jobs_file, error.to_string()))?,
        ),
        false => None,
    };
    let queue = jobs.as_ref().map(|jobs| queue(jobs.array)).unwrap_or_default();
    let mut table = Table::new(&["run", "state", "step", "queue"]);
    let mut n_ended = 0;
    for task in &tasks {
        let run = RunFolder::new(folder.join(&task.run));
        let (state, step) = run_state(&run);
        n_ended += usize::from(matches!(state, Some(RunState::Done | RunState::Diverged)));
        table.rows.push(vec![
            task.run.display().to_string(),
            state.map_or("not started", Into::into).into(),
            format!("{step}/{}", task.config.train.steps),
            queue.get(&task.index.to_string()).cloned().unwrap_or_else(|| "-".into()),
        ]);
    }
    print(&table.plain())?;
    let after = jobs.map(|jobs| (jobs.after, self::queue(jobs.after).into_values().next()));
    let report = match after {
        Some((job, Some(state))) => format!("; the report, job {job}, is {state}"),
        _ => String::new(),
    };
    print(&format!("{n_ended} of {} runs have ended{report}\n", tasks.len()))
}

/// What Slurm says of the tasks of a job, by their numbers; nothing of those that have left its queue.
fn queue(job: u64) -> BTreeMap<String, String> {
    let format = "--Format=ArrayTaskID:32,StateCompact:16,Reason:64";
    let output = Command::new("squeue").args(["--noheader", "--array", format, &format!("--jobs={job}")]).output();
    let Ok(output) = output else { return BTreeMap::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (number, state) = (words.next()?, words.next()?);
        let why = words.collect::<Vec<_>>().join(" ");
        let state = if why.is_empty() || why == "None" { state.to_string() } else { format!("{state} ({why})") };
        Some((number.to_string(), state))
    };
    text.lines().filter_map(line).collect()
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
            ("time = \"1\\n#SBATCH --uid=0\"", "time must be one word"),
            ("options = [\"--x\\nrm\"]", "is none of sbatch's"),
        ] {
            let error = read(&format!("[slurm]\n{text}")).unwrap_err();
            assert!(error.contains(part) && error.contains("study.toml: [slurm]: "), "{error}");
        }
    }
}
