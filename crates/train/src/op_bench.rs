//! What each norm and each activation takes by itself.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::Device;
use kernels::Kernels;
use serde::Serialize;
use strum::VariantArray;

use crate::RunConfig;
use crate::operations::{Operation, normal, operations};

/// Median seconds of a function at the sizes of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    pub name: &'static str,
    pub kernels: Kernels,
    pub forward: f64,
    pub backward: f64,
}

/// Each norm, each activation, both branches of a block, and the loss; by both kinds of kernels in turn.
///
/// # Errors
/// A config that cannot be run.
pub fn costs(config: &RunConfig, repeats: usize) -> Result<Vec<Cost>> {
    config.validate()?;
    let device = config.backend.device()?.autodiff();
    let mut all = vec![];
    for operation in operations(config, &device) {
        // A GPU has the plain ones only.
        let all_kinds =
            Kernels::VARIANTS.iter().filter(|kernels| config.backend.is_cpu() || **kernels == Kernels::Plain);
        for &kernels in all_kinds {
            let [forward, backward] = cost(&device, &operation, kernels, repeats)?;
            all.push(Cost { name: operation.name, kernels, forward, backward });
        }
    }
    Ok(all)
}

fn cost(device: &Device, operation: &Operation, kernels: Kernels, repeats: usize) -> Result<[f64; 2]> {
    let (mut forward, mut backward) = (vec![], vec![]);
    // The first finds no memory ready.
    for repeat in 0..=repeats {
        let x = normal(operation.name, operation.dims, 1.0, device).require_grad();
        let start = Instant::now();
        let y = (operation.apply)(x, kernels);
        let between = Instant::now();
        let grads = y.backward();
        let end = Instant::now();
        drop(grads);
        if repeat > 0 {
            forward.push((between - start).as_secs_f64());
            backward.push((end - between).as_secs_f64());
        }
    }
    let median = |seconds| median(seconds).context("it is repeated at least once");
    Ok([median(forward)?, median(backward)?])
}

/// The middle number, of two the mean; `None` of none.
pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let n = numbers.len();
    Some((numbers.get(n / 2)? + numbers.get(n.saturating_sub(1) / 2)?) / 2.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_of_two_lies_between() {
        assert_eq!(
            [vec![], vec![3.0], vec![4.0, 1.0], vec![9.0, 1.0, 2.0]].map(super::median),
            [None, Some(3.0), Some(2.5), Some(2.0)]
        );
    }
}
