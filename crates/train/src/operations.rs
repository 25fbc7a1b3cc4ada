//! The operations of a training step by themselves, at the sizes of a run.

use burn::tensor::{Device, Int, Tensor, TensorData};
use kernels::{Activation, AttentionShape, Kernels};
use model::NormKind;
use rand_distr::{Distribution, StandardNormal};
use random::stream;
use strum::VariantArray;

use crate::RunConfig;

/// One operation; its weights are the same on every device.
pub(crate) struct Operation<'a> {
    pub(crate) name: &'static str,
    /// Of its input and its output, `[batch, seq, features]`.
    pub(crate) dims: [usize; 3],
    pub(crate) apply: Box<dyn Fn(Tensor<3>, Kernels) -> Tensor<3> + 'a>,
}

/// Standard normal numbers times `scale`, the same for the same name.
pub(crate) fn normal<const D: usize>(name: &str, dims: [usize; D], scale: f32, device: &Device) -> Tensor<D> {
    let mut rng = stream(0, name);
    let draw = |_| scale * Distribution::<f32>::sample(&StandardNormal, &mut rng);
    let numbers: Vec<f32> = (0..dims.iter().product::<usize>()).map(draw).collect();
    Tensor::from_data(TensorData::new(numbers, dims), device)
}

/// Each norm on `[batch, seq, d_model]`, each activation on `[batch, seq, d_ff]`, both branches of a block, and the loss.
pub(crate) fn operations<'a>(config: &'a RunConfig, device: &'a Device) -> Vec<Operation<'a>> {
    let (model, d) = (&config.model, config.model.d_model);
    let dims = |d| [config.train.batch_size, model.seq_len, d];
    let mut all: Vec<Operation> = vec![];
    for norm in NormKind::VARIANTS {
        let weights = norm.at_attention(model, device);
        let apply = Box::new(move |x, kernels| weights.forward(x, kernels));
        all.push(Operation { name: norm.into(), dims: dims(d), apply });
    }
    for &activation in Activation::VARIANTS {
        let apply = Box::new(move |x, kernels: Kernels| kernels.activate(x, activation));
        all.push(Operation { name: activation.into(), dims: dims(model.d_ff), apply });
    }
    let matrix = |name: &str, rows: usize, columns: usize| normal(name, [rows, columns], 0.1, device).require_grad();
    let d_kv = model.n_kv_heads * model.head_dim();
    let attention: [Tensor<2>; 4] = [matrix("q", d, d), matrix("k", d, d_kv), matrix("v", d, d_kv), matrix("o", d, d)];
    let shape = AttentionShape {
        batch: config.train.batch_size,
        seq: model.seq_len,
        n_heads: model.n_heads,
        n_kv_heads: model.n_kv_heads,
        head_dim: model.head_dim(),
        theta: None,
    };
    let [gate, up, down] = [matrix("gate", d, model.d_ff), matrix("up", d, model.d_ff), matrix("down", model.d_ff, d)];
    let plain = [up.clone(), down.clone()];
    let gated = [gate, up, down];
    let head = matrix("head", config.vocab_size, d);
    let mut branch = |name, apply: Box<dyn Fn(Tensor<2>, Kernels) -> Tensor<2> + 'a>| {
        let apply = Box::new(move |x: Tensor<3>, kernels| {
            let [batch, seq, _] = x.dims();
            let y = apply(x.flatten(0, 1), kernels);
            let [_, features] = y.dims();
            y.reshape([batch, seq, features])
        });
        all.push(Operation { name, dims: dims(d), apply });
    };
    branch("attention", Box::new(move |x, kernels| kernels.self_attention(x.clone(), attention.clone(), x, shape)));
    branch(
        "feed_forward",
        Box::new(move |x, kernels| kernels.feed_forward(x.clone(), plain.clone(), x, Activation::Gelu)),
    );
    branch(
        "gated_feed_forward",
        Box::new(move |x, kernels| kernels.gated_feed_forward(x.clone(), gated.clone(), x, Activation::Silu)),
    );
    let vocab_size = config.vocab_size as i64;
    branch(
        "loss",
        Box::new(move |x, kernels| {
            let n = x.dims()[0] as i64;
            let targets = Tensor::<1, Int>::arange(0..n, &x.device()).remainder_scalar(vocab_size);
            kernels.nll(x, head.clone(), targets).unsqueeze_dim(1)
        }),
    );
    all
}
