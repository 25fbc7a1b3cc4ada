//! Processors, memory and disk: whether a study's runs fit, and how many at a time.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use disk::{free_space, size_of};
use study::Plan;
use train::{ConfigError, Existing};

use crate::inventory::Entry;
use crate::warn;

/// Processor cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Starts the threads that compute; 0: as many as the environment says, or there are cores.
///
/// # Errors
/// The system refuses.
pub fn start_threads(n: u16) -> Result<()> {
    // This thread is one of them: with one thread, nothing is handed over.
    let threads = rayon::ThreadPoolBuilder::new().num_threads(n.into()).use_current_thread();
    // Not every system has threads inherit it.
    let threads = threads.start_handler(|_| kernels::flush_denormals());
    threads.build_global().context("the threads cannot be started")
}

/// How many runs of a study fit into memory at a time: no more than `wanted`. `most` is the memory that they may take together, in
/// bytes; by default all that this machine has. A GPU's memory is not looked at.
///
/// # Errors
/// Not one fits.
pub fn most_at_once(plan: &Plan, wanted: usize, most: Option<f64>) -> Result<usize, ConfigError> {
    let Some(needed) = plan.memory_bytes() else { return Ok(wanted) };
    let there = most.unwrap_or_else(machine_memory);
    if needed > there {
        return Err(ConfigError(format!(
            "a run needs about {} of memory, and it may have {}; lower train.batch_size or the sizes of the model, raise \
             train.grad_accum_steps, or raise --max-memory",
            size(needed),
            size(there)
        )));
    }
    // What is estimated may be a third more.
    let fit = ((there / (1.3 * needed)) as usize).max(1);
    if fit < wanted {
        warn(&format!(
            "{fit} instead of {wanted} at a time: each run needs about {} of {} memory",
            size(needed),
            size(there)
        ));
    }
    Ok(fit.min(wanted))
}

fn machine_memory() -> f64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    // Of a container, which has a root of its own.
    let group = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    system.total_memory().min(group) as f64
}

/// Refuses what the disk cannot hold, before it is full. What runs go on from counts as free; what is set aside does not.
///
/// # Errors
/// An I/O error that says how much is needed and how much is free.
pub fn check_space(missing: &[&Entry], at_once: usize, folder: &Path) -> Result<()> {
    let (mut kept, mut meanwhile, mut there) = (0.0, 0.0f64, 0.0);
    for entry in missing {
        let needs = entry.config.disk_needs();
        kept += needs.kept;
        meanwhile = meanwhile.max(needs.meanwhile);
        // What is copied of a shorter run takes as much as the run goes on with.
        if let Ok(Existing::HalfFinished) = entry.existing {
            there += size_of(&entry.folder.path) as f64;
        }
    }
    let needed = kept + meanwhile * at_once as f64;
    // A system that does not say how much is free may have enough.
    let Ok(free) = free_space(folder) else { return Ok(()) };
    let free = free as f64 + there;
    if needed <= free {
        return Ok(());
    }
    let (all, more, free) = (size(needed), size(needed - free), size(free));
    let problem = format!("the runs need about {all} on this disk, {more} more than the {free} that are free");
    Err(std::io::Error::new(ErrorKind::StorageFull, problem)).with_context(|| folder.display().to_string())
}

/// Bytes as `12 kB`, `1.5 MB`, `340 MB` or `1.2 GB`.
pub fn size(bytes: f64) -> String {
    match bytes {
        ..1e6 => format!("{:.0} kB", (bytes / 1e3).ceil()),
        ..1e7 => format!("{:.1} MB", bytes / 1e6),
        ..1e9 => format!("{:.0} MB", bytes / 1e6),
        _ => format!("{:.1} GB", bytes / 1e9),
    }
}
