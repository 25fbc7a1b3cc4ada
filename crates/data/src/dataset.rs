//! A corpus as tokens, ready to be cut into windows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::corpus::{Corpus, Origin, Parts, joined};
use crate::document::{Class, Document, Texts};
use crate::facts::NATS_PER_FACT;
use crate::tokens::{Tokens, Width};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    Train,
    Valid,
}

/// A tokenized corpus, and the length of the windows that are cut from it.
pub struct Dataset {
    pub tokenizer: Tokenizer,
    pub seq_len: usize,
    pub origin: Origin,
    /// The training split; of generated text, behind one token of context.
    pub(crate) train: Tokens,
    /// Where training windows can start, if not anywhere: one token before each document.
    pub(crate) starts: Option<Vec<u32>>,
    /// The validation split behind one token of context.
    pub(crate) valid: Tokens,
    pub(crate) windows: Windows,
    /// What is known of the validation tokens, the one of context left out; empty for a text that nobody generated.
    pub(crate) marks: Vec<TokenMark>,
    /// Bytes of the training text, where they are known.
    pub train_bytes: Option<usize>,
    /// Bytes of the validation text that is scored; `None` of token ids that stand for no text.
    pub valid_bytes: Option<usize>,
    /// What is known of how the text was made.
    pub account: Option<Account>,
}

/// What is known of a validation token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenMark {
    /// That of its first character that is no white space.
    pub(crate) class: Class,
    /// -ln p(its characters | all before in the document)
    pub(crate) nats: f64,
    /// Facts whose last character it holds.
    n_facts: usize,
    n_bytes: usize,
}

impl TokenMark {
    /// The mark of the bytes `from..to` of a document. A tokenizer from elsewhere may give a token no text of its own.
    fn of(document: &Document, from: usize, to: usize) -> Self {
        let last = document.marks.len() - 1;
        let is_space = |&i: &usize| document.text.as_bytes()[i].is_ascii_whitespace();
        let first = (from..to).find(|i| !is_space(i)).unwrap_or(from.min(last));
        let is_fact = |i: usize| document.marks.get(i).is_some_and(|mark| mark.class == Class::Fact);
        TokenMark {
            class: document.marks[first].class,
            nats: document.marks[from..to].iter().map(|mark| mark.nats).sum(),
            n_facts: (from..to).filter(|&i| is_fact(i) && !is_fact(i + 1)).count(),
            n_bytes: to - from,
        }
    }
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

/// The tokens of one class. A token belongs to the class of its first character that is no white space.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassAccount {
    pub n_tokens: usize,
    /// Nats per token, as [`Account::floor`]. Where tokens are longer than a character, a token's share in the floor is what
    /// its characters have; a model of tokens may shift some of that between neighbours, and so between classes.
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
        let Corpus { name, origin, parts, .. } = corpus;
        let dataset = match parts {
            Parts::Documents { train, valid } => Self::of_documents(origin, train, &valid, &config.tokenizer, seq_len)?,
            Parts::Text { train, valid } => {
                let tokenizer = Tokenizer::fit(&config.tokenizer, &train, &valid)?;
                let (train_bytes, valid_bytes) = (Some(train.len()), Some(valid.len()));
                let (train, scored) = (tokenizer.tokens(&train)?, tokenizer.tokens(&valid)?);
                let plain = Self::plain(origin, tokenizer, seq_len, train, scored);
                Dataset { train_bytes, valid_bytes, ..plain }
            }
            Parts::Tokens(folder) => {
                let tokenizer = folder.tokenizer(&config.tokenizer)?;
                let (train_bytes, valid_bytes) =
                    (folder.train_bytes(), folder.valid_bytes(&config.tokenizer, &tokenizer)?);
                let plain = Self::plain(origin, tokenizer, seq_len, folder.train, folder.valid);
                Dataset { train_bytes, valid_bytes, ..plain }
            }
        };
        if dataset.n_valid() == 0 {
            return Err(DataError::Empty { corpus: name });
        }
        if dataset.train.len() < seq_len + 1 || dataset.starts.as_ref().is_some_and(Vec::is_empty) {
            return Err(DataError::TooShort { corpus: name, tokens: dataset.n_train(), needed: seq_len + 1 });
        }
        Ok(dataset)
    }

    /// Running text: windows start anywhere in training, and lie end to end in validation. The last token of training is the
    /// context of the first of validation, so that each of these is predicted once. Bytes are for the caller to fill in.
    fn plain(origin: Origin, tokenizer: Tokenizer, seq_len: usize, train: Tokens, scored: Tokens) -> Self {
        let context = train.get(train.len().saturating_sub(1)..train.len()).next().unwrap_or(0);
        let valid = scored.behind(context);
        Dataset {
            tokenizer,
            seq_len,
            origin,
            train,
            starts: None,
            valid,
            windows: Windows::All,
            marks: vec![],
            train_bytes: None,
            valid_bytes: None,
            account: None,
        }
    }

    fn of_documents(
        origin: Origin,
        train: Texts,
        valid: &[Document],
        kind: &TokenizerKind,
        seq_len: usize,
    ) -> Result<Self, DataError> {
        let tokenizer = Tokenizer::fit(kind, train.joined.as_bytes(), joined(valid).as_bytes())?;
        let vocab_size = tokenizer.vocab_size();
        // All documents end alike, so the end of one is the context of the next.
        let first = train.each().next().unwrap_or_default();
        let context = tokenizer.encode(first)?.last().copied().unwrap_or(0);

        let width = Width::of(vocab_size);
        // A token is a byte or more; room that grows would take as much again.
        let mut bytes = Vec::with_capacity(width.n_bytes() * (train.joined.len() + 1));
        let (mut n, mut starts) = (0, vec![]);
        width.write(&[context], &mut bytes);
        for text in train.each() {
            let ids = tokenizer.encode(text)?;
            starts.push(n as u32);
            n += ids.len();
            width.write(&ids, &mut bytes);
        }
        starts.retain(|&start| start as usize + seq_len <= n);
        let train_bytes = Some(train.joined.len());
        bytes.shrink_to_fit();
        let train = Tokens { bytes: bytes.into(), width };

        let (mut ids, mut marks, mut ends) = (vec![], vec![], vec![]);
        for document in valid {
            let mut from = 0;
            let spans = tokenizer.encode_with_ends(&document.text)?;
            for (i, &(id, end)) in spans.iter().enumerate() {
                // A tokenizer from elsewhere may leave white space to no token.
                let to =
                    if i + 1 == spans.len() { document.marks.len() } else { end.clamp(from, document.marks.len()) };
                ids.push(id);
                marks.push(TokenMark::of(document, from, to));
                from = to;
            }
            ends.push(ids.len());
        }
        let windows = whole_documents(&ends, seq_len);
        let scored = || windows.iter().flat_map(|&(start, n)| &marks[start..start + n]);
        let account = Account::of(scored());
        let valid_bytes = Some(scored().map(|mark| mark.n_bytes).sum());
        let valid = Tokens::new(&ids, vocab_size).behind(context);
        Ok(Dataset {
            starts: Some(starts),
            valid,
            windows: Windows::Documents(windows),
            marks,
            account: Some(account),
            train_bytes,
            valid_bytes,
            ..Self::plain(origin, tokenizer, seq_len, train, Tokens::new(&[], vocab_size))
        })
    }

    /// Tokens of the training split.
    pub fn n_train(&self) -> usize {
        self.train.len() - self.n_context()
    }

    /// Tokens of both splits that are in memory instead of in a mapped file.
    pub fn n_in_memory(&self) -> usize {
        [&self.train, &self.valid].into_iter().filter(|tokens| !tokens.bytes.is_mapped()).map(Tokens::len).sum()
    }

    /// Tokens before the training split.
    fn n_context(&self) -> usize {
        usize::from(self.starts.is_some())
    }

    /// The text of the first `n` tokens of the training split.
    ///
    /// # Errors
    /// A tokenizer that cannot tell.
    pub fn beginning(&self, n: usize) -> Result<String, DataError> {
        let first = self.n_context();
        self.tokenizer.decode(&self.train.get(first..self.train.len().min(first + n)).collect::<Vec<u32>>())
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
    fn of<'a>(scored: impl Iterator<Item = &'a TokenMark>) -> Self {
        let mut sums: BTreeMap<Class, (usize, f64)> = BTreeMap::new();
        let mut n_facts = 0;
        for mark in scored {
            let sum = sums.entry(mark.class).or_default();
            *sum = (sum.0 + 1, sum.1 + mark.nats);
            n_facts += mark.n_facts;
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
