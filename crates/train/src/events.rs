//! Losses and rates as TensorBoard reads them: `events.out.tfevents.*`.
//!
//! A file of records, each a protocol buffer `Event` between two checksums. The few fields that are needed are written out here;
//! their numbers are those of `event.proto`, `summary.proto` and `tensor.proto`.

use std::fs::File;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::folder::unwritable;
use crate::{RunConfig, RunFolder};

/// Writes events one by one, so that others can follow them.
pub(crate) struct EventsFile {
    file: File,
    folder: RunFolder,
}

impl EventsFile {
    /// An empty file, but for the run's config.
    pub(crate) fn create(folder: &RunFolder, config: &RunConfig) -> Result<Self> {
        let path = path(folder);
        let file = disk::open_to_append(&path).with_context(|| unwritable(&path))?;
        folder.storage.cut(&file, 0).with_context(|| unwritable(&path))?;
        let mut events = EventsFile { file, folder: folder.clone() };
        let mut version = vec![];
        text_field(&mut version, 3, "brain.Event:2");
        events.event(now(), 0, &version)?;
        // Four spaces: the text is Markdown there.
        let lines: String = toml::to_string(config)?.lines().map(|line| format!("    {line}\n")).collect();
        events.text("config", &lines)?;
        Ok(events)
    }

    /// Numbers of a step, each under its tag, at a time in seconds since 1970.
    pub(crate) fn scalars(&mut self, at: f64, step: usize, numbers: &[(&str, f64)]) -> Result<()> {
        let mut summary = vec![];
        for (tag, number) in numbers {
            let mut value = vec![];
            text_field(&mut value, 1, tag);
            key(&mut value, 2, 5);
            value.extend((*number as f32).to_le_bytes());
            bytes_field(&mut summary, 1, &value);
        }
        let mut event = vec![];
        bytes_field(&mut event, 5, &summary);
        self.event(at, step, &event)
    }

    /// A text that belongs to the run.
    fn text(&mut self, tag: &str, text: &str) -> Result<()> {
        let (mut plugin, mut metadata, mut tensor, mut shape, mut dim) = (vec![], vec![], vec![], vec![], vec![]);
        text_field(&mut plugin, 1, "text");
        bytes_field(&mut metadata, 1, &plugin);
        key(&mut dim, 1, 0);
        varint(&mut dim, 1);
        bytes_field(&mut shape, 2, &dim);
        // DT_STRING
        key(&mut tensor, 1, 0);
        varint(&mut tensor, 7);
        bytes_field(&mut tensor, 2, &shape);
        text_field(&mut tensor, 8, text);
        let (mut value, mut summary, mut event) = (vec![], vec![], vec![]);
        text_field(&mut value, 1, tag);
        bytes_field(&mut value, 8, &tensor);
        bytes_field(&mut value, 9, &metadata);
        bytes_field(&mut summary, 1, &value);
        bytes_field(&mut event, 5, &summary);
        self.event(now(), 0, &event)
    }

    /// An event with what it holds.
    fn event(&mut self, at: f64, step: usize, what: &[u8]) -> Result<()> {
        let mut event = vec![];
        key(&mut event, 1, 1);
        event.extend(at.to_le_bytes());
        key(&mut event, 2, 0);
        varint(&mut event, step as u64);
        event.extend(what);
        let written = self.folder.storage.append(&mut self.file, &record(&event));
        written.with_context(|| unwritable(&path(&self.folder)))
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The name that TensorBoard looks for, of one file a run.
fn path(folder: &RunFolder) -> PathBuf {
    folder.path.join("events.out.tfevents.0.ablate")
}

/// A record: length, its checksum, the bytes, their checksum.
fn record(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(masked(&length).to_le_bytes());
    record.extend(bytes);
    record.extend(masked(bytes).to_le_bytes());
    record
}

/// The checksum of TensorFlow's records: CRC-32C, masked, for a checksum of data that holds checksums is weak.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn key(into: &mut Vec<u8>, field: u64, kind: u64) {
    varint(into, field << 3 | kind);
}

fn varint(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn bytes_field(into: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    key(into, field, 2);
    varint(into, bytes.len() as u64);
    into.extend(bytes);
}

fn text_field(into: &mut Vec<u8>, field: u64, text: &str) {
    bytes_field(into, field, text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_tensorboard_s() {
        // Written by TensorBoard 2.20's own writer, see tests/fixtures/event.py.
        let expected = std::fs::read("tests/fixtures/event.record").unwrap();
        let mut event = vec![];
        key(&mut event, 1, 1);
        event.extend(1.5f64.to_le_bytes());
        key(&mut event, 2, 0);
        varint(&mut event, 300);
        let (mut value, mut summary) = (vec![], vec![]);
        text_field(&mut value, 1, "loss/train");
        key(&mut value, 2, 5);
        value.extend(0.25f32.to_le_bytes());
        bytes_field(&mut summary, 1, &value);
        bytes_field(&mut event, 5, &summary);
        assert_eq!(record(&event), expected);
    }
}
