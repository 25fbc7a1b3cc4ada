//! The function at a norm site, one file each.

mod batch;
mod dyt;
mod group;
mod instance;
pub mod wrong;

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Tensor};
use kernels::Kernels;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

pub use batch::BatchNorm;
pub use dyt::Dyt;
pub use group::GroupNorm;
pub use instance::InstanceNorm;
pub use kernels::EPSILON;

use crate::{ModelConfig, Rule};

/// Which function stands at every norm site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, IntoStaticStr, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum NormKind {
    /// (x - mean) / sqrt(var + 1e-5) * gamma + beta over the features of a token. Ba, Kiros and Hinton, 2016.
    LayerNorm,
    /// x / sqrt(mean(x^2) + 1e-5) * gamma. Zhang and Sennrich, 2019.
    RmsNorm,
    /// gamma * tanh(alpha * x) + beta: no statistics. Zhu, Chen, He, LeCun and Liu, 2025.
    Dyt,
    /// Statistics of a feature over all tokens of the batch, running ones at evaluation. Ioffe and Szegedy, 2015.
    BatchNorm,
    /// LayerNorm over groups of a token's features. Wu and He, 2018, without pooling over positions.
    GroupNorm,
    /// Statistics of a feature over the positions of a sequence: each token sees the future. Ulyanov et al., 2016.
    InstanceNorm,
    /// x as it is.
    None,
    /// Wrong on purpose: see [`wrong::L2Norm`].
    #[serde(rename = "wrong_rmsnorm_l2")]
    #[strum(serialize = "wrong_rmsnorm_l2")]
    WrongRmsNormL2,
    /// Wrong on purpose: see [`wrong::PooledGroupNorm`].
    #[serde(rename = "wrong_groupnorm_pooled")]
    #[strum(serialize = "wrong_groupnorm_pooled")]
    WrongGroupNormPooled,
}

/// Where in the model a norm stands.
#[derive(Clone, Copy)]
pub(crate) enum Site {
    Attention,
    FeedForward,
    Final,
}

impl NormKind {
    /// The norm of a site.
    pub(crate) fn init(self, config: &ModelConfig, site: Site, device: &Device) -> Norm {
        let (d_model, groups) = (config.d_model, config.norm_groups);
        let alpha = match site {
            Site::Attention => config.alpha_attn,
            Site::FeedForward => config.alpha_ffn,
            Site::Final => config.alpha_final,
        };
        match self {
            NormKind::LayerNorm => Norm::LayerNorm(LayerNormConfig::new(d_model).with_epsilon(EPSILON).init(device)),
            NormKind::RmsNorm => Norm::RmsNorm(RmsNormConfig::new(d_model).with_epsilon(EPSILON).init(device)),
            NormKind::Dyt => Norm::Dyt(Dyt::new(d_model, alpha, device)),
            NormKind::BatchNorm => Norm::BatchNorm(BatchNorm::new(d_model, device)),
            NormKind::GroupNorm => Norm::GroupNorm(GroupNorm::new(d_model, groups, device)),
            NormKind::InstanceNorm => Norm::InstanceNorm(InstanceNorm::new(d_model, device)),
            NormKind::None => Norm::None(Identity),
            NormKind::WrongRmsNormL2 => Norm::WrongRmsNormL2(wrong::L2Norm::new(d_model, device)),
            NormKind::WrongGroupNormPooled => {
                Norm::WrongGroupNormPooled(wrong::PooledGroupNorm::new(d_model, groups, device))
            }
        }
    }

    /// The norm in front of attention.
    pub fn at_attention(self, config: &ModelConfig, device: &Device) -> Norm {
        self.init(config, Site::Attention, device)
    }

    /// Parameters of one site; running statistics are not trained and not counted.
    pub fn n_params(self, d_model: usize) -> usize {
        match self {
            NormKind::LayerNorm
            | NormKind::BatchNorm
            | NormKind::GroupNorm
            | NormKind::InstanceNorm
            | NormKind::WrongGroupNormPooled => 2 * d_model,
            NormKind::RmsNorm | NormKind::WrongRmsNormL2 => d_model,
            NormKind::Dyt => 2 * d_model + 1,
            NormKind::None => 0,
        }
    }

    /// Rules that it is known to break.
    pub(crate) fn breaks(self) -> &'static [Rule] {
        use Rule::*;
        match self {
            NormKind::LayerNorm | NormKind::GroupNorm => &[],
            NormKind::RmsNorm | NormKind::WrongRmsNormL2 => &[Shift],
            NormKind::Dyt | NormKind::None => &[Shift, Scale],
            // Its statistics are of all tokens of the batch, later ones and those of other sequences too.
            NormKind::BatchNorm => &[Causal, Alone, TrainEval],
            // Their statistics are of all positions.
            NormKind::InstanceNorm | NormKind::WrongGroupNormPooled => &[Causal],
        }
    }

    /// Whether the initial alphas have a meaning.
    pub fn has_alpha(self) -> bool {
        matches!(self, NormKind::Dyt)
    }

    /// Whether `norm_groups` has a meaning.
    pub fn has_groups(self) -> bool {
        matches!(self, NormKind::GroupNorm | NormKind::WrongGroupNormPooled)
    }
}

/// A norm with its weights.
#[derive(Module, Debug)]
pub enum Norm {
    LayerNorm(LayerNorm),
    RmsNorm(RmsNorm),
    Dyt(Dyt),
    BatchNorm(BatchNorm),
    GroupNorm(GroupNorm),
    InstanceNorm(InstanceNorm),
    None(Identity),
    WrongRmsNormL2(wrong::L2Norm),
    WrongGroupNormPooled(wrong::PooledGroupNorm),
}

impl Norm {
    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>, kernels: Kernels) -> Tensor<3> {
        match self {
            Norm::LayerNorm(norm) => {
                let beta = norm.beta.as_ref().expect("every LayerNorm here has one");
                kernels.layer_norm(x, norm.gamma.val(), beta.val())
            }
            Norm::RmsNorm(norm) => kernels.rms_norm(x, norm.gamma.val()),
            Norm::Dyt(norm) => norm.forward(x, kernels),
            Norm::BatchNorm(norm) => norm.forward(x),
            Norm::GroupNorm(norm) => norm.forward(x),
            Norm::InstanceNorm(norm) => norm.forward(x),
            Norm::None(_) => x,
            Norm::WrongRmsNormL2(norm) => norm.forward(x),
            Norm::WrongGroupNormPooled(norm) => norm.forward(x),
        }
    }
}

/// Does nothing.
#[derive(Module, Debug)]
pub struct Identity;

/// `(x - mean) / sqrt(var + 1e-5)` over the axes `over`, with the biased variance.
fn standardize<const D: usize>(x: Tensor<D>, over: &[usize]) -> Tensor<D> {
    let mean = |x: Tensor<D>| over.iter().fold(x, |x, &axis| x.mean_dim(axis));
    let centered = x.clone() - mean(x);
    let variance = mean(centered.clone().square());
    centered / (variance + EPSILON).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::tiny;
    use burn::tensor::TensorData;
    use rand_distr::{Distribution, StandardNormal};
    use random::stream;

    fn values(x: Tensor<3>) -> Vec<f32> {
        x.into_data().try_into_vec().unwrap()
    }

    fn norm(kind: NormKind, x: Tensor<3>) -> Tensor<3> {
        let [_, _, d_model] = x.dims();
        let config = ModelConfig { d_model, norm_groups: 1, ..tiny() };
        kind.init(&config, Site::Attention, &x.device()).forward(x, Kernels::Fused)
    }

    fn normal(d_model: usize, mean: f32) -> Tensor<3> {
        let mut rng = stream(1, "facts");
        let draw = |_| -> f32 { StandardNormal.sample(&mut rng) };
        let numbers: Vec<f32> = (0..8 * d_model).map(draw).map(|x: f32| x + mean).collect();
        Tensor::from_data(TensorData::new(numbers, [1, 8, d_model]), &Device::flex())
    }

    fn mean(x: Tensor<3>) -> f64 {
        x.mean().into_scalar::<f64>()
    }

    #[test]
    fn rmsnorm_keeps_a_mean_that_layernorm_takes_away() {
        // mean / sqrt(mean^2 + 1), the expectation for a normal input of that mean: not 0, whatever the mean.
        for input in [0.0f32, 1.0, 5.0] {
            let expected = f64::from(input / (input * input + 1.0).sqrt());
            let found = mean(norm(NormKind::RmsNorm, normal(512, input)));
            assert!((found - expected).abs() < 0.03, "mean {input}: {found} against {expected}");
            assert!(mean(norm(NormKind::LayerNorm, normal(512, input))).abs() < 1e-5);
        }
        assert!((mean(norm(NormKind::RmsNorm, normal(512, 5.0))) - 0.98).abs() < 0.005);
    }

    #[test]
    fn the_l2_norm_shrinks_its_output_by_sqrt_d() {
        for d_model in [512usize, 4096] {
            let rms = |x: Tensor<3>| x.square().mean().into_scalar::<f64>().sqrt();
            let expected = (d_model as f64).powf(-0.5);
            assert!((rms(norm(NormKind::WrongRmsNormL2, normal(d_model, 0.0))) / expected - 1.0).abs() < 1e-4);
            assert!((rms(norm(NormKind::RmsNorm, normal(d_model, 0.0))) - 1.0).abs() < 1e-4);
        }
    }

    #[test]
    fn groupnorm_with_one_group_is_layernorm() {
        let x = || normal(64, 2.0);
        let layernorm = values(norm(NormKind::LayerNorm, x()));
        for (group, layer) in values(norm(NormKind::GroupNorm, x())).into_iter().zip(layernorm) {
            assert!((group - layer).abs() < 2e-6, "{group} against {layer}");
        }
    }

    #[test]
    fn batchnorm_evaluates_by_running_statistics() {
        let device = Device::flex().autodiff();
        let config = ModelConfig { d_model: 4, ..tiny() };
        let norm = NormKind::BatchNorm.init(&config, Site::Attention, &device);
        let x = Tensor::<3>::from_data([[[1.0, 2.0, 3.0, 4.0], [3.0, 6.0, 3.0, 0.0]]], &device);
        norm.forward(x.clone(), Kernels::Fused);
        let evaluated = values(norm.valid().forward(x.inner(), Kernels::Fused));
        // One step of momentum 0.1 from mean 0 and variance 1 towards the batch's mean 2 and variance 1 of feature 0.
        let expected = (1.0 - 0.2) / (1.0f32 + 1e-5).sqrt();
        assert!((evaluated[0] - expected).abs() < 1e-6, "{} against {expected}", evaluated[0]);
    }
}
