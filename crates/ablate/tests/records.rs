//! Folders of older formats are read, and what cannot be read, or is not what is asked for, stays.
//!
//! `fixtures/format-N` holds what the last version that wrote format N left: `small` (a sweep, probes, a plan), and `half`, stopped
//! half-way, of which `whole` is the undisturbed end. `fixtures/format.sh` makes them.

mod place;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use train::RunFolder;
use train::format::FORMAT;

use place::Place;

/// Those whose folders are in `fixtures`.
const FORMATS: [u64; 2] = [2, 3];

const RUN: &str = "runs/small/baseline/seed-0";

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A place with the folders of a format.
fn old(format: u64) -> Place {
    let place = Place::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    copy(&fixtures.join(format!("format-{format}")), place.dir.path());
    fs::copy(
        fixtures.join("../../../../experiments/rmsnorm-swiglu.toml"),
        place.path("experiments/rmsnorm-swiglu.toml"),
    )
    .unwrap();
    place
}

/// Every file below a folder but locks, with what is in it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            all.extend(files(&path));
        } else if path.file_name().unwrap() != ".lock" {
            all.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    all
}

fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{}: {text}", path.display());
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// Asserts that two runs have the same losses but for rounding: their bits are those of a processor, and fixtures come from several.
fn check_close(now: &Path, then: &Path) {
    let [ours, theirs] = [now, then].map(|path| RunFolder::new(path).metrics().unwrap());
    assert_eq!(ours.len(), theirs.len(), "{}", now.display());
    for (a, b) in ours.iter().zip(&theirs) {
        assert_eq!((a.step, a.split), (b.step, b.split), "{}", now.display());
        assert!((a.loss / b.loss - 1.0).abs() < 1e-3, "{}: {a:?} against {b:?}", now.display());
    }
}

/// Asserts that two results are the same but for last digits, which format 2 did not read back as they were written.
fn check_alike(now: &Value, then: &Value, what: &str) {
    match (now, then) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() <= 1e-9 * b.abs().max(1e-3), "{what}: {a} against {b}");
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{what}");
            a.iter().zip(b).for_each(|(a, b)| check_alike(a, b, what));
        }
        (Value::Object(a), Value::Object(_)) => {
            // Older studies did not say.
            let a = a.iter().filter(|(key, _)| *key != "config");
            a.for_each(|(key, a)| check_alike(a, &then[key], &format!("{what}.{key}")));
        }
        _ => assert_eq!(now, then, "{what}"),
    }
}

/// The options with which `rmsnorm-swiglu` was trained.
const SIZES: &str = "rmsnorm-swiglu --steps 12 --seeds 2 --set model.d_model=32 --set model.n_layers=2 --set model.n_heads=2 \
                     --set model.n_kv_heads=2 --set model.d_ff=64 --set model.seq_len=32";

#[test]
fn finished_runs_of_every_format_are_read_by_every_command() {
    for format in FORMATS {
        let place = old(format);
        let before = files(&place.path("runs"));
        // Of the first version, a folder of the default study too.
        let has_default = place.path("runs/rmsnorm-swiglu").exists();
        for study in ["small"].into_iter().chain(has_default.then_some("rmsnorm-swiglu")) {
            let folder = place.path("runs").join(study);
            let results =
                || -> Value { serde_json::from_slice(&fs::read(folder.join("results.json")).unwrap()).unwrap() };
            let then = results();
            place.ok(&["report", study]);
            for part in ["study", "rows", "runs", "curves", "effects"] {
                check_alike(&results()[part], &then[part], &format!("format {format}: {study}: {part}"));
            }
        }
        let table = place.ok(&["list", "runs"]);
        assert!(table.contains("small/tuning/baseline-lr-0.003/seed-10000") && !table.contains("stale"), "{table}");
        let compared = place.ok(&["compare", "runs/small/baseline/seed-0", "runs/small/swiglu/seed-0"]);
        assert!(compared.contains("model.ffn = \"gelu\", now \"swiglu\""), "{compared}");
        let sample = place.ok(&["sample", RUN, "--tokens", "20"]);
        assert!(sample.chars().count() >= 20, "{sample}");
        place.ok(&["export", RUN, "--to", "hf", "--out", "hf"]);
        let metrics = place.ok(&["export-metrics", "small"]);
        assert!(metrics.contains("small,swiglu,1,8,valid,loss,") && metrics.contains(",probe,"), "{metrics}");
        let status = place.ok(&["status", "small"]);
        assert!(status.contains("4 of 4 runs have ended"), "{status}");
        let verify = |run: &str| {
            let again = place.ablate(&["rerun", run, "--verify"]).output().unwrap();
            let said = String::from_utf8(again.stdout).unwrap();
            let answer = match again.status.code() {
                Some(0) => "the same bits in every loss and every weight",
                _ => "not the same (made at commit ",
            };
            assert!(matches!(again.status.code(), Some(0 | 1)) && said.contains(answer), "{said}");
            let out = format!("again/{run}");
            place.ok(&["rerun", run, "--out", &out]);
            check_close(&place.path(&out), &place.path(run));
        };
        verify(RUN);
        assert!(place.ok(&["small", "--plain"]).contains("4 runs, 0 to do (4 complete"));
        if has_default {
            verify("runs/rmsnorm-swiglu/rmsnorm-swiglu/seed-1");
            let sizes: Vec<&str> = SIZES.split_whitespace().chain(["--plain"]).collect();
            assert!(place.ok(&sizes).contains("4 runs, 0 to do (4 complete"));
        }
        // A finished run stays as it is.
        for (path, bytes) in files(&place.path("runs")) {
            let is_of_a_run = path.to_string_lossy().contains("/seed-");
            assert!(!is_of_a_run || before.get(&path) == Some(&bytes), "{}", path.display());
        }
        assert!(!place.path("runs/small/replaced-1").exists());
    }
}

#[test]
fn a_half_finished_run_of_every_format_goes_on() {
    for format in FORMATS {
        let place = old(format);
        assert!(place.ok(&["half", "--plain"]).contains("2 to do (0 complete, 1 half-finished)"));
        for run in ["half/baseline/seed-0", "half/dyt/seed-0"] {
            let (now, then) = (place.path("runs").join(run), place.path("whole").join(run));
            let meta = fs::read_to_string(now.join("meta.json")).unwrap();
            assert_eq!(meta.contains("\"resumed\""), run.contains("baseline"), "{meta}");
            check_close(&now, &then);
        }
    }
}

/// The folders of the first version, where this checkout has them.
#[test]
fn folders_of_the_first_version_are_complete_or_go_on() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/old_runs");
    if !shared.exists() {
        println!("skipped: the folders of the first version are not here");
        return;
    }
    let place = old(2);
    copy(&shared, &place.path("first"));
    let baseline = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/dyt.toml");
    fs::copy(baseline, place.path("experiments/dyt.toml")).unwrap();
    let sizes: Vec<&str> = SIZES.split_whitespace().chain(["--plain", "--out", "first"]).collect();
    assert!(place.ok(&sizes).contains("4 runs, 0 to do (4 complete"));
    let half = "dyt --steps 6000 --seeds 1 --set model.d_model=24 --set model.n_layers=2 --set model.n_heads=2 --set \
                model.n_kv_heads=1 --set model.d_ff=48 --set model.seq_len=32 --set checkpoint.every=20 --plain --out first/half";
    let half: Vec<&str> = half.split_whitespace().collect();
    let lines = |run: &str| fs::read_to_string(place.path("first/half/dyt").join(run).join("metrics.jsonl")).unwrap();
    let before = lines("dyt/seed-0");
    // With other steps it is another run, and stays.
    let other: Vec<&str> = half.iter().map(|&word| if word == "6000" { "7000" } else { word }).collect();
    place.fails(&other, 4, "holds a half-finished run of another configuration (train.steps = 6000, now 7000)");
    assert_eq!(lines("dyt/seed-0"), before);
    assert!(place.ok(&half).contains("3 to do (0 complete, 2 half-finished)"));
    assert!(lines("dyt/seed-0").starts_with(&before));
}

#[test]
fn what_is_of_a_newer_format_is_refused_and_stays() {
    let place = Place::new();
    place.ok(&["small", "--set", "checkpoint.every=3", "--set", "train.min_lr_factor=1.0"]);
    place.ok(&["plan", "small", "--set", "checkpoint.every=3", "--set", "train.min_lr_factor=1.0"]);
    // Makes a file one of the next format, and returns it as it was.
    let newer = |file: &str| {
        let path = place.path("runs/small").join(file);
        let whole = fs::read_to_string(&path).unwrap();
        let mut text = whole.clone();
        for key in ["format = ", "\"format\": ", "\"format\":"] {
            text = text.replace(&format!("{key}{FORMAT}"), &format!("{key}{}", FORMAT + 1));
        }
        assert_ne!(text, whole, "{file}");
        fs::write(&path, text).unwrap();
        whole
    };
    let refused = format!(
        "is of format {}, and this program reads formats 2 to {FORMAT}: use the version that wrote it",
        FORMAT + 1
    );
    let study = ["small", "--set", "checkpoint.every=3", "--set", "train.min_lr_factor=1.0", "--plain"];
    for file in ["config.toml", "status.json", "meta.json"] {
        let path = place.path(RUN).join(file);
        let whole = newer(&format!("baseline/seed-0/{file}"));
        let all = files(&place.path(RUN));
        let part = format!("{file}: {refused}");
        place.fails(&["report", "small"], 5, &part);
        // Another configuration would set it aside, and the same would train it.
        for set in ["train.lr=0.5", "train.lr=3e-3"] {
            let output = place.ablate(&[&study[..], &["--set", set]].concat()).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.contains(&part), "{file}, {set}: {text}");
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert_eq!(files(&place.path(RUN)), all, "{file}");
        }
        fs::write(path, whole).unwrap();
        place.ok(&study);
    }
    let study_json = newer("study.json");
    place.fails(&["report", "small"], 5, &format!("study.json: {refused}"));
    place.fails(&study, 5, &format!("study.json: {refused}"));
    place.fails(&["plan", "small"], 5, &format!("study.json: {refused}"));
    fs::write(place.path("runs/small/study.json"), study_json).unwrap();
    newer("plan.jsonl");
    place.fails(&["run", "--plan", "runs/small/plan.jsonl", "--index", "0"], 5, &format!("plan.jsonl:1: {refused}"));
}

/// Every record says its format, and those that are read are of the program's.
#[test]
fn every_record_says_its_format() {
    let place = Place::new();
    place.ok(&["small", "--seeds", "1", "--set", "train.min_lr_factor=1.0"]);
    place.ok(&["plan", "small", "--seeds", "1", "--set", "train.min_lr_factor=1.0"]);
    let text = |file: &str| fs::read_to_string(place.path("runs/small").join(file)).unwrap();
    let run = "baseline/seed-0";
    assert!(text(&format!("{run}/config.toml")).starts_with(&format!("format = {FORMAT}\n")));
    for file in ["study.json", "results.json", &format!("{run}/meta.json"), &format!("{run}/status.json")] {
        assert!(text(file).starts_with(&format!("{{\n  \"format\": {FORMAT},\n")), "{file}");
    }
    for file in [
        "plan.jsonl",
        &format!("{run}/checkpoints/step-00000012/manifest"),
        &format!("{run}/checkpoints/step-00000012/state.json"),
    ] {
        assert!(text(file).starts_with(&format!("{{\"format\":{FORMAT},")), "{file}");
    }
}

#[test]
fn runs_that_a_study_leaves_are_set_aside_and_found_again() {
    let place = Place::new();
    let said = |args: &[&str]| {
        let output = place.ablate(&[&["small", "--plain"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    said(&[]);
    let first = files(&place.path("runs/small"));
    let (_, errors) = said(&["--set", "train.lr=1e-2"]);
    assert_eq!(
        errors,
        "4 runs set aside in runs/small/replaced-1, with the report so far: train.lr = 0.003, now 0.01\n"
    );
    // With the report of then, which nothing writes over.
    let aside = place.path("runs/small/replaced-1");
    for (path, bytes) in &first {
        let name = path.strip_prefix(place.path("runs/small")).unwrap();
        let kept = fs::read(aside.join(name)).ok();
        assert_eq!(kept.as_ref(), Some(bytes).filter(|_| name != Path::new("study.json")), "{}", name.display());
    }
    place.fails(&["report", "runs/small/replaced-1"], 5, "this is not a study's folder");
    let second = files(&place.path("runs/small/baseline"));
    let (text, errors) = said(&[]);
    assert!(text.contains("4 runs, 0 to do (4 complete"), "{text}");
    assert_eq!(
        errors,
        "4 runs set aside in runs/small/replaced-2, with the report so far: train.lr = 0.01, now 0.003\n\
         4 runs moved back from runs/small/replaced-1, and not trained again\n"
    );
    for (path, bytes) in first.iter().filter(|(path, _)| path.to_string_lossy().contains("/seed-")) {
        assert_eq!(&fs::read(path).unwrap(), bytes, "{}", path.display());
    }
    // And on: as a list of tasks. What was set aside before goes where it was.
    let output = place.ablate(&["plan", "small", "--set", "train.lr=1e-2"]).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("4 runs moved back from runs/small/replaced-2"));
    assert_eq!(files(&place.path("runs/small/baseline")), second);
    assert!(aside.join("baseline/seed-0").exists() && !place.path("runs/small/replaced-3").exists());
}

/// What is set aside is no less a result: if it cannot be read, it is not trained again.
#[test]
fn what_is_set_aside_and_cannot_be_read_is_named() {
    let place = Place::new();
    let study = ["small", "--seeds", "1", "--plain"];
    place.ok(&study);
    place.ok(&[&study[..], &["--set", "train.lr=1e-2"]].concat());
    let aside = place.path("runs/small/replaced-1/baseline/seed-0");
    let check = |file: &str, change: &dyn Fn(&str) -> String, part: &str| {
        let path = aside.join(file);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, change(&String::from_utf8_lossy(&whole))).unwrap();
        let before = files(&place.path("runs/small"));
        for args in [&study[..], &["plan", "small", "--seeds", "1"]] {
            let output = place.ablate(args).output().unwrap();
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(said.contains(&format!("replaced-1/baseline/seed-0/{file}: is {part}")), "{file}: {said}");
            assert_eq!(output.status.code(), Some(if args == study { 1 } else { 5 }), "{file}: {said}");
        }
        let after = files(&place.path("runs/small"));
        let runs = |path: &&PathBuf| path.to_string_lossy().contains("baseline/seed-0");
        assert!(before.keys().filter(runs).eq(after.keys().filter(runs)), "{file}");
        assert!(before.iter().filter(|(path, _)| runs(path)).all(|(path, bytes)| after[path] == *bytes), "{file}");
        fs::write(&path, whole).unwrap();
    };
    let half = |text: &str| text[..text.len() / 2].to_string();
    for file in ["status.json", "metrics.jsonl", "meta.json", "config.toml"] {
        check(file, &half, "damaged: ");
    }
    check("checkpoints/final/model.safetensors", &|_| "x".into(), "damaged: ");
    check("config.toml", &|text| text.replace("lr = 0.003", "lr = 0.004"), "damaged: ");
    let newer = |text: &str| text.replace(&format!("format\": {FORMAT}"), &format!("format\": {}", FORMAT + 1));
    check("meta.json", &newer, &format!("of format {}", FORMAT + 1));
    // What is known to be another run is nobody's concern.
    fs::write(aside.join("checkpoints/final/model.safetensors"), "x").unwrap();
    place.ok(&[&study[..], &["--set", "train.lr=2e-2"]].concat());
}

/// Whatever is asked for: a run that is not what it was is neither moved nor trained again.
#[test]
fn a_damaged_run_is_named_when_the_study_has_changed_too() {
    let place = Place::new();
    let study = ["small", "--seeds", "1", "--plain"];
    place.ok(&study);
    let run = place.path(RUN);
    for (file, is_gone) in
        [("checkpoints/final/model.safetensors", false), ("tokenizer.json", true), ("meta.json", true)]
    {
        let whole = fs::read(run.join(file)).unwrap();
        if is_gone {
            fs::remove_file(run.join(file)).unwrap();
        } else {
            fs::write(run.join(file), "x").unwrap();
        }
        let before = files(&run);
        let output = place.ablate(&[&study[..], &["--set", "train.lr=1e-2"]].concat()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(&format!("baseline/seed-0/{file}: ")), "{said}");
        assert_eq!(files(&run), before, "{file}");
        fs::write(run.join(file), whole).unwrap();
        place.ok(&study);
    }
}

/// A study's report, and the rates that it was made with, stay until there are new ones.
#[test]
fn a_sweep_that_changes_keeps_the_earlier_report() {
    let place = Place::new();
    let file = place.path("experiments/small.toml");
    edit(&file, "warmup_steps = 2", "warmup_steps = 2\nlr = { sweep = [1e-3, 3e-3, 1e-2] }");
    edit(&file, "seeds = 2", "seeds = 1\ntuning_seeds = 1");
    place.ok(&["small", "--plain"]);
    let report = |folder: &str| fs::read(place.path(folder).join("results.json")).unwrap();
    let first = report("runs/small");
    let longer = ["small", "--set", "train.steps=16"];
    place.ok(&[&["plan"], &longer[..]].concat());
    assert_eq!(report("runs/small/tuning/replaced-1"), first);
    // A task of the plan, and a look at what there is.
    place.ok(&["run", "--plan", "runs/small/plan.jsonl", "--index", "0"]);
    let part = "seed-10000: does not match the study's configuration (train.steps = 16, now 12); run the study again";
    place.fails(&["report", "small"], 5, part);
    let now: Value = serde_json::from_slice(&report("runs/small")).unwrap();
    assert_eq!(now["rows"], serde_json::from_slice::<Value>(&first).unwrap()["rows"]);
    place.ok(&[&longer[..], &["--plain"]].concat());
    assert!(place.ok(&["small", "--plain"]).contains("2 runs, 0 to do (2 complete"));
    assert_eq!(report("runs/small"), first);
    // A damaged tuning run costs no rates.
    let metrics = place.path("runs/small/tuning/baseline-lr-0.001/seed-10000/metrics.jsonl");
    let whole = fs::read(&metrics).unwrap();
    fs::write(&metrics, &whole[..whole.len() / 2]).unwrap();
    let output = place.ablate(&["small", "--plain"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    fs::write(&metrics, whole).unwrap();
    place.ok(&["report", "small"]);
    assert_eq!(report("runs/small"), first);
}

/// At a constant rate a finished run goes on, and what it was is kept.
#[test]
fn a_run_that_is_given_more_steps_is_kept_as_it_was() {
    let place = Place::new();
    let study = ["small", "--seeds", "1", "--plain", "--set", "train.min_lr_factor=1.0"];
    place.ok(&study);
    let (first, report) = (files(&place.path(RUN)), fs::read(place.path("runs/small/report.md")).unwrap());
    let longer = [&study[..], &["--steps", "18"]].concat();
    let output = place.ablate(&longer).output().unwrap();
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "2 runs to be continued, after a copy to runs/small/replaced-1, with the report so far: train.steps = 12, now 18\n"
    );
    assert!(fs::read_to_string(place.path(RUN).join("meta.json")).unwrap().contains("\"resumed\""));
    let kept = place.path("runs/small/replaced-1");
    assert_eq!(fs::read(kept.join("report.md")).unwrap(), report);
    for (path, bytes) in &first {
        assert_eq!(
            &fs::read(kept.join("baseline/seed-0").join(path.strip_prefix(place.path(RUN)).unwrap())).unwrap(),
            bytes
        );
    }
    place.ok(&["sample", "runs/small/replaced-1/baseline/seed-0", "--tokens", "5"]);
    assert!(place.ok(&study).contains("2 runs, 0 to do (2 complete"));
    assert_eq!(files(&place.path(RUN)), first);
    assert!(place.ok(&longer).contains("2 runs, 0 to do (2 complete"));
}

/// A plan of before the study changed trains nothing over, and runs of two configurations are not averaged.
#[test]
fn an_outdated_plan_is_refused_and_runs_of_two_configurations_are_not_mixed() {
    let place = Place::new();
    place.ok(&["small", "--plain"]);
    place.ok(&["plan", "small"]);
    let plan = place.path("runs/small/plan.jsonl");
    let outdated = fs::read(&plan).unwrap();
    place.ok(&["small", "--plain", "--set", "train.lr=1e-2"]);
    let before = files(&place.path("runs/small"));
    let task = ["run", "--plan", "runs/small/plan.jsonl", "--index", "0"];
    place.fails(
        &task,
        4,
        "holds a complete run of another configuration (train.lr = 0.01, now 0.003): this plan is outdated; plan the study again",
    );
    assert_eq!(files(&place.path("runs/small")), before);
    fs::remove_dir_all(place.path(RUN)).unwrap();
    fs::remove_dir_all(place.path("runs/small/replaced-1")).unwrap();
    fs::write(&plan, outdated).unwrap();
    place.ok(&task);
    place.fails(
        &["report", "small"],
        5,
        "runs/small/baseline/seed-0: does not match the study's configuration (train.lr = 0.003, now 0.01); run the study again",
    );
    let damaged = fs::read_to_string(&plan).unwrap().replacen("{\"format\"", "{format", 2);
    fs::write(&plan, damaged.replacen("{format", "{\"format\"", 1)).unwrap();
    place.fails(&task, 5, "plan.jsonl:2: is damaged: ");
}

/// No verdict compares runs that are not of the study, as where a damaged run keeps its place when the study changes.
#[test]
fn a_run_of_another_configuration_is_in_no_figure() {
    let place = Place::new();
    place.ok(&["small", "--plain"]);
    let tokenizers = [0, 1].map(|seed| place.path(&format!("runs/small/baseline/seed-{seed}/tokenizer.json")));
    let whole = fs::read(&tokenizers[0]).unwrap();
    tokenizers.iter().for_each(|path| fs::write(path, "").unwrap());
    for change in ["train.lr=1e-2", "train.batch_size=3"] {
        let output = place.ablate(&["small", "--plain", "--set", change]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{change}: {said}");
        assert!(said.contains("tokenizer.json: is damaged") && !said.contains("than baseline"), "{change}: {said}");
        let report = place.ablate(&["report", "small"]).output().unwrap();
        assert_eq!(report.status.code(), Some(5), "{change}");
        tokenizers.iter().for_each(|path| fs::write(path, &whole).unwrap());
        let part = if change.contains("lr") { "train.lr = 0.003, now 0.01" } else { "train.batch_size = 2, now 3" };
        let report = place.ablate(&["report", "small"]).output().unwrap();
        let errors = String::from_utf8(report.stderr).unwrap();
        assert!(
            errors.contains(&format!("seed-0: does not match the study's configuration ({part}); run the study again")),
            "{errors}"
        );
        assert_eq!(report.status.code(), Some(5), "{change}");
        tokenizers.iter().for_each(|path| fs::write(path, "").unwrap());
    }
}

/// What cannot be reached is not gone.
#[test]
fn what_a_link_to_nowhere_hides_is_not_trained_again() {
    let place = Place::new();
    let study = ["small", "--seeds", "1", "--plain"];
    place.ok(&study);
    place.ok(&[&study[..], &["--set", "train.lr=1e-2"]].concat());
    let runs = place.path("runs/small");
    let check = |hidden: &str, args: &[&str], code: i32| {
        let path = runs.join(hidden);
        fs::rename(&path, place.path("away")).unwrap();
        std::os::unix::fs::symlink(place.path("not-mounted"), &path).unwrap();
        let output = place.ablate(args).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains(&format!("{hidden}: is a broken symbolic link")), "{hidden}: {said}");
        assert_eq!(output.status.code(), Some(code), "{hidden}: {said}");
        fs::remove_file(&path).unwrap();
        fs::rename(place.path("away"), &path).unwrap();
    };
    for hidden in ["replaced-1", "replaced-1/baseline/seed-0", "replaced-1/baseline/seed-0/status.json"] {
        check(hidden, &study, 1);
    }
    for hidden in ["baseline", "baseline/seed-0", "baseline/seed-0/status.json"] {
        check(hidden, &[&study[..], &["--set", "train.lr=1e-2"]].concat(), 1);
        check(hidden, &["report", "small"], 5);
    }
    // A run's folder may be a link, also a relative one.
    fs::rename(runs.join("baseline/seed-0"), place.path("archived")).unwrap();
    std::os::unix::fs::symlink("../../../archived", runs.join("baseline/seed-0")).unwrap();
    assert!(place.ok(&study).contains("0 to do (2 complete"));
    assert!(place.ok(&[&study[..], &["--set", "train.lr=1e-2"]].concat()).contains("0 to do (2 complete"));
}

/// A study of an older version does not say its configuration, but its runs do.
#[test]
fn tuning_runs_of_an_edited_study_are_in_no_older_report() {
    let place = old(2);
    place.ok(&["report", "small"]);
    let then: Value = serde_json::from_slice(&fs::read(place.path("runs/small/results.json")).unwrap()).unwrap();
    place.ok(&["plan", "small", "--set", "model.d_ff=40"]);
    for index in 0..3 {
        place.ok(&["run", "--plan", "runs/small/plan.jsonl", "--index", &index.to_string()]);
    }
    place.fails(&["report", "small"], 5, "does not match the study's configuration (model.d_ff = ");
    let now: Value = serde_json::from_slice(&fs::read(place.path("runs/small/results.json")).unwrap()).unwrap();
    assert_eq!(now["rows"], then["rows"]);
}

/// What has lost its status had come to its end, whatever it could go on from.
#[test]
fn a_finished_run_without_its_status_is_kept_also_at_a_constant_rate() {
    let place = Place::new();
    let study = ["small", "--seeds", "1", "--plain", "--set", "train.min_lr_factor=1.0"];
    place.ok(&study);
    let weights = "checkpoints/final/model.safetensors";
    let first = fs::read(place.path(RUN).join(weights)).unwrap();
    fs::remove_file(place.path(RUN).join("status.json")).unwrap();
    place.ok(&[&study[..], &["--steps", "18"]].concat());
    assert_eq!(fs::read(place.path("runs/small/replaced-1/baseline/seed-0").join(weights)).unwrap(), first);
}

/// A run that cannot be given more steps stays complete.
#[test]
fn a_run_that_cannot_go_on_stays_complete() {
    let place = Place::new();
    let study = ["small", "--seeds", "1", "--plain", "--set", "train.min_lr_factor=1.0"];
    place.ok(&study);
    let before = files(&place.path(RUN));
    let checkpoint = place.path(RUN).join("checkpoints/step-00000012/model.bpk");
    let whole = fs::read(&checkpoint).unwrap();
    fs::write(&checkpoint, "x").unwrap();
    let output = place.ablate(&[&study[..], &["--steps", "18"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    fs::write(&checkpoint, whole).unwrap();
    assert!(place.ok(&study).contains("0 to do (2 complete"));
    let mut after = files(&place.path(RUN));
    after.retain(|path, _| !path.ends_with("log.txt"));
    assert!(after.iter().all(|(path, bytes)| before[path] == *bytes));
}

/// A task does not train what is complete where it was set aside.
#[test]
fn a_task_does_not_train_what_is_set_aside() {
    let place = Place::new();
    place.ok(&["small", "--seeds", "1", "--plain"]);
    place.ok(&["plan", "small", "--seeds", "1"]);
    fs::create_dir_all(place.path("runs/small/replaced-1/baseline")).unwrap();
    fs::rename(place.path(RUN), place.path("runs/small/replaced-1/baseline/seed-0")).unwrap();
    let task = ["run", "--plan", "runs/small/plan.jsonl", "--index", "0"];
    place.fails(&task, 4, "seed-0: is complete in runs/small/replaced-1/baseline/seed-0; plan the study again");
    place.ok(&["plan", "small", "--seeds", "1"]);
    place.ok(&task);
    edit(&place.path("runs/small/plan.jsonl"), &format!("\"format\":{FORMAT}"), "\"format\":99");
    place.fails(&["plan", "small"], 5, "plan.jsonl:1: is of format 99");
}

/// What an older version did otherwise, though the keys are the same, is another run.
#[test]
fn masks_of_an_older_version_are_others() {
    let place = old(2);
    let config = place.path(RUN).join("config.toml");
    edit(&config, "dropout = 0.0", "dropout = 0.1");
    edit(&config, "accumulate = 1", "accumulate = 2");
    let study = ["small", "--plain", "--set", "model.dropout=0.1", "--set", "train.grad_accum_steps=2"];
    let output = place.ablate(&study).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("set aside in ")
            && said.contains("an earlier version computed dropout with gradient accumulation differently"),
        "{said}"
    );
    assert!(place.path("runs/small/replaced-1/baseline/seed-0").exists());
}

/// A list shows no loss that the run did not write.
#[test]
fn a_list_names_what_cannot_be_read() {
    let place = Place::new();
    place.ok(&["small", "--seeds", "1"]);
    let metrics = place.path(RUN).join("metrics.jsonl");
    let whole = fs::read_to_string(&metrics).unwrap();
    fs::write(&metrics, whole.replace("\"loss\":", "\"loss\":1")).unwrap();
    let check = |part: &str| {
        let output = place.ablate(&["list", "runs", "--sort", "loss"]).output().unwrap();
        let (table, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(5), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
        let line = table.lines().find(|line| line.contains("baseline/seed-0")).unwrap();
        assert!(line.contains("unreadable") && line.contains("0/?"), "{table}");
    };
    check("metrics.jsonl: is damaged: ");
    fs::write(&metrics, whole).unwrap();
    edit(
        &place.path(RUN).join("status.json"),
        &format!("\"format\": {FORMAT}"),
        &format!("\"format\": {}", FORMAT + 1),
    );
    check("status.json: is of format");
}

/// What took training is never written over, whatever is missing beside it.
#[test]
fn what_is_not_continued_is_kept() {
    let place = Place::new();
    let study = ["small", "--seeds", "1", "--plain"];
    let run = place.path(RUN);
    let check = |what: &str, change: &dyn Fn(), args: &[&str], why: &str| {
        let _ = fs::remove_dir_all(place.path("runs"));
        place.ok(&study);
        change();
        let before = files(&run);
        let output = place.ablate(&[&study[..], args].concat()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{what}: {errors}");
        assert!(errors.contains(why), "{what}: {errors}");
        for (path, bytes) in before {
            let name = path.strip_prefix(&run).unwrap();
            let kept = place.path("runs/small/replaced-1/baseline/seed-0").join(name);
            assert_eq!(fs::read(kept).unwrap(), bytes, "{what}: {}", name.display());
        }
    };
    let without = |name: &'static str| {
        let path = run.join(name);
        move || fs::remove_file(&path).unwrap()
    };
    check("no status, another rate", &without("status.json"), &["--set", "train.lr=0.1"], "2 runs set aside");
    check(
        "no status",
        &without("status.json"),
        &[],
        "1 run set aside in runs/small/replaced-1, with the report so far: status.json is missing",
    );
    let running = || edit(&run.join("status.json"), "\"done\"", "\"running\"");
    check("a status that says running", &running, &[], "no checkpoint to resume from");
    let half = || {
        running();
        fs::remove_dir_all(run.join("checkpoints")).unwrap();
    };
    check("no checkpoints", &half, &[], "no checkpoint to resume from");
    // A file of the run that is gone is not made up: it can be restored.
    fs::remove_file(run.join("config.toml")).unwrap();
    let before = files(&run);
    let output = place.ablate(&study).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("config.toml: cannot be read"), "{text}");
    assert_eq!(files(&run), before);
}

/// One rule for every file of a run: what is damaged is named and stays, the other runs and the report go on.
#[test]
fn a_damaged_run_stays_and_the_others_go_on() {
    let place = Place::new();
    let study = ["small", "--plain"];
    place.ok(&["small", "--seeds", "1"]);
    let run = place.path(RUN);
    for file in [
        "config.toml",
        "meta.json",
        "status.json",
        "metrics.jsonl",
        "tokenizer.json",
        "checkpoints/final/model.safetensors",
    ] {
        let whole = fs::read(run.join(file)).unwrap();
        fs::write(run.join(file), &whole[..whole.len() / 2]).unwrap();
        let before = files(&run);
        let output = place.ablate(&study).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{file}: {text}");
        let way_on = "restore the file, or move the run's folder away to train it again";
        assert!(text.contains(&format!("{file}: is damaged: ")) && text.contains(way_on), "{file}: {text}");
        assert!(text.contains("2 variants, 4 runs") && text.contains("Report: "), "{text}");
        assert_eq!(files(&run), before, "{file}");
        fs::write(run.join(file), whole).unwrap();
    }
    assert!(place.ok(&study).contains("4 runs, 0 to do"));
}

#[test]
fn a_config_or_meta_that_was_edited_is_no_longer_the_runs() {
    let place = Place::new();
    place.ok(&["small", "--seeds", "1"]);
    let check = |file: &str, from: &str, to: &str, part: &str| {
        let path = place.path(RUN).join(file);
        let whole = fs::read(&path).unwrap();
        edit(&path, from, to);
        place.fails(&["report", "small"], 5, part);
        let report = fs::read_to_string(place.path("runs/small/report.md")).unwrap();
        assert!(report.contains("Left out of all figures: "), "{report}");
        // Nor is it another configuration that is set aside, or left out of an export.
        let edited = files(&place.path(RUN));
        if !part.contains("holds the run") {
            assert_eq!(place.ablate(&["small", "--seeds", "1", "--plain"]).output().unwrap().status.code(), Some(1));
        }
        place.fails(&["export-metrics", "small"], 5, part);
        assert_eq!(files(&place.path(RUN)), edited);
        fs::write(&path, whole).unwrap();
    };
    let damaged = "config.toml: is damaged: it is not";
    check("config.toml", "lr = 0.003", "lr = 0.001", damaged);
    check("config.toml", "norm = \"layernorm\"", "norm = \"rmsnorm\"", damaged);
    check("config.toml", "seed = 0", "seed = 7", damaged);
    check("config.toml", "variant = \"baseline\"", "variant = \"other\"", damaged);
    check("meta.json", "\"n_params\": ", "\"n_params\": 1", "meta.json: is damaged: it is not");
    // Also where no hash tells.
    place.forget_hashes("baseline/seed-0");
    check("config.toml", "seed = 0", "seed = 7", "holds the run baseline/seed-7");
    check("config.toml", "variant = \"baseline\"", "variant = \"other\"", "holds the run other/seed-0");
    place.ok(&["report", "small"]);
}

/// Numbers come back as they were written, to the last digit.
#[test]
fn every_number_is_exported_as_it_was_measured() {
    let place = Place::new();
    place.ok(&["small", "--steps", "200", "--set", "train.lr=1e-2"]);
    let exported = place.ok(&["export-metrics", "small"]);
    let csv = fs::read_to_string(place.path("runs/small/results.csv")).unwrap();
    let mut n = 0;
    for (variant, seed) in [("baseline", 0), ("baseline", 1), ("swiglu", 0), ("swiglu", 1)] {
        let path = place.path(&format!("runs/small/{variant}/seed-{seed}/metrics.jsonl"));
        for line in fs::read_to_string(&path).unwrap().lines() {
            // The digits as they stand in the file, without a parser in between.
            let number = |key: &str| {
                let rest = line.split_once(&format!("\"{key}\":"))?.1;
                Some(rest[..rest.find([',', '}']).unwrap()].to_string())
            };
            let (step, split) = (number("step").unwrap(), number("split").unwrap().replace('"', ""));
            for metric in ["loss", "perplexity", "bits_per_byte", "lr", "grad_norm"] {
                let Some(value) = number(metric) else { continue };
                let row = format!("small,{variant},{seed},{step},{split},{metric},");
                let found = exported.lines().find_map(|line| line.strip_prefix(&row)).unwrap();
                assert_eq!(found.parse::<f64>().unwrap().to_bits(), value.parse::<f64>().unwrap().to_bits(), "{row}");
                n += 1;
            }
            if step == "200" && split == "valid" {
                let loss = number("loss").unwrap();
                assert!(csv.contains(&loss), "{loss} is not in {csv}");
            }
        }
    }
    assert!(n > 2000, "{n}");
    // A last digit that was changed is a difference, also behind a seal that was made for it.
    place.forget_hashes("baseline/seed-0");
    let path = place.path(RUN).join("metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let (at, digit) = text
        .char_indices()
        .find(|&(at, c)| {
            c.is_ascii_digit()
                && text[at + 1..].starts_with(",\"lr\"")
                && text[..at].ends_with(|c: char| c.is_ascii_digit())
        })
        .unwrap();
    let other = if digit == '3' { '4' } else { '3' };
    fs::write(&path, format!("{}{other}{}", &text[..at], &text[at + 1..])).unwrap();
    let output = place.ablate(&["rerun", RUN, "--verify"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
}
