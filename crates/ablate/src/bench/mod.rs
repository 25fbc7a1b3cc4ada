//! `ablate bench`: what the training step takes, and what others take in the same minutes.

mod candidate;
mod end_to_end;
mod parts;
mod scaling;
mod turns;

use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use study::Plan;
use train::{ConfigError, DiskNeeds, RunConfig, median, write_whole};

use crate::cli::{Bench, Opponent};
use crate::resources::size;
use crate::{plan, resources};
use candidate::Candidate;

pub use candidate::work;

pub fn run(args: &Bench) -> Result<u8> {
    let mut plan = plan(&args.study)?;
    // What could not be said at the end is to be known now.
    if let Some(path) = &args.json {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    if args.against.contains(&Opponent::Pytorch) {
        candidate::look_for_torch()?;
    }
    let copies = usize::from(args.copies);
    if resources::most_at_once(&plan, copies, None)? < copies {
        return Err(ConfigError(format!("--copies {copies}: so many runs at a time do not fit into memory")).into());
    }
    if args.end_to_end {
        write(args, &end_to_end::measure(&mut plan, args)?)?;
    } else if args.parts {
        write(args, &parts::measure(&plan, args)?)?;
    } else if args.scaling {
        write(args, &scaling::measure(&plan, args)?)?;
    } else {
        let configs = plan.runs().into_iter().filter(|run| run.seed == 0);
        let measured: Result<Vec<_>> = configs.map(|config| turns::measure(&config, args)).collect();
        write(args, &measured?)?;
    }
    Ok(0)
}

/// Steps that are taken to tell how long a study takes.
const FORECAST_STEPS: usize = 10;

/// Most models of a study that take such steps.
const MOST_TIMED: usize = 8;

/// After so long no further model takes them.
const LONGEST_TIMING: Duration = Duration::from_secs(30);

/// What a study will take, by some steps of its models: in words.
///
/// # Errors
/// A config that cannot be run.
pub fn forecast(plan: &Plan) -> Result<String> {
    let tuning = plan.tuning_runs();
    let mut runs = plan.runs();
    let at_once = resources::most_at_once(plan, resources::cores().min(runs.len()), None)?;
    if !plan.backend().is_cpu() {
        return Ok("how long it takes on a GPU is not measured here\n".into());
    }
    runs.retain(|run| run.seed == 0);
    let steps = Steps::of(&runs, |config| {
        let answers = Candidate::ours(config, 1, 1)?.turn(FORECAST_STEPS)?;
        median(answers.into_iter().flat_map(|answer| answer.turn.seconds).collect()).context("some steps were taken")
    })?;
    let n_runs = plan.study.seeds + tuning.len() / plan.study.variants.len();
    let (mut seconds, mut bytes, mut most_meanwhile) = (0.0, 0.0, 0.0f64);
    for (config, step) in runs.iter().zip(&steps.seconds) {
        seconds += step * (config.train.steps * n_runs) as f64;
        let DiskNeeds { kept, meanwhile } = config.disk_needs();
        bytes += kept * n_runs as f64;
        most_meanwhile = meanwhile.max(most_meanwhile);
    }
    let memory = plan.memory_bytes().map(|bytes| format!("about {} of memory for each run\n", size(bytes)));
    Ok(format!(
        "about {} of training with {at_once} runs at a time, by {FORECAST_STEPS} steps of {}; evaluation comes on \
         top\n{}about {} on disk, and {} more for checkpoints meanwhile\n",
        train::duration(seconds / at_once as f64),
        steps.timed(),
        memory.unwrap_or_default(),
        size(bytes),
        size(most_meanwhile * at_once as f64)
    ))
}

/// What a step of each variant takes.
struct Steps {
    /// Of one step of each variant.
    seconds: Vec<f64>,
    /// Different models of the variants, and those of them that were timed.
    n_models: usize,
    n_timed: usize,
}

impl Steps {
    /// Times a step of each different model or, of too many, of some, and takes the others to be as fast for their operations.
    fn of(variants: &[RunConfig], mut time: impl FnMut(&RunConfig) -> Result<f64>) -> Result<Self> {
        let is_same =
            |a: &RunConfig, b: &RunConfig| a.model == b.model && a.train.grad_accum_steps == b.train.grad_accum_steps;
        let mut models: Vec<&RunConfig> = vec![];
        for variant in variants {
            if !models.iter().any(|model| is_same(model, variant)) {
                models.push(variant);
            }
        }
        let start = Instant::now();
        let mut timed: Vec<(&RunConfig, f64)> = vec![];
        for model in spread(&models, MOST_TIMED) {
            if !timed.is_empty() && start.elapsed() > LONGEST_TIMING {
                break;
            }
            timed.push((model, time(model)?));
        }
        // Variants of a study share the tokens of a step.
        let flops = |config: &RunConfig| config.model.budget(config.vocab_size).flops.total() as f64;
        let per_flop = timed.iter().map(|(model, step)| step / flops(model)).sum::<f64>() / timed.len() as f64;
        let seconds = variants.iter().map(|variant| {
            let own = timed.iter().find(|(model, _)| is_same(model, variant));
            own.map_or(per_flop * flops(variant), |(_, step)| *step)
        });
        Ok(Steps { seconds: seconds.collect(), n_models: models.len(), n_timed: timed.len() })
    }

    /// Whose steps were timed, in words.
    fn timed(&self) -> String {
        let Steps { n_models, n_timed, .. } = self;
        match n_timed == n_models {
            true => "each variant just now".into(),
            false => format!("{n_timed} of its {n_models} models just now, the others by their FLOPs per token"),
        }
    }
}

/// At most `n` of them, the first and others at equal distances.
fn spread<T: Copy>(all: &[T], n: usize) -> impl Iterator<Item = T> {
    let n = n.min(all.len());
    (0..n).map(move |i| all[i * all.len() / n])
}

/// Results where `--json` says, if it does.
fn write(args: &Bench, results: &impl Serialize) -> Result<()> {
    let Some(path) = &args.json else { return Ok(()) };
    write_whole(path, &(serde_json::to_string_pretty(results)? + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use train::Backend;

    #[test]
    fn few_models_are_timed_and_the_others_follow_from_their_operations() {
        let check = |widths: &[usize], n_timed: usize, words: &str| {
            let variant = |&d_ff: &usize| {
                let mut config = study::baseline(Backend::Flex);
                config.model.d_ff = d_ff;
                config
            };
            let variants: Vec<RunConfig> = widths.iter().map(variant).collect();
            let cost = |config: &RunConfig| 1e-9 * config.model.budget(config.vocab_size).flops.total() as f64;
            let mut n = 0;
            let steps = Steps::of(&variants, |config| {
                n += 1;
                Ok(cost(config))
            })
            .unwrap();
            assert_eq!((n, steps.n_timed, steps.timed().as_str()), (n_timed, n_timed, words));
            for (seconds, variant) in steps.seconds.iter().zip(&variants) {
                assert!((seconds / cost(variant) - 1.0).abs() < 1e-9, "{} with {widths:?}", variant.model.d_ff);
            }
        };
        check(&[512, 341, 512, 341], 2, "each variant just now");
        let many: Vec<usize> = (1..=100).collect();
        check(&many, 8, "8 of its 100 models just now, the others by their FLOPs per token");
    }

    #[test]
    fn a_selection_is_spread_evenly() {
        assert_eq!(spread(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 4).collect::<Vec<_>>(), [0, 2, 5, 7]);
        assert_eq!(spread(&[1, 2], 8).collect::<Vec<_>>(), [1, 2]);
    }
}
