//! Processors, memory and disk: whether a study's runs fit, and how many at a time.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use disk::free_space;
use study::Plan;
use train::{ConfigError, RunConfig};

/// Processor cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// How many runs of a study fit into memory at a time: no more than `wanted`. `most` is the memory that they may take together, in
/// bytes; by default all that this machine, or this process's control group, has.
///
/// # Errors
/// Not one fits.
pub fn most_at_once(plan: &Plan, wanted: usize, most: Option<f64>) -> Result<usize, ConfigError> {
    let (needed, there) = (plan.memory_bytes(), most.unwrap_or_else(machine_memory));
    if needed > there {
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        return Err(ConfigError(format!(
            "a run needs about {:.1} GiB of memory, and {:.1} GiB is there; lower train.batch_size or the sizes of the model, raise \
             train.accumulate, or raise --max-memory",
            gib(needed),
            gib(there)
        )));
    }
    Ok(((there / needed) as usize).min(wanted))
}

fn machine_memory() -> f64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let group = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    system.total_memory().min(group) as f64
}

/// Refuses what the disk cannot hold, before it is full.
///
/// # Errors
/// An I/O error that says how much is needed and how much is free.
pub fn check_space<'a>(runs: impl Iterator<Item = &'a RunConfig>, at_once: usize, folder: &Path) -> Result<()> {
    let (mut kept, mut meanwhile) = (0.0, 0.0f64);
    for (own, its_checkpoints) in runs.map(RunConfig::disk_bytes) {
        kept += own;
        meanwhile = meanwhile.max(its_checkpoints);
    }
    let needed = kept + meanwhile * at_once as f64;
    // A system that does not say how much is free may have enough.
    let Ok(free) = free_space(folder) else { return Ok(()) };
    if needed <= free as f64 {
        return Ok(());
    }
    let mega = |bytes: f64| format!("{:.0} MB", bytes / 1e6);
    let (needed, free) = (mega(needed), mega(free as f64));
    let problem = format!("the runs need about {needed} on this disk, and {free} are free");
    Err(std::io::Error::new(ErrorKind::StorageFull, problem)).with_context(|| folder.display().to_string())
}
