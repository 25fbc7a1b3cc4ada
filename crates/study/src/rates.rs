//! How a variant's loss depends on the learning rate.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use train::State;

use crate::plan::{Sweep, Variant};
use crate::results::RunResult;
use crate::stats::mean_and_deviation;

/// A loss this much above the best, relative to it, still counts as good: the usable range of rates.
const USABLE: f64 = 0.01;

/// One variant over the rates of a sweep.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RateCurve {
    pub(crate) points: Vec<RatePoint>,
}

/// The tuning runs at one rate.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct RatePoint {
    pub(crate) lr: f64,
    /// Mean of the last validation loss over the runs that are done.
    pub(crate) loss: Option<f64>,
    pub(crate) n_diverged: usize,
}

impl RateCurve {
    /// Reads the tuning runs of a variant.
    ///
    /// # Errors
    /// A damaged run, or one of another configuration.
    pub(crate) fn read(study_folder: &Path, variant: &Variant, sweep: &Sweep) -> Result<Self> {
        let mut points = vec![];
        for &lr in &sweep.rates {
            let mut runs = vec![];
            for folder in sweep.folders(study_folder, &variant.name, lr) {
                let run = RunResult::read(&folder)?;
                run.iter().try_for_each(|run| run.check(&folder, variant, Some(lr)))?;
                runs.extend(run);
            }
            let losses: Vec<f64> = runs.iter().filter_map(|run| run.last().map(|line| line.loss)).collect();
            points.push(RatePoint {
                lr,
                loss: mean_and_deviation(&losses).map(|(mean, _)| mean),
                n_diverged: runs.iter().filter(|run| run.state == State::Diverged).count(),
            });
        }
        Ok(RateCurve { points })
    }

    /// One of whose runs nothing is known.
    pub(crate) fn unknown(sweep: &Sweep) -> Self {
        let point = |&lr: &f64| RatePoint { lr, loss: None, n_diverged: 0 };
        RateCurve { points: sweep.rates.iter().map(point).collect() }
    }

    /// The lowest of the points that are stable, or of all if none is.
    fn lowest(&self) -> Option<(usize, f64)> {
        let losses =
            || self.points.iter().enumerate().filter_map(|(i, point)| Some((i, point.loss?, point.n_diverged)));
        let lowest = |stable: bool| {
            let candidates = losses().filter(|(_, _, n_diverged)| !stable || *n_diverged == 0);
            candidates.map(|(i, loss, _)| (i, loss)).min_by(|a, b| a.1.total_cmp(&b.1))
        };
        lowest(true).or_else(|| lowest(false))
    }

    /// The rate to train with.
    pub(crate) fn best(&self) -> Option<f64> {
        self.lowest().map(|(i, _)| self.points[i].lr)
    }

    /// Whether the best lies at an end of the sweep, so that a better one may lie beyond.
    pub(crate) fn is_at_edge(&self) -> bool {
        self.lowest().is_some_and(|(i, _)| i == 0 || i + 1 == self.points.len())
    }

    /// The rates around the best at which the loss is within 1% of the lowest: from, to.
    pub(crate) fn usable(&self) -> Option<(f64, f64)> {
        let (best, lowest) = self.lowest()?;
        let is_good =
            |point: &RatePoint| point.n_diverged == 0 && point.loss.is_some_and(|loss| loss <= lowest * (1.0 + USABLE));
        let (below, above) = (self.points[..best].iter().rev(), self.points[best + 1..].iter());
        let end = |last: Option<&RatePoint>| last.map_or(self.points[best].lr, |point| point.lr);
        Some((end(below.take_while(|p| is_good(p)).last()), end(above.take_while(|p| is_good(p)).last())))
    }

    /// The largest rate up to which no run diverged.
    pub(crate) fn largest_stable(&self) -> Option<f64> {
        let stable = |point: &&RatePoint| point.n_diverged == 0 && point.loss.is_some();
        self.points.iter().take_while(stable).last().map(|point| point.lr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, Option<f64>, usize)]) -> RateCurve {
        let point = |&(lr, loss, n_diverged): &(f64, Option<f64>, usize)| RatePoint { lr, loss, n_diverged };
        RateCurve { points: points.iter().map(point).collect() }
    }

    #[test]
    fn the_best_rate_is_the_lowest_where_nothing_diverged() {
        let curve = curve(&[
            (1e-3, Some(1.30), 0),
            (2e-3, Some(1.209), 0),
            (4e-3, Some(1.20), 0),
            (8e-3, Some(1.211), 0),
            (16e-3, Some(1.15), 1),
            (32e-3, None, 2),
        ]);
        assert_eq!(curve.best(), Some(4e-3));
        assert_eq!(curve.usable(), Some((2e-3, 8e-3)));
        assert_eq!(curve.largest_stable(), Some(8e-3));
        assert!(!curve.is_at_edge());
    }

    #[test]
    fn an_edge_is_seen_and_unstable_rates_are_better_than_none() {
        assert!(curve(&[(1e-3, Some(1.3), 0), (2e-3, Some(1.2), 0)]).is_at_edge());
        let shaky = curve(&[(1e-3, Some(1.3), 1), (2e-3, Some(1.4), 1)]);
        assert_eq!((shaky.best(), shaky.largest_stable()), (Some(1e-3), None));
        assert_eq!(curve(&[(1e-3, None, 2)]).best(), None);
    }
}
