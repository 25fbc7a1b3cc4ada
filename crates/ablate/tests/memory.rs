//! What a run takes of the machine's memory.

mod place;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use train::{RunConfig, RunFolder};

use place::Place;

/// A run's process, alone.
fn start(place: &Place, run: &Path, config: &RunConfig) -> Child {
    worker(place, run, config).spawn().unwrap()
}

fn worker(place: &Place, run: &Path, config: &RunConfig) -> Command {
    let mut worker = Command::new(assert_cmd::cargo::cargo_bin!("ablate"));
    worker.current_dir(place.dir.path()).arg("worker").arg(run).args([
        &toml::to_string(config).unwrap(),
        "--command",
        "",
    ]);
    // As a study starts it.
    worker.env("RAYON_NUM_THREADS", "1").env("MIMALLOC_PURGE_DELAY", "-1").stdout(Stdio::null());
    worker
}

/// A number of bytes that the system knows of a process.
fn known(worker: &Child, field: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", worker.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()? * 1024.0)
}

/// Follows a process to its end, with what the system knows of it now and then.
fn follow(mut worker: Child, mut look: impl FnMut(&Child)) {
    while worker.try_wait().unwrap().is_none() {
        look(&worker);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(worker.wait().unwrap().success());
}

/// The config of the baseline's first run with these settings.
fn config(place: &Place, sets: &[&str]) -> RunConfig {
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let out = ["--out", "config", "--steps", "1", "--seeds", "1"];
    place.ok(&[&["baseline"][..], &out, &["--set", "data.corpus=text.txt"], &sets].concat());
    let config = RunFolder::new(place.path("config/baseline/baseline/seed-0")).config().unwrap();
    fs::remove_dir_all(place.path("config")).unwrap();
    config
}

impl Place {
    fn with_baseline() -> Self {
        let place = Place::new();
        fs::write(place.path("experiments/baseline.toml"), "").unwrap();
        place
    }
}

#[test]
fn a_run_s_peak_is_as_predicted() {
    let place = Place::with_baseline();
    for sets in [
        &[][..],
        &["train.batch_size=32", "model.ffn=swiglu"],
        &["data.tokenizer=gpt2", "train.batch_size=4"],
        &["train.batch_size=32", "model.dropout=0.1"],
        &["train.batch_size=2", "model.seq_len=64", "probe.on=true"],
    ] {
        let mut config = config(&place, sets);
        config.train.steps = 6;
        config.checkpoint.every = 3;
        let run = place.path("run");
        let mut peak = 0.0;
        follow(start(&place, &run, &config), |worker| peak = known(worker, "VmHWM:").unwrap_or(peak));
        let ratio = config.memory_bytes(0) / peak;
        println!("{sets:?}: {:.0} MB predicted, {:.0} MB taken: {ratio:.2}", config.memory_bytes(0) / 1e6, peak / 1e6);
        assert!((ratio - 1.0).abs() < 0.3, "{sets:?}: predicted {ratio:.2} times what it took");
        fs::remove_dir_all(run).unwrap();
    }
}

#[test]
fn a_long_run_takes_no_more_than_a_short_one() {
    let place = Place::with_baseline();
    let sets = ["model.d_model=32", "model.n_layers=1", "model.seq_len=32", "train.eval_every=500"];
    let mut config = config(&place, &sets);
    config.train.steps = 5000;
    let run = place.path("run");
    let (mut early, mut late, mut all) = (0.0, 0.0, f64::NAN);
    let lines = || fs::metadata(run.join("metrics.jsonl")).map_or(0, |meta| meta.len() / 180);
    // In ordinary pages: a huge one that is touched for the first time is 2 MB. And without the program's own, which its end reads in.
    let worker = worker(&place, &run, &config).env("MIMALLOC_ALLOW_THP", "0").spawn().unwrap();
    follow(worker, |worker| {
        let Some(resident) = known(worker, "RssAnon:") else { return };
        all = known(worker, "VmRSS:").unwrap_or(all);
        match lines() {
            // Two evaluations and the first checkpoints are over.
            0..1000 => {}
            1000..1300 => early = resident,
            _ => late = resident,
        }
    });
    println!("{:.1} MB after 1,000 steps, {:.1} MB at the end", early / 1e6, late / 1e6);
    assert!(early > 0.0 && late - early < 0.05 * all, "{early} bytes became {late}, of {all} in all");
}
