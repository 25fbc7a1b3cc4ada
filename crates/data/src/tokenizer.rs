//! Text to token ids and back, through the `tokenizers` library.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence;
use tokenizers::models::bpe::{BPE, BpeBuilder, BpeTrainerBuilder, Vocab};
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::{AddedToken, PreTokenizerWrapper};

use crate::tokens::{Tokens, Width};
use crate::{DataError, MOST_TOKENS, TokenizerKind, gpt2, hex};

/// A tokenizer from elsewhere is tried on about this many bytes of a text at a time.
const TRIED: usize = 1 << 20;

/// Texts are encoded in pieces of about this many bytes where pieces give the tokens of the whole.
const PIECE: usize = 1 << 14;

/// Pieces that are encoded at a time, on all cores.
const PIECES: usize = 256;

/// A tokenizer that Hugging Face tools read as `tokenizer.json`.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    shape: Shape,
}

/// What makes a tokenizer faster than the library, or a text divisible.
enum Shape {
    /// Each token is one character, or one byte written as `<0x0A>`; the numbers of both.
    Plain {
        characters: HashMap<char, u32>,
        bytes: Vec<Option<u32>>,
    },
    /// GPT-2's: bytes under stand-in characters, words with the space before them. White space after something else
    /// always begins a word.
    ByteLevel,
    Other,
}

impl Tokenizer {
    /// A tokenizer of this kind for a corpus in two parts, the first for training.
    ///
    /// # Errors
    /// A file that cannot be read or is no tokenizer, a text that is not UTF-8.
    pub(crate) fn fit(kind: &TokenizerKind, train: &[u8], valid: &[u8]) -> Result<Self, DataError> {
        match kind {
            TokenizerKind::Char => {
                let mut is_used = vec![false; char::MAX as usize + 1];
                for c in utf8(train)?.chars().chain(utf8(valid)?.chars()) {
                    is_used[c as usize] = true;
                }
                let vocab = ('\0'..=char::MAX).filter(|&c| is_used[c as usize]).map(String::from).collect();
                Self::plain(vocab, BPE::builder(), Sequence::new(vec![Fuse::new().into()]))
            }
            TokenizerKind::Byte => {
                let vocab = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
                let decoder = Sequence::new(vec![ByteFallback::new().into(), Fuse::new().into()]);
                Self::plain(vocab, BPE::builder().byte_fallback(true), decoder)
            }
            TokenizerKind::Bpe(n) => Self::train_bpe(*n, utf8(train)?),
            TokenizerKind::Gpt2 => Self::gpt2(),
            TokenizerKind::Ids => Err(DataError::NotTokens),
            TokenizerKind::File(path) => {
                let tokenizer = Self::open(Path::new(path))?;
                tokenizer.check_lossless(path, train)?;
                tokenizer.check_lossless(path, valid)?;
                Ok(tokenizer)
            }
        }
    }

    /// Refuses a tokenizer that does not give a text back: a loss on what is left of it compares with nothing.
    fn check_lossless(&self, path: &str, text: &[u8]) -> Result<(), DataError> {
        let problem = |problem: String| DataError::BadTokenizer { path: path.into(), problem };
        for part in parts(utf8(text)?) {
            let back = self.encode(part).and_then(|ids| self.decode(&ids));
            let back = back.map_err(|error| problem(error.to_string()))?;
            if back != part {
                return Err(problem(format!("it does not give the text back: {}", difference(part, &back))));
            }
        }
        Ok(())
    }

    /// The numbers below `n` as words, for ids that no tokenizer has made.
    pub(crate) fn ids(n: usize) -> Result<Self, DataError> {
        let vocab = (0..n as u32).map(|id| (id.to_string(), id)).collect();
        let mut inner = tokenizers::Tokenizer::new(WordLevel::builder().vocab(vocab).build()?);
        inner.with_pre_tokenizer(Some(WhitespaceSplit));
        Ok(Tokenizer::new(inner))
    }

    /// A byte-pair encoding without a single merge.
    fn plain(vocab: Vec<String>, builder: BpeBuilder, decoder: Sequence) -> Result<Self, DataError> {
        let vocab = vocab.into_iter().zip(0u32..).collect::<Vocab>();
        let mut inner = tokenizers::Tokenizer::new(builder.vocab_and_merges(vocab, vec![]).build()?);
        inner.with_decoder(Some(decoder));
        Ok(Tokenizer::new(inner))
    }

    fn train_bpe(n: usize, text: &str) -> Result<Self, DataError> {
        let trainer = BpeTrainerBuilder::new()
            .vocab_size(n)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let mut tokenizer = Self::byte_level(BPE::default())?;
        tokenizer.inner.train(&mut TrainerWrapper::from(trainer), pieces(text))?;
        let found = tokenizer.vocab_size();
        if found < n {
            return Err(DataError::TooPlain { wanted: n, found });
        }
        Ok(tokenizer)
    }

    /// Words are split, and bytes stood in for, as GPT-2 does it.
    fn byte_level(model: BPE) -> Result<Self, DataError> {
        let mut inner = tokenizers::Tokenizer::new(model);
        let level = ByteLevel::new(false, false, true);
        inner.with_pre_tokenizer(Some(level)).with_decoder(Some(level));
        Ok(Tokenizer::new(inner))
    }

    fn gpt2() -> Result<Self, DataError> {
        let mut tokenizer = Self::byte_level(gpt2::model()?)?;
        tokenizer.inner.add_special_tokens([AddedToken::from("<|endoftext|>", true)])?;
        Ok(tokenizer)
    }

    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// A file that cannot be read or is no tokenizer.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let problem = |problem: String| DataError::BadTokenizer { path: path.display().to_string(), problem };
        if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
            return Err(problem("is not a regular file".into()));
        }
        let text = std::fs::read_to_string(path).map_err(|error| problem(format!("cannot be read: {error}")))?;
        Self::from_json(&text).map_err(|error| problem(format!("is damaged: {error}")))
    }

    /// Reads the text of a `tokenizer.json`.
    pub fn from_json(json: &str) -> Result<Self, DataError> {
        // The library takes some texts for granted that are no JSON.
        let value: Value = serde_json::from_str(json).map_err(|error| DataError::Tokenizer(error.to_string()))?;
        // It makes room for each id up to the largest.
        if let Some(id) = largest_id(&value).filter(|&id| id >= MOST_TOKENS as u64) {
            let problem = format!("it has the token id {id}, and ids must be below {MOST_TOKENS}");
            return Err(DataError::Tokenizer(problem));
        }
        let mut inner = tokenizers::Tokenizer::from_bytes(json)?;
        // Settings for batches of sentences: here a text gives its own tokens, no fewer and no more.
        inner.with_padding(None);
        inner.with_truncation(None)?;
        if let ModelWrapper::BPE(BPE { dropout: Some(_), .. }) = inner.get_model() {
            return Err(DataError::Tokenizer(
                "it drops merges at random (dropout), so a text has no fixed tokens".into(),
            ));
        }
        Ok(Tokenizer::new(inner))
    }

    fn new(inner: tokenizers::Tokenizer) -> Self {
        let shape = match inner.get_pre_tokenizer() {
            _ if inner.get_normalizer().is_some() => Shape::Other,
            None => Shape::plain(inner.get_vocab(true)).unwrap_or(Shape::Other),
            Some(PreTokenizerWrapper::ByteLevel(level)) if level.use_regex && !level.add_prefix_space => {
                Shape::ByteLevel
            }
            Some(_) => Shape::Other,
        };
        Tokenizer { inner, shape }
    }

    /// The text of its `tokenizer.json`.
    pub fn to_json(&self) -> Result<String, DataError> {
        Ok(self.inner.to_string(true)?)
    }

    /// SHA-256 of its `tokenizer.json`, in hexadecimal.
    pub fn sha256(&self) -> Result<String, DataError> {
        Ok(hex(Sha256::digest(self.to_json()?)))
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
        self.encode_into(text.as_bytes(), |part| {
            ids.extend_from_slice(part);
            Ok(())
        })?;
        Ok(ids)
    }

    /// All tokens of a text.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_into`].
    pub(crate) fn tokens(&self, text: &[u8]) -> Result<Tokens, DataError> {
        let width = Width::of(self.vocab_size());
        // A token is a byte or more; room that grows would take as much again.
        let mut bytes = Vec::with_capacity(width.n_bytes() * text.len());
        self.encode_into(text, |ids| {
            width.write(ids, &mut bytes);
            Ok(())
        })?;
        bytes.shrink_to_fit();
        Ok(Tokens { bytes: bytes.into(), width })
    }

    /// Hands the token ids of a text on, part by part.
    ///
    /// # Errors
    /// A character that the vocabulary lacks, bytes that are not UTF-8 where bytes are not the tokens; what `sink` says.
    pub(crate) fn encode_into(
        &self,
        text: &[u8],
        mut sink: impl FnMut(&[u32]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        match &self.shape {
            Shape::Plain { characters, bytes } if characters.is_empty() => {
                let id = |&byte: &u8| bytes[usize::from(byte)].ok_or(DataError::UnknownCharacter(byte.into()));
                text.chunks(PIECE).try_for_each(|piece| {
                    let ids: Result<Vec<u32>, DataError> = piece.iter().map(id).collect();
                    sink(&ids?)
                })
            }
            Shape::Plain { characters, bytes } => {
                let mut ids = Vec::with_capacity(PIECE);
                for c in utf8(text)?.chars() {
                    match characters.get(&c) {
                        Some(&id) => ids.push(id),
                        None => {
                            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                                ids.push(bytes[usize::from(byte)].ok_or(DataError::UnknownCharacter(c))?);
                            }
                        }
                    }
                    if ids.len() >= PIECE {
                        sink(&ids)?;
                        ids.clear();
                    }
                }
                sink(&ids)
            }
            Shape::ByteLevel => {
                let mut rest = pieces(utf8(text)?).peekable();
                while rest.peek().is_some() {
                    let batch: Vec<&str> = rest.by_ref().take(PIECES).collect();
                    for encoding in self.inner.encode_batch_fast(batch, false)? {
                        sink(encoding.get_ids())?;
                    }
                }
                Ok(())
            }
            Shape::Other => sink(self.inner.encode_fast(utf8(text)?, false)?.get_ids()),
        }
    }

    /// Token ids of a short text, each with the byte at which its part of the text ends.
    pub(crate) fn encode_with_ends(&self, text: &str) -> Result<Vec<(u32, usize)>, DataError> {
        if matches!(self.shape, Shape::Plain { .. }) {
            let mut end = 0;
            let ids = self.encode(text)?;
            let ended = |id| {
                end += self.n_bytes(&[id])?;
                Ok((id, end))
            };
            return ids.into_iter().map(ended).collect();
        }
        let encoding = self.inner.encode(text, false)?;
        Ok(encoding.get_ids().iter().zip(encoding.get_offsets()).map(|(&id, &(_, end))| (id, end)).collect())
    }

    /// Bytes of text that tokens stand for.
    pub(crate) fn n_bytes(&self, ids: &[u32]) -> Result<usize, DataError> {
        let added = self.inner.get_added_vocabulary();
        let length = |&id: &u32| {
            let token = self.inner.id_to_token(id).unwrap_or_default();
            match self.shape {
                Shape::Plain { .. } => byte(&token).map_or(token.len(), |_| 1),
                // Each character stands in for a byte.
                _ if added.simple_id_to_token(id).is_none() => token.chars().count(),
                _ => token.len(),
            }
        };
        match self.shape {
            Shape::Other => Ok(self.decode(ids)?.len()),
            _ => Ok(ids.iter().map(length).sum()),
        }
    }

    /// Whether [`Tokenizer::n_bytes`] is that of the text in any case.
    pub(crate) fn counts_bytes(&self) -> bool {
        !matches!(self.shape, Shape::Other)
    }

    /// The text of token ids. Bytes that are not UTF-8 become replacement characters, and only they.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        if !matches!(self.shape, Shape::Plain { .. }) {
            return Ok(self.inner.decode(ids, false)?);
        }
        // The library's decoder gives up all bytes in a row for one that is wrong, and here every token is one.
        let tokens = ids.iter().filter_map(|&id| self.inner.id_to_token(id));
        let bytes: Vec<u8> =
            tokens.flat_map(|token| byte(&token).map_or(token.into_bytes(), |byte| vec![byte])).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Shape {
    /// [`Shape::Plain`], if that is what a vocabulary is.
    fn plain(vocab: impl IntoIterator<Item = (String, u32)>) -> Option<Self> {
        let mut characters = HashMap::new();
        let mut bytes = vec![None; 256];
        for (token, id) in vocab {
            let mut own = token.chars();
            match (byte(&token), own.next(), own.next()) {
                (Some(byte), ..) => bytes[usize::from(byte)] = Some(id),
                (None, Some(c), None) => _ = characters.insert(c, id),
                _ => return None,
            }
        }
        Some(Shape::Plain { characters, bytes })
    }
}

/// The largest id that a `tokenizer.json` names.
fn largest_id(json: &Value) -> Option<u64> {
    let vocab = json["model"]["vocab"].as_object().into_iter().flat_map(|vocab| vocab.values());
    let added = json["added_tokens"].as_array().into_iter().flatten().map(|token| &token["id"]);
    vocab.chain(added).filter_map(Value::as_u64).max()
}

/// A text in parts of about [`TRIED`] bytes that end with white space if there is some, so that each begins as a text does.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let bytes = rest.as_bytes();
        let is_cut = |&i: &usize| bytes[i - 1].is_ascii_whitespace() && bytes[i].is_ascii_graphic();
        let is_between = |&i: &usize| rest.is_char_boundary(i) && !bytes[i].is_ascii_whitespace();
        let near = (TRIED..bytes.len().min(2 * TRIED)).find(is_cut);
        let end = near.or_else(|| (TRIED..bytes.len()).find(is_between)).unwrap_or(bytes.len());
        let (part, tail) = rest.split_at(end);
        rest = tail;
        (!part.is_empty()).then_some(part)
    })
}

/// Where a text that came back begins to differ, in words.
fn difference(text: &str, back: &str) -> String {
    let same =
        text.char_indices().zip(back.chars()).take_while(|((_, a), b)| a == b).map(|((i, c), _)| i + c.len_utf8());
    let same = same.last().unwrap_or(0);
    let (rest, back) = (&text[same..], &back[same..]);
    let start = |text: &str| text.chars().take(12).collect::<String>();
    match back.strip_suffix(rest) {
        Some(added) if rest.is_empty() => format!("it adds {:?} at the end", start(added)),
        Some(added) if !added.is_empty() => format!("it adds {:?} in front of {:?}", start(added), start(rest)),
        _ => format!("{:?} is lost or changed", start(rest)),
    }
}

/// The byte that a token such as `<0x0A>` stands for.
fn byte(token: &str) -> Option<u8> {
    u8::from_str_radix(token.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

fn utf8(text: &[u8]) -> Result<&str, DataError> {
    std::str::from_utf8(text).map_err(|error| DataError::Tokenizer(format!("the text is not UTF-8: {error}")))
}

/// Cuts a text in front of white space that follows something else, where a word begins whatever stands before.
fn pieces(text: &str) -> impl Iterator<Item = &str> + Send {
    let mut rest = text;
    std::iter::from_fn(move || {
        let bytes = rest.as_bytes();
        let is_cut = |&i: &usize| bytes[i - 1].is_ascii_graphic() && matches!(bytes[i], b' ' | b'\n');
        let end = (PIECE..bytes.len()).find(is_cut).unwrap_or(bytes.len());
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(kind: &str, text: &str) -> Tokenizer {
        Tokenizer::fit(&kind.parse().unwrap(), text.as_bytes(), &[]).unwrap()
    }

    /// Words of different lengths, some rare, with white space of all kinds between them.
    fn prose() -> String {
        let spaces = [" ", "\n", "  ", "\n\n", ", ", "! ", " 12 ", "'s ", "é ", "\u{a0} ", "\t"];
        let syllables = ["ba", "der", "li", "mo", "sta", "un", "kri", "to"];
        let word = |i: usize| format!("{}{}{}", syllables[i % 8], syllables[i / 8 % 8], syllables[i * i % 7]);
        (0..40_000).map(|i: usize| word(i * i * 31 % 5077) + spaces[i * 7 % 11]).collect()
    }

    #[test]
    fn a_text_is_tried_in_parts_with_and_without_spaces() {
        for text in ["in parts, ".repeat(400_000), "\u{4e00}\u{4e8c}".repeat(600_000)] {
            let all: Vec<&str> = parts(&text).collect();
            assert_eq!(all.concat(), text);
            assert!(all.len() > 2 && all.iter().all(|part| part.len() <= TRIED + 10), "{}", all.len());
        }
    }

    #[test]
    fn characters_are_numbered_in_order() {
        let tokenizer = Tokenizer::fit(&TokenizerKind::Char, b"hello\n", "é w".as_bytes()).unwrap();
        assert_eq!(tokenizer.vocab_size(), 8);
        assert_eq!(tokenizer.encode("\n ehlé").unwrap(), [0, 1, 2, 3, 4, 7]);
        assert_eq!(tokenizer.decode(&[3, 2, 4, 4, 5]).unwrap(), "hello");
    }

    #[test]
    fn bytes_are_their_own_numbers() {
        let tokenizer = fit("byte", "");
        assert_eq!(tokenizer.vocab_size(), 256);
        assert_eq!(tokenizer.encode("aé\n").unwrap(), [97, 0xC3, 0xA9, 10]);
        assert_eq!(tokenizer.decode(&[97, 0xC3, 0xA9, 10]).unwrap(), "aé\n");
        assert_eq!(tokenizer.decode(&[97, 0xC3, 98, 0xFF]).unwrap(), "a\u{fffd}b\u{fffd}");
        assert_eq!(tokenizer.tokens(b"\xff\x00").unwrap().get(0..2).collect::<Vec<_>>(), [255, 0]);
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
    fn a_tokenizer_that_loses_text_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let kind = TokenizerKind::File(path.to_str().unwrap().into());
        let fails = |change: &dyn Fn(String) -> String, problem: &str| {
            std::fs::write(&path, change(fit("bpe-300", &prose()).to_json().unwrap())).unwrap();
            let error = Tokenizer::fit(&kind, b"Two Words", b"").err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
        };
        let lowercase =
            |json: String| json.replace("\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}");
        fails(&lowercase, "it does not give the text back: \"Two Words\" is lost or changed");
        // What only comes late in a text is seen too.
        std::fs::write(&path, lowercase(fit("bpe-300", &prose()).to_json().unwrap())).unwrap();
        let late = "a word, and ".repeat(200_000) + "One";
        let error = Tokenizer::fit(&kind, late.as_bytes(), b"").err().unwrap().to_string();
        assert!(error.contains("\"One\" is lost or changed"), "{error}");
        fails(&|json| json.replace("\"dropout\": null", "\"dropout\": 0.1"), "it drops merges at random");
        fails(&|json| json[..100].into(), "is damaged");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(Tokenizer::fit(&kind, b"", b"").err().unwrap().to_string().ends_with("is not a regular file"));
    }

    #[test]
    fn what_differs_is_said_as_it_is() {
        assert_eq!(difference("Two", "two"), "\"Two\" is lost or changed");
        assert_eq!(difference("é two", "é tw"), "\"o\" is lost or changed");
        assert_eq!(difference("two", "▁two"), "it adds \"▁\" in front of \"two\"");
        assert_eq!(difference("two", "two</s>"), "it adds \"</s>\" at the end");
    }

    #[test]
    fn ids_far_apart_take_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let json = |id: &str| {
            format!(
                "{{\"model\": {{\"type\": \"WordLevel\", \"vocab\": {{\"a\": 0, \"b\": {id}}}, \"unk_token\": \"a\"}}, \
                 \"added_tokens\": []}}"
            )
        };
        for id in ["1048576", "300000000", "4294967295", "18446744073709551615"] {
            std::fs::write(&path, json(id)).unwrap();
            let error = Tokenizer::open(&path).err().unwrap().to_string();
            assert!(
                error.contains("tokenizer.json") && error.contains(&format!("it has the token id {id}")),
                "{error}"
            );
        }
        std::fs::write(&path, json("1048575")).unwrap();
        assert_eq!(Tokenizer::open(&path).unwrap().vocab_size(), MOST_TOKENS);
        let added = json("1").replace("[]", "[{\"id\": 300000000, \"content\": \"c\"}]");
        std::fs::write(&path, added).unwrap();
        assert!(Tokenizer::open(&path).err().unwrap().to_string().contains("it has the token id 300000000"));
    }

    #[test]
    fn pieces_change_no_token() {
        let text = prose();
        assert!(text.len() > 3 * PIECE && pieces(&text).count() > 3);
        assert_eq!(pieces(&text).collect::<String>(), text);
        for kind in ["bpe-500", "gpt2"] {
            let tokenizer = fit(kind, &text);
            let whole = tokenizer.inner.encode_fast(text.as_str(), false).unwrap();
            assert!(tokenizer.encode(&text).unwrap() == whole.get_ids(), "{kind}");
        }
    }

    #[test]
    fn every_tokenizer_gives_the_text_back() {
        let text = prose();
        for kind in ["char", "byte", "bpe-300", "gpt2"] {
            let tokenizer = fit(kind, &text);
            let ids = tokenizer.encode(&text).unwrap();
            assert!(tokenizer.decode(&ids).unwrap() == text, "{kind}");
            assert_eq!(tokenizer.n_bytes(&ids).unwrap(), text.len(), "{kind}");
            let again = Tokenizer::from_json(&tokenizer.to_json().unwrap()).unwrap();
            assert!(again.encode(&text).unwrap() == ids, "{kind}");
            assert_eq!(again.sha256().unwrap(), tokenizer.sha256().unwrap(), "{kind}");
            let part = &text[..text.floor_char_boundary(1000)];
            let ends = tokenizer.encode_with_ends(part).unwrap();
            assert_eq!(ends.last().unwrap().1, part.len(), "{kind}");
        }
    }

    #[test]
    fn byte_pairs_are_learned_alike_every_time() {
        let text = prose();
        let first = fit("bpe-600", &text);
        assert_eq!(first.vocab_size(), 600);
        for _ in 0..5 {
            assert_eq!(fit("bpe-600", &text).sha256().unwrap(), first.sha256().unwrap());
        }
        let error = Tokenizer::fit(&TokenizerKind::Bpe(5000), b"abab", &[]).err().unwrap().to_string();
        assert_eq!(
            error,
            "tokenizer bpe-5000: the training split has merges for 258 tokens only; write fewer, or tokenizer = \"byte\""
        );
    }

    #[test]
    fn gpt2_is_openai_s() {
        let tokenizer = fit("gpt2", "");
        assert_eq!(tokenizer.vocab_size(), 50_257);
        // The example of OpenAI's own encoder, and the end of a text.
        assert_eq!(tokenizer.encode("Hello world").unwrap(), [15496, 995]);
        assert_eq!(tokenizer.encode("<|endoftext|>").unwrap(), [50256]);
        // An encoder that shares no code with ours.
        let text = prose() + "¿Où? 日本語, 3½ — 🙂🙂 don't we'll\r\n\r\n   x";
        assert!(tokenizer.encode(&text).unwrap() == tiktoken_rs::r50k_base_singleton().encode_ordinary(&text));
    }

    #[test]
    fn tiny_shakespeare_has_the_published_numbers_of_tokens() {
        if !Path::new("../../data/tiny-shakespeare").exists() {
            eprintln!("skipped: tiny Shakespeare is not in data/ (`cargo ablate data fetch tiny-shakespeare`)");
            return;
        }
        let load = |tokenizer: &str| {
            let corpus = "../../data/tiny-shakespeare".into();
            crate::Dataset::load(&crate::DataConfig { corpus, tokenizer: tokenizer.parse().unwrap() }, 64).unwrap()
        };
        let char = load("char");
        assert_eq!((char.tokenizer.vocab_size(), char.n_train(), char.n_valid()), (65, 1_003_854, 111_540));
        // nanoGPT's README.
        let gpt2 = load("gpt2");
        assert_eq!((gpt2.n_train(), gpt2.n_valid(), gpt2.valid_bytes), (301_966, 36_059, Some(111_540)));
    }

    #[test]
    fn an_unknown_character_is_named() {
        let error = fit("char", "abc").encode("abz").unwrap_err().to_string();
        assert_eq!(error, "the tokenizer does not know 'z': no such character is in its vocabulary");
    }
}
