//! Whether two runs came out the same, bit by bit.

use anyhow::Result;
use safetensors::tensor::SafeTensors;

use crate::folder::read_file;
use crate::{BadFile, MetricLine, ProbeLine, RunFolder, State};

/// The first thing in which two finished runs differ, but for the time they took; `None` if there is nothing.
///
/// # Errors
/// A folder that is not that of a finished run.
pub fn first_difference(a: &RunFolder, b: &RunFolder) -> Result<Option<String>> {
    let bits = |line: MetricLine| MetricLine { seconds: 0.0, ..line };
    let (ours, theirs) = (a.metrics()?, b.metrics()?);
    for (a, b) in ours.iter().zip(&theirs) {
        if bits(a.clone()) != bits(b.clone()) {
            let (a, b) = (serde_json::to_string(a)?, serde_json::to_string(b)?);
            return Ok(Some(format!("metrics.jsonl: {a} against {b}")));
        }
    }
    if ours.len() != theirs.len() {
        return Ok(Some(format!("metrics.jsonl: {} lines against {}", ours.len(), theirs.len())));
    }
    let seen = |folder: &RunFolder| -> Result<Vec<ProbeLine>> {
        let lines = folder.probes(&folder.config()?, State::Done)?;
        Ok(lines.into_iter().map(|line| ProbeLine { seconds: 0.0, ..line }).collect())
    };
    let (ours, theirs) = (seen(a)?, seen(b)?);
    if ours != theirs {
        let first = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs).map(|(ours, _)| ours.step);
        return Ok(Some(match first {
            Some(step) => format!("probes.jsonl: step {step}"),
            None => format!("probes.jsonl: {} lines against {}", ours.len(), theirs.len()),
        }));
    }
    let (ours, theirs) = (read_file(&a.weights_path())?, read_file(&b.weights_path())?);
    let (ours, theirs) = (tensors(a, &ours)?, tensors(b, &theirs)?);
    let mut names = ours.names();
    names.sort();
    for name in names {
        let (a, b) = (ours.tensor(name)?, theirs.tensor(name).ok());
        if b.is_none_or(|b| (a.shape(), a.data()) != (b.shape(), b.data())) {
            return Ok(Some(format!("the weights of {name}")));
        }
    }
    Ok((ours.len() != theirs.len()).then(|| "the names of the weights".into()))
}

fn tensors<'a>(folder: &RunFolder, bytes: &'a [u8]) -> Result<SafeTensors<'a>, BadFile> {
    SafeTensors::deserialize(bytes)
        .map_err(|error| BadFile::new(&folder.weights_path(), format!("is damaged: {error}")))
}
