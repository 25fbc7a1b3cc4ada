//! The part of the page on what goes on inside the models: a chart for each measure of the probes.

use model::{Measure, Place};
use strum::VariantArray;

use super::Curve;
use super::chart::{Chart, Scale};
use super::html::table;
use crate::Comparison;
use crate::inside::{about, last, lines, of_all_places};
use crate::plan::Variant;
use crate::results::{RunResult, StudyResults};

const INSIDE: &str = "From left to right: at step 0 and after the last step, by place; and by step. Line: mean over seeds; band: lowest to \
    highest seed.";

/// What the places of a measure are called.
fn name(place: Place) -> &'static str {
    match place {
        Place::Block => "block",
        Place::Stream => "blocks before (0: the embedding)",
        Place::Norm => "norm site",
        Place::Head => "head",
        Place::BatchSize => "windows in a batch",
        Place::Whole => "",
    }
}

/// A curve for each variant, of what each run gives.
fn curves(results: &StudyResults, of: impl Fn(&RunResult) -> Vec<Option<(f64, f64)>>) -> Vec<Curve> {
    let n_runs = results.runs.iter().flatten().count();
    let curve = |(variant, runs): (&Variant, &Vec<RunResult>)| {
        let seeds: Vec<Vec<Option<(f64, f64)>>> = runs.iter().map(&of).collect();
        let single = seeds.iter().filter(|_| n_runs <= super::MOST_SINGLE);
        Curve::of(&variant.name, &seeds, single.map(|seed| seed.iter().flatten().copied().collect()).collect())
    };
    results.study.variants.iter().zip(&results.runs).map(curve).collect()
}

/// The section of the page; nothing where no run was probed.
pub(super) fn section(results: &StudyResults, comparison: &Comparison, legend: &str) -> String {
    if results.runs.iter().flatten().all(|run| run.probes.is_empty()) {
        return String::new();
    }
    let mut text = format!(
        "<h2>Diagnostics</h2>\n{}<p class=\"soft\">{} {INSIDE}</p>\n",
        comparison.inside().map_or(String::new(), |means| table(&means)),
        Comparison::INSIDE
    );
    let mut group = "";
    for &measure in Measure::VARIANTS {
        let figures = figures(results, measure);
        if figures.is_empty() {
            continue;
        }
        let own = about(measure);
        if own.group != group {
            text += if group.is_empty() { "" } else { "</details>\n" };
            text += &format!("<details><summary>{}</summary>\n{legend}", own.group);
            group = own.group;
        }
        text += &format!(
            "<h3>{}</h3>\n<p class=\"soft\">{}</p>\n<div class=\"row\">{figures}</div>\n",
            own.title, own.text
        );
    }
    text + if group.is_empty() { "" } else { "</details>\n" }
}

/// By place, before the first step and after the last; and by step.
fn figures(results: &StudyResults, measure: Measure) -> String {
    let place = measure.place();
    let by_place = |values: Option<&Vec<Option<f64>>>| {
        let point = |(i, value): (usize, &Option<f64>)| Some((place.number(i) as f64, (*value)?));
        values.into_iter().flatten().enumerate().map(point).collect()
    };
    let first = |run: &RunResult| {
        let line = lines(run, measure).next().filter(|(line, _)| line.step == 0);
        by_place(line.map(|(_, values)| values))
    };
    let over_time = |run: &RunResult| {
        lines(run, measure).map(|(line, values)| Some((line.step as f64, of_all_places(measure, values)?))).collect()
    };
    let own = about(measure);
    let draw = |curves: Vec<Curve>, x_label: &str| {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        if curves.iter().all(|curve| curve.points.len() < 2) {
            return None;
        }
        if points().all(|point| (point.1, point.3) == (0.0, 0.0)) {
            return Some(format!("<p>0 at every {x_label}.</p>\n"));
        }
        let has_log = points().all(|point| point.1 > 0.0);
        let label = format!("{}, by {x_label}", own.title);
        let (label, y_label) = (label.as_str(), own.y_label);
        let chart = Chart { label, x_label, y_label, x_scale: Scale::Linear, has_log, is_small: true, curves: &curves };
        Some(chart.figure())
    };
    let time = match place {
        Place::Whole => "step",
        Place::BatchSize => "step, in the largest batch",
        _ => "step, averaged over places",
    };
    let drawn = [
        draw(curves(results, first), &format!("{}, step 0", name(place))),
        draw(curves(results, |run| by_place(last(run, measure))), &format!("{}, after the last step", name(place))),
        draw(curves(results, over_time), time),
    ];
    if drawn.iter().all(Option::is_none) {
        return String::new();
    }
    // What is not there keeps its place.
    drawn.into_iter().map(|chart| chart.unwrap_or("<div></div>\n".into())).collect()
}
