//! A matrix applied to hidden states.

use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

/// A matrix `[d_input, d_output]` of zeros, to be drawn by `init`, and if asked for a bias of zeros.
pub(crate) fn projection(d_input: usize, d_output: usize, bias: bool, device: &Device) -> Linear {
    LinearConfig::new(d_input, d_output).with_bias(bias).with_initializer(Initializer::Zeros).init(device)
}

/// `[batch, seq, d_input]` to `[batch, seq, d_output]`.
///
/// The product is taken over `[batch * seq, d_input]`: on three axes burn multiplies batch by batch and its weight
/// gradient materializes one matrix per batch row.
pub(crate) fn project(linear: &Linear, x: Tensor<3>) -> Tensor<3> {
    let [batch, seq, d_input] = x.dims();
    let y = linear.forward(x.reshape([batch * seq, d_input]));
    let [_, d_output] = y.dims();
    y.reshape([batch, seq, d_output])
}
