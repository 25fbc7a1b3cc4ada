//! Every file that is read, damaged at random: an answer or an error in words, soon, and never a piece of memory that the file is not
//! worth.
//!
//! `ABLATE_CASES` says how many of each kind; the recipe `fuzz` sets it high. The cases are the same each time.

mod place;

use std::alloc::{GlobalAlloc, Layout};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use data::{DataConfig, Dataset, Tokenizer};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use study::{Claim, Override, Plan, Report};
use train::{Backend, Display, Provenance, RunFolder, Sampling};

use place::{Place, STUDY};

/// Remembers the largest piece of memory that was asked for.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to mimalloc, as the program does it.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { mimalloc::MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { mimalloc::MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { mimalloc::MiMalloc.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        unsafe { mimalloc::MiMalloc.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// No file here is larger than 1 MiB, and nothing that is made of one may be much larger.
const MOST_BYTES: usize = 64 << 20;

const MOST_TIME: Duration = Duration::from_secs(20);

/// One change of a file.
#[derive(Clone, Debug)]
enum Edit {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index, prop::sample::Index),
    Copy(prop::sample::Index, prop::sample::Index),
    Insert(prop::sample::Index, Vec<u8>),
    /// In place of a number, a word or a string.
    Replace(prop::sample::Index, &'static str),
}

/// What breaks readers: limits of numbers, wrong types, signs of structure.
const EVIL: &[&str] = &[
    "0",
    "-1",
    "1",
    "2",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999999",
    "1e308",
    "1e-320",
    "-0.0",
    "nan",
    "inf",
    "null",
    "true",
    "\"\"",
    "\"x\"",
    "[]",
    "[[]]",
    "{}",
    "\"\\ud800\"",
    "\"../../x\"",
    "\"/dev/zero\"",
    "[1,2]",
    "\u{0}",
    "\u{feff}",
    "\n",
    "=",
    "#",
];

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let at = any::<prop::sample::Index>;
    let edit = prop_oneof![
        3 => (at(), 0..8u8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        1 => (at(), at()).prop_map(|(from, to)| Edit::Cut(from, to)),
        1 => (at(), at()).prop_map(|(from, to)| Edit::Copy(from, to)),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        6 => (at(), prop::sample::select(EVIL)).prop_map(|(at, evil)| Edit::Replace(at, evil)),
    ];
    prop::collection::vec(edit, 1..4)
}

/// The start and end of the words of a text: runs of what a number or a name is made of, and quoted strings.
fn words(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut words = vec![];
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let is_word = |b: &u8| b.is_ascii_alphanumeric() || b"_.+-".contains(b);
        if bytes[at] == b'"' {
            at += 1 + bytes[at + 1..].iter().position(|&b| b == b'"' || b == b'\n').unwrap_or(0);
        } else {
            at += bytes[at..].iter().position(|b| !is_word(b)).unwrap_or(bytes.len() - at);
        }
        at = at.max(start + 1).min(bytes.len());
        if at > start + 1 || is_word(&bytes[start]) {
            words.push((start, at));
        }
    }
    words
}

fn apply(edits: &[Edit], bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for edit in edits {
        if bytes.is_empty() {
            break;
        }
        let n = bytes.len();
        match edit {
            Edit::Flip(at, bit) => bytes[at.index(n)] ^= 1 << bit,
            Edit::Cut(from, to) => {
                let (from, to) = (from.index(n), to.index(n));
                bytes.drain(from.min(to)..from.max(to));
            }
            Edit::Copy(from, to) => {
                let (from, to) = (from.index(n), to.index(n));
                let part = bytes[from.min(to)..from.max(to)].to_vec();
                bytes.splice(from..from, part);
            }
            Edit::Insert(at, new) => {
                let at = at.index(n);
                bytes.splice(at..at, new.iter().copied());
            }
            Edit::Replace(at, evil) => {
                let words = words(&bytes);
                if !words.is_empty() {
                    let (from, to) = words[at.index(words.len())];
                    bytes.splice(from..to, evil.bytes());
                }
            }
        }
    }
    bytes
}

/// Gives `read` a damaged copy of `bytes` again and again.
fn check(what: &str, bytes: &[u8], read: impl Fn(&[u8])) {
    let cases = std::env::var("ABLATE_CASES").map_or(100, |n| n.parse().expect("a number"));
    assert!(bytes.len() < 1 << 20, "{what} is too large to be damaged again and again");
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let outcome = runner.run(&edits(), |edits| {
        let damaged = apply(&edits, bytes);
        LARGEST.store(0, Ordering::Relaxed);
        let start = Instant::now();
        read(&damaged);
        let (largest, time) = (LARGEST.load(Ordering::Relaxed), start.elapsed());
        if largest > MOST_BYTES || time > MOST_TIME {
            return Err(TestCaseError::fail(format!("{largest} bytes at once, {time:?}")));
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{what}: {error}");
    }
    println!("{what}: {cases} cases");
}

/// An error is one sentence, and no program's own.
fn in_words<T>(result: anyhow::Result<T>) {
    if let Err(error) = result {
        let text = format!("{error:#}");
        assert!(!text.contains("internal error") && !text.contains("panicked"), "{text}");
    }
}

/// A finished run that can be given more steps, so that its checkpoint is kept.
fn finished(place: &Place) -> PathBuf {
    let corpus = place.path("text.txt").display().to_string();
    let study = STUDY.replace("steps = 12", "steps = 12\nmin_lr_factor = 1.0").replace("text.txt", &corpus);
    let study = study + "[probe]\non = true\nevery = 4\n";
    fs::write(place.path("experiments/small.toml"), study).unwrap();
    place.ok(&["small", "--seeds", "1"]);
    place.path("runs/small")
}

/// Damages one file of a folder, which is whole again afterwards.
fn check_file(path: &Path, read: impl Fn()) {
    let whole = fs::read(path).unwrap();
    let what = path.file_name().unwrap().to_string_lossy().into_owned();
    check(&what, &whole, |damaged| {
        fs::write(path, damaged).unwrap();
        read();
    });
    fs::write(path, whole).unwrap();
}

/// One after the other: the largest piece of memory is one for all.
#[test]
fn damaged_files_are_answered_in_words() {
    let place = Place::new();
    let study = finished(&place);
    let run = study.join("swiglu/seed-0");
    let folder = RunFolder::new(&run);

    studies(&place);
    corpora(&place);
    // What a hash tells at once would not be read.
    place.forget_hashes("swiglu/seed-0");
    let files =
        ["status.json", "meta.json", "metrics.jsonl", "probes.jsonl"].map(|file| format!("swiglu/seed-0/{file}"));
    for file in std::iter::once("study.json".to_string()).chain(files) {
        check_file(&study.join(file), || {
            in_words(Report::read(&study).and_then(|report| report.write(&place.path("reports"))));
            in_words(study::long_table(&study));
        });
    }
    let sampling = Sampling { prompt: String::new(), n_tokens: 3, temperature: 1.0, seed: 0 };
    for file in ["config.toml", "tokenizer.json", "checkpoints/final/model.safetensors"] {
        check_file(&run.join(file), || in_words(train::sample(&folder, &sampling)));
    }
    exchange(&place);
    checkpoints(&place, &run);
}

fn studies(place: &Place) {
    let corpus = place.path("text.txt").display().to_string();
    let text = STUDY.replace("corpus = \"text.txt\"", &format!("corpus = \"{corpus}\""))
        + "\n[grid]\nmodel.norm = [\"layernorm\", \"rmsnorm\"]\ntrain.weight_decay = [0.0, 0.1]\n";
    let text = text.replace("[train]\n", "[train]\nlr = { sweep = [1e-3, 3e-3] }\n");
    let file = place.path("fuzzed.toml");
    check("a study", text.as_bytes(), |damaged| {
        fs::write(&file, damaged).unwrap();
        in_words(
            Plan::read(&file, &[], Backend::Flex, None)
                .map(|plan| (plan.to_string(), plan.runs(), plan.memory_bytes())),
        );
        in_words(study::description(&file));
    });
    fs::write(&file, STUDY.replace("text.txt", &corpus)).unwrap();
    check("--set", b"model.d_model=32", |damaged| {
        let change = Override::from_assignment(&String::from_utf8_lossy(damaged));
        let plan = change.map_err(anyhow::Error::from).and_then(|it| Plan::read(&file, &[it], Backend::Flex, None));
        in_words(plan);
    });
    let claims: Vec<PathBuf> =
        fs::read_dir("../../experiments/claims").unwrap().map(|entry| entry.unwrap().path()).collect();
    for claim in claims.iter().take(2) {
        check("a claim", &fs::read(claim).unwrap(), |damaged| {
            fs::write(&file, damaged).unwrap();
            in_words(Claim::read(&file));
        });
    }
}

fn corpora(place: &Place) {
    let text = place.path("text.txt");
    for tokenizer in ["char", "bpe-300", "gpt2"] {
        let folder = place.path(&format!("tokens-{tokenizer}"));
        let kind = tokenizer.parse().unwrap();
        data::write_tokens(text.to_str().unwrap(), &kind, &folder).unwrap();
        let load = || {
            let config = DataConfig { corpus: folder.display().to_string(), tokenizer: kind.clone() };
            let loaded = Dataset::load(&config, 8);
            in_words(loaded.map(|data| (data.train_batch(0, 1, 4), data.valid_batches(4).count())).map_err(Into::into));
        };
        check_file(&folder.join("train.bin"), load);
        check_file(&folder.join("tokens.json"), load);
        let json = folder.join("tokenizer.json");
        // Two megabytes of GPT-2's are too many to read again and again.
        if tokenizer != "gpt2" {
            check_file(&json, || {
                load();
                in_words(Tokenizer::open(&json).map_err(Into::into).and_then(|tokenizer| {
                    let ids = tokenizer.encode("line 7 of a text; é\u{0}")?;
                    Ok(tokenizer.decode(&ids)?)
                }));
            });
        }
    }
}

fn exchange(place: &Place) {
    place.ok(&["export", "runs/small/baseline/seed-0", "--to", "hf", "--out", "hf"]);
    let folder = place.path("hf");
    for file in ["config.json", "model.safetensors"] {
        check_file(&folder.join(file), || in_words(train::hf::import(&folder).map_err(Into::into)));
    }
}

/// The files of a checkpoint, also behind a manifest that was made for them.
fn checkpoints(place: &Place, run: &Path) {
    let mut config = RunFolder::new(run).config().unwrap();
    config.train.steps += 1;
    let checkpoint = "checkpoints/step-00000012";
    let again = place.path("again");
    let go_on = |file: &str, damaged: &[u8], is_sealed: bool| {
        let _ = fs::remove_dir_all(&again);
        fs::create_dir_all(again.join(checkpoint)).unwrap();
        for name in ["config.toml", "meta.json", "metrics.jsonl", "probes.jsonl", "tokenizer.json", "status.json"] {
            fs::copy(run.join(name), again.join(name)).unwrap();
        }
        for name in ["model.bpk", "optimizer.bpk", "state.json", "manifest"] {
            fs::copy(run.join(checkpoint).join(name), again.join(checkpoint).join(name)).unwrap();
        }
        let path = if file == "probes.jsonl" { again.join(file) } else { again.join(checkpoint).join(file) };
        let was = fs::read(&path).unwrap();
        fs::write(&path, damaged).unwrap();
        if is_sealed {
            let manifest = again.join(checkpoint).join("manifest");
            let text = fs::read_to_string(&manifest).unwrap();
            let line = text.lines().next().unwrap();
            let size = |bytes: &[u8]| {
                format!("\"{file}\":{{\"bytes\":{},\"blake3\":\"{}\"}}", bytes.len(), blake3::hash(bytes))
            };
            let line = line.replace(&size(&was), &size(damaged));
            fs::write(&manifest, format!("{line}\n{}\n", blake3::hash(line.as_bytes()))).unwrap();
        }
        let provenance =
            Provenance { commit: String::new(), version: String::new(), command: String::new(), selftest: None };
        let stop = Arc::new(AtomicBool::new(false));
        in_words(train::run(&config, &again, provenance, Display::Plain, stop));
    };
    let probes = fs::read(run.join("probes.jsonl")).unwrap();
    check("probes.jsonl, of a run that goes on", &probes, |damaged| go_on("probes.jsonl", damaged, false));
    for file in ["model.bpk", "optimizer.bpk", "state.json", "manifest"] {
        let whole = fs::read(run.join(checkpoint).join(file)).unwrap();
        check(file, &whole, |damaged| go_on(file, damaged, false));
        if file != "manifest" {
            check(&format!("{file}, sealed"), &whole, |damaged| go_on(file, damaged, true));
        }
    }
}
