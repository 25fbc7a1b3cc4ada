//! What can be wrong with a corpus.

use thiserror::Error;

/// A corpus or a text that cannot be used. Each message is one sentence that names what it is about.
#[derive(Debug, Error)]
pub enum DataError {
    #[error("corpus `{corpus}`: there is no such file; {hint}")]
    Missing { corpus: String, hint: String },
    #[error("corpus `{corpus}` is not a regular file: a corpus is a UTF-8 text file")]
    NotAFile { corpus: String },
    #[error("corpus `{corpus}`: cannot be read")]
    Unreadable { corpus: String, source: std::io::Error },
    #[error("corpus `{corpus}` is empty: a corpus is a UTF-8 text file")]
    Empty { corpus: String },
    #[error("corpus `{corpus}` is not UTF-8 text: byte {offset} is not valid; convert it to UTF-8 first")]
    NotUtf8 { corpus: String, offset: usize },
    #[error(
        "corpus `{corpus}` is too short: its training split has {tokens} tokens and one window needs model.seq_len + 1 = {needed}"
    )]
    TooShort { corpus: String, tokens: usize, needed: usize },
    #[error("corpus `{corpus}` has changed since this run was planned: SHA-256 {found}, planned {planned}")]
    Changed { corpus: String, found: String, planned: String },
    #[error("the tokenizer does not know {0:?}: its vocabulary is the characters of the corpus")]
    UnknownCharacter(char),
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

impl From<tokenizers::Error> for DataError {
    fn from(error: tokenizers::Error) -> Self {
        DataError::Tokenizer(error.to_string())
    }
}
