//! A corpus as tokens, ready to be cut into windows.

use serde::{Deserialize, Serialize};

use crate::corpus::Corpus;
use crate::{DataError, Tokenizer, TokenizerKind};

/// Which text, and how it becomes tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// An embedded corpus by name, or the path of a UTF-8 text file.
    pub corpus: String,
    pub tokenizer: TokenizerKind,
}

/// The two parts of a corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    Train,
    Valid,
}

/// A tokenized corpus.
pub struct Dataset {
    pub tokenizer: Tokenizer,
    pub sha256: String,
    pub train: Vec<u32>,
    /// The validation split behind one token of context, the last of training: so each of its tokens is predicted once.
    pub valid: Vec<u32>,
    /// UTF-8 bytes of the validation split.
    pub valid_bytes: usize,
    /// Loss on the validation split in nats per token of a model that knew how the text was made, where that is known.
    pub floor: Option<f64>,
}

impl Dataset {
    /// Reads and tokenizes a corpus whose windows will hold `seq_len` tokens.
    ///
    /// # Errors
    /// A corpus that cannot be read or is shorter than one window.
    pub fn load(config: &DataConfig, seq_len: usize) -> Result<Self, DataError> {
        let corpus = Corpus::open(&config.corpus)?;
        let tokenizer = Tokenizer::fit(config.tokenizer, &[&corpus.train, &corpus.valid])?;
        let train = tokenizer.encode(&corpus.train)?;
        let scored = tokenizer.encode(&corpus.valid)?;
        if train.len() < seq_len + 1 {
            return Err(DataError::TooShort { corpus: corpus.name, tokens: train.len(), needed: seq_len + 1 });
        }
        let floor = corpus.valid_nats.map(|nats| nats / scored.len() as f64);
        let valid = train.last().copied().into_iter().chain(scored).collect();
        Ok(Dataset { tokenizer, sha256: corpus.sha256, train, valid, valid_bytes: corpus.valid.len(), floor })
    }
}
