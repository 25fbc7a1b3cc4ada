//! What is measured, and where.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// One number for each place of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray, IntoStaticStr, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Measure {
    /// L2 norm of the loss's gradient in the matrices of a block's attention; the loss is the mean of all tokens of the probe.
    GradAttn,
    /// The same in the matrices of its feed-forward.
    GradFfn,
    /// The same in the last matrix of its feed-forward, whose gradient at the start Xiong et al., 2020, derive.
    GradDown,
    /// |dW| / |W| of the last step, L2 norms over the matrices of a block's attention.
    UpdateAttn,
    /// The same of the feed-forward.
    UpdateFfn,
    /// Root of the mean square of a token's vector, averaged over tokens.
    StreamRms,
    /// Cosine between a token's vectors in front of a block and behind it, averaged over tokens.
    StreamCosine,
    /// Length of what a block changes of a token's vector over the vector's length in front of it, averaged over tokens.
    Contribution,
    /// The participation ratio (Gao et al., 2017): (sum of l)^2 / (sum of l^2) over the eigenvalues l of the covariance of the tokens'
    /// vectors. 1 where all lie on a line, d_model where they spread alike in all directions.
    EffectiveRank,
    /// What the loss gains where a block is left out, in nats per token.
    DropLoss,
    /// Share of a feed-forward's units whose activation is given a positive number at no token of the probe. A ReLU is not trained there.
    NeverActive,
    /// The same at no token of the whole validation split, after the last step.
    Dead,
    /// Of the units that were never active at the last look, the share that are active now.
    Revived,
    /// Share of pairs of token and unit at which that number is positive.
    Active,
    /// Share of them at which the activation's slope is below 0.005 in size, so that next to no gradient passes through it.
    Saturated,
    /// Of pairs (x, y) of what a norm is given and what it makes of it before gain and bias: R^2 of the best y = a tanh(b x).
    TanhR2,
    /// R^2 of the best y = a x.
    LineR2,
    /// 1 over the standard deviation of all numbers that a norm is given.
    InverseStd,
    /// DyT's alpha.
    Alpha,
    /// Share of a token's squared length along the vector of ones, which re-centering removes, averaged over tokens.
    OnesShare,
    /// BatchNorm: distance of the running mean from the batch's in running standard deviations, averaged over features.
    RunningMean,
    /// BatchNorm: |ln| of the batch's variance over the running one, averaged over features.
    RunningVariance,
    /// BatchNorm: loss by the running statistics, as at evaluation.
    EvalLoss,
    /// BatchNorm: loss by the statistics of batches of some windows, as in training.
    TrainLoss,
    /// BatchNorm: how far a token's loss moves when its window shares the batch with other windows, averaged over tokens, in nats.
    MateEffect,
    /// Entropy of a head's attention weights in nats, averaged over queries.
    AttnEntropy,
    /// Standard deviation of a token's logits over the vocabulary, averaged over tokens.
    LogitStd,
}

/// What the values of a measure are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// From 1.
    Block,
    /// The number of blocks before it: 0 is the embedding.
    Stream,
    /// Norms in the order of the forward pass, from 1: attention's and the feed-forward's of each block, then the final one.
    Norm,
    /// The heads of block 1, those of block 2, and so on, from 1.
    Head,
    /// Windows in a batch.
    BatchSize,
    /// There is one value.
    Whole,
}

/// Windows in a batch of BatchNorm's [`Measure::TrainLoss`].
pub(super) const BATCH_SIZES: [usize; 4] = [1, 2, 4, 8];

impl Place {
    /// The number of the i-th value.
    pub fn number(self, i: usize) -> usize {
        match self {
            Place::Block | Place::Norm | Place::Head => i + 1,
            Place::Stream | Place::Whole => i,
            Place::BatchSize => BATCH_SIZES.get(i).copied().unwrap_or(i),
        }
    }
}

impl Measure {
    pub fn place(self) -> Place {
        use Measure::*;
        match self {
            GradAttn | GradFfn | GradDown | UpdateAttn | UpdateFfn | StreamCosine | Contribution | DropLoss
            | NeverActive | Dead | Revived | Active | Saturated => Place::Block,
            StreamRms | EffectiveRank => Place::Stream,
            TanhR2 | LineR2 | InverseStd | Alpha | OnesShare | RunningMean | RunningVariance => Place::Norm,
            AttnEntropy => Place::Head,
            TrainLoss => Place::BatchSize,
            EvalLoss | MateEffect | LogitStd => Place::Whole,
        }
    }
}
