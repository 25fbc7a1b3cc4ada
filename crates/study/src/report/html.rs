//! `report.html`: one file that needs nothing else.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use data::Split;
use sha2::{Digest, Sha256};
use train::RunConfig;

use super::chart::{Chart, Scale};
use super::{Curve, changes, curves, differences, inside, intervals, rates};
use crate::Comparison;
use crate::plan::{Study, Variant};
use crate::results::StudyResults;
use crate::table::Table;

/// Bins of a curve: as many as the eye can part.
const N_BINS: usize = 200;

const CLASSES: &str = "Nats per token after the last step, averaged over seeds; in brackets, above the best that is \
    possible for the class. First mentions are mostly chance; what a model has to learn shows in the others: copied names of people and \
    things, and attributes that an earlier sentence has given.";

const CONTRIBUTIONS: &str = "What each class adds to the difference in loss to the reference: its share of the tokens times its own \
    difference, in nats per token of the whole text.";

const KNOWLEDGE: &str = "What the text's facts hold, less the loss on them. A model that has not learned them \
    is at zero. Bits per parameter can be no more than the text holds: they say what was learned, not what could be.";

const RATES: &str = "Validation loss after the last step, averaged over seeds that no result uses. Each variant trains at its best. Usable \
    are the rates around it with a loss within 1% of the lowest; stable are those up to which no run diverged.";

const EFFECTS: &str = "A level against the first one of its factor, averaged over the rest of the grid, seed by seed; and for two factors, \
    what their levels do together beyond the sum of what each does.";

const SAMPLES: &str = "200 tokens from the model of the first seed after the last step, at temperature 0.8, from nothing but a line break.";

/// Colors that stay apart for color-blind eyes. Okabe and Ito, 2008.
const COLORS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8f7f00"];

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --faint: #ddd; --soft: #666; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #161616; --faint: #3a3a3a; --soft: #a0a0a0; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2rem; font-size: 1.15rem; }
.finding { font-size: 1.1rem; margin: .5rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .4rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--faint); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--soft); }
.intervals { margin: 0; max-width: 50rem; } .intervals .margin { fill: var(--faint); opacity: .5; } .zero { stroke: var(--soft); } .intervals .mean { stroke-width: 3; }
.grid { stroke: var(--faint); } .mean { fill: none; stroke-width: 2; } .spread { stroke: none; opacity: .2; }
figure.chart { margin: 0; } .controls { display: none; font-size: .85rem; } .live .controls { display: block; } .controls label { margin-right: 1rem; white-space: nowrap; }
.chart svg.log, .chart .seed { display: none; } .chart.log svg.log { display: block; } .chart.log svg.linear { display: none; }
.chart.seeds .seed { display: inline; } .chart.seeds .spread { display: none; } .chart output { display: block; min-height: 1.5em; font-size: .85rem; }
details > summary { cursor: pointer; font-weight: 600; margin: 1rem 0 .5rem; } .row { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: 1rem; }
.seed { fill: none; stroke-width: 1; opacity: .5; } .cursor { stroke: var(--soft); stroke-dasharray: 3 3; } svg:focus { outline: 2px solid var(--faint); }
@media print { .controls, output { display: none !important; } body { max-width: none; margin: 0; } h2, figure { break-inside: avoid; } }
.legend span { margin-right: 1.2rem; white-space: nowrap; } .legend i { display: inline-block; width: 1.2rem; height: .25rem; margin-right: .4rem; vertical-align: middle; }
pre { overflow-x: auto; font-size: .85rem; } pre.text { white-space: pre-wrap; } h3 { margin: .5rem 0; font-size: 1rem; } .soft { color: var(--soft); }
";

/// Hover, smoothing, axes, single seeds and saving; no other script may run in the page.
const SCRIPT: &str = include_str!("page.js");

/// The page of a study.
pub(super) fn page(results: &StudyResults, comparison: &Comparison) -> String {
    let name = escape(&comparison.study.name);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         connect-src 'self'; \
         script-src 'sha256-{}'\">\n<title>{name}</title>\n\
         <style>{STYLE}{}</style>\n</head>\n<body>\n<h1>{name}</h1>\n<p class=\"soft\">{}</p>\n",
        STANDARD.encode(Sha256::digest(SCRIPT)),
        series_style(results.runs.len()),
        escape(&comparison.study.description)
    );
    for sentence in comparison.sentences() {
        page += &format!("<p class=\"finding\">{}</p>\n", escape(&sentence));
    }
    page += "<h2>Results</h2>\n";
    page += &intervals::figure(comparison);
    page += &table(&comparison.table());
    for note in comparison.notes() {
        page += &format!("<p class=\"soft\">{}</p>\n", escape(&note));
    }
    let legend = legend(&results.study);
    let mut section = |title: &str, text: &str, chart: Chart| {
        page += &format!("<h2>{title}</h2>\n<p class=\"soft\">{text}</p>\n{legend}{}", chart.figure());
    };
    let valid = curves(results, Split::Valid, N_BINS);
    let train = curves(results, Split::Train, N_BINS);
    let text = "The whole validation split. Line: mean over seeds; band: lowest to highest seed.";
    section("Validation loss", text, by_step("Validation loss", &valid));
    let text = "The batch of each step, averaged within bins of steps. Line and band as above; each seed is drawn with its lowest and \
                highest batch of a bin.";
    section("Training loss", text, by_step("Training loss", &train));
    if results.study.variants.len() > 1 {
        let found = differences(results, Split::Train, N_BINS / 4);
        let chart = Chart { has_log: false, ..by_step("Difference to the reference", &found) };
        let text =
            "Training loss less that of the reference, seed by seed, averaged within bins of steps. Below zero: lower.";
        section("Difference to the reference", text, chart);
    }
    if let Some(table_of_rates) = comparison.rates() {
        let found = rates(results);
        let chart = Chart { x_label: "learning rate", x_scale: Scale::Log, ..by_step("Loss by learning rate", &found) };
        section("Learning rates", RATES, chart);
        page += &table(&table_of_rates);
    }
    if let Some(effects) = comparison.effects() {
        page += &format!("<h2>Effects</h2>\n<p class=\"soft\">{EFFECTS}</p>\n{}", table(&effects));
    }
    page += &format!("<h2>Other measures</h2>\n{}", table(&comparison.measures()));
    page += &format!("<p class=\"soft\">{}</p>\n", Comparison::MEASURES);
    if let Some(classes) = comparison.classes() {
        page += &format!("<h2>Loss by class</h2>\n<p class=\"soft\">{CLASSES}</p>\n{}", table(&classes));
    }
    if let Some(contributions) = comparison.contributions() {
        page += &format!("<p class=\"soft\">{CONTRIBUTIONS}</p>\n{}", table(&contributions));
    }
    if let Some(knowledge) = comparison.knowledge() {
        page += &format!("<h2>Knowledge</h2>\n<p class=\"soft\">{KNOWLEDGE}</p>\n{}", table(&knowledge));
    }
    page += &inside::section(results, comparison, &legend);
    page += &samples(results);
    page += &what_differs(&results.study);
    page += &provenance(results);
    page + &format!("<script>{SCRIPT}</script>\n</body>\n</html>\n")
}

/// A chart of nats per token by training step.
fn by_step<'a>(label: &'a str, curves: &'a [Curve]) -> Chart<'a> {
    Chart {
        label,
        x_label: "step",
        y_label: "nats per token",
        x_scale: Scale::Linear,
        has_log: true,
        is_small: false,
        curves,
    }
}

fn series_style(n: usize) -> String {
    let style = |i: usize| {
        let color = COLORS[i % COLORS.len()];
        // The colors come again in dashes.
        let (dashes, swatch) = match i / COLORS.len() {
            0 => (String::new(), color.to_string()),
            round => {
                let gap = 3 * round;
                (
                    format!(" stroke-dasharray: 6 {gap};"),
                    format!("repeating-linear-gradient(90deg, {color} 0 6px, transparent 6px {}px)", 6 + gap),
                )
            }
        };
        format!(
            ".mean.series{i}, .seed.series{i} {{ stroke: {color};{dashes} }} .spread.series{i}, .mark.series{i} {{ fill: {color}; }} \
             i.series{i} {{ background: {swatch}; }}\n"
        )
    };
    (0..n).map(style).collect()
}

fn legend(study: &Study) -> String {
    let item = |(i, name): (usize, String)| format!("<span><i class=\"series{i}\"></i>{name}</span>");
    let names = study.variants.iter().map(|variant| escape(&variant.name));
    format!("<p class=\"legend\">{}</p>\n", names.enumerate().map(item).collect::<String>())
}

pub(super) fn table(table: &Table) -> String {
    let row = |cells: &Vec<String>, tag: &str| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let body: String = table.rows.iter().map(|cells| row(cells, "td")).collect();
    format!("<div class=\"scroll\"><table>\n{}{body}</table></div>\n", row(&table.header, "th"))
}

/// Text that one model of each variant wrote.
fn samples(results: &StudyResults) -> String {
    let mut section = String::new();
    for (variant, runs) in results.study.variants.iter().zip(&results.runs) {
        let Some(text) = runs.iter().find_map(|run| run.sample.as_deref()) else { continue };
        let text: String = text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect();
        section += &format!("<h3>{}</h3>\n<pre class=\"text\">{}</pre>\n", escape(&variant.name), escape(&text));
    }
    match section.is_empty() {
        true => section,
        false => format!("<h2>Text</h2>\n<p class=\"soft\">{SAMPLES}</p>\n{section}"),
    }
}

fn what_differs(study: &Study) -> String {
    let item =
        |variant: &Variant| format!("<li><b>{}</b>: {}</li>\n", escape(&variant.name), escape(&changes(variant)));
    let items: String = study.variants[1..].iter().map(item).collect();
    format!("<h2>What differs from {}</h2>\n<ul>\n{items}</ul>\n", escape(&study.variants[0].name))
}

fn provenance(results: &StudyResults) -> String {
    let Some(run) = results.runs.iter().flatten().next() else { return String::new() };
    let meta = &run.meta;
    let RunConfig { data, backend, .. } = &run.config;
    let text = format!(
        "command      {}\nprogram      ablate {} ({}), burn {}\nbackend      {backend}, {} thread(s) a run\nmachine      {}, {}\n\
         corpus       {}, SHA-256 {}\ntokenizer    {}, SHA-256 {}\nsplit        {}\n\nConfiguration of the reference\n\n{}",
        meta.command,
        meta.version,
        meta.commit,
        meta.burn,
        meta.threads,
        meta.cpu,
        meta.os,
        data.corpus,
        meta.corpus_sha256,
        data.tokenizer,
        run.config.tokenizer_sha256,
        meta.split_rule,
        toml::to_string(&run.config).expect("it was read from TOML")
    );
    format!("<h2>How it was made</h2>\n<pre>{}</pre>\n", escape(&text))
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
