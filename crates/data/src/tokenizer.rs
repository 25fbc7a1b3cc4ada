//! Text to token ids and back, through the `tokenizers` library.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use strum::VariantArray;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence;
use tokenizers::models::bpe::{BPE, Vocab};

use crate::DataError;

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// One token per character, the vocabulary being the corpus's characters in order.
    Char,
    /// One token per UTF-8 byte, 256 in all.
    Byte,
}

/// Texts are encoded in pieces of this many bytes, so that memory stays small.
const PIECE: usize = 1 << 16;

/// A tokenizer that Hugging Face tools read as `tokenizer.json`.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Whether each token is one character, or one byte written as `<0x0A>`.
    is_plain: bool,
}

impl Tokenizer {
    /// A tokenizer of this kind for a corpus in `parts`.
    pub fn fit(kind: TokenizerKind, parts: &[&str]) -> Result<Self, DataError> {
        // Both are byte-pair encodings without a single merge.
        let vocab: Vec<String> = match kind {
            TokenizerKind::Char => {
                let characters: BTreeSet<char> = parts.iter().flat_map(|part| part.chars()).collect();
                characters.into_iter().map(String::from).collect()
            }
            TokenizerKind::Byte => (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect(),
        };
        let model = BPE::builder()
            .vocab_and_merges(vocab.into_iter().zip(0u32..).collect::<Vocab>(), vec![])
            .byte_fallback(kind == TokenizerKind::Byte)
            .build()?;
        let mut inner = tokenizers::Tokenizer::new(model);
        match kind {
            TokenizerKind::Char => inner.with_decoder(Some(Fuse::new())),
            TokenizerKind::Byte => {
                inner.with_decoder(Some(Sequence::new(vec![ByteFallback::new().into(), Fuse::new().into()])))
            }
        };
        Ok(Tokenizer { inner, is_plain: true })
    }

    /// Reads the text of a `tokenizer.json`.
    pub fn from_json(json: &str) -> Result<Self, DataError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json)?;
        // Settings for batches of sentences: here a text gives its own tokens, no fewer and no more.
        inner.with_padding(None);
        inner.with_truncation(None)?;
        let is_untouched = inner.get_normalizer().is_none() && inner.get_pre_tokenizer().is_none();
        let is_own = |token: &String| byte(token).is_some() || token.chars().count() == 1;
        let is_plain = is_untouched && inner.get_vocab(true).keys().all(is_own);
        Ok(Tokenizer { inner, is_plain })
    }

    /// The text of its `tokenizer.json`.
    pub fn to_json(&self) -> Result<String, DataError> {
        Ok(self.inner.to_string(true)?)
    }

    /// Number of token ids: one more than the largest.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    /// Token ids of a text.
    ///
    /// # Errors
    /// A character that the vocabulary lacks.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let mut ids = vec![];
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(rest.floor_char_boundary(PIECE.min(rest.len())));
            let encoded = self.inner.encode_fast(piece, false)?;
            // A character without a token is left out without a word, so the text must come back whole.
            if self.is_plain && self.decode(encoded.get_ids())? != piece {
                let unknown = piece.chars().find(|c| self.inner.token_to_id(&c.to_string()).is_none());
                return Err(DataError::UnknownCharacter(unknown.unwrap_or(char::REPLACEMENT_CHARACTER)));
            }
            ids.extend_from_slice(encoded.get_ids());
            rest = tail;
        }
        Ok(ids)
    }

    /// The text of token ids. Bytes that are not UTF-8 become replacement characters, and only they.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        if !self.is_plain {
            return Ok(self.inner.decode(ids, false)?);
        }
        // The library's decoder gives up all bytes in a row for one that is wrong, and here every token is one.
        let tokens = ids.iter().filter_map(|&id| self.inner.id_to_token(id));
        let bytes: Vec<u8> =
            tokens.flat_map(|token| byte(&token).map_or(token.into_bytes(), |byte| vec![byte])).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The byte that a token such as `<0x0A>` stands for.
fn byte(token: &str) -> Option<u8> {
    u8::from_str_radix(token.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_numbered_in_order() {
        let tokenizer = Tokenizer::fit(TokenizerKind::Char, &["hello\n", "é w"]).unwrap();
        assert_eq!(tokenizer.vocab_size(), 8);
        assert_eq!(tokenizer.encode("\n ehlé").unwrap(), [0, 1, 2, 3, 4, 7]);
        assert_eq!(tokenizer.decode(&[3, 2, 4, 4, 5]).unwrap(), "hello");
    }

    #[test]
    fn bytes_are_their_own_numbers() {
        let tokenizer = Tokenizer::fit(TokenizerKind::Byte, &[]).unwrap();
        assert_eq!(tokenizer.vocab_size(), 256);
        assert_eq!(tokenizer.encode("aé\n").unwrap(), [97, 0xC3, 0xA9, 10]);
        assert_eq!(tokenizer.decode(&[97, 0xC3, 0xA9, 10]).unwrap(), "aé\n");
        assert_eq!(tokenizer.decode(&[97, 0xC3, 98, 0xFF]).unwrap(), "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn a_tokenizer_from_elsewhere_keeps_its_own_ways() {
        // Bytes of UTF-8 under stand-in characters, with one merge, as GPT-2 has them.
        let json = r#"{"version": "1.0", "added_tokens": [], "normalizer": null, "truncation": null, "padding": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": {"a": 0, "b": 1, "\u0120": 2, "\u0120a": 3}, "merges": [["\u0120", "a"]]}}"#;
        let tokenizer = Tokenizer::from_json(json).unwrap();
        assert_eq!(tokenizer.encode("ab a b").unwrap(), [0, 1, 3, 2, 1]);
        assert_eq!(tokenizer.decode(&[0, 1, 3, 2, 1]).unwrap(), "ab a b");
    }

    #[test]
    fn long_texts_survive_the_cut_into_pieces() {
        let text = "ä€x".repeat(PIECE / 3);
        for kind in TokenizerKind::VARIANTS {
            let tokenizer = Tokenizer::fit(*kind, &[&text]).unwrap();
            assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap()).unwrap(), text, "{kind:?}");
        }
    }

    #[test]
    fn an_unknown_character_is_named() {
        let tokenizer = Tokenizer::fit(TokenizerKind::Char, &["abc"]).unwrap();
        let error = tokenizer.encode("abz").unwrap_err().to_string();
        assert_eq!(error, "the tokenizer does not know 'z': its vocabulary is the characters of the corpus");
    }

    #[test]
    fn json_keeps_everything() {
        for kind in TokenizerKind::VARIANTS {
            let tokenizer = Tokenizer::fit(*kind, &["some text"]).unwrap();
            let again = Tokenizer::from_json(&tokenizer.to_json().unwrap()).unwrap();
            assert_eq!(again.encode("text some").unwrap(), tokenizer.encode("text some").unwrap());
        }
    }
}
