//! Claims of articles and papers, as studies that say what they expect.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;

use model::Exact;
use serde::{Deserialize, Serialize};
use train::{BadFile, ConfigError};

use crate::inside::{About, about};
use crate::numbers::{percent, short};
use crate::overrides::flat;
use crate::row::Row;
use crate::stats::{Paired, Verdict};
use crate::{Comparison, Override, Plan, nearest};

/// The table `[claim]` of a study file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// What is claimed.
    pub statement: String,
    /// Who says so.
    pub source: String,
    /// What the papers found.
    pub paper: String,
    /// A property of the parts themselves, which needs no training; then nothing below is there.
    pub exact: Option<Exact>,
    pub measure: Option<Measure>,
    /// What the claim expects of each variant that it speaks of, against the reference.
    #[serde(default)]
    pub expect: BTreeMap<String, Expectation>,
    /// The size that is claimed, in percent from one number to another: an interval beyond it contradicts.
    claimed: Option<(f64, f64)>,
    /// What is set for a quick answer.
    #[serde(default)]
    quick: toml::Table,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Validation perplexity after the last step.
    Perplexity,
    /// Roughness of the early training loss.
    Roughness,
    /// Tokens per second of the median training step.
    Speed,
    /// Validation loss less the training loss of the last tenth of the steps.
    Gap,
    /// Runs that diverged.
    Divergence,
    /// The largest rate of the sweep up to which no run diverged.
    StableRate,
    /// How many times its lowest is the highest rate within 1% of the best loss.
    UsableRates,
    /// The rate of the sweep with the lowest loss.
    BestRate,
    /// Floating-point operations per token, by count.
    Flops,
    /// What goes on inside after the last step, averaged over places.
    Inside(model::Measure),
}

/// How a variant is expected to stand to the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expectation {
    Lower,
    Higher,
    Equivalent,
    NotLower,
    NotHigher,
}

/// What a claim comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Supported,
    Contradicted,
    /// At this scale.
    Inconclusive,
}

/// An answer with its figures.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub answer: Answer,
    /// One sentence for each expectation.
    pub figures: Vec<String>,
}

/// How a variant stands to the reference, and the interval of the difference in percent, where there is one.
struct Found {
    variant: String,
    standing: Standing,
    percent: Option<(f64, f64)>,
    figures: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Lower,
    Higher,
    Equivalent,
    Unknown,
}

impl Answer {
    /// As it is printed.
    pub fn words(self) -> &'static str {
        match self {
            Answer::Supported => "supported",
            Answer::Contradicted => "contradicted",
            Answer::Inconclusive => "inconclusive at this scale",
        }
    }

    /// Of a claim that consists of several: all must hold, and one that does not is enough.
    fn of_all(answers: impl IntoIterator<Item = Answer>) -> Self {
        let answers: Vec<Answer> = answers.into_iter().collect();
        if answers.contains(&Answer::Contradicted) {
            Answer::Contradicted
        } else if answers.is_empty() || answers.contains(&Answer::Inconclusive) {
            Answer::Inconclusive
        } else {
            Answer::Supported
        }
    }
}

impl Expectation {
    fn words(self) -> &'static str {
        match self {
            Expectation::Lower => "lower",
            Expectation::Higher => "higher",
            Expectation::Equivalent => "equivalent",
            Expectation::NotLower => "not lower",
            Expectation::NotHigher => "not higher",
        }
    }

    fn answer(self, standing: Standing) -> Answer {
        use Standing::*;
        let holds = match (self, standing) {
            (_, Unknown) => return Answer::Inconclusive,
            (Expectation::Lower, standing) => standing == Lower,
            (Expectation::Higher, standing) => standing == Higher,
            (Expectation::Equivalent, standing) => standing == Equivalent,
            (Expectation::NotLower, standing) => standing != Lower,
            (Expectation::NotHigher, standing) => standing != Higher,
        };
        if holds { Answer::Supported } else { Answer::Contradicted }
    }
}

impl Claim {
    /// The claim in a study file.
    ///
    /// # Errors
    /// A file without a claim, or with one that says too much or too little.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct File {
            claim: Claim,
        }
        let text =
            disk::read_small_text(file).map_err(|error| BadFile::new(file, format!("cannot be read: {error}")))?;
        let wrong = |problem: &str| ConfigError(format!("{}: {problem}", file.display()));
        let File { claim } = toml::from_str(&text).map_err(|error| wrong(&error.message().replace('\n', " ")))?;
        let trains = claim.measure.is_some() || !claim.expect.is_empty() || claim.claimed.is_some();
        if claim.exact.is_some() && (trains || !claim.quick.is_empty()) {
            return Err(
                wrong("[claim] with `exact` is answered by that; take out measure, expect, claimed and quick").into()
            );
        }
        if claim.exact.is_none() && (claim.measure.is_none() || claim.expect.is_empty()) {
            return Err(wrong("[claim] needs `exact`, or `measure` and a variant in [claim.expect]").into());
        }
        use Measure::*;
        if claim.claimed.is_some() && !matches!(claim.measure, Some(Perplexity | Speed | Flops)) {
            return Err(wrong("`claimed` has a meaning for perplexity, speed and flops only").into());
        }
        if matches!(claim.measure, Some(Roughness | Speed | Gap | Inside(_)))
            && claim.expect.values().any(|expectation| *expectation == Expectation::Equivalent)
        {
            return Err(wrong("only perplexity, rates, divergence and flops can be found equivalent").into());
        }
        Ok(claim)
    }

    /// Whether the study has the variants that the claim speaks of.
    ///
    /// # Errors
    /// It lacks one, or what is to be measured is not.
    pub fn check(&self, plan: &Plan) -> Result<(), ConfigError> {
        if matches!(self.measure, Some(Measure::Inside(_))) && !plan.variants[0].config.probe.on {
            let problem = "[claim] needs diagnostics: set probe.on = true";
            return Err(ConfigError(format!("{}: {problem}", plan.study.name)));
        }
        let names: Vec<String> = plan.study.variants[1..].iter().map(|variant| variant.name.clone()).collect();
        match self.expect.keys().find(|name| !names.contains(name)) {
            Some(name) => Err(ConfigError(format!(
                "{}: [claim.expect] has `{name}`, and the study no such variant; the nearest is `{}`",
                plan.study.name,
                nearest(name, &names)
            ))),
            None => Ok(()),
        }
    }

    /// What a quick answer sets in the study.
    pub fn quick(&self) -> Vec<Override> {
        flat(&self.quick, "[claim.quick]")
    }

    /// Whether the plan alone answers it.
    pub fn is_counted(&self) -> bool {
        self.measure == Some(Measure::Flops)
    }

    /// The answer by what the plan counts.
    pub fn count(&self, plan: &Plan) -> Finding {
        let flops = |i: usize| plan.variants[i].budget.flops.total() as f64;
        let found = plan.variants.iter().enumerate().skip(1).map(|(i, variant)| {
            let percent = 100.0 * (flops(i) / flops(0) - 1.0);
            let standing = match percent {
                // Less than matching tells apart.
                percent if percent.abs() < 1.0 => Standing::Equivalent,
                percent if percent < 0.0 => Standing::Lower,
                _ => Standing::Higher,
            };
            let (variant, figures) = (variant.config.variant.clone(), format!("{percent:+.1}% operations per token"));
            Found { variant, standing, percent: Some((percent, percent)), figures }
        });
        self.finding(&found.collect::<Vec<_>>())
    }

    /// The answer by the results of its study.
    pub fn judge(&self, comparison: &Comparison) -> Finding {
        let rows = comparison.rows.iter().enumerate().skip(1);
        let found = rows.map(|(i, row)| {
            let (standing, percent, figures) = self.standing(comparison, i, row);
            Found { variant: row.variant.clone(), standing, percent, figures }
        });
        self.finding(&found.collect::<Vec<_>>())
    }

    fn standing(&self, comparison: &Comparison, i: usize, row: &Row) -> (Standing, Option<(f64, f64)>, String) {
        let reference = &comparison.rows[0];
        let interval = |paired: Option<Paired>| {
            let (low, high) = paired?.interval?;
            Some((percent(low), percent(high)))
        };
        match self.measure {
            Some(Measure::Perplexity) | None => {
                let standing = match row.verdict {
                    Some(Verdict::Better) => Standing::Lower,
                    Some(Verdict::Worse) => Standing::Higher,
                    Some(Verdict::Equivalent) => Standing::Equivalent,
                    // All of its runs were lost: that is worse.
                    _ if row.n_diverged > 0 && row.loss.is_none() && reference.loss.is_some() => Standing::Higher,
                    _ => Standing::Unknown,
                };
                (standing, interval(row.difference), comparison.sentences()[i - 1].clone())
            }
            Some(Measure::Roughness) => {
                let (standing, figures) = by_interval(row.roughness_difference, |nats| format!("{nats:+.4} nats"));
                (standing, None, format!("early roughness {figures}"))
            }
            Some(Measure::Speed) => {
                let shown = |log: f64| format!("{:+.1}%", percent(log));
                let (standing, figures) = by_interval(row.speed_difference, shown);
                (standing, interval(row.speed_difference), format!("tokens per second {figures}"))
            }
            Some(Measure::Gap) => {
                let (standing, figures) = by_interval(row.gap_difference, |nats| format!("{nats:+.4} nats"));
                (standing, None, format!("from training to validation {figures} more"))
            }
            Some(Measure::Inside(measure)) => {
                let shown = |number: f64| format!("{}{}", if number > 0.0 { "+" } else { "" }, short(number));
                let (standing, figures) = by_interval(row.inside_differences.get(&measure).copied(), shown);
                let About { title, y_label, .. } = about(measure);
                (standing, None, format!("{title} ({y_label}) {figures}"))
            }
            Some(Measure::Divergence) => {
                let standing = match row.n_diverged.cmp(&reference.n_diverged) {
                    // What did not end may yet diverge.
                    _ if row.n_unfinished + reference.n_unfinished > 0 => Standing::Unknown,
                    Ordering::Less => Standing::Lower,
                    Ordering::Equal => Standing::Equivalent,
                    Ordering::Greater => Standing::Higher,
                };
                let figures = format!(
                    "{} of its {} runs diverged, {} of the reference's {}",
                    row.n_diverged,
                    row.n_diverged + row.n_done,
                    reference.n_diverged,
                    reference.n_diverged + reference.n_done
                );
                (standing, None, figures)
            }
            Some(Measure::StableRate | Measure::UsableRates | Measure::BestRate) => {
                let (standing, figures) = self.rates(comparison, i);
                (standing, None, figures)
            }
            Some(Measure::Flops) => (Standing::Unknown, None, "not counted".into()),
        }
    }

    /// How a variant's learning rates stand to the reference's. A step of the sweep is the least that can be told apart.
    fn rates(&self, comparison: &Comparison, i: usize) -> (Standing, String) {
        let value = |i: usize| {
            let curve = comparison.curves.get(i)?;
            match self.measure {
                Some(Measure::StableRate) => curve.largest_stable(),
                Some(Measure::BestRate) => curve.best(),
                _ => curve.usable().map(|(low, high)| high / low),
            }
        };
        let what = match self.measure {
            Some(Measure::StableRate) => "largest stable rate",
            Some(Measure::BestRate) => "best rate",
            _ => "usable rates span a factor of",
        };
        let (own, reference) = (value(i), value(0));
        let shown = |value: Option<f64>| value.map_or("none".into(), |value| format!("{value:.3e}"));
        // Where the lower one is cut off by the end of the sweep, nothing tells them apart.
        let is_cut = |i: usize| {
            let (Some(curve), Some(sweep)) = (comparison.curves.get(i), &comparison.study.sweep) else { return true };
            let (first, last) = (sweep.rates[0], sweep.rates[sweep.rates.len() - 1]);
            match self.measure {
                Some(Measure::StableRate) => curve.largest_stable() == Some(last),
                Some(Measure::BestRate) => curve.is_at_edge(),
                _ => curve.usable().is_none_or(|(low, high)| low == first || high == last),
            }
        };
        let standing = match (own, reference) {
            (a, b) if is_cut(if a.unwrap_or(0.0) < b.unwrap_or(0.0) { i } else { 0 }) => Standing::Unknown,
            (Some(a), Some(b)) if (a / b).ln().abs() < 0.05 => Standing::Equivalent,
            (a, b) if a.unwrap_or(0.0) < b.unwrap_or(0.0) => Standing::Lower,
            (None, None) => Standing::Unknown,
            _ => Standing::Higher,
        };
        (standing, format!("{what}: {}, of the reference {}", shown(own), shown(reference)))
    }

    fn finding(&self, found: &[Found]) -> Finding {
        let expected = self.expect.iter().map(|(name, &expectation)| {
            let own = found.iter().find(|found| found.variant == *name).expect("`check` has looked for it");
            let size = self.claimed.map_or(String::new(), |(from, to)| format!(" by {from}% to {to}%"));
            let answer = match (expectation.answer(own.standing), self.claimed, own.percent) {
                (Answer::Supported, Some((from, to)), Some((low, high))) if high < from || low > to => {
                    Answer::Contradicted
                }
                (answer, ..) => answer,
            };
            (answer, format!("{name}, expected {}{size}: {}", expectation.words(), own.figures))
        });
        let (answers, figures): (Vec<Answer>, Vec<String>) = expected.unzip();
        Finding { answer: Answer::of_all(answers), figures }
    }
}

/// On which side of zero an interval lies, and the figures.
fn by_interval(paired: Option<Paired>, number: impl Fn(f64) -> String) -> (Standing, String) {
    let Some(Paired { mean, interval: Some((low, high)), n, .. }) = paired else {
        return (Standing::Unknown, "cannot be told: too few seeds of both have it".into());
    };
    let standing = match (low > 0.0, high < 0.0) {
        (true, _) => Standing::Higher,
        (_, true) => Standing::Lower,
        _ => Standing::Unknown,
    };
    (standing, format!("{} (95% interval {} to {}, {n} seeds)", number(mean), number(low), number(high)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Standing::*;

    #[test]
    fn an_expectation_is_answered_by_what_was_found() {
        use Answer::*;
        for (expectation, answers) in [
            (Expectation::Lower, [Supported, Contradicted, Contradicted]),
            (Expectation::Higher, [Contradicted, Supported, Contradicted]),
            (Expectation::Equivalent, [Contradicted, Contradicted, Supported]),
            (Expectation::NotLower, [Contradicted, Supported, Supported]),
            (Expectation::NotHigher, [Supported, Contradicted, Supported]),
        ] {
            assert_eq!([Lower, Higher, Equivalent].map(|found| expectation.answer(found)), answers, "{expectation:?}");
            assert_eq!(expectation.answer(Unknown), Inconclusive);
        }
    }

    #[test]
    fn one_part_that_fails_is_enough() {
        use Answer::*;
        assert_eq!(Answer::of_all([Supported, Supported]), Supported);
        assert_eq!(Answer::of_all([Supported, Inconclusive]), Inconclusive);
        assert_eq!(Answer::of_all([Inconclusive, Contradicted]), Contradicted);
        assert_eq!(Answer::of_all([]), Inconclusive);
    }

    #[test]
    fn every_claim_that_is_shipped_can_be_planned() {
        let folder = Path::new("../../experiments/claims");
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(files.len() > 30, "{}", files.len());
        for file in files {
            let claim = Claim::read(&file).unwrap();
            if claim.exact.is_some() {
                continue;
            }
            for overrides in [claim.quick(), vec![]] {
                let plan = Plan::read(&file, &overrides, train::Backend::Flex, None).unwrap();
                claim.check(&plan).unwrap();
            }
        }
    }
}
