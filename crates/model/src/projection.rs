//! A matrix applied to hidden states.

use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::Device;

/// A matrix `[d_input, d_output]` of zeros, to be drawn by `init`, and if asked for a bias of zeros.
pub(crate) fn projection(d_input: usize, d_output: usize, bias: bool, device: &Device) -> Linear {
    LinearConfig::new(d_input, d_output).with_bias(bias).with_initializer(Initializer::Zeros).init(device)
}
