//! Differences between paired runs.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The mean difference `variant - reference` over runs that share a seed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Paired {
    pub(crate) n: usize,
    pub(crate) mean: f64,
    /// 95% interval of the mean by Student's t; absent for a single pair, which has no spread.
    pub(crate) interval: Option<(f64, f64)>,
    /// Pairs in which the variant is lower.
    pub(crate) n_lower: usize,
}

impl Paired {
    /// Of pairs (reference, variant); `None` without any.
    pub(crate) fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let differences: Vec<f64> = pairs.iter().map(|(reference, variant)| variant - reference).collect();
        let n = differences.len();
        let (mean, deviation) = mean_and_deviation(&differences)?;
        let interval = deviation.map(|deviation| {
            let t =
                StudentsT::new(0.0, 1.0, (n - 1) as f64).expect("at least one degree of freedom").inverse_cdf(0.975);
            let half = t * deviation / (n as f64).sqrt();
            (mean - half, mean + half)
        });
        Some(Paired { n, mean, interval, n_lower: differences.iter().filter(|d| **d < 0.0).count() })
    }
}

/// The middle number, the upper one of two; `None` of none.
pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
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
}
