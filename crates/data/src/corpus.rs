//! Where text comes from.

use sha2::{Digest, Sha256};

use crate::DataError;
use crate::tales::tales;

/// Names of the corpora that need no file.
const EMBEDDED: [&str; 1] = ["tales"];

/// Bytes of `tales` to write, about the size of tiny Shakespeare.
const TALES_BYTES: usize = 1_100_000;

/// A text in two parts.
pub(crate) struct Corpus {
    /// Its name, or the path it was read from.
    pub(crate) name: String,
    pub(crate) train: String,
    pub(crate) valid: String,
    /// Of the whole text, in hexadecimal.
    pub(crate) sha256: String,
    /// Where it is known, the negative log-probability in nats of `valid` under the process that wrote it. A model that
    /// knew the process would have just this loss; none can expect a lower one.
    pub(crate) valid_nats: Option<f64>,
}

impl Corpus {
    /// The embedded corpus of that name, else the text file at that path.
    ///
    /// # Errors
    /// A missing, unreadable, empty or non-UTF-8 file.
    pub(crate) fn open(name: &str) -> Result<Self, DataError> {
        match name {
            "tales" => Ok(Self::tales()),
            path => Self::read(path),
        }
    }

    /// `tales`, split between two stories so that the floor of the validation part is exact.
    fn tales() -> Self {
        let (mut train, mut valid, mut valid_nats) = (String::new(), String::new(), 0.0);
        for tale in tales(0) {
            if train.len() < TALES_BYTES / 10 * 9 {
                train.push_str(&tale.text);
            } else if train.len() + valid.len() < TALES_BYTES {
                valid.push_str(&tale.text);
                valid_nats += tale.nats;
            } else {
                break;
            }
        }
        let sha256 = hex_sha256(&[&train, &valid]);
        Corpus { name: "tales".into(), train, valid, sha256, valid_nats: Some(valid_nats) }
    }

    /// A text file; its first 90% of characters are for training, as in nanoGPT.
    fn read(path: &str) -> Result<Self, DataError> {
        let corpus = || path.to_string();
        if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
            return Err(DataError::NotAFile { corpus: corpus() });
        }
        let bytes = std::fs::read(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => DataError::Missing {
                corpus: corpus(),
                hint: format!(
                    "name a UTF-8 text file by its path, or an embedded corpus ({}); data/README.md says where to get others",
                    EMBEDDED.join(", ")
                ),
            },
            _ => DataError::Unreadable { corpus: corpus(), source },
        })?;
        let mut text = String::from_utf8(bytes)
            .map_err(|error| DataError::NotUtf8 { corpus: corpus(), offset: error.utf8_error().valid_up_to() })?;
        if text.is_empty() {
            return Err(DataError::Empty { corpus: corpus() });
        }
        let sha256 = hex_sha256(&[&text]);
        let n_train = text.chars().count() * 9 / 10;
        let split = text.char_indices().nth(n_train).map_or(text.len(), |(offset, _)| offset);
        let valid = text.split_off(split);
        Ok(Corpus { name: path.into(), train: text, valid, sha256, valid_nats: None })
    }
}

fn hex_sha256(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn check(bytes: &[u8], expected: &str) {
        let file = file(bytes);
        let path = file.path().to_str().unwrap();
        let error = Corpus::open(path).err().unwrap().to_string();
        assert_eq!(error, expected.replace("PATH", path));
    }

    #[test]
    fn a_bad_file_is_named() {
        check(b"", "corpus `PATH` is empty: a corpus is a UTF-8 text file");
        check(b"abc\xff", "corpus `PATH` is not UTF-8 text: byte 3 is not valid; convert it to UTF-8 first");
        let missing = Corpus::open("no/such.txt").err().unwrap().to_string();
        assert!(missing.starts_with("corpus `no/such.txt`: there is no such file; name a UTF-8 text file by its path"));
    }

    #[test]
    fn ninety_percent_of_the_characters_are_for_training() {
        let file = file("äbcdefghij0123456789".as_bytes());
        let corpus = Corpus::open(file.path().to_str().unwrap()).unwrap();
        assert_eq!((corpus.train.as_str(), corpus.valid.as_str()), ("äbcdefghij01234567", "89"));
    }

    #[test]
    fn the_floor_of_tales_is_that_of_its_validation_stories() {
        let corpus = Corpus::open("tales").unwrap();
        let share = corpus.train.len() as f64 / (corpus.train.len() + corpus.valid.len()) as f64;
        assert!((share - 0.9).abs() < 0.001);
        assert!(corpus.train.ends_with(".\n") && corpus.valid.ends_with(".\n"));
        let stories: Vec<_> = tales(0).skip(corpus.train.lines().count()).take(corpus.valid.lines().count()).collect();
        assert_eq!(stories.iter().map(|tale| tale.text.as_str()).collect::<String>(), corpus.valid);
        let nats: f64 = stories.iter().map(|tale| tale.nats).sum();
        assert!((nats - corpus.valid_nats.unwrap()).abs() < 1e-6);
    }
}
