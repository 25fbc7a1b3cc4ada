//! A line chart as SVG: mean and spread of several curves.

use std::fmt::Write;

use super::Curve;
use super::html::escape;

/// Width and height of a chart, and of a small one.
const SIZE: (f64, f64) = (760.0, 360.0);
const SMALL: (f64, f64) = (380.0, 250.0);
const LEFT: f64 = 68.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

/// How an axis is divided.
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
                let steps = (-9..9).flat_map(|power| [1.0, 1.5, 2.0, 3.0, 5.0, 7.0].map(|m| m * 10f64.powi(power)));
                let found: Vec<f64> = steps.filter(|tick| (low..=high).contains(tick)).collect();
                if found.len() > 1 { found } else { ticks(low, high) }
            }
        }
    }
}

/// What a chart shows.
pub(super) struct Chart<'a> {
    pub(super) label: &'a str,
    pub(super) x_label: &'a str,
    pub(super) y_label: &'a str,
    pub(super) x_scale: Scale,
    /// Whether values can be shown on a logarithmic axis: they are all positive.
    pub(super) has_log: bool,
    /// Whether it is one of several in a row, of few points.
    pub(super) is_small: bool,
    pub(super) curves: &'a [Curve],
}

impl Chart<'_> {
    /// A figure with what the page's script works on, or a sentence where there is nothing yet. Series `i` is drawn in the style
    /// classes `series i`.
    pub(super) fn figure(&self) -> String {
        if self.curves.iter().all(|curve| curve.points.is_empty()) {
            return "<p>Nothing has been measured yet.</p>\n".into();
        }
        let mut places = self.curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.0));
        let first = places.next();
        if places.all(|place| Some(place) == first) {
            return "<p>Measured once only; see the table.</p>\n".into();
        }
        let control = |text: &str| format!("<label>{text}</label> ");
        let mut controls = String::new();
        if self.curves.iter().any(|curve| curve.seeds.len() > 1) {
            controls += &control("<input type=\"checkbox\" name=\"seeds\"> each seed");
        }
        if self.has_log {
            controls += &control("<input type=\"checkbox\" name=\"log\"> logarithmic");
        }
        if !self.is_small {
            controls += &control(
                "smoothing <input type=\"range\" name=\"smooth\" min=\"0\" max=\"0.95\" step=\"0.05\" value=\"0\">",
            );
        }
        controls += "<button type=\"button\" name=\"save\">save as SVG</button>";
        let mut figure = format!("<figure class=\"chart\"><p class=\"controls\">{controls}</p>\n");
        figure += &self.svg(Scale::Linear);
        if self.has_log {
            figure += &self.svg(Scale::Log);
        }
        figure + "<output aria-live=\"polite\"></output></figure>\n"
    }

    fn svg(&self, scale: Scale) -> String {
        let curves = self.curves;
        let (width, full_height) = if self.is_small { SMALL } else { SIZE };
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let (x_low, x_high) = extent(points().map(|point| self.x_scale.forward(point.0)));
        let (mut low, mut high) = extent(points().flat_map(|point| [point.1, point.3]));
        if scale == Scale::Linear {
            let margin = 0.04 * (high - low);
            (low, high) = (low - margin, high + margin);
        }
        let (bottom, height) = (full_height - BOTTOM, full_height - BOTTOM - TOP);
        let x = |step: f64| LEFT + (self.x_scale.forward(step) - x_low) / (x_high - x_low) * (width - LEFT - RIGHT);
        let y = |value: f64| {
            let (low, high) = (scale.forward(low), scale.forward(high));
            bottom - (scale.forward(value) - low) / (high - low) * height
        };
        let class = if scale == Scale::Log { "log" } else { "linear" };
        let x_class = if self.x_scale == Scale::Log { "log" } else { "linear" };
        let mut svg = format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {width} {full_height}\" role=\"img\" tabindex=\"0\" aria-label=\"{}\" \
             data-x=\"{x_low} {x_high} {LEFT} {} {x_class}\" data-y=\"{} {} {bottom} {TOP} {class}\" data-name=\"{}\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n",
            self.label,
            width - RIGHT,
            scale.forward(low),
            scale.forward(high),
            self.x_label,
        );
        let mut draw = |part: String| svg.push_str(&(part + "\n"));
        let y_ticks = scale.ticks(low, high);
        let apart = y_ticks.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
        for tick in y_ticks {
            let at = y(tick);
            draw(format!(
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
                width - RIGHT
            ));
            draw(format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                at + 4.0,
                short(tick, apart)
            ));
        }
        let x_ticks = match self.x_scale {
            // Steps, blocks and windows are whole.
            Scale::Linear => ticks(x_low, x_high).into_iter().filter(|tick| tick.fract() == 0.0).collect(),
            Scale::Log => self.x_scale.ticks(x_low.exp() * 0.999, x_high.exp() * 1.001),
        };
        for tick in x_ticks {
            let at = x(tick);
            draw(format!(
                "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                short(tick, 0.1 * tick.abs().max(1e-12))
            ));
        }
        draw(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (LEFT + width) / 2.0,
            full_height - 6.0,
            self.x_label
        ));
        draw(format!(
            "<text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            TOP + height / 2.0,
            self.y_label
        ));
        let path = |points: &mut dyn Iterator<Item = (f64, f64)>| {
            let mut text = String::new();
            for (step, value) in points {
                write!(text, "{:.2},{:.2} ", x(step), y(value).clamp(TOP, bottom)).expect("writing to a string");
            }
            text
        };
        for (i, curve) in curves.iter().enumerate() {
            let mut outline =
                curve.points.iter().map(|p| (p.0, p.3)).chain(curve.points.iter().rev().map(|p| (p.0, p.1)));
            draw(format!("<polygon class=\"spread series{i}\" points=\"{}\"/>", path(&mut outline)));
            for seed in curve.seeds.iter().filter(|_| curve.seeds.len() > 1) {
                let points = path(&mut seed.iter().copied());
                draw(format!("<polyline class=\"seed series{i}\" points=\"{points}\"/>"));
            }
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
                path(&mut curve.points.iter().map(|p| (p.0, p.2))),
                escape(&curve.name)
            ));
        }
        svg + "</svg>\n"
    }
}

/// Most points of a curve that are marked one by one.
const MOST_MARKS: usize = 30;

/// Lowest and highest value, kept apart.
fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    match high - low {
        span if span.is_finite() && span > 1e-9 * low.abs().max(high.abs()) => (low, high),
        _ if low.is_finite() => (low - 0.5f64.max(1e-3 * low.abs()), low + 0.5f64.max(1e-3 * low.abs())),
        _ => (0.0, 1.0),
    }
}

/// Round numbers between `low` and `high`, six at most.
pub(super) fn ticks(low: f64, high: f64) -> Vec<f64> {
    let raw = (high - low) / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= raw).unwrap_or(raw);
    let first = (low / step).ceil();
    (0..12).map(|i| (first + f64::from(i)) * step).take_while(|tick| *tick <= high + 1e-9 * step).collect()
}

/// A tick's number without superfluous digits, one of some that are so far apart.
pub(super) fn short(value: f64, apart: f64) -> String {
    // Two digits of what lies between them, or one of what rounding has left of zero.
    let digits = (1.0 - apart.log10().floor()).clamp(0.0, 12.0) as usize;
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(0.0, 800.0), [0.0, 200.0, 400.0, 600.0, 800.0]);
        assert_eq!(
            ticks(0.61, 0.93).into_iter().map(|tick| short(tick, 0.1)).collect::<Vec<_>>(),
            ["0.7", "0.8", "0.9"]
        );
        assert_eq!([0.0, 100.0, 20_000.0].map(|tick| short(tick, 100.0)), ["0", "100", "20000"]);
        let near = ticks(3.87801, 3.87809).into_iter().map(|tick| short(tick, 2e-5)).collect::<Vec<_>>();
        assert_eq!(near, ["3.87802", "3.87804", "3.87806", "3.87808"]);
    }

    #[test]
    fn nothing_and_a_single_point_can_be_drawn() {
        let curve = |points| vec![Curve { name: "a".into(), points, seeds: vec![] }];
        let flat = |y: f64| curve(vec![(1.0, y, y, y), (2.0, y, y, y)]);
        for curves in [vec![], curve(vec![]), curve(vec![(1.0, 2.0, 2.0, 2.0)]), flat(0.5), flat(1e17), flat(1e300)] {
            for x_scale in [Scale::Linear, Scale::Log] {
                let chart = Chart {
                    label: "label",
                    x_label: "step",
                    y_label: "loss",
                    x_scale,
                    has_log: true,
                    is_small: false,
                    curves: &curves,
                };
                let figure = chart.figure();
                assert!(!figure.contains("NaN") && !figure.contains("inf"), "{figure}");
            }
        }
    }
}
