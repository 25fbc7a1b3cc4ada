//! Batch normalization over all tokens of the batch.

use burn::module::{Module, RunningState};
use burn::nn::BatchNormConfig;
use burn::tensor::{Device, Tensor};

/// `(x - mean) / sqrt(var + 1e-5) * gamma + beta`, each feature over `batch * seq` tokens; on a plain device by running
/// statistics with momentum 0.1. Ioffe and Szegedy, 2015.
///
/// Every variance is the biased one, over n tokens, the running one too. PyTorch's running variance is the unbiased one, over
/// n - 1: larger by n / (n - 1), which is 2 for two tokens and 1.001 for the 1,024 of a default batch.
#[derive(Module, Debug)]
pub struct BatchNorm {
    inner: burn::nn::BatchNorm,
}

impl BatchNorm {
    pub(crate) fn new(d_model: usize, device: &Device) -> Self {
        BatchNorm { inner: BatchNormConfig::new(d_model).with_epsilon(super::EPSILON).init(device) }
    }

    /// How far the statistics of `[batch, seq, d_model]` are from the running ones, averaged over features: means, in running
    /// standard deviations, and |ln| of the variances' ratio.
    pub(crate) fn distances(&self, x: Tensor<3>) -> [f64; 2] {
        let x = x.flatten::<2>(0, 1);
        let mean = x.clone().mean_dim(0);
        let variance = (x - mean.clone()).square().mean_dim(0).squeeze::<1>() + super::EPSILON;
        let running = |state: &RunningState<Tensor<1>>| state.value_sync().inner();
        let running_variance = running(&self.inner.running_var) + super::EPSILON;
        let mean = (mean.squeeze::<1>() - running(&self.inner.running_mean)).abs() / running_variance.clone().sqrt();
        [mean, (variance / running_variance).log().abs()].map(|x| x.mean().into_scalar::<f64>())
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, d_model] = x.dims();
        self.inner.forward(x.reshape([batch * seq, d_model])).reshape([batch, seq, d_model])
    }
}
