//! How attention learns the order of tokens.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// Where positions enter the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Position {
    /// A learned vector per position, added to the embedding.
    Learned,
    /// Rotary: queries and keys are rotated by their position. Su et al., 2021.
    Rope,
    /// Nowhere: only the causal mask tells positions apart.
    None,
}
