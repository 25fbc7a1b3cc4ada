//! Generated documents: text with the exact probability of each of its characters.

use random::{ChaCha8Rng, below};
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// What a character of a generated document is there for; losses are reported by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Class {
    /// What any document of the kind has.
    Syntax,
    /// A name, thing or color that the document has not mentioned: mostly chance.
    FirstMention,
    /// The name of a person or a thing, chosen among those mentioned.
    CopiedName,
    /// What an earlier sentence has said of that person or thing. Only which of two things is repeated is open.
    RecalledAttribute,
    /// A clause within a clause, with its name.
    NestedClause,
    /// What follows from no other part of the document, but is always the same for its subject.
    Fact,
}

/// A text, ASCII only, and what is known of each character.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Document {
    pub(crate) text: String,
    /// One for each byte, where the writer kept an account.
    pub(crate) marks: Vec<Mark>,
}

/// Texts of documents one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Texts {
    pub(crate) joined: String,
    /// The byte at which each ends.
    ends: Vec<usize>,
}

impl Texts {
    /// Each text by itself.
    pub(crate) fn each(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.joined[start..end])
    }
}

impl FromIterator<Document> for Texts {
    fn from_iter<I: IntoIterator<Item = Document>>(documents: I) -> Self {
        let mut texts = Texts::default();
        for document in documents {
            texts.joined += &document.text;
            texts.ends.push(texts.joined.len());
        }
        texts
    }
}

/// What is known of a character.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mark {
    pub(crate) class: Class,
    /// -ln p(character | all before it in the document)
    pub(crate) nats: f64,
}

/// Parts of a text, each with its class.
pub(crate) type Phrase<'a> = Vec<(&'a str, Class)>;

/// Writes a document choice by choice.
pub(crate) struct Writer<'a> {
    rng: &'a mut ChaCha8Rng,
    marks: Marks,
    document: Document,
}

/// Whether the probability of each character is worked out, which takes most of the time. It changes no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marks {
    Kept,
    Left,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(rng: &'a mut ChaCha8Rng, marks: Marks) -> Self {
        Writer { rng, marks, document: Document::default() }
    }

    pub(crate) fn finish(self) -> Document {
        self.document
    }

    /// Writes text that could not be otherwise.
    pub(crate) fn write(&mut self, text: &str, class: Class) {
        self.choose(&[(1, 1)], |_, _| vec![(text, class)]);
    }

    /// Writes one of several phrases, none of which is the beginning of another. `groups` are (weight of each phrase,
    /// number of phrases); a phrase is chosen with probability proportional to its weight. Returns its group and its
    /// place within that.
    pub(crate) fn choose<'p>(
        &mut self,
        groups: &[(u64, usize)],
        phrase: impl Fn(usize, usize) -> Phrase<'p>,
    ) -> (usize, usize) {
        let total: u64 = groups.iter().map(|&(weight, n)| weight * n as u64).sum();
        let mut left = below(self.rng, total);
        let group = groups.iter().position(|&(weight, n)| {
            let own = weight * n as u64;
            let is_here = left < own;
            left -= if is_here { 0 } else { own };
            is_here
        });
        let group = group.expect("the draw is below the sum");
        let place = (left / groups[group].0) as usize;

        self.put(groups, (group, place), phrase);
        (group, place)
    }

    /// Writes phrase `i` of `n` that are equally likely, as if it had been chosen.
    pub(crate) fn take<'p>(&mut self, i: usize, n: usize, phrase: impl Fn(usize) -> Phrase<'p>) {
        self.put(&[(1, n)], (0, i), |_, i| phrase(i));
    }

    fn put<'p>(
        &mut self,
        groups: &[(u64, usize)],
        (group, place): (usize, usize),
        phrase: impl Fn(usize, usize) -> Phrase<'p>,
    ) {
        let written = phrase(group, place);
        if self.marks == Marks::Kept {
            let each = groups.iter().enumerate().flat_map(|(g, &(weight, n))| (0..n).map(move |i| (g, i, weight)));
            let phrases = each.filter(|&(_, _, weight)| weight > 0);
            let text = |g, i| phrase(g, i).into_iter().map(|(text, _)| text).collect();
            self.mark(&written, phrases.map(|(g, i, weight)| (weight, text(g, i))).collect());
        }
        self.document.text.extend(written.into_iter().map(|(text, _)| text));
    }

    /// Marks the characters of a phrase that was chosen among weighted ones, itself included. A character's probability is
    /// the weight of the phrases that agree with what is written up to it, over that of those that agree up to before it.
    fn mark(&mut self, written: &Phrase, mut agreeing: Vec<(u64, String)>) {
        let weight = |phrases: &[(u64, String)]| phrases.iter().map(|(weight, _)| weight).sum::<u64>();
        let mut before = weight(&agreeing);
        let bytes = written.iter().flat_map(|&(text, class)| text.bytes().map(move |byte| (byte, class)));
        for (offset, (byte, class)) in bytes.enumerate() {
            if agreeing.len() > 1 {
                agreeing.retain(|(_, text)| text.as_bytes().get(offset) == Some(&byte));
            }
            let after = weight(&agreeing);
            self.document.marks.push(Mark { class, nats: (before as f64 / after as f64).ln() });
            before = after;
        }
        assert_eq!(agreeing.len(), 1, "a phrase is the beginning of another");
    }
}

/// Weights of a harmonic distribution: the i-th of `n`, from 1, has 1/i of the first's.
pub(crate) fn harmonic(n: usize) -> Vec<(u64, usize)> {
    (1..=n as u64).map(|i| (840_000 / i, 1)).collect()
}
