//! Studies that are killed, stopped, crowded out, and started twice.
//!
//! `ABLATE_KILLS` and `ABLATE_STOPS` say how often; the recipe `kill-loop` sets them high.

mod place;

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::NormKind;
use random::{below, stream};
use train::{RunFolder, first_difference};

use place::Place;

fn times(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |n| n.parse().expect("a number"))
}

fn program() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("ablate"))
}

impl Place {
    /// Starts a study in a process group of its own.
    fn start(&self, args: &[&str]) -> Child {
        let mut command = program();
        command.current_dir(self.dir.path()).args(args).arg("--plain").process_group(0);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn run_folder(&self, name: &str) -> PathBuf {
        self.path("runs/small").join(name)
    }

    /// Asserts that a run came out as that of the same study in `whole`, which nothing disturbed.
    fn check_same(&self, name: &str, whole: &str) {
        let (ours, theirs) = (self.run_folder(name), self.path(whole).join("small").join(name));
        check_same(&ours, &theirs, name);
    }
}

/// Asserts that two runs are equal but for the time they took.
fn check_same(ours: &Path, theirs: &Path, what: &str) {
    let difference = first_difference(&RunFolder::new(ours), &RunFolder::new(theirs)).unwrap();
    assert_eq!(difference, None, "{what}");
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: it takes too long");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn n_lines(run: &Path) -> usize {
    fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default().lines().count()
}

fn send(signal: &str, target: impl ToString) {
    Command::new("kill").args([signal, "--", &target.to_string()]).status().unwrap();
}

/// The processes of a study's runs.
fn workers(study: &Child) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{}/task", study.id())).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    children.flat_map(|line| line.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

#[test]
fn a_run_that_is_killed_again_and_again_ends_with_the_same_bits() {
    let place = Place::new();
    let study = place::STUDY.replace("n_kv_heads = 2", "n_kv_heads = 1\nnorm = \"dyt\"\ndropout = 0.2");
    fs::write(place.path("experiments/small.toml"), study).unwrap();
    let of_study = ["small", "--seeds", "1", "--steps", "60", "--set", "train.grad_accum_steps=2"];
    place.ok(&[&of_study[..], &["--set", "checkpoint.every=3"]].concat());
    let whole = RunFolder::new(place.run_folder("swiglu/seed-0"));
    let config = whole.config().unwrap();
    assert_eq!((config.train.grad_accum_steps, config.model.dropout, config.model.n_kv_heads), (2, 0.2, 1));
    assert_eq!((config.model.norm, config.checkpoint.every), (NormKind::Dyt, 3));
    let text = config.to_toml();
    let (n_kills, mut kills, mut runs) = (times("ABLATE_KILLS", 12), 0, 0);
    let mut rng = stream(0, "kills");
    // Kills fall all over a run; the first runs show how long one takes here.
    let mut whole_time = Duration::from_millis(400);
    while kills < n_kills {
        let run = place.path(&format!("killed-{runs}"));
        let threads = 1 + runs % 2;
        loop {
            let mut worker = program();
            worker.current_dir(place.dir.path()).arg("worker").arg(&run).args([&text, "--command", "test"]);
            let start = Instant::now();
            let mut worker =
                worker.env("RAYON_NUM_THREADS", threads.to_string()).stdout(Stdio::null()).spawn().unwrap();
            let after = Duration::from_micros(below(&mut rng, whole_time.as_micros() as u64));
            let ended = loop {
                match worker.try_wait().unwrap() {
                    Some(ended) => break ended,
                    None if start.elapsed() >= after && kills < n_kills => {
                        worker.kill().unwrap();
                        break worker.wait().unwrap();
                    }
                    None => std::thread::sleep(Duration::from_micros(200)),
                }
            };
            if ended.signal() != Some(9) {
                assert_eq!(ended.code(), Some(0));
                whole_time = (whole_time + start.elapsed()) / 2;
                break;
            }
            kills += 1;
        }
        check_same(&run, &whole.path, &format!("{kills} kills, {threads} threads"));
        fs::remove_dir_all(&run).unwrap();
        runs += 1;
    }
    println!("{kills} kills in {runs} runs");
}

/// Starts a long study, sends a signal once it trains, and expects it to stop in good order and to go on.
fn check_stop(target: impl Fn(u32) -> String, signal: &str) {
    let place = Place::new();
    let args = ["small", "--seeds", "1", "--steps", "3000"];
    place.ok(&[&args[..], &["--out", "whole"]].concat());
    let mut study = place.start(&args);
    let run = place.run_folder("baseline/seed-0");
    wait_for("the run starts", || n_lines(&run) >= 5);
    send(signal, target(study.id()));
    assert_eq!(study.wait().unwrap().code(), Some(75));
    let status = fs::read_to_string(run.join("status.json")).unwrap();
    assert!(status.contains("\"stopped\""), "{status}");
    assert!(place.ok(&args).contains("2 runs, 2 to do"));
    let meta = fs::read_to_string(run.join("meta.json")).unwrap();
    assert!(meta.contains("\"resumed\""), "{meta}");
    place.check_same("baseline/seed-0", "whole");
    place.check_same("swiglu/seed-0", "whole");
}

#[test]
fn a_termination_signal_stops_a_study_in_good_order() {
    check_stop(|pid| pid.to_string(), "-TERM");
}

#[test]
fn an_interrupt_from_the_terminal_stops_a_study_in_good_order() {
    check_stop(|pid| format!("-{pid}"), "-INT");
}

#[test]
fn usr1_stops_a_study_in_good_order() {
    check_stop(|pid| pid.to_string(), "-USR1");
}

#[test]
fn a_stop_at_any_moment_loses_nothing() {
    let place = Place::new();
    // Most of the time goes into evaluations and checkpoints.
    let text: String = (0..30_000).map(|i| format!("line {} of a text; ", i * i % 97)).collect();
    fs::write(place.path("text.txt"), text).unwrap();
    let args = ["small", "--seeds", "1", "--set", "train.eval_every=2", "--set", "checkpoint.every=1"];
    let start = Instant::now();
    place.ok(&[&args[..], &["--out", "whole"]].concat());
    let whole_time = start.elapsed().as_micros() as u64;
    let mut rng = stream(0, "stops");
    let n_stops = times("ABLATE_STOPS", 6);
    let mut stopped = 0;
    while stopped < n_stops {
        let mut study = place.start(&args);
        std::thread::sleep(Duration::from_micros(below(&mut rng, whole_time)));
        send("-TERM", study.id());
        let ended = study.wait().unwrap();
        match (ended.code(), ended.signal()) {
            (Some(0), _) => {
                place.check_same("baseline/seed-0", "whole");
                place.check_same("swiglu/seed-0", "whole");
                fs::remove_dir_all(place.path("runs")).unwrap();
            }
            (Some(75), _) => stopped += 1,
            // Before it listens, a signal ends it as any program.
            (None, Some(15)) => {}
            other => panic!("{other:?}"),
        }
    }
    place.ok(&args);
    place.check_same("baseline/seed-0", "whole");
    place.check_same("swiglu/seed-0", "whole");
}

#[test]
fn a_second_signal_ends_a_study_at_once() {
    let place = Place::new();
    // A step takes seconds.
    let args = ["small", "--set", "model.d_model=768", "--set", "model.n_layers=8", "--set", "train.batch_size=256"];
    let mut study = place.start(&args);
    wait_for("its runs start", || place.run_folder("baseline/seed-0").join("meta.json").exists());
    let runs = workers(&study);
    assert!(!runs.is_empty());
    // They are in their first step.
    std::thread::sleep(Duration::from_secs(3));
    send("-TERM", study.id());
    // What comes within a second is the same signal.
    std::thread::sleep(Duration::from_millis(300));
    send("-TERM", study.id());
    std::thread::sleep(Duration::from_millis(1000));
    assert!(study.try_wait().unwrap().is_none(), "two signals that are one end nothing");
    let start = Instant::now();
    send("-TERM", study.id());
    assert_eq!(study.wait().unwrap().code(), Some(75));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    for run in runs {
        wait_for("its runs end", || !Path::new(&format!("/proc/{run}")).exists());
    }
}

/// `timeout` signals the study and then its process group: the second signal is not a second request.
#[test]
fn a_study_under_timeout_saves_its_state() {
    let place = Place::new();
    for i in 0..4 {
        let out = format!("out-{i}");
        let mut command = Command::new("timeout");
        command.args(["--preserve-status", "-s", "TERM", "2"]).arg(assert_cmd::cargo::cargo_bin!("ablate"));
        command.args(["small", "--seeds", "1", "--steps", "1000000", "--plain", "--out", &out]);
        command.args(["--set", "checkpoint.every=500000"]).current_dir(place.dir.path());
        let Ok(output) = command.output() else {
            println!("skipped: there is no program `timeout` here");
            return;
        };
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        for run in ["baseline/seed-0", "swiglu/seed-0"] {
            let status = RunFolder::new(place.path(&out).join("small").join(run)).status().unwrap();
            let step = status.map_or(0, |status| status.step);
            assert!(step > 10, "{run} was stopped at step {step}");
        }
    }
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_in_words() {
    let place = Place::new();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 20; exec \"$0\" small --seeds 1 --plain --steps 400"]);
    let output = shell.arg(assert_cmd::cargo::cargo_bin!("ablate")).current_dir(place.dir.path()).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(6), "{text}");
    assert!(text.contains("metrics.jsonl: cannot be written: File too large"), "{text}");
}

#[test]
fn a_run_that_crashes_is_started_again_once() {
    let place = Place::new();
    let args = ["small", "--seeds", "1", "--steps", "6000", "--set", "checkpoint.every=100", "--jobs", "1"];
    place.ok(&[&args[..], &["--out", "whole"]].concat());
    let crash = |times: usize| {
        let study = place.start(&args);
        let run = place.run_folder("baseline/seed-0");
        for n in 0..times {
            wait_for("the run is on its way", || n_lines(&run) > 150 * (n + 1) && !workers(&study).is_empty());
            let of_now = workers(&study);
            of_now.iter().for_each(|worker| send("-KILL", worker));
            wait_for("another process", || workers(&study) != of_now);
        }
        let output = study.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, errors) = crash(1);
    assert!(code == Some(0) && errors.contains("baseline/seed-0: its process was ended (signal: 9"), "{errors}");
    place.check_same("baseline/seed-0", "whole");
    fs::remove_dir_all(place.path("runs")).unwrap();
    let (code, errors) = crash(2);
    assert_eq!(code, Some(1), "{errors}");
    let report = fs::read_to_string(place.path("runs/small/report.md")).unwrap();
    assert!(report.contains("baseline: 1 run has no result"), "{report}");
    place.check_same("swiglu/seed-0", "whole");
    place.ok(&args);
    place.check_same("baseline/seed-0", "whole");
}

#[test]
fn of_two_that_start_at_once_one_wins() {
    let place = Place::new();
    let mut first = place.start(&["small", "--steps", "100000"]);
    wait_for("its runs start", || n_lines(&place.run_folder("baseline/seed-0")) > 0);
    let refused = format!("runs/small: another process (process {} on ", first.id());
    place.fails(&["small", "--steps", "100000"], 4, &refused);
    first.kill().unwrap();
    first.wait().unwrap();
    // The runs of a study that was killed save their state before others can have it.
    place.ok(&["small", "--steps", "12", "--out", "other"]);
    let mut again = place.start(&["small", "--steps", "100000"]);
    wait_for("the run goes on", || {
        fs::read_to_string(place.run_folder("baseline/seed-0/meta.json")).unwrap().contains("\"resumed\"")
    });
    send("-TERM", again.id());
    assert_eq!(again.wait().unwrap().code(), Some(75));
}

#[test]
fn a_run_that_two_tasks_want_is_trained_once() {
    let place = Place::new();
    place.ok(&["plan", "small", "--seeds", "1", "--steps", "3000"]);
    let task = || {
        let mut task = program();
        task.current_dir(place.dir.path()).args(["run", "--plan", "runs/small/plan.jsonl", "--index", "0"]);
        task.stdout(Stdio::null()).spawn().unwrap()
    };
    let mut first = task();
    let run = place.run_folder("baseline/seed-0");
    wait_for("the run starts", || n_lines(&run) > 5);
    let mut second = task();
    assert_eq!([first.wait().unwrap().code(), second.wait().unwrap().code()], [Some(0), Some(0)]);
    let log = fs::read_to_string(run.join("log.txt")).unwrap();
    assert_eq!(log.matches("train::run: starts").count(), 1, "{log}");
}

#[test]
fn a_half_finished_run_is_not_continued_as_another() {
    let place = Place::new();
    let mut study = place.start(&["small", "--seeds", "1", "--steps", "100000"]);
    wait_for("the run starts", || n_lines(&place.run_folder("baseline/seed-0")) > 5);
    send("-TERM", study.id());
    assert_eq!(study.wait().unwrap().code(), Some(75));
    let before = fs::read(place.run_folder("baseline/seed-0/metrics.jsonl")).unwrap();
    let check = |set: &str, part: &str| {
        let args = ["small", "--seeds", "1", "--steps", "100000", "--set", set];
        place.fails(&args, 4, &format!("holds a half-finished run of another configuration ({part}"));
    };
    check(
        "train.lr=0.1",
        "train.lr = 0.003, now 0.1); finish it with its original command (in meta.json), choose another --out, or move it away",
    );
    check("data.tokenizer=byte", "data.tokenizer = \"char\", now \"byte\"; another tokenizer; vocab_size = ");
    place.fails(
        &["small", "--seeds", "1", "--steps", "100000", "--backend", "ndarray"],
        4,
        "(backend = \"flex\", now \"ndarray\")",
    );
    // With the same rates more steps are the same run.
    place.fails(&["small", "--seeds", "1", "--steps", "200000"], 4, "train.steps = 100000, now 200000");
    assert_eq!(fs::read(place.run_folder("baseline/seed-0/metrics.jsonl")).unwrap(), before);
}

#[test]
fn a_full_disk_stops_a_study_which_goes_on_when_there_is_space() {
    let place = Place::new();
    let small = place.path("small-disk");
    fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=3m", "none"]).arg(&small).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        println!("skipped: a small disk cannot be mounted here");
        return;
    }
    let tried = std::panic::catch_unwind(|| {
        let args = ["small", "--seeds", "1", "--steps", "4000", "--set", "checkpoint.every=100"];
        place.ok(&[&args[..], &["--out", "whole"]].concat());
        let on_small = [&args[..], &["--out", "small-disk"]].concat();
        place.fails(&["small", "--steps", "50000", "--out", "small-disk"], 6, "the runs need about ");
        let study = place.start(&on_small);
        let run = small.join("small/baseline/seed-0");
        wait_for("a checkpoint", || n_lines(&run) >= 200);
        let filler = small.join("filler");
        // Until nothing more goes in.
        let _ = fs::write(&filler, vec![0; 1 << 22]);
        let output = study.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(6), "{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(!said.contains("on request"), "nobody asked for a stop: {said}");
        fs::remove_file(filler).unwrap();
        place.ok(&on_small);
        let meta = fs::read_to_string(run.join("meta.json")).unwrap();
        assert!(meta.contains("\"resumed\""), "{meta}");
        check_same(&run, &place.path("whole/small/baseline/seed-0"), "after a full disk");
    });
    Command::new("umount").arg("--lazy").arg(&small).status().unwrap();
    tried.unwrap();
}

#[test]
fn what_a_finished_run_wrote_is_checked() {
    let place = Place::new();
    place.ok(&["small", "--seeds", "1"]);
    let check = |file: &str, args: &[&str], change: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let path = place.run_folder("baseline/seed-0").join(file);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, change(whole.clone())).unwrap();
        place.fails(args, 5, &format!("{file}: is damaged: it is not "));
        fs::write(&path, whole).unwrap();
    };
    let study = ["small", "--seeds", "1"];
    let better = |text: Vec<u8>| String::from_utf8(text).unwrap().replacen("\"loss\":3", "\"loss\":2", 1).into_bytes();
    check("metrics.jsonl", &["report", "small"], &better);
    let shorter = |bytes: Vec<u8>| bytes[..bytes.len() / 2].to_vec();
    check("checkpoints/final/model.safetensors", &["sample", "runs/small/baseline/seed-0"], &shorter);
    check("tokenizer.json", &["rerun", "runs/small/baseline/seed-0", "--verify"], &|_| b"x".to_vec());
    place.ok(&study);
}

#[test]
fn what_is_in_the_way_of_a_half_finished_run_is_named_or_passed() {
    let place = Place::new();
    let args = ["small", "--seeds", "1", "--steps", "600", "--set", "checkpoint.every=20"];
    place.ok(&[&args[..], &["--out", "whole"]].concat());
    let mut study = place.start(&args);
    let run = place.run_folder("baseline/seed-0");
    wait_for("the run starts", || n_lines(&run) >= 70);
    send("-TERM", study.id());
    assert_eq!(study.wait().unwrap().code(), Some(75));
    let meta = fs::read(run.join("meta.json")).unwrap();
    let fifo = |name: &str| assert!(Command::new("mkfifo").arg(run.join(name)).status().unwrap().success());
    // Pipes would wait for ever.
    for name in ["metrics.jsonl", "log.txt"] {
        fs::rename(run.join(name), place.path("kept")).unwrap();
        fifo(name);
        let output = place.ablate(&args).timeout(Duration::from_secs(30)).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(matches!(output.status.code(), Some(1 | 5)), "{text}");
        assert!(text.contains(name) && text.contains("not a regular file"), "{text}");
        fs::remove_file(run.join(name)).unwrap();
        fs::rename(place.path("kept"), run.join(name)).unwrap();
    }
    assert!(
        fs::read_dir(run.join("checkpoints"))
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_string_lossy().starts_with("unusable") }),
        "it is not the checkpoints' fault"
    );
    // What is damaged is not written over; what is gone, and can be made again, is.
    fs::write(run.join("meta.json"), "").unwrap();
    let output = place.ablate(&args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("meta.json: is damaged"), "{text}");
    assert_eq!(fs::read(run.join("meta.json")).unwrap(), b"");
    fs::remove_file(run.join("meta.json")).unwrap();
    fs::remove_file(run.join("tokenizer.json")).unwrap();
    std::os::unix::fs::symlink("/nonexistent", run.join("checkpoints/step-00000599")).unwrap();
    place.ok(&args);
    place.check_same("baseline/seed-0", "whole");
    assert_ne!(fs::read(run.join("meta.json")).unwrap(), meta);
}

#[test]
fn a_study_that_dies_takes_its_runs_with_it() {
    let place = Place::new();
    let args = ["small", "--steps", "100000"];
    let mut rng = stream(0, "deaths");
    for _ in 0..8 {
        let mut study = place.start(&args);
        std::thread::sleep(Duration::from_millis(below(&mut rng, 150)));
        study.kill().unwrap();
        study.wait().unwrap();
    }
    let here = place.dir.path();
    let is_ours = |process: PathBuf| {
        let is_worker =
            fs::read(process.join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains("worker"));
        is_worker && fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == here)
    };
    let ours = || fs::read_dir("/proc").unwrap().flatten().any(|process| is_ours(process.path()));
    wait_for("no run is left", || !ours());
    place.ok(&["small", "--steps", "12", "--out", "other"]);
}
