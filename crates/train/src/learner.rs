//! The decoder as burn's `Learner` sees it: loss, gradients, optimizer.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::{
    AdamWConfig, AdamWState, AdaptiveMomentumState, GradientsAccumulator, GradientsParams, LearningRate,
    ModuleOptimizer, Optimizer, OptimizerRecord,
};
use burn::tensor::{Bytes, DType, Device, ExecutionError, Int, Shape, Tensor, TensorData};
use burn::train::metric::Adaptor;
use burn::train::{InferenceStep, ItemLazy, Learner, TrainOutput, TrainStep};
use burn_pack::{Reader, Scalar};
use data::{Batch, Class, Scored, ValidBatch};
use kernels::{AdamWStep, Kernels};
use model::{Decoder, MicroBatch, Units};
use rand::Rng;
use random::stream;

use crate::checkpoint::Checkpoint;
use crate::schedule::Schedule;
use crate::{RunConfig, TrainConfig};

/// A decoder that is trained on next-token batches.
#[derive(Module, Debug)]
pub(crate) struct LanguageModel {
    pub(crate) decoder: Decoder,
}

/// What one batch gave, and where the run stands: burn's metrics read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepOutput {
    /// Negative log-likelihood of the batch, summed over its tokens.
    pub(crate) nats: f64,
    pub(crate) n_tokens: usize,
    /// The mean loss, `[1]`, where the nats have not been read from the device.
    pub(crate) pending: Option<Tensor<1>>,
    /// Nats and tokens of each class, of a validation batch of generated text.
    pub(crate) classes: BTreeMap<Class, (f64, usize)>,
    pub(crate) lr: f64,
    pub(crate) tokens_per_second: f64,
    pub(crate) seconds_left: f64,
}

impl StepOutput {
    /// Nats per token.
    pub(crate) fn loss(&self) -> f64 {
        self.nats / self.n_tokens as f64
    }
}

impl ItemLazy for StepOutput {
    fn sync(self) -> Result<Self, ExecutionError> {
        Ok(self)
    }
}

impl Adaptor<StepOutput> for StepOutput {
    fn adapt(&self) -> StepOutput {
        self.clone()
    }
}

impl LanguageModel {
    /// Negative log-likelihood of each target: `[batch * seq]`.
    fn nll(&self, batch: &Batch) -> Tensor<1> {
        self.decoder.nll(self.ids(batch, &batch.inputs), self.ids(batch, &batch.targets))
    }

    /// The loss of a batch, summed in f64 over the tokens that count; adds the units that are active, if they are asked for.
    pub(crate) fn evaluate(&self, ValidBatch { windows, scored }: ValidBatch, units: Option<&mut Units>) -> StepOutput {
        let [inputs, targets] = [&windows.inputs, &windows.targets].map(|ids| self.ids(&windows, ids));
        let nll = match units {
            None => self.decoder.nll(inputs, targets),
            Some(units) => self.decoder.nll_and_units(inputs, targets, units),
        };
        let nll = nll.into_data().convert::<f32>().try_into_vec::<f32>().expect("just converted to f32");
        let mut report = StepOutput::default();
        for (nats, scored) in nll.into_iter().map(f64::from).zip(scored) {
            if scored == Scored::No {
                continue;
            }
            report.nats += nats;
            report.n_tokens += 1;
            if let Scored::As(class) = scored {
                let sum = report.classes.entry(class).or_default();
                *sum = (sum.0 + nats, sum.1 + 1);
            }
        }
        report
    }

    fn ids(&self, batch: &Batch, ids: &[i32]) -> Tensor<2, Int> {
        let data = TensorData::new(ids.to_vec(), [batch.batch, batch.seq]);
        Tensor::from_data(data, &self.decoder.devices()[0])
    }

    /// The same model for the pass of a micro-batch.
    pub(crate) fn in_micro_batch(&self, micro_batch: MicroBatch) -> Self {
        LanguageModel { decoder: self.decoder.clone().in_micro_batch(micro_batch) }
    }

    /// The first part of the model whose output on a batch is not finite.
    pub(crate) fn first_not_finite(&self, batch: &Batch) -> Option<String> {
        self.decoder.first_not_finite(self.ids(batch, &batch.inputs))
    }
}

/// Windows of a step whose gradients are step_gradients together.
pub(crate) struct MicroBatchInput {
    windows: Batch,
    micro_batch: MicroBatch,
}

impl TrainStep for LanguageModel {
    type Input = MicroBatchInput;
    type Output = StepOutput;

    /// The loss of a part of a batch, and the gradients of its share in the mean over the batch.
    fn step(&self, MicroBatchInput { windows, micro_batch }: MicroBatchInput) -> TrainOutput<StepOutput> {
        let mut loss = self.in_micro_batch(micro_batch).nll(&windows).mean();
        let pending = Some(loss.clone().inner());
        if micro_batch.n > 1 {
            loss = loss * (1.0 / micro_batch.n as f64);
        }
        TrainOutput::new(
            self,
            loss.backward(),
            StepOutput { pending, n_tokens: windows.n_tokens(), ..StepOutput::default() },
        )
    }
}

impl InferenceStep for LanguageModel {
    type Input = ValidBatch;
    type Output = StepOutput;

    fn step(&self, batch: ValidBatch) -> StepOutput {
        self.evaluate(batch, None)
    }
}

/// AdamW that decays matrices and embeddings only, never gains, biases or scalars. Loshchilov and Hutter, 2019.
pub(crate) fn adamw(config: &TrainConfig, kernels: Kernels, model: &LanguageModel) -> ModuleOptimizer {
    let mut matrices = Matrices(vec![]);
    model.visit(&mut matrices);
    let matrices = ParamGroup::from_ids(matrices.0);
    match kernels {
        Kernels::Fused => {
            let adamw = |weight_decay| FusedAdamW { beta1: config.beta1, beta2: config.beta2, weight_decay };
            ModuleOptimizer::from(adamw(0.0)).with_group(matrices, adamw(config.weight_decay as f32), None)
        }
        Kernels::Plain => {
            let adamw = AdamWConfig::new()
                .with_beta_1(config.beta1 as f32)
                .with_beta_2(config.beta2 as f32)
                .with_epsilon(ADAMW_EPSILON)
                .with_weight_decay(0.0);
            let decayed = adamw.clone().with_weight_decay(config.weight_decay as f32).build();
            adamw.init().with_group(matrices, decayed, None)
        }
    }
}

/// Added to the root of the second moment.
const ADAMW_EPSILON: f32 = 1e-8;

/// The same as burn's AdamW, in one pass over each parameter.
#[derive(Clone)]
struct FusedAdamW {
    beta1: f64,
    beta2: f64,
    weight_decay: f32,
}

impl Optimizer for FusedAdamW {
    /// burn's own.
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        let zeros = || AdaptiveMomentumState::new(0, grad.zeros_like(), grad.zeros_like());
        let mut momentum = state.map_or_else(zeros, |state| state.momentum);
        momentum.time += 1;
        let Self { beta1, beta2, weight_decay } = *self;
        let step = AdamWStep { lr, beta1, beta2, epsilon: ADAMW_EPSILON, weight_decay, time: momentum.time };
        let moments = [momentum.moment_1, momentum.moment_2];
        let (tensor, [moment_1, moment_2]) = kernels::adamw(tensor, grad, moments, step);
        (tensor, Some(AdamWState { momentum: AdaptiveMomentumState { moment_1, moment_2, ..momentum } }))
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        AdamWState { momentum: state.momentum.to_device(device) }
    }
}

/// Collects the parameters that have two axes.
struct Matrices(Vec<ParamId>);

impl ModuleVisitor for Matrices {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if D == 2 {
            self.0.push(param.id);
        }
    }
}

/// What a step has step_gradients. Its numbers are on their device still: to read them is to wait for all that was asked of it.
pub(crate) struct StepGradients {
    pub(crate) pending: PendingLoss,
    grads: GradientsParams,
}

/// Numbers of a step that nobody has read.
pub(crate) struct PendingLoss {
    /// The mean loss of each part of the batch, `[1]`, and its tokens.
    losses: Vec<(Tensor<1>, usize)>,
    /// The sum of the squares of all gradients, `[1]`.
    squares: Tensor<1>,
}

impl PendingLoss {
    /// The losses and the gradients' norms of steps, with one wait for all of them.
    pub(crate) fn read(steps: &[PendingLoss]) -> Vec<(StepOutput, f64)> {
        let numbers = |step: &PendingLoss| {
            let losses = step.losses.iter().map(|(loss, _)| loss.clone());
            losses.chain([step.squares.clone()]).collect::<Vec<_>>()
        };
        let all = Tensor::cat(steps.iter().flat_map(numbers).collect(), 0);
        let all = all.into_data().convert::<f64>().try_into_vec::<f64>().expect("just converted to f64");
        let mut rest = all.into_iter();
        let mut next = || rest.next().expect("as many as were asked for");
        let read = |step: &PendingLoss| {
            let mut report = StepOutput::default();
            for &(_, n_tokens) in &step.losses {
                report.nats += next() * n_tokens as f64;
                report.n_tokens += n_tokens;
            }
            (report, next().sqrt())
        };
        steps.iter().map(read).collect()
    }
}

/// The micro-batches of a step, each with the device's generator where the step's dropout begins.
pub(crate) fn micro_batches(
    batch: &Batch,
    config: &RunConfig,
    step: usize,
    device: Device,
) -> impl Iterator<Item = (MicroBatch, Batch)> {
    let (n, seed, drops) = (config.train.grad_accum_steps, config.seed, config.model.dropout > 0.0);
    batch.split(n).enumerate().map(move |(index, windows)| {
        if drops {
            device.seed(stream(seed, &format!("dropout/{step}")).next_u64());
        }
        (MicroBatch { index, n }, windows)
    })
}

/// The loss and the gradients of a batch.
pub(crate) fn compute(
    learner: &Learner<LanguageModel>,
    batch: &Batch,
    config: &RunConfig,
    step: usize,
) -> StepGradients {
    let (model, mut losses, mut sum) = (learner.model(), vec![], GradientsAccumulator::new());
    for (micro_batch, windows) in micro_batches(batch, config, step, model.decoder.devices()[0].clone()) {
        let output = learner.train_step(MicroBatchInput { windows, micro_batch });
        losses.push((output.item.pending.expect("a step leaves its loss"), output.item.n_tokens));
        sum.accumulate(&model, output.grads);
    }
    let grads = sum.grads();
    let mut squares = Squares { grads: &grads, kernels: config.kernels, sum: None };
    model.visit(&mut squares);
    let squares = squares.sum.expect("a model has parameters");
    StepGradients { pending: PendingLoss { losses, squares }, grads }
}

impl StepGradients {
    /// Scales all gradients together so that their global norm, which has been read, is at most `max_norm`.
    /// Pascanu, Mikolov and Bengio, 2013.
    pub(crate) fn clipped(mut self, model: &LanguageModel, norm: f64, max_norm: f64) -> GradientsParams {
        if norm > max_norm {
            let factor = max_norm / norm;
            model.visit(&mut Scale { grads: &mut self.grads, factor: Factor::Number(factor) });
        }
        self.grads
    }

    /// The same without a look at the norm.
    pub(crate) fn clipped_on_device(mut self, model: &LanguageModel, max_norm: f64) -> (GradientsParams, PendingLoss) {
        let norm = self.pending.squares.clone().sqrt();
        // A norm of zero leaves zeros as they are.
        let factor = (norm + f32::MIN_POSITIVE).recip().mul_scalar(max_norm).clamp_max(1.0);
        model.visit(&mut Scale { grads: &mut self.grads, factor: Factor::PendingLoss(factor) });
        (self.grads, self.pending)
    }
}

/// The loss and the clipped gradients of a batch, and the norm that they had.
pub(crate) fn gradients(
    learner: &Learner<LanguageModel>,
    batch: &Batch,
    config: &RunConfig,
    step: usize,
) -> (StepOutput, GradientsParams, f64) {
    let step_gradients = compute(learner, batch, config, step);
    let (report, norm) = PendingLoss::read(std::slice::from_ref(&step_gradients.pending)).remove(0);
    let grads = step_gradients.clipped(&learner.model(), norm, config.train.grad_clip);
    (report, grads, norm)
}

/// A step whose numbers nobody has looked at, with its learning rate.
pub(crate) fn pending_step(
    learner: &mut Learner<LanguageModel>,
    batch: &Batch,
    config: &RunConfig,
    step: usize,
) -> (PendingLoss, f64) {
    let step_gradients = compute(learner, batch, config, step);
    let (grads, pending) = step_gradients.clipped_on_device(&learner.model(), config.train.grad_clip);
    (pending, update(learner, Some(grads)))
}

/// A step of the schedule and, if there are gradients, of the optimizer. Returns the learning rate.
pub(crate) fn update(learner: &mut Learner<LanguageModel>, grads: Option<GradientsParams>) -> f64 {
    learner.lr_step();
    if let Some(grads) = grads {
        learner.optimizer_step(grads);
    }
    learner.lr_current().base()
}

/// A learner at its first step.
pub(crate) fn learner(config: &RunConfig, device: &Device) -> Learner<LanguageModel> {
    let decoder = config.model.init(config.vocab_size, config.seed, config.kernels, device);
    learner_of(LanguageModel { decoder }, config, 0)
}

pub(crate) fn learner_of(model: LanguageModel, config: &RunConfig, step: usize) -> Learner<LanguageModel> {
    let optimizer = adamw(&config.train, config.kernels, &model);
    Learner::new(model, optimizer, Schedule { config: config.train.clone(), step })
}

/// A learner as it was at a checkpoint.
///
/// # Errors
/// In words: a checkpoint of another model.
pub(crate) fn resumed(
    config: &RunConfig,
    device: &Device,
    Checkpoint { model, optimizer, state }: Checkpoint,
) -> Result<Learner<LanguageModel>, String> {
    let fresh = learner(config, device).model();
    // Weights come back with the identities under which their moments are kept.
    let model = fresh.try_load_record(model).map_err(|error| format!("its weights are not the model's: {error}"))?;
    check_moments(&model, optimizer.clone(), state.step)?;
    let optimizer = OptimizerRecord::from_bytes(optimizer).map_err(|error| error.to_string())?;
    let mut learner = learner_of(model, config, state.step);
    learner.load_optim(optimizer);
    Ok(learner)
}

/// Refuses an optimizer's record that is not this model's to the last entry: burn would start the moments that it lacks anew
/// without a word, and panics at shapes that do not go together.
fn check_moments(model: &LanguageModel, record: Bytes, step: usize) -> Result<(), String> {
    let reader = Reader::from_bytes(record).map_err(|error| error.to_string())?;
    let scalars = reader.scalars().clone();
    let tensors = reader.into_tensors().map_err(|error| error.to_string())?;
    if let Some(tensor) = tensors.iter().find(|tensor| tensor.param_id.is_none() || tensor.dtype != DType::F32) {
        return Err(format!("its tensor {:?} is none of a parameter's", tensor.name));
    }
    let n_tensors = tensors.len();
    let tensors: BTreeMap<_, _> =
        tensors.into_iter().map(|tensor| (tensor.name, (tensor.shape, tensor.param_id))).collect();
    let mut moments = Moments { scalars, n_unknown: n_tensors - tensors.len(), tensors, step, wrong: None };
    model.visit(&mut moments);
    if let Some(wrong) = moments.wrong {
        return Err(wrong);
    }
    match moments.n_unknown + moments.tensors.len() + moments.scalars.len() {
        0 => Ok(()),
        n => Err(format!("it holds {n} values that are none of a parameter's")),
    }
}

/// Takes out the moments of each trained parameter.
struct Moments {
    tensors: BTreeMap<String, (Shape, Option<u64>)>,
    scalars: BTreeMap<String, Scalar>,
    n_unknown: usize,
    step: usize,
    wrong: Option<String>,
}

impl ModuleVisitor for Moments {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let id = param.id.val();
        let of_parameter = Some((param.val().shape(), Some(id)));
        let mut has_moment = |field| self.tensors.remove(&format!("{id}.momentum.{field}")) == of_parameter;
        let has_moments = [has_moment("moment_1"), has_moment("moment_2")] == [true, true];
        let mut number = |field| self.scalars.remove(&format!("{id}.{field}")).and_then(|n| usize::try_from(n).ok());
        let is_in_time = number("momentum.time").is_some_and(|time| (1..=self.step).contains(&time));
        if !has_moments || !is_in_time || number("__rank") != Some(D) {
            self.wrong = Some(format!("it lacks the moments of a parameter of shape {:?}", param.val().shape()));
        }
    }
}

struct Squares<'a> {
    grads: &'a GradientsParams,
    kernels: Kernels,
    sum: Option<Tensor<1>>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.get::<D>(param.id) else { return };
        let square = self.kernels.sum_of_squares(grad);
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + square,
            None => square,
        });
    }
}

struct Scale<'a> {
    grads: &'a mut GradientsParams,
    factor: Factor,
}

/// A number, or one on a device.
#[allow(clippy::large_enum_variant, reason = "there is one, for a moment")]
enum Factor {
    Number(f64),
    /// `[1]`
    PendingLoss(Tensor<1>),
}

impl ModuleVisitor for Scale<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            let scaled = match &self.factor {
                Factor::Number(factor) => grad * *factor,
                Factor::PendingLoss(factor) => grad * factor.clone().unsqueeze(),
            };
            self.grads.register(param.id, scaled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;
    use crate::config::tests::tiny;
    use crate::interrupted::alone;
    use burn::store::{ModuleSnapshot, SafetensorsStore};
    use data::Dataset;
    use model::named;
    use strum::VariantArray;

    fn on(config: &RunConfig, backend: Backend) -> Learner<LanguageModel> {
        learner(config, &backend.device().unwrap().autodiff())
    }

    /// One step of training, of a model without dropout; the loss and the norm of the gradient before it.
    fn step(learner: &mut Learner<LanguageModel>, batch: Batch, config: &RunConfig) -> (f64, f64) {
        let (report, grads, norm) = gradients(learner, &batch, config, 1);
        update(learner, Some(grads));
        (report.loss(), norm)
    }

    fn check_trajectory(backend: Backend, kernels: Kernels) {
        let mut config = RunConfig { kernels, ..tiny() };
        config.vocab_size = 11;
        config.model = model::ModelConfig {
            seq_len: 6,
            d_model: 8,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            d_ff: 6,
            ..config.model
        };
        let train =
            TrainConfig { steps: 10, warmup_steps: 3, lr: 2e-2, min_lr_factor: 0.1, grad_clip: 0.5, ..config.train };
        config.train = train;
        let mut learner = on(&config, backend);
        let mut model = learner.model();
        let start = "tests/fixtures/start.safetensors";
        model.decoder.load_from(&mut SafetensorsStore::from_file(start)).unwrap();
        learner.load_model(model.into_record());

        let lines: Vec<serde_json::Value> =
            serde_json::from_str(include_str!("../tests/fixtures/trajectory.json")).unwrap();
        for (i, line) in lines.iter().enumerate() {
            let rows: Vec<Vec<i32>> = serde_json::from_value(line["tokens"].clone()).unwrap();
            let part = |shift: usize| rows.iter().flat_map(|row| row[shift..shift + 6].to_vec()).collect();
            let batch = Batch { inputs: part(0), targets: part(1), batch: 2, seq: 6 };
            let (loss, norm) = step(&mut learner, batch, &config);
            for (got, key) in [(loss, "loss"), (norm, "grad_norm")] {
                let expected = line[key].as_f64().unwrap();
                assert!((got / expected - 1.0).abs() < 1e-5, "step {}, {key}: {got} against {expected}", i + 1);
            }
        }
    }

    #[test]
    fn ten_steps_are_pytorch_s() {
        for backend in [Backend::Flex, Backend::Ndarray] {
            if backend.require().is_ok() {
                Kernels::VARIANTS.iter().for_each(|&kernels| check_trajectory(backend, kernels));
            }
        }
    }

    #[test]
    fn steps_that_nobody_looks_at_are_the_same() {
        let mut config = tiny();
        (config.train.grad_clip, config.train.grad_accum_steps) = (0.5, 2);
        let data = Dataset::load(&config.data, config.model.seq_len).unwrap();
        let batch = |n| data.train_batch(0, n, config.train.batch_size);
        let (mut seen, mut unseen) = (on(&config, Backend::Flex), on(&config, Backend::Flex));
        let looked: Vec<(f64, f64)> = (1..=10).map(|n| step(&mut seen, batch(n), &config)).collect();
        let mut pending = vec![];
        for n in 1..=10 {
            pending.push(pending_step(&mut unseen, &batch(n), &config, n).0);
        }
        let read = PendingLoss::read(&pending);
        assert!(looked.iter().any(|(_, norm)| *norm > 0.5), "something is clipped: {looked:?}");
        for ((loss, norm), (report, norm_read)) in looked.into_iter().zip(read) {
            assert!((loss - report.loss()).abs() < 1e-5 && (norm - norm_read).abs() < 1e-4, "{loss} {}", report.loss());
        }
    }

    #[test]
    fn a_batch_in_parts_gives_the_same_steps() {
        let mut config = tiny();
        config.train = TrainConfig { batch_size: 12, ..config.train };
        let data = Dataset::load(&config.data, config.model.seq_len).unwrap();
        let train = |grad_accum_steps: usize| {
            let train = TrainConfig { grad_accum_steps, ..config.train.clone() };
            let config = RunConfig { train, ..config.clone() };
            let mut learner = on(&config, Backend::Flex);
            let batch = |n| data.train_batch(0, n, config.train.batch_size);
            (1..=10).flat_map(|n| <[f64; 2]>::from(step(&mut learner, batch(n), &config))).collect::<Vec<f64>>()
        };
        let whole = train(1);
        for parts in [2, 3, 12] {
            for (a, b) in whole.iter().zip(train(parts)) {
                assert!((a - b).abs() < 1e-5 * a, "{parts} parts: {a} {b}");
            }
        }
    }

    #[test]
    fn micro_batches_drop_what_their_batch_drops() {
        let _alone = alone();
        for &kernels in Kernels::VARIANTS {
            let mut config = RunConfig { kernels, ..tiny() };
            (config.train.batch_size, config.model.dropout) = (4, 0.3);
            let data = Dataset::load(&config.data, config.model.seq_len).unwrap();
            let first_step = |grad_accum_steps: usize, step: usize| {
                let train = TrainConfig { grad_accum_steps, ..config.train.clone() };
                let config = RunConfig { train, ..config.clone() };
                let learner = on(&config, Backend::Flex);
                let (report, grads, _) = gradients(&learner, &data.train_batch(0, 1, 4), &config, step);
                let grads = named(&learner.model().decoder, &grads).into_iter().filter_map(|param| param.grad);
                let grads: Vec<Vec<f32>> = grads.map(|grad| grad.into_data().try_into_vec().unwrap()).collect();
                (report.loss(), grads)
            };
            let (loss, grads) = first_step(1, 1);
            assert!((first_step(1, 2).0 / loss - 1.0).abs() > 1e-5, "another step drops something else");
            for n in [2, 4] {
                let (own_loss, own_grads) = first_step(n, 1);
                assert!((own_loss / loss - 1.0).abs() < 1e-6, "{n} micro-batches: {own_loss} against {loss}");
                for (own, whole) in own_grads.iter().zip(&grads) {
                    let largest = whole.iter().fold(1e-6f32, |largest, x| largest.max(x.abs()));
                    let apart = own.iter().zip(whole).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
                    assert!(apart < 1e-4 * largest, "{n} micro-batches: {apart} of {largest}");
                }
            }
        }
    }

    #[test]
    fn two_hundred_steps_are_those_of_burn_s_operations() {
        let train = TrainConfig { steps: 200, warmup_steps: 20, lr: 1e-3, ..tiny().train };
        let losses = |kernels| -> Vec<f64> {
            let config = RunConfig { kernels, train: train.clone(), ..tiny() };
            let mut learner = on(&config, Backend::Flex);
            let token = |i: i32| (i * i * 31 + i * 7) % 251;
            let batch = |n: i32| {
                let row = |from: i32| (from..from + 16).map(token);
                let rows = |shift| row(17 * n + shift).chain(row(5000 - n + shift)).collect();
                Batch { inputs: rows(0), targets: rows(1), batch: 2, seq: 16 }
            };
            (0..200).map(|n| step(&mut learner, batch(n % 20), &config).0).collect()
        };
        let (fused, plain) = (losses(Kernels::Fused), losses(Kernels::Plain));
        assert!(fused[199] < 0.8 * fused[0], "from {} to {}", fused[0], fused[199]);
        for (fused, plain) in fused.iter().zip(&plain) {
            assert!((fused / plain - 1.0).abs() < 1e-4, "{fused} against {plain}");
        }
    }

    #[test]
    fn sixty_four_tokens_can_be_learned_by_heart() {
        let mut config = tiny();
        config.model = model::ModelConfig { seq_len: 64, d_model: 32, d_ff: 64, ..config.model };
        config.train = TrainConfig { steps: 200, warmup_steps: 5, lr: 2e-2, min_lr_factor: 1.0, ..config.train };
        let mut learner = on(&config, Backend::Flex);
        let tokens: Vec<i32> = (0..65).map(|i: i32| (i * i * 31 + i * 7) % 251).collect();
        let batch = || Batch { inputs: tokens[..64].to_vec(), targets: tokens[1..].to_vec(), batch: 1, seq: 64 };
        let losses: Vec<f64> = (0..200).map(|_| step(&mut learner, batch(), &config).0).collect();
        assert!(losses[0] > 5.0 && losses[199] < 0.01, "from {} to {}", losses[0], losses[199]);
    }
}
