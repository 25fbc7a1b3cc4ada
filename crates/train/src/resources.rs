//! What a run needs of its machine.

use kernels::Kernels;

use crate::RunConfig;
use crate::probe::N_WINDOWS;

const MIB: f64 = (1 << 20) as f64;

/// Of a corpus: its text, its tokens, and what is known of them.
const BYTES_OF_A_TOKEN: f64 = 9.0;

/// Of a line in `metrics.jsonl` and of an event for TensorBoard.
const BYTES_OF_A_STEP: f64 = 350.0;

impl RunConfig {
    /// Bytes of memory that a run's process holds at most on a CPU, with so many tokens of its corpus in memory: an estimate, within 30% for
    /// models and batches of every kind that were tried. The form follows from what a step keeps for its backward pass; the factors
    /// are least squares over the peaks of 41 runs from 76 MiB to 1.2 GiB, of widths from 32 to 512, contexts from 32 to 512 and
    /// vocabularies from 52 to 50,257.
    pub fn memory_bytes(&self, corpus_tokens: usize) -> f64 {
        let (model, train) = (&self.model, &self.train);
        let weights = model.budget(self.vocab_size).params.total() as f64;
        let part = train.batch_size / train.grad_accum_steps;
        // A look inside takes gradients of its windows at once.
        let windows = if self.probe.on { part.max(N_WINDOWS) } else { part };
        let tokens = (windows * model.seq_len) as f64;
        let in_layers = |width: usize| tokens * (model.n_layers * width) as f64;
        let gates = if model.ffn.is_gated() { 2 } else { 1 };
        let scores = in_layers(model.n_heads * model.seq_len);
        let mut numbers = 9.73 * weights
            + 10.9 * in_layers(model.d_model)
            + 5.7 * tokens * (gates * model.d_ff) as f64
            + 0.6 * scores
            + 0.36 * tokens * self.vocab_size as f64;
        if model.dropout > 0.0 && train.grad_accum_steps > 1 {
            // A micro-batch draws the mask of its whole batch, and keeps its own rows.
            let width = model.d_model.max(model.n_heads * model.seq_len);
            numbers += (train.batch_size * model.seq_len * width) as f64;
        }
        // What burn's own operations keep, and a fused one makes again.
        let is_plain = self.kernels == Kernels::Plain;
        if is_plain || model.dropout > 0.0 {
            numbers += 6.5 * scores;
        }
        if is_plain || model.dropout > 0.0 || model.bias {
            numbers += 1.1 * in_layers(gates * model.d_ff);
        }
        34.0 * MIB + BYTES_OF_A_TOKEN * corpus_tokens as f64 + 4.0 * numbers
    }

    /// What a run needs on the disk.
    pub fn disk_needs(&self) -> DiskNeeds {
        let weights = 4.0 * self.model.budget(self.vocab_size).params.total() as f64;
        // Weights and two moments.
        let checkpoint = 3.0 * weights;
        let kept = usize::from(self.checkpoint.keep_best) + usize::from(self.train.is_constant());
        let lines = BYTES_OF_A_STEP * self.train.steps as f64;
        // One more than what is kept, while it is written.
        let at_once = self.checkpoint.keep_last.min(self.train.steps.div_ceil(self.checkpoint.every)) + 1;
        DiskNeeds { kept: weights + checkpoint * kept as f64 + lines, meanwhile: checkpoint * at_once as f64 }
    }
}

/// Bytes on the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskNeeds {
    /// That stay.
    pub kept: f64,
    /// Of checkpoints while the run is on its way.
    pub meanwhile: f64,
}
