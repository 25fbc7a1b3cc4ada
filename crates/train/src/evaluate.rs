//! Loss on the whole validation split.

use burn::train::InferenceStep;
use data::Dataset;

use crate::RunConfig;
use crate::learner::{LanguageModel, Report};

/// Windows in an evaluation batch, at the context lengths of small models. It does not change the result.
const BATCH_SIZE: usize = 16;

/// Predicts every token of the validation split once, on `model` as it is for inference.
pub(crate) fn evaluate(model: &LanguageModel, data: &Dataset, config: &RunConfig) -> Report {
    let mut whole = Report::default();
    for batch in data.valid_batches(BATCH_SIZE, config.model.seq_len) {
        let part = InferenceStep::step(model, batch);
        whole.nats += part.nats;
        whole.n_tokens += part.n_tokens;
    }
    whole
}
