//! The formats of records: how a newer program reads what an older one wrote.
//!
//! The records of [`Record`] say their format under the key `format`. A change of what they hold takes the next number and a line in
//! [`CHANGES`]: they are brought up to date as they are read, and never rewritten for it. Lines of metrics and probes have no format:
//! what is new in those has a default of its own.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::BadFile;
use crate::folder::damaged;

/// The format that this program writes.
pub const FORMAT: u64 = 3;

/// Of records that do not say theirs: all but checkpoints, up to version 0.1.0.
const UNSTATED: u64 = 2;

/// A kind of record, by its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// `config.toml`
    Config,
    /// `meta.json`
    Meta,
    /// `status.json`
    Status,
    /// `study.json`
    Study,
    /// A line of `plan.jsonl`, whose config is a [`Record::Config`].
    Task,
    /// `manifest` of a checkpoint
    Manifest,
    /// `state.json` of a checkpoint
    State,
    /// `slurm/jobs.json`
    Jobs,
}

/// What a format changed about a record. Keys are dotted, as in `train.lr`; `variants[].lr` is a key of each table of a list.
enum Change {
    /// A key that was not there, and the value, as TOML (a float with its point), that does what was done without it.
    #[allow(dead_code, reason = "no key has been added yet")]
    Added(&'static str, &'static str),
    /// A key under another name: the earlier, the later.
    Renamed(&'static str, &'static str),
    /// The same keys give different numbers since this format: which configs are affected, and what changed. Runs of them are neither
    /// resumed nor counted as complete.
    Redefined(fn(&Map<String, Value>) -> bool, &'static str),
}

use Change::{Added, Redefined, Renamed};

/// Every change, the oldest first, with the format that brought it.
const CHANGES: &[(u64, Record, Change)] = &[
    (3, Record::Config, Renamed("train.accumulate", "train.grad_accum_steps")),
    (3, Record::Config, Redefined(has_masks_of_micro_batches, "dropout with gradient accumulation")),
];

fn has_masks_of_micro_batches(config: &Map<String, Value>) -> bool {
    let number = |section: &str, key: &str| config.get(section)?.get(key)?.as_f64();
    number("model", "dropout") > Some(0.0) && number("train", "grad_accum_steps") > Some(1.0)
}

/// A record with its format, to be written.
#[derive(Serialize)]
pub struct Stamped<'a, T> {
    format: u64,
    #[serde(flatten)]
    record: &'a T,
}

/// Gives a record its format.
pub fn stamped<T: Serialize>(record: &T) -> Stamped<'_, T> {
    Stamped { format: FORMAT, record }
}

/// Reads a record of JSON from the file at `path`.
///
/// # Errors
/// A damaged one, or one of another format than this program reads.
pub fn from_json<T: DeserializeOwned>(record: Record, path: &Path, text: &str) -> Result<T, BadFile> {
    read(record, path, serde_json::from_str(text).map_err(|error| error.to_string()))
}

/// The same of TOML.
pub(crate) fn from_toml<T: DeserializeOwned>(record: Record, path: &Path, text: &str) -> Result<T, BadFile> {
    read(record, path, toml::from_str(text).map_err(|error| error.message().to_string()))
}

fn read<T: DeserializeOwned>(record: Record, path: &Path, parsed: Result<Value, String>) -> Result<T, BadFile> {
    let bad = |problem: &dyn std::fmt::Display| BadFile::new(path, damaged(problem));
    let mut value = parsed.map_err(|error| bad(&error))?;
    let table = value.as_object_mut().ok_or_else(|| bad(&"it is not a table"))?;
    let format = table.remove("format").map_or(Some(UNSTATED), |format| format.as_u64());
    let format = format.ok_or_else(|| bad(&"its format is not a whole number"))?;
    if !(UNSTATED..=FORMAT).contains(&format) {
        return Err(BadFile::of_format(path, format, UNSTATED..=FORMAT));
    }
    upgrade(CHANGES, record, format, table);
    serde_json::from_value(value).map_err(|error| bad(&error))
}

/// Brings a record up to date.
fn upgrade(changes: &[(u64, Record, Change)], record: Record, format: u64, table: &mut Map<String, Value>) {
    for (_, _, change) in changes.iter().filter(|(since, of, _)| *since > format && *of == record) {
        match change {
            Added(key, value) => for_each(table, key, &mut |table, key| put_new(table, key, toml_value(value))),
            Renamed(from, to) => rename(table, from, to),
            Redefined(is_used, what) if is_used(table) => {
                let all = table.entry("redefined").or_insert_with(|| Value::Array(vec![]));
                if let Some(all) = all.as_array_mut() {
                    all.push((*what).into());
                }
            }
            Redefined(..) => {}
        }
    }
}

/// A config's table as the oldest format would have written it, as far as it could: a hash of that is the same in every version.
pub(crate) fn in_oldest_format(config: toml::Table) -> toml::Table {
    let mut value = serde_json::to_value(config).expect("a config is JSON");
    downgrade(CHANGES, value.as_object_mut().expect("a config is a table"));
    toml::Table::try_from(value).expect("nothing in a config is null")
}

fn downgrade(changes: &[(u64, Record, Change)], table: &mut Map<String, Value>) {
    for (_, _, change) in changes.iter().rev().filter(|(_, of, _)| *of == Record::Config) {
        match change {
            Added(key, value) => for_each(table, key, &mut |table, key| {
                let now = take(table, key);
                if let Some(other) = now.filter(|now| *now != toml_value(value)) {
                    put_new(table, key, other);
                }
            }),
            Renamed(from, to) => rename(table, to, from),
            // No config of now asks for what was done before.
            Redefined(..) => {}
        }
    }
}

/// A value of the table of changes.
fn toml_value(value: &str) -> Value {
    let table: Map<String, Value> = toml::from_str(&format!("value = {value}")).expect("the table's values are TOML");
    table["value"].clone()
}

/// Does something with each table that has a key: those of the list in it, if there is one.
fn for_each(table: &mut Map<String, Value>, key: &str, change: &mut dyn FnMut(&mut Map<String, Value>, &str)) {
    let Some((list, key)) = key.split_once("[].") else { return change(table, key) };
    let items = table.get_mut(list).and_then(|list| list.as_array_mut());
    items.into_iter().flatten().filter_map(Value::as_object_mut).for_each(|item| change(item, key));
}

fn rename(table: &mut Map<String, Value>, from: &str, to: &str) {
    let to = to.rsplit("[].").next().unwrap_or(to);
    for_each(table, from, &mut |table, from| {
        if let Some(value) = take(table, from) {
            put_new(table, to, value);
        }
    });
}

/// Takes the value of a dotted key out of a table.
fn take(table: &mut Map<String, Value>, key: &str) -> Option<Value> {
    match key.split_once('.') {
        Some((section, rest)) => {
            let inner = table.get_mut(section)?.as_object_mut()?;
            let value = take(inner, rest);
            if inner.is_empty() {
                table.remove(section);
            }
            value
        }
        None => table.remove(key),
    }
}

/// Gives a dotted key a value, unless it has one.
fn put_new(table: &mut Map<String, Value>, key: &str, value: Value) {
    match key.split_once('.') {
        Some((section, rest)) => {
            let section = table.entry(section).or_insert_with(|| Map::new().into());
            // What is no section is for the reader of the record to find.
            if let Some(section) = section.as_object_mut() {
                put_new(section, rest, value);
            }
        }
        None => {
            table.entry(key).or_insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunConfig;
    use crate::config::tests::tiny;

    /// The config of a run that commit f3aab4a left, of format 2.
    const OLD: &str = include_str!("../../ablate/tests/fixtures/format-2/runs/half/baseline/seed-0/config.toml");

    const MANIFEST: &str = include_str!(
        "../../ablate/tests/fixtures/format-2/runs/half/baseline/seed-0/checkpoints/step-00000064/manifest"
    );

    fn table(text: &str) -> Map<String, Value> {
        toml::from_str(text).unwrap()
    }

    const MADE_UP: &[(u64, Record, Change)] = &[
        (3, Record::Config, Renamed("train.accumulate", "train.parts")),
        (4, Record::Config, Added("train.clip", "\"norm\"")),
        (4, Record::Config, Added("ladder.rungs", "1")),
        (4, Record::Meta, Added("gpu", "\"none\"")),
        (4, Record::Study, Renamed("variants[].lr", "variants[].rate")),
        (4, Record::Study, Added("variants[].why", "\"\"")),
        (5, Record::Config, Renamed("train.parts", "optim.n_parts")),
    ];

    #[test]
    fn keys_of_a_list_are_changed_in_each_of_its_tables() {
        let mut old = table("lr = 1\n[[variants]]\nlr = 2\n[[variants]]\nname = \"a\"\n");
        upgrade(MADE_UP, Record::Study, 3, &mut old);
        let now = "lr = 1\n[[variants]]\nrate = 2\nwhy = \"\"\n[[variants]]\nname = \"a\"\nwhy = \"\"\n";
        assert_eq!(old, table(now));
    }

    /// A run with what is done differently now is another run; with a batch in one part its masks are the same.
    #[test]
    fn a_run_that_would_be_another_today_is_another() {
        let read = |dropout: &str, n: usize| {
            let old = OLD.replace("dropout = 0.1", &format!("dropout = {dropout}"));
            let old = old.replace("accumulate = 1", &format!("accumulate = {n}"));
            RunConfig::from_toml(Path::new("config.toml"), &old).unwrap()
        };
        for (dropout, n, is_other) in [("0.0", 2, false), ("0.1", 1, false), ("0.1", 2, true)] {
            let earlier = read(dropout, n);
            let now = RunConfig { redefined: vec![], ..earlier.clone() };
            assert_eq!(now.is_same_run(&earlier), !is_other, "{dropout}, {n}");
            let changes = now.differences(&earlier);
            assert_eq!(changes.len(), usize::from(is_other), "{changes:?}");
            assert_eq!(changes, earlier.differences(&now));
            // It stays so when it is written again.
            assert_eq!(RunConfig::from_toml(Path::new("config.toml"), &earlier.to_toml()).unwrap(), earlier);
        }
    }

    #[test]
    fn an_older_config_means_what_it_meant() {
        let mut old = table("[train]\naccumulate = 2\n");
        upgrade(MADE_UP, Record::Config, 2, &mut old);
        assert_eq!(old, table("[train]\nclip = \"norm\"\n[ladder]\nrungs = 1\n[optim]\nn_parts = 2\n"));
        let mut later = table("[train]\nparts = 2\nclip = \"value\"\n");
        upgrade(MADE_UP, Record::Config, 4, &mut later);
        assert_eq!(later, table("[train]\nclip = \"value\"\n[optim]\nn_parts = 2\n"));
    }

    #[test]
    fn what_an_older_format_could_say_has_one_oldest_form() {
        let mut now = table("[train]\nclip = \"norm\"\n[ladder]\nrungs = 1\n[optim]\nn_parts = 2\n");
        downgrade(MADE_UP, &mut now);
        assert_eq!(now, table("[train]\naccumulate = 2\n"));
        let mut other = table("[train]\nclip = \"value\"\n[ladder]\nrungs = 3\n[optim]\nn_parts = 2\n");
        downgrade(MADE_UP, &mut other);
        assert_eq!(other, table("[train]\naccumulate = 2\nclip = \"value\"\n[ladder]\nrungs = 3\n"));
    }

    #[test]
    fn an_old_checkpoint_is_of_the_config_that_it_was_written_for() {
        let config = RunConfig::from_toml(Path::new("config.toml"), OLD).unwrap();
        let hash = blake3::hash(in_oldest_format(config.trajectory()).to_string().as_bytes()).to_string();
        assert!(MANIFEST.contains(&format!("\"config\":\"{hash}\"")), "{hash}: {MANIFEST}");
    }

    #[test]
    fn a_config_comes_back_and_a_newer_one_is_refused() {
        let (config, path) = (tiny(), Path::new("a/config.toml"));
        let text = config.to_toml();
        assert_eq!(RunConfig::from_toml(path, &text).unwrap(), config);
        let error = |text: &str| RunConfig::from_toml(path, text).unwrap_err().to_string();
        let own = format!("format = {FORMAT}");
        let newer = "a/config.toml: is of format 99, and this program reads formats 2 to ";
        assert!(error(&text.replace(&own, "format = 99\nnew = 1")).starts_with(newer));
        assert!(error(&text.replace(&own, "format = \"x\"")).contains("its format is not a whole number"));
        assert!(error(&text.replace("seed = 0", "seed = -1")).contains("is damaged: "));
        assert!(error(&text.replace("seed = 0", "sed = 0")).contains("unknown field `sed`"));
    }

    /// Changes are in order and of formats that are read, and their values are TOML.
    #[test]
    fn the_table_of_changes_is_sound() {
        assert!(CHANGES.is_sorted_by_key(|(since, _, _)| *since));
        assert!(CHANGES.iter().all(|(since, _, _)| (UNSTATED + 1..=FORMAT).contains(since)));
        for (_, _, change) in CHANGES {
            if let Added(_, value) = change {
                toml_value(value);
            }
        }
    }
}
