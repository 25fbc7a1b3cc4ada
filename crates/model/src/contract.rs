//! The rules of a language model, and which parts keep them.
//!
//! Each norm at each placement and each feed-forward is put into a small decoder and probed. Some parts are known to break a
//! rule, BatchNorm above all: that too is expected, and would be wrong if it stopped.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use kernels::Kernels;
use rand_distr::{Distribution, StandardNormal};
use random::stream;
use strum::{IntoStaticStr, VariantArray};

use crate::norm::Site;
use crate::{Decoder, Ffn, Init, ModelConfig, NormKind, NormPlacement, Position};

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
    /// The CPU backends agree within 1e-4 of the largest value: the part and its gradient, and the logits in training.
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

/// A tiny model to switch parts of.
pub(crate) fn probe() -> ModelConfig {
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
        init: Init::Gpt2,
        dropout: 0.0,
        alpha_attn: 1.0,
        alpha_ffn: 1.0,
        alpha_final: 1.0,
        embedding_scale: false,
    }
}

fn findings(config: &ModelConfig, norm: Option<NormKind>, devices: &[Device]) -> Vec<Finding> {
    let device = &devices[0].clone().autodiff();
    let decoder = || config.init(VOCAB, 0, Kernels::Fused, device);
    let finding = |&rule: &Rule| {
        let holds = match rule {
            Rule::Causal => Some(is_causal(&decoder(), device)),
            Rule::Alone => Some(is_alone(&decoder(), device)),
            Rule::TrainEval => Some(trains_as_it_evaluates(&decoder(), device)),
            Rule::Shift => norm.map(|norm| is_free(norm, config, device, |x| x + 3.0)),
            Rule::Scale => norm.map(|norm| is_free(norm, config, device, |x| x * 3.0)),
            Rule::AtZero => Some(is_finite_at_zero(&*part(config, norm, Kernels::Fused, device), device)),
            Rule::Reach => Some(reaches_all(&decoder(), device)),
            Rule::Backends => Some(backends_agree(config, norm, devices)),
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

/// The function under test by itself: a norm, or the activation of a feed-forward.
fn part(
    config: &ModelConfig,
    norm: Option<NormKind>,
    kernels: Kernels,
    device: &Device,
) -> Box<dyn Fn(Tensor<3>) -> Tensor<3>> {
    let ffn = config.ffn;
    match norm.map(|norm| norm.init(config, Site::Attention, device)) {
        Some(norm) => Box::new(move |x| norm.forward(x, kernels)),
        None => Box::new(move |x| kernels.activate(x, ffn.activation())),
    }
}

/// Two sequences of eight vectors with deviation 2, so that activations are met where they bend.
fn normal_input(device: &Device) -> Tensor<3> {
    let mut rng = stream(0, "contract");
    let draw = |_| -> f32 { StandardNormal.sample(&mut rng) };
    let numbers: Vec<f32> = (0..2 * 8 * 16).map(draw).map(|x| 2.0 * x).collect();
    Tensor::from_data(TensorData::new(numbers, [2, 8, 16]), device)
}

/// Whether a norm gives the same for `x` and for what `change` makes of it.
fn is_free(norm: NormKind, config: &ModelConfig, device: &Device, change: fn(Tensor<3>) -> Tensor<3>) -> bool {
    let norm = part(config, Some(norm), Kernels::Fused, device);
    // The epsilon under the root breaks scale invariance by about this much.
    close(norm(normal_input(device)), norm(change(normal_input(device))), 1e-3)
}

/// `f` at `x`, and the gradient of a weighted sum of it.
fn with_gradient(f: &dyn Fn(Tensor<3>) -> Tensor<3>, x: Tensor<3>) -> (Tensor<3>, Option<Tensor<3>>) {
    let x = x.require_grad();
    let y = f(x.clone());
    let [a, b, c] = y.dims();
    // No weight is zero, so no gradient is lost.
    let weights =
        Tensor::arange(1..(a * b * c) as i64 + 1, &y.device()).float().reshape([a, b, c]) / (a * b * c) as f64;
    let grad = x.grad(&(y.clone() * weights).sum().backward());
    (y, grad)
}

fn is_finite_at_zero(f: &dyn Fn(Tensor<3>) -> Tensor<3>, device: &Device) -> bool {
    let numbers: Vec<f32> = (0..2 * 16).map(|i| if i < 16 { 0.0 } else { i as f32 / 16.0 }).collect();
    let x = Tensor::from_data(TensorData::new(numbers, [1, 2, 16]), device);
    let (_, grad) = with_gradient(f, x);
    grad.is_some_and(|grad| values(grad).iter().all(|g| g.is_finite()))
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

/// Whether every backend gives the same with either kind of kernels.
fn backends_agree(config: &ModelConfig, norm: Option<NormKind>, devices: &[Device]) -> bool {
    let on = |device: &Device, kernels: Kernels| {
        let device = device.clone().autodiff();
        let logits = logits(&config.init(VOCAB, 0, kernels, &device), &rows(), &device);
        let (y, grad) = with_gradient(&*part(config, norm, kernels, &device), normal_input(&device));
        [Some(logits.inner()), Some(y.inner()), grad].map(|x| x.map(Tensor::into_data))
    };
    let first = on(&devices[0], Kernels::Plain);
    let load = |data: &Option<TensorData>| data.clone().map(|data| Tensor::<3>::from_data(data, &devices[0]));
    let all = devices.iter().flat_map(|device| Kernels::VARIANTS.iter().map(move |&kernels| (device, kernels)));
    all.into_iter().all(|(device, kernels)| {
        let other = on(device, kernels);
        other.iter().zip(&first).all(|(a, b)| load(a).zip(load(b)).is_some_and(|(a, b)| close(a, b, ROUNDING)))
    })
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

    #[test]
    fn a_surprise_is_one_in_both_directions() {
        let is_as_expected = |holds, expected| Finding { rule: Rule::Causal, holds, expected }.is_as_expected();
        assert!(is_as_expected(Some(true), true) && is_as_expected(Some(false), false) && is_as_expected(None, true));
        assert!(!is_as_expected(Some(false), true) && !is_as_expected(Some(true), false));
    }
}
