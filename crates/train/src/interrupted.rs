//! Runs that are interrupted, and end as if they had not been.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use burn::module::Module;
use burn::train::Learner;
use burn_pack::{Reader, Scalar, Writer};
use data::Dataset;
use disk::{Disk, Storage};
use model::{Measure, NormKind, NormPlacement};

use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::config::tests::tiny;
use crate::format::FORMAT;
use crate::learner::{LanguageModel, gradients, learner, learner_of, resumed, update};
use crate::run::run_in;
use crate::{
    Backend, BadFile, Display, Ending, Existing, OnSpike, ProbeConfig, Provenance, Refused, RunConfig, RunFolder,
    State, first_difference, new_aside, set_aside_unusable,
};

/// A disk whose n-th call fails half-way, and all after it if it is full.
struct Failing {
    calls: AtomicUsize,
    at: AtomicUsize,
    is_full: bool,
    /// The name after which it is full.
    after: String,
}

impl Failing {
    fn at(at: usize, is_full: bool) -> Arc<Self> {
        Arc::new(Failing { calls: AtomicUsize::new(0), at: at.into(), is_full, after: "none".into() })
    }

    /// Full once something has been renamed to `after`.
    fn after(after: String) -> Arc<Self> {
        Arc::new(Failing { calls: AtomicUsize::new(0), at: usize::MAX.into(), is_full: true, after })
    }

    fn fails(&self) -> bool {
        let (call, at) = (self.calls.fetch_add(1, Ordering::Relaxed), self.at.load(Ordering::Relaxed));
        call == at || self.is_full && call > at
    }

    fn or<T>(&self, then: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.fails() { Err(ErrorKind::StorageFull.into()) } else { then() }
    }
}

impl Storage for Failing {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.or(|| Disk.create_dir(path))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if self.fails() {
            fs::write(path, &bytes[..bytes.len() / 2])?;
            return Err(ErrorKind::StorageFull.into());
        }
        Disk.write(path, bytes)
    }

    fn append(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        if self.fails() {
            file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(ErrorKind::StorageFull.into());
        }
        Disk.append(file, bytes)
    }

    fn cut(&self, file: &File, bytes: u64) -> io::Result<()> {
        self.or(|| Disk.cut(file, bytes))
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.or(|| Disk.sync(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.or(|| Disk.rename(from, to))?;
        if to.ends_with(&self.after) {
            self.at.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.or(|| Disk.remove(path))
    }
}

/// A folder for runs of a small text.
struct Place {
    dir: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// burn's generator for dropout is one for the whole process: a run of one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..400).map(|i| format!("line {} of a text; ", i * i % 97)).collect();
        fs::write(dir.path().join("text.txt"), text).unwrap();
        Place { dir, _alone: alone() }
    }

    /// A run of the text; 13 steps, checkpoints at 3, 6, 9, 12 and 13, evaluations at 6, 12 and 13, looks at 0, 4, 8, 12 and 13.
    fn config(&self) -> RunConfig {
        let mut config = tiny();
        config.data.corpus = self.dir.path().join("text.txt").display().to_string();
        config.train.steps = 13;
        config.probe = ProbeConfig { on: true, every: 4 };
        let data = Dataset::load(&config.data, config.model.seq_len).unwrap();
        config.corpus_sha256 = data.origin.sha256.clone();
        config.tokenizer_sha256 = data.tokenizer.sha256().unwrap();
        config.vocab_size = data.tokenizer.vocab_size();
        config
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn train(&self, name: &str, config: &RunConfig, storage: Arc<dyn Storage>) -> Result<Ending> {
        let provenance =
            Provenance { commit: "test".into(), version: String::new(), command: String::new(), selftest: None };
        let folder = RunFolder::on(self.path(name), storage);
        if let Existing::Shorter(_) = folder.existing(config)? {
            folder.copy_aside(&new_aside(self.dir.path())?, &folder.config()?)?;
        }
        set_aside_unusable(&folder, config, || false)?;
        run_in(&folder, config, provenance, Display::Plain, Arc::new(AtomicBool::new(false)))
    }

    /// Trains until a call to the disk fails; the failure, if one was met.
    fn fail(&self, name: &str, config: &RunConfig, at: usize, is_full: bool) -> Option<anyhow::Error> {
        self.train(name, config, Failing::at(at, is_full)).err()
    }

    /// Trains until the checkpoint of `step` is whole, and then the disk is full.
    fn stop_after(&self, name: &str, config: &RunConfig, step: usize) {
        self.train(name, config, Failing::after(format!("step-{step:08}"))).unwrap_err();
        assert!(self.path(name).join(format!("checkpoints/step-{step:08}")).exists());
    }

    fn finish(&self, name: &str, config: &RunConfig) -> RunFolder {
        assert_eq!(self.train(name, config, Arc::new(Disk)).unwrap(), Ending::Done, "{name}");
        RunFolder::new(self.path(name))
    }

    fn check_same(&self, whole: &RunFolder, name: &str, config: &RunConfig, what: &str) {
        let second = self.finish(name, config);
        assert_eq!(first_difference(whole, &second).unwrap(), None, "{what}");
    }

    fn checkpoints(&self, name: &str, config: &RunConfig) -> Checkpoints {
        Checkpoints::open(&RunFolder::new(self.path(name)), config).unwrap()
    }

    /// The step of the newest checkpoint that can be used.
    fn newest(&self, name: &str, config: &RunConfig) -> Option<usize> {
        self.checkpoints(name, config).newest(|checkpoint| Ok(checkpoint.state.step)).unwrap()
    }

    fn copy(&self, from: &str, to: &str) {
        fn copy(from: &Path, to: &Path) {
            fs::create_dir_all(to).unwrap();
            for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
                let target = to.join(entry.file_name());
                if entry.path().is_dir() {
                    copy(&entry.path(), &target);
                } else {
                    fs::copy(entry.path(), target).unwrap();
                }
            }
        }
        let _ = fs::remove_dir_all(self.path(to));
        copy(&self.path(from), &self.path(to));
    }
}

#[test]
fn whatever_write_fails_the_run_goes_on_exactly() {
    let place = Place::new();
    let mut config = place.config();
    config.model.dropout = 0.2;
    let whole = place.finish("whole", &config);
    for is_full in [true, false] {
        let mut n_calls = 0;
        for at in 0.. {
            let name = format!("{is_full}-{at}");
            let Some(error) = place.fail(&name, &config, at, is_full) else { break };
            assert!(error.chain().any(|cause| cause.is::<io::Error>()), "call {at}: {error:#}");
            assert!(format!("{error:#}").contains(&name), "call {at}: {error:#}");
            // What had been a checkpoint is one still.
            let steps: BTreeSet<usize> = fs::read_dir(place.path(&name).join("checkpoints"))
                .into_iter()
                .flatten()
                .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_prefix("step-")?.parse().ok())
                .collect();
            assert_eq!(
                place.path(&name).exists().then(|| place.newest(&name, &config)).flatten(),
                steps.last().copied()
            );
            place.check_same(&whole, &name, &config, &format!("call {at} of the disk failed"));
            fs::remove_dir_all(place.path(&name)).unwrap();
            n_calls += 1;
        }
        assert!(n_calls > 100, "{n_calls}");
    }
}

#[test]
fn every_kind_of_run_goes_on_exactly() {
    let place = Place::new();
    let check = |what: &str, change: &dyn Fn(&mut RunConfig)| {
        let mut config = place.config();
        change(&mut config);
        let (whole, part) = (format!("{what}-whole"), format!("{what}-part"));
        // That a state is saved changes nothing either.
        let mut unsaved = config.clone();
        unsaved.checkpoint.every = 1000;
        let whole = place.finish(&whole, &unsaved);
        place.stop_after(&part, &config, 9);
        let before = RunFolder::new(place.path(&part)).metrics().unwrap();
        assert!(before.last().unwrap().step >= 9, "{what}");
        place.check_same(&whole, &part, &config, what);
        let meta = RunFolder::new(place.path(&part)).meta().unwrap();
        assert_eq!(meta.resumed.iter().map(|resumed| resumed.step).collect::<Vec<_>>(), [9], "{what}");
        let (ours, theirs) = (whole.path.join("tokenizer.json"), place.path(&part).join("tokenizer.json"));
        assert_eq!(fs::read(ours).unwrap(), fs::read(theirs).unwrap());
    };
    check("dropout", &|c| c.model.dropout = 0.3);
    check("accumulation", &|c| (c.train.grad_accum_steps, c.model.dropout) = (2, 0.3));
    check("dyt", &|c| c.model.norm = NormKind::Dyt);
    check("running-statistics", &|c| c.model.norm = NormKind::BatchNorm);
    check("post-norm", &|c| (c.model.norm, c.model.norm_placement) = (NormKind::LayerNorm, NormPlacement::Post));
    check("grouped-queries", &|c| c.model.n_kv_heads = 1);
    check("plain", &|c| c.kernels = kernels::Kernels::Plain);
    check("best", &|c| c.checkpoint.keep_best = true);
    if Backend::Ndarray.require().is_ok() {
        check("ndarray", &|c| c.backend = Backend::Ndarray);
    }
}

/// Dropout, running statistics and moments are what a look could disturb.
#[test]
fn two_hundred_steps_are_the_same_whether_anyone_looks_or_not() {
    let place = Place::new();
    for norm in [NormKind::LayerNorm, NormKind::BatchNorm, NormKind::Dyt] {
        for kernels in [kernels::Kernels::Fused, kernels::Kernels::Plain] {
            let mut config = RunConfig { kernels, ..place.config() };
            (config.model.norm, config.model.dropout, config.model.ffn) = (norm, 0.1, model::Ffn::Relu);
            config.train.steps = 200;
            config.train.eval_every = 100;
            config.probe.every = 20;
            let name = format!("{}-{}", <&str>::from(norm), <&str>::from(kernels));
            let probed = place.finish(&name, &config);
            let lines = probed.probes(&config, State::Done).unwrap();
            let steps: Vec<usize> = lines.iter().map(|line| line.step).collect();
            // Behind the last look stands what the whole validation split has left silent.
            assert_eq!(steps, (0..=10).map(|i| 20 * i).chain([200]).collect::<Vec<_>>());
            assert_eq!(lines[11].values.keys().collect::<Vec<_>>(), [&Measure::Dead]);
            // What the first windows have woken is not dead.
            for ((dead, silent), share) in
                lines[11].silent.iter().zip(&lines[10].silent).zip(&lines[11].values[&Measure::Dead])
            {
                assert!(dead.iter().all(|unit| silent.contains(unit)));
                assert_eq!(*share, Some(dead.len() as f64 / config.model.d_ff as f64));
            }
            for line in &lines[..11] {
                let has = |measure| line.values.contains_key(&measure);
                let updates = line.values.get(&Measure::UpdateFfn).cloned().unwrap_or_default();
                assert_eq!(updates.len(), if line.step > 0 { config.model.n_layers } else { 0 });
                assert!(updates.iter().all(|ratio| ratio.is_some_and(|ratio| ratio > 1e-5)), "{updates:?}");
                assert_eq!(has(Measure::EvalLoss), norm == NormKind::BatchNorm);
            }
            config.probe.on = false;
            let alone = place.finish(&(name + "-alone"), &config);
            assert!(alone.probes(&config, State::Done).unwrap().is_empty());
            fs::copy(alone.path.join("config.toml"), probed.path.join("config.toml")).unwrap();
            assert_eq!(first_difference(&probed, &alone).unwrap(), None, "{norm:?}, {kernels:?}");
        }
    }
}

#[test]
fn weights_alone_are_not_enough() {
    let place = Place::new();
    let config = place.config();
    let whole = place.finish("whole", &config).metrics().unwrap();
    place.stop_after("part", &config, 9);
    let device = config.backend.device().unwrap().autodiff();
    let data = Dataset::load(&config.data, config.model.seq_len).unwrap();
    let go_on = |mut learner: Learner<LanguageModel>| {
        let mut step = |step| {
            let batch = data.train_batch(config.seed, step, config.train.batch_size);
            let (report, grads, _) = gradients(&learner, &batch, &config, step);
            update(&mut learner, Some(grads));
            report.loss()
        };
        [step(10), step(11)]
    };
    let at = |step| whole.iter().find(|line| line.step == step).unwrap().loss;
    let checkpoints = place.checkpoints("part", &config);
    let exact = checkpoints.newest(|checkpoint| Ok(go_on(resumed(&config, &device, checkpoint)?)));
    assert_eq!(exact.unwrap().unwrap(), [at(10), at(11)]);
    let weights_only = |Checkpoint { model, state, .. }: Checkpoint| {
        let model = learner(&config, &device).model().load_record(model);
        Ok(go_on(learner_of(model, &config, state.step)))
    };
    let [first, second] = checkpoints.newest(weights_only).unwrap().unwrap();
    assert!(first == at(10) && (second - at(11)).abs() > 1e-3, "{second} against {}", at(11));
}

/// burn starts moments that it does not find anew, and panics where those it finds do not fit.
#[test]
fn moments_that_are_not_the_models_are_refused() {
    type Tensors = Vec<burn_pack::Tensor>;
    type Scalars = BTreeMap<String, Scalar>;
    let place = Place::new();
    let config = place.config();
    let device = config.backend.device().unwrap().autodiff();
    place.stop_after("part", &config, 9);
    let checkpoints = place.checkpoints("part", &config);
    let with = |change: &dyn Fn(&mut Tensors, &mut Scalars)| {
        let changed = |mut checkpoint: Checkpoint| {
            let reader = Reader::from_bytes(checkpoint.optimizer).unwrap();
            let mut scalars = reader.scalars().clone();
            let mut tensors = reader.into_tensors().unwrap();
            change(&mut tensors, &mut scalars);
            let mut writer = Writer::new(tensors);
            for (name, value) in &scalars {
                writer = writer.with_scalar(name, *value);
            }
            checkpoint.optimizer = writer.into_bytes().unwrap();
            resumed(&config, &device, checkpoint).map(|_| ())
        };
        checkpoints.newest(changed).map(|_| ())
    };
    with(&|_, _| ()).unwrap();
    let set = |end: &'static str, value: Option<Scalar>| {
        move |_: &mut Tensors, scalars: &mut Scalars| {
            let name = scalars.keys().find(|name| name.ends_with(end)).unwrap().clone();
            scalars.remove(&name);
            scalars.extend(value.map(|value| (name, value)));
        }
    };
    let numbers = [None, Some(Scalar::UInt(0)), Some(Scalar::UInt(1 << 40)), Some(Scalar::Float(2.0))];
    for value in numbers {
        for end in [".__rank", ".time"] {
            let refused = with(&set(end, value)).unwrap_err().to_string();
            assert!(refused.contains("it lacks the moments of a parameter"), "{end} {value:?}: {refused}");
        }
    }
    for n_kept in [0, 1] {
        let refused = with(&|tensors, _| tensors.truncate(n_kept)).unwrap_err().to_string();
        assert!(refused.contains("it lacks the moments of a parameter"), "{refused}");
    }
    let rename = |tensors: &mut Tensors, _: &mut _| tensors[0].name.push('x');
    assert!(with(&rename).is_err());
    let add = |_: &mut Tensors, scalars: &mut Scalars| {
        scalars.insert("7.__rank".into(), Scalar::UInt(99));
    };
    let refused = with(&add).unwrap_err().to_string();
    assert!(refused.contains("it holds 1 values that are none of a parameter's"), "{refused}");
}

#[test]
fn damage_is_found_and_the_checkpoint_before_it_used() {
    let place = Place::new();
    let config = place.config();
    place.stop_after("part", &config, 9);
    let newest = Path::new("checkpoints/step-00000009");
    assert_eq!(place.newest("part", &config), Some(9));
    let files = ["model.bpk", "optimizer.bpk", "state.json", "manifest"];
    let mut n_cases = 0;
    for file in files {
        let bytes = fs::read(place.path("part").join(newest).join(file)).unwrap();
        let mut cases: Vec<Option<Vec<u8>>> = vec![None, Some(vec![])];
        cases.extend([1, bytes.len() / 2, bytes.len() - 1].map(|n| Some(bytes[..n].to_vec())));
        cases.push(Some([bytes.as_slice(), b"x"].concat()));
        for i in 0..64 {
            let mut flipped = bytes.clone();
            flipped[i * (bytes.len() - 1) / 63] ^= 1 << (i % 8);
            cases.push(Some(flipped));
        }
        for case in cases {
            place.copy("part", "hurt");
            let path = place.path("hurt").join(newest).join(file);
            match &case {
                Some(hurt) => fs::write(&path, hurt).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            assert_eq!(place.newest("hurt", &config), Some(6), "{file}: {:?}", case.map(|hurt| hurt.len()));
            assert!(place.path("hurt/checkpoints/unusable-step-00000009").exists(), "it is kept, under another name");
            n_cases += 1;
        }
    }
    assert_eq!(n_cases, 4 * 70);
    // Metrics that are not those of the checkpoint make it unusable too.
    place.copy("part", "hurt");
    let path = place.path("hurt/metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("\"step\":8,", "\"step\":7,", 1)).unwrap();
    assert_eq!(place.newest("hurt", &config), Some(6));
    place.copy("part", "hurt");
    fs::write(&path, "").unwrap();
    let error = place.train("hurt", &config, Arc::new(Disk)).unwrap_err();
    assert!(error.is::<BadFile>(), "{error:#}");
    let text = error.to_string();
    assert!(
        text.contains("has no checkpoint that can be used (") && text.contains("metrics.jsonl: its first "),
        "{text}"
    );
    assert!(place.path("hurt/checkpoints/step-00000009").exists(), "what may be mended is left");
    fs::write(&path, fs::read(place.path("part/metrics.jsonl")).unwrap()).unwrap();
    let whole = place.finish("whole", &config);
    place.check_same(&whole, "hurt", &config, "mended");
}

#[test]
fn a_foreign_or_newer_checkpoint_is_not_used() {
    let place = Place::new();
    let (config, other) = (place.config(), RunConfig { seed: 1, ..place.config() });
    place.stop_after("part", &config, 6);
    place.stop_after("other", &other, 9);
    let name = "checkpoints/step-00000009";
    place.copy(&format!("other/{name}"), &format!("part/{name}"));
    assert_eq!(place.newest("part", &config), Some(6));
    let manifest = place.path("part/checkpoints/step-00000006/manifest");
    let text = fs::read_to_string(&manifest).unwrap();
    let line = text.lines().next().unwrap().replace(&format!("\"format\":{FORMAT}"), "\"format\":99");
    fs::write(&manifest, format!("{line}\n{}\n", blake3::hash(line.as_bytes()))).unwrap();
    let error = place.train("part", &config, Arc::new(Disk)).unwrap_err();
    assert!(error.to_string().contains("is of format 99, and this program reads formats 2 to "), "{error}");
    assert!(error.is::<BadFile>() && manifest.exists(), "it is left for the newer program");
}

#[test]
fn another_config_is_refused_and_nothing_lost() {
    let place = Place::new();
    let config = place.config();
    place.stop_after("part", &config, 6);
    let mut other = config.clone();
    other.train.lr = 0.5;
    let error = place.train("part", &other, Arc::new(Disk)).unwrap_err();
    let text = error.to_string();
    assert!(
        error.is::<Refused>() && text.contains("(train.lr = 0.01, now 0.5); finish it with its original command"),
        "{text}"
    );
    let seed = place.train("part", &RunConfig { seed: 3, ..config.clone() }, Arc::new(Disk)).unwrap_err().to_string();
    assert!(seed.contains("(tiny/seed-0 of study test, now tiny/seed-3)"), "{seed}");
    let whole = place.finish("whole", &config);
    place.check_same(&whole, "part", &config, "after a refusal");
}

#[test]
fn a_run_at_a_constant_rate_can_be_given_more_steps() {
    let place = Place::new();
    let mut config = place.config();
    config.train.min_lr_factor = 1.0;
    let longer = RunConfig { train: crate::TrainConfig { steps: 20, ..config.train.clone() }, ..config.clone() };
    let whole = place.finish("whole", &longer);
    // A look that is due after the 12th step of both, and one that only the end of the shorter run asks for.
    for steps in [12, 13] {
        let name = format!("grown-from-{steps}");
        config.train.steps = steps;
        place.finish(&name, &config);
        place.check_same(&whole, &name, &longer, &name);
        assert_eq!(RunFolder::new(place.path(&name)).config().unwrap(), longer);
    }
}

#[test]
fn a_run_that_is_given_more_steps_is_never_taken_for_done() {
    let place = Place::new();
    let mut config = place.config();
    config.train.min_lr_factor = 1.0;
    let longer = RunConfig { train: crate::TrainConfig { steps: 20, ..config.train.clone() }, ..config.clone() };
    let whole = place.finish("whole", &longer);
    place.finish("short", &config);
    for at in 0.. {
        place.copy("short", "grown");
        if place.fail("grown", &longer, at, true).is_none() {
            assert!(at > 30, "{at}");
            break;
        }
        let run = RunFolder::new(place.path("grown"));
        if run.status().unwrap().unwrap().state == State::Done {
            let (steps, last) = (run.config().unwrap().train.steps, run.metrics().unwrap().last().unwrap().step);
            assert_eq!(steps, last, "call {at}");
        }
        place.check_same(&whole, "grown", &longer, &format!("call {at} of the disk failed"));
    }
}

#[test]
fn checkpoints_are_kept_as_asked() {
    let place = Place::new();
    let names = |name: &str| {
        let entries = fs::read_dir(place.path(name).join("checkpoints")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
    };
    let mut config = place.config();
    // The disk is full before the oldest can be removed: there is one more than what is kept.
    for (keep_last, kept) in [(1, [9, 12].as_slice()), (3, &[3, 6, 9, 12])] {
        config.checkpoint.keep_last = keep_last;
        let _ = fs::remove_dir_all(place.path("part"));
        place.stop_after("part", &config, 12);
        assert_eq!(names("part"), kept.iter().map(|step| format!("step-{step:08}")).collect());
    }
    fs::create_dir(place.path("part/checkpoints/.partial-step-00000013")).unwrap();
    assert_eq!(place.newest("part", &config), Some(12));
    assert_eq!(names("part").len(), 4, "what was half-written is gone");
    place.finish("part", &config);
    assert_eq!(names("part"), ["final".to_string()].into(), "nothing is needed any more");
    // The learning rate makes the loss rise again: the best is not the last.
    config.checkpoint.keep_best = true;
    config.train.lr = 5.0;
    let run = place.finish("best", &config);
    let valid = run.metrics().unwrap().into_iter().filter(|line| line.bits_per_byte.is_some());
    let best = valid.min_by(|a, b| a.loss.total_cmp(&b.loss)).unwrap().step;
    assert_eq!(names("best"), ["final".to_string(), format!("step-{best:08}")].into());
}

#[test]
fn a_link_in_place_of_checkpoints_is_refused() {
    let place = Place::new();
    let config = place.config();
    place.stop_after("part", &config, 9);
    fs::rename(place.path("part/checkpoints"), place.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(place.path("elsewhere"), place.path("part/checkpoints")).unwrap();
    let error = place.train("part", &config, Arc::new(Disk)).unwrap_err().to_string();
    assert!(error.ends_with("part/checkpoints: is not a folder of this run; move it away"), "{error}");
    assert!(place.path("elsewhere/step-00000009").exists());
}

#[test]
fn divergence_names_its_step_its_tensor_and_the_last_checkpoint() {
    let place = Place::new();
    let mut config = place.config();
    (config.train.lr, config.train.warmup_steps, config.train.grad_clip) = (1e38, 0, 1e30);
    config.checkpoint.every = 1;
    let Ending::Diverged { step, message } = place.train("run", &config, Arc::new(Disk)).unwrap() else { panic!() };
    assert!(
        message.starts_with(&format!("step {step}: the loss is not a finite number; the first tensor")),
        "{message}"
    );
    assert!(message.contains("windows that start at training tokens "), "{message}");
    assert!(message.ends_with(&format!("last checkpoint: checkpoints/step-{:08}", step - 1)), "{message}");
    let status = RunFolder::new(place.path("run")).status().unwrap().unwrap();
    assert_eq!((status.state, status.message), (State::Diverged, Some(message.clone())));
    // Run again, it diverges again in the same words.
    let again = place.train("run", &config, Arc::new(Disk)).unwrap();
    assert_eq!(again, Ending::Diverged { step, message });
}

#[test]
fn a_spike_is_put_down_skipped_or_ends_the_run() {
    let place = Place::new();
    // A text that changes its kind half-way is learnt, and then a window of the other kind leaps out.
    let text = "ab".repeat(3000) + &(0..60).map(|i| char::from(b'!' + i)).collect::<String>() + &"ab".repeat(400);
    fs::write(place.path("text.txt"), text).unwrap();
    let train = |name: &str, on_spike| {
        let mut config = place.config();
        (config.train.steps, config.train.batch_size) = (400, 1);
        (config.train.on_spike, config.train.eval_every, config.checkpoint.every) = (on_spike, 400, 20);
        (place.train(name, &config, Arc::new(Disk)).unwrap(), RunFolder::new(place.path(name)), config)
    };
    let (_, warned, config) = train("warned", OnSpike::Warn);
    let spikes =
        |run: &RunFolder| run.metrics().unwrap().into_iter().filter(|line| line.spike.is_some()).collect::<Vec<_>>();
    let first = spikes(&warned).first().expect("a window of the other kind").step;
    assert!(spikes(&warned)[0].spike.unwrap() > 6.0);
    let (_, skipped, _) = train("skipped", OnSpike::Skip);
    assert_eq!(spikes(&skipped)[0].step, first);
    let loss = |run: &RunFolder, step| run.metrics().unwrap().iter().find(|line| line.step == step).unwrap().loss;
    assert_eq!(loss(&warned, first), loss(&skipped, first));
    assert_ne!(loss(&warned, first + 1), loss(&skipped, first + 1));
    let (stopped, ..) = train("stopped", OnSpike::Stop);
    let Ending::Diverged { step, message } = stopped else { panic!("{stopped:?}") };
    assert!(step == first && message.contains("standard deviations above the mean"), "{message}");
    // The losses that one is held against are part of the state.
    let skipping =
        RunConfig { train: crate::TrainConfig { on_spike: OnSpike::Skip, ..config.train.clone() }, ..config };
    let step = (first - 1) / 20 * 20;
    assert!(step > 0, "the first spike, in step {first}, comes after a checkpoint");
    place.stop_after("part", &skipping, step);
    place.check_same(&skipped, "part", &skipping, "before a spike");
}
