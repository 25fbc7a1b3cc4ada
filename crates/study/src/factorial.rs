//! What each factor of a grid does by itself, and what two of them do together.

use serde::Serialize;
use train::State;

use crate::plan::Study;
use crate::results::RunResult;
use crate::stats::{Paired, Verdict, holm};

/// A main effect or an interaction.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Effect {
    /// `norm: rmsnorm` against the first level, averaged over the other factors; `norm: rmsnorm x ffn: swiglu` for what the
    /// two do together beyond the sum of what each does.
    pub(crate) name: String,
    /// In nats, one difference for each seed.
    pub(crate) difference: Paired,
    pub(crate) verdict: Option<Verdict>,
}

/// Main effects of all levels but the first, and interactions of any two of different factors. A seed counts where it is
/// finished in the whole grid.
pub(crate) fn effects(study: &Study, runs: &[Vec<RunResult>]) -> Vec<Effect> {
    let of_grid = || study.variants.iter().zip(runs).filter(|(variant, _)| !variant.levels.is_empty());
    if of_grid().next().is_none() {
        return vec![];
    }
    let loss = |runs: &[RunResult], seed: u64| Some(runs.iter().find(|run| run.config.seed == seed)?.last()?.loss);
    // Of each seed, the loss of every combination of levels.
    let seeds: Vec<Vec<(&[usize], f64)>> = (0..study.seeds as u64)
        .filter_map(|seed| of_grid().map(|(variant, runs)| Some((&*variant.levels, loss(runs, seed)?))).collect())
        .collect();
    let mean = |cells: &[(&[usize], f64)], is_in: &dyn Fn(&[usize]) -> bool| {
        let losses: Vec<f64> = cells.iter().filter(|(levels, _)| is_in(levels)).map(|(_, loss)| *loss).collect();
        losses.iter().sum::<f64>() / losses.len() as f64
    };
    let name = |factor: usize, level: usize| {
        let key = &study.grid[factor].key;
        format!("{}: {}", key.rsplit('.').next().unwrap_or(key), study.grid[factor].levels[level])
    };
    let levels: Vec<(usize, usize)> = study
        .grid
        .iter()
        .enumerate()
        .flat_map(|(factor, own)| (1..own.levels.len()).map(move |level| (factor, level)))
        .collect();
    let mut all = vec![];
    for &(factor, level) in &levels {
        let effect = |cells: &Vec<(&[usize], f64)>| {
            let at = |wanted| mean(cells, &|levels| levels[factor] == wanted);
            at(level) - at(0)
        };
        all.extend(Effect::of(name(factor, level), &seeds.iter().map(effect).collect::<Vec<_>>()));
    }
    for (i, &(a, of_a)) in levels.iter().enumerate() {
        for &(b, of_b) in levels[i + 1..].iter().filter(|(b, _)| *b != a) {
            let effect = |cells: &Vec<(&[usize], f64)>| {
                let at = |x, y| mean(cells, &|levels| levels[a] == x && levels[b] == y);
                at(of_a, of_b) - at(of_a, 0) - at(0, of_b) + at(0, 0)
            };
            let name = format!("{} x {}", name(a, of_a), name(b, of_b));
            all.extend(Effect::of(name, &seeds.iter().map(effect).collect::<Vec<_>>()));
        }
    }
    let p: Vec<f64> = all.iter().filter_map(|effect| effect.difference.p).collect();
    // Seeds that are left cannot speak for a grid that lost some.
    let is_whole = of_grid().all(|(_, runs)| runs.iter().all(|run| run.state != State::Diverged));
    if is_whole && p.len() == all.len() {
        for (effect, adjusted) in all.iter_mut().zip(holm(&p)) {
            effect.verdict = effect.difference.verdict(adjusted, p.len(), study.bounds());
        }
    }
    all
}

impl Effect {
    fn of(name: String, differences: &[f64]) -> Option<Self> {
        Some(Effect { name, difference: Paired::of_differences(differences)?, verdict: None })
    }
}
