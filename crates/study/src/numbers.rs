//! Numbers as they are printed.

use crate::stats::Paired;

/// A difference in nats as a change of perplexity, as it is printed.
pub(crate) fn percent_of(nats: f64) -> String {
    let percent = percent(nats);
    match percent.abs() {
        // Not -0.00.
        size if size < 0.005 => "0.00%".into(),
        size if size < 1e4 => format!("{percent:+.2}%"),
        _ => format!("{percent:+.1e}%"),
    }
}

/// A loss as it is printed.
pub(crate) fn nats(loss: f64) -> String {
    if loss.abs() < 1e5 { format!("{loss:.4}") } else { format!("{loss:.2e}") }
}

/// A perplexity as it is printed.
pub(crate) fn perplexity(ppl: f64) -> String {
    if ppl < 1e5 { format!("{ppl:.3}") } else { format!("{ppl:.2e}") }
}

/// A difference in nats as a change of perplexity in percent.
pub(crate) fn percent(nats: f64) -> f64 {
    100.0 * nats.exp_m1()
}

pub(crate) fn difference(paired: &Paired, number: impl Fn(f64) -> String) -> String {
    let interval = paired.interval.map(|(low, high)| format!(" [{}, {}]", number(low), number(high)));
    number(paired.mean) + &interval.unwrap_or_default()
}

/// A number of any size in four digits that count.
pub(crate) fn short(number: f64) -> String {
    match number.abs() {
        0.0 => "0".into(),
        1e-3..1e5 => {
            let digits = (3.0 - number.abs().log10().floor()).max(0.0) as usize;
            format!("{number:.digits$}")
        }
        _ => format!("{number:.2e}"),
    }
}

pub(crate) fn show<T>(value: Option<T>, f: impl FnOnce(T) -> String) -> String {
    value.map_or("-".into(), f)
}

/// Digits in groups of three.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn percent_is_of_perplexity() {
        // Shazeer's GLU table: ReLU 1.677 and SwiGLU 1.636 in log-perplexity are 4.0% of perplexity.
        assert!((super::percent(1.636 - 1.677) + 4.0).abs() < 0.02);
    }
}
