//! Fixed-length windows: drawn at random for training, fixed for validation.

use random::{below, stream};

use crate::Dataset;
use crate::dataset::Windows;
use crate::document::Class;
use crate::tokens::Tokens;

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

/// A batch of the validation split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidBatch {
    pub windows: Batch,
    /// For each target, `[batch, seq]` row by row, whether and as what it counts. The others are the beginning of a document
    /// that counts in the next window.
    pub scored: Vec<Scored>,
}

/// How a target of a validation window counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scored {
    No,
    Yes,
    /// Yes, and for its class too.
    As(Class),
}

impl Batch {
    fn new(tokens: &Tokens, starts: &[usize], seq: usize) -> Self {
        let rows = |shift: usize| {
            let ids = |start: &usize| tokens.get(start + shift..start + shift + seq).map(|id| id as i32);
            starts.iter().flat_map(ids).collect()
        };
        Batch { inputs: rows(0), targets: rows(1), batch: starts.len(), seq }
    }

    /// The same windows in `n` batches, which must divide their number.
    pub fn split(&self, n: usize) -> impl Iterator<Item = Batch> {
        let batch = self.batch / n;
        let rows = move |ids: &[i32], i: usize| ids[i * batch * self.seq..(i + 1) * batch * self.seq].to_vec();
        let part =
            move |i| Batch { inputs: rows(&self.inputs, i), targets: rows(&self.targets, i), batch, seq: self.seq };
        (0..n).map(part)
    }

    /// Tokens that are predicted.
    pub fn n_tokens(&self) -> usize {
        self.batch * self.seq
    }
}

impl Dataset {
    /// The training batch of a step, a pure function of (`seed`, `step`): windows that start anywhere or, where the text is
    /// generated, at the start of a document.
    pub fn train_batch(&self, seed: u64, step: usize, batch_size: usize) -> Batch {
        Batch::new(&self.train, &self.train_starts(seed, step, batch_size), self.seq_len)
    }

    /// The training tokens at which the windows of a step's batch start.
    pub fn train_starts(&self, seed: u64, step: usize, batch_size: usize) -> Vec<usize> {
        let mut rng = stream(seed, &format!("batch/{step}"));
        let mut start = || match &self.starts {
            None => below(&mut rng, (self.train.len() - self.seq_len) as u64) as usize,
            Some(starts) => starts[below(&mut rng, starts.len() as u64) as usize] as usize,
        };
        (0..batch_size).map(|_| start()).collect()
    }

    /// Batches that predict every token of the validation split once, but for the ends of generated documents that are
    /// longer than a window. The last windows may be shorter.
    pub fn valid_batches(&self, batch_size: usize) -> impl Iterator<Item = ValidBatch> {
        let mut rest = self.valid_windows().peekable();
        std::iter::from_fn(move || {
            let mut windows = vec![rest.next()?];
            let seq = self.length(windows[0]);
            while windows.len() < batch_size {
                let Some(next) = rest.next_if(|&next| self.length(next) == seq) else { break };
                windows.push(next);
            }
            let starts: Vec<usize> = windows.iter().map(|&(start, _)| start).collect();
            let scored = windows.iter().flat_map(|&(start, n)| (0..seq).map(move |i| self.scored(start + i, i < n)));
            Some(ValidBatch { windows: Batch::new(&self.valid, &starts, seq), scored: scored.collect() })
        })
    }

    /// (start, targets that count) of each window.
    fn valid_windows(&self) -> Box<dyn Iterator<Item = (usize, usize)> + '_> {
        let n = self.valid.len() - 1;
        match &self.windows {
            Windows::All => Box::new((0..n).step_by(self.seq_len).map(move |start| (start, n - start))),
            Windows::Documents(windows) => Box::new(windows.iter().copied()),
        }
    }

    /// Targets of a window.
    fn length(&self, (start, _): (usize, usize)) -> usize {
        self.seq_len.min(self.valid.len() - 1 - start)
    }

    fn scored(&self, target: usize, counts: bool) -> Scored {
        match self.marks.get(target) {
            _ if !counts => Scored::No,
            None => Scored::Yes,
            Some(mark) => Scored::As(mark.class),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataConfig, TokenizerKind};
    use std::fs;

    const SEQ_LEN: usize = 7;

    /// `n_train` and `n_valid` bytes of running text; training bytes count up, so each tells its place.
    fn running(n_train: u8, n_valid: u8) -> Dataset {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("train.txt"), (0..n_train).collect::<Vec<u8>>()).unwrap();
        fs::write(dir.path().join("valid.txt"), (0..n_valid).collect::<Vec<u8>>()).unwrap();
        let corpus = dir.path().to_str().unwrap().to_string();
        Dataset::load(&DataConfig { corpus, tokenizer: TokenizerKind::Byte }, SEQ_LEN).unwrap()
    }

    fn generated(corpus: &str, tokenizer: &str, seq_len: usize) -> Dataset {
        Dataset::load(&DataConfig { corpus: corpus.into(), tokenizer: tokenizer.parse().unwrap() }, seq_len).unwrap()
    }

    /// Targets that count, in order.
    fn scored(data: &Dataset, batch_size: usize) -> Vec<i32> {
        let batches = data.valid_batches(batch_size);
        let counted = batches.flat_map(|ValidBatch { windows, scored }| {
            windows.targets.into_iter().zip(scored).filter(|(_, scored)| *scored != Scored::No)
        });
        counted.map(|(target, _)| target).collect()
    }

    #[test]
    fn targets_follow_inputs() {
        let batch = running(100, 1).train_batch(3, 5, 4);
        assert_eq!((batch.batch, batch.seq, batch.inputs.len()), (4, SEQ_LEN, 28));
        assert!(batch.inputs.iter().zip(&batch.targets).all(|(input, target)| input + 1 == *target));
    }

    #[test]
    fn a_batch_depends_on_seed_and_step_alone() {
        let data = running(250, 1);
        assert_eq!(data.train_batch(3, 5, 4), data.train_batch(3, 5, 4));
        assert_ne!(data.train_batch(3, 5, 4), data.train_batch(3, 6, 4));
        assert_ne!(data.train_batch(3, 5, 4), data.train_batch(4, 5, 4));
    }

    #[test]
    fn every_start_can_be_drawn() {
        let data = running(10, 1);
        let mut starts: Vec<i32> = (0..200).map(|step| data.train_batch(0, step, 1).inputs[0]).collect();
        starts.sort();
        starts.dedup();
        assert_eq!(starts, [0, 1, 2]);
    }

    #[test]
    fn each_token_of_running_text_is_scored_once_at_any_batch_size() {
        for n in [1, 6, 7, 8, 50] {
            for batch_size in [1, 3, 64] {
                assert_eq!(scored(&running(20, n), batch_size), (0..i32::from(n)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn training_windows_of_stories_start_at_their_starts() {
        for tokenizer in ["byte", "bpe-400"] {
            let data = generated("tales", tokenizer, 48);
            let whole = data.tokenizer.encode("\n").unwrap();
            for step in 0..50 {
                let batch = data.train_batch(0, step, 4);
                for row in batch.inputs.chunks(batch.seq) {
                    assert_eq!(row[0] as u32, whole[0], "{tokenizer}");
                    let text =
                        data.tokenizer.decode(&row[1..].iter().map(|&id| id as u32).collect::<Vec<_>>()).unwrap();
                    assert!(text.starts_with(|c: char| c.is_uppercase()), "{tokenizer}: {text}");
                }
            }
        }
    }

    #[test]
    fn stories_are_scored_once_and_from_their_starts() {
        let data = generated("tales", "byte", 128);
        let text = String::from_utf8(scored(&data, 16).iter().map(|&id| id as u8).collect()).unwrap();
        let whole = String::from_utf8(data.valid.get(1..data.valid.len()).map(|id| id as u8).collect()).unwrap();
        // Of a story that is longer than a window, the end is left out.
        let expected: String = whole.split_inclusive('\n').map(|story| &story[..story.len().min(128)]).collect();
        assert!(text == expected);
        assert!(text.len() as f64 > 0.97 * whole.len() as f64, "{} of {}", text.len(), whole.len());
        assert_eq!((text.len(), Some(text.len())), (data.n_valid(), data.valid_bytes));
        for batch_size in [1, 7] {
            assert_eq!(scored(&data, batch_size), scored(&data, 16));
        }
    }

    #[test]
    fn the_floor_is_that_of_what_is_scored() {
        // Windows that hold every story whole: the floor is that of the text, however it is cut into tokens.
        let nats = |tokenizer: &str| {
            let data = generated("tales", tokenizer, 512);
            let account = data.account.as_ref().unwrap();
            let classes = account.classes.values().map(|class| class.floor * class.n_tokens as f64).sum::<f64>();
            let nats = account.floor * data.n_valid() as f64;
            assert!((nats - classes).abs() < 1e-6);
            (nats, account.classes.keys().copied().collect::<Vec<Class>>(), data.valid_bytes)
        };
        let char = nats("char");
        assert_eq!(char.1.len(), 5);
        for tokenizer in ["bpe-500", "gpt2"] {
            let other = nats(tokenizer);
            assert!((char.0 - other.0).abs() < 1e-6, "{tokenizer}: {} against {}", char.0, other.0);
            assert_eq!((&char.1, char.2), (&other.1, other.2), "{tokenizer}");
        }
    }

    #[test]
    fn facts_are_counted_alike_with_every_tokenizer() {
        for tokenizer in ["char", "byte", "bpe-700", "gpt2"] {
            let account = |seq_len| generated("facts-50", tokenizer, seq_len).account.unwrap();
            let whole = account(128);
            assert!((whole.fact_nats.unwrap() - 50.0 * 5.0 * 32f64.ln()).abs() < 1e-9, "{tokenizer}");
            assert_eq!(
                whole.classes.keys().copied().collect::<Vec<_>>(),
                [Class::Syntax, Class::FirstMention, Class::Fact]
            );
            assert!(whole.classes[&Class::Fact].n_tokens >= 250, "{tokenizer}: {whole:?}");
        }
        // Cut off after 20 characters, most documents have one fact or none.
        let cut = generated("facts-50", "char", 20).account.unwrap();
        assert!(cut.fact_nats.unwrap_or(0.0) < 30.0 * 32f64.ln(), "{cut:?}");
    }
}
