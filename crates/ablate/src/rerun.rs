//! `ablate rerun`: a run once more, and whether it gives the same bits.

use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use train::{ConfigError, RunFolder, first_difference};

use crate::cli::Rerun;
use crate::processes::{ask_to_stop, worker};
use crate::{print, stop};

pub fn run(args: &Rerun) -> Result<u8> {
    let first = RunFolder::new(&args.run);
    let (mut config, meta) = (first.finished()?, first.meta()?);
    // Now it is done as this version does it.
    let redefined = std::mem::take(&mut config.redefined);
    if args.verify {
        // What cannot be compared is to be known before it is trained again.
        first_difference(&first, &first)?;
    }
    let temporary = tempfile::tempdir().context("no temporary folder can be made")?;
    let out = args.out.clone().unwrap_or_else(|| temporary.path().join("run"));
    if out.exists() {
        return Err(ConfigError(format!("{}: exists already; choose another --out", out.display())).into());
    }
    let stop = stop::on_signal()?;
    let mut worker = worker(&out, &config)?.process_group(0).stdin(Stdio::null()).spawn().context("starting a run")?;
    let mut asked = false;
    let ended = loop {
        if let Some(ended) = worker.try_wait().context("waiting for the run")? {
            break ended;
        }
        if stop.stop_at_once() {
            // It may have ended in the meantime.
            let _ = worker.kill();
        } else if stop.stop() && !asked {
            asked = true;
            ask_to_stop(&worker);
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    if !ended.success() {
        // What did not come to its end is of no use, and would be in the way of the next try. Why, the run has said itself.
        let _ = std::fs::remove_dir_all(&out);
        return Ok(ended.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
    }
    if !args.verify {
        return print(&format!("{}\n", out.display()));
    }
    let commit = env!("ABLATE_COMMIT");
    let mut made = match meta.commit == commit {
        true => String::new(),
        false => format!(" (made at commit {}, again at {commit})", meta.commit),
    };
    for what in redefined {
        made += &format!(" (an earlier version computed {what} differently)");
    }
    match first_difference(&first, &RunFolder::new(&out))? {
        None => print(&format!("{}: the same bits in every loss and every weight{made}\n", args.run.display())),
        Some(what) => {
            print(&format!("{}: not the same{made}: {what}\n", args.run.display()))?;
            Ok(1)
        }
    }
}
