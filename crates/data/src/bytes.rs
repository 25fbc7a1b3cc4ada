//! Bytes in memory or in a mapped file, so that a corpus can be larger than memory.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

/// A part of some bytes; a copy shares them.
#[derive(Clone)]
pub(crate) struct Bytes {
    storage: Arc<Storage>,
    range: Range<usize>,
}

enum Storage {
    Memory(Vec<u8>),
    Mapped(Mmap),
}

impl Bytes {
    /// Maps a file for reading.
    pub(crate) fn map(path: &Path) -> io::Result<Self> {
        // Opening a pipe would wait for its other end.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is only read. Whoever changes the file meanwhile changes what is read, or ends the process if the
        // file becomes shorter; the hash of a corpus is taken from the same map.
        let map = unsafe { Mmap::map(&file)? };
        let range = 0..map.len();
        Ok(Bytes { storage: Arc::new(Storage::Mapped(map)), range })
    }

    /// Whether they lie in a file.
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(*self.storage, Storage::Mapped(_))
    }

    /// A part of these bytes.
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        debug_assert!(range.start <= range.end && range.end <= self.len());
        let range = self.range.start + range.start..self.range.start + range.end;
        Bytes { storage: self.storage.clone(), range }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Bytes { storage: Arc::new(Storage::Memory(bytes)), range }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.storage {
            Storage::Memory(bytes) => &bytes[self.range.clone()],
            Storage::Mapped(map) => &map[self.range.clone()],
        }
    }
}
