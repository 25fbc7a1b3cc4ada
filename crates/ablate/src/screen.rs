//! The dashboard of a study: all its runs on one screen.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use data::Split;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use study::Plan;
use train::MetricLine;

use crate::processes::{Job, Progress};
use crate::stop::SCREEN;

/// Time between two drawings.
const EVERY: Duration = Duration::from_millis(250);

const COLORS: [Color; 6] = [Color::Blue, Color::LightRed, Color::Green, Color::Magenta, Color::Yellow, Color::Cyan];

/// Lines of a run that are read at a time: a tiny model writes them faster than they can be read.
const MOST_LINES: usize = 2000;

/// Columns of the table of runs: name and width, of the first that of its longest.
const COLUMNS: [(&str, u16); 8] =
    [("run", 0), ("state", 12), ("step", 15), ("train", 7), ("valid", 7), ("valid ppl", 9), ("tok/s", 6), ("left", 6)];

/// Columns of a terminal for all of these, and the indices of those that a narrower one goes without.
const WIDE: u16 = 90;
const OF_WIDE: [usize; 3] = [2, 5, 6];

const KEYS: &str = " q stop all  x stop run  up/down choose  m metric  e each seed  s smooth  z zoom  1-9 hide";

/// The same where there is little room.
const FEW_KEYS: &str = " q x stop  arrows  m metric  e seeds  s z  1-9 hide";

/// Owns the terminal from `open` until it is dropped.
pub struct Screen {
    terminal: DefaultTerminal,
    title: String,
    variants: Vec<String>,
    followed: HashMap<PathBuf, MetricsTail>,
    look: ViewState,
    start: Instant,
    drawn: Option<Instant>,
}

/// What the keys have chosen.
#[derive(Clone, Default)]
struct ViewState {
    metric: Metric,
    /// One curve for each run instead of the mean of each variant.
    each_seed: bool,
    smooth: bool,
    /// The second half of what there is.
    zoomed: bool,
    /// Indices of variants that are not drawn.
    hidden: HashSet<usize>,
    /// Index of the run that a key would stop.
    chosen: usize,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Metric {
    #[default]
    Train,
    Valid,
    Perplexity,
    /// Training loss less that of the reference, seed by seed.
    Difference,
}

impl Metric {
    fn next(self) -> Self {
        match self {
            Metric::Train => Metric::Valid,
            Metric::Valid => Metric::Perplexity,
            Metric::Perplexity => Metric::Difference,
            Metric::Difference => Metric::Train,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Metric::Train => "training loss, nats per token",
            Metric::Valid => "validation loss, nats per token",
            Metric::Perplexity => "validation perplexity",
            Metric::Difference => "training loss less the reference's, nats per token",
        }
    }

    fn split(self) -> Split {
        match self {
            Metric::Train | Metric::Difference => Split::Train,
            Metric::Valid | Metric::Perplexity => Split::Valid,
        }
    }
}

/// What the user wants.
pub enum UiAction {
    StopAll,
    /// The index of a run.
    Stop(usize),
}

/// What is kept of a run's metrics, however long it gets.
#[derive(Default)]
struct MetricsTail {
    offset: u64,
    /// Of each split the sums in each bin, and the last line.
    splits: HashMap<Split, (Sums, MetricLine)>,
    step: usize,
    /// Seconds of work so far, evaluation included.
    seconds: f64,
    /// Seconds of the last training steps.
    recent: VecDeque<f64>,
}

/// Number of lines, sum of steps, sum of losses.
type Sums = BTreeMap<usize, (f64, f64, f64)>;

impl Screen {
    /// Takes over the terminal.
    pub fn open(plan: &Plan) -> Result<Self> {
        let terminal = ratatui::try_init().context("the terminal cannot be drawn on; try --plain")?;
        SCREEN.store(true, Ordering::Relaxed);
        Ok(Screen {
            terminal,
            title: format!(" {} ", plan.study.name),
            variants: plan.study.variants.iter().map(|variant| variant.name.clone()).collect(),
            followed: HashMap::new(),
            look: ViewState::default(),
            start: Instant::now(),
            drawn: None,
        })
    }

    /// Shows where all runs stand; at most a few times a second.
    pub fn draw(&mut self, jobs: &[Job], at_once: usize) -> Result<()> {
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < EVERY) {
            return Ok(());
        }
        self.drawn = Some(Instant::now());
        for job in jobs.iter().filter(|job| !matches!(job.progress, Progress::Waiting)) {
            let path = job.folder.metrics_path();
            self.followed.entry(path.clone()).or_default().read_on(&path, job.config.train.steps);
        }
        let view = View { jobs, at_once, followed: &self.followed, variants: &self.variants, look: &self.look };
        let (title, elapsed) = (self.title.as_str(), self.start.elapsed());
        self.terminal.draw(|frame| view.draw(frame, title, elapsed)).context("drawing on the terminal")?;
        Ok(())
    }

    /// Reads the keyboard; what it asks for beside another look, if anything.
    pub fn wish(&mut self, n_jobs: usize) -> Result<Option<UiAction>> {
        while event::poll(Duration::ZERO).context("reading the keyboard")? {
            let Event::Key(key) = event::read().context("reading the keyboard")? else { continue };
            let look = &mut self.look;
            match key.code {
                KeyCode::Char('q') => return Ok(Some(UiAction::StopAll)),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    return Ok(Some(UiAction::StopAll));
                }
                KeyCode::Char('x') => return Ok(Some(UiAction::Stop(look.chosen))),
                KeyCode::Up => look.chosen = look.chosen.saturating_sub(1),
                KeyCode::Down => look.chosen = (look.chosen + 1).min(n_jobs.saturating_sub(1)),
                KeyCode::Char('m') => look.metric = look.metric.next(),
                KeyCode::Char('e') => look.each_seed = !look.each_seed,
                KeyCode::Char('s') => look.smooth = !look.smooth,
                KeyCode::Char('z') => look.zoomed = !look.zoomed,
                KeyCode::Char(digit @ '1'..='9') => {
                    let variant = digit as usize - '1' as usize;
                    if !look.hidden.remove(&variant) {
                        look.hidden.insert(variant);
                    }
                }
                _ => continue,
            }
            // A key is answered at once.
            self.drawn = None;
        }
        Ok(None)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
        SCREEN.store(false, Ordering::Relaxed);
    }
}

impl MetricsTail {
    /// Reads the lines that were added since; a file that is not there yet has none.
    fn read_on(&mut self, path: &std::path::Path, steps: usize) {
        let Ok(mut file) = File::open(path) else { return };
        if file.metadata().is_ok_and(|meta| meta.len() < self.offset) {
            // The run started anew.
            *self = MetricsTail::default();
        }
        if file.seek(SeekFrom::Start(self.offset)).is_err() {
            return;
        }
        let mut reader = BufReader::new(file);
        let mut text = String::new();
        for _ in 0..MOST_LINES {
            if !reader.read_line(&mut text).is_ok_and(|n| n > 0) || !text.ends_with('\n') {
                break;
            }
            self.offset += text.len() as u64;
            if let Ok(line) = serde_json::from_str::<MetricLine>(&text) {
                self.add(line, steps);
            }
            text.clear();
        }
    }

    fn add(&mut self, line: MetricLine, steps: usize) {
        self.step = line.step;
        self.seconds += line.seconds;
        if line.split == Split::Train {
            self.recent.push_back(line.seconds);
            if self.recent.len() > 20 {
                self.recent.pop_front();
            }
        }
        let bin = line.step.saturating_sub(1) / steps.div_ceil(100).max(1);
        let (sums, last) = self.splits.entry(line.split).or_insert_with(|| (Sums::new(), line.clone()));
        let sum = sums.entry(bin).or_default();
        *sum = (sum.0 + 1.0, sum.1 + line.step as f64, sum.2 + line.loss);
        *last = line;
    }

    /// Mean step and loss in each bin.
    fn bins(&self, split: Split) -> Bins {
        let sums = self.splits.get(&split).map(|(sums, _)| sums);
        sums.into_iter().flatten().map(|(&bin, &(n, step, loss))| (bin, (step / n, loss / n))).collect()
    }

    fn last(&self, split: Split) -> Option<&MetricLine> {
        self.splits.get(&split).map(|(_, last)| last)
    }

    /// Seconds of a training step, averaged over the last ones.
    fn step_seconds(&self) -> Option<f64> {
        let n = self.recent.len();
        (n > 0).then(|| self.recent.iter().sum::<f64>() / n as f64)
    }
}

struct View<'a> {
    jobs: &'a [Job],
    at_once: usize,
    followed: &'a HashMap<PathBuf, MetricsTail>,
    variants: &'a [String],
    look: &'a ViewState,
}

impl View<'_> {
    fn draw(&self, frame: &mut Frame, title: &str, elapsed: Duration) {
        let runs_height = (self.jobs.len() as u16 + 3).min(frame.area().height / 2);
        let [runs, chart, keys] =
            Layout::vertical([Constraint::Length(runs_height), Constraint::Min(3), Constraint::Length(1)])
                .areas(frame.area());
        self.draw_runs(frame, runs, title, elapsed);
        self.draw_chart(frame, chart);
        let line = if keys.width >= WIDE { KEYS } else { FEW_KEYS };
        frame.render_widget(Line::from(line).dim(), keys);
    }

    fn of(&self, job: &Job) -> Option<&MetricsTail> {
        self.followed.get(&job.folder.metrics_path())
    }

    /// The index of a run's variant.
    fn variant(&self, job: &Job) -> usize {
        {
            let of = |wanted: &str| self.variants.iter().position(|name| name == wanted);
            of(&job.config.variant).or_else(|| of(of_tuning(&job.config.variant))).unwrap_or(0)
        }
    }

    fn color(&self, variant: usize) -> Color {
        COLORS[variant % COLORS.len()]
    }

    fn draw_runs(&self, frame: &mut Frame, area: Rect, title: &str, elapsed: Duration) {
        let number = |value: Option<f64>, digits: usize| value.map_or("-".into(), |v| format!("{v:.digits$}"));
        // A narrow terminal has room for less.
        let is_shown: Vec<bool> = (0..COLUMNS.len()).map(|i| area.width >= WIDE || !OF_WIDE.contains(&i)).collect();
        // Runs under way first when there is not room for all.
        let mut jobs: Vec<(usize, &Job)> = self.jobs.iter().enumerate().collect();
        if jobs.len() + 3 > area.height as usize {
            jobs.sort_by_key(|(i, job)| (*i != self.look.chosen, !job.is_running()));
        }
        let rows = jobs.into_iter().map(|(i, job)| {
            let followed = self.of(job);
            let (train, valid) =
                (followed.and_then(|f| f.last(Split::Train)), followed.and_then(|f| f.last(Split::Valid)));
            let steps = job.config.train.steps;
            let step = followed.map_or(0, |followed| followed.step);
            let tokens = (job.config.train.batch_size * job.config.model.seq_len) as f64;
            let state = match &job.progress {
                Progress::Complete => "complete".into(),
                Progress::Waiting => "waiting".into(),
                Progress::Running(_) => bar(step, steps),
                Progress::Ended => "ended".into(),
                Progress::Stopped => "stopped".into(),
                Progress::Failed(_) => "failed".into(),
            };
            let left = job.is_running().then(|| self.seconds_left(job)).flatten();
            let cells = [
                format!("{}{}", if i == self.look.chosen { ">" } else { " " }, job.config.label()),
                state,
                format!("{step}/{steps}"),
                number(train.map(|line| line.loss), 4),
                number(valid.map(|line| line.loss), 4),
                number(valid.map(|line| line.perplexity), 3),
                number(followed.and_then(MetricsTail::step_seconds).map(|seconds| tokens / seconds), 0),
                left.map_or("-".into(), train::duration),
            ];
            let cells = cells.into_iter().zip(&is_shown).filter(|(_, shown)| **shown).map(|(cell, _)| cell);
            Row::new(cells.collect::<Vec<_>>()).style(Style::new().fg(self.color(self.variant(job))))
        });
        let label = self.jobs.iter().map(|job| job.config.label().len() + 1).max().unwrap_or(0) as u16;
        let columns = COLUMNS.into_iter().zip(&is_shown).filter(|(_, shown)| **shown).map(|(column, _)| column);
        let width =
            |&(_, width): &(&str, u16)| if width == 0 { Constraint::Min(label) } else { Constraint::Length(width) };
        let columns: Vec<(&str, u16)> = columns.collect();
        let widths: Vec<Constraint> = columns.iter().map(width).collect();
        let header = Row::new(columns.iter().map(|column| column.0).collect::<Vec<_>>()).bold();
        let done = self.jobs.iter().filter(|job| matches!(job.progress, Progress::Ended | Progress::Complete)).count();
        let left = self.study_seconds_left().map_or(String::new(), |s| format!(", about {} left", train::duration(s)));
        let status = format!(
            " {done} of {} runs ended, {} gone{left} ",
            self.jobs.len(),
            train::duration(elapsed.as_secs_f64())
        );
        let block = Block::bordered().title(title.to_string().bold()).title_bottom(status);
        frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
    }

    /// What is drawn: the variant and the points of each curve.
    fn curves(&self) -> Vec<(usize, Vec<(f64, f64)>)> {
        let of_run = |job: &Job| Some(self.of(job)?.bins(self.look.metric.split()));
        let is_shown = |job: &&Job| !self.look.hidden.contains(&self.variant(job));
        let mut runs: Vec<(usize, Bins)> = vec![];
        for job in self.jobs.iter().filter(is_shown) {
            let Some(mut own) = of_run(job) else { continue };
            match self.look.metric {
                Metric::Train | Metric::Valid => {}
                Metric::Perplexity => own.values_mut().for_each(|point| point.1 = point.1.exp().min(f64::MAX)),
                Metric::Difference => {
                    // Of tuning runs, those at the same rate.
                    let is_pair = |other: &&Job| {
                        let (a, b) = (&other.config, &job.config);
                        self.variant(other) == 0 && a.seed == b.seed && a.train.lr == b.train.lr
                    };
                    let Some(reference) = self.jobs.iter().find(is_pair).and_then(of_run) else { continue };
                    if self.variant(job) == 0 {
                        continue;
                    }
                    own.retain(|bin, _| reference.contains_key(bin));
                    own.iter_mut().for_each(|(bin, point)| point.1 -= reference[bin].1);
                }
            }
            runs.push((self.variant(job), own));
        }
        let mut curves: Vec<(usize, Bins)> = if self.look.each_seed { runs } else { means(runs) };
        for (_, curve) in &mut curves {
            if self.look.smooth {
                let mut last = None;
                for point in curve.values_mut() {
                    point.1 = last.map_or(point.1, |last| 0.8 * last + 0.2 * point.1);
                    last = Some(point.1);
                }
            }
            if self.look.zoomed {
                let half = curve.last_key_value().map_or(0, |(bin, _)| bin / 2);
                curve.retain(|bin, _| *bin >= half);
            }
        }
        let points = |(variant, curve): (usize, Bins)| (variant, curve.into_values().collect());
        curves.into_iter().filter(|(_, curve)| !curve.is_empty()).map(points).collect()
    }

    fn draw_chart(&self, frame: &mut Frame, area: Rect) {
        let curves = self.curves();
        let points = || curves.iter().flat_map(|(_, points)| points);
        let extent = |values: &mut dyn Iterator<Item = f64>| {
            let (low, high) =
                values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
            match high - low {
                span if span > 0.0 => (low, high),
                _ if low.is_finite() => (low - 0.5, low + 0.5),
                _ => (0.0, 1.0),
            }
        };
        let (low, high) = extent(&mut points().map(|point| point.1));
        let steps = self.jobs.iter().map(|job| job.config.train.steps).max().unwrap_or(1) as f64;
        let (first, last) = if self.look.zoomed { extent(&mut points().map(|point| point.0)) } else { (0.0, steps) };
        let datasets = curves.iter().map(|(variant, points)| {
            Dataset::default()
                .marker(Marker::Braille)
                .graph_type(GraphType::Line)
                .style(Style::new().fg(self.color(*variant)))
                .data(points)
        });
        let nothing = if curves.is_empty() { ": nothing yet" } else { "" };
        let of_what = if self.look.each_seed { "each seed" } else { "mean over seeds" };
        let name = format!(" {}, {of_what}{nothing} ", self.look.metric.name());
        let legend = self.variants.iter().enumerate().map(|(i, variant)| {
            let style = Style::new().fg(self.color(i));
            let style = if self.look.hidden.contains(&i) { style.crossed_out() } else { style };
            ratatui::text::Span::styled(format!(" {}:{variant} ", i + 1), style)
        });
        let axis = |low: f64, high: f64, digits: usize| {
            let labels = [low, (low + high) / 2.0, high].map(|value| format!("{value:.digits$}"));
            Axis::default().bounds([low, high]).labels(labels)
        };
        let block = Block::bordered().title(name).title_bottom(Line::from_iter(legend));
        let chart = Chart::new(datasets.collect()).block(block);
        frame.render_widget(chart.x_axis(axis(first, last, 0)).y_axis(axis(low, high, 3)).legend_position(None), area);
    }

    /// Seconds that a run still needs at the speed it has shown.
    fn seconds_left(&self, job: &Job) -> Option<f64> {
        let followed = self.of(job)?;
        let step = followed.step;
        (step > 0).then(|| followed.seconds / step as f64 * job.config.train.steps.saturating_sub(step) as f64)
    }

    fn study_seconds_left(&self) -> Option<f64> {
        let known = || self.jobs.iter().filter_map(|job| self.of(job)).filter(|followed| followed.step > 0);
        let steps: usize = known().map(|followed| followed.step).sum();
        let per_step = known().map(|followed| followed.seconds).sum::<f64>() / steps as f64;
        let left = self.jobs.iter().map(|job| match job.progress {
            Progress::Waiting => job.config.train.steps,
            Progress::Running(_) => {
                job.config.train.steps.saturating_sub(self.of(job).map_or(0, |followed| followed.step))
            }
            _ => 0,
        });
        (steps > 0).then(|| per_step * left.sum::<usize>() as f64 / self.at_once as f64)
    }
}

/// The variant of a run; that of a tuning run has its rate behind it.
fn of_tuning(variant: &str) -> &str {
    variant.rsplit_once("-lr-").map_or(variant, |(name, _)| name)
}

fn bar(step: usize, steps: usize) -> String {
    let full = 10 * step / steps.max(1);
    format!("{}{}", "█".repeat(full), "░".repeat(10 - full.min(10)))
}

/// Mean step and value in each hundredth of a run.
type Bins = BTreeMap<usize, (f64, f64)>;

/// The mean of the runs of each variant, bin by bin, over those that have come so far.
fn means(runs: Vec<(usize, Bins)>) -> Vec<(usize, Bins)> {
    let mut sums: BTreeMap<usize, BTreeMap<usize, (f64, f64, f64)>> = BTreeMap::new();
    for (variant, run) in runs {
        for (bin, (step, value)) in run {
            let sum = sums.entry(variant).or_default().entry(bin).or_default();
            *sum = (sum.0 + 1.0, sum.1 + step, sum.2 + value);
        }
    }
    let mean = |(bin, (n, step, value)): (usize, (f64, f64, f64))| (bin, (step / n, value / n));
    sums.into_iter().map(|(variant, own)| (variant, own.into_iter().map(mean).collect())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_drawn_as_the_mean_of_its_runs() {
        let run =
            |points: &[(usize, f64)]| points.iter().map(|&(bin, loss)| (bin, (bin as f64, loss))).collect::<Bins>();
        let found = means(vec![(1, run(&[(0, 4.0), (1, 2.0)])), (0, run(&[(0, 1.0)])), (1, run(&[(0, 2.0)]))]);
        assert_eq!(found, [(0, run(&[(0, 1.0)])), (1, run(&[(0, 3.0), (1, 2.0)]))]);
    }
}
