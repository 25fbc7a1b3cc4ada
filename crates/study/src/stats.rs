//! Differences between paired runs, and what they prove.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Chance of an error of the first kind that verdicts accept.
const ALPHA: f64 = 0.05;

/// Chance to find a difference that is there, for which the seeds that are needed are counted.
const POWER: f64 = 0.8;

/// More seeds than anybody would train.
const TOO_MANY: usize = 10_000;

/// The mean difference `variant - reference` over runs that share a seed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Paired {
    pub(crate) n: usize,
    pub(crate) mean: f64,
    /// Sample standard deviation of the differences; absent for a single pair, which has no spread.
    pub(crate) deviation: Option<f64>,
    /// 95% interval of the mean by Student's t.
    pub(crate) interval: Option<(f64, f64)>,
    /// Chance of such a mean, or one farther from zero, if the true mean is zero: the two-sided t test.
    pub(crate) p: Option<f64>,
    /// Pairs in which the variant is lower.
    pub(crate) n_lower: usize,
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// Lower, beyond doubt, and by more than the margin or perhaps so.
    Better,
    /// Higher, likewise.
    Worse,
    /// Within the margin of equivalence, beyond doubt.
    Equivalent,
    Undecided {
        /// Seeds to add for a verdict with a chance of 80%, if the true difference and its spread are those found so far.
        more_seeds: Option<usize>,
    },
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Equivalent => "equivalent",
            Verdict::Undecided { .. } => "undecided",
        }
    }
}

impl Paired {
    /// Of pairs (reference, variant); `None` without any.
    pub(crate) fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let differences: Vec<f64> = pairs.iter().map(|(reference, variant)| variant - reference).collect();
        Paired::of_differences(&differences)
    }

    /// Of one difference for each seed.
    pub(crate) fn of_differences(differences: &[f64]) -> Option<Self> {
        // Losses beyond all numbers, or without a partner, have no difference.
        differences.iter().all(|difference| difference.is_finite()).then_some(())?;
        let n = differences.len();
        let (mean, deviation) = mean_and_deviation(differences)?;
        let half = |deviation: f64| quantile(0.5 + (1.0 - ALPHA) / 2.0, n) * deviation / (n as f64).sqrt();
        Some(Paired {
            n,
            mean,
            deviation,
            interval: deviation.map(|deviation| (mean - half(deviation), mean + half(deviation))),
            p: deviation.map(|deviation| 2.0 * beyond(mean.abs(), deviation, n)),
            n_lower: differences.iter().filter(|d| **d < 0.0).count(),
        })
    }

    /// Two one-sided tests: the larger chance of such a mean if the true one lies at a bound. Schuirmann, 1987.
    fn p_of_equivalence(&self, (low, high): (f64, f64)) -> Option<f64> {
        let deviation = self.deviation?;
        Some(beyond(self.mean - low, deviation, self.n).max(beyond(high - self.mean, deviation, self.n)))
    }

    /// The verdict, given the p that is adjusted for the number of comparisons, that number, and the bounds within which a
    /// difference counts as none. `None` for a single pair.
    pub(crate) fn verdict(&self, adjusted_p: f64, n_comparisons: usize, bounds: (f64, f64)) -> Option<Verdict> {
        if self.p_of_equivalence(bounds)? < ALPHA {
            return Some(Verdict::Equivalent);
        }
        Some(match adjusted_p < ALPHA {
            true if self.mean < 0.0 => Verdict::Better,
            true => Verdict::Worse,
            false => Verdict::Undecided { more_seeds: self.more_seeds(n_comparisons, bounds) },
        })
    }

    /// Seeds to add so that one of the two kinds of tests decides with a chance of 80%.
    fn more_seeds(&self, n_comparisons: usize, (low, high): (f64, f64)) -> Option<usize> {
        let deviation = self.deviation?;
        let alpha = ALPHA / n_comparisons.max(1) as f64;
        // Either bound may be missed, so that each must be cleared with a chance of 90%.
        let clear = (high - self.mean).min(self.mean - low);
        let decides = |n: usize| {
            let error = deviation / (n as f64).sqrt();
            self.mean.abs() / error >= quantile(1.0 - alpha / 2.0, n) + quantile(POWER, n)
                || clear / error >= quantile(1.0 - ALPHA, n) + quantile(0.5 + POWER / 2.0, n)
        };
        // What decides with n seeds decides with more.
        let (mut few, mut many) = (self.n, TOO_MANY);
        if !decides(many) {
            return None;
        }
        while many - few > 1 {
            let middle = few.midpoint(many);
            if decides(middle) { many = middle } else { few = middle }
        }
        Some(many - self.n)
    }
}

/// p values adjusted for their number so that any false finding among them has the chance of one. Holm, 1979.
pub(crate) fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut largest = 0.0f64;
    for (rank, &i) in order.iter().enumerate() {
        largest = largest.max(p[i] * (p.len() - rank) as f64).min(1.0);
        adjusted[i] = largest;
    }
    adjusted
}

/// Quantile of Student's t for `n` differences.
fn quantile(share: f64, n: usize) -> f64 {
    students_t(n).inverse_cdf(share)
}

/// Chance that a mean of `n` differences lies `distance` or more above where it truly is.
fn beyond(distance: f64, deviation: f64, n: usize) -> f64 {
    if deviation == 0.0 {
        return if distance > 0.0 { 0.0 } else { 0.5 + 0.5 * f64::from(distance < 0.0) };
    }
    students_t(n).sf(distance / deviation * (n as f64).sqrt())
}

fn students_t(n: usize) -> StudentsT {
    StudentsT::new(0.0, 1.0, (n - 1) as f64).expect("at least one degree of freedom")
}

/// Mean and sample standard deviation; a single value has no deviation.
pub(crate) fn mean_and_deviation(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let n = values.len() as f64;
    if values.is_empty() {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_distr::{Distribution, Normal};
    use serde_json::Value;

    #[test]
    fn the_interval_is_scipy_s() {
        // scipy.stats.ttest_rel(b, a).confidence_interval(0.95); see tests/fixtures/paired.py.
        let fixture: serde_json::Value = serde_json::from_str(include_str!("../tests/fixtures/paired.json")).unwrap();
        for case in fixture.as_array().unwrap() {
            let numbers = |key: &str| -> Vec<f64> {
                case[key].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
            };
            let pairs: Vec<(f64, f64)> = numbers("a").into_iter().zip(numbers("b")).collect();
            let paired = Paired::of(&pairs).unwrap();
            let (low, high) = paired.interval.unwrap();
            for (got, key) in [(paired.mean, "mean"), (low, "low"), (high, "high")] {
                let expected = case[key].as_f64().unwrap();
                assert!((got - expected).abs() < 1e-9 * expected.abs().max(1e-3), "{key}: {got} against {expected}");
            }
        }
    }

    #[test]
    fn one_pair_has_no_interval_and_none_has_nothing() {
        let paired = Paired::of(&[(2.0, 1.5)]).unwrap();
        assert_eq!((paired.mean, paired.interval, paired.n_lower), (-0.5, None, 1));
        assert_eq!(Paired::of(&[]), None);
    }

    fn fixture(text: &str) -> Vec<Value> {
        serde_json::from_str(text).unwrap()
    }

    fn close(got: f64, expected: &Value, tolerance: f64) {
        let expected = expected.as_f64().unwrap();
        assert!((got - expected).abs() <= tolerance * expected.abs().max(1e-3), "{got} against {expected}");
    }

    #[test]
    fn p_values_are_those_of_scipy_and_statsmodels() {
        // See tests/fixtures/verdicts.py.
        for case in fixture(include_str!("../tests/fixtures/verdicts.json")) {
            let numbers = |key: &str| -> Vec<f64> {
                case[key].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
            };
            let paired = Paired::of_differences(&numbers("differences")).unwrap();
            close(paired.p.unwrap(), &case["p"], 1e-9);
            close(paired.p_of_equivalence((-0.01, 0.02)).unwrap(), &case["p_of_equivalence"], 1e-9);
            for (got, expected) in holm(&numbers("p_values")).into_iter().zip(case["holm"].as_array().unwrap()) {
                close(got, expected, 1e-12);
            }
            // statsmodels solves for a fraction of a seed with the noncentral t; ours is its usual approximation.
            let n = case["seeds_for_power"].as_f64().unwrap();
            let effect = case["effect"].as_f64().unwrap();
            let found = Paired { n: 2, mean: effect, deviation: Some(1.0), interval: None, p: None, n_lower: 0 };
            let needed = 2 + found.more_seeds(1, (0.0, 0.0)).unwrap();
            assert!((needed as f64 - n.ceil()).abs() <= 1.0, "{needed} against {n}");
        }
    }

    /// Differences of simulated studies: normal, of this mean and deviation.
    fn simulate(seed: u64, n: usize, mean: f64, deviation: f64) -> Vec<f64> {
        let mut rng = random::stream(seed, "studies");
        let normal = Normal::new(mean, deviation).unwrap();
        (0..n).map(|_| normal.sample(&mut rng)).collect()
    }

    const BOUNDS: (f64, f64) = (-0.005, 0.005);

    #[test]
    fn intervals_cover_the_truth_in_19_of_20_studies() {
        for n in [2, 3, 5, 20] {
            let covered = (0..2000).filter(|&seed| {
                let (low, high) = Paired::of_differences(&simulate(seed, n, 0.013, 0.01)).unwrap().interval.unwrap();
                (low..high).contains(&0.013)
            });
            let share = covered.count() as f64 / 2000.0;
            assert!((0.93..=0.97).contains(&share), "{n} seeds: {share}");
        }
    }

    #[test]
    fn few_studies_find_what_is_not_there() {
        // Four variants against one reference that they share, so that errors come together.
        let is_false = |seed: &u64| {
            let reference = simulate(*seed, 5, 0.0, 0.01);
            let own = |i: u64| simulate(seed + 10_000 * (i + 1), 5, 0.0, 0.01);
            let paired = |i| Paired::of(&reference.iter().copied().zip(own(i)).collect::<Vec<_>>()).unwrap();
            let all: Vec<Paired> = (0..4).map(paired).collect();
            let adjusted = holm(&all.iter().map(|paired| paired.p.unwrap()).collect::<Vec<_>>());
            let verdict = |(paired, p): (&Paired, f64)| paired.verdict(p, 4, BOUNDS).unwrap();
            all.iter().zip(adjusted).map(verdict).any(|v| matches!(v, Verdict::Better | Verdict::Worse))
        };
        let share = (0..2000).filter(is_false).count() as f64 / 2000.0;
        assert!(share <= 0.05, "{share}");
    }

    #[test]
    fn equivalence_is_found_where_it_is_and_only_there() {
        let share = |mean: f64| {
            let is_equivalent = |seed: &u64| {
                let paired = Paired::of_differences(&simulate(*seed, 20, mean, 0.005)).unwrap();
                paired.verdict(paired.p.unwrap(), 1, BOUNDS) == Some(Verdict::Equivalent)
            };
            (0..2000).filter(is_equivalent).count() as f64 / 2000.0
        };
        assert!(share(0.0) > 0.95, "{}", share(0.0));
        // At a bound it is declared in one of twenty, beyond it almost never.
        assert!((0.03..0.07).contains(&share(0.005)), "{}", share(0.005));
        assert!(share(0.01) <= 0.05, "{}", share(0.01));
    }

    #[test]
    fn as_many_seeds_as_are_asked_for_decide_in_four_of_five() {
        let paired = Paired::of_differences(&simulate(3, 4, 0.008, 0.01)).unwrap();
        let Some(Verdict::Undecided { more_seeds: Some(more) }) = paired.verdict(0.2, 1, BOUNDS) else { panic!() };
        let (mean, deviation) = (paired.mean, paired.deviation.unwrap());
        let decided = (0..2000).filter(|&seed| {
            let paired = Paired::of_differences(&simulate(seed, paired.n + more, mean, deviation)).unwrap();
            !matches!(paired.verdict(paired.p.unwrap(), 1, BOUNDS), Some(Verdict::Undecided { .. }))
        });
        let share = decided.count() as f64 / 2000.0;
        assert!((0.76..0.9).contains(&share), "{share} with {more} more");
    }

    #[test]
    fn runs_that_are_the_same_are_equivalent() {
        let same = Paired::of_differences(&[0.0, 0.0, 0.0]).unwrap();
        assert_eq!((same.p, same.verdict(1.0, 1, BOUNDS)), (Some(1.0), Some(Verdict::Equivalent)));
        let shifted = Paired::of_differences(&[0.5, 0.5]).unwrap();
        assert_eq!((shifted.p, shifted.verdict(0.0, 1, BOUNDS)), (Some(0.0), Some(Verdict::Worse)));
        assert_eq!(Paired::of_differences(&[0.5]).unwrap().verdict(0.0, 1, BOUNDS), None);
    }
}
