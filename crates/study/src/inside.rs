//! What the measures of a probe are called and say, and what runs have of them.

use model::{Measure, Place};
use train::ProbeLine;

use crate::results::RunResult;

/// What a measure shows, and how its axis is called.
pub(crate) struct About {
    pub(crate) group: &'static str,
    pub(crate) title: &'static str,
    pub(crate) text: &'static str,
    pub(crate) y_label: &'static str,
}

pub(crate) fn about(measure: Measure) -> About {
    use Measure::*;
    const GRADIENTS: &str = "Gradients and updates";
    const STREAM: &str = "Residual stream";
    const UNITS: &str = "Feed-forward units";
    const NORMS: &str = "Norms";
    const BATCHES: &str = "BatchNorm";
    const ATTENTION: &str = "Attention and logits";
    let (group, title, text, y_label) = match measure {
        GradAttn => (GRADIENTS, "Gradient of attention", "L2 norm over the four matrices of a block.", "L2 norm"),
        GradFfn => (GRADIENTS, "Gradient of the feed-forward", "L2 norm over the matrices of a block.", "L2 norm"),
        GradDown => (
            GRADIENTS,
            "Gradient of the feed-forward's last matrix",
            "L2 norm over that of each block. With Xavier's initialization the last block's is, at step 0, the same at any depth with Post-Norm, \
             and falls as 1 over the root of the depth with Pre-Norm (Xiong et al., 2020).",
            "L2 norm",
        ),
        UpdateAttn => (
            GRADIENTS,
            "Update of attention",
            "Length of the change by the last step, over the length of the matrices; it goes with the learning rate.",
            "ratio",
        ),
        UpdateFfn => (GRADIENTS, "Update of the feed-forward", "The same of its matrices.", "ratio"),
        StreamRms => (STREAM, "Size of the stream", "Root mean square of a token's vector.", "root mean square"),
        StreamCosine => (
            STREAM,
            "Cosine across a block",
            "Between a token's vectors before a block and after it. Near 1: the block hardly turns the stream.",
            "cosine",
        ),
        Contribution => (
            STREAM,
            "Contribution of a block",
            "Length of what a block changes over the length of what it is given.",
            "ratio",
        ),
        EffectiveRank => (
            STREAM,
            "Effective rank of the stream (participation ratio)",
            "Directions that tokens spread in, by the participation ratio of their covariance: 1 is a line, d_model all alike.",
            "directions",
        ),
        DropLoss => (
            STREAM,
            "Loss without a block",
            "What is lost where a block is left out. Near 0: the model hardly uses it.",
            "nats per token more",
        ),
        NeverActive => (
            UNITS,
            "Units never active",
            "Units whose activation is given no positive number at any token; of a gated feed-forward, the gate's. A ReLU is not trained there; \
             others have a slope below zero.",
            "share of units",
        ),
        Dead => (
            UNITS,
            "Dead units",
            "The same at any token of the whole validation split, after the last step.",
            "share of units",
        ),
        Revived => (
            UNITS,
            "Revived units",
            "Units that were never active at the previous probe and are active again, as a share of the former; they may be few.",
            "share of silent units",
        ),
        Active => (
            UNITS,
            "Active units by token",
            "Pairs of token and unit at which that number is positive.",
            "share of pairs",
        ),
        Saturated => (
            UNITS,
            "Saturated units by token",
            "Pairs at which the activation's slope is below 0.005 in size: next to no gradient passes through it.",
            "share of pairs",
        ),
        TanhR2 => (
            NORMS,
            "Norm as a tanh",
            "R2 of the best a tanh(b x) to what a norm makes of the numbers it is given, before gain and bias: the S-curve of DyT.",
            "R2",
        ),
        LineR2 => (NORMS, "Norm as a line", "R2 of the best line through the origin to the same pairs.", "R2"),
        InverseStd => (
            NORMS,
            "1 over the spread of a norm's input",
            "1 over the standard deviation of all numbers that a norm is given: what DyT's alpha is said to follow.",
            "1 / standard deviation",
        ),
        Alpha => (NORMS, "DyT's alpha", "One for each site.", "alpha"),
        OnesShare => (
            NORMS,
            "Share of a norm's input along ones",
            "Of a token's squared length, along the vector of ones: all that re-centering takes away.",
            "share",
        ),
        RunningMean => (
            BATCHES,
            "BatchNorm's running means",
            "Distance of the batch's means from the running ones, in running standard deviations.",
            "standard deviations",
        ),
        RunningVariance => (
            BATCHES,
            "BatchNorm's running variances",
            "Size of the logarithm of the batch's variances over the running ones.",
            "log ratio",
        ),
        EvalLoss => (BATCHES, "Loss by running statistics", "As at evaluation.", "nats per token"),
        TrainLoss => (
            BATCHES,
            "Loss by batch statistics",
            "As in training, on the same windows in batches of so many.",
            "nats per token",
        ),
        MateEffect => (
            BATCHES,
            "Effect of batch mates",
            "How far a token's loss moves when half of the windows in its batch are others. 0 for any norm that uses one token alone.",
            "nats per token",
        ),
        AttnEntropy => (
            ATTENTION,
            "Entropy of attention",
            "Of each head's weights, averaged over queries; the heads of block 1 come first.",
            "nats",
        ),
        LogitStd => (ATTENTION, "Spread of logits", "Standard deviation over the vocabulary.", "logits"),
    };
    About { group, title, text, y_label }
}

/// Of the values that there are.
fn mean(values: &[Option<f64>]) -> Option<f64> {
    let finite: Vec<f64> = values.iter().copied().flatten().collect();
    (!finite.is_empty()).then(|| finite.iter().sum::<f64>() / finite.len() as f64)
}

/// Lines of a run in which a measure has a value.
pub(crate) fn lines(
    run: &RunResult,
    measure: Measure,
) -> impl DoubleEndedIterator<Item = (&ProbeLine, &Vec<Option<f64>>)> {
    run.probes.iter().filter_map(move |line| Some((line, line.values.get(&measure)?)))
}

/// What a run that is done has of a measure after its last step.
pub(crate) fn last(run: &RunResult, measure: Measure) -> Option<&Vec<Option<f64>>> {
    let step = run.last()?.step;
    lines(run, measure).next_back().filter(|(line, _)| line.step == step).map(|(_, values)| values)
}

/// One number for all places: their mean, or that of the largest batch.
pub(crate) fn of_all_places(measure: Measure, values: &[Option<f64>]) -> Option<f64> {
    match measure.place() {
        Place::BatchSize => *values.last()?,
        _ => mean(values),
    }
}

/// One number for what a run that is done has of a measure after its last step.
pub(crate) fn in_run(run: &RunResult, measure: Measure) -> Option<f64> {
    of_all_places(measure, last(run, measure)?)
}
