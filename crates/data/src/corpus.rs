//! Where text comes from.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::bytes::Bytes;
use crate::document::{Document, Texts};
use crate::generated::Generated;
use crate::known::KNOWN;
use crate::token_files::TokenFolder;
use crate::{DataError, TokenizerKind, hex};

/// Where corpora that were fetched lie, each in a folder of its name.
pub const FOLDER: &str = "data";

/// A corpus in two parts.
pub(crate) struct Corpus {
    /// As it was asked for.
    pub(crate) name: String,
    pub(crate) origin: Origin,
    pub(crate) parts: Parts,
}

/// Where a corpus comes from.
#[derive(Clone)]
pub struct Origin {
    /// Of a text that is parted by us, that of the text. Otherwise of both parts and where one ends; in hexadecimal.
    pub sha256: String,
    /// How it was parted, in words.
    pub split_rule: String,
}

impl Origin {
    fn of(split_rule: &str, train: &[u8], valid: &[u8]) -> Self {
        let cut = (train.len() as u64).to_le_bytes();
        let between: &[u8] = if split_rule == CONTIGUOUS { &[] } else { &cut };
        Origin { sha256: sha256([train, between, valid]), split_rule: split_rule.into() }
    }
}

const CONTIGUOUS: &str = "the first 90% of the characters for training, the last 10% for validation";

/// What a corpus is made of.
pub(crate) enum Parts {
    Text {
        train: Bytes,
        valid: Bytes,
    },
    /// Generated documents; those for validation are marked.
    Documents {
        train: Texts,
        valid: Vec<Document>,
    },
    Tokens(Box<TokenFolder>),
}

impl Corpus {
    /// The generated corpus of that name, else the text file or folder at that path, else the fetched corpus of that name.
    ///
    /// # Errors
    /// A missing, unreadable or empty file.
    pub(crate) fn open(name: &str) -> Result<Self, DataError> {
        let corpus = |origin, parts| Corpus { name: name.into(), origin, parts };
        if let Some(generated) = Generated::named(name) {
            let (train, valid) = generated?.documents();
            let rule = "training and validation are separate streams of one generator";
            let origin = Origin::of(rule, train.joined.as_bytes(), joined(&valid).as_bytes());
            return Ok(corpus(origin, Parts::Documents { train, valid }));
        }
        let path = find(name)?;
        if TokenFolder::is_at(&path) {
            let tokens = TokenFolder::open(&path, name)?;
            let origin = Origin::of(&tokens.split_rule(), &tokens.train.bytes, &tokens.valid.bytes);
            return Ok(corpus(origin, Parts::Tokens(tokens.into())));
        }
        let (rule, train, valid) = if path.is_dir() { Self::folder(name, &path)? } else { Self::file(name, &path)? };
        if train.is_empty() || valid.is_empty() {
            return Err(DataError::Empty { corpus: name.into() });
        }
        Ok(corpus(Origin::of(rule, &train, &valid), Parts::Text { train, valid }))
    }

    /// Whether the tokenizer can read the corpus: any but `byte` needs UTF-8.
    ///
    /// # Errors
    /// The first byte that is wrong.
    pub(crate) fn check_text(&self, kind: &TokenizerKind) -> Result<(), DataError> {
        let Parts::Text { train, valid } = &self.parts else { return Ok(()) };
        if *kind == TokenizerKind::Byte {
            return Ok(());
        }
        let parts = match self.origin.split_rule.as_str() {
            CONTIGUOUS => [("the text", train, 0), ("the text", valid, train.len())],
            _ => [("the training text", train, 0), ("the validation text", valid, 0)],
        };
        for (part, text, before) in parts {
            if let Err(error) = std::str::from_utf8(text) {
                let offset = before + error.valid_up_to();
                return Err(DataError::NotUtf8 { corpus: self.name.clone(), part, offset });
            }
        }
        Ok(())
    }

    fn file(name: &str, path: &Path) -> Result<(&'static str, Bytes, Bytes), DataError> {
        let text = Bytes::map(path).map_err(|source| DataError::Unreadable { corpus: name.into(), source })?;
        let (train, valid) = part(&text);
        Ok((CONTIGUOUS, train, valid))
    }

    /// A folder of text files: one file; `train.txt` and `valid.txt`; or documents, every tenth for validation.
    fn folder(name: &str, path: &Path) -> Result<(&'static str, Bytes, Bytes), DataError> {
        let unreadable = |source| DataError::Unreadable { corpus: name.into(), source };
        let map = |path: &PathBuf| {
            Bytes::map(path).map_err(|source| DataError::Unreadable { corpus: path.display().to_string(), source })
        };
        let entries: Result<Vec<PathBuf>, _> = fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
            .map_err(unreadable);
        let mut files = entries?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "txt") && file.is_file());
        files.sort();
        let named = |name: &str| files.iter().find(|file| file.file_stem().is_some_and(|stem| stem == name));
        if let (Some(train), Some(valid)) = (named("train"), named("valid").or(named("val"))) {
            return Ok(("its own files for training and for validation", map(train)?, map(valid)?));
        }
        match files.as_slice() {
            [] => Err(DataError::NoText { corpus: name.into() }),
            [file] => Self::file(name, file),
            few if few.len() < 10 => Err(DataError::FewDocuments { corpus: name.into(), n: few.len() }),
            _ => {
                let (mut train, mut valid) = (vec![], vec![]);
                for (i, file) in files.iter().enumerate() {
                    let part = if i % 10 == 9 { &mut valid } else { &mut train };
                    if !part.is_empty() {
                        part.extend_from_slice(b"\n\n");
                    }
                    part.extend_from_slice(&map(file)?);
                }
                Ok(("by document: every tenth file for validation", train.into(), valid.into()))
            }
        }
    }
}

/// The text of documents.
pub(crate) fn joined(documents: &[Document]) -> String {
    documents.iter().map(|document| document.text.as_str()).collect()
}

/// Where the corpus called `name` lies.
fn find(name: &str) -> Result<PathBuf, DataError> {
    for path in [PathBuf::from(name), Path::new(FOLDER).join(name)] {
        match fs::metadata(&path) {
            Ok(meta) if meta.is_file() || meta.is_dir() => return Ok(path),
            Ok(_) => return Err(DataError::NotAFile { corpus: name.into() }),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(source) => return Err(DataError::Unreadable { corpus: name.into(), source }),
        }
    }
    let hint = match KNOWN.iter().find(|known| known.name == name) {
        Some(_) => format!("get it with `ablate data fetch {name}`"),
        None => "name a text file or a folder by its path, or a corpus that `ablate data list` shows".into(),
    };
    Err(DataError::Missing { corpus: name.into(), hint })
}

/// The first 90% of the characters, as in nanoGPT, and the rest; of the bytes where they are no characters.
fn part(text: &Bytes) -> (Bytes, Bytes) {
    let n_train = |n: usize| n / 10 * 9 + n % 10 * 9 / 10;
    let cut = match std::str::from_utf8(text) {
        Ok(text) => text.char_indices().nth(n_train(text.chars().count())).map_or(text.len(), |(offset, _)| offset),
        Err(_) => n_train(text.len()),
    };
    (text.slice(0..cut), text.slice(cut..text.len()))
}

pub(crate) fn sha256<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hex(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(corpus: &Corpus) -> (String, String) {
        let Parts::Text { train, valid } = &corpus.parts else { panic!("a text") };
        (String::from_utf8(train.to_vec()).unwrap(), String::from_utf8(valid.to_vec()).unwrap())
    }

    fn check_error(path: &Path, expected: &str) {
        let path = path.to_str().unwrap();
        assert_eq!(Corpus::open(path).err().unwrap().to_string(), expected.replace("PATH", path));
    }

    #[test]
    fn what_cannot_be_a_corpus_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "").unwrap();
        check_error(&path, "corpus `PATH` is empty, or too short to be parted: a corpus is a text of some length");
        check_error(
            dir.path(),
            "corpus `PATH` is a folder without a .txt file and without token files (train.bin with valid.bin or val.bin)",
        );
        let error = |name: &str| Corpus::open(name).err().unwrap().to_string();
        assert_eq!(
            error("no/such.txt"),
            "corpus `no/such.txt`: there is no such file; name a text file or a folder by its path, or a corpus that \
             `ablate data list` shows"
        );
        assert!(error("wikitext-2").ends_with("there is no such file; get it with `ablate data fetch wikitext-2`"));
        fs::write(dir.path().join("1.txt"), "one").unwrap();
        fs::write(dir.path().join("2.txt"), "two").unwrap();
        check_error(
            dir.path(),
            "corpus `PATH` is a folder of 2 texts: every tenth is for validation, so it needs ten or more, or else a \
             train.txt and a valid.txt",
        );
    }

    #[test]
    fn ninety_percent_of_the_characters_are_for_training() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        fs::write(&path, "äbcdefghij0123456789").unwrap();
        let corpus = Corpus::open(path.to_str().unwrap()).unwrap();
        assert_eq!(text(&corpus), ("äbcdefghij01234567".into(), "89".into()));
        assert_eq!(corpus.origin.split_rule, CONTIGUOUS);
        assert_eq!(corpus.origin.sha256, sha256(["äbcdefghij0123456789".as_bytes()]));
    }

    #[test]
    fn folders_are_parted_by_what_is_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        for i in 0..21 {
            fs::write(dir.path().join(format!("{i:02}.txt")), format!("text {i}")).unwrap();
        }
        let corpus = Corpus::open(path).unwrap();
        let (train, valid) = text(&corpus);
        assert_eq!(valid, "text 9\n\ntext 19");
        assert!(train.starts_with("text 0\n\ntext 1\n\n") && train.ends_with("text 18\n\ntext 20"));
        assert_eq!(corpus.origin.split_rule, "by document: every tenth file for validation");
        fs::write(dir.path().join("train.txt"), "to train").unwrap();
        fs::write(dir.path().join("valid.txt"), "to validate").unwrap();
        let corpus = Corpus::open(path).unwrap();
        assert_eq!(text(&corpus), ("to train".into(), "to validate".into()));
        assert_eq!(corpus.origin.split_rule, "its own files for training and for validation");
    }

    #[test]
    fn where_a_text_is_cut_is_part_of_what_it_is() {
        let sha256 = |train: &str, valid: &str| {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("train.txt"), train).unwrap();
            fs::write(dir.path().join("valid.txt"), valid).unwrap();
            Corpus::open(dir.path().to_str().unwrap()).unwrap().origin.sha256
        };
        assert_ne!(sha256("ab", "c"), sha256("a", "bc"));
    }
}
