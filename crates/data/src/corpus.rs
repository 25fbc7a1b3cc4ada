//! Where text comes from.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::bytes::Bytes;
use crate::document::{Account, Document};
use crate::facts::{self, Facts};
use crate::known::KNOWN;
use crate::tales::Tales;
use crate::token_files::TokenFolder;
use crate::words::MOST_TIMES;
use crate::{DataError, TokenizerKind, hex};

/// Where corpora that were fetched lie, each in a folder of its name.
pub const FOLDER: &str = "data";

/// Bytes of `tales` to write for training, and for validation.
const TALES_BYTES: (usize, usize) = (4_000_000, 100_000);

/// Entities of `facts` where no number is written.
const FACTS_PEOPLE: usize = 512;

/// Documents about each person that `facts` has for training, on average.
const FACTS_DOCUMENTS: usize = 32;

/// A corpus in two parts.
pub(crate) struct Corpus {
    /// As it was asked for.
    pub(crate) name: String,
    /// Of the whole text, or of the token files, in hexadecimal.
    pub(crate) sha256: String,
    /// How it was parted, in words.
    pub(crate) split: &'static str,
    pub(crate) parts: Parts,
}

/// What a corpus is made of.
pub(crate) enum Parts {
    Text {
        train: Bytes,
        valid: Bytes,
    },
    /// Generated documents; those for validation are marked.
    Documents {
        train: Vec<Document>,
        valid: Vec<Document>,
    },
    Tokens(Box<TokenFolder>),
}

/// A corpus that is generated.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Generated {
    /// `tales-N`: with word lists N times as long.
    Tales(usize),
    /// `facts-N`: of N people.
    Facts(usize),
}

impl Generated {
    /// The generated corpus of that name, if it is one's.
    fn named(name: &str) -> Option<Result<Self, DataError>> {
        let number = |prefix: &str, default: usize, most: usize| {
            let rest = name.strip_prefix(prefix)?;
            let n = if rest.is_empty() { Some(default) } else { rest.strip_prefix('-')?.parse().ok() };
            let n = n.filter(|n| (1..=most).contains(n));
            Some(n.ok_or(DataError::BadSize { corpus: name.into(), form: format!("{prefix}-N"), most }))
        };
        let tales = number("tales", 1, MOST_TIMES).map(|n| n.map(Generated::Tales));
        tales.or_else(|| number("facts", FACTS_PEOPLE, facts::MOST_PEOPLE).map(|n| n.map(Generated::Facts)))
    }

    /// Documents for training and for validation.
    fn documents(self) -> (Vec<Document>, Vec<Document>) {
        match self {
            Generated::Tales(times) => {
                let tales = Tales::new(times);
                let part = |stream, account, bytes: usize| {
                    let mut left = bytes;
                    let documents = tales.documents(stream, account).take_while(|document| {
                        let is_wanted = left > 0;
                        left = left.saturating_sub(document.text.len());
                        is_wanted
                    });
                    documents.collect()
                };
                let (train, valid) = TALES_BYTES;
                (part("tales/train", Account::Left, train * times), part("tales/valid", Account::Kept, valid))
            }
            Generated::Facts(people) => {
                let facts = Facts::new(people);
                (facts.drawn().take(people * FACTS_DOCUMENTS).collect(), facts.each().collect())
            }
        }
    }
}

impl Corpus {
    /// The generated corpus of that name, else the text file or folder at that path, else the fetched corpus of that name.
    ///
    /// # Errors
    /// A missing, unreadable or empty file.
    pub(crate) fn open(name: &str) -> Result<Self, DataError> {
        if let Some(generated) = Generated::named(name) {
            let (train, valid) = generated?.documents();
            let sha256 = sha256(train.iter().chain(&valid).map(|document| document.text.as_bytes()));
            let split = "training and validation are separate streams of one generator";
            return Ok(Corpus { name: name.into(), sha256, split, parts: Parts::Documents { train, valid } });
        }
        let path = find(name)?;
        let unreadable = |source| DataError::Unreadable { corpus: name.into(), source };
        if TokenFolder::is_at(&path) {
            let tokens = TokenFolder::open(&path, name)?;
            let split = "token files for training and for validation";
            return Ok(Corpus {
                name: name.into(),
                sha256: tokens.sha256(),
                split,
                parts: Parts::Tokens(tokens.into()),
            });
        }
        let (split, train, valid) = if path.is_dir() {
            Self::folder(name, &path)?
        } else {
            let text = Bytes::map(&path).map_err(unreadable)?;
            let (train, valid) = halves(&text);
            (CONTIGUOUS, train, valid)
        };
        if train.is_empty() || valid.is_empty() {
            return Err(DataError::Empty { corpus: name.into() });
        }
        Ok(Corpus { name: name.into(), sha256: sha256([&*train, &*valid]), split, parts: Parts::Text { train, valid } })
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
        for (part, text) in [("training", train), ("validation", valid)] {
            if let Err(error) = std::str::from_utf8(text) {
                return Err(DataError::NotUtf8 { corpus: self.name.clone(), part, offset: error.valid_up_to() });
            }
        }
        Ok(())
    }

    /// A folder of text files: one file; `train.txt` and `valid.txt`; or documents, every tenth for validation.
    fn folder(name: &str, path: &Path) -> Result<(&'static str, Bytes, Bytes), DataError> {
        let unreadable = |source| DataError::Unreadable { corpus: name.into(), source };
        let map = |path: &PathBuf| Bytes::map(path).map_err(unreadable);
        let entries: Result<Vec<PathBuf>, _> = fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
            .map_err(unreadable);
        let mut files = entries?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "txt") && file.is_file());
        files.sort();
        let named = |name: &str| files.iter().find(|file| file.file_stem().is_some_and(|stem| stem == name));
        if let (Some(train), Some(valid)) = (named("train"), named("valid")) {
            return Ok(("its own files for training and for validation", map(train)?, map(valid)?));
        }
        match files.as_slice() {
            [] => Err(DataError::NoText { corpus: name.into() }),
            [file] => {
                let (train, valid) = halves(&map(file)?);
                Ok((CONTIGUOUS, train, valid))
            }
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

const CONTIGUOUS: &str = "the first 90% of the characters for training, the last 10% for validation";

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
fn halves(text: &Bytes) -> (Bytes, Bytes) {
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
        check_error(dir.path(), "corpus `PATH` is a folder without a .txt file and without token files");
        let error = |name: &str| Corpus::open(name).err().unwrap().to_string();
        assert_eq!(
            error("no/such.txt"),
            "corpus `no/such.txt`: there is no such file; name a text file or a folder by its path, or a corpus that \
             `ablate data list` shows"
        );
        assert!(error("wikitext-2").ends_with("there is no such file; get it with `ablate data fetch wikitext-2`"));
        for name in ["tales-0", "tales-17", "tales-x", "tales-"] {
            assert_eq!(error(name), format!("corpus `{name}`: must be tales-N with N from 1 to 16"));
        }
        assert_eq!(error("facts-5000"), "corpus `facts-5000`: must be facts-N with N from 1 to 4096");
    }

    #[test]
    fn ninety_percent_of_the_characters_are_for_training() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        fs::write(&path, "äbcdefghij0123456789").unwrap();
        let corpus = Corpus::open(path.to_str().unwrap()).unwrap();
        assert_eq!(text(&corpus), ("äbcdefghij01234567".into(), "89".into()));
        assert_eq!(corpus.split, CONTIGUOUS);
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
        assert_eq!(corpus.split, "by document: every tenth file for validation");
        fs::write(dir.path().join("train.txt"), "to train").unwrap();
        fs::write(dir.path().join("valid.txt"), "to validate").unwrap();
        let corpus = Corpus::open(path).unwrap();
        assert_eq!(text(&corpus), ("to train".into(), "to validate".into()));
        assert_eq!(corpus.split, "its own files for training and for validation");
    }

    #[test]
    fn generated_text_is_of_the_size_that_is_asked_for() {
        for (name, train_bytes, valid_bytes) in [("tales", 4_000_000, 100_000), ("tales-2", 8_000_000, 100_000)] {
            let Parts::Documents { train, valid } = Corpus::open(name).unwrap().parts else { panic!("documents") };
            let bytes = |documents: &[Document]| documents.iter().map(|document| document.text.len()).sum::<usize>();
            for (bytes, wanted) in [(bytes(&train), train_bytes), (bytes(&valid), valid_bytes)] {
                assert!((wanted..wanted + 400).contains(&bytes), "{name}: {bytes}");
            }
        }
        let Parts::Documents { train, valid } = Corpus::open("facts-10").unwrap().parts else { panic!("documents") };
        assert_eq!((train.len(), valid.len()), (320, 10));
    }
}
