//! A line chart as SVG: mean and spread of several curves.

use std::fmt::Write;

use super::Curve;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

/// How the vertical axis is divided.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scale {
    Linear,
    Log,
}

impl Scale {
    fn forward(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log => value.max(1e-9).ln(),
        }
    }

    fn ticks(self, low: f64, high: f64) -> Vec<f64> {
        match self {
            Scale::Linear => ticks(low, high),
            Scale::Log => {
                let steps = (-6..7).flat_map(|power| [1.0, 1.5, 2.0, 3.0, 5.0, 7.0].map(|m| m * 10f64.powi(power)));
                steps.filter(|tick| (low..=high).contains(tick)).collect()
            }
        }
    }
}

/// An SVG of the curves, or a sentence where there is nothing yet. Series `i` is drawn in the style classes `series i`.
pub(super) fn lines(label: &str, y_label: &str, scale: Scale, curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    if points().next().is_none() {
        return "<p>Nothing has been measured yet.</p>\n".into();
    }
    let (x_low, x_high) = extent(points().map(|point| point.0));
    let (mut low, mut high) = extent(points().flat_map(|point| [point.1, point.3]));
    if scale == Scale::Linear {
        let margin = 0.04 * (high - low);
        (low, high) = (low - margin, high + margin);
    }
    let (bottom, height) = (HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP);
    let x = |step: f64| LEFT + (step - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| {
        let (low, high) = (scale.forward(low), scale.forward(high));
        bottom - (scale.forward(value) - low) / (high - low) * height
    };
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\" xmlns=\"http://www.w3.org/2000/svg\">\n"
    );
    let mut draw = |part: String| svg.push_str(&(part + "\n"));
    for tick in scale.ticks(low, high) {
        let at = y(tick);
        draw(format!("<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>", WIDTH - RIGHT));
        draw(format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", LEFT - 8.0, at + 4.0, short(tick)));
    }
    for tick in ticks(x_low, x_high) {
        let at = x(tick);
        draw(format!("<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>", bottom + 18.0, short(tick)));
    }
    draw(format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">step</text>",
        (LEFT + WIDTH) / 2.0,
        HEIGHT - 6.0
    ));
    draw(format!(
        "<text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{y_label}</text>",
        TOP + height / 2.0
    ));
    for (i, curve) in curves.iter().enumerate() {
        let path = |points: &mut dyn Iterator<Item = (f64, f64)>| {
            let mut text = String::new();
            for (step, value) in points {
                write!(text, "{:.1},{:.1} ", x(step), y(value)).expect("writing to a string");
            }
            text
        };
        let mut outline = curve.points.iter().map(|p| (p.0, p.3)).chain(curve.points.iter().rev().map(|p| (p.0, p.1)));
        draw(format!("<polygon class=\"spread series{i}\" points=\"{}\"/>", path(&mut outline)));
        let mut mean = curve.points.iter().map(|p| (p.0, p.2));
        if curve.points.len() <= MOST_MARKS {
            for point in &curve.points {
                draw(format!(
                    "<circle class=\"mark series{i}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                    x(point.0),
                    y(point.2)
                ));
            }
        }
        draw(format!(
            "<polyline class=\"mean series{i}\" points=\"{}\"><title>{}</title></polyline>",
            path(&mut mean),
            curve.name
        ));
    }
    svg + "</svg>\n"
}

/// Most points of a curve that are marked one by one.
const MOST_MARKS: usize = 30;

/// Lowest and highest value, kept apart.
fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    match high - low {
        span if span > 0.0 => (low, high),
        _ if low.is_finite() => (low - 0.5, low + 0.5),
        _ => (0.0, 1.0),
    }
}

/// Round numbers between `low` and `high`, six at most.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let raw = (high - low) / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= raw).unwrap_or(raw);
    let first = (low / step).ceil() as i64;
    (first..).map(|i| i as f64 * step).take_while(|tick| *tick <= high + 1e-9 * step).collect()
}

/// A tick's number without superfluous digits.
fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(0.0, 800.0), [0.0, 200.0, 400.0, 600.0, 800.0]);
        assert_eq!(ticks(0.61, 0.93).into_iter().map(short).collect::<Vec<_>>(), ["0.7", "0.8", "0.9"]);
    }

    #[test]
    fn nothing_and_a_single_point_can_be_drawn() {
        let curve = |points| vec![Curve { name: "a".into(), points }];
        for curves in [vec![], curve(vec![]), curve(vec![(1.0, 2.0, 2.0, 2.0)])] {
            let svg = lines("label", "loss", Scale::Log, &curves);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
