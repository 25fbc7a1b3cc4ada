//! The part of the page on what goes on inside the models: a chart for each measure of the probes.

use model::{BATCH_SIZES, Measure, Place};
use strum::VariantArray;

use super::Curve;
use super::chart::{Chart, Scale};
use super::html::table;
use crate::Comparison;
use crate::inside::{about, lines, mean};
use crate::plan::Variant;
use crate::results::{RunResult, StudyResults};

const INSIDE: &str = "Measured on the first windows of the validation split, before the first step, now and then on the way, and after the \
    last step. Line: mean over seeds; band: lowest to highest seed.";

const SUMMARY: &str = "After the last step, averaged over places and seeds.";

fn x_label(place: Place) -> &'static str {
    match place {
        Place::Block => "block",
        Place::Stream => "behind block",
        Place::Norm => "norm site",
        Place::Head => "head",
        Place::BatchSize => "windows in a batch",
        Place::Whole => "",
    }
}

/// Where the i-th value of a measure is drawn.
fn x(place: Place, i: usize) -> f64 {
    match place {
        Place::Block | Place::Norm | Place::Head => (i + 1) as f64,
        Place::Stream | Place::Whole => i as f64,
        Place::BatchSize => BATCH_SIZES.get(i).copied().unwrap_or(i) as f64,
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

/// The section of the page; nothing where no run was looked into.
pub(super) fn section(results: &StudyResults, comparison: &Comparison, legend: &str) -> String {
    let Some(summary) = comparison.inside() else { return String::new() };
    let mut text = format!(
        "<h2>Inside</h2>\n<p class=\"soft\">{INSIDE}</p>\n{}<p class=\"soft\">{SUMMARY}</p>\n",
        table(&summary)
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
    let by_place = |find: &dyn Fn(&RunResult) -> Option<Vec<Option<f64>>>| {
        curves(results, |run| {
            let values = find(run).unwrap_or_default().into_iter().enumerate();
            values.map(|(i, value)| Some((x(place, i), value?))).collect()
        })
    };
    let first = by_place(&|run| lines(run, measure).next().filter(|(line, _)| line.step == 0).map(|it| it.1.clone()));
    let last =
        by_place(&|run| lines(run, measure).next_back().filter(|(line, _)| line.step > 0).map(|it| it.1.clone()));
    let over_time = curves(results, |run| {
        lines(run, measure).map(|(line, values)| Some((line.step as f64, mean(values)?))).collect()
    });
    let [first_x, last_x] =
        [" before the first step", " after the last step"].map(|when| x_label(place).to_string() + when);
    let has_places = |curves: &&Vec<Curve>| curves.iter().any(|curve| curve.points.len() > 1);
    let charts = [
        (Some(&first).filter(has_places), first_x.as_str()),
        (Some(&last).filter(has_places), &last_x),
        (
            Some(&over_time).filter(has_places),
            if place == Place::Whole { "step" } else { "step, averaged over places" },
        ),
    ];
    let own = about(measure);
    let draw = |(curves, x_label): (Option<&Vec<Curve>>, &str)| {
        let curves = curves?;
        let mut points = curves.iter().flat_map(|curve| &curve.points);
        let has_log = points.all(|point| point.1 > 0.0);
        let chart = Chart {
            label: own.title,
            x_label,
            y_label: own.y_label,
            x_scale: Scale::Linear,
            has_log,
            is_small: true,
            curves,
        };
        Some(chart.figure())
    };
    charts.into_iter().filter_map(draw).collect()
}
