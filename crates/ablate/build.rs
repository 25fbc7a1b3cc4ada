//! Tells the program which commit it was built from.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let commit = git(&["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]).unwrap_or("unknown".into());
    println!("cargo::rustc-env=ABLATE_COMMIT={commit}");
    // Any source, and any commit.
    println!("cargo::rerun-if-changed=..");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
}
