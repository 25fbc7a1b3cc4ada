//! The words of generated documents.

pub(crate) const NAMES: [&str; 64] = [
    "Abe", "Ada", "Amy", "Ann", "Ben", "Bess", "Bob", "Cara", "Cleo", "Cody", "Dan", "Dora", "Duke", "Ed", "Ella",
    "Emil", "Eve", "Fay", "Finn", "Fred", "Gail", "Gus", "Hal", "Hope", "Hugo", "Ida", "Ike", "Ines", "Ivan", "Jack",
    "Jane", "Joan", "Jules", "Kate", "Ken", "Kim", "Lars", "Lea", "Leo", "Lily", "Lou", "Luke", "Mary", "Max", "Mia",
    "Milo", "Nell", "Nico", "Noah", "Nora", "Olga", "Omar", "Otto", "Paul", "Pia", "Quinn", "Rosa", "Ruth", "Sam",
    "Tess", "Theo", "Uma", "Vera", "Zack",
];

pub(crate) const COLORS: [&str; 8] = ["red", "blue", "green", "gold", "black", "white", "pink", "gray"];

pub(crate) const THINGS: [&str; 16] = [
    "ball", "box", "hat", "cup", "kite", "drum", "coin", "boat", "lamp", "bell", "ring", "rope", "sled", "vase",
    "flute", "map",
];

/// Endings that make further words of those above.
const ENDINGS: [&str; 16] =
    ["", "ba", "do", "fu", "ka", "le", "mi", "no", "pu", "ra", "so", "ti", "va", "wo", "xi", "zu"];

/// The largest number of times that a list can be had.
pub(crate) const MOST_TIMES: usize = ENDINGS.len();

/// `words` as they are, then again with each further ending, until there are `times` as many.
pub(crate) fn lengthened(words: &[&str], times: usize) -> Vec<String> {
    ENDINGS[..times].iter().flat_map(|ending| words.iter().map(move |word| format!("{word}{ending}"))).collect()
}

pub(crate) const SURNAMES: [&str; 64] = [
    "Adler", "Banks", "Baker", "Bell", "Berg", "Bloom", "Boyd", "Brook", "Burns", "Carr", "Chase", "Clay", "Cole",
    "Cook", "Cross", "Dale", "Day", "Dean", "Drake", "Dunn", "Falk", "Field", "Fisk", "Ford", "Fox", "Frost", "Gill",
    "Glass", "Grant", "Hale", "Hart", "Hess", "Hill", "Holt", "Hunt", "Judd", "Kane", "Kerr", "King", "Knox", "Lane",
    "Lang", "Marsh", "Moss", "Nash", "North", "Oaks", "Page", "Park", "Penn", "Pike", "Pond", "Quill", "Reed", "Rice",
    "Ross", "Shaw", "Stone", "Todd", "Vance", "Wade", "West", "Wood", "York",
];

pub(crate) const CITIES: [&str; 32] = [
    "Athens", "Basel", "Bergen", "Berlin", "Boston", "Cairo", "Cork", "Dakar", "Delhi", "Dover", "Dublin", "Essen",
    "Genoa", "Ghent", "Hanoi", "Havana", "Izmir", "Kyoto", "Lagos", "Lima", "Lisbon", "London", "Madrid", "Milan",
    "Nice", "Osaka", "Oslo", "Paris", "Quito", "Riga", "Rome", "Turin",
];

pub(crate) const JOBS: [&str; 32] = [
    "actor", "artist", "baker", "barber", "bosun", "clerk", "cook", "dancer", "doctor", "driver", "farmer", "fisher",
    "guard", "guide", "joiner", "judge", "lawyer", "mason", "miller", "miner", "nurse", "painter", "pilot", "poet",
    "porter", "potter", "sailor", "singer", "smith", "tailor", "teacher", "weaver",
];

pub(crate) const FOODS: [&str; 32] = [
    "apples", "bacon", "beans", "bread", "butter", "cake", "cheese", "corn", "curry", "dates", "eggs", "figs", "fish",
    "garlic", "grapes", "honey", "jam", "lamb", "leeks", "lemons", "melons", "nuts", "olives", "onions", "pasta",
    "peas", "pie", "plums", "rice", "soup", "stew", "toast",
];

pub(crate) const PETS: [&str; 32] = [
    "beetle", "bull", "camel", "cat", "cow", "crab", "crow", "dog", "donkey", "duck", "ferret", "fox", "frog", "gecko",
    "goat", "goose", "hare", "hen", "horse", "lizard", "mouse", "mule", "newt", "parrot", "pig", "pony", "rat",
    "raven", "sheep", "snail", "toad", "turtle",
];

pub(crate) const HOBBIES: [&str; 32] = [
    "acting",
    "archery",
    "biking",
    "bowling",
    "boxing",
    "camping",
    "cards",
    "carving",
    "chess",
    "cooking",
    "dancing",
    "darts",
    "diving",
    "drawing",
    "fencing",
    "fishing",
    "gardening",
    "golf",
    "hiking",
    "judo",
    "juggling",
    "knitting",
    "painting",
    "poetry",
    "reading",
    "rowing",
    "running",
    "sailing",
    "singing",
    "skating",
    "tennis",
    "yoga",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_there_twice() {
        for words in [&NAMES[..], &COLORS, &THINGS, &SURNAMES, &CITIES, &JOBS, &FOODS, &PETS, &HOBBIES] {
            let mut all = lengthened(words, MOST_TIMES);
            all.sort();
            all.dedup();
            assert_eq!(all.len(), words.len() * MOST_TIMES);
        }
    }
}
