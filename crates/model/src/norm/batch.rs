//! Batch normalization over all tokens of the batch.

use burn::module::Module;
use burn::nn::BatchNormConfig;
use burn::tensor::{Device, Tensor};

/// `(x - mean) / sqrt(var + 1e-5) * gamma + beta`, each feature over `batch * seq` tokens; on a plain device by running
/// statistics with momentum 0.1. Ioffe and Szegedy, 2015.
#[derive(Module, Debug)]
pub struct BatchNorm {
    inner: burn::nn::BatchNorm,
}

impl BatchNorm {
    pub(crate) fn new(d_model: usize, device: &Device) -> Self {
        BatchNorm { inner: BatchNormConfig::new(d_model).with_epsilon(super::EPSILON).init(device) }
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, d_model] = x.dims();
        self.inner.forward(x.reshape([batch * seq, d_model])).reshape([batch, seq, d_model])
    }
}
