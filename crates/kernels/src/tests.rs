//! Every operation against its composition of burn's: outputs and gradients, over shapes that fit no vector and numbers at the
//! edge of their range.

use burn::tensor::{Device, Int, Tensor, TensorData};
use strum::VariantArray;

use crate::{Activation, AttentionShape, Kernels};

/// Each backend that is built in.
fn devices() -> Vec<Device> {
    vec![
        Device::flex(),
        #[cfg(feature = "ndarray")]
        #[allow(deprecated, reason = "complete in burn 0.22, which is pinned")]
        Device::ndarray(),
    ]
}

/// Numbers that look drawn, of deviation about `scale`.
fn numbers(n: usize, seed: u64, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (uniform() + uniform() + uniform()) * 2.0 * scale).collect()
}

/// An input: its numbers and its two axes; one with a single row is passed on as it is.
struct Input(Vec<f32>, [usize; 2]);

fn drawn(dims: [usize; 2], seed: u64, scale: f32) -> Input {
    Input(numbers(dims[0] * dims[1], seed, scale), dims)
}

/// The output of `f` and the gradients of its inputs, for a weighted sum in which no weight is zero.
fn run(
    kernels: Kernels,
    device: &Device,
    inputs: &[Input],
    f: &dyn Fn(Kernels, &[Tensor<2>]) -> Tensor<2>,
) -> Vec<Vec<f32>> {
    let device = device.clone().autodiff();
    let tensor = |Input(numbers, dims): &Input| {
        Tensor::<2>::from_data(TensorData::new(numbers.clone(), *dims), &device).require_grad()
    };
    let inputs: Vec<Tensor<2>> = inputs.iter().map(tensor).collect();
    let y = f(kernels, &inputs);
    let [rows, columns] = y.dims();
    let weights = Tensor::<2>::from_data(TensorData::new(numbers(rows * columns, 99, 1.0), [rows, columns]), &device);
    let grads = (y.clone() * weights).sum().backward();
    let values = |tensor: Tensor<2>| tensor.into_data().convert::<f32>().try_into_vec::<f32>().unwrap();
    let gradients = inputs.iter().map(|input| values(input.grad(&grads).expect("every input has a gradient")));
    std::iter::once(values(y.inner())).chain(gradients).collect()
}

/// Compares with the composition, within `tolerance` of the largest magnitude of each tensor, or of 0.05 where that is less:
/// the gradient of a norm, for one, is a difference that nearly vanishes for rows of one number.
fn check(name: &str, inputs: &[Input], tolerance: f32, f: &dyn Fn(Kernels, &[Tensor<2>]) -> Tensor<2>) {
    for device in devices() {
        let (fused, plain) = (run(Kernels::Fused, &device, inputs, f), run(Kernels::Plain, &device, inputs, f));
        for (i, (fused, plain)) in fused.iter().zip(&plain).enumerate() {
            let largest = plain.iter().fold(0.05f32, |largest, x| largest.max(x.abs()));
            for (a, b) in fused.iter().zip(plain) {
                let which = if i == 0 { "output".into() } else { format!("gradient {i}") };
                assert!((a - b).abs() <= tolerance * largest, "{name}, {which}: {a} against {b}, largest {largest}");
            }
        }
    }
}

fn row(x: &Tensor<2>) -> Tensor<1> {
    x.clone().flatten(0, 1)
}

/// Rows of usual numbers, with one of zeros, one of denormal and one of large numbers.
fn rows(n: usize, d: usize) -> Input {
    let mut input = drawn([n, d], 1, 1.0);
    for (row, value) in [(1, 0.0), (2, 1e-40), (3, 1e4)] {
        if row < n {
            input.0[row * d..(row + 1) * d].iter_mut().enumerate().for_each(|(i, x)| *x = value * (i as f32 - 3.5));
        }
    }
    input
}

#[test]
fn norms_are_burn_s() {
    for d in [1, 8, 31, 96, 100, 257] {
        for n in [1, 5, 33] {
            let gain = || [rows(n, d), drawn([1, d], 2, 1.0), drawn([1, d], 3, 1.0)];
            let name = format!("{n} rows of {d}");
            // The gradient of one feature is the difference of two terms that are 1e5 times as large, and as much of it is rounding.
            let tolerance = if d == 1 { 1e-4 } else { 1e-5 };
            check(&format!("RMSNorm, {name}"), &gain()[..2], tolerance, &|k, x| k.rms_norm(x[0].clone(), row(&x[1])));
            // With one feature the variance is zero, and rounding is all that is left.
            if d > 1 {
                check(&format!("LayerNorm, {name}"), &gain(), 2e-5, &|k, x| {
                    k.layer_norm(x[0].clone(), row(&x[1]), row(&x[2]))
                });
            }
            let [x, gamma, beta] = gain();
            check(&format!("DyT, {name}"), &[x, gamma, beta, drawn([1, 1], 4, 1.0)], 2e-5, &|k, x| {
                k.dyt(x[0].clone(), row(&x[3]), row(&x[1]), row(&x[2]))
            });
        }
    }
}

#[test]
fn activations_and_gates_are_burn_s() {
    for &f in Activation::VARIANTS {
        for (n, d) in [(1, 1), (5, 8), (7, 31), (3, 100)] {
            let name = format!("{f:?} of {n} by {d}");
            let x = || drawn([n, d], 5, 2.0);
            check(&name, &[x()], 1e-5, &|k, x| k.activate(x[0].clone(), f));
            check(&name, &[x(), drawn([n, d], 6, 1.0)], 1e-5, &|k, x| k.gate(x[0].clone(), x[1].clone(), f));
            let [x, residual, gate, up] = [(n, 9), (n, 9), (9, d), (9, d)].map(|(n, d)| drawn([n, d], 7, 0.7));
            let inputs = [x, residual, gate, up, drawn([d, 9], 8, 0.5)];
            check(&name, &inputs, 1e-5, &|k, x| {
                let [x, residual, gate, up, down] = std::array::from_fn(|i| x[i].clone());
                let gated = k.gated_feed_forward(x.clone(), [gate, up.clone(), down.clone()], residual.clone(), f);
                gated + k.feed_forward(x, [up, down], residual, f)
            });
        }
        // Far out, where exponentials overflow or vanish. At a kink, at zero, burn has one slope and PyTorch, as we, the other.
        let edge = vec![-1e4, -100.0, -50.0, -20.0, -1e-30, 1e-30, 20.0, 50.0, 88.0, 100.0, 1e4];
        check(&format!("{f:?} at the edge"), &[Input(edge, [11, 1])], 1e-5, &|k, x| {
            // Each number by itself, so that large ones hide no error in small ones.
            k.activate(x[0].clone(), f) / (x[0].clone().detach().abs() + 1.0)
        });
    }
}

#[test]
fn attention_is_burn_s() {
    let shape = |batch, seq, n_heads, n_kv_heads, head_dim, theta| AttentionShape {
        batch,
        seq,
        n_heads,
        n_kv_heads,
        head_dim,
        theta,
    };
    for sizes in [
        shape(1, 1, 1, 1, 8, None),
        shape(2, 33, 1, 1, 96, Some(10_000.0)),
        shape(1, 257, 5, 5, 20, Some(500.0)),
        shape(3, 31, 6, 2, 16, Some(10_000.0)),
        shape(2, 64, 4, 1, 2, None),
        shape(2, 32, 4, 4, 1, None),
    ] {
        let (n, width, kv) =
            (sizes.batch * sizes.seq, sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim);
        let name = format!("{sizes:?}");
        // Scores of deviation 1 and of deviation 30, where the softmax picks one key.
        for scale in [1.0, 6.0] {
            let qkv = [drawn([n, width], 1, scale), drawn([n, kv], 2, scale), drawn([n, kv], 3, 1.0)];
            check(&name, &qkv, 5e-5, &|k, x| k.attention(x[0].clone(), x[1].clone(), x[2].clone(), sizes));
        }
        check(&name, &attention_inputs(n, width, kv), 5e-5, &|k, x| self_attention(k, x, sizes));
    }
}

/// x, the matrices and the residual of attention over `[n, 10]`.
fn attention_inputs(n: usize, width: usize, kv: usize) -> [Input; 6] {
    let matrix = |d, width, seed| drawn([d, width], seed, 0.3);
    let [wq, wk, wv, wo] = [matrix(10, width, 5), matrix(10, kv, 6), matrix(10, kv, 7), matrix(width, 10, 8)];
    [drawn([n, 10], 4, 1.0), wq, wk, wv, wo, drawn([n, 10], 9, 1.0)]
}

fn self_attention(kernels: Kernels, x: &[Tensor<2>], sizes: AttentionShape) -> Tensor<2> {
    let [x, wq, wk, wv, wo, residual] = std::array::from_fn(|i| x[i].clone());
    kernels.self_attention(x, [wq, wk, wv, wo], residual, sizes)
}

#[test]
fn the_loss_is_burn_s() {
    // The last has more logits than are kept, so its rows are taken in parts and their logits computed twice.
    for (n, d, vocab) in [(1, 8, 2), (33, 100, 65), (7, 4, 17), (70, 2, 70_001)] {
        let targets: Vec<i32> = (0..n as i32).map(|i| i * 7919 % vocab as i32).collect();
        let inputs = [drawn([n, d], 1, 1.0), drawn([vocab, d], 2, 1.0)];
        check(&format!("{n} of {vocab}"), &inputs, 1e-5, &|k, x| {
            let targets = Tensor::<1, Int>::from_data(TensorData::new(targets.clone(), [n]), &x[0].device());
            k.nll(x[0].clone(), x[1].clone(), targets).unsqueeze_dim(1)
        });
    }
}

#[test]
fn gradients_are_the_slopes_of_what_is_computed() {
    // Central differences of the fused forward pass along a random direction, in f32: good to a percent or so.
    let sizes = AttentionShape { batch: 1, seq: 37, n_heads: 2, n_kv_heads: 1, head_dim: 6, theta: Some(100.0) };
    let inputs = attention_inputs(37, 12, 6);
    let f = |k: Kernels, x: &[Tensor<2>]| self_attention(k, x, sizes);
    let device = Device::flex();
    let weighted = |inputs: &[Input]| -> f64 {
        let y = &run(Kernels::Fused, &device, inputs, &f)[0];
        y.iter().zip(numbers(y.len(), 99, 1.0)).map(|(y, w)| f64::from(*y) * f64::from(w)).sum()
    };
    let grads = run(Kernels::Fused, &device, &inputs, &f);
    for i in 0..inputs.len() {
        let direction = numbers(inputs[i].0.len(), 7, 1.0);
        let moved = |h: f32| {
            let mut moved: Vec<Input> = inputs.iter().map(|Input(x, dims)| Input(x.clone(), *dims)).collect();
            moved[i].0.iter_mut().zip(&direction).for_each(|(x, u)| *x += h * u);
            weighted(&moved)
        };
        let h = 3e-3;
        let slope = (moved(h) - moved(-h)) / (2.0 * f64::from(h));
        let along: f64 = grads[i + 1].iter().zip(&direction).map(|(g, u)| f64::from(*g) * f64::from(*u)).sum();
        assert!((slope / along - 1.0).abs() < 0.02, "input {i}: {slope} against {along}");
    }
}

#[test]
fn not_a_number_is_not_hidden() {
    let device = Device::flex();
    let x = || {
        let mut numbers = numbers(64, 1, 1.0);
        numbers[13] = f32::NAN;
        Tensor::<2>::from_data(TensorData::new(numbers, [8, 8]), &device)
    };
    let has_nan = |y: Tensor<2>| y.into_data().try_into_vec::<f32>().unwrap().iter().any(|y| y.is_nan());
    let ones = || Tensor::<1>::ones([8], &device);
    assert!(has_nan(Kernels::Fused.rms_norm(x(), ones())));
    assert!(has_nan(Kernels::Fused.layer_norm(x(), ones(), ones())));
    for &f in Activation::VARIANTS {
        assert!(has_nan(Kernels::Fused.activate(x(), f)), "{f:?}");
    }
    let sizes = AttentionShape { batch: 1, seq: 8, n_heads: 2, n_kv_heads: 2, head_dim: 4, theta: None };
    assert!(has_nan(Kernels::Fused.attention(x(), x(), x(), sizes)));
    let targets = Tensor::<1, Int>::from_data([0, 1, 2, 3, 4, 5, 6, 7], &device);
    assert!(has_nan(Kernels::Fused.nll(x(), x(), targets).unsqueeze_dim(1)));
}
