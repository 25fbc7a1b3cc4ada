//! What can be wrong with a corpus.

use thiserror::Error;

/// A corpus or a text that cannot be used. Each message is one sentence that names what it is about.
#[derive(Debug, Error)]
pub enum DataError {
    #[error("corpus `{corpus}`: there is no such file; {hint}")]
    Missing { corpus: String, hint: String },
    #[error("corpus `{corpus}` is not a regular file: a corpus is a text file, or a folder of them")]
    NotAFile { corpus: String },
    #[error("corpus `{corpus}`: cannot be read")]
    Unreadable { corpus: String, source: std::io::Error },
    #[error("corpus `{corpus}` is empty, or too short to be parted: a corpus is a text of some length")]
    Empty { corpus: String },
    #[error(
        "corpus `{corpus}` is a folder of {n} texts: every tenth is for validation, so it needs ten or more, or else a train.txt and a valid.txt"
    )]
    FewDocuments { corpus: String, n: usize },
    #[error(
        "corpus `{corpus}` is a folder with {found} and without {missing}: add it, or give {found} another name if the folder is a collection of texts"
    )]
    OneOfTwo { corpus: String, found: &'static str, missing: &'static str },
    #[error(
        "corpus `{corpus}` is a folder without a .txt file and without token files (train.bin with valid.bin or val.bin)"
    )]
    NoText { corpus: String },
    #[error("corpus `{corpus}`: must be {form} with N from 1 to {most}")]
    BadSize { corpus: String, form: String, most: usize },
    #[error(
        "corpus `{corpus}` is not UTF-8: byte {offset} of {part} is not valid; convert it to UTF-8 first, or write tokenizer = \"byte\""
    )]
    NotUtf8 { corpus: String, part: String, offset: usize },
    #[error(
        "corpus `{corpus}` is too short: its training split has {tokens} tokens and one window needs model.seq_len + 1 = {needed}"
    )]
    TooShort { corpus: String, tokens: usize, needed: usize },
    #[error("{what} has changed since this run was planned: SHA-256 {found}, planned {planned}")]
    Changed { what: String, found: String, planned: String },
    #[error("the tokenizer does not know {0:?}: no such character is in its vocabulary")]
    UnknownCharacter(char),
    #[error(
        "tokenizer bpe-{wanted}: the training split has merges for {found} tokens only; write fewer, or tokenizer = \"byte\""
    )]
    TooPlain { wanted: usize, found: usize },
    #[error("tokenizer {path}: {problem}")]
    BadTokenizer { path: String, problem: String },
    #[error(
        "corpus `{corpus}` is token files: its tokenizer is {asked}, and must be that with which they were made, {found} (data.tokenizer, or --tokenizer)"
    )]
    OtherTokenizer { corpus: String, found: String, asked: String },
    #[error("tokenizer `ids` is for token files (train.bin with valid.bin or val.bin), and the corpus is a text")]
    NotTokens,
    #[error("corpus `{corpus}` is token files already")]
    TokensAlready { corpus: String },
    #[error("{path}: is no token file that can be used: {problem}")]
    BadTokens { path: String, problem: String },
    #[error("{path}: {tokens} tokens are more than the 2^31 - 1 that a file can hold")]
    TooLong { path: String, tokens: usize },
    #[error("{path}: is there already; choose another --out")]
    Occupied { path: String },
    #[error("{path}: cannot be written")]
    Unwritable { path: String, source: std::io::Error },
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

impl From<tokenizers::Error> for DataError {
    fn from(error: tokenizers::Error) -> Self {
        DataError::Tokenizer(error.to_string())
    }
}
