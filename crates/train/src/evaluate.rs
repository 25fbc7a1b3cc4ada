//! Loss on the whole validation split.

use data::Dataset;
use model::Units;

use crate::learner::{LanguageModel, StepOutput};

/// Windows in an evaluation batch, at the context lengths of small models. It does not change the result.
pub const BATCH_SIZE: usize = 16;

/// Predicts every token of the validation split that counts once, on `model` as it is for inference; `None` if it is asked to
/// stop before that. Adds the units that are active, if they are asked for.
pub(crate) fn evaluate(
    model: &LanguageModel,
    data: &Dataset,
    batch_size: usize,
    mut units: Option<&mut Units>,
    should_stop: impl Fn() -> bool,
) -> Option<StepOutput> {
    let mut whole = StepOutput::default();
    for batch in data.valid_batches(batch_size) {
        if should_stop() {
            return None;
        }
        let part = model.evaluate(batch, units.as_deref_mut());
        whole.nats += part.nats;
        whole.n_tokens += part.n_tokens;
        for (class, (nats, n_tokens)) in part.classes {
            let sum = whole.classes.entry(class).or_default();
            *sum = (sum.0 + nats, sum.1 + n_tokens);
        }
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::tiny;
    use burn::module::{Module, ModuleMapper, Param};
    use burn::tensor::{Device, Int, Tensor, TensorData};
    use data::{DataConfig, Dataset, Scored};

    fn model() -> LanguageModel {
        let config = tiny();
        LanguageModel { decoder: config.model.init(config.vocab_size, 0, config.kernels, &Device::flex()) }
    }

    fn dataset(corpus: &str, seq_len: usize) -> Dataset {
        Dataset::load(&DataConfig { corpus: corpus.into(), tokenizer: tiny().data.tokenizer }, seq_len).unwrap()
    }

    /// Negative log-likelihood of the targets that count, window by window, with a softmax in f64.
    fn naive(model: &LanguageModel, data: &Dataset) -> f64 {
        let mut nats = 0.0;
        for batch in data.valid_batches(1) {
            let seq = batch.windows.seq;
            let inputs = TensorData::new(batch.windows.inputs, [1, seq]);
            let logits = model.decoder.forward(Tensor::<2, Int>::from_data(inputs, &Device::flex()));
            let logits = logits.into_data().convert::<f64>().try_into_vec::<f64>().unwrap();
            for ((row, target), scored) in logits.chunks(256).zip(batch.windows.targets).zip(batch.scored) {
                if scored != Scored::No {
                    let highest = row.iter().copied().fold(f64::MIN, f64::max);
                    let sum: f64 = row.iter().map(|logit| (logit - highest).exp()).sum();
                    nats += sum.ln() + highest - row[target as usize];
                }
            }
        }
        nats
    }

    #[test]
    fn the_loss_depends_on_no_batch_size_and_is_the_naive_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("text.txt"), "A text of some length. ".repeat(300)).unwrap();
        for data in [dataset(dir.path().to_str().unwrap(), 16), dataset("facts-40", 64), dataset("facts-40", 128)] {
            let model = model();
            let expected = naive(&model, &data);
            for batch_size in [1, 7, 64] {
                let report = evaluate(&model, &data, batch_size, None, || false).unwrap();
                assert_eq!(report.n_tokens, data.n_valid());
                assert!((report.nats / expected - 1.0).abs() < 1e-6, "{} against {expected}", report.nats);
                if let Some(account) = &data.account {
                    let nats: f64 = report.classes.values().map(|(nats, _)| nats).sum();
                    assert!((nats / report.nats - 1.0).abs() < 1e-12);
                    for (class, (_, n)) in &report.classes {
                        assert_eq!(*n, account.classes[class].n_tokens);
                    }
                }
            }
        }
    }

    #[test]
    fn a_model_that_knows_nothing_is_as_perplexed_as_its_vocabulary_is_large() {
        struct Zero;
        impl ModuleMapper for Zero {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                param.map(|tensor| tensor.zeros_like())
            }
        }
        let report = evaluate(&model().map(&mut Zero), &dataset("facts-40", 128), BATCH_SIZE, None, || false).unwrap();
        assert!((report.loss().exp() - 256.0).abs() < 1e-3, "{}", report.loss().exp());
    }
}
