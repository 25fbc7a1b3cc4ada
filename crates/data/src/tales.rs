//! `tales`: generated stories whose probability is known, so that the lowest possible loss is known too.
//!
//! A story says who has what and who met whom, and then repeats some of it. It is a chain of choices from fixed
//! distributions, and its text decodes to one chain only.

use random::stream;

use crate::document::{Class, Document, Marks, Phrase, Writer, harmonic};
use crate::words::{COLORS, NAMES, THINGS, lengthened};

/// The words of stories: the base lists, each `times` as long.
pub(crate) struct Tales {
    names: Vec<String>,
    colors: Vec<String>,
    things: Vec<String>,
}

/// What has happened in a story. Numbers are places in the lists of words.
#[derive(Default)]
struct Plot {
    /// In order of their mention.
    people: Vec<usize>,
    /// (owner, thing, color)
    belongings: Vec<(usize, usize, usize)>,
    /// (who, whom) of each acquaintance.
    acquaintances: Vec<(usize, usize)>,
}

/// A sentence that repeats what an earlier one has said.
#[derive(Clone, Copy, PartialEq)]
enum Recall {
    /// The color of a belonging.
    Color(usize),
    /// The owner of a belonging.
    Owner(usize),
    /// Whom a person was met, or is known, by: of an acquaintance.
    Acquaintance(usize),
}

const MOST_PEOPLE: usize = 4;
const MOST_FACTS: usize = 3;
const MOST_RECALLS: usize = 4;

impl Tales {
    pub(crate) fn new(times: usize) -> Self {
        let list = |words: &[&str]| lengthened(words, times);
        Tales { names: list(&NAMES), colors: list(&COLORS), things: list(&THINGS) }
    }

    /// Stories of a stream, without end.
    pub(crate) fn documents(&self, name: &str, marks: Marks) -> impl Iterator<Item = Document> {
        let mut rng = stream(0, name);
        std::iter::repeat_with(move || {
            let mut writer = Writer::new(&mut rng, marks);
            self.write(&mut writer);
            writer.finish()
        })
    }

    /// Two or three facts, then one to four sentences that repeat some of them.
    fn write(&self, writer: &mut Writer) {
        let mut plot = Plot::default();
        let mut told: Vec<Recall> = vec![];
        for n_facts in 0.. {
            let recalls = if n_facts < 2 { vec![] } else { plot.recalls(&told) };
            let may_tell = n_facts < MOST_FACTS;
            if let Some(recall) = self.sentence(writer, &mut plot, may_tell, &recalls) {
                told.push(recall);
                break;
            }
        }
        loop {
            let recalls = plot.recalls(&told);
            let may_go_on = told.len() < MOST_RECALLS && !recalls.is_empty();
            let ends = [(1, 1), (u64::from(may_go_on) * 2, 1)];
            if writer.choose(&ends, |end, _| vec![(["\n", " "][end], Class::Syntax)]).0 == 0 {
                return;
            }
            told.extend(self.sentence(writer, &mut plot, false, &recalls));
        }
    }

    /// A fact, which joins the plot, or one of `recalls`, which is returned.
    fn sentence(&self, writer: &mut Writer, plot: &mut Plot, may_tell: bool, recalls: &[Recall]) -> Option<Recall> {
        // A known name is as likely as a fresh one when two are known.
        let (n_known, n_fresh) = (plot.people.len(), self.names.len() - plot.people.len());
        let known = self.names.len() as u64 / 2;
        let has = if may_tell { 2 } else { 0 };
        let room = MOST_PEOPLE - n_known;
        let meets = |n: usize| u64::from(may_tell && room >= n);
        let groups = [
            (has * known, n_known),
            (if room >= 1 { has } else { 0 }, n_fresh),
            (meets(1) * known, n_known),
            (meets(2), n_fresh),
            (self.names.len() as u64, recalls.len()),
        ];
        let subject = |plot: &Plot, group: usize, i: usize| match group {
            0 | 2 => (plot.people[i], Class::CopiedName),
            _ => (plot.fresh(i), Class::FirstMention),
        };
        let (group, i) = writer.choose(&groups, |group, i| {
            if group == 4 {
                return self.recall(plot, recalls[i]);
            }
            let (who, class) = subject(plot, group, i);
            vec![(&self.names[who], class), (if group < 2 { " has a " } else { " met " }, Class::Syntax)]
        });
        if group == 4 {
            return Some(recalls[i]);
        }
        let (who, class) = subject(plot, group, i);
        if class == Class::FirstMention {
            plot.people.push(who);
        }
        if group < 2 {
            self.belonging(writer, plot, who)
        } else {
            self.meeting(writer, plot, who)
        }
        None
    }

    /// "red ball. ", after "Hal has a ".
    fn belonging(&self, writer: &mut Writer, plot: &mut Plot, who: usize) {
        let color = writer.choose(&harmonic(self.colors.len()), |color, _| {
            vec![(&self.colors[color], Class::FirstMention), (" ", Class::Syntax)]
        });
        let mut fresh: Vec<usize> = (0..self.things.len()).collect();
        fresh.retain(|&thing| plot.belongings.iter().all(|&(_, other, _)| thing != other));
        let thing = writer.choose(&[(1, fresh.len())], |_, i| {
            vec![(&self.things[fresh[i]], Class::FirstMention), (". ", Class::Syntax)]
        });
        plot.belongings.push((who, fresh[thing.1], color.0));
    }

    /// "Lily, who knew Bob. ", after "Hal met "; all but Hal are fresh.
    fn meeting(&self, writer: &mut Writer, plot: &mut Plot, who: usize) {
        let mut who = who;
        let mut class = Class::FirstMention;
        loop {
            // Two in three meetings say no more; a name and its ending are one choice, for no name is to begin another.
            let more = u64::from(MOST_PEOPLE - plot.people.len() >= 2);
            let n_fresh = self.names.len() - plot.people.len();
            let (ending, i) = writer.choose(&[(2, n_fresh), (more, n_fresh)], |ending, i| {
                let after = [(". ", Class::Syntax), (", who knew ", Class::NestedClause)][ending];
                vec![(&self.names[plot.fresh(i)], class), after]
            });
            let whom = plot.fresh(i);
            plot.people.push(whom);
            plot.acquaintances.push((who, whom));
            if ending == 0 {
                return;
            }
            (who, class) = (whom, Class::NestedClause);
        }
    }

    /// A sentence without what follows it.
    fn recall(&self, plot: &Plot, recall: Recall) -> Phrase<'_> {
        use Class::{CopiedName, RecalledAttribute, Syntax};
        let name = |person: usize| self.names[person].as_str();
        match recall {
            Recall::Color(i) => {
                let (_, thing, color) = plot.belongings[i];
                let (thing, color) = (&self.things[thing], &self.colors[color]);
                vec![("The ", Syntax), (thing, CopiedName), (" is ", Syntax), (color, RecalledAttribute), (".", Syntax)]
            }
            Recall::Owner(i) => {
                let (owner, thing, _) = plot.belongings[i];
                let (thing, owner) = (&self.things[thing], name(owner));
                vec![
                    ("The ", Syntax),
                    (thing, CopiedName),
                    (" is ", Syntax),
                    (owner, RecalledAttribute),
                    ("'s.", Syntax),
                ]
            }
            Recall::Acquaintance(i) => {
                let (who, whom) = plot.acquaintances[i];
                let (who, whom) = (name(who), name(whom));
                vec![(whom, CopiedName), (" knows ", Syntax), (who, RecalledAttribute), (".", Syntax)]
            }
        }
    }
}

impl Plot {
    /// The i-th name that the story has not used.
    fn fresh(&self, i: usize) -> usize {
        let mut used = self.people.clone();
        used.sort();
        used.into_iter().fold(i, |name, used| if used <= name { name + 1 } else { name })
    }

    /// What can be repeated and has not been.
    fn recalls(&self, told: &[Recall]) -> Vec<Recall> {
        let belongings = (0..self.belongings.len()).flat_map(|i| [Recall::Color(i), Recall::Owner(i)]);
        let all = belongings.chain((0..self.acquaintances.len()).map(Recall::Acquaintance));
        all.filter(|recall| !told.contains(recall)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::sha256;
    use crate::words::MOST_TIMES;
    use std::collections::BTreeMap;

    fn valid(times: usize) -> impl Iterator<Item = Document> {
        let tales = Box::leak(Box::new(Tales::new(times)));
        tales.documents("tales/valid", Marks::Kept)
    }

    #[test]
    fn the_first_megabyte_is_fixed_for_ever() {
        let tales = Tales::new(1);
        let mut text = String::new();
        for document in tales.documents("tales/train", Marks::Left) {
            text += &document.text;
            if text.len() >= 1_000_000 {
                break;
            }
        }
        assert_eq!(
            sha256([&text.as_bytes()[..1_000_000]]),
            "e8191182d4fb1e3386b3e10e5b1e19395dfd07db3cad1a336973ee339ac1b290"
        );
    }

    #[test]
    fn a_tale_reads_like_one() {
        insta::assert_snapshot!(valid(1).take(5).map(|tale| tale.text).collect::<String>());
        insta::assert_snapshot!(valid(3).take(2).map(|tale| tale.text).collect::<String>());
    }

    #[test]
    fn marks_change_no_text() {
        let tales = Tales::new(2);
        let texts = |marks| -> Vec<String> {
            tales.documents("tales/valid", marks).take(200).map(|document| document.text).collect()
        };
        assert!(texts(Marks::Left) == texts(Marks::Kept));
    }

    /// Reads a story back into its choices and multiplies their probabilities, sharing no code with the writer.
    struct Reader {
        times: usize,
        people: Vec<String>,
        /// (thing, owner, color)
        things: Vec<(String, String, String)>,
        /// (whom, who)
        met: Vec<(String, String)>,
        told: Vec<String>,
        nats: f64,
    }

    impl Reader {
        fn nats(text: &str, times: usize) -> f64 {
            let mut reader = Reader { times, people: vec![], things: vec![], met: vec![], told: vec![], nats: 0.0 };
            let sentences: Vec<&str> = text.strip_suffix(".\n").unwrap().split(". ").collect();
            let mut n_facts = 0;
            for (i, sentence) in sentences.iter().enumerate() {
                let is_fact = sentence.contains(" has a ") || sentence.contains(" met ");
                let names = 64.0 * times as f64;
                let n_known = reader.people.len() as f64;
                let may_tell = n_facts < 3 && reader.told.is_empty();
                // Weights of: has (known, fresh), met (known, fresh), recalls.
                let room = 4 - reader.people.len();
                let has = if may_tell { 2.0 } else { 0.0 };
                let each = [
                    has * names / 2.0,
                    if room >= 1 { has } else { 0.0 },
                    if may_tell && room >= 1 { names / 2.0 } else { 0.0 },
                    if may_tell && room >= 2 { 1.0 } else { 0.0 },
                ];
                let n_recalls = 2 * reader.things.len() + reader.met.len() - reader.told.len();
                let recalls = if n_facts >= 2 { names * n_recalls as f64 } else { 0.0 };
                let fresh = names - n_known;
                let total = each[0] * n_known + each[1] * fresh + each[2] * n_known + each[3] * fresh + recalls;
                if is_fact {
                    n_facts += 1;
                    let is_known = reader.people.iter().any(|name| sentence.starts_with(&format!("{name} ")));
                    let kind = usize::from(sentence.contains(" met ")) * 2 + usize::from(!is_known);
                    reader.nats -= (each[kind] / total).ln();
                    reader.fact(sentence, is_known);
                } else {
                    reader.nats -= (names / total).ln();
                    reader.recall(sentence);
                    let left = 2 * reader.things.len() + reader.met.len() - reader.told.len();
                    if left > 0 && reader.told.len() < 4 {
                        let is_last = i == sentences.len() - 1;
                        reader.nats -= (if is_last { 1.0 / 3.0 } else { 2.0 / 3.0f64 }).ln();
                    }
                }
            }
            reader.nats
        }

        fn fact(&mut self, sentence: &str, is_known: bool) {
            let words: Vec<&str> = sentence.split(' ').collect();
            if !is_known {
                self.people.push(words[0].into());
            }
            if words[1] == "has" {
                let (color, thing) = (words[3], words[4]);
                let colors = lengthened(&COLORS, self.times);
                let weight = |i: usize| (840_000 / i) as f64;
                let all: f64 = (1..=colors.len()).map(weight).sum();
                let rank = colors.iter().position(|word| word == color).unwrap() + 1;
                self.nats -= (weight(rank) / all).ln();
                self.nats += ((16 * self.times - self.things.len()) as f64).ln();
                assert!(self.things.iter().all(|(other, ..)| other != thing));
                self.things.push((thing.into(), words[0].into(), color.into()));
                return;
            }
            let chain: Vec<&str> = sentence.split(" met ").nth(1).unwrap().split(", who knew ").collect();
            let mut who = words[0].to_string();
            for (i, whom) in chain.iter().enumerate() {
                let fresh = 64.0 * self.times as f64 - self.people.len() as f64;
                let may_go_on = self.people.len() <= 2;
                let total = fresh * if may_go_on { 3.0 } else { 2.0 };
                self.nats -= (if i < chain.len() - 1 { 1.0 } else { 2.0 } / total).ln();
                assert!(!self.people.contains(&whom.to_string()));
                self.people.push(whom.to_string());
                self.met.push((whom.to_string(), who));
                who = whom.to_string();
            }
        }

        /// Checks that a sentence repeats what was said, and had not been repeated.
        fn recall(&mut self, sentence: &str) {
            let words: Vec<&str> = sentence.split(' ').collect();
            if words[1] == "knows" {
                assert!(self.met.iter().any(|(whom, who)| whom == words[0] && who == words[2]), "{sentence}");
            } else {
                let (_, owner, color) = self.things.iter().find(|(thing, ..)| thing == words[1]).unwrap();
                assert!(words[3] == color || words[3] == format!("{owner}'s"), "{sentence}");
            }
            assert!(!self.told.contains(&sentence.to_string()));
            self.told.push(sentence.into());
        }
    }

    #[test]
    fn the_probability_follows_from_the_text_alone() {
        for times in [1, 3, MOST_TIMES] {
            for tale in valid(times).take(1_000) {
                let stored: f64 = tale.marks.iter().map(|mark| mark.nats).sum();
                let read = Reader::nats(&tale.text, times);
                assert!((stored - read).abs() < 1e-9, "{stored} against {read}: {}", tale.text);
                assert_eq!(tale.text.len(), tale.marks.len());
            }
        }
    }

    #[test]
    fn what_follows_with_certainty_costs_nothing() {
        let mut nats: BTreeMap<Class, f64> = BTreeMap::new();
        for mark in valid(1).take(2_000).flat_map(|tale| tale.marks) {
            *nats.entry(mark.class).or_default() += mark.nats;
        }
        // After "The ball is " it is still open whether the color or the owner comes: one bit, at the first letter.
        let open = nats[&Class::RecalledAttribute] / nats.values().sum::<f64>();
        assert!((0.0..0.05).contains(&open), "{open}");
        assert!(nats[&Class::FirstMention] > 0.5 * nats.values().sum::<f64>());
    }

    /// Expected nats and characters of a story from here on, by the law of total expectation. By symmetry only counts
    /// matter: how many people, belongings and acquaintances there are, and how many sentences have been repeated.
    fn expected(people: usize, things: usize, met: usize, n_facts: usize, told: usize) -> (f64, f64) {
        let mean = |words: &[&str]| words.iter().map(|word| word.len() as f64).sum::<f64>() / words.len() as f64;
        let (name, thing) = (mean(&NAMES), mean(&THINGS));
        let weights: Vec<f64> = (1..=8).map(|i| (840_000 / i) as f64).collect();
        let all: f64 = weights.iter().sum();
        let color: f64 = COLORS.iter().zip(&weights).map(|(word, weight)| word.len() as f64 * weight / all).sum();
        let color_nats: f64 = weights.iter().map(|weight| -weight / all * (weight / all).ln()).sum();
        // (probability, nats, characters, what follows)
        let mut total = (0.0, 0.0);
        let mut add = |p: f64, nats: f64, chars: f64, rest: (f64, f64)| {
            total = (total.0 + p * (nats + rest.0), total.1 + p * (chars + rest.1));
        };
        let n = people as f64;
        let fresh = 64.0 - n;
        let may_tell = n_facts < 3 && told == 0;
        let (room, has) = (4 - people, if may_tell { 2.0 } else { 0.0 });
        let each = [
            has * 32.0,
            if room >= 1 { has } else { 0.0 },
            if may_tell && room >= 1 { 32.0 } else { 0.0 },
            if may_tell && room >= 2 { 1.0 } else { 0.0 },
        ];
        let recalls = if n_facts >= 2 { (2 * things + met - told) as f64 } else { 0.0 };
        let sum = (each[0] + each[2]) * n + (each[1] + each[3]) * fresh + 64.0 * recalls;
        for (kind, count) in [n, fresh, n, fresh].into_iter().enumerate() {
            if each[kind] * count == 0.0 {
                continue;
            }
            let (p, nats) = (each[kind] * count / sum, -(each[kind] / sum).ln());
            let people = people + kind % 2;
            if kind < 2 {
                let rest = expected(people, things + 1, met, n_facts + 1, 0);
                let chars = name + " has a ".len() as f64 + color + 1.0 + thing + ". ".len() as f64;
                add(p, nats + color_nats + ((16 - things) as f64).ln(), chars, rest);
            } else {
                // Each way the chain of acquaintances can go: its length, probability, nats.
                let (mut reached, mut chain_nats, mut length) = (1.0, 0.0, 0);
                while people + length < 4 {
                    let fresh = 64.0 - (people + length) as f64;
                    let more = if people + length <= 2 { 1.0 } else { 0.0 };
                    let ends = 2.0 / (2.0 + more);
                    length += 1;
                    let nats = nats + chain_nats - (ends / fresh).ln();
                    let chars = name
                        + " met ".len() as f64
                        + length as f64 * name
                        + ". ".len() as f64
                        + (length - 1) as f64 * ", who knew ".len() as f64;
                    let rest = expected(people + length, things, met + length, n_facts + 1, 0);
                    add(p * reached * ends, nats, chars, rest);
                    reached *= 1.0 - ends;
                    chain_nats -= ((1.0 - ends) / fresh).ln();
                }
            }
        }
        if recalls > 0.0 {
            let left = recalls - 1.0;
            let ends = if left > 0.0 && told + 1 < 4 { 1.0 / 3.0 } else { 1.0 };
            // Which sentences are left does not matter for their number, and on average not for their length.
            let nats = -(64.0 / sum).ln();
            let p = 64.0 * recalls / sum;
            add(p * ends, nats - f64::ln(ends), 1.0, (0.0, 0.0));
            if ends < 1.0 {
                add(p * (1.0 - ends), nats - (1.0 - ends).ln(), 1.0, expected(people, things, met, 3, told + 1));
            }
            let (colors, owners, acquaintances) = (things as f64, things as f64, met as f64);
            let chars = colors * ("The  is .".len() as f64 + thing + color)
                + owners * ("The  is 's.".len() as f64 + thing + name)
                + acquaintances * (" knows .".len() as f64 + 2.0 * name);
            add(p, 0.0, chars / (colors + owners + acquaintances), (0.0, 0.0));
        }
        total
    }

    #[test]
    fn the_entropy_rate_has_a_closed_form() {
        let (nats, chars) = expected(0, 0, 0, 0, 0);
        let n = 20_000;
        let stories: Vec<(f64, f64)> = valid(1)
            .take(n)
            .map(|tale| (tale.marks.iter().map(|mark| mark.nats).sum(), tale.text.len() as f64))
            .collect();
        for (expected, of) in [(nats, 0), (chars, 1)] {
            let value = |story: &(f64, f64)| if of == 0 { story.0 } else { story.1 };
            let mean = stories.iter().map(value).sum::<f64>() / n as f64;
            let variance = stories.iter().map(|story| (value(story) - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
            let error = (variance / n as f64).sqrt();
            assert!((mean - expected).abs() < 3.0 * error, "{mean} +-{error} against {expected}");
        }
        // And the rate itself, by the delta method.
        let rate = nats / chars;
        let (sum_nats, sum_chars) = stories.iter().fold((0.0, 0.0), |sum, story| (sum.0 + story.0, sum.1 + story.1));
        let residual = stories.iter().map(|story| (story.0 - rate * story.1).powi(2)).sum::<f64>() / n as f64;
        let error = (residual / n as f64).sqrt() / chars;
        assert!((sum_nats / sum_chars - rate).abs() < 3.0 * error);
    }
}
