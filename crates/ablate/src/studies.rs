//! Finding study files.

use std::path::{Path, PathBuf};

use study::nearest;
use train::{BadFile, ConfigError};

/// The folder where studies are found by name.
pub const FOLDER: &str = "experiments";

/// Study files that can be named, with their names.
pub fn all() -> Vec<(String, PathBuf)> {
    let folder = Path::new(FOLDER);
    let mechanisms = in_folder(&folder.join(MECHANISMS)).into_iter();
    let mechanisms = mechanisms.map(|(name, path)| (format!("{MECHANISMS}/{name}"), path));
    in_folder(folder).into_iter().chain(mechanisms).collect()
}

/// The folder of studies that look inside.
const MECHANISMS: &str = "mechanisms";

/// The study files of a folder by name.
pub fn in_folder(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<(String, PathBuf)> = entries
        .filter(|path| path.is_file() && path.extension().is_some_and(|extension| extension == "toml"))
        .filter_map(|path| Some((path.file_stem()?.to_str()?.to_string(), path)))
        .collect();
    files.sort();
    files
}

/// The folder of a study's results, given by the study's name or file, or by the folder's name below `out` or its path.
///
/// # Errors
/// There is none.
pub fn results(study: &str, out: &Path) -> Result<PathBuf, BadFile> {
    // A study's results go by the name of its file, wherever that lies.
    let file = find(study).ok();
    let study = file.as_ref().and_then(|file| file.file_stem()?.to_str()).unwrap_or(study);
    let named = out.join(study);
    let folder = if named.is_dir() { named.clone() } else { study.into() };
    if !folder.is_dir() {
        let problem = format!("there is no such folder; train the study with `ablate {study}`");
        return Err(BadFile::new(&named, problem));
    }
    Ok(folder)
}

/// The file of a study given by name or by path.
///
/// # Errors
/// Neither exists; the message lists near names.
pub fn find(study: &str) -> Result<PathBuf, ConfigError> {
    let named = Path::new(FOLDER).join(format!("{study}.toml"));
    if named.is_file() {
        return Ok(named);
    }
    if Path::new(study).is_file() {
        return Ok(study.into());
    }
    if Path::new(study).exists() {
        return Err(ConfigError(format!("`{study}` is not a regular file: a study is a TOML file")));
    }
    let mut names: Vec<String> = all().into_iter().map(|(name, _)| name).collect();
    if names.is_empty() {
        return Err(ConfigError(format!(
            "there is no study `{study}`: no such file, and no folder `{FOLDER}` with studies here"
        )));
    }
    let near = nearest(study, &names).to_string();
    names.retain(|name| *name != near);
    Err(ConfigError(format!("there is no study `{study}`; did you mean `{near}`? Others: {}", names.join(", "))))
}
