//! Files that are there whole or not at all, and folders that one process has for itself.

mod lock;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

pub use lock::{Locked, is_locked, lock, lock_within};

/// Everything that a run does to its disk, so that a test can make each call fail.
pub trait Storage: Send + Sync {
    /// Makes a folder and those above it.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes or replaces a file.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Adds to the end of an open file.
    fn append(&self, file: &mut File, bytes: &[u8]) -> io::Result<()>;
    /// Cuts an open file down to its first `bytes`.
    fn cut(&self, file: &File, bytes: u64) -> io::Result<()>;
    /// Returns when a file, or the list of what is in a folder, is on the disk.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// Gives a file or a folder another name, in place of a file or an empty folder that has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file, or a folder and what is in it; of a link, the link.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Writes a file whole or not at all, and returns when it is on the disk.
    fn write_whole(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let partial = with_ending(path, ".partial");
        self.write(&partial, bytes)?;
        self.sync(&partial)?;
        self.rename(&partial, path)?;
        self.sync(folder_of(path))
    }
}

/// The disk itself.
pub struct Disk;

impl Storage for Disk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::write(path, bytes)
    }

    fn append(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn cut(&self, file: &File, bytes: u64) -> io::Result<()> {
        file.set_len(bytes)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path)?.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        }
    }
}

/// Makes the folder `out` with what `fill` writes into it, whole or not at all. Nothing may have its name.
///
/// # Errors
/// Those of `fill`, and of the disk as `unwritable` says them.
pub fn new_folder<T, E>(
    out: &Path,
    unwritable: impl Fn(io::Error) -> E,
    fill: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let partial = with_ending(out, &format!(".partial-{}", std::process::id()));
    fs::create_dir_all(&partial).map_err(&unwritable)?;
    let made = fill(&partial).and_then(|made| fs::rename(&partial, out).map(|()| made).map_err(&unwritable));
    if made.is_err() {
        // What is left over has no use; the error matters more than a second one.
        let _ = fs::remove_dir_all(&partial);
    }
    made
}

/// Copies a folder and what is below it, without locks, and returns when it is on the disk. Nothing may have its new name.
///
/// # Errors
/// A file that cannot be read or written, or a link to a folder, which may have no end.
pub fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else if entry.file_name() != lock::NAME {
            fs::copy(entry.path(), &to)?;
            Disk.sync(&to)?;
        }
    }
    Disk.sync(to)
}

/// Reads a text that a person has written: UTF-8, of 1 MiB at most.
///
/// # Errors
/// It cannot be read, is longer, or is something else.
pub fn read_small_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // A device or a pipe may have no end.
    File::open(path)?.take(SMALL + 1).read_to_string(&mut text)?;
    match text.len() as u64 > SMALL {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than 1 MiB")),
        false => Ok(text),
    }
}

const SMALL: u64 = 1 << 20;

/// Opens a file to add to its end, and makes it if it is not there.
///
/// # Errors
/// Something is there that is no regular file: a pipe would wait for its other end.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file; move it away"));
    }
    OpenOptions::new().append(true).create(true).open(path)
}

/// Bytes that can still be written where a path is, or will be.
///
/// # Errors
/// The system does not say.
pub fn free_space(path: &Path) -> io::Result<u64> {
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    let disk = rustix::fs::statvfs(there)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Bytes of the files in a folder and below; nothing of what cannot be read, or lies behind a link.
pub fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_of(&entry.path()),
        Ok(meta) if meta.is_file() => meta.len(),
        _ => 0,
    };
    entries.map(size).sum()
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OsStr::new(ending));
    name.into()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("a/b");
        let failed: io::Result<()> = new_folder(
            &out,
            |error| error,
            |path| {
                fs::write(path.join("x"), "1")?;
                Err(io::Error::other("no"))
            },
        );
        assert!(failed.is_err() && fs::read_dir(dir.path().join("a")).unwrap().count() == 0);
        new_folder(&out, |error| error, |path| fs::write(path.join("x"), "1")).unwrap();
        assert_eq!(fs::read(out.join("x")).unwrap(), b"1");
    }

    #[test]
    fn a_text_without_an_end_is_not_read_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, "a".repeat(1 << 20)).unwrap();
        assert_eq!(read_small_text(&path).unwrap().len(), 1 << 20);
        fs::write(&path, "a".repeat((1 << 20) + 1)).unwrap();
        assert_eq!(read_small_text(&path).unwrap_err().to_string(), "it is longer than 1 MiB");
        assert!(read_small_text(Path::new("/dev/zero")).is_err() && read_small_text(dir.path()).is_err());
    }

    #[test]
    fn free_space_is_known_before_the_folder_is_made() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_space(&dir.path().join("not/yet")).unwrap() > 0);
        assert!(free_space(Path::new("not-yet")).unwrap() > 0);
    }

    #[test]
    fn removing_a_link_leaves_what_it_points_to() {
        let dir = tempfile::tempdir().unwrap();
        let (precious, link) = (dir.path().join("precious"), dir.path().join("link"));
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("x"), "1").unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        Disk.remove(&link).unwrap();
        assert!(precious.join("x").exists() && !link.exists());
    }
}
