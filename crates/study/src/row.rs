//! One variant of a study against the reference: its figures, its verdict, and what is said of it.

use std::collections::{BTreeMap, BTreeSet};

use data::Class;
use model::Measure;
use serde::Serialize;
use strum::VariantArray;
use train::{OnSpike, State};

use crate::inside::in_run;
use crate::numbers::{grouped, percent_of};
use crate::plan::Study;
use crate::results::RunResult;
use crate::settings::Matching;
use crate::stats::{Paired, Verdict, holm, mean_and_deviation};

/// One variant against the reference. Losses are in nats per token, at the last step.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) variant: String,
    pub(crate) n_params: Option<usize>,
    pub(crate) flops_per_token: Option<usize>,
    pub(crate) n_done: usize,
    pub(crate) n_diverged: usize,
    /// The steps in which runs diverged.
    pub(crate) diverged_at: Vec<usize>,
    /// What the first of them said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) diverged_by: Option<String>,
    /// Steps of all runs whose training loss leapt, and whether they were left out.
    pub(crate) n_spikes: usize,
    #[serde(skip)]
    pub(crate) skips_spikes: bool,
    pub(crate) n_unfinished: usize,
    pub(crate) loss: Option<f64>,
    /// Standard deviation of the loss over seeds.
    pub(crate) loss_deviation: Option<f64>,
    /// exp of the mean loss.
    pub(crate) perplexity: Option<f64>,
    pub(crate) bits_per_byte: Option<f64>,
    /// Loss by class of token, where the text was generated.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) classes: BTreeMap<Class, f64>,
    /// Bits of the text's facts that the model has learned, by its loss on them: of `facts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) knowledge_bits: Option<f64>,
    /// Difference in loss to the reference by class, paired by seed and averaged.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) class_differences: BTreeMap<Class, f64>,
    /// Difference in bits known to the reference, paired by seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) knowledge_difference: Option<Paired>,
    /// Lowest evaluation of each run, averaged; biased towards low.
    pub(crate) best_loss: Option<f64>,
    pub(crate) tokens_per_second: Option<f64>,
    pub(crate) roughness: Option<f64>,
    /// Validation loss less late training loss.
    pub(crate) gap: Option<f64>,
    /// Difference in loss to the reference, paired by seed.
    pub(crate) difference: Option<Paired>,
    /// Its p, adjusted for all comparisons of the study.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) adjusted_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<Verdict>,
    /// Difference in roughness to the reference, paired by seed.
    pub(crate) roughness_difference: Option<Paired>,
    /// Difference in the logarithm of tokens per second to the reference, paired by seed.
    pub(crate) speed_difference: Option<Paired>,
    /// Difference in the gap to the reference, paired by seed.
    pub(crate) gap_difference: Option<Paired>,
    /// Spikes in 1,000 steps.
    pub(crate) spike_rate: Option<f64>,
    /// Standard deviation of the gradient's norm before clipping over its mean, after the warm-up.
    pub(crate) grad_variation: Option<f64>,
    /// Steps to the last validation loss of the reference's run of the same seed; the reference itself may have been there before.
    pub(crate) steps_to_reference: Option<f64>,
    /// What probes have found after the last step, averaged over places and runs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) inside: BTreeMap<Measure, f64>,
    /// The difference of each to the reference, paired by seed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) inside_differences: BTreeMap<Measure, Paired>,
}

impl Row {
    pub(crate) fn of(variant: &str, runs: &[RunResult], reference: Option<&[RunResult]>, seeds: usize) -> Self {
        let count = |state| runs.iter().filter(|run| run.state == state).count();
        let mean = |values: Vec<f64>| mean_and_deviation(&values).map(|(mean, _)| mean);
        let each = |f: &dyn Fn(&RunResult) -> Option<f64>| runs.iter().filter_map(f).collect::<Vec<f64>>();
        let loss = |run: &RunResult| run.last().map(|line| line.loss);
        let losses = mean_and_deviation(&each(&loss));
        let pairs = |f: &dyn Fn(&RunResult) -> Option<f64>| {
            let pairs: Vec<(f64, f64)> = reference?
                .iter()
                .filter_map(|a| {
                    let b = runs.iter().find(|b| b.config.seed == a.config.seed)?;
                    Some((f(a)?, f(b)?))
                })
                .collect();
            Paired::of(&pairs)
        };
        let class_loss = |run: &RunResult, class| run.last()?.classes.get(&class).copied();
        let lines = runs.iter().filter_map(RunResult::last);
        let kinds: BTreeSet<Class> = lines.flat_map(|line| line.classes.keys().copied()).collect();
        let by_class = |f: &dyn Fn(Class) -> Option<f64>| kinds.iter().filter_map(|&c| Some((c, f(c)?))).collect();
        fn inside<T>(f: &dyn Fn(Measure) -> Option<T>) -> BTreeMap<Measure, T> {
            Measure::VARIANTS.iter().filter_map(|&measure| Some((measure, f(measure)?))).collect()
        }
        let (n_done, n_diverged) = (count(State::Done), count(State::Diverged));
        Row {
            variant: variant.into(),
            n_params: runs.first().map(|run| run.meta.n_params),
            flops_per_token: runs.first().map(|run| run.meta.flops_per_token),
            n_done,
            n_diverged,
            diverged_at: runs.iter().filter(|run| run.state == State::Diverged).map(|run| run.step).collect(),
            diverged_by: runs.iter().find(|run| run.state == State::Diverged).and_then(|run| run.message.clone()),
            n_spikes: runs.iter().flat_map(|run| &run.metrics).filter(|line| line.spike.is_some()).count(),
            skips_spikes: runs.iter().any(|run| run.config.train.on_spike == OnSpike::Skip),
            n_unfinished: seeds.max(runs.len()) - n_done - n_diverged,
            loss: losses.map(|(mean, _)| mean),
            loss_deviation: losses.and_then(|(_, deviation)| deviation),
            perplexity: losses.map(|(mean, _)| mean.exp()),
            bits_per_byte: mean(each(&|run| run.last()?.bits_per_byte)),
            classes: by_class(&|class| mean(each(&|run| class_loss(run, class)))),
            class_differences: by_class(&|class| Some(pairs(&|run| class_loss(run, class))?.mean)),
            knowledge_bits: mean(each(&RunResult::knowledge_bits)),
            knowledge_difference: pairs(&|run| run.knowledge_bits().map(|bits| bits.max(0.0))),
            best_loss: mean(each(&|run| run.last().and(run.best()).map(|line| line.loss))),
            tokens_per_second: mean(each(&RunResult::tokens_per_second)),
            roughness: mean(each(&RunResult::roughness)),
            gap: mean(each(&RunResult::gap)),
            difference: pairs(&loss),
            adjusted_p: None,
            verdict: None,
            roughness_difference: pairs(&RunResult::roughness),
            speed_difference: pairs(&|run| run.tokens_per_second().map(f64::ln)),
            gap_difference: pairs(&RunResult::gap),
            spike_rate: mean(each(&RunResult::spike_rate)),
            grad_variation: mean(each(&RunResult::grad_variation)),
            steps_to_reference: {
                let steps = |run: &RunResult| {
                    let same = reference.unwrap_or(runs).iter().find(|other| other.config.seed == run.config.seed)?;
                    run.steps_to(same.last()?.loss)
                };
                // Without those that never come there the mean would say too little.
                let all: Option<Vec<f64>> = runs.iter().map(steps).collect();
                all.and_then(mean)
            },
            inside: inside(&|measure| mean(each(&|run| in_run(run, measure)))),
            inside_differences: inside(&|measure| pairs(&|run| in_run(run, measure))),
        }
    }

    pub(crate) fn sentence(&self, reference: &Row, study: &Study) -> String {
        let (name, against) = (&self.variant, &reference.variant);
        let Some(difference) = self.difference else {
            let said = if self.n_diverged > 0 { format!("{}; ", self.divergence()) } else { String::new() };
            return format!(
                "{name}: {said}no seed is finished for both it and {against}, so there is no loss to compare."
            );
        };
        let size = match difference.mean {
            mean if mean < 0.0 => format!("{} lower", percent_of(mean).trim_start_matches('-')),
            mean if mean > 0.0 => format!("{} higher", percent_of(mean).trim_start_matches('+')),
            _ => "the same".into(),
        };
        let mut text = match (difference.interval, self.verdict) {
            (Some((low, high)), Some(verdict)) => {
                let interval = format!("95% interval {} to {}", percent_of(low), percent_of(high));
                let found = format!(
                    "perplexity {size} ({interval}), lower in {} of {} seeds",
                    difference.n_lower, difference.n
                );
                let terms = study.terms();
                match verdict {
                    Verdict::Better => format!("{name} is better than {against}: {found}, {terms}."),
                    Verdict::Worse => format!("{name} is worse than {against}: {found}, {terms}."),
                    Verdict::Equivalent => {
                        let margin = study.margin;
                        format!("{name} is equivalent to {against} within {margin}% of perplexity: {found}, {terms}.")
                    }
                    Verdict::Undecided { more_seeds } => {
                        let more = match more_seeds {
                            // Two differences tell next to nothing about their spread.
                            Some(_) if difference.n < 3 => String::new(),
                            Some(n) if n > 1000 => "; more than 1,000 more seeds would be needed".into(),
                            Some(1) => "; about 1 more seed would be needed".into(),
                            Some(n) => format!("; about {} more seeds would be needed", grouped(n)),
                            None => String::new(),
                        };
                        format!("{name} is undecided against {against}: {found}, {terms}{more}.")
                    }
                }
            }
            _ => format!("{name}: no verdict from one seed; perplexity {size} than {against}."),
        };
        if let Some(Paired { mean, interval: Some((low, high)), .. }) = self.knowledge_difference {
            let word = if mean < 0.0 { "fewer" } else { "more" };
            text += &format!(" It memorized {:.0} bits {word} (95% interval {low:+.0} to {high:+.0}).", mean.abs());
        }
        if self.n_diverged > 0 {
            text += &format!(" But {}.", self.divergence());
        }
        if let Some(Paired { mean, interval: Some((low, high)), n_lower, n, .. }) = self.roughness_difference {
            let word = match (low > 0.0, high < 0.0) {
                (true, _) => "rougher",
                (_, true) => "smoother",
                _ => "neither significantly smoother nor rougher",
            };
            text += &format!(
                " Its early loss curve is {word}: roughness {mean:+.4} nats (95% interval {low:+.4} to {high:+.4}), lower \
                 in {n_lower} of {n} seeds."
            );
        }
        text
    }
}

impl Row {
    /// What is said of runs that diverged.
    pub(crate) fn divergence(&self) -> String {
        let steps: Vec<String> = self.diverged_at.iter().map(|step| grouped(*step)).collect();
        let word = if steps.len() == 1 { "step" } else { "steps" };
        format!("{} diverged, in {word} {}", runs(self.n_diverged), steps.join(", "))
    }
}

/// Adjusts for the number of comparisons, and gives each its verdict.
pub(crate) fn judge(rows: &mut [Row], bounds: (f64, f64)) {
    let n_lost = rows.first().map_or(0, |reference| reference.n_diverged);
    let compared = |row: &&mut Row| row.difference.is_some_and(|difference| difference.p.is_some());
    let mut compared: Vec<&mut Row> = rows.iter_mut().filter(compared).collect();
    let p: Vec<f64> = compared.iter().filter_map(|row| row.difference?.p).collect();
    for (row, adjusted) in compared.iter_mut().zip(holm(&p)) {
        row.adjusted_p = Some(adjusted);
        row.verdict = row.difference.and_then(|difference| difference.verdict(adjusted, p.len(), bounds));
        // Seeds that diverged are in no difference: those that are left cannot speak for one that loses some.
        let speaks_for = |verdict| match verdict {
            Some(Verdict::Better) => row.n_diverged == 0,
            Some(Verdict::Worse) => n_lost == 0,
            Some(Verdict::Equivalent) => row.n_diverged == 0 && n_lost == 0,
            Some(Verdict::Undecided { .. }) | None => true,
        };
        if !speaks_for(row.verdict) {
            row.verdict = Some(Verdict::Undecided { more_seeds: None });
        }
    }
}

impl Study {
    /// The differences in nats within which one counts as none.
    pub(crate) fn bounds(&self) -> (f64, f64) {
        ((-self.margin / 100.0).ln_1p(), (self.margin / 100.0).ln_1p())
    }

    /// On what terms variants were compared, in words.
    fn terms(&self) -> String {
        let budgets = match self.matching {
            Matching::Params => "at equal parameters",
            Matching::Flops => "at equal FLOPs",
            Matching::Width => "at unmatched budgets",
            Matching::Loose => return "with configs as they are".into(),
        };
        let rates = if self.sweep.is_some() { "learning rates tuned" } else { "learning rates not tuned" };
        format!("{budgets}, {rates}")
    }
}

/// A number of runs in words.
pub(crate) fn runs(n: usize) -> String {
    if n == 1 { "1 run".into() } else { format!("{n} runs") }
}
