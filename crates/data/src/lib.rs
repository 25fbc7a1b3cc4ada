//! Text in, token windows out: corpora, tokenizers, splits and batches. It never sees a weight.

mod corpus;
mod dataset;
mod error;
mod tales;
mod tokenizer;
mod windows;

pub use dataset::{DataConfig, Dataset, Split};
pub use error::DataError;
pub use tokenizer::{Tokenizer, TokenizerKind};
pub use windows::Batch;
