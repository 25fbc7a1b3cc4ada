//! The training step of each variant, turn by turn against others.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use kernels::{Kernels, Part};
use serde::Serialize;
use strum::VariantArray;
use study::{Table, grouped};
use train::{RunConfig, median};

use super::candidate::Candidate;
use crate::cli::{Bench, Opponent};
use crate::print;

/// What was measured of one model.
#[derive(Serialize)]
pub struct Measurement {
    variant: String,
    n_params: usize,
    tokens_per_step: usize,
    /// Floating-point operations of a step, by the model's budget.
    flops_per_step: usize,
    threads: u16,
    /// Of each candidate, that take their steps at the same time.
    copies: u16,
    /// Floating-point operations per second of a large product on as many threads.
    matrix_peak: f64,
    candidates: Vec<Times>,
}

/// The turns of one candidate.
#[derive(Serialize)]
struct Times {
    name: String,
    /// The median step of each turn, in seconds.
    turns: Vec<f64>,
    /// Seconds of the first step, before any turn.
    first_step: f64,
    /// Most memory that a copy held, in bytes.
    peak_bytes: Option<u64>,
    /// Seconds of a step that went into each kind of work, and `data` and `rest`; of our kernels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parts: BTreeMap<String, f64>,
}

pub fn measure(config: &RunConfig, args: &Bench) -> Result<Measurement> {
    let (threads, copies) = (args.threads, args.copies);
    let mut candidates = vec![Candidate::ours(config, threads, copies)?];
    if args.against.contains(&Opponent::Plain) {
        candidates.push(Candidate::ours(&RunConfig { kernels: Kernels::Plain, ..config.clone() }, threads, copies)?);
    }
    if args.against.contains(&Opponent::Pytorch) {
        candidates.push(Candidate::pytorch(config, threads, copies, false)?);
        candidates.push(Candidate::pytorch(config, threads, copies, true)?);
    }
    let times = |candidate: &Candidate| Times {
        name: candidate.name.clone(),
        turns: vec![],
        first_step: candidate.ready.first_step,
        peak_bytes: None,
        parts: BTreeMap::new(),
    };
    let mut all: Vec<Times> = candidates.iter().map(times).collect();
    for _ in 0..args.turns {
        for (candidate, times) in candidates.iter_mut().zip(&mut all) {
            let answers = candidate.turn(args.steps_per_turn.into())?;
            let seconds = answers.iter().flat_map(|answer| answer.turn.seconds.iter().copied()).collect();
            times.turns.push(median(seconds).context("a turn has a step")?);
            times.peak_bytes = answers.iter().filter_map(|answer| answer.peak_bytes).max();
            let n_steps = f64::from(args.turns) * f64::from(args.steps_per_turn) * f64::from(copies);
            for answer in answers.iter().filter(|answer| !answer.turn.parts.is_empty()) {
                let named = answer.turn.parts.iter().map(|(&part, &seconds)| (<&str>::from(part), seconds));
                let rest = answer.turn.seconds.iter().sum::<f64>() - answer.turn.parts.values().sum::<f64>();
                for (name, seconds) in named.chain([("data", answer.turn.data), ("rest", rest - answer.turn.data)]) {
                    *times.parts.entry(name.into()).or_default() += seconds / n_steps;
                }
            }
        }
    }
    let budget = config.model.budget(config.vocab_size);
    let tokens_per_step = config.train.batch_size * config.model.seq_len;
    let measurement = Measurement {
        variant: config.variant.clone(),
        n_params: budget.params.total(),
        tokens_per_step,
        flops_per_step: budget.flops.total() * tokens_per_step,
        threads,
        copies,
        matrix_peak: candidates[0].ready.matrix_peak.context("ours says it")?,
        candidates: all,
    };
    print(&(measurement.text(args) + "\n"))?;
    Ok(measurement)
}

impl Measurement {
    /// Medians over the turns; ratios are taken turn by turn against the first candidate.
    fn text(&self, args: &Bench) -> String {
        let columns =
            [&*self.variant, "ms/step", "tokens/s", "ratio to the first", "lowest, highest", "first step", "memory"];
        let mut table = Table::new(&columns);
        for times in &self.candidates {
            let step = median(times.turns.clone()).expect("every candidate has taken a turn");
            let pairs = times.turns.iter().zip(&self.candidates[0].turns);
            let mut ratios: Vec<f64> = pairs.map(|(own, first)| own / first).collect();
            ratios.sort_by(f64::total_cmp);
            let speed = f64::from(self.copies) * self.tokens_per_step as f64 / step;
            table.rows.push(vec![
                times.name.clone(),
                format!("{:.2}", 1e3 * step),
                grouped(speed as usize),
                format!("{:.2}", median(ratios.clone()).expect("as many as turns")),
                format!("{:.2}, {:.2}", ratios[0], ratios[ratios.len() - 1]),
                format!("{:.1} s", times.first_step),
                times.peak_bytes.map_or("-".into(), |bytes| format!("{} MB", bytes / 1_000_000)),
            ]);
        }
        let copies = if self.copies > 1 { format!("{} of each at once, ", self.copies) } else { String::new() };
        let mut text = format!(
            "{} parameters, {} tokens a step, {copies}{} thread(s), {} turns of {} steps\n\n{}",
            grouped(self.n_params),
            grouped(self.tokens_per_step),
            self.threads,
            args.turns,
            args.steps_per_turn,
            table.plain()
        );
        let ours = &self.candidates[0];
        if !ours.parts.is_empty() {
            let total: f64 = ours.parts.values().sum();
            let mut split = Table::new(&["part of a step", "ms", "share"]);
            let in_order = Part::VARIANTS.iter().map(|&part| <&str>::from(part)).chain(["data", "rest"]);
            for (name, seconds) in in_order.filter_map(|name| Some((name, ours.parts.get(name)?))) {
                let share = format!("{:.1}%", 100.0 * seconds / total);
                split.rows.push(vec![name.into(), format!("{:.2}", 1e3 * seconds), share]);
            }
            text += &format!("\n{}", split.plain());
        }
        let step = median(ours.turns.clone()).expect("it has taken a turn");
        let rate = self.flops_per_step as f64 / step;
        let giga = |rate: f64| rate * 1e-9;
        text += &format!(
            "\n{:.2} GFLOP a step: {:.0} GFLOP/s, {:.0}% of the {:.0} GFLOP/s of a large matrix product.\n",
            giga(self.flops_per_step as f64),
            giga(rate),
            100.0 * rate / self.matrix_peak,
            giga(self.matrix_peak)
        );
        text
    }
}
