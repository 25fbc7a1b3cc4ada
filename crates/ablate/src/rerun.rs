//! `ablate rerun`: a run once more, and whether it gives the same bits.

use std::process::Command;

use anyhow::{Context, Result};
use train::{BadFile, RunFolder, State, first_difference};

use crate::cli::Rerun;
use crate::print;

pub fn run(args: &Rerun) -> Result<u8> {
    let first = RunFolder::new(&args.run);
    if first.status()?.is_none_or(|status| status.state != State::Done) {
        return Err(BadFile::new(&args.run, "is not the folder of a finished run").into());
    }
    let (config, meta) = (first.config()?, first.meta()?);
    let temporary = tempfile::tempdir().context("no temporary folder can be made")?;
    let out = args.out.clone().unwrap_or_else(|| temporary.path().join("run"));
    if out.exists() {
        return Err(train::ConfigError(format!("{}: exists already; choose another --out", out.display())).into());
    }
    let program = std::env::current_exe().context("where this program lies")?;
    let mut worker = Command::new(program);
    worker
        .arg("worker")
        .arg(&out)
        .arg(toml::to_string(&config)?)
        .args(["--command", &crate::processes::command_line()]);
    let status = worker.status().context("starting a run")?;
    let again = RunFolder::new(&out);
    if !status.success() {
        let message = again.status()?.and_then(|status| status.message).unwrap_or_else(|| status.to_string());
        anyhow::bail!("{}: trained again, it did not come to its end: {message}", args.run.display());
    }
    if !args.verify {
        return print(&format!("{}\n", out.display()));
    }
    let commit = env!("ABLATE_COMMIT");
    let made = match meta.commit == commit {
        true => String::new(),
        false => format!(" (made at commit {}, again at {commit})", meta.commit),
    };
    match first_difference(&first, &again)? {
        None => print(&format!("{}: the same bits in every loss and every weight{made}\n", args.run.display())),
        Some(what) => {
            print(&format!("{}: not the same{made}: {what}\n", args.run.display()))?;
            Ok(1)
        }
    }
}
