//! How text becomes tokens, as written in a study.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A tokenizer by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum TokenizerKind {
    /// One token per character, the vocabulary being the corpus's characters in order.
    Char,
    /// One token per byte, 256 in all.
    Byte,
    /// Byte-pair encoding with this many tokens, trained on the training split. Sennrich, Haddow and Birch, 2016.
    Bpe(usize),
    /// GPT-2's 50,257 tokens.
    Gpt2,
    /// None: token files whose ids no tokenizer has made.
    Ids,
    /// A `tokenizer.json` of the `tokenizers` library, by its path.
    File(String),
}

/// Tokens of `bpe` where no number is written: no more than generated texts have merges for.
const BPE_TOKENS: usize = 512;

/// Numbers of tokens that a byte-pair encoding can have: all bytes and one merge, to what a u16 holds.
const BPE_RANGE: std::ops::RangeInclusive<usize> = 257..=1 << 16;

impl FromStr for TokenizerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "char" => Ok(TokenizerKind::Char),
            "byte" => Ok(TokenizerKind::Byte),
            "bpe" => Ok(TokenizerKind::Bpe(BPE_TOKENS)),
            "gpt2" => Ok(TokenizerKind::Gpt2),
            "ids" => Ok(TokenizerKind::Ids),
            path if path.ends_with(".json") => Ok(TokenizerKind::File(path.into())),
            other => {
                let digits = other.strip_prefix("bpe-").filter(|n| n.bytes().all(|byte| byte.is_ascii_digit()));
                let n = digits.and_then(|n| n.parse().ok()).filter(|n| BPE_RANGE.contains(n));
                n.map(TokenizerKind::Bpe).ok_or_else(|| {
                    let (least, most) = (BPE_RANGE.start(), BPE_RANGE.end());
                    format!(
                        "unknown tokenizer `{other}`: must be char, byte, bpe, bpe-N with N from {least} to {most}, gpt2, \
                         ids, or the path of a tokenizer.json"
                    )
                })
            }
        }
    }
}

impl TryFrom<String> for TokenizerKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<TokenizerKind> for String {
    fn from(kind: TokenizerKind) -> String {
        kind.to_string()
    }
}

impl Display for TokenizerKind {
    fn fmt(&self, f: &mut Formatter) -> std::fmt::Result {
        match self {
            TokenizerKind::Char => f.write_str("char"),
            TokenizerKind::Byte => f.write_str("byte"),
            TokenizerKind::Bpe(n) => write!(f, "bpe-{n}"),
            TokenizerKind::Gpt2 => f.write_str("gpt2"),
            TokenizerKind::Ids => f.write_str("ids"),
            TokenizerKind::File(path) => f.write_str(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for (name, shown) in
            [("char", "char"), ("bpe", "bpe-512"), ("bpe-300", "bpe-300"), ("ids", "ids"), ("a/t.json", "a/t.json")]
        {
            assert_eq!(name.parse::<TokenizerKind>().unwrap().to_string(), shown);
        }
        let error = "bpe-10".parse::<TokenizerKind>().unwrap_err();
        assert_eq!(
            error,
            "unknown tokenizer `bpe-10`: must be char, byte, bpe, bpe-N with N from 257 to 65536, gpt2, ids, or the path of \
             a tokenizer.json"
        );
    }
}
