//! Token files that other trainers read and write.
//!
//! llm.c's: 256 little-endian 32-bit words, the first of them a magic number, a version and the number of tokens; then the
//! tokens, two bytes each or four. nanoGPT's: two-byte tokens and nothing else.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::corpus::{Corpus, Parts, joined};
use crate::tokens::{Tokens, Width};
use crate::{DataError, MOST_TOKENS, Tokenizer, TokenizerKind};

const HEADER: usize = 1024;

impl Width {
    /// The magic number and the version of llm.c's files.
    fn magic(self) -> (u32, u32) {
        match self {
            Width::U16 => (20_240_520, 1),
            Width::U32 => (20_240_801, 7),
        }
    }
}

/// What token files do not say themselves: `tokens.json` beside them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sidecar {
    pub corpus: String,
    pub corpus_sha256: String,
    /// How the corpus was parted, in words.
    pub split_rule: String,
    /// As `data.tokenizer` names it.
    pub tokenizer: TokenizerKind,
    pub tokenizer_sha256: String,
    pub vocab_size: usize,
    pub train: Count,
    pub valid: Count,
    /// -ln p(validation text) of a model that knew how it was made, where that is known. Windows that start anywhere
    /// cannot reach it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub valid_nats: Option<f64>,
}

/// The size of a part.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Count {
    pub tokens: usize,
    /// Of the text.
    pub bytes: usize,
}

/// A folder with token files for training and for validation.
pub(crate) struct TokenFolder {
    path: PathBuf,
    name: String,
    pub(crate) train: Tokens,
    pub(crate) valid: Tokens,
    sidecar: Option<Sidecar>,
}

impl TokenFolder {
    /// Whether a folder holds token files.
    pub(crate) fn is_at(path: &Path) -> bool {
        path.is_dir() && pair(path).is_some()
    }

    pub(crate) fn open(path: &Path, name: &str) -> Result<Self, DataError> {
        let (train, valid) = pair(path).ok_or_else(|| DataError::NoText { corpus: name.into() })?;
        let beside = path.join("tokens.json");
        let sidecar: Option<Sidecar> = match fs::read(&beside) {
            Ok(text) => Some(serde_json::from_slice(&text).map_err(|error| damaged(&beside, &error.to_string()))?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(damaged(&beside, &format!("it cannot be read: {error}"))),
        };
        let (train, valid) = (read(&train)?, read(&valid)?);
        if let Some(sidecar) = &sidecar
            && (sidecar.train.tokens, sidecar.valid.tokens) != (train.len(), valid.len())
        {
            return Err(damaged(&beside, "it is of other files: it names other numbers of tokens"));
        }
        Ok(TokenFolder { path: path.into(), name: name.into(), train, valid, sidecar })
    }

    /// How the text was parted, in words.
    pub(crate) fn split_rule(&self) -> String {
        let own = self.sidecar.as_ref().map(|sidecar| sidecar.split_rule.as_str());
        own.unwrap_or("token files for training and for validation").into()
    }

    /// The tokenizer that made the files.
    ///
    /// # Errors
    /// Another one is asked for, or none can be told; a token that it does not have.
    pub(crate) fn tokenizer(&self, kind: &TokenizerKind) -> Result<Tokenizer, DataError> {
        let own = self.path.join("tokenizer.json");
        let wrong = |found: &str| DataError::OtherTokenizer {
            corpus: self.name.clone(),
            found: found.into(),
            asked: kind.to_string(),
        };
        let tokenizer = match (&self.sidecar, kind) {
            (Some(sidecar), TokenizerKind::File(path)) => {
                let tokenizer = Tokenizer::open(Path::new(path))?;
                if tokenizer.sha256()? != sidecar.tokenizer_sha256 {
                    return Err(wrong(&sidecar.tokenizer.to_string()));
                }
                tokenizer
            }
            (Some(sidecar), _) if sidecar.tokenizer != *kind => return Err(wrong(&sidecar.tokenizer.to_string())),
            (Some(sidecar), _) => {
                let tokenizer = Tokenizer::open(&own)?;
                if tokenizer.sha256()? != sidecar.tokenizer_sha256 {
                    return Err(damaged(&own, "it is not the one that tokens.json names"));
                }
                tokenizer
            }
            (None, TokenizerKind::Char | TokenizerKind::Bpe(_)) => {
                return Err(wrong("gpt2, byte or the path of a tokenizer.json; ids, if no tokenizer made them"));
            }
            (None, TokenizerKind::Ids) => {
                let largest = |tokens: &Tokens| tokens.get(0..tokens.len()).max().unwrap_or(0);
                let n = largest(&self.train).max(largest(&self.valid)) as usize + 1;
                if n > MOST_TOKENS {
                    let problem = format!("it holds token {}, and must hold none above {}", n - 1, MOST_TOKENS - 1);
                    return Err(damaged(&self.path, &problem));
                }
                // Its vocabulary is that of the files.
                return Tokenizer::ids(n);
            }
            (None, kind) => Tokenizer::fit(kind, &[], &[])?,
        };
        let vocab_size = tokenizer.vocab_size();
        if self.sidecar.as_ref().is_some_and(|sidecar| sidecar.vocab_size != vocab_size) {
            return Err(damaged(&self.path.join("tokens.json"), &format!("the tokenizer has {vocab_size} token ids")));
        }
        for tokens in [&self.train, &self.valid] {
            if let Some(id) = tokens.get(0..tokens.len()).max().filter(|&id| id as usize >= vocab_size) {
                let problem = format!("it holds token {id}, and the tokenizer {kind} has {vocab_size}");
                return Err(damaged(&self.path, &problem));
            }
        }
        Ok(tokenizer)
    }

    /// Bytes of text behind the training tokens, where they are written down.
    pub(crate) fn train_bytes(&self) -> Option<usize> {
        self.sidecar.as_ref().map(|sidecar| sidecar.train.bytes)
    }

    /// Bytes of text behind the validation tokens, if they stand for text.
    pub(crate) fn valid_bytes(&self, kind: &TokenizerKind, tokenizer: &Tokenizer) -> Result<Option<usize>, DataError> {
        if *kind == TokenizerKind::Ids {
            return Ok(None);
        }
        let counted = tokenizer.n_bytes(&self.valid.get(0..self.valid.len()).collect::<Vec<u32>>())?;
        match &self.sidecar {
            Some(sidecar) if tokenizer.counts_bytes() && sidecar.valid.bytes != counted => Err(damaged(
                &self.path.join("tokens.json"),
                "it names another number of bytes than the tokens stand for",
            )),
            Some(sidecar) => Ok(Some(sidecar.valid.bytes)),
            None => Ok(Some(counted)),
        }
    }
}

/// The token files of a folder: `train.bin` with `valid.bin` or `val.bin`, or the same behind a common `..._`.
fn pair(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let entries = fs::read_dir(folder).ok()?;
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names.iter().find_map(|name| {
        let before = name.strip_suffix("train.bin").filter(|before| before.is_empty() || before.ends_with('_'))?;
        let valid = ["valid.bin", "val.bin"].map(|end| folder.join(format!("{before}{end}")));
        Some((folder.join(name), valid.into_iter().find(|path| path.exists())?))
    })
}

fn damaged(path: &Path, problem: &str) -> DataError {
    DataError::BadTokens { path: path.display().to_string(), problem: problem.into() }
}

/// Bytes of a token file that are looked at, and fewest that tell something.
const LOOKED_AT: usize = 1 << 21;
const FEWEST: usize = 128;

/// What else than 16-bit tokens a file without a header seems to be made of.
fn seems(bytes: &[u8]) -> Option<&'static str> {
    let bytes = &bytes[..bytes.len().min(LOOKED_AT)];
    let is_id = |number: f64| number.fract() == 0.0 && number.abs() < MOST_TOKENS as f64;
    let of_32 = |word: &[u8]| is_id(f32::from_le_bytes(word.try_into().expect("four")).into());
    let of_64 = |word: &[u8]| is_id(f64::from_le_bytes(word.try_into().expect("eight")));
    if bytes.starts_with(b"\x93NUMPY") {
        return Some("an array with numpy's header");
    }
    if bytes.len() < FEWEST || bytes.iter().all(|byte| *byte == 0) {
        return None;
    }
    // Integers whose upper halves are next to nothing, for no id is `MOST_TOKENS` or more, or the sign of a small negative number,
    // while the lower ones are not. Of 16-bit tokens hardly ever every second one is as small as that.
    let mut largest = [0; 4];
    for (i, word) in bytes.chunks_exact(2).enumerate() {
        let word = u16::from_le_bytes([word[0], word[1]]);
        let is_sign = i % 4 != 0 && word == u16::MAX;
        largest[i % 4] = if is_sign { 0 } else { word }.max(largest[i % 4]);
    }
    let upper = ((MOST_TOKENS - 1) >> 16) as u16;
    let is_upper = |high: u16, low: u16| high == 0 && low > 0 || high <= upper && low > upper;
    match largest {
        [low, high, 0, 0] if is_upper(high, low) => return Some("64-bit integers"),
        [a, b, c, d] if is_upper(b.max(d), a.max(c)) => return Some("32-bit integers"),
        _ => {}
    }
    if bytes.chunks_exact(8).all(of_64) {
        return Some("64-bit floats");
    }
    if bytes.chunks_exact(4).all(of_32) {
        return Some("32-bit floats");
    }
    if bytes.iter().step_by(2).all(|low| *low == 0) {
        return Some("big-endian integers");
    }
    are_single_bytes(bytes).then_some("8-bit integers or text")
}

/// Whether the bytes at even and at odd places are alike, as those of 16-bit tokens are not: their upper bytes are few and small.
/// Where each byte is as frequent as any other, nothing can be told.
fn are_single_bytes(bytes: &[u8]) -> bool {
    let mut n = [[0usize; 256]; 2];
    bytes.iter().enumerate().for_each(|(i, byte)| n[i % 2][usize::from(*byte)] += 1);
    let [even, odd] = n;
    let apart: usize = even.iter().zip(&odd).map(|(even, odd)| even.abs_diff(*odd)).sum();
    let uneven: usize = even.iter().map(|n| n.abs_diff(bytes.len() / 512)).sum();
    // From some thousand bytes on, chance alone sets them far less apart.
    bytes.len() >= 4096 && apart * 10 < bytes.len() && uneven * 10 > bytes.len()
}

/// Maps a token file.
fn read(path: &Path) -> Result<Tokens, DataError> {
    let bytes = Bytes::map(path).map_err(|error| damaged(path, &format!("it cannot be read: {error}")))?;
    let word = |i: usize| bytes.get(4 * i..4 * i + 4).map(|word| u32::from_le_bytes(word.try_into().expect("four")));
    let width = [Width::U16, Width::U32].into_iter().find(|width| word(0) == Some(width.magic().0));
    let tokens = match width {
        Some(width) => {
            let (_, version) = width.magic();
            if word(1) != Some(version) {
                return Err(damaged(path, &format!("its header does not say version {version}")));
            }
            let n = word(2).map_or(0, |n| n as usize);
            if bytes.len() != HEADER + n * width.n_bytes() {
                let problem = format!("its header says {n} tokens, and it is {} bytes long", bytes.len());
                return Err(damaged(path, &problem));
            }
            Tokens { bytes: bytes.slice(HEADER..bytes.len()), width }
        }
        None => {
            if let Some(seen) = seems(&bytes) {
                let problem = format!(
                    "it looks like {seen}, but a file without llm.c's header must hold uint16 tokens; write it with \
                     tokens.astype(\"uint16\").tofile(path), or add the header"
                );
                return Err(damaged(path, &problem));
            }
            if bytes.len() % 2 == 1 {
                return Err(damaged(path, "it has an odd number of bytes, but uint16 tokens take two each"));
            }
            Tokens { bytes, width: Width::U16 }
        }
    };
    if tokens.len() == 0 {
        return Err(damaged(path, "it holds no token"));
    }
    Ok(tokens)
}

/// Tokenizes a corpus into the folder `out`, whole or not at all: `train.bin` and `valid.bin` as llm.c has them,
/// `tokenizer.json`, and `tokens.json`. A text is mapped and passes through piece by piece.
///
/// # Errors
/// A corpus that cannot be used; a folder that cannot be written, or is there already.
pub fn write_tokens(corpus: &str, kind: &TokenizerKind, out: &Path) -> Result<Sidecar, DataError> {
    if fs::symlink_metadata(out).is_ok() {
        return Err(DataError::Occupied { path: out.display().to_string() });
    }
    let corpus = Corpus::open(corpus)?;
    corpus.check_text(kind)?;
    let (train, valid, valid_nats) = match &corpus.parts {
        Parts::Text { train, valid } => (train.clone(), valid.clone(), None),
        Parts::Documents { train, valid } => {
            let nats = valid.iter().flat_map(|document| &document.marks).map(|mark| mark.nats).sum();
            (train.joined.clone().into_bytes().into(), joined(valid).into_bytes().into(), Some(nats))
        }
        Parts::Tokens(_) => return Err(DataError::TokensAlready { corpus: corpus.name }),
    };
    let tokenizer = Tokenizer::fit(kind, &train, &valid)?;
    let width = Width::of(tokenizer.vocab_size());
    let unwritable = |source| DataError::Unwritable { path: out.display().to_string(), source };
    disk::new_folder(out, unwritable, |folder| {
        let count = |text: &Bytes, name: &str| -> Result<Count, DataError> {
            Ok(Count { tokens: write(&folder.join(name), text, &tokenizer, width)?, bytes: text.len() })
        };
        let sidecar = Sidecar {
            corpus: corpus.name.clone(),
            corpus_sha256: corpus.origin.sha256.clone(),
            split_rule: corpus.origin.split_rule.clone(),
            tokenizer: kind.clone(),
            tokenizer_sha256: tokenizer.sha256()?,
            vocab_size: tokenizer.vocab_size(),
            train: count(&train, "train.bin")?,
            valid: count(&valid, "valid.bin")?,
            valid_nats,
        };
        fs::write(folder.join("tokenizer.json"), tokenizer.to_json()?).map_err(unwritable)?;
        let text = serde_json::to_string_pretty(&sidecar).expect("plain data") + "\n";
        fs::write(folder.join("tokens.json"), text).map_err(unwritable)?;
        Ok(sidecar)
    })
}

/// Writes the tokens of a text and counts them.
fn write(path: &Path, text: &[u8], tokenizer: &Tokenizer, width: Width) -> Result<usize, DataError> {
    let unwritable = |source| DataError::Unwritable { path: path.display().to_string(), source };
    let mut file = BufWriter::new(File::create(path).map_err(unwritable)?);
    file.write_all(&[0; HEADER]).map_err(unwritable)?;
    let mut n = 0usize;
    let mut bytes = vec![];
    tokenizer.encode_into(text, |ids| {
        n += ids.len();
        bytes.clear();
        width.write(ids, &mut bytes);
        file.write_all(&bytes).map_err(unwritable)
    })?;
    let Ok(count) = u32::try_from(n).map_err(drop).and_then(|n| if n < 1 << 31 { Ok(n) } else { Err(()) }) else {
        return Err(DataError::TooLong { path: path.display().to_string(), tokens: n });
    };
    let (magic, version) = width.magic();
    let header: Vec<u8> = [magic, version, count].iter().flat_map(|word| word.to_le_bytes()).collect();
    let finish = || -> std::io::Result<()> {
        file.rewind()?;
        file.write_all(&header)?;
        file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
    };
    finish().map_err(unwritable)?;
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataConfig, Dataset};

    const TEXT: &str = "It is a truth universally acknowledged that a test must be in want of a text. ";

    fn load(folder: &Path, tokenizer: &str) -> Result<Dataset, DataError> {
        let corpus = folder.to_str().unwrap().to_string();
        Dataset::load(&DataConfig { corpus, tokenizer: tokenizer.parse().unwrap() }, 8)
    }

    fn ids(tokens: &Tokens) -> Vec<u32> {
        tokens.get(0..tokens.len()).collect()
    }

    #[test]
    fn written_files_are_read_back_as_the_text() {
        let dir = tempfile::tempdir().unwrap();
        let (text, out) = (dir.path().join("text.txt"), dir.path().join("tokens"));
        fs::write(&text, TEXT.repeat(50)).unwrap();
        for tokenizer in ["char", "byte", "bpe-300", "gpt2"] {
            let kind = tokenizer.parse().unwrap();
            let sidecar = write_tokens(text.to_str().unwrap(), &kind, &out).unwrap();
            let (direct, mapped) = (load(&text, tokenizer).unwrap(), load(&out, tokenizer).unwrap());
            assert_eq!(ids(&direct.train), ids(&mapped.train), "{tokenizer}");
            assert_eq!(ids(&direct.valid), ids(&mapped.valid), "{tokenizer}");
            assert_eq!(direct.valid_bytes, mapped.valid_bytes, "{tokenizer}");
            assert_eq!(direct.train_batch(0, 1, 4), mapped.train_batch(0, 1, 4), "{tokenizer}");
            assert_eq!(sidecar.train.bytes + sidecar.valid.bytes, 50 * TEXT.len());
            // The header as llm.c reads it.
            let bytes = fs::read(out.join("train.bin")).unwrap();
            let word = |i: usize| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap());
            assert_eq!((word(0), word(1), word(2) as usize), (20_240_520, 1, sidecar.train.tokens));
            assert_eq!(bytes.len(), 1024 + 2 * sidecar.train.tokens);
            let error = write_tokens(text.to_str().unwrap(), &kind, &out).unwrap_err().to_string();
            assert!(error.ends_with("is there already; choose another --out"), "{error}");
            let other = load(&out, if tokenizer == "byte" { "char" } else { "byte" }).err().unwrap().to_string();
            assert!(other.contains(&format!("made, {kind} (data.tokenizer")), "{other}");
            fs::remove_dir_all(&out).unwrap();
        }
    }

    #[test]
    fn files_of_other_trainers_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let tokens: Vec<u32> = (0..200).map(|i| i * 251 % 50_257).collect();
        let bytes = |width: Width| {
            let mut bytes = vec![];
            width.write(&tokens, &mut bytes);
            bytes
        };
        let header = |magic: u32, version: u32| {
            let mut header: Vec<u8> = [magic, version, 200].iter().flat_map(|word| word.to_le_bytes()).collect();
            header.resize(HEADER, 0);
            header
        };
        let nanogpt = bytes(Width::U16);
        let llmc = [header(20_240_520, 1), bytes(Width::U16)].concat();
        let llama = [header(20_240_801, 7), bytes(Width::U32)].concat();
        for file in [nanogpt, llmc, llama] {
            fs::write(dir.path().join("a_train.bin"), &file).unwrap();
            fs::write(dir.path().join("a_val.bin"), &file).unwrap();
            let data = load(dir.path(), "gpt2").unwrap();
            assert_eq!(ids(&data.train), tokens);
            let text = data.tokenizer.n_bytes(&tokens).unwrap();
            assert_eq!(data.valid_bytes, Some(text));
        }
    }

    fn write_bare(folder: &Path, bytes: &[u8]) {
        fs::write(folder.join("train.bin"), bytes).unwrap();
        fs::write(folder.join("val.bin"), bytes).unwrap();
    }

    #[test]
    fn wider_integers_without_a_header_are_not_read_as_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |bytes: &[u8], seen: &str| {
            write_bare(dir.path(), bytes);
            let error = load(dir.path(), "ids").err().unwrap_or_else(|| panic!("{seen}")).to_string();
            assert!(error.contains(&format!("it looks like {seen}, but")), "{seen}: {error}");
        };
        // Of a text, a token each; and of few ids, the upper byte first.
        refused(format!("{TEXT}x").repeat(60).as_bytes(), "8-bit integers or text");
        refused(&(0..4000u16).flat_map(|i| (i % 97).to_be_bytes()).collect::<Vec<_>>(), "big-endian integers");
        refused(&[b"\x93NUMPY\x01\0", TEXT.as_bytes(), b"x"].concat(), "an array with numpy's header");
        // As numpy writes them: few ids, those of GPT-2, and those of a vocabulary of 128,000.
        for ids in [7u64, 50_257, 128_000] {
            let ids = (0..4000u64).map(|i| i * 7919 % ids);
            let of_64: Vec<u8> = ids.clone().flat_map(u64::to_le_bytes).collect();
            let of_32: Vec<u8> = ids.clone().flat_map(|id| (id as u32).to_le_bytes()).collect();
            let with_sign = of_32.iter().copied().chain((-100i32).to_le_bytes()).collect();
            let long_sign = of_64.iter().copied().chain((-100i64).to_le_bytes()).collect();
            let float_32 = ids.clone().flat_map(|id| (id as f32).to_le_bytes()).collect();
            let float_64 = ids.clone().flat_map(|id| (id as f64).to_le_bytes()).collect();
            for (bytes, seen) in [
                (of_64, "64-bit integers"),
                (of_32, "32-bit integers"),
                (with_sign, "32-bit integers"),
                (long_sign, "64-bit integers"),
                (float_32, "32-bit floats"),
                (float_64, "64-bit floats"),
            ] {
                refused(&bytes, seen);
            }
            let of_16: Vec<u8> = ids.flat_map(|id| (id as u16).to_le_bytes()).collect();
            write_bare(dir.path(), &of_16);
            load(dir.path(), "ids").unwrap();
        }
        // Sequences in which every second token is small, but not each.
        let of_16: Vec<u8> = (0..400u16).flat_map(|i| (if i % 2 == 0 { i } else { i % 41 }).to_le_bytes()).collect();
        write_bare(dir.path(), &of_16);
        load(dir.path(), "ids").unwrap();
    }

    #[test]
    fn ids_need_no_tokenizer() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..400u32).flat_map(|i| ((i * i % 31) as u16).to_le_bytes()).collect();
        write_bare(dir.path(), &bytes);
        let data = load(dir.path(), "ids").unwrap();
        assert_eq!((data.tokenizer.vocab_size(), data.n_train(), data.valid_bytes), (29, 400, None));
        assert_eq!(data.beginning(5).unwrap(), "0 1 4 9 16");
        let again = Tokenizer::from_json(&data.tokenizer.to_json().unwrap()).unwrap();
        assert_eq!(again.encode("4 9 16").unwrap(), [4, 9, 16]);
        assert_eq!(again.sha256().unwrap(), data.tokenizer.sha256().unwrap());
        assert!(again.encode("29").is_err(), "there is no such id");
        let text = dir.path().join("text.txt");
        fs::write(&text, TEXT.repeat(50)).unwrap();
        for corpus in [text.to_str().unwrap(), "tales"] {
            let config = DataConfig { corpus: corpus.into(), tokenizer: TokenizerKind::Ids };
            let error = Dataset::load(&config, 8).err().unwrap().to_string();
            assert!(error.starts_with("tokenizer `ids` is for token files"), "{error}");
        }
    }

    #[test]
    fn damaged_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (text, out) = (dir.path().join("text.txt"), dir.path().join("tokens"));
        fs::write(&text, TEXT.repeat(50)).unwrap();
        write_tokens(text.to_str().unwrap(), &TokenizerKind::Byte, &out).unwrap();
        let train = out.join("train.bin");
        let good = fs::read(&train).unwrap();
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        let cases: [(Vec<u8>, &str); 6] = [
            (good[..good.len() - 2].to_vec(), "its header says 3510 tokens, and it is 8042 bytes long"),
            (good[..1000].to_vec(), "its header says 3510 tokens, and it is 1000 bytes long"),
            (changed(4, 9), "its header does not say version 1"),
            (changed(HEADER + 1, 1), "it holds token 329, and the tokenizer byte has 256"),
            (vec![1, 2, 3], "it has an odd number of bytes, but uint16 tokens take two each"),
            (vec![], "it holds no token"),
        ];
        for (bytes, problem) in cases {
            fs::write(&train, bytes).unwrap();
            let error = load(&out, "byte").err().unwrap().to_string();
            assert!(error.ends_with(problem), "{error}");
        }
        fs::write(&train, good).unwrap();
        fs::write(
            out.join("tokenizer.json"),
            Tokenizer::fit(&TokenizerKind::Gpt2, &[], &[]).unwrap().to_json().unwrap(),
        )
        .unwrap();
        let error = load(&out, "byte").err().unwrap().to_string();
        assert!(error.ends_with("it is not the one that tokens.json names"), "{error}");
        fs::write(out.join("tokens.json"), "{").unwrap();
        assert!(load(&out, "byte").is_err());
    }
}
