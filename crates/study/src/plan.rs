//! From a study file to the full config of every run.

use std::path::{Path, PathBuf};

use data::{Account, Dataset};
use kernels::Kernels;
use model::{Budget, ModelConfig, NormKind, Parts};
use serde::{Deserialize, Serialize};
use train::format::{Record, from_json, stamped};
use train::{Backend, BadFile, ConfigError, RunConfig, RunFolder, is_there, read_text, write_whole};

use crate::Override;
use crate::numbers::grouped;
use crate::overrides::{Overlay, SWEEP, StudyText, combinations, parse, short};
use crate::rates::RateCurve;
use crate::settings::{Matching, Settings};

/// Largest difference to the reference that a matched study accepts, in what it matches.
const TOLERANCE: f64 = 0.01;

/// Largest number of runs of a variant; seeds from here on are for tuning.
const MOST_SEEDS: usize = 10_000;

/// Largest number of variants in a grid.
const MOST_COMBINATIONS: usize = 100;

/// Where the runs of a sweep lie in a study's folder.
pub const TUNING: &str = "tuning";

/// A study with every number final.
pub struct Plan {
    pub study: Study,
    pub(crate) settings: Settings,
    /// The reference first.
    pub(crate) variants: Vec<PlannedVariant>,
    pub(crate) text: Text,
}

/// What a plan says about its text.
pub(crate) struct Text {
    /// How it was parted, in words.
    pub(crate) split_rule: String,
    pub(crate) n_train: usize,
    pub(crate) n_valid: usize,
    /// Of both, those that are not mapped from a file.
    pub(crate) n_in_memory: usize,
    pub(crate) account: Option<Account>,
}

/// One variant with its budget.
pub(crate) struct PlannedVariant {
    /// The config of its run with seed 0.
    pub(crate) config: RunConfig,
    pub(crate) budget: Budget,
}

/// What is compared: `study.json`, which a report reads beside the run folders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    pub name: String,
    pub description: String,
    pub matching: Matching,
    /// Percent of perplexity within which a difference counts as none.
    pub margin: f64,
    pub seeds: usize,
    /// What the variants of a grid are made of.
    #[serde(default)]
    pub grid: Vec<Factor>,
    /// How each variant's learning rate is chosen, if it is.
    #[serde(default)]
    pub sweep: Option<Sweep>,
    /// The reference first.
    pub variants: Vec<Variant>,
}

/// A key with its levels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Factor {
    pub key: String,
    pub levels: Vec<String>,
}

/// Learning rates among which each variant's is chosen, on seeds that its results do not use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    pub rates: Vec<f64>,
    /// Runs of each variant at each rate.
    pub seeds: usize,
}

/// A variant as its study describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    pub name: String,
    /// What differs from the reference, as `key = value`.
    pub changes: Vec<String>,
    /// Hidden width of the feed-forward, which `match` may have chosen.
    pub d_ff: usize,
    /// Of a variant of the grid: the index of its level of each factor.
    #[serde(default)]
    pub levels: Vec<usize>,
    /// The learning rate that a sweep has chosen, once it has.
    #[serde(default)]
    pub lr: Option<f64>,
    /// The config of its run with seed 0; older versions did not say.
    #[serde(default, with = "as_toml")]
    pub config: Option<RunConfig>,
}

impl Plan {
    /// Reads the study file `file` and puts `overrides` on top of its baseline.
    ///
    /// # Errors
    /// Anything in the file that cannot be run, or a corpus that cannot be read.
    pub fn read(
        file: &Path,
        overrides: &[Override],
        backend: Backend,
        kernels: Option<Kernels>,
    ) -> anyhow::Result<Plan> {
        let shown = file.display().to_string();
        let text =
            disk::read_small_text(file).map_err(|error| ConfigError(format!("{shown}: cannot be read: {error}")))?;
        let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Plan::from_text(&name, &text, &shown, overrides, backend, kernels)
    }

    fn from_text(
        name: &str,
        text: &str,
        file: &str,
        overrides: &[Override],
        backend: Backend,
        kernels: Option<Kernels>,
    ) -> anyhow::Result<Plan> {
        backend.require()?;
        let kernels = kernels.unwrap_or(if backend.is_cpu() { Kernels::Fused } else { Kernels::Plain });
        let StudyText { own, variants: mut variant_texts, grid } = parse(text, file)?;
        let mut base = Overlay::baseline();
        let (mut rates, mut sweep_of) = (None, None);
        for change in own.iter().chain(overrides) {
            if let Some(factor) = grid.iter().find(|factor| factor[0].key == change.key) {
                let levels = Factor::of(factor).levels.join(", ");
                return Err(change.error(format!("`{}` is a factor of the grid: {levels}", change.key)).into());
            }
            if change.key == "reference" && !grid.is_empty() {
                return Err(change.error("the reference of a grid is the combination of its first levels").into());
            }
            match change.key.as_str() {
                SWEEP => {
                    let own = change.rates()?;
                    base.apply(&change.with("train.lr", own[own.len() / 2]))?;
                    rates = Some(own);
                    sweep_of = Some(change);
                }
                key => {
                    // A rate that is given ends the search for one.
                    rates = rates.filter(|_| key != "train.lr");
                    base.apply(change)?;
                }
            }
        }
        check_grid(&grid)?;
        let mut of_grid = combinations(&grid);
        if !of_grid.is_empty() {
            let reference = of_grid.remove(0);
            for factor in &grid {
                base.apply_to_variant(&factor[0])?;
            }
            base.set_reference(&reference.name);
        }
        variant_texts.splice(0..0, of_grid);
        let settings = base.settings()?;
        if sweep_of.is_none() {
            base.refuse_unused("tuning_seeds", "train.lr = { sweep = [...] }")?;
        }
        check_name(name, file)?;
        check_variant_name(&settings.reference, file)?;
        let Settings { seeds, margin, tuning_seeds, .. } = settings;
        for (key, value, is_right, wanted) in [
            ("seeds", seeds.to_string(), (1..=MOST_SEEDS).contains(&seeds), "between 1 and 10000"),
            ("margin", format!("{margin:?}"), (0.0..100.0).contains(&margin), "from 0 up to 100 percent"),
            ("tuning_seeds", tuning_seeds.to_string(), (1..=100).contains(&tuning_seeds), "between 1 and 100"),
        ] {
            if !is_right {
                let error = ConfigError(format!("{key} = {value}: must be {wanted}"));
                return Err(base.blame(&error).unwrap_or(error).into());
            }
        }
        // Before the text is cut into windows of a length that no model has.
        settings.model.validate().map_err(ConfigError).map_err(|error| base.blame(&error).unwrap_or(error))?;
        let data = Dataset::load(&settings.data, settings.model.seq_len)?;
        let tokenizer_sha256 = data.tokenizer.sha256()?;
        let run = |variant: &str, settings: &Settings| RunConfig {
            study: name.into(),
            variant: variant.into(),
            seed: 0,
            backend,
            kernels,
            corpus_sha256: data.origin.sha256.clone(),
            tokenizer_sha256: tokenizer_sha256.clone(),
            vocab_size: data.tokenizer.vocab_size(),
            redefined: vec![],
            model: settings.model.clone(),
            data: settings.data.clone(),
            train: settings.train.clone(),
            checkpoint: settings.checkpoint.clone(),
            probe: settings.probe.clone(),
        };
        let reference = PlannedVariant::new(run(&settings.reference, &settings))
            .map_err(|error| base.blame(&error).unwrap_or(error))?;
        let mut study = Study {
            name: name.into(),
            description: settings.description.clone(),
            matching: settings.matching,
            margin: settings.margin,
            seeds: settings.seeds,
            grid: grid.iter().map(|levels| Factor::of(levels)).collect(),
            sweep: rates.map(|rates| Sweep { rates, seeds: settings.tuning_seeds }),
            variants: vec![reference.description(vec![], vec![0; grid.len()])],
        };
        if let (Some(sweep), Some(change)) = (&study.sweep, sweep_of) {
            for &lr in &sweep.rates {
                let mut config = reference.config.clone();
                config.train.lr = lr;
                config.validate().map_err(|error| change.error(error))?;
            }
        }
        let mut variants = vec![reference];
        let mut known = vec![(settings.reference.clone(), settings.clone())];
        for text in variant_texts {
            check_variant_name(&text.name, &text.origin)?;
            if let Some(other) = study.variants.iter().find(|other| other.name.eq_ignore_ascii_case(&text.name)) {
                let problem = match other.name == text.name {
                    true => format!("a second variant named `{}`", text.name),
                    false => {
                        format!("`{}` and `{}` would share a folder on a disk that ignores case", other.name, text.name)
                    }
                };
                return Err(ConfigError(format!("{}: {problem}; choose another name", text.origin)).into());
            }
            let mut overlay = base.variant();
            for change in &text.overrides {
                if study.sweep.is_some() && change.key == "train.lr" {
                    return Err(change.error("the sweep chooses each variant's train.lr").into());
                }
                overlay.apply_to_variant(change)?;
            }
            let variant_settings = overlay.settings()?;
            if let Some((other, _)) = known.iter().find(|(_, other)| *other == variant_settings) {
                let same = format!("{}: variant `{}` is the same as `{other}`", text.origin, text.name);
                return Err(ConfigError(format!("{same}: it changes nothing that is not so already")).into());
            }
            known.push((text.name.clone(), variant_settings.clone()));
            let mut config = run(&text.name, &variant_settings);
            // Sizes that make no model are for `PlannedVariant::new` to report.
            if config.model.validate().is_ok() {
                match_width(&mut config, &variants[0], settings.matching, &text.origin)?;
            }
            let variant = PlannedVariant::new(config).map_err(|error| {
                overlay.blame(&error).unwrap_or_else(|| ConfigError(format!("{}: {error}", text.origin)))
            })?;
            let changes = text.overrides.iter().map(|change| format!("{} = {}", change.key, change.value)).collect();
            study.variants.push(variant.description(changes, text.levels));
            variants.push(variant);
        }
        let (n_train, n_valid, n_in_memory) = (data.n_train(), data.n_valid(), data.n_in_memory());
        let text = Text { split_rule: data.origin.split_rule, n_train, n_valid, n_in_memory, account: data.account };
        Ok(Plan { study, settings, variants, text })
    }

    /// That of all runs.
    pub fn backend(&self) -> Backend {
        self.variants[0].config.backend
    }

    /// Every run, one seed after the other, so that differences can be taken early. Of a study with a sweep, at rates that
    /// [`Plan::choose_rates`] has chosen.
    pub fn runs(&self) -> Vec<RunConfig> {
        let seeds = 0..self.study.seeds as u64;
        seeds
            .flat_map(|seed| self.variants.iter().map(move |variant| RunConfig { seed, ..variant.config.clone() }))
            .collect()
    }

    /// Bytes of memory that the largest run takes, about; `None` on a GPU.
    pub fn memory_bytes(&self) -> Option<f64> {
        let of = |variant: &PlannedVariant| {
            variant.config.backend.is_cpu().then(|| variant.config.memory_bytes(self.text.n_in_memory))
        };
        self.variants.iter().filter_map(of).max_by(f64::total_cmp)
    }

    /// The runs that choose learning rates; they lie in [`TUNING`] in a study's folder.
    pub fn tuning_runs(&self) -> Vec<RunConfig> {
        let Some(sweep) = &self.study.sweep else { return vec![] };
        let mut runs = vec![];
        for seed in sweep.tuning_seeds() {
            for variant in &self.variants {
                for &lr in &sweep.rates {
                    let mut config = RunConfig { seed, ..variant.config.clone() };
                    config.variant = tuning_name(&config.variant, lr);
                    config.train.lr = lr;
                    // Nobody reads what is inside of these.
                    config.probe.on = false;
                    runs.push(config);
                }
            }
        }
        runs
    }

    /// Gives each variant the rate with the lowest loss over the sweep's seeds, from the runs in a study's folder, which have all
    /// ended. Rates at which a run diverged are out, unless all are.
    ///
    /// # Errors
    /// A damaged run.
    pub fn choose_rates(&mut self, folder: &Path) -> anyhow::Result<()> {
        let Some(sweep) = &self.study.sweep else { return Ok(()) };
        for (variant, planned) in self.study.variants.iter_mut().zip(&mut self.variants) {
            let curve = RateCurve::read(folder, variant, sweep)?;
            // That all runs diverge is a result, and the lowest rate is the last to do so.
            let best = curve.best().unwrap_or(sweep.rates[0]);
            variant.lr = Some(best);
            planned.config.train.lr = best;
            variant.config = Some(planned.config.clone());
        }
        Ok(())
    }
}

impl Sweep {
    /// Seeds that no result uses.
    fn tuning_seeds(&self) -> impl Iterator<Item = u64> {
        (MOST_SEEDS as u64..).take(self.seeds)
    }

    /// The folders of one variant's runs at one rate.
    pub(crate) fn folders(&self, study_folder: &Path, variant: &str, lr: f64) -> impl Iterator<Item = RunFolder> {
        let (folder, name) = (study_folder.join(TUNING), tuning_name(variant, lr));
        self.tuning_seeds().map(move |seed| RunFolder::within(&folder, &name, seed))
    }
}

impl Factor {
    fn of(levels: &[Override]) -> Self {
        let words = levels.iter().map(|level| level.value.to_string().trim_matches('"').to_string());
        Factor { key: levels[0].key.clone(), levels: words.collect() }
    }
}

/// A config in a record, as the text that says its own format.
mod as_toml {
    use std::path::Path;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use train::RunConfig;

    pub(super) fn serialize<S: Serializer>(config: &Option<RunConfig>, to: S) -> Result<S::Ok, S::Error> {
        config.as_ref().map(RunConfig::to_toml).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RunConfig>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        let read = |text: String| RunConfig::from_toml(Path::new("the config of a variant"), &text);
        text.map(read).transpose().map_err(D::Error::custom)
    }
}

/// A tuning run's variant.
fn tuning_name(variant: &str, lr: f64) -> String {
    format!("{variant}-lr-{lr}")
}

impl Study {
    /// Its file in a folder of results.
    pub(crate) fn path(folder: &Path) -> PathBuf {
        folder.join("study.json")
    }

    /// Reads what [`Study::write`] wrote.
    ///
    /// # Errors
    /// A folder that is not a study's, or a damaged file.
    pub(crate) fn read(folder: &Path) -> Result<Self, BadFile> {
        let path = Study::path(folder);
        let text =
            read_text(&path).map_err(|error| BadFile::new(folder, format!("this is not a study's folder: {error}")))?;
        let study: Study = from_json(Record::Study, &path, &text)?;
        let is_sound = !study.variants.is_empty()
            && study.variants.iter().all(|variant| check_variant_name(&variant.name, "").is_ok())
            && study.seeds <= MOST_SEEDS
            && (0.0..100.0).contains(&study.margin)
            && study.sweep.iter().all(|sweep| sweep.seeds <= MOST_SEEDS && !sweep.rates.is_empty())
            && study.variants.iter().all(|variant| {
                let levels = variant.levels.iter().zip(&study.grid);
                variant.levels.is_empty()
                    || variant.levels.len() == study.grid.len()
                        && levels.into_iter().all(|(level, factor)| *level < factor.levels.len())
            });
        if !is_sound {
            return Err(BadFile::new(
                &path,
                "is damaged: its variants, seeds, margin, sweep and grid do not go together",
            ));
        }
        Ok(study)
    }

    /// Whether the learning rate of every variant is known.
    fn has_rates(&self) -> bool {
        self.sweep.is_none() || self.variants.iter().all(|variant| variant.lr.is_some())
    }

    /// Refuses a folder whose `study.json` cannot be read: it would be written over.
    ///
    /// # Errors
    /// A damaged file, or one of another format.
    pub fn check_earlier(folder: &Path) -> Result<(), BadFile> {
        let path = Study::path(folder);
        if !is_there(&path)? {
            return Ok(());
        }
        Study::read(folder).map(drop).map_err(|error| error.and("restore the file, or remove it: it is written again"))
    }

    /// Writes what a report needs beside the run folders. While learning rates are being chosen, an earlier study whose own runs can be
    /// reported stays.
    ///
    /// # Errors
    /// A folder that cannot be written, or a damaged earlier file.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        if !self.has_rates() && is_there(&Study::path(folder))? && Study::read(folder)?.has_rates() {
            return Ok(());
        }
        write_whole(&Study::path(folder), &(serde_json::to_string_pretty(&stamped(self))? + "\n"))
    }
}

impl PlannedVariant {
    fn new(config: RunConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        // For what is planned only: what an earlier version trained so can be read.
        if config.model.norm == NormKind::BatchNorm && config.train.grad_accum_steps > 1 {
            return Err(ConfigError(format!(
                "train.grad_accum_steps = {}: must be 1 with model.norm = \"batchnorm\", whose statistics are those of the whole batch",
                config.train.grad_accum_steps
            )));
        }
        let budget = config.model.budget(config.vocab_size);
        Ok(PlannedVariant { config, budget })
    }

    fn description(&self, changes: Vec<String>, levels: Vec<usize>) -> Variant {
        let RunConfig { variant, model, .. } = &self.config;
        Variant {
            name: variant.clone(),
            changes,
            d_ff: model.d_ff,
            levels,
            lr: None,
            config: Some(self.config.clone()),
        }
    }
}

/// Gives a variant the feed-forward width whose parameters, or operations, come nearest to the reference's. A swapped norm
/// leaves the width alone, so that pairs of runs share their weights; only where the models would still differ by more than
/// the tolerance, as without a position table, does the width make up for the rest.
fn match_width(
    config: &mut RunConfig,
    reference: &PlannedVariant,
    matching: Matching,
    origin: &str,
) -> Result<(), ConfigError> {
    let (vocab_size, model) = (config.vocab_size, &mut config.model);
    let (name, parts): (_, fn(Budget) -> Parts) = match matching {
        Matching::Params => ("parameters", |budget| budget.params),
        Matching::Flops => ("FLOPs per token", |budget| budget.flops),
        Matching::Width | Matching::Loose => return Ok(()),
    };
    let at = |model: &ModelConfig, d_ff: usize| parts(ModelConfig { d_ff, ..model.clone() }.budget(vocab_size));
    let wanted = parts(reference.budget);
    // Both counts grow with d_ff along a line.
    let slope = (at(model, 2).ffn - at(model, 1).ffn).max(1) as f64;
    let width = |count: fn(&Parts) -> usize| {
        let rest = count(&at(model, 1)) as f64 - slope;
        ((count(&wanted) as f64 - rest) / slope).round().max(1.0) as usize
    };
    let off = |d_ff: usize| at(model, d_ff).total() as f64 / wanted.total() as f64 - 1.0;
    let mut d_ff = width(|parts| parts.ffn);
    if off(d_ff).abs() > TOLERANCE {
        d_ff = width(Parts::total);
    }
    if off(d_ff).abs() > TOLERANCE {
        return Err(ConfigError(format!(
            "{origin}: variant `{}` has {} {name}, {:+.1}% against {} of `{}`, and d_ff cannot make up for it; write \
             match = \"width\" at the top to compare unequal budgets",
            config.variant,
            grouped(at(model, d_ff).total()),
            100.0 * off(d_ff),
            grouped(wanted.total()),
            reference.config.variant
        )));
    }
    model.d_ff = d_ff;
    Ok(())
}

/// Refuses a grid that nobody could train, and one whose factors or levels come twice.
fn check_grid(grid: &[Vec<Override>]) -> Result<(), ConfigError> {
    let mut n: usize = 1;
    for (i, factor) in grid.iter().enumerate() {
        let key = &factor[0].key;
        if grid[..i].iter().any(|other| other[0].key == *key) {
            return Err(factor[0].error(format!("grid.{key} is there twice")));
        }
        if let Some(level) =
            factor.iter().enumerate().find(|(i, level)| factor[..*i].iter().any(|other| other.value == level.value))
        {
            return Err(factor[0].error(format!("grid.{key} has the level {} twice", short(&level.1.value))));
        }
        n = n.saturating_mul(factor.len());
        if n > MOST_COMBINATIONS {
            let most = format!("the grid has more than {MOST_COMBINATIONS} combinations; take out levels or factors");
            return Err(factor[0].error(most));
        }
    }
    Ok(())
}

/// Names of variants lie beside the files of a study.
fn check_variant_name(name: &str, origin: &str) -> Result<(), ConfigError> {
    let folded = name.to_ascii_lowercase();
    if folded.contains('.') || folded.starts_with("replaced-") || folded == TUNING {
        return Err(ConfigError(format!(
            "{origin}: the name `{name}` is kept for files: use no `.`, no `replaced-` and not `{TUNING}`"
        )));
    }
    check_name(name, origin)
}

/// Names of studies and variants become folder names.
fn check_name(name: &str, origin: &str) -> Result<(), ConfigError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || name.len() > 100 || !name.chars().all(plain) {
        return Err(ConfigError(format!(
            "{origin}: the name `{name}` must be at most 100 letters, digits, `-`, `_` and `.`, for it names a folder"
        )));
    }
    Ok(())
}

/// The description in a study file, without a look at the rest.
///
/// # Errors
/// A file that cannot be read or is not TOML.
pub fn description(file: &Path) -> anyhow::Result<String> {
    let table: Result<toml::Table, _> = toml::from_str(&disk::read_small_text(file)?);
    let table = table.map_err(|error| ConfigError(error.message().replace('\n', " ")))?;
    Ok(table.get("description").and_then(|text| text.as_str()).unwrap_or_default().to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Plans a study file given as text.
    pub(crate) fn plan(text: &str) -> anyhow::Result<Plan> {
        Plan::from_text("study", text, "study.toml", &[], Backend::Flex, None)
    }

    fn check_error(text: &str, expected: &str) {
        assert_eq!(plan(text).err().unwrap().to_string(), expected);
    }

    #[test]
    fn the_default_study_reads_as_planned() {
        let text = include_str!("../../../experiments/rmsnorm-swiglu.toml");
        insta::assert_snapshot!(plan(text).unwrap());
    }

    #[test]
    fn a_gate_narrows_the_feed_forward_and_a_norm_leaves_it() {
        let text =
            "[[variant]]\nname = \"a\"\nmodel.ffn = \"swiglu\"\n[[variant]]\nname = \"b\"\nmodel.norm = \"rmsnorm\"\n";
        let widths = |text: &str| -> Vec<usize> {
            plan(text).unwrap().variants.iter().map(|variant| variant.config.model.d_ff).collect()
        };
        assert_eq!(widths(text), [512, 341, 512]);
        assert_eq!(widths(&format!("match = \"width\"\n{text}")), [512, 512, 512]);
        // Two thirds of 4 d_model are a whole number for multiples of 96.
        let exact = plan(&format!("[model]\nd_model = 96\nd_ff = 384\n{text}")).unwrap();
        assert_eq!(exact.variants[1].config.model.d_ff, 256);
        assert_eq!(exact.variants[1].budget.params.total(), exact.variants[0].budget.params.total());
    }

    #[test]
    fn budgets_can_be_matched_by_operations() {
        let text = "match = \"flops\"\n[model]\nbias = true\n[[variant]]\nname = \"a\"\nmodel.ffn = \"swiglu\"\n";
        let plan = plan(text).unwrap();
        let flops = |i: usize| plan.variants[i].budget.flops.ffn as f64;
        assert_eq!(plan.variants[1].config.model.d_ff, 341);
        assert!((flops(1) / flops(0) - 1.0).abs() < 0.002);
    }

    #[test]
    fn a_missing_position_table_is_made_up_for() {
        let text = "[model]\nseq_len = 512\n[[variant]]\nname = \"rope\"\nmodel.position = \"rope\"\n";
        let plan = plan(text).unwrap();
        let ratio = plan.variants[1].budget.params.total() as f64 / plan.variants[0].budget.params.total() as f64;
        assert!((ratio - 1.0).abs() < 0.001, "{ratio}");
    }

    #[test]
    fn budgets_that_cannot_be_matched_are_refused() {
        check_error(
            "[[variant]]\nname = \"deep\"\nmodel.n_layers = 40\n",
            "study.toml:1: variant `deep` has 2,675,328 parameters, +229.6% against 811,648 of `baseline`, and d_ff cannot \
             make up for it; write match = \"width\" at the top to compare unequal budgets",
        );
    }

    #[test]
    fn windows_have_a_length() {
        for corpus in ["tales", "../../README.md"] {
            check_error(
                &format!("[data]\ncorpus = \"{corpus}\"\n[model]\nseq_len = 0\n"),
                "study.toml:4: model.seq_len = 0: must be between 1 and 131072",
            );
        }
    }

    #[test]
    fn batchnorm_has_the_whole_batch_at_once() {
        let problem = "train.grad_accum_steps = 2: must be 1 with model.norm = \"batchnorm\", whose statistics are those of the whole batch";
        let text = "[train]\ngrad_accum_steps = 2\n[[variant]]\nname = \"a\"\nmodel.norm = \"batchnorm\"\n";
        check_error(text, &format!("study.toml:5: {problem}"));
        check_error(
            "tuning_seeds = 3\n",
            "study.toml:1: `tuning_seeds` has no effect: only train.lr = { sweep = [...] } uses it",
        );
    }

    #[test]
    fn names_that_share_a_folder_are_refused() {
        let two = |a: &str, b: &str| {
            format!(
                "[[variant]]\nname = \"{a}\"\nmodel.ffn = \"relu\"\n[[variant]]\nname = \"{b}\"\nmodel.ffn = \"silu\"\n"
            )
        };
        check_error(&two("a", "a"), "study.toml:4: a second variant named `a`; choose another name");
        check_error(
            &two("a", "A"),
            "study.toml:4: `a` and `A` would share a folder on a disk that ignores case; choose another name",
        );
        let problem = "`baseline` and `Baseline` would share a folder on a disk that ignores case; choose another name";
        check_error(&two("a", "Baseline"), &format!("study.toml:4: {problem}"));
        assert!(plan(&two("a", "Tuning")).is_err() && plan(&two("a", "b")).is_ok());
    }

    #[test]
    fn runs_of_a_seed_stand_together() {
        let plan = plan("seeds = 2\n[[variant]]\nname = \"a\"\nmodel.ffn = \"relu\"\n").unwrap();
        let runs: Vec<(String, u64)> = plan.runs().into_iter().map(|run| (run.variant, run.seed)).collect();
        let expected = [("baseline", 0), ("a", 0), ("baseline", 1), ("a", 1)];
        assert_eq!(runs, expected.map(|(name, seed)| (name.to_string(), seed)));
    }
}
