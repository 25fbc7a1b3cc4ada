//! The rules of a language model, and which parts keep them.
//!
//! Each norm at each placement and each feed-forward is put into a small decoder and probed. Some parts are known to break a
//! rule, BatchNorm above all: that too is expected, and would be wrong if it stopped.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use rand_distr::{Distribution, StandardNormal};
use random::stream;
use strum::{IntoStaticStr, VariantArray};

use crate::norm::Site;
use crate::{Decoder, Ffn, ModelConfig, NormKind, NormPlacement, Position};

/// What is asked of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, IntoStaticStr)]
pub enum Rule {
    /// Changing a token changes no earlier logit, in training.
    #[strum(serialize = "causal")]
    Causal,
    /// Changing a sequence changes no logit of another in the batch, in training.
    #[strum(serialize = "alone in batch")]
    Alone,
    /// The same logits in training and at evaluation.
    #[strum(serialize = "train = eval")]
    TrainEval,
    /// f(x + c) = f(x) for a constant c added to all features. A property, neither good nor bad.
    #[strum(serialize = "shift-free")]
    Shift,
    /// f(c x) = f(x) for c > 0. A property, neither good nor bad.
    #[strum(serialize = "scale-free")]
    Scale,
    /// The gradient at a zero vector is finite.
    #[strum(serialize = "finite at 0")]
    AtZero,
    /// A gradient reaches every parameter.
    #[strum(serialize = "all trained")]
    Reach,
    /// The CPU backends agree within 1e-4 of the largest logit.
    #[strum(serialize = "backends agree")]
    Backends,
}

/// What was found of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    pub rule: Rule,
    /// `None` where the rule cannot be asked: a feed-forward alone has no shift, one backend cannot disagree.
    pub holds: Option<bool>,
    pub expected: bool,
}

impl Finding {
    /// Whether it is as expected, be it good or bad.
    pub fn is_as_expected(&self) -> bool {
        self.holds.is_none_or(|holds| holds == self.expected)
    }
}

/// The findings about one part.
#[derive(Clone, Debug)]
pub struct Contract {
    /// `batchnorm, pre`, or `swiglu`.
    pub part: String,
    pub findings: Vec<Finding>,
}

/// Probes every norm at every placement and every feed-forward on the first device, and compares it with the others.
pub fn contracts(devices: &[Device]) -> Vec<Contract> {
    let mut all = vec![];
    for &norm in NormKind::VARIANTS {
        for &norm_placement in NormPlacement::VARIANTS {
            let part = format!("{}, {}", <&str>::from(norm), <&str>::from(norm_placement));
            let config = ModelConfig { norm, norm_placement, ..probe() };
            all.push(Contract { part, findings: findings(&config, Some(norm), devices) });
        }
    }
    for &ffn in Ffn::VARIANTS {
        let config = ModelConfig { ffn, ..probe() };
        all.push(Contract { part: <&str>::from(ffn).to_string(), findings: findings(&config, None, devices) });
    }
    all
}

const VOCAB: usize = 13;

fn probe() -> ModelConfig {
    ModelConfig {
        seq_len: 8,
        d_model: 16,
        n_layers: 2,
        n_heads: 2,
        n_kv_heads: 2,
        d_ff: 24,
        norm: NormKind::LayerNorm,
        norm_placement: NormPlacement::Pre,
        ffn: Ffn::Gelu,
        position: Position::Learned,
        rope_theta: 10_000.0,
        bias: false,
        qk_norm: false,
        norm_groups: 4,
        dropout: 0.0,
        alpha_attn: 1.0,
        alpha_ffn: 1.0,
        alpha_final: 1.0,
        embedding_scale: false,
    }
}

fn findings(config: &ModelConfig, norm: Option<NormKind>, devices: &[Device]) -> Vec<Finding> {
    let device = &devices[0].clone().autodiff();
    let decoder = || config.init(VOCAB, 0, device);
    let finding = |&rule: &Rule| {
        let holds = match rule {
            Rule::Causal => Some(is_causal(&decoder(), device)),
            Rule::Alone => Some(is_alone(&decoder(), device)),
            Rule::TrainEval => Some(trains_as_it_evaluates(&decoder(), device)),
            Rule::Shift => norm.map(|norm| is_free(norm, config, device, |x| x + 3.0)),
            Rule::Scale => norm.map(|norm| is_free(norm, config, device, |x| x * 3.0)),
            Rule::AtZero => Some(match norm {
                Some(norm) => norm_is_finite_at_zero(norm, config, device),
                None => ffn_is_finite_at_zero(config.ffn, device),
            }),
            Rule::Reach => Some(reaches_all(&decoder(), device)),
            Rule::Backends => (devices.len() > 1).then(|| backends_agree(config, devices)),
        };
        Finding { rule, holds, expected: norm.is_none_or(|norm| !norm.breaks().contains(&rule)) }
    };
    Rule::VARIANTS.iter().map(finding).collect()
}

/// Two sequences of eight tokens.
fn rows() -> [Vec<i32>; 2] {
    [3, 5].map(|k| (0..8).map(|i| (k * i + i * i) % VOCAB as i32).collect())
}

fn logits(decoder: &Decoder, rows: &[Vec<i32>; 2], device: &Device) -> Tensor<3> {
    decoder.forward(Tensor::<2, Int>::from_data(TensorData::new(rows.concat(), [2, 8]), device))
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_into_vec().expect("just converted to f32")
}

/// Whether two tensors differ by less than `tolerance` times the largest value.
fn close<const D: usize>(a: Tensor<D>, b: Tensor<D>, tolerance: f32) -> bool {
    let (a, b) = (values(a), values(b));
    let largest = a.iter().fold(f32::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
    a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= tolerance * largest)
}

/// What rounding may do to a rule that holds exactly on paper.
const ROUNDING: f32 = 1e-4;

fn changed(row: usize, position: usize) -> [Vec<i32>; 2] {
    let mut rows = rows();
    rows[row][position] = (rows[row][position] + 1) % VOCAB as i32;
    rows
}

fn is_causal(decoder: &Decoder, device: &Device) -> bool {
    (1..8).all(|position| {
        let earlier = |rows| logits(decoder, rows, device).narrow(0, 0, 1).narrow(1, 0, position);
        close(earlier(&rows()), earlier(&changed(0, position)), 1e-6)
    })
}

fn is_alone(decoder: &Decoder, device: &Device) -> bool {
    let first = |rows| logits(decoder, rows, device).narrow(0, 0, 1);
    close(first(&rows()), first(&changed(1, 0)), 1e-6)
}

fn trains_as_it_evaluates(decoder: &Decoder, device: &Device) -> bool {
    let training = logits(decoder, &rows(), device).inner();
    close(training, logits(&decoder.valid(), &rows(), &device.clone().inner()), ROUNDING)
}

/// Whether a norm gives the same for `x` and for what `change` makes of it.
fn is_free(norm: NormKind, config: &ModelConfig, device: &Device, change: fn(Tensor<3>) -> Tensor<3>) -> bool {
    let norm = norm.init(config, Site::Attention, device);
    let mut rng = stream(0, "contract");
    let numbers: Vec<f32> = (0..2 * 8 * 16).map(|_| StandardNormal.sample(&mut rng)).collect();
    let x = Tensor::<3>::from_data(TensorData::new(numbers, [2, 8, 16]), device);
    // The epsilon under the root breaks scale invariance by about this much.
    close(norm.forward(x.clone()), norm.forward(change(x)), 1e-3)
}

/// Whether the gradient of `f` is finite at an input with a zero vector in it.
fn is_finite_at_zero(f: impl FnOnce(Tensor<3>) -> Tensor<3>, device: &Device) -> bool {
    let numbers: Vec<f32> = (0..2 * 16).map(|i| if i < 16 { 0.0 } else { i as f32 / 16.0 }).collect();
    let x = Tensor::<3>::from_data(TensorData::new(numbers, [1, 2, 16]), device).require_grad();
    let y = f(x.clone());
    let grad = x.grad(&(y.clone() * y).sum().backward()).map(values);
    grad.is_none_or(|grad| grad.iter().all(|g| g.is_finite()))
}

fn norm_is_finite_at_zero(norm: NormKind, config: &ModelConfig, device: &Device) -> bool {
    let norm = norm.init(config, Site::Attention, device);
    is_finite_at_zero(|x| norm.forward(x), device)
}

fn ffn_is_finite_at_zero(ffn: Ffn, device: &Device) -> bool {
    is_finite_at_zero(|x| ffn.activate(x), device)
}

fn reaches_all(decoder: &Decoder, device: &Device) -> bool {
    let loss = logits(decoder, &rows(), device).narrow(2, 0, 1).square().sum();
    let mut reached = Reached { grads: &loss.backward(), all: true, name: String::new() };
    decoder.visit(&mut reached);
    reached.all
}

struct Reached<'a> {
    grads: &'a Gradients,
    all: bool,
    name: String,
}

impl ModuleVisitor for Reached<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.name = name.into();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Running statistics are visited like parameters, but nothing trains them.
        if !self.name.starts_with("running_") {
            let grad = param.val().grad(self.grads).map(values);
            self.all &= grad.is_some_and(|grad| grad.iter().any(|g| *g != 0.0));
        }
    }
}

fn backends_agree(config: &ModelConfig, devices: &[Device]) -> bool {
    let on = |device: &Device| {
        let logits = logits(&config.init(VOCAB, 0, device), &rows(), device);
        Tensor::<3>::from_data(logits.into_data(), &devices[0])
    };
    devices[1..].iter().all(|device| close(on(&devices[0]), on(device), ROUNDING))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_keeps_and_breaks_what_it_should() {
        for contract in contracts(&[Device::flex()]) {
            for finding in &contract.findings {
                assert!(finding.is_as_expected(), "{}: {finding:?}", contract.part);
            }
        }
    }

    fn norm(kind: NormKind, x: Tensor<3>) -> Tensor<3> {
        let [_, _, d_model] = x.dims();
        let config = ModelConfig { d_model, norm_groups: 1, ..probe() };
        kind.init(&config, Site::Attention, &x.device()).forward(x)
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
        let config = ModelConfig { d_model: 4, ..probe() };
        let norm = NormKind::BatchNorm.init(&config, Site::Attention, &device);
        let x = Tensor::<3>::from_data([[[1.0, 2.0, 3.0, 4.0], [3.0, 6.0, 3.0, 0.0]]], &device);
        norm.forward(x.clone());
        let evaluated = values(norm.valid().forward(x.inner()));
        // One step of momentum 0.1 from mean 0 and variance 1 towards the batch's mean 2 and variance 1 of feature 0.
        let expected = (1.0 - 0.2) / (1.0f32 + 1e-5).sqrt();
        assert!((evaluated[0] - expected).abs() < 1e-6, "{} against {expected}", evaluated[0]);
    }

    #[test]
    fn gelu_and_silu_have_a_point_without_slope() {
        // Where the derivative vanishes, and the value there: roots of the derivatives, found by bisection.
        let device = Device::flex().autodiff();
        for (ffn, at, lowest) in [(Ffn::Gelu, -0.7518, -0.16997), (Ffn::Silu, -1.2785, -0.27846)] {
            let x = Tensor::<1>::from_data([at], &device).require_grad();
            let y = ffn.activate(x.clone());
            let slope = values(x.grad(&y.clone().sum().backward()).unwrap())[0];
            assert!(slope.abs() < 1e-4 && (values(y)[0] - lowest).abs() < 1e-5, "{ffn:?}: {slope}");
        }
    }

    #[test]
    fn gelu_s_approximations_are_this_far_off() {
        let x: Vec<f32> = (-600_000..=600_000).map(|i| i as f32 * 1e-5).collect();
        let n = x.len();
        let x = Tensor::<1>::from_data(TensorData::new(x, [n]), &Device::flex());
        let exact = values(Ffn::Gelu.activate(x.clone()));
        for (ffn, largest, at) in [(Ffn::GeluSigmoid, 0.0203, 2.27), (Ffn::GeluTanh, 0.00047, 2.70)] {
            let errors = values(ffn.activate(x.clone())).into_iter().zip(&exact).map(|(a, b)| (a - b).abs());
            let (worst, error) = errors.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            assert!((error / largest - 1.0).abs() < 0.02, "{ffn:?}: {error}");
            // The error is symmetric around zero.
            assert!(((worst as f32 * 1e-5 - 6.0).abs() - at).abs() < 0.02, "{ffn:?} at {}", worst as f32 * 1e-5 - 6.0);
        }
    }
}
