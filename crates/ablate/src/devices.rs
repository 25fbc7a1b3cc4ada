//! What can compute here, and whether it computes what the CPU does.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use strum::VariantArray;
use study::Table;
use train::{Agreement, Backend, read_text, write_whole};

use crate::{print, warn};

/// Prints the backends and their devices.
pub fn list() -> Result<u8> {
    let mut table = Table::new(&["backend", "device"]);
    for backend in Backend::VARIANTS {
        let devices = match backend.device_names() {
            Ok(names) if names.is_empty() => "none is found".to_string(),
            Ok(names) => names.join(", "),
            Err(error) => error.to_string(),
        };
        table.rows.push(vec![backend.with_features(), devices]);
    }
    print(&table.plain())
}

/// Prints how far a backend is from the CPU in each thing; 1 if that is too far in one.
///
/// # Errors
/// A backend that is not built in, or has no device.
pub fn selftest(backend: Backend) -> Result<u8> {
    let all = train::selftest(backend, &study::baseline(backend))?;
    let mut table = Table::new(&["", "difference", "at most", ""]);
    for agreement in &all {
        let Agreement { name, difference, tolerance } = agreement;
        let holds = if agreement.holds() { "" } else { "NO!" };
        table.rows.push(vec![name.clone(), format!("{difference:.1e}"), format!("{tolerance:.0e}"), holds.into()]);
    }
    print(&table.plain())?;
    let device = backend.device_name()?;
    match first_wrong(&all) {
        None => print(&format!("{device}: {} things agree with the CPU\n", all.len())),
        Some(first) => {
            print(&format!("{device}: does not agree with the CPU; the first thing is {}\n", first.name))?;
            Ok(1)
        }
    }
}

fn first_wrong(all: &[Agreement]) -> Option<&Agreement> {
    all.iter().find(|agreement| !agreement.holds())
}

/// What a selftest has found of a device, with the program that made it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    device: String,
    /// As the program computes on it.
    backend: String,
    commit: String,
    /// Largest difference in any one thing.
    difference: f64,
}

/// Of a GPU, in words: which it is, and how far from the CPU. It is tested once for each device and version.
///
/// # Errors
/// It does not agree, or there is none.
pub fn selftest_stamp(backend: Backend) -> Result<Option<String>> {
    if backend.is_cpu() {
        return Ok(None);
    }
    let (device, commit) = (backend.device_name()?, env!("ABLATE_COMMIT").to_string());
    let name = backend.with_features();
    let words = |difference: f64| {
        Some(format!(
            "Computed by {name} on {device}, which agrees with the CPU within {difference:.0e} in a selftest."
        ))
    };
    // Of a program that is being worked on nothing is known for long.
    let path = cache(&name, &device).filter(|_| commit != "unknown" && !commit.ends_with("-dirty"));
    let known = path.as_ref().and_then(|path| serde_json::from_str::<Record>(&read_text(path).ok()?).ok());
    let is_this = |known: &Record| known.device == device && known.backend == name && known.commit == commit;
    if let Some(known) = known.filter(is_this) {
        return Ok(words(known.difference));
    }
    warn(&format!("{device}: a selftest against the CPU, once for each device and version"));
    let all = train::selftest(backend, &study::baseline(backend))?;
    if let Some(first) = first_wrong(&all) {
        let name = &first.name;
        bail!(
            "{device}: does not compute what the CPU does; the first thing is {name} (`ablate selftest --backend {backend}`)"
        );
    }
    let difference = all.iter().map(|agreement| agreement.difference).fold(0.0, f64::max);
    if let Some(path) = path {
        let record =
            serde_json::to_string(&Record { device: device.clone(), backend: name.clone(), commit, difference })?
                + "\n";
        // Without it the next study tests again.
        let _ = fs::create_dir_all(path.parent().unwrap_or(&path));
        let _ = write_whole(&path, &record);
    }
    Ok(words(difference))
}

/// Where it is kept what is known of a device.
fn cache(backend: &str, device: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let name = format!("{backend}-{device}");
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(100).collect();
    Some(folder.join("ablate").join(format!("selftest-{name}.json")))
}
