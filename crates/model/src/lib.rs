//! A decoder-only Transformer whose norm, norm placement, feed-forward and positions are switched by its config.
//!
//! It opens no file and knows no corpus. Hidden states are `[batch, seq, d_model]` throughout.

mod attention;
mod block;
mod budget;
mod config;
mod contract;
mod decoder;
mod dropout;
mod exact;
mod ffn;
mod init;
mod named;
mod norm;
mod pass;
mod position;
mod probe;
mod projection;

pub use block::{Block, NormPlacement};
pub use budget::{Budget, Parts};
pub use config::{ModelConfig, check_fraction, check_positive};
pub use contract::{Contract, Finding, Rule, contracts};
pub use decoder::{Decoder, is_finite};
pub use dropout::MicroBatch;
pub use exact::Exact;
pub use ffn::{FeedForward, Ffn};
pub use init::Init;
pub use named::{Named, named};
pub use norm::{EPSILON, Norm, NormKind, wrong};
pub use position::Position;
pub use probe::{Measure, Place, Units, Values, Windows, updates};
