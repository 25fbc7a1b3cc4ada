//! Gets published corpora: the only part of the program that opens a network connection.
//!
//! Everything is prepared in `data/.NAME/`: downloads that can be resumed, and the files taken from them. Once all are
//! there and checked, they are renamed to `data/NAME/` together.

mod download;
mod unpack;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use data::{Known, Remote};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

/// Where to get a corpus from, if not from the addresses that are known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Source<'a> {
    /// An address to try first; one that ends in `/` is continued with the name of the file.
    pub mirror: Option<&'a str>,
    /// A file that is here already, or a folder with the files.
    pub from: Option<&'a Path>,
}

/// Why a corpus could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(
        "corpus `{corpus}`: {file} cannot be had: {reasons}; give a copy with `--from`, or another address with `--mirror`"
    )]
    Unavailable { corpus: String, file: String, reasons: String },
    #[error(
        "corpus `{corpus}` has no address of its own: get {file} and give it with `--from`; data/README.md says how"
    )]
    NoAddress { corpus: String, file: String },
    #[error("{path}: {problem}")]
    BadFile { path: String, problem: String },
    #[error(transparent)]
    Locked(#[from] disk::Locked),
    #[error("{path}: cannot be read or written")]
    Io { path: String, source: io::Error },
}

impl FetchError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        |source| FetchError::Io { path, source }
    }

    fn bad(path: &Path, problem: impl Into<String>) -> Self {
        FetchError::BadFile { path: path.display().to_string(), problem: problem.into() }
    }
}

/// Gets a corpus into the folder of its name below `root`, unless it is there, and returns that.
///
/// # Errors
/// Nothing is left under the final name; what was downloaded is kept for the next try.
pub fn fetch(known: &Known, source: Source, root: &Path) -> Result<PathBuf, FetchError> {
    let folder = root.join(known.name);
    if is_there(known, &folder)? {
        return Ok(folder);
    }
    let staging = root.join(format!(".{}", known.name));
    let ready = staging.join("ready");
    fs::create_dir_all(&staging).map_err(FetchError::io(&staging))?;
    let _lock = disk::lock(&staging)?;
    // Another process may have fetched it by now.
    if is_there(known, &folder)? {
        return Ok(folder);
    }
    if ready.exists() {
        // Left over by a process that was ended in between.
        fs::remove_dir_all(&ready).map_err(FetchError::io(&ready))?;
    }
    fs::create_dir(&ready).map_err(FetchError::io(&ready))?;
    // Nothing is taken before all is there, so that what was downloaded stays for the next try.
    let files: Result<Vec<PathBuf>, _> =
        known.remotes.iter().map(|remote| obtain(known, remote, source, &staging)).collect();
    for (remote, file) in known.remotes.iter().zip(files?) {
        unpack::take(&remote.take, &file, &ready)?;
    }
    fs::rename(&ready, &folder).map_err(FetchError::io(&folder))?;
    // What is left has no use; the corpus is there.
    let _ = fs::remove_dir_all(&staging);
    Ok(folder)
}

/// Whether the corpus is there.
///
/// # Errors
/// Something else is.
fn is_there(known: &Known, folder: &Path) -> Result<bool, FetchError> {
    match fs::symlink_metadata(folder) {
        Ok(_) if known.is_at(folder) => Ok(true),
        Ok(_) => Err(FetchError::bad(folder, "is there, but is not this corpus; move it away and fetch again")),
        Err(_) => Ok(false),
    }
}

/// A checked copy of a remote file in the staging folder.
fn obtain(known: &Known, remote: &Remote, source: Source, staging: &Path) -> Result<PathBuf, FetchError> {
    let part = staging.join(format!("{}.part", remote.file));
    if let Some(from) = source.from {
        let file = if from.is_dir() { from.join(remote.file) } else { from.to_path_buf() };
        match fs::metadata(&file) {
            Err(error) => return Err(FetchError::bad(&file, format!("cannot be read: {error}"))),
            Ok(meta) if !meta.is_file() => return Err(FetchError::bad(&file, "is not a regular file")),
            Ok(_) => {}
        }
        check(&file, remote)?
            .map_err(|problem| FetchError::bad(&file, format!("is not {}: {problem}", remote.file)))?;
        if fs::canonicalize(&file).ok() == fs::canonicalize(&part).ok() {
            return Ok(part);
        }
        // What lies there may be a link to elsewhere.
        let _ = fs::remove_file(&part);
        let copy = || io::copy(&mut File::open(&file)?, &mut File::create(&part)?);
        copy().map_err(FetchError::io(&part))?;
        return Ok(part);
    }
    if part.exists() && check(&part, remote)?.is_ok() {
        return Ok(part);
    }
    let mirror = source.mirror.map(|url| if url.ends_with('/') { format!("{url}{}", remote.file) } else { url.into() });
    let urls: Vec<String> = mirror.into_iter().chain(remote.urls.iter().map(|url| url.to_string())).collect();
    if urls.is_empty() {
        return Err(FetchError::NoAddress { corpus: known.name.into(), file: remote.file.into() });
    }
    let mut reasons = vec![];
    for url in urls {
        match download::download(&url, &part, remote, download::PACE)? {
            Ok(()) => return Ok(part),
            Err(reason) => reasons.push(format!("{url} {reason}")),
        }
    }
    let reasons = reasons.join("; ");
    Err(FetchError::Unavailable { corpus: known.name.into(), file: remote.file.into(), reasons })
}

/// Nothing, or what is wrong with what was found.
type Verdict = Result<(), String>;

/// Whether a file has the size and the hash that are published.
fn check(path: &Path, remote: &Remote) -> Result<Verdict, FetchError> {
    let found = fs::metadata(path).map_err(FetchError::io(path))?.len();
    if found != remote.bytes {
        return Ok(Err(format!("{found} bytes instead of {}", remote.bytes)));
    }
    let bar = bar(remote.bytes, "checking");
    let mut file = bar.wrap_read(File::open(path).map_err(FetchError::io(path))?);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer).map_err(FetchError::io(path))? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    bar.finish_and_clear();
    Ok(same_hash(hash, remote.sha256))
}

fn same_hash(hash: Sha256, expected: &str) -> Verdict {
    let found = data::hex(hash.finalize());
    if found == expected { Ok(()) } else { Err(format!("its SHA-256 is {found} instead of {expected}")) }
}

/// A progress bar with speed and time left, where there is a terminal.
fn bar(bytes: u64, what: &str) -> ProgressBar {
    let shape = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
    let style = ProgressStyle::with_template(shape).expect("a valid template").progress_chars("=> ");
    ProgressBar::new(bytes).with_style(style).with_message(what.to_string())
}
