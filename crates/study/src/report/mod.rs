//! The comparison as files: `report.html`, `report.md`, `results.csv`, `results.json`.

mod chart;
mod html;

use std::path::Path;

use anyhow::Result;
use data::Split;
use serde::Serialize;
use train::{State, write_whole};

use crate::Comparison;
use crate::plan::Variant;
use crate::results::{RunResult, StudyResults};
use crate::settings::Matching;

/// Version of `results.json`; it grows when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

/// A study's results and what follows from them.
pub struct Report {
    results: StudyResults,
    pub comparison: Comparison,
}

impl Report {
    /// Reads the study in `folder`.
    ///
    /// # Errors
    /// A folder that is not a study's, or damaged files.
    pub fn read(folder: &Path) -> Result<Self> {
        let results = StudyResults::read(folder)?;
        let comparison = Comparison::of(&results);
        Ok(Report { results, comparison })
    }

    /// Writes the four files into `folder`.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: &str| write_whole(&folder.join(name), text);
        write("report.html", &html::page(&self.results, &self.comparison))?;
        write("report.md", &markdown(&self.comparison))?;
        write("results.csv", &csv(&self.results)?)?;
        write("results.json", &json(&self.results, &self.comparison)?)
    }
}

fn markdown(comparison: &Comparison) -> String {
    let mut text = format!("# {}\n\n{}\n\n", comparison.study.name, comparison.study.description);
    for sentence in comparison.sentences() {
        text += &format!("- {sentence}\n");
    }
    text += &format!("\n{}\n", comparison.table().markdown());
    for note in comparison.notes() {
        text += &format!("{note}\n\n");
    }
    for variant in &comparison.study.variants[1..] {
        text += &format!("- {}: {}\n", variant.name, changes(variant));
    }
    text += &format!("\n{}\n{}\n\n", comparison.measures().markdown(), Comparison::MEASURES);
    let details = [
        comparison.rates(),
        comparison.effects(),
        comparison.classes(),
        comparison.contributions(),
        comparison.knowledge(),
    ];
    for table in details.into_iter().flatten() {
        text += &format!("{}\n", table.markdown());
    }
    text += "Losses are of the whole validation split after the last step, in nats per token; differences are paired by seed.\n";
    text
}

/// What a variant changes, in words.
fn changes(variant: &Variant) -> String {
    let rate = variant.lr.map_or(String::new(), |lr| format!(" and lr = {lr}"));
    format!("{}, with d_ff = {}{rate}", variant.changes.join(", "), variant.d_ff)
}

/// One run as a row. Absent numbers are empty.
#[derive(Serialize)]
struct Record<'a> {
    #[serde(rename = "match")]
    matching: Matching,
    variant: &'a str,
    seed: u64,
    state: State,
    steps: usize,
    n_params: usize,
    flops_per_token: usize,
    valid_loss: Option<f64>,
    perplexity: Option<f64>,
    lr: f64,
    bits_per_byte: Option<f64>,
    best_valid_loss: Option<f64>,
    best_step: Option<usize>,
    early_roughness: Option<f64>,
    knowledge_bits: Option<f64>,
    tokens_per_second: Option<f64>,
}

impl<'a> Record<'a> {
    fn of(run: &'a RunResult, matching: Matching) -> Self {
        let (last, best) = (run.last(), run.best());
        Record {
            matching,
            variant: &run.config.variant,
            seed: run.config.seed,
            state: run.state,
            steps: run.config.train.steps,
            lr: run.config.train.lr,
            n_params: run.meta.n_params,
            flops_per_token: run.meta.flops_per_token,
            valid_loss: last.map(|line| line.loss),
            perplexity: last.map(|line| line.perplexity),
            bits_per_byte: last.and_then(|line| line.bits_per_byte),
            best_valid_loss: best.map(|line| line.loss),
            best_step: best.map(|line| line.step),
            early_roughness: run.roughness(),
            knowledge_bits: run.knowledge_bits(),
            tokens_per_second: run.tokens_per_second(),
        }
    }
}

fn records(results: &StudyResults) -> Vec<Record<'_>> {
    results.runs.iter().flatten().map(|run| Record::of(run, results.study.matching)).collect()
}

fn csv(results: &StudyResults) -> Result<String> {
    let mut writer = csv::Writer::from_writer(vec![]);
    for record in records(results) {
        writer.serialize(record)?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

fn json(results: &StudyResults, comparison: &Comparison) -> Result<String> {
    #[derive(Serialize)]
    struct File<'a> {
        schema: u32,
        #[serde(flatten)]
        comparison: &'a Comparison,
        runs: Vec<Record<'a>>,
    }
    Ok(serde_json::to_string_pretty(&File { schema: SCHEMA, comparison, runs: records(results) })? + "\n")
}

/// Mean and spread over seeds of one variant's curve.
struct Curve {
    name: String,
    /// (step, lowest, mean, highest)
    points: Vec<(f64, f64, f64, f64)>,
}

/// Curves of all variants on a split, each cut into at most `n_bins` bins of steps. Within a bin a run counts by its mean.
fn curves(results: &StudyResults, split: Split, n_bins: usize) -> Vec<Curve> {
    let steps = |run: &RunResult| run.config.train.steps as f64;
    let last = results.runs.iter().flatten().map(steps).fold(1.0, f64::max);
    let variants = results.study.variants.iter().zip(&results.runs).map(|(variant, runs)| {
        let mut bins: Vec<Vec<(f64, f64)>> = vec![vec![]; n_bins];
        for run in runs {
            let mut own: Vec<(f64, f64, f64)> = vec![(0.0, 0.0, 0.0); n_bins];
            for (step, loss) in run.curve(split) {
                let bin = &mut own[(((step - 1.0) / last * n_bins as f64) as usize).min(n_bins - 1)];
                *bin = (bin.0 + 1.0, bin.1 + step, bin.2 + loss);
            }
            for (bin, (n, step, loss)) in bins.iter_mut().zip(own) {
                if n > 0.0 {
                    bin.push((step / n, loss / n));
                }
            }
        }
        let points = bins.iter().filter(|bin| !bin.is_empty()).map(|bin| {
            let n = bin.len() as f64;
            let losses = || bin.iter().map(|(_, loss)| *loss);
            let step = bin.iter().map(|(step, _)| step).sum::<f64>() / n;
            let (low, high) = (losses().fold(f64::INFINITY, f64::min), losses().fold(f64::NEG_INFINITY, f64::max));
            (step, low, losses().sum::<f64>() / n, high)
        });
        Curve { name: variant.name.clone(), points: points.collect() }
    });
    variants.collect()
}
