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
use crate::{DataError, Split, TokenizerKind, hex};

/// Where corpora that were fetched lie, each in a folder of its name.
pub const FOLDER: &str = "data";

/// A corpus in two parts.
pub(crate) struct Corpus {
    /// As it was asked for.
    pub(crate) name: String,
    pub(crate) origin: Origin,
    pub(crate) parts: Parts,
    /// Of a text that is joined from files: where in which part each begins, and its name.
    files: Vec<(Split, usize, String)>,
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
        let corpus = |origin, parts| Corpus { name: name.into(), origin, parts, files: vec![] };
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
        let mut files = vec![];
        let (rule, train, valid) =
            if path.is_dir() { Self::folder(name, &path, &mut files)? } else { Self::file(name, &path)? };
        if train.is_empty() || valid.is_empty() {
            return Err(DataError::Empty { corpus: name.into() });
        }
        Ok(Corpus { files, ..corpus(Origin::of(rule, &train, &valid), Parts::Text { train, valid }) })
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
        let (names, before_valid) = match self.origin.split_rule.as_str() {
            CONTIGUOUS => (["the text"; 2], train.len()),
            _ => (["the training text", "the validation text"], 0),
        };
        let parts = [(Split::Train, train, names[0], 0), (Split::Valid, valid, names[1], before_valid)];
        for (split, text, part, before) in parts {
            if let Err(error) = std::str::from_utf8(text) {
                let offset = error.valid_up_to();
                let file = self.files.iter().rfind(|(part, start, _)| *part == split && *start <= offset);
                let (part, offset) = match file {
                    Some((_, start, file)) => (file.clone(), offset - start),
                    None => (part.into(), before + offset),
                };
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
    /// Where documents begin goes into `joined`.
    fn folder(
        name: &str,
        path: &Path,
        joined: &mut Vec<(Split, usize, String)>,
    ) -> Result<(&'static str, Bytes, Bytes), DataError> {
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
        let one_of_two = |found, missing| DataError::OneOfTwo { corpus: name.into(), found, missing };
        match (named("train"), named("valid"), named("val")) {
            (Some(train), Some(valid), _) | (Some(train), None, Some(valid)) => {
                let (train, valid) = (map(train)?, map(valid)?);
                return Ok((own_files(&train, &valid), train, valid));
            }
            (Some(_), None, None) => return Err(one_of_two("train.txt", "valid.txt")),
            (None, Some(_), _) => return Err(one_of_two("valid.txt", "train.txt")),
            (None, None, Some(_)) => return Err(one_of_two("val.txt", "train.txt")),
            (None, None, None) => {}
        }
        match files.as_slice() {
            [] => Err(DataError::NoText { corpus: name.into() }),
            [file] => Self::file(name, file),
            few if few.len() < 10 => Err(DataError::FewDocuments { corpus: name.into(), n: few.len() }),
            _ => {
                let (mut train, mut valid) = (vec![], vec![]);
                for (i, file) in files.iter().enumerate() {
                    let (split, part) =
                        if i % 10 == 9 { (Split::Valid, &mut valid) } else { (Split::Train, &mut train) };
                    if !part.is_empty() {
                        part.extend_from_slice(b"\n\n");
                    }
                    joined.push((split, part.len(), file.file_name().unwrap_or_default().display().to_string()));
                    part.extend_from_slice(&map(file)?);
                }
                Ok(("by document: every tenth file for validation", train.into(), valid.into()))
            }
        }
    }
}

/// The rule of a text that lies in two files, with what is wrong with it as a test of a model.
fn own_files(train: &[u8], valid: &[u8]) -> &'static str {
    // The search is linear for text; bytes that are none are left alone.
    let is_part = |part: &[u8], whole: &[u8]| match (std::str::from_utf8(part), std::str::from_utf8(whole)) {
        (Ok(part), Ok(whole)) => !part.trim().is_empty() && whole.contains(part.trim()),
        _ => false,
    };
    if train == valid {
        "its own files for training and for validation, which hold the same text: a low validation loss may reflect memorization"
    } else if is_part(valid, train) {
        "its own files for training and for validation; all of the validation text is in the training text: a low validation loss may \
         reflect memorization"
    } else if is_part(train, valid) {
        "its own files for training and for validation; all of the training text is in the validation text: a low validation loss may \
         partly reflect memorization"
    } else {
        "its own files for training and for validation"
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
    fn one_file_of_two_is_no_collection() {
        let dir = tempfile::tempdir().unwrap();
        (0..12).for_each(|i| fs::write(dir.path().join(format!("{i}.txt")), "text").unwrap());
        for (found, missing) in [("train.txt", "valid.txt"), ("valid.txt", "train.txt"), ("val.txt", "train.txt")] {
            fs::write(dir.path().join(found), "one").unwrap();
            let expected = format!(
                "corpus `PATH` is a folder with {found} and without {missing}: add it, or give {found} another name if the folder \
                 is a collection of texts"
            );
            check_error(dir.path(), &expected);
            fs::remove_file(dir.path().join(found)).unwrap();
        }
        Corpus::open(dir.path().to_str().unwrap()).unwrap();
    }

    #[test]
    fn a_validation_text_out_of_the_training_text_is_said() {
        let rule = |train: &str, valid: &str| {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("train.txt"), train).unwrap();
            fs::write(dir.path().join("valid.txt"), valid).unwrap();
            Corpus::open(dir.path().to_str().unwrap()).unwrap().origin.split_rule
        };
        assert!(rule("one two three", "one two three").contains("the same text"));
        assert!(rule("one two three", " two\n").contains("all of the validation text is in the training text"));
        assert!(rule("one two\n", "one two three").contains("all of the training text is in the validation text"));
        assert_eq!(rule("one two three", " \n"), "its own files for training and for validation");
        assert_eq!(rule("one two three", "four"), "its own files for training and for validation");
    }

    #[test]
    fn one_bad_file_of_many_is_named() {
        let dir = tempfile::tempdir().unwrap();
        (0..20).for_each(|i| fs::write(dir.path().join(format!("{i:02}.txt")), "text").unwrap());
        for name in ["07.txt", "09.txt", "19.txt"] {
            fs::write(dir.path().join(name), b"te\xff").unwrap();
            let corpus = Corpus::open(dir.path().to_str().unwrap()).unwrap();
            let error = corpus.check_text(&TokenizerKind::Char).unwrap_err().to_string();
            assert!(error.contains(&format!("byte 2 of {name} is not valid")), "{error}");
            corpus.check_text(&TokenizerKind::Byte).unwrap();
            fs::write(dir.path().join(name), "text").unwrap();
        }
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
