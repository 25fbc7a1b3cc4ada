//! A corpus as tokens, ready to be cut into windows.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};

use serde::{Deserialize, Serialize};

use crate::corpus::{Corpus, Parts};
use crate::document::{Class, Document, Mark};
use crate::facts::NATS_PER_FACT;
use crate::tokens::Tokens;
use crate::{DataError, Tokenizer, TokenizerKind};

/// Which text, and how it becomes tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// A generated or fetched corpus by name, or the path of a text file, of a folder of text files, or of token files.
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

impl Display for Split {
    fn fmt(&self, f: &mut Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Split::Train => "train",
            Split::Valid => "valid",
        })
    }
}

/// A tokenized corpus, and the length of the windows that are cut from it.
pub struct Dataset {
    pub tokenizer: Tokenizer,
    pub seq_len: usize,
    /// Of the corpus, in hexadecimal.
    pub sha256: String,
    /// How the corpus was parted, in words.
    pub split: &'static str,
    pub(crate) train: Tokens,
    /// Where training windows can start, if not anywhere: one token before each document.
    pub(crate) starts: Option<Vec<u32>>,
    /// The validation split behind one token of context.
    pub(crate) valid: Tokens,
    pub(crate) windows: Windows,
    /// What is known of the validation tokens, the one of context left out; empty for a text that nobody generated.
    pub(crate) marks: Vec<Mark>,
    /// Bytes of the training text, where they are known.
    pub train_bytes: Option<usize>,
    /// Bytes of the validation text that is scored.
    pub valid_bytes: usize,
    /// What is known of how the text was made.
    pub account: Option<Account>,
}

/// Where validation windows lie.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Windows {
    /// End to end.
    All,
    /// As many whole documents as fit, from the start of one: (start, tokens to score).
    Documents(Vec<(usize, usize)>),
}

/// What the generator of a text knows about the validation tokens that are scored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Loss in nats per token of a model that knew how the text was made: none can expect a lower one.
    pub floor: f64,
    pub classes: BTreeMap<Class, ClassAccount>,
    /// Nats that the facts hold for one who knows only what could be said: of `facts`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fact_nats: Option<f64>,
}

/// The tokens of one class. A token belongs to the class of its first character.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassAccount {
    pub n_tokens: usize,
    /// Nats per token.
    pub floor: f64,
}

impl Dataset {
    /// Reads and tokenizes a corpus whose windows will hold `seq_len` tokens.
    ///
    /// # Errors
    /// A corpus that cannot be read, does not go with the tokenizer, or is shorter than one window.
    pub fn load(config: &DataConfig, seq_len: usize) -> Result<Self, DataError> {
        let corpus = Corpus::open(&config.corpus)?;
        corpus.check_text(&config.tokenizer)?;
        let Corpus { name, sha256, split, parts } = corpus;
        let dataset = match parts {
            Parts::Documents { train, valid } => Self::of_documents(&train, &valid, &config.tokenizer, seq_len)?,
            Parts::Text { train, valid } => {
                let tokenizer = Tokenizer::fit(&config.tokenizer, &train, &valid)?;
                let text_bytes = train.len();
                let (train, scored) = (tokenizer.tokens(&train)?, tokenizer.tokens(&valid)?);
                let train_bytes = Some(text_bytes);
                Dataset { train_bytes, ..Self::plain(tokenizer, seq_len, train, scored, valid.len()) }
            }
            Parts::Tokens(folder) => {
                let tokenizer = folder.tokenizer(&config.tokenizer)?;
                let (train_bytes, valid_bytes) = (folder.train_bytes(), folder.valid_bytes(&tokenizer)?);
                Dataset { train_bytes, ..Self::plain(tokenizer, seq_len, folder.train, folder.valid, valid_bytes) }
            }
        };
        let dataset = Dataset { sha256, split, ..dataset };
        if dataset.train.len() < seq_len + 1 || dataset.starts.as_ref().is_some_and(Vec::is_empty) {
            return Err(DataError::TooShort { corpus: name, tokens: dataset.train.len(), needed: seq_len + 1 });
        }
        Ok(dataset)
    }

    /// Running text: windows start anywhere in training, and lie end to end in validation. The last token of training is the
    /// context of the first of validation, so that each of these is predicted once.
    fn plain(tokenizer: Tokenizer, seq_len: usize, train: Tokens, scored: Tokens, valid_bytes: usize) -> Self {
        let valid = scored.behind(train.get(train.len() - 1..train.len()).next().expect("no corpus is empty"));
        Dataset {
            tokenizer,
            seq_len,
            sha256: String::new(),
            split: "",
            train,
            starts: None,
            valid,
            windows: Windows::All,
            marks: vec![],
            train_bytes: None,
            valid_bytes,
            account: None,
        }
    }

    fn of_documents(
        train: &[Document],
        valid: &[Document],
        kind: &TokenizerKind,
        seq_len: usize,
    ) -> Result<Self, DataError> {
        let joined =
            |documents: &[Document]| documents.iter().map(|document| document.text.as_str()).collect::<String>();
        let (train_text, valid_text) = (joined(train), joined(valid));
        let tokenizer = Tokenizer::fit(kind, train_text.as_bytes(), valid_text.as_bytes())?;
        let vocab_size = tokenizer.vocab_size();
        // All documents end alike, so the end of one is the context of the next.
        let context = *tokenizer.encode(&train[0].text)?.last().expect("a document is not empty");

        let mut ids = vec![context];
        let mut starts = vec![];
        for document in train {
            starts.push(ids.len() as u32 - 1);
            ids.extend(tokenizer.encode(&document.text)?);
        }
        starts.retain(|&start| start as usize + seq_len < ids.len());
        let train = Tokens::new(&ids, vocab_size);

        let mut ids = vec![context];
        let (mut marks, mut ends) = (vec![], vec![]);
        for document in valid {
            let mut start = 0;
            for (id, end) in tokenizer.encode_with_ends(&document.text)? {
                // A tokenizer from elsewhere may give a token no text of its own.
                let end = end.clamp(start, document.marks.len());
                let first = document.marks[start.min(document.marks.len() - 1)];
                let nats = document.marks[start..end].iter().map(|mark| mark.nats).sum();
                ids.push(id);
                marks.push(Mark { class: first.class, nats });
                start = end;
            }
            ends.push(ids.len() - 1);
        }
        let windows = whole_documents(&ends, seq_len);
        let valid = Tokens::new(&ids, vocab_size);
        let scored = || windows.iter().flat_map(|&(start, n)| start..start + n);
        let valid_bytes = tokenizer.n_bytes(&scored().map(|i| ids[i + 1]).collect::<Vec<u32>>())?;
        let account = Account::of(scored().map(|i| marks[i]));
        let plain = Self::plain(tokenizer, seq_len, train, valid.clone(), valid_bytes);
        Ok(Dataset {
            starts: Some(starts),
            valid,
            windows: Windows::Documents(windows),
            marks,
            account: Some(account),
            train_bytes: Some(train_text.len()),
            ..plain
        })
    }

    /// Tokens of the training split.
    pub fn n_train(&self) -> usize {
        self.train.len()
    }

    /// The text of the first `n` tokens of the training split.
    ///
    /// # Errors
    /// A tokenizer that cannot tell.
    pub fn beginning(&self, n: usize) -> Result<String, DataError> {
        self.tokenizer.decode(&self.train.get(0..n.min(self.train.len())).collect::<Vec<u32>>())
    }

    /// Tokens of the validation split that are scored.
    pub fn n_valid(&self) -> usize {
        match &self.windows {
            Windows::All => self.valid.len() - 1,
            Windows::Documents(windows) => windows.iter().map(|&(_, n)| n).sum(),
        }
    }
}

impl Account {
    fn of(scored: impl Iterator<Item = Mark>) -> Self {
        let mut sums: BTreeMap<Class, (usize, f64)> = BTreeMap::new();
        let mut n_facts = 0;
        let mut before = None;
        for Mark { class, nats } in scored {
            let sum = sums.entry(class).or_default();
            *sum = (sum.0 + 1, sum.1 + nats);
            n_facts += usize::from(class == Class::Fact && before != Some(class));
            before = Some(class);
        }
        let n: usize = sums.values().map(|(n, _)| n).sum();
        let nats: f64 = sums.values().map(|(_, nats)| nats).sum();
        let classes = sums
            .into_iter()
            .map(|(class, (n_tokens, nats))| (class, ClassAccount { n_tokens, floor: nats / n_tokens as f64 }));
        Account {
            floor: nats / n as f64,
            classes: classes.collect(),
            fact_nats: (n_facts > 0).then_some(n_facts as f64 * NATS_PER_FACT),
        }
    }
}

/// Windows of at most `seq_len` tokens over documents that end at `ends`; of a document that is longer, its beginning.
fn whole_documents(ends: &[usize], seq_len: usize) -> Vec<(usize, usize)> {
    let mut windows: Vec<(usize, usize)> = vec![];
    let mut start = 0;
    for &end in ends {
        match windows.last_mut() {
            Some((first, n)) if end - *first <= seq_len => *n = end - *first,
            _ => windows.push((start, (end - start).min(seq_len))),
        }
        start = end;
    }
    windows
}
