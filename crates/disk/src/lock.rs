//! One process in a folder at a time.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A folder could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum Locked {
    #[error("{}: another process{} is working in this folder; wait for it or stop it first", path.display(), holder(by))]
    Held {
        path: PathBuf,
        /// What the holder wrote about itself.
        by: String,
    },
    #[error("{}: the lock cannot be written", path.display())]
    Io { path: PathBuf, source: io::Error },
}

fn holder(by: &str) -> String {
    if by.is_empty() { String::new() } else { format!(" ({by})") }
}

pub(crate) const NAME: &str = ".lock";

/// Who only looks whether a folder is held ([`is_locked`]) holds it for a moment.
const MOMENT: Duration = Duration::from_millis(100);

/// Takes a folder for this process until the file is dropped; the system gives it back when the process ends, however it ends.
///
/// # Errors
/// [`Locked`] when another process holds it, which is named.
pub fn lock(folder: &Path) -> Result<File, Locked> {
    lock_within(folder, MOMENT, || false)
}

/// As [`lock`], for which it waits so long, or until it is told to give up.
///
/// # Errors
/// As there.
pub fn lock_within(folder: &Path, patience: Duration, give_up: impl Fn() -> bool) -> Result<File, Locked> {
    let start = Instant::now();
    let path = folder.join(NAME);
    let unusable = |source| Locked::Io { path: path.clone(), source };
    // What the holder wrote stays until the lock is ours.
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(unusable);
    let mut file = open()?;
    loop {
        match file.try_lock() {
            // The folder may have been moved away while this waited, and the lock with it.
            Ok(()) if !is_at(&file, &path) => file = open()?,
            Ok(()) => {
                // A full disk is for others to find: the lock holds without a word.
                let _ = file.set_len(0).and_then(|()| file.write_all(own_name().as_bytes()));
                return Ok(file);
            }
            Err(TryLockError::WouldBlock) if start.elapsed() < patience && !give_up() => {
                std::thread::sleep(Duration::from_millis(20))
            }
            Err(TryLockError::WouldBlock) => break,
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
    }
    let mut by = vec![];
    // Somebody holds it, whether or not it can be read who.
    let _ = file.take(200).read_to_end(&mut by);
    let by = String::from_utf8_lossy(&by).into_owned();
    Err(Locked::Held { path: folder.into(), by })
}

fn is_at(file: &File, path: &Path) -> bool {
    let id = |meta: Metadata| (meta.dev(), meta.ino());
    // What cannot be looked at is not there.
    file.metadata().ok().map(id) == fs::metadata(path).ok().map(id)
}

/// Whether a process holds a folder that [`lock`] has been asked for.
pub fn is_locked(folder: &Path) -> bool {
    let file = File::open(folder.join(NAME));
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn own_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("process {} on {host}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_named_and_let_go() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_locked(dir.path()));
        let held = lock(dir.path()).unwrap();
        assert!(is_locked(dir.path()));
        let refused = lock(dir.path()).unwrap_err().to_string();
        let name = format!("another process (process {} on ", std::process::id());
        assert!(refused.contains(&name), "{refused}");
        drop(held);
        lock(dir.path()).unwrap();
        std::fs::write(dir.path().join(NAME), [0xff; 4000]).unwrap();
        let _held = lock(dir.path()).unwrap();
        assert!(std::fs::metadata(dir.path().join(NAME)).unwrap().len() < 300);
    }
}
