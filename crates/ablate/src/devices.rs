//! What can compute here, and whether it computes what the CPU does.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use strum::VariantArray;
use study::Table;
use train::{Agreement, Backend, write_whole};

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
        table.rows.push(vec![backend.to_string(), devices]);
    }
    print(&table.plain())
}

/// Prints how far a backend is from the CPU in each thing; 1 if that is too far in one.
pub fn selftest(backend: Backend) -> Result<u8> {
    let all = train::selftest(backend, &study::baseline(backend))?;
    let mut table = Table::new(&["", "difference", "at most", ""]);
    for Agreement { what, difference, tolerance } in &all {
        let holds = if difference <= tolerance { "" } else { "NO!" };
        table.rows.push(vec![what.clone(), format!("{difference:.1e}"), format!("{tolerance:.0e}"), holds.into()]);
    }
    print(&table.plain())?;
    let name = device_name(backend)?;
    match all.iter().find(|agreement| !agreement.holds()) {
        None => print(&format!("{name}: {} things agree with the CPU\n", all.len())),
        Some(first) => {
            print(&format!("{name}: does not agree with the CPU; the first thing is {}\n", first.what))?;
            Ok(1)
        }
    }
}

/// What a selftest has found of a device, with the program that made it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Known {
    device: String,
    commit: String,
    /// Largest difference in any one thing.
    difference: f64,
}

/// For a study on a GPU: in words, which device it is and how far from the CPU. Tested once for each device and version.
///
/// # Errors
/// It does not agree.
pub fn checked(backend: Backend) -> Result<Option<String>> {
    if backend.is_cpu() {
        return Ok(None);
    }
    let (device, commit) = (device_name(backend)?, env!("ABLATE_COMMIT").to_string());
    let words = |difference: f64| {
        Some(format!(
            "Computed by {backend} on {device}, which agrees with the CPU within {difference:.0e} in a selftest."
        ))
    };
    let known = cache(backend).and_then(|path| serde_json::from_slice::<Known>(&fs::read(path).ok()?).ok());
    if let Some(known) = known.filter(|known| known.device == device && known.commit == commit) {
        return Ok(words(known.difference));
    }
    warn(&format!("{device}: a selftest against the CPU, once for each device and version"));
    let all = train::selftest(backend, &study::baseline(backend))?;
    if let Some(first) = all.iter().find(|agreement| !agreement.holds()) {
        bail!(
            "{device}: does not compute what the CPU does; the first thing is {} (`ablate selftest --backend {backend}`)",
            first.what
        );
    }
    let difference = all.iter().map(|agreement| agreement.difference).fold(0.0, f64::max);
    if let Some(path) = cache(backend) {
        let known = serde_json::to_string(&Known { device: device.clone(), commit, difference })? + "\n";
        // Without it the next study tests again.
        let _ = fs::create_dir_all(path.parent().unwrap_or(&path));
        let _ = write_whole(&path, &known);
    }
    Ok(words(difference))
}

fn device_name(backend: Backend) -> Result<String> {
    backend.device()?;
    Ok(backend.device_names()?.into_iter().next().unwrap_or_else(|| "no device".into()))
}

/// Where it is kept what is known of a backend's device.
fn cache(backend: Backend) -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(folder.join("ablate").join(format!("selftest-{backend}.json")))
}
