//! The files of a corpus from what was downloaded.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use data::{Member, Take};
use sha2::{Digest, Sha256};
use zip::ZipArchive;
use zip::result::ZipError;

use crate::{FetchError, same_hash};

/// Takes what belongs to the corpus out of `archive` and into the folder `ready`. Members are found by their names, and
/// written under ours: no path of an archive is followed.
pub(crate) fn take(take: &Take, archive: &Path, ready: &Path) -> Result<(), FetchError> {
    match take {
        Take::Whole(name) => fs::rename(archive, ready.join(name)).map_err(FetchError::io(archive)),
        Take::Members(members) => members.iter().try_for_each(|member| {
            let parts = [(member.name, member.bytes.unwrap_or(u64::MAX))];
            copy(archive, member, &parts, ready)
        }),
        Take::Parts(member, parts) => copy(archive, member, parts, ready),
        Take::Documents { folder, n, bytes } => documents(archive, folder, (*n, *bytes), ready),
    }
}

fn open(path: &Path) -> Result<ZipArchive<File>, FetchError> {
    let file = File::open(path).map_err(FetchError::io(path))?;
    ZipArchive::new(file).map_err(|error| FetchError::bad(path, format!("is no zip archive: {error}")))
}

/// Copies a member into files of so many bytes each, and checks it.
fn copy(archive: &Path, member: &Member, parts: &[(&str, u64)], ready: &Path) -> Result<(), FetchError> {
    let mut zip = open(archive)?;
    let named = |problem: &str| FetchError::bad(archive, format!("its member {}: {problem}", member.member));
    let mut text = zip.by_name(member.member).map_err(|error| match error {
        ZipError::FileNotFound => named("is not there"),
        error => named(&error.to_string()),
    })?;
    let (mut hash, mut n) = (Sha256::new(), 0);
    for (name, bytes) in parts {
        let path = ready.join(name);
        let mut file = File::create(&path).map_err(FetchError::io(&path))?;
        let mut left = *bytes;
        let mut buffer = vec![0; 1 << 16];
        while left > 0 {
            let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let got = text.read(&mut buffer[..room]).map_err(|error| named(&format!("is damaged: {error}")))?;
            if got == 0 {
                break;
            }
            hash.update(&buffer[..got]);
            file.write_all(&buffer[..got]).map_err(FetchError::io(&path))?;
            left -= got as u64;
            n += got as u64;
        }
        file.sync_all().map_err(FetchError::io(&path))?;
    }
    let more = text.read(&mut [0]).map_err(|error| named(&format!("is damaged: {error}")))?;
    if let Some(bytes) = member.bytes.filter(|&bytes| bytes != n || more > 0) {
        let problem =
            if more > 0 { format!("has more than {bytes} bytes") } else { format!("has {n} bytes, not {bytes}") };
        return Err(named(&problem));
    }
    match member.sha256 {
        Some(sha256) => same_hash(hash, sha256).map_err(|problem| named(&problem)),
        None => Ok(()),
    }
}

/// Copies the members that lie in a folder of the archive: `n` of them, with so many bytes in all.
fn documents(archive: &Path, folder: &str, (n, bytes): (usize, u64), ready: &Path) -> Result<(), FetchError> {
    let mut zip = open(archive)?;
    let names: Vec<String> = zip.file_names().flatten().map(|name| name.into_owned()).collect();
    let (mut n_found, mut bytes_found) = (0, 0);
    for member in names {
        let Some(name) = member.strip_prefix(folder).filter(|name| is_plain(name)) else { continue };
        let damaged = |error: &dyn std::fmt::Display| FetchError::bad(archive, format!("its member {member}: {error}"));
        let text = zip.by_name(&member).map_err(|error| damaged(&error))?;
        let mut content = vec![];
        text.take(bytes + 1).read_to_end(&mut content).map_err(|error: io::Error| damaged(&error))?;
        let path = ready.join(name);
        fs::write(&path, &content).map_err(FetchError::io(&path))?;
        n_found += 1;
        bytes_found += content.len() as u64;
    }
    if (n_found, bytes_found) != (n, bytes) {
        let problem = format!("has {n_found} texts of {bytes_found} bytes in {folder} instead of {n} of {bytes}");
        return Err(FetchError::bad(archive, problem));
    }
    Ok(())
}

/// Whether a name is that of a text file and nothing else.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.'".contains(c);
    name.ends_with(".txt") && !name.starts_with('.') && name.chars().all(plain)
}
