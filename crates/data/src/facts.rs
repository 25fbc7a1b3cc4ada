//! `facts`: people with random attributes, to be learned by heart.
//!
//! A document names a person and says five things about them, in random order. What is said follows from the name alone,
//! so a model can only have it from its weights. After Allen-Zhu and Li, "Physics of Language Models", part 3.3, 2024.

use random::{ChaCha8Rng, below, stream};

use crate::document::{Class, Document, Marks, Writer};
use crate::words::{CITIES, FOODS, HOBBIES, JOBS, NAMES, PETS, SURNAMES};

/// What is said of a person: the words before, and the values it can have.
const ATTRIBUTES: [(&str, [&str; 32]); 5] =
    [(" was born in ", CITIES), (" works as a ", JOBS), (" eats ", FOODS), (" keeps a ", PETS), (" likes ", HOBBIES)];

/// Largest number of people: every first name with every surname.
pub(crate) const MOST_PEOPLE: usize = NAMES.len() * SURNAMES.len();

/// -ln p of one thing that is said, for one who knows only what could be: ln 32.
pub(crate) const NATS_PER_FACT: f64 = 5.0 * std::f64::consts::LN_2;

/// People and what is true of them.
pub(crate) struct Facts {
    people: Vec<Person>,
}

struct Person {
    name: String,
    /// The place of each attribute's value in its list.
    values: [usize; ATTRIBUTES.len()],
}

impl Facts {
    /// The first `n` of a fixed shuffle of all people.
    pub(crate) fn new(n: usize) -> Self {
        let mut rng = stream(0, "facts/people");
        let mut names: Vec<usize> = (0..MOST_PEOPLE).collect();
        let mut person = |i: usize| {
            let other = i + below(&mut rng, (MOST_PEOPLE - i) as u64) as usize;
            names.swap(i, other);
            let name = format!("{} {}", NAMES[names[i] / SURNAMES.len()], SURNAMES[names[i] % SURNAMES.len()]);
            let values = std::array::from_fn(|k| below(&mut rng, ATTRIBUTES[k].1.len() as u64) as usize);
            Person { name, values }
        };
        Facts { people: (0..n).map(&mut person).collect() }
    }

    /// `passes` documents about each person, every pass in an order of its own.
    pub(crate) fn shuffled(&self, passes: usize) -> impl Iterator<Item = Document> {
        let mut rng = stream(0, "facts/train");
        let mut order: Vec<usize> = (0..self.people.len()).collect();
        (0..passes * order.len()).map(move |i| {
            let at = i % order.len();
            let other = at + below(&mut rng, (order.len() - at) as u64) as usize;
            order.swap(at, other);
            self.document(order[at], &mut rng, Marks::Left)
        })
    }

    /// One document about each person.
    pub(crate) fn each(&self) -> impl Iterator<Item = Document> {
        let mut rng = stream(0, "facts/valid");
        (0..self.people.len()).map(move |person| self.document(person, &mut rng, Marks::Kept))
    }

    fn document(&self, person: usize, rng: &mut ChaCha8Rng, marks: Marks) -> Document {
        let mut writer = Writer::new(rng, marks);
        let values = &self.people[person].values;
        writer.take(person, self.people.len(), |i| vec![(&self.people[i].name, Class::FirstMention)]);
        let mut left: Vec<usize> = (0..ATTRIBUTES.len()).collect();
        while !left.is_empty() {
            let (_, i) = writer.choose(&[(1, left.len())], |_, i| vec![(ATTRIBUTES[left[i]].0, Class::Syntax)]);
            let attribute = left.remove(i);
            writer.write(ATTRIBUTES[attribute].1[values[attribute]], Class::Fact);
            writer.write(if left.is_empty() { ".\n" } else { "," }, Class::Syntax);
        }
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_described_in_any_order_but_always_alike() {
        let facts = Facts::new(3);
        insta::assert_snapshot!(facts.shuffled(2).take(4).chain(facts.each()).map(|d| d.text).collect::<String>());
        let sorted = |text: &str, name: &str| {
            let mut said: Vec<&str> = text[name.len()..].trim_end_matches(".\n").split(',').collect();
            said.sort();
            said.join(",")
        };
        for document in facts.shuffled(100) {
            let person = facts.people.iter().position(|person| document.text.starts_with(&person.name)).unwrap();
            let name = &facts.people[person].name;
            assert_eq!(sorted(&document.text, name), sorted(&facts.each().nth(person).unwrap().text, name));
        }
    }

    #[test]
    fn the_floor_is_the_name_and_the_order() {
        // 5! orders of five things; what is said of whom costs nothing.
        let expected = 200f64.ln() + 120f64.ln();
        for document in Facts::new(200).each() {
            let nats: f64 = document.marks.iter().map(|mark| mark.nats).sum();
            assert!((nats - expected).abs() < 1e-9, "{}", document.text);
            let facts = document.marks.iter().filter(|mark| mark.class == Class::Fact);
            assert!(facts.clone().count() >= 15 && facts.map(|mark| mark.nats).sum::<f64>() == 0.0);
        }
        assert!((NATS_PER_FACT - 32f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn values_are_uniform() {
        let facts = Facts::new(MOST_PEOPLE);
        for attribute in 0..ATTRIBUTES.len() {
            let mut counts = [0.0; 32];
            facts.people.iter().for_each(|person| counts[person.values[attribute]] += 1.0);
            let chi2: f64 = counts.iter().map(|n: &f64| (n - 128.0).powi(2) / 128.0).sum();
            assert!(chi2 < 61.1, "chi-squared {chi2} of 31 degrees of freedom: beyond 0.1%");
        }
        let mut names: Vec<&str> = facts.people.iter().map(|person| person.name.as_str()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), MOST_PEOPLE);
    }
}
