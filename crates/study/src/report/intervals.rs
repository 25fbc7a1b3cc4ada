//! The differences to the reference with their intervals, one above the other.

use std::fmt::Write;

use super::chart::{short, ticks};
use super::html::escape;
use crate::Comparison;
use crate::numbers::percent;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 10.0;
const ROW: f64 = 34.0;

/// A figure of all variants with an interval; nothing where there is none.
pub(super) fn figure(comparison: &Comparison) -> String {
    let margin = comparison.study.margin;
    let rows = comparison.rows.iter().enumerate();
    let shown: Vec<_> = rows
        .filter_map(|(i, row)| {
            let (low, high) = row.difference?.interval?;
            Some((i, row, [low, row.difference?.mean, high].map(percent)))
        })
        // A difference of hundreds of nats has no place on an axis.
        .filter(|(_, _, values)| values.iter().all(|value| value.is_finite()))
        .collect();
    if shown.is_empty() {
        return String::new();
    }
    // Of few seeds an interval may be a hundred times as wide as the difference: that it goes on is enough.
    let most = shown.iter().map(|(_, _, [_, mean, _])| 4.0 * mean.abs()).fold(4.0 * margin, f64::max);
    let low = shown.iter().map(|(_, _, [low, ..])| *low).fold(-margin, f64::min).max(-most);
    let high = shown.iter().map(|(_, _, [.., high])| *high).fold(margin, f64::max).min(most);
    let room = 0.05 * (high - low);
    let (low, high) = (low - room, high + room);
    let x = |value: f64| LEFT + (value.clamp(low, high) - low) / (high - low) * (WIDTH - LEFT - RIGHT);
    let bottom = TOP + ROW * shown.len() as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Differences to the reference with 95% intervals\">\n\
         <rect class=\"margin\" x=\"{:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"/>\n",
        bottom + 44.0,
        x(-margin),
        x(margin) - x(-margin),
        bottom - TOP
    );
    let ticks = ticks(low, high);
    let apart = if ticks.len() > 1 { ticks[1] - ticks[0] } else { 1.0 };
    for tick in &ticks {
        let (at, class) = (x(*tick), if tick.abs() < 1e-9 { "zero" } else { "grid" });
        let _ = writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}%</text>",
            bottom + 16.0,
            short(*tick, apart)
        );
    }
    for (n, (i, row, [from, mean, to])) in shown.iter().enumerate() {
        let y = TOP + ROW * (n as f64 + 0.5);
        let verdict = row.verdict.map_or("", |verdict| verdict.word());
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <line class=\"mean series{i}\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\"/>\
             <circle class=\"mark series{i}\" cx=\"{:.1}\" cy=\"{y}\" r=\"5\"/>\
             <text x=\"{}\" y=\"{}\">{verdict}</text>",
            LEFT - 10.0,
            y + 4.0,
            escape(&row.variant),
            x(*from),
            x(*to),
            x(*mean),
            WIDTH - RIGHT + 10.0,
            y + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">validation perplexity against {}: lower is better; grey: within the margin of {margin}%</text>\n</svg>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        bottom + 36.0,
        escape(&comparison.rows[0].variant)
    );
    format!("<figure class=\"intervals\">\n{svg}</figure>\n")
}
