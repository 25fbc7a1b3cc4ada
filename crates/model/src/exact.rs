//! Statements about parts that are true or false without any training: each with the figures that show it.

use burn::tensor::{Device, Tensor, TensorData};
use kernels::Kernels;
use rand_distr::{Distribution, StandardNormal};
use random::stream;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::contract::probe;
use crate::{Ffn, ModelConfig, NormKind, Rule, contracts};

/// A statement that is checked by computing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, IntoStaticStr, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Exact {
    /// RMSNorm of c x is RMSNorm of x, and has a mean square of 1.
    RmsnormIgnoresScale,
    /// x / (|x| + epsilon), with the L2 norm, is RMSNorm.
    L2NormIsRmsnorm,
    /// RMSNorm of x + c is RMSNorm of x.
    RmsnormIgnoresShift,
    /// The mean of RMSNorm's output is about zero, whatever the input's.
    RmsnormCenters,
    /// RMSNorm has the parameters of LayerNorm less d biases.
    RmsnormHasNoBias,
    /// A mean of squares in half precision is safe for inputs of 300.
    RmsnormSuitsHalfPrecision,
    /// BatchNorm, InstanceNorm and a GroupNorm that pools positions let no token see the future.
    PoolingIsCausal,
    /// LayerNorm, RMSNorm, DyT and GroupNorm within a token let no token see the future.
    TokenNormsAreCausal,
    /// tanh(alpha x), with gain and bias at their start, is bounded by 1 whatever the input.
    DytIsBounded,
    /// GELU's slope is nowhere zero.
    GeluHasSlopeEverywhere,
    /// x sigmoid(1.702 x) is GELU within 0.001.
    SigmoidFormIsGelu,
    /// GELU by tanh is GELU within 0.001.
    TanhFormIsGelu,
    /// GeGLU costs fewer operations than SwiGLU.
    GegluIsLighter,
}

/// Numbers per row.
const D: usize = 512;

impl Exact {
    /// Whether it is true, and the figures.
    pub fn check(self, device: &Device) -> (bool, String) {
        match self {
            Exact::RmsnormIgnoresScale => {
                let (x, f) = (normal(0.0), norm(NormKind::RmsNorm, device));
                let (y, scaled) = (f(&x), f(&x.iter().map(|x| 1000.0 * x).collect::<Vec<_>>()));
                let (off, square) = (largest_difference(&y, &scaled), mean(y.iter().map(|y| y * y)));
                (
                    off < 1e-4 && (square - 1.0).abs() < 1e-3,
                    format!("f(1000 x) is off f(x) by {off:.1e}; mean square {square:.4}"),
                )
            }
            Exact::L2NormIsRmsnorm => {
                let y = norm(NormKind::WrongRmsNormL2, device)(&normal(0.0));
                let root = mean(y.iter().map(|y| y * y)).sqrt();
                let is_one = (root - 1.0).abs() < 1e-2;
                (
                    is_one,
                    format!(
                        "root mean square of the output at d = {D}: {root:.4}, 1/sqrt(d) = {:.4}, RMSNorm's is 1",
                        1.0 / (D as f64).sqrt()
                    ),
                )
            }
            Exact::RmsnormIgnoresShift => {
                let shifted = |kind| {
                    let (x, f) = (normal(0.0), norm(kind, device));
                    largest_difference(&f(&x), &f(&x.iter().map(|x| x + 1.0).collect::<Vec<_>>()))
                };
                let (rms, layer) = (shifted(NormKind::RmsNorm), shifted(NormKind::LayerNorm));
                (
                    rms < 1e-3,
                    format!("f(x + 1) is off f(x) by up to {rms:.2} with RMSNorm, by {layer:.1e} with LayerNorm"),
                )
            }
            Exact::RmsnormCenters => {
                let means = [0.0, 1.0, 5.0]
                    .map(|shift| (shift, mean(norm(NormKind::RmsNorm, device)(&normal(shift)).into_iter())));
                let shown = means.map(|(shift, mean)| format!("{mean:.2} for inputs of mean {shift}"));
                (means.iter().all(|(_, mean)| mean.abs() < 0.1), format!("mean of the output: {}", shown.join(", ")))
            }
            Exact::RmsnormHasNoBias => {
                let [layer, rms] = [NormKind::LayerNorm, NormKind::RmsNorm].map(|kind| kind.n_params(D));
                (layer - rms == D, format!("{rms} parameters a site against {layer} at d = {D}"))
            }
            Exact::RmsnormSuitsHalfPrecision => {
                let square = half(300.0 * 300.0);
                (square.is_finite(), format!("300^2 in half precision is {square}; the largest number there is 65504"))
            }
            Exact::PoolingIsCausal => {
                let kinds = [NormKind::BatchNorm, NormKind::InstanceNorm, NormKind::WrongGroupNormPooled];
                all_causal(&kinds, device)
            }
            Exact::TokenNormsAreCausal => {
                let kinds = [NormKind::LayerNorm, NormKind::RmsNorm, NormKind::Dyt, NormKind::GroupNorm];
                all_causal(&kinds, device)
            }
            Exact::DytIsBounded => {
                let x: Vec<f32> = normal(0.0).iter().map(|x| 1e6 * x).collect();
                let largest =
                    norm(NormKind::Dyt, device)(&x).into_iter().fold(0.0f32, |largest, y| largest.max(y.abs()));
                (largest <= 1.0, format!("the largest output for inputs of a million is {largest}"))
            }
            Exact::GeluHasSlopeEverywhere => {
                let x = Tensor::<1>::from_data([-0.7518], &device.clone().autodiff()).require_grad();
                let y = Kernels::Fused.activate(x.clone(), Ffn::Gelu.activation());
                let slope = x.grad(&y.clone().sum().backward()).map(numbers).unwrap_or_default()[0];
                let value = numbers(y)[0];
                (
                    slope.abs() > 1e-3,
                    format!("at -0.7518 its slope is {slope:.1e} and its value, the lowest, {value:.5}"),
                )
            }
            Exact::SigmoidFormIsGelu => approximates_gelu(Ffn::GeluSigmoid, device),
            Exact::TanhFormIsGelu => approximates_gelu(Ffn::GeluTanh, device),
            Exact::GegluIsLighter => {
                let [geglu, swiglu] =
                    [Ffn::GeGlu, Ffn::SwiGlu].map(|ffn| ModelConfig { ffn, ..probe() }.budget(D).flops.ffn);
                (geglu < swiglu, format!("{geglu} against {swiglu} operations per token: the same three matrices"))
            }
        }
    }
}

/// A row of numbers of deviation 1.
fn normal(mean: f32) -> Vec<f32> {
    let mut rng = stream(0, "exact");
    (0..D).map(|_| mean + Distribution::<f32>::sample(&StandardNormal, &mut rng)).collect()
}

/// A norm at its start, on one row.
fn norm(kind: NormKind, device: &Device) -> impl Fn(&[f32]) -> Vec<f32> {
    let norm = kind.at_attention(&ModelConfig { d_model: D, ..probe() }, device);
    let device = device.clone();
    move |x| {
        let x = Tensor::<3>::from_data(TensorData::new(x.to_vec(), [1, 1, D]), &device);
        numbers(norm.forward(x, Kernels::Fused))
    }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_into_vec().expect("just converted to f32")
}

fn mean(numbers: impl ExactSizeIterator<Item = f32>) -> f64 {
    let n = numbers.len() as f64;
    numbers.map(f64::from).sum::<f64>() / n
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |largest, (a, b)| largest.max((a - b).abs()))
}

/// A number as half precision holds it, as far as its range goes.
fn half(x: f32) -> f32 {
    // 65520 and above round beyond the largest number.
    if x.abs() >= 65_520.0 { f32::INFINITY.copysign(x) } else { x }
}

fn all_causal(kinds: &[NormKind], device: &Device) -> (bool, String) {
    let names: Vec<&str> = kinds.iter().map(<&str>::from).collect();
    let mut see = vec![];
    for contract in contracts(std::slice::from_ref(device)) {
        let name = contract.part.split(',').next().unwrap_or_default();
        let breaks =
            contract.findings.iter().any(|finding| finding.rule == Rule::Causal && finding.holds == Some(false));
        if names.contains(&name) && breaks && !see.contains(&name.to_string()) {
            see.push(name.to_string());
        }
    }
    let shown = if see.is_empty() { "none".into() } else { see.join(", ") };
    (
        see.is_empty(),
        format!("a later token moves an earlier logit in training with: {shown}; asked: {}", names.join(", ")),
    )
}

fn approximates_gelu(ffn: Ffn, device: &Device) -> (bool, String) {
    let x: Vec<f32> = (-60_000..=60_000).map(|i| i as f32 * 1e-4).collect();
    let of = |ffn: Ffn| {
        let x = Tensor::<1>::from_data(TensorData::new(x.clone(), [x.len()]), device);
        numbers(Kernels::Fused.activate(x, ffn.activation()))
    };
    let off = largest_difference(&of(Ffn::Gelu), &of(ffn));
    (off < 1e-3, format!("off by {off:.5} at most"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_articles_have_wrong_is_found_wrong() {
        let device = Device::flex();
        let wrong = [
            Exact::L2NormIsRmsnorm,
            Exact::RmsnormIgnoresShift,
            Exact::RmsnormCenters,
            Exact::RmsnormSuitsHalfPrecision,
            Exact::PoolingIsCausal,
            Exact::GeluHasSlopeEverywhere,
            Exact::SigmoidFormIsGelu,
            Exact::GegluIsLighter,
        ];
        for &exact in Exact::VARIANTS {
            let (holds, figures) = exact.check(&device);
            assert_eq!(holds, !wrong.contains(&exact), "{exact:?}: {figures}");
        }
        let (_, figures) = Exact::RmsnormCenters.check(&device);
        assert!(figures.contains("0.98 for inputs of mean 5"), "{figures}");
        let (_, figures) = Exact::L2NormIsRmsnorm.check(&device);
        assert!(figures.contains("0.0442"), "{figures}");
    }
}
