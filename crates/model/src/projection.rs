//! A matrix applied to hidden states.

use burn::nn::{Dropout, Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use kernels::Kernels;

/// A matrix `[d_input, d_output]` of zeros, to be drawn by `init`, and if asked for a bias of zeros.
pub(crate) fn projection(d_input: usize, d_output: usize, bias: bool, device: &Device) -> Linear {
    LinearConfig::new(d_input, d_output).with_bias(bias).with_initializer(Initializer::Zeros).init(device)
}

/// `residual` plus what a branch ends with: `x` `[batch * seq, d_input]` by a matrix, through dropout. `residual` and what is
/// returned are `[batch, seq, d_output]`.
pub(crate) fn project_and_add(
    linear: &Linear,
    x: Tensor<2>,
    residual: Tensor<3>,
    dropout: &Dropout,
    kernels: Kernels,
) -> Tensor<3> {
    let shape = residual.shape();
    let residual = residual.flatten::<2>(0, 1);
    let y = if linear.bias.is_none() && dropout.prob == 0.0 {
        kernels.project_and_add(x, linear.weight.val(), residual)
    } else {
        residual + dropout.forward(linear.forward(x))
    };
    y.reshape(shape)
}
