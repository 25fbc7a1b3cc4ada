//! Text in, token windows out: corpora, tokenizers, splits and batches. It never sees a weight.

mod bytes;
mod corpus;
mod dataset;
mod document;
mod error;
mod facts;
mod generated;
mod gpt2;
mod known;
mod tales;
mod token_files;
mod tokenizer;
mod tokenizer_kind;
mod tokens;
mod windows;
mod words;

pub use corpus::{FOLDER, Origin};
pub use dataset::{Account, ClassAccount, DataConfig, Dataset, Split};
pub use document::Class;
pub use error::DataError;
pub use generated::GENERATED;
pub use known::{KNOWN, Known, Member, Remote, Take};
pub use token_files::{Count, Sidecar, write_tokens};
pub use tokenizer::Tokenizer;
pub use tokenizer_kind::TokenizerKind;
pub use windows::{Batch, Scored, ValidBatch};

/// Largest number of token ids.
pub const MOST_TOKENS: usize = 1 << 20;

/// Bytes in hexadecimal.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
