//! The feed-forward: one activation, with or without a gate.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};
use kernels::Activation;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::ModelConfig;
use crate::dropout::Dropout;
use crate::pass::{Hook, Pass};
use crate::projection::projection;

/// The activation of the feed-forward. A gated one multiplies the activated gate with a second projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, IntoStaticStr, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Ffn {
    /// max(0, x).
    Relu,
    /// max(0, x)^2. So et al., 2021.
    Relu2,
    /// x where positive, 0.01 x elsewhere. Maas, Hannun and Ng, 2013.
    LeakyRelu,
    /// x where positive, exp(x) - 1 elsewhere. Clevert, Unterthiner and Hochreiter, 2016.
    Elu,
    /// ELU scaled so that activations keep mean 0 and variance 1. Klambauer et al., 2017.
    Selu,
    /// x * Phi(x), the exact (erf) form. Hendrycks and Gimpel, 2016.
    Gelu,
    /// GELU by tanh, at most 0.00047 off: GPT-2's.
    GeluTanh,
    /// x * sigmoid(1.702 x), at most 0.0203 off GELU.
    GeluSigmoid,
    /// x * sigmoid(x), also called Swish. Elfwing et al., 2017; Ramachandran et al., 2017.
    Silu,
    /// sigmoid(gate) * up. Dauphin et al., 2017.
    Glu,
    /// gate * up. Shazeer, 2020, for this and the next three.
    Bilinear,
    /// relu(gate) * up.
    #[serde(rename = "reglu")]
    #[strum(serialize = "reglu")]
    ReGlu,
    /// gelu(gate) * up.
    #[serde(rename = "geglu")]
    #[strum(serialize = "geglu")]
    GeGlu,
    /// silu(gate) * up.
    #[serde(rename = "swiglu")]
    #[strum(serialize = "swiglu")]
    SwiGlu,
}

impl Ffn {
    /// Whether a third matrix, the gate, is needed.
    pub fn is_gated(self) -> bool {
        use Ffn::*;
        match self {
            Relu | Relu2 | LeakyRelu | Elu | Selu | Gelu | GeluTanh | GeluSigmoid | Silu => false,
            Glu | Bilinear | ReGlu | GeGlu | SwiGlu => true,
        }
    }

    /// Matrices of size `d_model * d_ff`.
    pub fn n_matrices(self) -> usize {
        if self.is_gated() { 3 } else { 2 }
    }

    /// Its name in Hugging Face `transformers`; of a gated one, that of the gate's activation.
    pub fn transformers_name(self) -> Option<&'static str> {
        match self {
            Ffn::Relu | Ffn::ReGlu => Some("relu"),
            Ffn::Relu2 => Some("relu2"),
            Ffn::LeakyRelu => Some("leaky_relu"),
            Ffn::Gelu | Ffn::GeGlu => Some("gelu"),
            Ffn::GeluTanh => Some("gelu_new"),
            Ffn::GeluSigmoid => Some("quick_gelu"),
            Ffn::Silu | Ffn::SwiGlu => Some("silu"),
            Ffn::Glu => Some("sigmoid"),
            Ffn::Bilinear => Some("linear"),
            Ffn::Elu | Ffn::Selu => None,
        }
    }

    /// The pointwise function; a gated feed-forward applies it to the gate.
    pub fn activation(self) -> Activation {
        match self {
            Ffn::Relu | Ffn::ReGlu => Activation::Relu,
            Ffn::Relu2 => Activation::Relu2,
            Ffn::LeakyRelu => Activation::LeakyRelu,
            Ffn::Elu => Activation::Elu,
            Ffn::Selu => Activation::Selu,
            Ffn::Gelu | Ffn::GeGlu => Activation::Gelu,
            Ffn::GeluTanh => Activation::GeluTanh,
            Ffn::GeluSigmoid => Activation::GeluSigmoid,
            Ffn::Silu | Ffn::SwiGlu => Activation::Silu,
            Ffn::Glu => Activation::Sigmoid,
            Ffn::Bilinear => Activation::Identity,
        }
    }
}

/// `down(activate(up(x)))`, or `down(activate(gate(x)) * up(x))` when gated.
#[derive(Module, Debug)]
pub struct FeedForward {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    pub(crate) dropout: Dropout,
    #[module(skip)]
    pub(crate) ffn: Ffn,
}

impl FeedForward {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        let (d_model, d_ff, bias) = (config.d_model, config.d_ff, config.bias);
        FeedForward {
            gate: config.ffn.is_gated().then(|| projection(d_model, d_ff, bias, device)),
            up: projection(d_model, d_ff, bias, device),
            down: projection(d_ff, d_model, bias, device),
            dropout: Dropout::new(config.dropout),
            ffn: config.ffn,
        }
    }

    /// What the activation is given, one column for each unit: `[batch, seq, d_model]` to `[batch * seq, d_ff]`.
    pub(crate) fn activation_input(&self, x: Tensor<3>) -> Tensor<2> {
        self.gate.as_ref().unwrap_or(&self.up).forward(x.flatten(0, 1))
    }

    /// The feed-forward of `x` added to `onto`, both `[batch, seq, d_model]`.
    ///
    /// Products are taken over `[batch * seq, d_model]`: on three axes burn multiplies batch by batch and its weight gradient
    /// materializes one matrix per batch row.
    pub(crate) fn forward(&self, x: Tensor<3>, onto: Tensor<3>, pass: &mut Pass) -> Tensor<3> {
        pass.call(Hook::FeedForward(self, &x));
        let (kernels, shape) = (pass.kernels, x.shape());
        let (x, onto) = (x.flatten::<2>(0, 1), onto.flatten::<2>(0, 1));
        let f = self.ffn.activation();
        let weight = |linear: &Linear| linear.weight.val();
        let is_bare = self.up.bias.is_none() && self.dropout.is_disabled();
        let y = match &self.gate {
            Some(gate) if is_bare => kernels.gated_feed_forward(x, [gate, &self.up, &self.down].map(weight), onto, f),
            None if is_bare => kernels.feed_forward(x, [&self.up, &self.down].map(weight), onto, f),
            gate => {
                let up = self.up.forward(x.clone());
                let hidden = match gate {
                    Some(gate) => kernels.gate(gate.forward(x), up, f),
                    None => kernels.activate(up, f),
                };
                onto + self.dropout.forward(self.down.forward(hidden))
            }
        };
        y.reshape(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::TensorData;
    use kernels::Kernels;

    fn values(x: Tensor<1>) -> Vec<f32> {
        x.into_data().try_into_vec().unwrap()
    }

    #[test]
    fn gelu_and_silu_have_a_point_without_slope() {
        // Where the derivative vanishes, and the value there: roots of the derivatives, found by bisection.
        let device = Device::flex().autodiff();
        for (ffn, at, lowest) in [(Ffn::Gelu, -0.7518, -0.16997), (Ffn::Silu, -1.2785, -0.27846)] {
            let x = Tensor::<1>::from_data([at], &device).require_grad();
            let y = Kernels::Fused.activate(x.clone(), ffn.activation());
            let slope = values(x.grad(&y.clone().sum().backward()).unwrap())[0];
            assert!(slope.abs() < 1e-4 && (values(y)[0] - lowest).abs() < 1e-5, "{ffn:?}: {slope}");
        }
    }

    #[test]
    fn gelu_s_approximations_are_this_far_off() {
        let x: Vec<f32> = (-600_000..=600_000).map(|i| i as f32 * 1e-5).collect();
        let n = x.len();
        let x = Tensor::<1>::from_data(TensorData::new(x, [n]), &Device::flex());
        let exact = values(Kernels::Fused.activate(x.clone(), Ffn::Gelu.activation()));
        for (ffn, largest, at) in [(Ffn::GeluSigmoid, 0.0203, 2.27), (Ffn::GeluTanh, 0.00047, 2.70)] {
            let errors = values(Kernels::Fused.activate(x.clone(), ffn.activation()))
                .into_iter()
                .zip(&exact)
                .map(|(a, b)| (a - b).abs());
            let (worst, error) = errors.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            assert!((error / largest - 1.0).abs() < 0.02, "{ffn:?}: {error}");
            // The error is symmetric around zero.
            assert!(((worst as f32 * 1e-5 - 6.0).abs() - at).abs() < 0.02, "{ffn:?} at {}", worst as f32 * 1e-5 - 6.0);
        }
    }

    #[test]
    fn no_gradient_is_lost_far_out() {
        let device = Device::flex().autodiff();
        for &ffn in Ffn::VARIANTS {
            let x = Tensor::<1>::from_data([-100.0, 100.0], &device).require_grad();
            let slopes =
                values(x.grad(&Kernels::Fused.activate(x.clone(), ffn.activation()).sum().backward()).unwrap());
            assert!(slopes.iter().all(|slope| slope.is_finite()), "{ffn:?}: {slopes:?}");
        }
    }
}
