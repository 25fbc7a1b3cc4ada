//! Studies that are killed, stopped, crowded out, and started twice.
//!
//! `ABLATE_KILLS` and `ABLATE_STOPS` say how often; the recipe `kill-loop` sets them high.

mod place;

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use random::{below, stream};
use train::{OnSpike, RunConfig, RunFolder};

use place::{Place, metrics};

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

fn check_same(ours: &Path, theirs: &Path, what: &str) {
    let (a, b) = (metrics(ours), metrics(theirs));
    for (a, b) in a.iter().zip(&b) {
        assert_eq!(a, b, "{what}");
    }
    assert_eq!(a.len(), b.len(), "{what}");
    let weights = |run: &Path| fs::read(run.join("checkpoints/final/model.safetensors")).unwrap();
    assert!(weights(ours) == weights(theirs), "{what}: other weights");
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
    let of_study = ["small", "--seeds", "1", "--steps", "60", "--set", "train.accumulate=2"];
    place.ok(&[&of_study[..], &["--set", "checkpoint.every=3"]].concat());
    let whole = RunFolder::new(place.run_folder("swiglu/seed-0"));
    let config = whole.config().unwrap();
    let has_all = |c: &RunConfig| c.train.accumulate == 2 && c.model.dropout > 0.0 && c.train.on_spike == OnSpike::Warn;
    assert!(has_all(&config) && config.checkpoint.every == 3);
    let text = toml::to_string(&config).unwrap();
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
    let args = ["small", "--seeds", "1", "--steps", "600"];
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
    send("-TERM", study.id());
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    send("-TERM", study.id());
    assert_eq!(study.wait().unwrap().code(), Some(75));
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
    for run in runs {
        wait_for("its runs end", || !Path::new(&format!("/proc/{run}")).exists());
    }
}

#[test]
fn a_run_that_crashes_is_started_again_once() {
    let place = Place::new();
    let args = ["small", "--seeds", "1", "--steps", "1500", "--set", "checkpoint.every=100", "--jobs", "1"];
    place.ok(&[&args[..], &["--out", "whole"]].concat());
    let crash = |times: usize| {
        let study = place.start(&args);
        let run = place.run_folder("baseline/seed-0");
        for n in 0..times {
            wait_for("the run is on its way", || n_lines(&run) > 150 * (n + 1));
            workers(&study).into_iter().for_each(|worker| send("-KILL", worker));
            std::thread::sleep(Duration::from_millis(300));
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
    assert!(report.contains("baseline: 1 run not finished"), "{report}");
    place.check_same("swiglu/seed-0", "whole");
    place.ok(&args);
    place.check_same("baseline/seed-0", "whole");
}

#[test]
fn of_two_that_start_at_once_one_wins() {
    let place = Place::new();
    let mut studies = [(); 2].map(|()| place.start(&["small", "--steps", "300"]));
    let mut codes = studies.each_mut().map(|study| study.wait().unwrap().code());
    codes.sort();
    assert_eq!(codes, [Some(0), Some(4)]);
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
    check("train.lr=0.1", "train.lr = 0.003, now 0.1); finish it as it was, choose another --out, or move it away");
    check(
        "data.tokenizer=byte",
        "data.tokenizer = \"char\", now \"byte\"; another tokenizer_sha256; another vocab_size)",
    );
    place.fails(&["small", "--seeds", "1", "--steps", "100000", "--backend", "ndarray"], 4, "another backend");
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
        let args = ["small", "--seeds", "1", "--steps", "2000", "--set", "checkpoint.every=100"];
        place.ok(&[&args[..], &["--out", "whole"]].concat());
        let on_small = [&args[..], &["--out", "small-disk"]].concat();
        place.fails(&["small", "--steps", "50000", "--out", "small-disk"], 6, "the runs need about ");
        let study = place.start(&on_small);
        let run = small.join("small/baseline/seed-0");
        wait_for("a checkpoint", || run.join("checkpoints/step-00000200").exists());
        let filler = small.join("filler");
        // Until nothing more goes in.
        let _ = fs::write(&filler, vec![0; 1 << 22]);
        let output = study.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
        fs::remove_file(filler).unwrap();
        place.ok(&on_small);
        let meta = fs::read_to_string(run.join("meta.json")).unwrap();
        assert!(meta.contains("\"resumed\""), "{meta}");
        check_same(&run, &place.path("whole/small/baseline/seed-0"), "after a full disk");
    });
    Command::new("umount").arg("--lazy").arg(&small).status().unwrap();
    tried.unwrap();
}
