//! Differences to the baseline, read from a study file or the command line and applied one at a time, so that each
//! error can name the place it came from.

use serde::Deserialize;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Table, Value};
use train::ConfigError;

use crate::settings::{BASELINE, Settings};

/// Keys that every run of a study shares: a variant that changed them would not be compared on equal terms, or, with other
/// evaluations, would train the same weights.
const SHARED: [&str; 6] =
    ["data.corpus", "data.tokenizer", "model.seq_len", "train.steps", "train.batch_size", "train.eval_every"];

/// One key with the value it is given.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// Dotted, as in `model.norm`.
    pub key: String,
    pub value: Value,
    /// Where it was written: `experiments/dyt.toml:7` or `--set`.
    origin: String,
}

/// A variant of a study file.
#[derive(Clone, Debug)]
pub(crate) struct VariantText {
    pub(crate) name: String,
    pub(crate) overrides: Vec<Override>,
    pub(crate) origin: String,
    /// Of a variant of the grid: the index of its level of each factor.
    pub(crate) levels: Vec<usize>,
}

/// The key of the rates among which each variant's is chosen.
pub(crate) const SWEEP: &str = "train.lr.sweep";

/// What a study file says.
pub(crate) struct StudyText {
    /// Keys of all variants.
    pub(crate) own: Vec<Override>,
    pub(crate) variants: Vec<VariantText>,
    /// The factors of `[grid]`, each with its levels.
    pub(crate) grid: Vec<Vec<Override>>,
}

impl Override {
    /// From `key=value` on the command line. A value that is not TOML is taken as a string.
    ///
    /// # Errors
    /// An assignment without `=`, or control characters in what is not one TOML value.
    pub fn from_assignment(text: &str) -> Result<Self, ConfigError> {
        let Some((key, value)) = text.split_once('=') else {
            return Err(ConfigError(format!("--set {text}: must be KEY=VALUE, as in --set model.norm=rmsnorm")));
        };
        let (key, value) = (key.trim(), value.trim());
        let parsed = match value.parse::<Value>() {
            Ok(parsed) => parsed,
            Err(_) if value.contains(char::is_control) => {
                let start: String = value.chars().take(60).collect();
                return Err(ConfigError(format!(
                    "--set {key} = {start:?}: must be one TOML value, which holds line breaks and other control characters \
                     only where TOML allows them"
                )));
            }
            Err(_) => Value::String(value.to_string()),
        };
        Ok(Override { key: key.to_string(), value: parsed, origin: "--set".into() })
    }

    /// A number given by an option of its own, such as `--steps`.
    pub fn from_option(option: &str, key: &str, value: u32) -> Self {
        Override { key: key.into(), value: Value::Integer(value.into()), origin: option.into() }
    }

    /// The rates of a sweep.
    ///
    /// # Errors
    /// Anything but a rising list of three positive numbers or more.
    pub(crate) fn rates(&self) -> Result<Vec<f64>, ConfigError> {
        let number = |value: &Value| value.as_float().or(value.as_integer().map(|whole| whole as f64));
        let rates: Option<Vec<f64>> = self.value.as_array().and_then(|values| values.iter().map(number).collect());
        let is_rising = |rates: &Vec<f64>| rates[0] > 0.0 && rates.windows(2).all(|pair| pair[0] < pair[1]);
        rates
            .filter(|rates| rates.len() > 2 && is_rising(rates) && rates.iter().all(|rate| rate.is_finite()))
            .ok_or_else(|| {
                self.error(format!(
                    "{SWEEP} = {}: must be three or more rising, positive rates, as in [1e-3, 3e-3, 1e-2]",
                    short(&self.value)
                ))
            })
    }

    /// The same key with another number.
    pub(crate) fn with(&self, key: &str, value: f64) -> Self {
        Override { key: key.into(), value: Value::Float(value), origin: self.origin.clone() }
    }

    /// A level of a factor in the name of a variant: a word as it is, anything else behind the key.
    fn level_name(&self) -> String {
        match &self.value {
            Value::String(word) => word.clone(),
            other => format!("{}{other}", self.key.rsplit('.').next().unwrap_or_default()).replace('.', "_"),
        }
    }

    pub(crate) fn error(&self, problem: impl std::fmt::Display) -> ConfigError {
        ConfigError(format!("{}: {problem}", self.origin))
    }
}

/// Settings as a table, with overrides put on top one by one.
pub(crate) struct Overlay {
    table: Table,
    /// What was really changed, for errors that only the whole can show.
    applied: Vec<Override>,
    /// Whether the changes are a variant's.
    is_variant: bool,
}

impl Overlay {
    pub(crate) fn baseline() -> Self {
        let mut table: Table = toml::from_str(BASELINE).expect("the baseline is valid TOML");
        // Its description is of itself.
        table.insert("description".into(), Value::String(String::new()));
        Overlay { table, applied: vec![], is_variant: false }
    }

    /// The settings to put a variant's changes on; only those are the variant's own.
    pub(crate) fn variant(&self) -> Self {
        Overlay { table: self.table.clone(), applied: vec![], is_variant: true }
    }

    /// Puts one value in its place.
    ///
    /// # Errors
    /// An unknown key, with the nearest valid one, or a value of the wrong type.
    pub(crate) fn apply(&mut self, change: &Override) -> Result<(), ConfigError> {
        let key = change.key.as_str();
        let Some(place) = find(&mut self.table, key) else {
            let keys = leaves(&self.table, "");
            return Err(change.error(format!("unknown key `{key}`; the nearest is `{}`", nearest(key, &keys))));
        };
        let value = match (&*place, &change.value) {
            // A section without a key changes nothing.
            (Value::Table(_), Value::Table(inner)) if inner.is_empty() => return Ok(()),
            (Value::Table(_), _) => {
                return Err(change.error(format!("`{key}` is a section: write [{key}] and its keys")));
            }
            // Whole numbers are fine where the baseline has a fraction.
            (Value::Float(_), Value::Integer(whole)) => Value::Float(*whole as f64),
            (Value::Integer(_), Value::Integer(number)) if *number < 0 => {
                return Err(change.error(format!("{key} = {number}: must not be negative")));
            }
            (old, new) if !old.same_type(new) => {
                let wanted = match old {
                    Value::Integer(_) => "a whole number",
                    Value::Float(_) => "a number",
                    Value::Boolean(_) => "true or false",
                    _ => "a string",
                };
                return Err(change.error(format!("{key} = {}: must be {wanted}, as in {key} = {old}", short(new))));
            }
            (_, new) => new.clone(),
        };
        let changes = *place != value;
        *place = value;
        if let Err(error) = Settings::deserialize(self.table.clone()) {
            let problem = error.message().replace('\n', " ").replace("unknown variant", "unknown value");
            return Err(change.error(format!("{key} = {}: {problem}", short(&change.value))));
        }
        if changes {
            self.applied.push(change.clone());
        }
        Ok(())
    }

    /// Names the reference of a grid.
    pub(crate) fn set_reference(&mut self, name: &str) {
        self.table.insert("reference".into(), Value::String(name.into()));
    }

    /// The same error behind the place where the key it names was last set, if it was set here.
    pub(crate) fn blame(&self, error: &ConfigError) -> Option<ConfigError> {
        let culprit = self.applied.iter().rev().find(|change| names(&error.0, &change.key))?;
        Some(culprit.error(error))
    }

    /// As [`Overlay::apply`], for a variant, which may only change what it is compared by.
    pub(crate) fn apply_to_variant(&mut self, change: &Override) -> Result<(), ConfigError> {
        let is_of_the_run = ["checkpoint.", "probe."].iter().any(|section| change.key.starts_with(section));
        if SHARED.contains(&change.key.as_str()) || is_of_the_run {
            return Err(change.error(format!(
                "`{}` is the same for all variants of a study; set it at the top of the file or with --set",
                change.key
            )));
        }
        let matching = self.table["match"].as_str().unwrap_or_default();
        if change.key == "model.d_ff" && matching != "width" {
            let free = "to set it, write match = \"width\" at the top";
            return Err(change.error(format!("model.d_ff is chosen by match = \"{matching}\"; {free}")));
        }
        if change.key == SWEEP {
            return Err(change.error("the rates of a sweep are the same for all variants; write them at the top"));
        }
        let section = change.key.split('.').next().unwrap_or_default();
        if self.table.get(section).is_some_and(|value| !value.is_table()) {
            return Err(change.error(format!("`{}` belongs to the study, not to a variant", change.key)));
        }
        self.apply(change)
    }

    /// The settings as they stand.
    ///
    /// # Errors
    /// A key that was set though the other choices leave it without effect.
    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        let settings = Settings::deserialize(self.table.clone()).expect("every override was checked");
        for (key, user) in settings.model.unused_keys() {
            self.refuse_unused(&format!("model.{key}"), &format!("model.{user}"))?;
        }
        if !settings.probe.on && !self.applied.iter().any(|change| change.key == "probe.on") {
            self.refuse_unused("probe.every", "probe.on = true")?;
        }
        // A study may be given fewer steps for once; its variants must differ all the same.
        if self.is_variant && settings.train.steps <= settings.train.warmup_steps {
            self.refuse_unused("train.min_lr_factor", "train.steps above train.warmup_steps")?;
        }
        Ok(settings)
    }

    /// Refuses a key that was set here, where `user`, the choice that would use it, is not made.
    ///
    /// # Errors
    /// The key was set.
    pub(crate) fn refuse_unused(&self, key: &str, user: &str) -> Result<(), ConfigError> {
        match self.applied.iter().find(|change| change.key == key) {
            Some(change) => Err(change.error(format!("`{key}` has no effect: only {user} uses it"))),
            None => Ok(()),
        }
    }
}

/// Reads a study file into its own overrides, those of its variants, and its grid.
///
/// # Errors
/// Broken TOML, a variant without a name, a factor without levels.
pub(crate) fn parse(text: &str, file: &str) -> Result<StudyText, ConfigError> {
    let document = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        ConfigError(format!("{file}:{line}: {}", error.message().replace('\n', " ")))
    })?;
    let reader = Reader { text, file };
    let (mut own, mut variants, mut factors) = (vec![], vec![], vec![]);
    for (key, value) in document.get_ref() {
        if ["claim", "slurm"].contains(&key.get_ref().as_ref()) {
            // What the study is made for, see `claim.rs`; and how a cluster is asked for its runs.
        } else if key.get_ref() == "grid" {
            let place = reader.origin(key.span().start);
            let table = value.get_ref().as_table().filter(|table| !table.is_empty()).ok_or_else(|| {
                ConfigError(format!(
                    "{place}: the grid is a table of keys with their levels, as in [grid] and then model.norm = [...]"
                ))
            })?;
            for (key, value) in table.iter() {
                reader.flatten(key.get_ref(), key.span().start, value, &mut factors);
            }
        } else if key.get_ref() == "variant" {
            let place = reader.origin(key.span().start);
            let array = value.get_ref().as_array().ok_or_else(|| {
                ConfigError(format!("{place}: a variant is a table that starts with [[variant]], in double brackets"))
            })?;
            for item in array.iter() {
                variants.push(reader.variant(item)?);
            }
        } else {
            reader.flatten(key.get_ref(), key.span().start, value, &mut own);
        }
    }
    let grid = factors.iter().map(levels).collect::<Result<_, _>>()?;
    Ok(StudyText { own, variants, grid })
}

/// The levels of a factor, each as an override of its own.
fn levels(factor: &Override) -> Result<Vec<Override>, ConfigError> {
    let key = &factor.key;
    let values = factor.value.as_array().filter(|values| values.len() > 1).ok_or_else(|| {
        factor.error(format!(
            "grid.{key}: must be a list of two values or more, as in model.norm = [\"layernorm\", \"rmsnorm\"]"
        ))
    })?;
    let level = |value: &Value| Override { key: key.clone(), value: value.clone(), origin: factor.origin.clone() };
    Ok(values.iter().map(level).collect())
}

/// The variants of a grid, that of the first levels first.
pub(crate) fn combinations(grid: &[Vec<Override>]) -> Vec<VariantText> {
    let Some(first) = grid.first() else { return vec![] };
    let mut all: Vec<Vec<usize>> = vec![vec![]];
    for factor in grid {
        let longer = |levels: &Vec<usize>| {
            let levels = levels.clone();
            (0..factor.len()).map(move |level| [levels.clone(), vec![level]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    let variant = |levels: Vec<usize>| {
        let chosen = || grid.iter().zip(&levels).map(|(factor, &level)| (level, &factor[level]));
        VariantText {
            name: chosen().map(|(_, level)| level.level_name()).collect::<Vec<_>>().join("-"),
            overrides: chosen().filter(|(level, _)| *level > 0).map(|(_, level)| level.clone()).collect(),
            origin: first[0].origin.clone(),
            levels,
        }
    };
    all.into_iter().map(variant).collect()
}

/// Every leaf of a table as one override.
pub(crate) fn flat(table: &Table, origin: &str) -> Vec<Override> {
    let mut all = vec![];
    for key in leaves(table, "") {
        let mut table = table.clone();
        let value = find(&mut table, &key).expect("it is one of its leaves").clone();
        all.push(Override { key, value, origin: origin.into() });
    }
    all
}

struct Reader<'a> {
    text: &'a str,
    file: &'a str,
}

impl Reader<'_> {
    fn origin(&self, offset: usize) -> String {
        format!("{}:{}", self.file, line_of(self.text, offset))
    }

    /// Adds every leaf below `key` as one override.
    fn flatten(&self, key: &str, offset: usize, value: &Spanned<DeValue>, into: &mut Vec<Override>) {
        match value.get_ref() {
            DeValue::Table(table) if !table.is_empty() => {
                for (part, value) in table.iter() {
                    self.flatten(&format!("{key}.{}", part.get_ref()), part.span().start, value, into);
                }
            }
            _ => into.push(Override { key: key.into(), value: plain(value), origin: self.origin(offset) }),
        }
    }

    fn variant(&self, item: &Spanned<DeValue>) -> Result<VariantText, ConfigError> {
        let origin = self.origin(item.span().start);
        let Some(table) = item.get_ref().as_table() else {
            return Err(ConfigError(format!("{origin}: a variant is a table, as in [[variant]]")));
        };
        let (mut name, mut overrides) = (None, vec![]);
        for (key, value) in table.iter() {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("name", DeValue::String(text)) => name = Some(text.to_string()),
                ("name", _) => return Err(ConfigError(format!("{origin}: the name of a variant must be a string"))),
                (key_text, _) => self.flatten(key_text, key.span().start, value, &mut overrides),
            }
        }
        match name {
            Some(name) => Ok(VariantText { name, overrides, origin, levels: vec![] }),
            None => Err(ConfigError(format!("{origin}: this variant has no name; add name = \"...\""))),
        }
    }
}

/// A spanned value without its spans. One that TOML allows but no number holds stays a string, which no key accepts.
fn plain(value: &Spanned<DeValue>) -> Value {
    let deserializer = ValueDeserializer::from(value.clone());
    Value::deserialize(deserializer).unwrap_or_else(|error| Value::String(error.message().into()))
}

/// Whether a text has this key as a word.
fn names(text: &str, key: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let ends = |at: usize| text[..at].chars().next_back().is_none_or(|c| !is_part(c));
    text.match_indices(key).any(|(at, _)| ends(at) && text[at + key.len()..].chars().next().is_none_or(|c| !is_part(c)))
}

/// A value as it is quoted in an error.
pub(crate) fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text[..offset.min(text.len())].matches('\n').count() + 1
}

/// The value under a dotted key.
fn find<'a>(table: &'a mut Table, key: &str) -> Option<&'a mut Value> {
    match key.split_once('.') {
        Some((section, rest)) => find(table.get_mut(section)?.as_table_mut()?, rest),
        None => table.get_mut(key),
    }
}

/// Dotted keys of everything that is not a table.
fn leaves(table: &Table, prefix: &str) -> Vec<String> {
    let mut keys = vec![];
    for (key, value) in table {
        let key = format!("{prefix}{key}");
        match value {
            Value::Table(inner) => keys.extend(leaves(inner, &format!("{key}."))),
            _ => keys.push(key),
        }
    }
    keys
}

/// The name most like `name`; the last parts of dotted names count too, so that `nrom` finds `model.norm`.
pub fn nearest<'a>(name: &str, names: &'a [String]) -> &'a str {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_string();
    let likeness = |key: &String| strsim::jaro_winkler(name, key).max(strsim::jaro_winkler(&last(name), &last(key)));
    names.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b))).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    #[test]
    fn an_assignment_is_one_value() {
        let value = |text: &str| Override::from_assignment(text).map(|change| change.value).map_err(|error| error.0);
        assert_eq!(value("train.steps = 77"), Ok(Value::Integer(77)));
        assert_eq!(value("model.norm=rmsnorm"), Ok(Value::String("rmsnorm".into())));
        assert_eq!(value("reference=\"a\\tb\""), Ok(Value::String("a\tb".into())));
        assert_eq!(value("train.lr.sweep=[1,\n2]"), Ok(Value::Array(vec![Value::Integer(1), Value::Integer(2)])));
        // Nothing is dropped, not even what would be a comment in a file.
        assert_eq!(value("train.steps=77 # steps"), Ok(Value::String("77 # steps".into())));
        let rule =
            "must be one TOML value, which holds line breaks and other control characters only where TOML allows them";
        let expected = format!("--set train.steps = \"77\\n[train]\\nlr=1\": {rule}");
        assert_eq!(value("train.steps=77\n[train]\nlr=1"), Err(expected));
        assert!(value("data.corpus=a\u{1b}[2J").is_err());
    }

    #[test]
    fn a_key_without_effect_is_refused() {
        let check = |text: &str, expected: &str| assert_eq!(plan(text).err().unwrap().to_string(), expected, "{text}");
        let placement = "`model.norm_placement` has no effect: only model.norm other than \"none\" uses it";
        check("[model]\nnorm = \"none\"\nnorm_placement = \"post\"\n", &format!("study.toml:3: {placement}"));
        check(
            "[grid]\nmodel.norm = [\"layernorm\", \"none\"]\nmodel.norm_placement = [\"pre\", \"post\"]\n",
            &format!("study.toml:3: {placement}"),
        );
        check(
            "[model]\nnorm = \"none\"\n[[variant]]\nname = \"post\"\nmodel.norm_placement = \"post\"\n",
            &format!("study.toml:5: {placement}"),
        );
        check(
            "[model]\nposition = \"rope\"\nn_heads = 64\nn_kv_heads = 64\nrope_theta = 5.0\n",
            "study.toml:5: `model.rope_theta` has no effect: only model.d_model above 2 * model.n_heads uses it",
        );
        check(
            "[[variant]]\nname = \"a\"\ntrain.eval_every = 100\n",
            "study.toml:3: `train.eval_every` is the same for all variants of a study; set it at the top of the file or \
             with --set",
        );
        let short = "[train]\nsteps = 50\n";
        check(
            &format!("{short}[[variant]]\nname = \"a\"\ntrain.min_lr_factor = 0.5\n"),
            "study.toml:5: `train.min_lr_factor` has no effect: only train.steps above train.warmup_steps uses it",
        );
        plan(&format!("{short}min_lr_factor = 0.5\n")).unwrap();
    }
}
