//! How the time of a step grows with tokens, width, depth and context.

use anyhow::{Context, Result};
use serde::Serialize;
use study::{Plan, Table, grouped};
use train::{RunConfig, median};

use super::candidate::Candidate;
use crate::cli::Bench;
use crate::print;

/// What is multiplied, and by how much at most.
const FACTORS: [usize; 3] = [1, 2, 4];

#[derive(Serialize)]
pub struct Growth {
    axis: &'static str,
    points: Vec<Point>,
    /// Slope of a line through the logarithms of the factors and of the times.
    exponent: f64,
    /// The same of the floating-point operations that the budget counts.
    exponent_of_flops: f64,
}

#[derive(Serialize)]
struct Point {
    factor: usize,
    /// Median step in seconds.
    seconds: f64,
    flops: usize,
}

pub fn measure(plan: &Plan, args: &Bench) -> Result<Vec<Growth>> {
    let config = plan.runs().into_iter().next().context("a study has a run")?;
    let mut table = Table::new(&["axis", "times", "GFLOP/step", "ms/step", "GFLOP/s", "tokens/s"]);
    let mut all = vec![];
    for axis in ["tokens", "width", "depth", "context"] {
        let mut points = vec![];
        for factor in FACTORS {
            let mut config = config.clone();
            let RunConfig { model, train, .. } = &mut config;
            match axis {
                "tokens" => train.batch_size *= factor,
                "depth" => model.n_layers *= factor,
                "context" => model.seq_len *= factor,
                // Heads keep their width.
                _ => [&mut model.d_model, &mut model.d_ff, &mut model.n_heads, &mut model.n_kv_heads]
                    .into_iter()
                    .for_each(|size| *size *= factor),
            }
            let mut candidate = Candidate::ours(&config, args.threads, 1)?;
            let answers = candidate.turn(args.steps_per_turn.into())?;
            let seconds = answers.into_iter().flat_map(|answer| answer.turn.seconds).collect();
            let seconds = median(seconds).context("a turn has a step")?;
            let tokens = config.train.batch_size * config.model.seq_len;
            let flops = config.model.budget(config.vocab_size).flops.total() * tokens;
            table.rows.push(vec![
                axis.into(),
                factor.to_string(),
                format!("{:.2}", flops as f64 * 1e-9),
                format!("{:.1}", 1e3 * seconds),
                format!("{:.0}", flops as f64 * 1e-9 / seconds),
                grouped((tokens as f64 / seconds) as usize),
            ]);
            points.push(Point { factor, seconds, flops });
        }
        let exponent = |of: &dyn Fn(&Point) -> f64| {
            slope(&points.iter().map(|point| ((point.factor as f64).ln(), of(point).ln())).collect::<Vec<_>>())
        };
        let (exponent, exponent_of_flops) = (exponent(&|point| point.seconds), exponent(&|point| point.flops as f64));
        all.push(Growth { axis, points, exponent, exponent_of_flops });
    }
    let mut exponents = Table::new(&["axis", "exponent of the time", "of the operations"]);
    for Growth { axis, exponent, exponent_of_flops, .. } in &all {
        exponents.rows.push(vec![(*axis).into(), format!("{exponent:.2}"), format!("{exponent_of_flops:.2}")]);
    }
    print(&format!(
        "{}, {} parameters, {} thread(s), medians of {} steps; with the context grows the number of tokens\n\n{}\n{}",
        config.variant,
        grouped(config.model.budget(config.vocab_size).params.total()),
        args.threads,
        args.steps_per_turn,
        table.plain(),
        exponents.plain()
    ))?;
    Ok(all)
}

/// Slope of the line of least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    sum(&|point| (point.0 - x) * (point.1 - y)) / sum(&|point| (point.0 - x).powi(2))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_slope_of_a_power_is_its_exponent() {
        let points: Vec<(f64, f64)> = [1.0f64, 2.0, 4.0].iter().map(|x| (x.ln(), (3.0 * x.powf(1.7)).ln())).collect();
        assert!((super::slope(&points) - 1.7).abs() < 1e-12);
    }
}
