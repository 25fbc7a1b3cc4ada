//! The corpora that are generated, by name.

use crate::DataError;
use crate::document::{Document, Marks, Texts};
use crate::facts::{Facts, MOST_PEOPLE};
use crate::tales::Tales;
use crate::words::MOST_TIMES;

/// Names and descriptions.
pub const GENERATED: [(&str, &str); 2] = [
    ("tales", "stories whose lowest possible loss is known; tales-N, N up to 16: N times the words and the text"),
    ("facts", "64 people with random attributes, to be learned by heart; facts-N, N up to 4096: N people"),
];

/// Bytes of `tales` for training, and for validation.
const TALES_BYTES: (usize, usize) = (4_000_000, 100_000);

/// People of `facts` where no number is written.
const FACTS_PEOPLE: usize = 64;

/// Documents that `facts` has for training, and passes through all people that it has at least.
const FACTS_DOCUMENTS: (usize, usize) = (1 << 15, 32);

/// A corpus that is generated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Generated {
    /// `tales-N`: with word lists N times as long.
    Tales(usize),
    /// `facts-N`: of N people.
    Facts(usize),
}

impl Generated {
    /// The generated corpus of that name, if it is one's: a name alone or with a number. Any other is that of a file.
    pub(crate) fn named(name: &str) -> Option<Result<Self, DataError>> {
        let (kind, number) = name.split_once('-').map_or((name, None), |(kind, number)| (kind, Some(number)));
        if number.is_some_and(|number| number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit())) {
            return None;
        }
        let (default, most, make): (_, _, fn(usize) -> Self) = match kind {
            "tales" => (1, MOST_TIMES, Generated::Tales),
            "facts" => (FACTS_PEOPLE, MOST_PEOPLE, Generated::Facts),
            _ => return None,
        };
        let n = number.map_or(Some(default), |number| number.parse().ok()).filter(|n| (1..=most).contains(n));
        Some(n.map(make).ok_or_else(|| DataError::BadSize { corpus: name.into(), form: format!("{kind}-N"), most }))
    }

    /// Texts for training and documents for validation, which are marked.
    pub(crate) fn documents(self) -> (Texts, Vec<Document>) {
        match self {
            Generated::Tales(times) => {
                let tales = Tales::new(times);
                let (train, valid) = TALES_BYTES;
                let train = up_to(train * times, tales.documents("tales/train", Marks::Left)).collect();
                (train, up_to(valid, tales.documents("tales/valid", Marks::Kept)).collect())
            }
            Generated::Facts(people) => {
                let facts = Facts::new(people);
                let (documents, passes) = FACTS_DOCUMENTS;
                (facts.shuffled(passes.max(documents / people)).collect(), facts.each().collect())
            }
        }
    }
}

/// Documents until there are `bytes`.
fn up_to(bytes: usize, documents: impl Iterator<Item = Document>) -> impl Iterator<Item = Document> {
    let mut left = bytes;
    documents.take_while(move |document| {
        let is_wanted = left > 0;
        left = left.saturating_sub(document.text.len());
        is_wanted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str) -> String {
        Generated::named(name).unwrap().unwrap_err().to_string()
    }

    #[test]
    fn a_number_is_a_size_and_anything_else_a_file() {
        assert_eq!(Generated::named("tales").unwrap().unwrap(), Generated::Tales(1));
        assert_eq!(Generated::named("facts-20").unwrap().unwrap(), Generated::Facts(20));
        for name in ["tales-of-two.txt", "tales-", "tales-+4", "tales.txt", "facts-x", "fact", "taless-2"] {
            assert!(Generated::named(name).is_none(), "{name}");
        }
        for name in ["tales-0", "tales-17", "tales-99999999999999999999999"] {
            assert_eq!(error(name), format!("corpus `{name}`: must be tales-N with N from 1 to 16"));
        }
        assert_eq!(error("facts-5000"), "corpus `facts-5000`: must be facts-N with N from 1 to 4096");
        for (name, description) in GENERATED {
            let (Generated::Tales(n) | Generated::Facts(n)) = Generated::named(name).unwrap().unwrap();
            let most = if name == "tales" { MOST_TIMES } else { MOST_PEOPLE };
            assert!(description.contains(&format!("up to {most}")), "{description}");
            assert!(n == 1 || description.starts_with(&n.to_string()), "{description}");
        }
    }

    #[test]
    fn text_is_of_the_size_that_is_asked_for() {
        for times in [1, 2] {
            let (train, valid) = Generated::Tales(times).documents();
            let valid: usize = valid.iter().map(|document| document.text.len()).sum();
            for (bytes, wanted) in [(train.joined.len(), 4_000_000 * times), (valid, 100_000)] {
                assert!((wanted..wanted + 400).contains(&bytes), "{times}: {bytes}");
            }
        }
        let (train, valid) = Generated::Facts(10).documents();
        assert_eq!((train.each().count(), valid.len()), (32_760, 10));
        assert_eq!(Generated::Facts(4096).documents().0.each().count(), 32 * 4096);
        // Each pass names everyone.
        let mut first: Vec<&str> = train.each().take(10).map(|text| text.split_at(8).0).collect();
        let mut all: Vec<&str> = valid.iter().map(|d| d.text.split_at(8).0).collect();
        first.sort();
        all.sort();
        assert_eq!(first, all);
    }
}
