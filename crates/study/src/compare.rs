//! The comparison of a study's variants with its reference.

use std::collections::BTreeSet;
use std::f64::consts::LN_2;

use data::Account;
use model::Measure;
use serde::Serialize;
use strum::VariantArray;

use crate::factorial::{Effect, effects};
use crate::inside::{About, about};
use crate::numbers::{difference, grouped, nats, percent, percent_of, perplexity, short, show};
use crate::plan::{Study, Variant};
use crate::rates::RateCurve;
use crate::results::StudyResults;
use crate::row::{Row, judge, runs};
use crate::settings::Matching;
use crate::table::Table;

/// Everything that tables, pages and files say about a study.
#[derive(Serialize)]
pub struct Comparison {
    pub(crate) study: Study,
    /// One for each variant of the study.
    pub(crate) rows: Vec<Row>,
    /// How the corpus was parted, in words.
    split_rule: Option<String>,
    /// What is known of the validation text, where it was generated.
    account: Option<Account>,
    /// Whether all runs are of one commit and one kind of processor.
    same_program: bool,
    /// What selftests have found of the GPUs that the runs were on.
    devices: BTreeSet<String>,
    /// Of a study with a sweep: each variant's loss by learning rate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) curves: Vec<RateCurve>,
    /// Of a study with a grid: main effects and interactions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    effects: Vec<Effect>,
    /// Why the figures leave out runs that are there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

impl Comparison {
    /// Compares every variant with the first.
    pub(crate) fn of(results: &StudyResults) -> Self {
        let StudyResults { study, runs, curves, left_out } = results;
        let rows = study.variants.iter().zip(runs).enumerate().map(|(i, (variant, own))| {
            let reference = (i > 0).then_some(runs[0].as_slice());
            Row::of(&variant.name, own, reference, study.seeds)
        });
        let mut rows: Vec<Row> = rows.collect();
        judge(&mut rows, study.bounds());
        let mut programs: Vec<_> = runs.iter().flatten().flat_map(|run| run.meta.programs()).collect();
        programs.sort();
        programs.dedup();
        Comparison {
            study: study.clone(),
            rows,
            curves: curves.clone(),
            effects: effects(study, runs),
            split_rule: runs.iter().flatten().next().map(|run| run.meta.split_rule.clone()),
            account: runs.iter().flatten().find_map(|run| run.meta.account.clone()),
            same_program: programs.len() < 2,
            devices: runs.iter().flatten().filter_map(|run| run.meta.selftest.clone()).collect(),
            left_out: left_out.clone(),
        }
    }

    /// Whether no run came to its end and some diverged.
    pub fn all_diverged(&self) -> bool {
        self.rows.iter().all(|row| row.n_done == 0) && self.rows.iter().any(|row| row.n_diverged > 0)
    }

    /// What was found, one sentence a variant.
    pub fn sentences(&self) -> Vec<String> {
        self.rows[1..].iter().map(|row| row.sentence(&self.rows[0], &self.study)).collect()
    }

    /// Reservations that belong beside the figures.
    pub(crate) fn notes(&self) -> Vec<String> {
        let left_out = |problem| format!("Left out of all figures: {problem}.");
        let mut notes: Vec<String> = self.left_out.iter().map(left_out).collect();
        if self.study.matching == Matching::Width {
            notes.push("Budgets are unmatched (match = \"width\"): compare the parameters too.".to_string());
        }
        let rates = match &self.study.sweep {
            // What other people's runs went through is not known.
            _ if self.study.matching == Matching::Loose => None,
            Some(_) if self.study.variants.iter().any(|variant| variant.lr.is_none()) => {
                Some("Learning rates are not chosen yet: the tuning runs have not all ended.".into())
            }
            Some(sweep) => Some(format!(
                "Learning rates are tuned for each variant: {} rates, {} at each.",
                sweep.rates.len(),
                if sweep.seeds == 1 { "one tuning seed".into() } else { format!("{} tuning seeds", sweep.seeds) }
            )),
            None => Some("Learning rates are not tuned: all variants use the rates written in the study.".into()),
        };
        notes.extend(rates);
        let at_edge = self.rows.iter().zip(&self.curves).filter(|(_, curve)| curve.is_at_edge());
        let at_edge = at_edge.map(|(row, curve)| format!("{} ({})", row.variant, curve.best().unwrap_or_default()));
        let at_edge = at_edge.collect::<Vec<_>>().join(", ");
        if !at_edge.is_empty() {
            notes.push(format!(
                "The best rate is at an edge of the sweep, so a better one may lie beyond it: {at_edge}."
            ));
        }
        let n_compared = self.rows[1..].iter().filter(|row| row.adjusted_p.is_some()).count();
        if n_compared > 1 {
            notes.push(format!(
                "Better and worse are adjusted for the {n_compared} comparisons (Holm), so that the chance of any false one is 5%; \
                 equivalence and intervals are of each comparison by itself."
            ));
        }
        let reference = &self.rows[0];
        if let Some(deviation) = reference.loss_deviation {
            notes.push(format!(
                "Seed noise: the loss of {} has a standard deviation of {deviation:.4} nats over seeds ({:.2}% of perplexity); \
                 differences are taken between runs of the same seed.",
                reference.variant,
                percent(deviation)
            ));
        }
        for row in &self.rows {
            if row.n_diverged > 0 {
                let first = row.diverged_by.as_ref().map_or(String::new(), |why| format!(" ({why})"));
                notes.push(format!("{}: {}; the figures leave that out{first}.", row.variant, row.divergence()));
            }
            if row.n_spikes > 0 {
                let skipped = if row.skips_spikes { "; these steps were skipped" } else { "" };
                let steps = if row.n_spikes == 1 { "1 step".into() } else { format!("{} steps", row.n_spikes) };
                notes.push(format!("{}: the training loss leapt in {steps}{skipped} (train.on_spike).", row.variant));
            }
            if row.n_unfinished > 0 {
                let have = if row.n_unfinished == 1 { "has" } else { "have" };
                notes.push(format!("{}: {} {have} no result.", row.variant, runs(row.n_unfinished)));
            }
        }
        notes.extend(self.devices.iter().cloned());
        if !self.same_program {
            notes.push("Runs are of different commits or processors: differences may come from that.".into());
        }
        if let Some(Account { floor, .. }) = self.account {
            notes.push(format!(
                "The lowest achievable loss on this text is {floor:.4} nats per token (perplexity {:.3}), known from the \
                 generator.",
                floor.exp()
            ));
        }
        if let Some(rule) = &self.split_rule {
            notes.push(format!("Split: {rule}."));
        }
        notes
    }

    /// Budgets, results and differences: what decides.
    pub(crate) fn table(&self) -> Table {
        let unmatched = self.study.matching == Matching::Width;
        let floor = self.account.as_ref().map(|account| account.floor);
        let mut table = Table::new(&[
            "variant",
            "verdict",
            "ppl difference [95%]",
            "seeds better",
            "perplexity",
            "valid loss",
            if floor.is_some() { "above floor" } else { "bits/byte" },
            if unmatched { "params (unmatched)" } else { "params" },
            "FLOPs/token",
            "tokens/s",
        ]);
        for row in &self.rows {
            table.rows.push(vec![
                row.variant.clone(),
                show(row.verdict, |verdict| verdict.word().into()),
                show(row.difference, |d| difference(&d, percent_of)),
                show(row.difference, |d| format!("{} of {}", d.n_lower, d.n)),
                show(row.perplexity, perplexity),
                match (row.loss, row.loss_deviation) {
                    (Some(loss), Some(deviation)) => format!("{} ±{}", nats(loss), nats(deviation)),
                    (loss, _) => show(loss, nats),
                },
                match floor {
                    Some(floor) => show(row.loss, |loss| nats(loss - floor)),
                    None => show(row.bits_per_byte, nats),
                },
                show(row.n_params, grouped),
                show(row.flops_per_token, |flops| format!("{:.2}M", flops as f64 / 1e6)),
                show(row.tokens_per_second, |speed| grouped(speed.round() as usize)),
            ]);
        }
        table
    }

    /// Other measures of the same runs.
    pub(crate) fn measures(&self) -> Table {
        let mut table = Table::new(&[
            "variant",
            "bits/byte",
            "best valid loss",
            "early roughness",
            "difference [95%]",
            "gap",
            "difference [95%]",
            "spikes/1,000",
            "grad norm CV",
            "steps to reference",
        ]);
        for row in &self.rows {
            table.rows.push(vec![
                row.variant.clone(),
                show(row.bits_per_byte, |bits| format!("{bits:.4}")),
                show(row.best_loss, |loss| format!("{loss:.4}")),
                show(row.roughness, |roughness| format!("{roughness:.4}")),
                show(row.roughness_difference, |d| difference(&d, |nats| format!("{nats:+.4}"))),
                show(row.gap, |gap| format!("{gap:+.4}")),
                show(row.gap_difference, |d| difference(&d, |nats| format!("{nats:+.4}"))),
                show(row.spike_rate, |rate| format!("{rate:.1}")),
                show(row.grad_variation, |variation| format!("{:.0}%", 100.0 * variation)),
                show(row.steps_to_reference, |steps| grouped(steps.round() as usize)),
            ]);
        }
        table
    }

    /// Loss by class of token, each with what it is above its floor.
    pub(crate) fn classes(&self) -> Option<Table> {
        let Account { classes, .. } = self.account.as_ref()?;
        let names = classes.keys().map(|class| <&str>::from(class).replace('_', " "));
        let header: Vec<String> = std::iter::once("loss by class (above floor)".to_string()).chain(names).collect();
        let n: usize = classes.values().map(|class| class.n_tokens).sum();
        let shares = classes.values().map(|class| format!("{:.1}%", 100.0 * class.n_tokens as f64 / n as f64));
        let mut rows: Vec<Vec<String>> = vec![std::iter::once("share of tokens".into()).chain(shares).collect()];
        for row in &self.rows {
            let cells = classes.iter().map(|(class, own)| {
                show(row.classes.get(class), |loss| format!("{loss:.4} ({:+.4})", loss - own.floor))
            });
            rows.push(std::iter::once(row.variant.clone()).chain(cells).collect());
        }
        Some(Table { header, rows })
    }

    /// What each class adds to the difference in loss to the reference.
    pub(crate) fn contributions(&self) -> Option<Table> {
        let Account { classes, .. } = self.account.as_ref()?;
        let n: usize = classes.values().map(|class| class.n_tokens).sum();
        let names = classes.keys().map(|class| <&str>::from(class).replace('_', " "));
        let first = ["difference to the reference".to_string(), "all".into()];
        let mut table = Table { header: first.into_iter().chain(names).collect(), rows: vec![] };
        for row in &self.rows[1..] {
            let share = |class| classes[class].n_tokens as f64 / n as f64;
            let cells = classes
                .keys()
                .map(|class| show(row.class_differences.get(class), |d| format!("{:+.4}", d * share(class))));
            let all = show(row.difference, |d| format!("{:+.4}", d.mean));
            table.rows.push([row.variant.clone(), all].into_iter().chain(cells).collect());
        }
        Some(table)
    }

    /// The last validation loss at each rate of a sweep.
    pub(crate) fn rates(&self) -> Option<Table> {
        let sweep = self.study.sweep.as_ref()?;
        let names = sweep.rates.iter().map(|rate| rate.to_string());
        let header = ["loss by learning rate".to_string()].into_iter().chain(names);
        let header = header.chain(["best", "usable (within 1%)", "largest stable"].map(String::from)).collect();
        let mut table = Table { header, rows: vec![] };
        for (row, curve) in self.rows.iter().zip(&self.curves) {
            let cells = curve.points.iter().map(|point| {
                let diverged =
                    if point.n_diverged > 0 { format!(" ({} diverged)", point.n_diverged) } else { String::new() };
                show(point.loss, |loss| format!("{loss:.4}")) + &diverged
            });
            let usable = show(curve.usable(), |(low, high)| match high / low {
                ratio if ratio > 1.0 => format!("{low} to {high} (x{ratio:.1})"),
                _ => format!("{low} only"),
            });
            let ends =
                [show(curve.best(), |lr| lr.to_string()), usable, show(curve.largest_stable(), |lr| lr.to_string())];
            table.rows.push([row.variant.clone()].into_iter().chain(cells).chain(ends).collect());
        }
        Some(table)
    }

    /// What each factor of a grid does, and what two of them do together.
    pub(crate) fn effects(&self) -> Option<Table> {
        self.effects.first()?;
        let mut table =
            Table::new(&["effect", "ppl difference [95%]", "seeds lower", "verdict (Holm over the effects)"]);
        for effect in &self.effects {
            table.rows.push(vec![
                effect.name.clone(),
                difference(&effect.difference, percent_of),
                format!("{} of {}", effect.difference.n_lower, effect.difference.n),
                show(effect.verdict, |verdict| verdict.word().into()),
            ]);
        }
        Some(table)
    }

    /// What the models know by heart, on a text of facts.
    pub(crate) fn knowledge(&self) -> Option<Table> {
        let bits = self.account.as_ref()?.fact_nats? / LN_2;
        let mut table =
            Table::new(&["variant", "bits known", "of", "share", "bits per parameter", "difference in bits [95%]"]);
        for row in &self.rows {
            // A loss above that of guessing is no knowledge, and no debt either.
            let known = row.knowledge_bits.map(|known| known.max(0.0));
            table.rows.push(vec![
                row.variant.clone(),
                show(known, |known| grouped(known.round() as usize)),
                grouped(bits.round() as usize),
                show(known, |known| format!("{:.1}%", 100.0 * known / bits)),
                show(known.zip(row.n_params), |(known, n)| format!("{:.4}", known / n as f64)),
                show(row.knowledge_difference, |d| difference(&d, |bits| format!("{bits:+.0}"))),
            ]);
        }
        Some(table)
    }

    /// What the columns of [`Comparison::measures`] mean.
    pub(crate) const MEASURES: &str = "Best valid loss is the lowest evaluation of each run, averaged: chosen after \
        the fact, so biased towards low. Early roughness is the deviation of the training loss in nats around a local \
        quadratic over 11 steps, on the first 10% of steps. The gap is the validation loss minus the mean training loss of the \
        last 10% of steps. A spike is a training loss more than 6 standard \
        deviations above the mean of the 50 before it. Grad norm CV is the standard deviation of the gradient's norm before clipping over \
        its mean, after the warm-up: its trend counts too. Steps to reference: after how many the validation loss first is as low as the \
        last of the reference's run of the same seed, on straight lines between evaluations, from the first; '-' where a seed never \
        is.";

    pub(crate) const INSIDE: &str = "Diagnostics: on the first 8 windows of the validation split after the last step, averaged over the seeds \
        that are done and over places: blocks, norms or heads; where batches differ, the largest.";

    /// What probes have found after the last step.
    pub(crate) fn inside(&self) -> Option<Table> {
        let header = std::iter::once("diagnostics".to_string()).chain(self.rows.iter().map(|row| row.variant.clone()));
        let mut table = Table { header: header.collect(), rows: vec![] };
        for &measure in Measure::VARIANTS {
            let means = || self.rows.iter().map(|row| row.inside.get(&measure));
            if means().any(|mean| mean.is_some()) {
                let About { title, y_label, .. } = about(measure);
                let name = format!("{title} ({y_label})");
                let cells = means().map(|mean| show(mean, |&mean| short(mean)));
                table.rows.push(std::iter::once(name).chain(cells).collect());
            }
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// What each variant changes, a line each of those that change something.
    pub fn changes(&self) -> String {
        let line = |variant: &Variant| format!("{}: {}\n", variant.name, variant.changes.join("; "));
        self.study.variants[1..].iter().filter(|variant| !variant.changes.is_empty()).map(line).collect()
    }

    /// The comparison as text for a terminal.
    pub fn plain(&self) -> String {
        let mut text = format!("{}\n", self.table().plain());
        for table in [self.rates(), self.effects(), self.knowledge()].into_iter().flatten() {
            text += &format!("{}\n", table.plain());
        }
        for line in self.sentences().iter().chain(&self.notes()) {
            text += &format!("{line}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Factor;
    use crate::plan::tests::plan;
    use crate::results::RunResult;
    use data::{Class, ClassAccount, Split};
    use train::{Meta, MetricLine, State};

    /// A run of 200 steps whose last validation loss is `loss`, on a curve with a little regular noise.
    fn run(variant: &str, seed: u64, state: State, loss: f64) -> RunResult {
        let config = plan("[train]\nsteps = 200\n").unwrap().variants.remove(0).config;
        let line = |step: usize, split, loss: f64| MetricLine {
            step,
            split,
            loss,
            perplexity: loss.exp(),
            bits_per_byte: (split == Split::Valid).then(|| loss / LN_2),
            classes: [(Class::Syntax, loss / 2.0), (Class::Fact, loss * 2.0)].into(),
            lr: None,
            grad_norm: None,
            spike: None,
            seconds: 0.1,
        };
        let noise = |step: usize| 0.01 * loss * f64::from([1, -1, 2, 0, -2, 1][step % 6]);
        let mut metrics: Vec<MetricLine> =
            (1..=200).map(|step| line(step, Split::Train, loss + 2.0 / step as f64 + noise(step))).collect();
        metrics.push(line(100, Split::Valid, loss - 0.001));
        metrics.push(line(200, Split::Valid, loss));
        let class = |n_tokens, floor| ClassAccount { n_tokens, floor };
        let account = Account {
            floor: 0.1618,
            classes: [(Class::Syntax, class(900, 0.18)), (Class::Fact, class(100, 0.0))].into(),
            fact_nats: Some(500.0),
        };
        let meta = Meta {
            commit: "c0ffee".into(),
            version: "0.1.0".into(),
            burn: "0.22.1".into(),
            os: "Linux".into(),
            cpu: "CPU".into(),
            threads: 1,
            command: "ablate study".into(),
            corpus_sha256: "00".into(),
            n_params: 803_584,
            flops_per_token: 5_151_744,
            split_rule: "one half each".into(),
            account: Some(account),
            started: 0,
            resumed: vec![],
            selftest: None,
        };
        RunResult {
            state,
            step: 57,
            config: train::RunConfig { variant: variant.into(), seed, ..config },
            meta,
            metrics,
            probes: vec![],
            message: None,
            sample: None,
        }
    }

    #[test]
    fn curves_are_measured() {
        let reference = run("reference", 0, State::Done, 2.0);
        let line = |step, split, loss| MetricLine { step, split, loss, ..reference.metrics[0].clone() };
        let mut own = run("own", 0, State::Done, 2.0);
        own.config.train.warmup_steps = 2;
        let norms = [9.0, 9.0, 1.0, 3.0];
        let step = |(i, norm): (usize, &f64)| MetricLine {
            grad_norm: Some(*norm),
            spike: (i == 2).then_some(7.0),
            ..line(i + 1, Split::Train, 3.0)
        };
        own.metrics = norms.iter().enumerate().map(step).collect();
        own.metrics.extend([(100, 3.0), (200, 2.0), (300, 1.0)].map(|(step, loss)| line(step, Split::Valid, loss)));
        // Half-way between 2 and 1; at once; at the first evaluation at the latest; never.
        assert_eq!([1.5, 2.0, 3.5, 0.5].map(|loss| own.steps_to(loss)), [Some(250.0), Some(200.0), Some(100.0), None]);
        // Of 1 and 3: mean 2, deviation sqrt(2).
        assert!((own.grad_variation().unwrap() - 0.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(own.spike_rate(), Some(1000.0 / own.config.train.steps as f64));
        own.metrics.iter_mut().for_each(|line| line.grad_norm = line.grad_norm.map(|_| 0.0));
        assert_eq!(own.grad_variation(), None);
    }

    fn results(variants: &[(&str, &[(State, f64)])]) -> StudyResults {
        let runs = |(name, runs): &(&str, &[(State, f64)])| {
            (0..).zip(runs.iter()).map(|(seed, (state, loss))| run(name, seed, *state, *loss)).collect()
        };
        let variant = |(name, _): &(&str, _)| Variant {
            name: name.to_string(),
            changes: vec![],
            d_ff: 512,
            levels: vec![],
            lr: None,
            config: None,
        };
        let study = Study {
            name: "study".into(),
            description: "A study.".into(),
            matching: Matching::Params,
            margin: 0.5,
            seeds: 3,
            grid: vec![],
            sweep: None,
            variants: variants.iter().map(variant).collect(),
        };
        StudyResults { study, runs: variants.iter().map(runs).collect(), curves: vec![], left_out: vec![] }
    }

    #[test]
    fn every_verdict_reads_well() {
        use State::{Diverged, Done, Running};
        let comparison = Comparison::of(&results(&[
            ("reference", &[(Done, 1.50), (Done, 1.52), (Done, 1.51)]),
            ("better", &[(Done, 1.45), (Done, 1.471), (Done, 1.459)]),
            ("worse", &[(Done, 1.55), (Done, 1.571), (Done, 1.559)]),
            ("undecided", &[(Done, 1.49), (Done, 1.521), (Done, 1.511)]),
            ("equivalent", &[(Done, 1.5001), (Done, 1.5203), (Done, 1.5098)]),
            ("single", &[(Done, 1.49), (Diverged, 3.0), (Running, 2.0)]),
            ("survivor", &[(Done, 1.45), (Done, 1.471), (Diverged, 3.0)]),
            ("none", &[(Diverged, 3.0)]),
            ("absent", &[]),
        ]));
        insta::assert_snapshot!(comparison.plain());
        insta::assert_snapshot!(comparison.measures().markdown());
        insta::assert_snapshot!(comparison.classes().unwrap().markdown());
        insta::assert_snapshot!(comparison.contributions().unwrap().markdown());
        insta::assert_snapshot!(comparison.knowledge().unwrap().markdown());
    }

    #[test]
    fn a_grid_is_taken_apart() {
        use State::Done;
        // norm: -0.02, ffn: -0.03, and 0.01 more for both together; each seed has a level of its own.
        let losses = |effect: f64| [1.50, 1.53, 1.48].map(|loss| (Done, loss + effect));
        let cells = [losses(0.0), losses(-0.03), losses(-0.02), losses(-0.04)];
        let names = ["ln-gelu", "ln-relu", "rms-gelu", "rms-relu"];
        let variants: Vec<(&str, &[(State, f64)])> =
            names.into_iter().zip(cells.iter().map(|c| c.as_slice())).collect();
        let mut results = results(&variants);
        let factor = |key: &str, levels: [&str; 2]| Factor { key: key.into(), levels: levels.map(String::from).into() };
        results.study.grid = vec![factor("model.norm", ["ln", "rms"]), factor("model.ffn", ["gelu", "relu"])];
        for (i, variant) in results.study.variants.iter_mut().enumerate() {
            variant.levels = vec![i / 2, i % 2];
        }
        let comparison = Comparison::of(&results);
        let found: Vec<(&str, f64)> =
            comparison.effects.iter().map(|effect| (effect.name.as_str(), effect.difference.mean)).collect();
        for ((name, mean), (expected, effect)) in
            found.iter().zip([("norm: rms", -0.015), ("ffn: relu", -0.025), ("norm: rms x ffn: relu", 0.01)])
        {
            assert!(*name == expected && (mean - effect).abs() < 1e-9, "{found:?}");
        }
        assert_eq!(found.len(), 3);
    }
}
