//! `tales`: generated stories whose probability is known, so that the lowest possible loss is known too.
//!
//! A story is a chain of choices from fixed distributions. Its text decodes to one chain only, so the story's
//! log-probability is the sum over its choices, added up while it is written.

use random::{ChaCha8Rng, below, stream};

/// One story and its exact negative log-probability.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tale {
    pub(crate) text: String,
    /// -ln p(text), in nats.
    pub(crate) nats: f64,
}

/// Stories for `seed`, without end.
pub(crate) fn tales(seed: u64) -> impl Iterator<Item = Tale> {
    let mut rng = stream(seed, "tales");
    std::iter::repeat_with(move || Writer::new(&mut rng).tale())
}

const NAMES: [&str; 64] = [
    "Abe", "Ada", "Amy", "Ann", "Ben", "Bess", "Bob", "Cara", "Cleo", "Cody", "Dan", "Dora", "Duke", "Ed", "Ella",
    "Emil", "Eve", "Fay", "Finn", "Fred", "Gail", "Gus", "Hal", "Hope", "Hugo", "Ida", "Ike", "Ines", "Ivan", "Jack",
    "Jane", "Joan", "Jules", "Kate", "Ken", "Kim", "Lars", "Lea", "Leo", "Lily", "Lou", "Luke", "Mary", "Max", "Mia",
    "Milo", "Nell", "Nico", "Noah", "Nora", "Olga", "Omar", "Otto", "Paul", "Pia", "Quinn", "Rosa", "Ruth", "Sam",
    "Tess", "Theo", "Uma", "Vera", "Zack",
];
const ANIMALS: [&str; 8] = ["cat", "dog", "fox", "hen", "bear", "frog", "owl", "mouse"];
const COLORS: [&str; 8] = ["red", "blue", "green", "gold", "black", "white", "pink", "gray"];
const OBJECTS: [&str; 10] = ["ball", "box", "hat", "cup", "kite", "drum", "coin", "boat", "lamp", "bell"];
const PLACES: [&str; 8] = ["park", "farm", "lake", "hill", "shop", "barn", "cave", "beach"];
const MOODS: [&str; 6] = ["happy", "sad", "tired", "proud", "calm", "brave"];

/// What can happen next in a story.
#[derive(Clone, Copy)]
enum Event {
    Find,
    Meet,
    Feel,
    Ask,
    End,
}

/// Writes one story and keeps the account of its choices.
struct Writer<'a> {
    rng: &'a mut ChaCha8Rng,
    text: String,
    nats: f64,
}

impl<'a> Writer<'a> {
    fn new(rng: &'a mut ChaCha8Rng) -> Self {
        Writer { rng, text: String::new(), nats: 0.0 }
    }

    fn tale(mut self) -> Tale {
        let hero = self.uniform(&NAMES);
        let animal = self.zipf(&ANIMALS);
        let home = self.zipf(&PLACES);
        self.write(&format!("{hero} the {animal} lived by the {home}. "));
        let mut people = vec![hero];
        let mut finds: Vec<(&str, &str)> = vec![];
        loop {
            // Weights in twentieths; what cannot happen has none, and the rest is renormalized.
            let find = if finds.len() < 3 { 7 } else { 0 };
            let meet = if people.len() < 4 { 4 } else { 0 };
            let ask = if finds.is_empty() { 0 } else { 5 };
            let events =
                [(Event::Find, find), (Event::Meet, meet), (Event::Feel, 2), (Event::Ask, ask), (Event::End, 2)];
            match self.choose(&events) {
                Event::Find => {
                    let fresh: Vec<&str> =
                        OBJECTS.into_iter().filter(|o| finds.iter().all(|(found, _)| found != o)).collect();
                    let finder = self.uniform(&people);
                    let color = self.zipf(&COLORS);
                    let object = self.uniform(&fresh);
                    finds.push((object, color));
                    self.write(&format!("{finder} found a {color} {object}. "));
                }
                Event::Meet => {
                    let met = self.stranger(&mut people);
                    self.write(&format!("{hero} met {met}"));
                    if people.len() < 4 && self.choose(&[(true, 1), (false, 2)]) {
                        let known = self.stranger(&mut people);
                        self.write(&format!(", who knew {known}"));
                    }
                    self.write(". ");
                }
                Event::Feel => {
                    let mood = self.zipf(&MOODS);
                    self.write(&format!("{hero} the {animal} felt {mood}. "));
                }
                Event::Ask => {
                    let (object, color) = self.uniform(&finds);
                    self.write(&format!("What color was the {object}? It was {color}. "));
                }
                Event::End => {
                    self.write(&format!("{hero} went home to the {home}.\n"));
                    return Tale { text: self.text, nats: self.nats };
                }
            }
        }
    }

    /// A name that the story has not used; it joins `people`.
    fn stranger(&mut self, people: &mut Vec<&'static str>) -> &'static str {
        let fresh: Vec<&str> = NAMES.into_iter().filter(|name| !people.contains(name)).collect();
        let name = self.uniform(&fresh);
        people.push(name);
        name
    }

    fn uniform<T: Copy>(&mut self, items: &[T]) -> T {
        let weighted: Vec<(T, u64)> = items.iter().map(|&item| (item, 1)).collect();
        self.choose(&weighted)
    }

    /// The i-th item (from 1) with a weight of 840 / i: the whole numbers of a harmonic distribution over up to 8 items.
    fn zipf<T: Copy>(&mut self, items: &[T]) -> T {
        let weighted: Vec<(T, u64)> = items.iter().zip(1..).map(|(&item, i)| (item, 840 / i)).collect();
        self.choose(&weighted)
    }

    /// An item with probability proportional to its whole weight.
    fn choose<T: Copy>(&mut self, weighted: &[(T, u64)]) -> T {
        let total: u64 = weighted.iter().map(|(_, weight)| weight).sum();
        let mut left = below(self.rng, total);
        for &(item, weight) in weighted {
            if left < weight {
                self.nats -= (weight as f64 / total as f64).ln();
                return item;
            }
            left -= weight;
        }
        unreachable!("the weights add up to the total")
    }

    fn write(&mut self, text: &str) {
        self.text.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::collections::HashMap;

    #[test]
    fn the_text_is_fixed_for_ever() {
        let mut text = String::new();
        for tale in tales(0) {
            text.push_str(&tale.text);
            if text.len() >= 100_000 {
                break;
            }
        }
        let hash: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, "ffb9827afd102e81b4cfcfc0a7641c7d34e57a114982f360da471ebbcfbe30bb");
    }

    #[test]
    fn a_tale_reads_like_one() {
        let expected = "Hal the cat lived by the hill. Hal met Lily. Lily found a gold ball. Hal met Bob. Hal went home to \
                        the hill.\n";
        assert_eq!(tales(0).next().unwrap().text, expected);
    }

    /// Reads a story back into its choices and multiplies their probabilities, sharing no code with the writer.
    fn nats_from_text(text: &str) -> f64 {
        let zipf = |items: &[&str], word: &str| {
            let harmonic: u64 = (1..=items.len() as u64).map(|i| 840 / i).sum();
            let rank = items.iter().position(|item| *item == word).expect("a word of the list") as u64 + 1;
            -(((840 / rank) as f64) / harmonic as f64).ln()
        };
        let words: Vec<&str> = text.split_whitespace().map(|w| w.trim_end_matches(['.', ',', '?'])).collect();
        let (hero, animal, home) = (words[0], words[2], words[6]);
        let mut nats = 64f64.ln() + zipf(&ANIMALS, animal) + zipf(&PLACES, home);
        let mut people = vec![hero];
        let mut finds: HashMap<&str, &str> = HashMap::new();
        let mut sentences = text.trim_end().split_inclusive(['.', '?']).map(str::trim).skip(1);
        while let Some(sentence) = sentences.next() {
            let w: Vec<&str> = sentence.split(' ').map(|w| w.trim_end_matches(['.', ',', '?'])).collect();
            let find = if finds.len() < 3 { 7.0 } else { 0.0 };
            let meet = if people.len() < 4 { 4.0 } else { 0.0 };
            let ask = if finds.is_empty() { 0.0 } else { 5.0 };
            let total: f64 = find + meet + 2.0 + ask + 2.0;
            if w[0] == "What" {
                let answer = sentences.next().expect("an answer").trim_end_matches('.');
                assert_eq!(answer.strip_prefix("It was "), finds.get(w[4]).copied());
                nats += (total / ask).ln() + (finds.len() as f64).ln();
            } else if w[1] == "found" {
                assert!(people.contains(&w[0]));
                nats += (total / find).ln() + (people.len() as f64).ln() + zipf(&COLORS, w[3]);
                nats += ((OBJECTS.len() - finds.len()) as f64).ln();
                assert!(finds.insert(w[4], w[3]).is_none());
            } else if w[1] == "met" {
                nats += (total / meet).ln() + ((64 - people.len()) as f64).ln();
                people.push(w[2]);
                if w.len() > 3 {
                    nats += 3f64.ln() + ((64 - people.len()) as f64).ln();
                    people.push(w[5]);
                } else if people.len() < 4 {
                    nats += 1.5f64.ln();
                }
            } else if w[1] == "the" {
                nats += (total / 2.0).ln() + zipf(&MOODS, w[4]);
            } else {
                assert_eq!(sentence, format!("{hero} went home to the {home}."));
                nats += (total / 2.0).ln();
            }
        }
        nats
    }

    #[test]
    fn the_probability_follows_from_the_text_alone() {
        for tale in tales(5).take(2_000) {
            let read = nats_from_text(&tale.text);
            assert!((tale.nats - read).abs() < 1e-9, "{} against {read}: {}", tale.nats, tale.text);
        }
    }
}
