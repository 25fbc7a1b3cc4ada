//! Fixed-length windows: drawn at random for training, laid end to end for validation.

use random::{below, stream};

use crate::Dataset;

/// Windows of equal length; each target is the token after its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Token ids, `[batch, seq]` row by row.
    pub inputs: Vec<i32>,
    /// Token ids, `[batch, seq]` row by row.
    pub targets: Vec<i32>,
    pub batch: usize,
    pub seq: usize,
}

impl Batch {
    fn new(tokens: &[u32], starts: &[usize], seq: usize) -> Self {
        let rows = |shift: usize| {
            let ids = |start: &usize| tokens[start + shift..start + shift + seq].iter().map(|&id| id as i32);
            starts.iter().flat_map(ids).collect()
        };
        Batch { inputs: rows(0), targets: rows(1), batch: starts.len(), seq }
    }

    /// Tokens that are predicted.
    pub fn n_tokens(&self) -> usize {
        self.batch * self.seq
    }
}

impl Dataset {
    /// The training batch of a step: windows that start anywhere, a pure function of (`seed`, `step`).
    pub fn train_batch(&self, seed: u64, step: usize, batch_size: usize, seq_len: usize) -> Batch {
        let mut rng = stream(seed, &format!("batch/{step}"));
        let n_starts = (self.train.len() - seq_len) as u64;
        let starts: Vec<usize> = (0..batch_size).map(|_| below(&mut rng, n_starts) as usize).collect();
        Batch::new(&self.train, &starts, seq_len)
    }

    /// Batches that predict every token of the validation split once; the last window may be shorter.
    pub fn valid_batches(&self, batch_size: usize, seq_len: usize) -> Vec<Batch> {
        let n = self.valid.len() - 1;
        let whole: Vec<usize> = (0..n / seq_len).map(|window| window * seq_len).collect();
        let mut batches: Vec<Batch> =
            whole.chunks(batch_size).map(|starts| Batch::new(&self.valid, starts, seq_len)).collect();
        if !n.is_multiple_of(seq_len) {
            batches.push(Batch::new(&self.valid, &[n - n % seq_len], n % seq_len));
        }
        batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tokenizer, TokenizerKind};

    fn dataset(n_train: u32, n_valid: u32) -> Dataset {
        Dataset {
            tokenizer: Tokenizer::fit(TokenizerKind::Byte, &[]).unwrap(),
            sha256: String::new(),
            train: (0..n_train).collect(),
            valid: (0..=n_valid).collect(),
            valid_bytes: n_valid as usize,
            floor: None,
        }
    }

    #[test]
    fn targets_follow_inputs() {
        let batch = dataset(100, 1).train_batch(3, 5, 4, 7);
        assert_eq!((batch.batch, batch.seq, batch.inputs.len()), (4, 7, 28));
        assert!(batch.inputs.iter().zip(&batch.targets).all(|(input, target)| input + 1 == *target));
    }

    #[test]
    fn a_batch_depends_on_seed_and_step_alone() {
        let data = dataset(1000, 1);
        assert_eq!(data.train_batch(3, 5, 4, 7), data.train_batch(3, 5, 4, 7));
        assert_ne!(data.train_batch(3, 5, 4, 7), data.train_batch(3, 6, 4, 7));
        assert_ne!(data.train_batch(3, 5, 4, 7), data.train_batch(4, 5, 4, 7));
    }

    #[test]
    fn every_start_can_be_drawn() {
        let data = dataset(10, 1);
        let mut starts: Vec<i32> = (0..200).map(|step| data.train_batch(0, step, 1, 7).inputs[0]).collect();
        starts.sort();
        starts.dedup();
        assert_eq!(starts, [0, 1, 2]);
    }

    #[test]
    fn each_validation_token_is_predicted_once_at_any_batch_size() {
        for n in [1, 6, 7, 8, 50] {
            for batch_size in [1, 3, 64] {
                let batches = dataset(10, n).valid_batches(batch_size, 7);
                let targets: Vec<i32> = batches.iter().flat_map(|batch| batch.targets.clone()).collect();
                assert_eq!(targets, (1..=n as i32).collect::<Vec<_>>());
            }
        }
    }
}
