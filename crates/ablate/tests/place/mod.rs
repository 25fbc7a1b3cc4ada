//! A place to try the program in.

#![allow(dead_code, reason = "no test needs all of it")]

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a study of two variants on a small text, which trains in about a second.
pub struct Place {
    pub dir: TempDir,
}

pub const STUDY: &str = r#"
description = "A small study."
seeds = 2
[model]
seq_len = 16
d_model = 16
n_layers = 1
n_heads = 2
n_kv_heads = 2
d_ff = 24
[data]
corpus = "text.txt"
[train]
steps = 12
warmup_steps = 2
batch_size = 2
eval_every = 6
[[variant]]
name = "swiglu"
model.ffn = "swiglu"
"#;

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("experiments")).unwrap();
        fs::write(dir.path().join("experiments/small.toml"), STUDY).unwrap();
        let text: String = (0..300).map(|i| format!("line {} of a text; ", i * i % 97)).collect();
        fs::write(dir.path().join("text.txt"), text).unwrap();
        Place { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn ablate(&self, args: &[&str]) -> Command {
        let mut command = assert_cmd::cargo::cargo_bin_cmd!("ablate");
        command.current_dir(self.dir.path()).args(args);
        command
    }

    /// Makes a run of the small study like one that no hashes were written of.
    pub fn forget_hashes(&self, run: &str) {
        let path = self.path("runs/small").join(run).join("status.json");
        let mut status: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        status.as_object_mut().unwrap().remove("files").unwrap();
        fs::write(&path, status.to_string()).unwrap();
    }

    /// Runs to a successful end and returns standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.ablate(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// Fails with this code and one line on standard error that holds `part`.
    pub fn fails(&self, args: &[&str], code: i32, part: &str) {
        let output = self.ablate(args).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(part), "{args:?}: expected `{part}` in: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{args:?}: {error}");
    }
}

/// The lines of a run's metrics without their times.
pub fn metrics(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        value.as_object_mut().unwrap().remove("seconds").unwrap();
        value
    };
    text.lines().map(line).collect()
}
