//! What each norm and each activation takes by itself.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::{Device, Distribution, Int, Tensor};
use kernels::{Activation, AttentionShape, Kernels};
use model::NormKind;
use serde::Serialize;
use strum::VariantArray;

use crate::RunConfig;

/// Median seconds of a function at the sizes of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    pub name: &'static str,
    pub kernels: Kernels,
    pub forward: f64,
    pub backward: f64,
}

/// Each norm on `[batch, seq, d_model]`, each activation on `[batch, seq, d_ff]`, both branches of a block, and the loss; by both kinds
/// of kernels in turn.
///
/// # Errors
/// A config that cannot be run.
pub fn costs(config: &RunConfig, repeats: usize) -> Result<Vec<Cost>> {
    config.validate()?;
    let device = config.backend.device()?.autodiff();
    let dims = |d| [config.train.batch_size, config.model.seq_len, d];
    let mut all = vec![];
    let mut add = |name, dims, f: &dyn Fn(Tensor<3>, Kernels) -> Tensor<3>| {
        for &kernels in Kernels::VARIANTS {
            let [forward, backward] = cost(&device, dims, repeats, &|x| f(x, kernels))?;
            all.push(Cost { name, kernels, forward, backward });
        }
        anyhow::Ok(())
    };
    for norm in NormKind::VARIANTS {
        let weights = norm.at_attention(&config.model, &device);
        add(norm.into(), dims(config.model.d_model), &|x, kernels| weights.forward(x, kernels))?;
    }
    for &activation in Activation::VARIANTS {
        add(activation.into(), dims(config.model.d_ff), &|x, kernels| kernels.activate(x, activation))?;
    }
    let d = config.model.d_model;
    let matrix = |rows: usize, columns: usize| {
        Tensor::<2>::random([rows, columns], Distribution::Normal(0.0, 0.1), &device).require_grad()
    };
    let d_kv = config.model.n_kv_heads * config.model.head_dim();
    let [wq, wk, wv, wo] = [matrix(d, d), matrix(d, d_kv), matrix(d, d_kv), matrix(d, d)];
    let shape = AttentionShape {
        batch: config.train.batch_size,
        seq: config.model.seq_len,
        n_heads: config.model.n_heads,
        n_kv_heads: config.model.n_kv_heads,
        head_dim: config.model.head_dim(),
        theta: None,
    };
    add("attention", dims(d), &|x, kernels| {
        let flat = x.flatten::<2>(0, 1);
        let matrices = [&wq, &wk, &wv, &wo].map(Tensor::clone);
        kernels.self_attention(flat.clone(), matrices, flat, shape).unsqueeze()
    })?;
    let [gate, up, down] = [matrix(d, config.model.d_ff), matrix(d, config.model.d_ff), matrix(config.model.d_ff, d)];
    add("feed_forward", dims(d), &|x, kernels| {
        let flat = x.flatten::<2>(0, 1);
        kernels.feed_forward(flat.clone(), [up.clone(), down.clone()], flat, Activation::Gelu).unsqueeze()
    })?;
    add("gated_feed_forward", dims(d), &|x, kernels| {
        let flat = x.flatten::<2>(0, 1);
        kernels
            .gated_feed_forward(flat.clone(), [&gate, &up, &down].map(Tensor::clone), flat, Activation::Silu)
            .unsqueeze()
    })?;
    let head = matrix(config.vocab_size, d);
    add("loss", dims(d), &|x, kernels| {
        let flat = x.flatten::<2>(0, 1);
        let n = flat.dims()[0] as i64;
        let targets = Tensor::<1, Int>::arange(0..n, &device).remainder_scalar(config.vocab_size as i64);
        kernels.nll(flat, head.clone(), targets).unsqueeze()
    })?;
    Ok(all)
}

fn cost(device: &Device, dims: [usize; 3], repeats: usize, f: &dyn Fn(Tensor<3>) -> Tensor<3>) -> Result<[f64; 2]> {
    let (mut forward, mut backward) = (vec![], vec![]);
    // The first finds no memory ready.
    for repeat in 0..=repeats {
        let x = Tensor::<3>::random(dims, Distribution::Normal(0.0, 1.0), device).require_grad();
        let start = Instant::now();
        let y = f(x);
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
