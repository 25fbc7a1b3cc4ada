//! The comparison as files: `report.html`, `report.md`, `results.csv`, `results.json`.

mod chart;
mod html;
mod inside;
mod intervals;

use std::iter;
use std::path::Path;

use anyhow::Result;
use data::Split;
use serde::Serialize;
use train::format::stamped;
use train::{BadFile, State, write_whole};

use crate::Comparison;
use crate::plan::Variant;
use crate::rates::RateCurve;
use crate::results::{RunResult, StudyResults};
use crate::settings::Matching;

/// A study's results and what follows from them.
pub struct Report {
    results: StudyResults,
    pub comparison: Comparison,
}

impl Report {
    pub const FILES: [&str; 4] = ["report.html", "report.md", "results.csv", "results.json"];

    /// Reads the study in `folder`.
    ///
    /// # Errors
    /// A folder that is not a study's, or damaged files.
    pub fn read(folder: &Path) -> Result<Self> {
        let results = StudyResults::read(folder)?;
        let comparison = Comparison::of(&results);
        Ok(Report { results, comparison })
    }

    /// `report.html`.
    pub fn page(&self) -> String {
        html::page(&self.results, &self.comparison)
    }

    /// Writes the four files into `folder`.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: &str| write_whole(&folder.join(name), text);
        write("report.html", &self.page())?;
        write("report.md", &markdown(&self.comparison))?;
        write("results.csv", &csv(&self.results)?)?;
        write("results.json", &json(&self.results, &self.comparison)?)
    }
}

/// Every number of every run of a study, a line each, as CSV: study, variant, seed, step, split, metric, value. The split of what a
/// probe has found is `probe`, and its metric ends with the number of its place, as in the report.
///
/// # Errors
/// A folder that is not a study's, or damaged files.
pub fn long_table(folder: &Path) -> Result<String> {
    let results = StudyResults::read(folder)?;
    if let Some(problem) = results.left_out.first() {
        return Err(BadFile::new(folder, format!("a run cannot be exported: {problem}")).into());
    }
    let mut writer = csv::Writer::from_writer(vec![]);
    writer.write_record(["study", "variant", "seed", "step", "split", "metric", "value"])?;
    for run in results.runs.iter().flatten() {
        let (variant, seed) = (&run.config.variant, run.config.seed);
        for line in &run.metrics {
            let classes = line.classes.iter().map(|(class, loss)| (<&str>::from(class), Some(*loss)));
            let numbers = [
                ("loss", Some(line.loss)),
                ("perplexity", Some(line.perplexity)),
                ("bits_per_byte", line.bits_per_byte),
                ("lr", line.lr),
                ("grad_norm", line.grad_norm),
                ("seconds", Some(line.seconds)),
            ];
            for (metric, value) in numbers.into_iter().chain(classes) {
                let Some(value) = value else { continue };
                writer.serialize((&results.study.name, variant, seed, line.step, line.split, metric, value))?;
            }
        }
        for line in &run.probes {
            let values =
                line.values.iter().flat_map(|(measure, values)| values.iter().enumerate().zip(iter::repeat(measure)));
            for ((place, value), measure) in values {
                let Some(value) = value else { continue };
                let metric = format!("{}.{}", <&str>::from(measure), measure.place().number(place));
                writer.serialize((&results.study.name, variant, seed, line.step, "probe", metric, value))?;
            }
        }
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

fn markdown(comparison: &Comparison) -> String {
    let mut text = format!("# {}\n\n{}\n\n", comparison.study.name, html::escape(&comparison.study.description));
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
    if let Some(inside) = comparison.inside() {
        text += &format!("{}\n{}\n\n", inside.markdown(), Comparison::INSIDE);
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
        #[serde(flatten)]
        comparison: &'a Comparison,
        runs: Vec<Record<'a>>,
    }
    let file = File { comparison, runs: records(results) };
    Ok(serde_json::to_string_pretty(&stamped(&file))? + "\n")
}

/// One variant's curve.
struct Curve {
    name: String,
    /// (x, lowest, mean, highest) over seeds
    points: Vec<(f64, f64, f64, f64)>,
    /// The points of each seed.
    seeds: Vec<Vec<(f64, f64)>>,
}

impl Curve {
    /// Of points (x, y) of each seed at the same places; where a seed has none there, it does not count.
    fn of(name: &str, seeds: &[Vec<Option<(f64, f64)>>], shown: Vec<Vec<(f64, f64)>>) -> Self {
        let n = seeds.iter().map(Vec::len).max().unwrap_or(0);
        let point = |i: usize| {
            let here: Vec<(f64, f64)> = seeds.iter().filter_map(|seed| *seed.get(i)?).collect();
            let n = here.len() as f64;
            let ys = || here.iter().map(|point| point.1);
            let (low, high) = (ys().fold(f64::INFINITY, f64::min), ys().fold(f64::NEG_INFINITY, f64::max));
            (!here.is_empty())
                .then(|| (here.iter().map(|point| point.0).sum::<f64>() / n, low, ys().sum::<f64>() / n, high))
        };
        Curve { name: name.into(), points: (0..n).filter_map(point).collect(), seeds: shown }
    }
}

/// The bin of a step.
fn bin(step: f64, last: f64, n_bins: usize) -> usize {
    (((step - 1.0) / last * n_bins as f64) as usize).min(n_bins - 1)
}

/// The mean of a run's curve in each of `n_bins` bins of steps.
fn binned(run: &RunResult, split: Split, last: f64, n_bins: usize) -> Vec<Option<(f64, f64)>> {
    let mut bins = vec![(0.0, 0.0, 0.0); n_bins];
    for (step, loss) in run.curve(split) {
        let bin: &mut (f64, f64, f64) = &mut bins[bin(step, last, n_bins)];
        *bin = (bin.0 + 1.0, bin.1 + step, bin.2 + loss);
    }
    bins.into_iter().map(|(n, step, loss)| (n > 0.0).then(|| (step / n, loss / n))).collect()
}

/// Runs whose curves are drawn one by one at most: more would be a page too large to send.
const MOST_SINGLE: usize = 60;

/// A run's curve in at most two points for each of `n_bins` bins, the lowest and the highest, so that no spike is lost.
fn thinned(run: &RunResult, split: Split, last: f64, n_bins: usize) -> Vec<(f64, f64)> {
    let curve = run.curve(split);
    let mut points = vec![];
    for own in curve.chunk_by(|a, b| bin(a.0, last, n_bins) == bin(b.0, last, n_bins)) {
        let by_loss = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (low, high) = (own.iter().min_by(by_loss), own.iter().max_by(by_loss));
        let mut ends: Vec<(f64, f64)> = low.into_iter().chain(high).copied().collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends.dedup();
        points.extend(ends);
    }
    points
}

fn last_step(results: &StudyResults) -> f64 {
    results.runs.iter().flatten().map(|run| run.config.train.steps as f64).fold(1.0, f64::max)
}

/// Curves of all variants on a split.
fn curves(results: &StudyResults, split: Split, n_bins: usize) -> Vec<Curve> {
    let (last, n_runs) = (last_step(results), results.runs.iter().flatten().count());
    let variants = results.study.variants.iter().zip(&results.runs).map(|(variant, runs)| {
        let means: Vec<_> = runs.iter().map(|run| binned(run, split, last, n_bins)).collect();
        let single = runs.iter().filter(|_| n_runs <= MOST_SINGLE).map(|run| thinned(run, split, last, n_bins));
        Curve::of(&variant.name, &means, single.collect())
    });
    variants.collect()
}

/// Differences of all variants to the reference, which comes first as a curve without points, seed by seed.
fn differences(results: &StudyResults, split: Split, n_bins: usize) -> Vec<Curve> {
    let (last, n_runs) = (last_step(results), results.runs.iter().flatten().count());
    let mut all = vec![Curve::of(&results.study.variants[0].name, &[], vec![])];
    for (variant, runs) in results.study.variants.iter().zip(&results.runs).skip(1) {
        let of_seed = |run: &RunResult| {
            let reference = results.runs[0].iter().find(|other| other.config.seed == run.config.seed)?;
            let (a, b) = (binned(reference, split, last, n_bins), binned(run, split, last, n_bins));
            Some(a.into_iter().zip(b).map(|(a, b)| Some((b?.0, b?.1 - a?.1))).collect::<Vec<_>>())
        };
        let seeds: Vec<Vec<Option<(f64, f64)>>> = runs.iter().filter_map(of_seed).collect();
        let single =
            seeds.iter().filter(|_| n_runs <= MOST_SINGLE).map(|seed| seed.iter().flatten().copied().collect());
        all.push(Curve::of(&variant.name, &seeds, single.collect()));
    }
    all
}

/// Each variant's loss by learning rate, of a study with a sweep.
fn rates(results: &StudyResults) -> Vec<Curve> {
    let curve = |(variant, curve): (&Variant, &RateCurve)| {
        let points = curve.points.iter().filter_map(|point| Some((point.lr, point.loss?)));
        Curve {
            name: variant.name.clone(),
            points: points.map(|(lr, loss)| (lr, loss, loss, loss)).collect(),
            seeds: vec![],
        }
    };
    results.study.variants.iter().zip(&results.curves).map(curve).collect()
}
