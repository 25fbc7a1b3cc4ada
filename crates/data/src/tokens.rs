//! Token ids, two or four bytes each, in memory or in a mapped file.

use std::ops::Range;

use crate::bytes::Bytes;

/// Little-endian token ids.
#[derive(Clone)]
pub struct Tokens {
    pub(crate) bytes: Bytes,
    pub(crate) width: Width,
}

/// How a token id is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    U16,
    U32,
}

impl Width {
    /// The narrower that holds `vocab_size` ids.
    pub(crate) fn of(vocab_size: usize) -> Self {
        if vocab_size <= 1 << 16 { Width::U16 } else { Width::U32 }
    }

    pub(crate) fn n_bytes(self) -> usize {
        match self {
            Width::U16 => 2,
            Width::U32 => 4,
        }
    }

    /// The bytes of token ids, each of which fits.
    pub(crate) fn write(self, ids: &[u32], into: &mut Vec<u8>) {
        match self {
            Width::U16 => into.extend(ids.iter().flat_map(|&id| (id as u16).to_le_bytes())),
            Width::U32 => into.extend(ids.iter().flat_map(|&id| id.to_le_bytes())),
        }
    }
}

impl Tokens {
    /// Token ids below `vocab_size`, kept in memory.
    pub(crate) fn new(ids: &[u32], vocab_size: usize) -> Self {
        let width = Width::of(vocab_size);
        let mut bytes = Vec::with_capacity(ids.len() * width.n_bytes());
        width.write(ids, &mut bytes);
        Tokens { bytes: bytes.into(), width }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.width.n_bytes()
    }

    /// Token ids of a range.
    pub fn get(&self, range: Range<usize>) -> impl Iterator<Item = u32> {
        let n = self.width.n_bytes();
        let id = |bytes: &[u8]| bytes.iter().rev().fold(0, |id, &byte| id << 8 | u32::from(byte));
        self.bytes[range.start * n..range.end * n].chunks_exact(n).map(id)
    }

    /// These tokens after another one. Mapped ones are copied.
    pub(crate) fn behind(&self, first: u32) -> Self {
        let mut bytes = Vec::with_capacity(self.bytes.len() + self.width.n_bytes());
        self.width.write(&[first], &mut bytes);
        bytes.extend_from_slice(&self.bytes);
        Tokens { bytes: bytes.into(), width: self.width }
    }
}
