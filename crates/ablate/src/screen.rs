//! The dashboard of a study: all its runs on one screen.

use std::collections::HashMap;
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

/// Owns the terminal from `open` until it is dropped.
pub struct Screen {
    terminal: DefaultTerminal,
    title: String,
    variants: Vec<String>,
    followed: HashMap<PathBuf, Followed>,
    split: Split,
    start: Instant,
    drawn: Option<Instant>,
}

/// What has been read of a run's metrics.
#[derive(Default)]
struct Followed {
    offset: u64,
    lines: Vec<MetricLine>,
}

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
            split: Split::Train,
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
            self.followed.entry(job.folder.metrics_path()).or_default().read_on(&job.folder.metrics_path());
        }
        let view = View { jobs, at_once, followed: &self.followed, variants: &self.variants, split: self.split };
        let (title, elapsed) = (self.title.as_str(), self.start.elapsed());
        self.terminal.draw(|frame| view.draw(frame, title, elapsed)).context("drawing on the terminal")?;
        Ok(())
    }

    /// Reads the keyboard; true when the user wants to stop.
    pub fn asks_to_stop(&mut self) -> Result<bool> {
        while event::poll(Duration::ZERO).context("reading the keyboard")? {
            let Event::Key(key) = event::read().context("reading the keyboard")? else { continue };
            match key.code {
                KeyCode::Char('q') => return Ok(true),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(true),
                KeyCode::Char('t') => {
                    self.split = match self.split {
                        Split::Train => Split::Valid,
                        Split::Valid => Split::Train,
                    }
                }
                _ => {}
            }
        }
        Ok(false)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
        SCREEN.store(false, Ordering::Relaxed);
    }
}

impl Followed {
    /// Reads the lines that were added since; a file that is not there yet has none.
    fn read_on(&mut self, path: &std::path::Path) {
        let Ok(mut file) = File::open(path) else { return };
        if file.metadata().is_ok_and(|meta| meta.len() < self.offset) {
            // The run started anew.
            *self = Followed::default();
        }
        if file.seek(SeekFrom::Start(self.offset)).is_err() {
            return;
        }
        let mut reader = BufReader::new(file);
        let mut text = String::new();
        while reader.read_line(&mut text).is_ok_and(|n| n > 0) && text.ends_with('\n') {
            self.offset += text.len() as u64;
            self.lines.extend(serde_json::from_str::<MetricLine>(&text));
            text.clear();
        }
    }

    fn last(&self, split: Split) -> Option<&MetricLine> {
        self.lines.iter().rfind(|line| line.split == split)
    }

    /// Seconds of a training step, averaged over the last ones.
    fn step_seconds(&self) -> Option<f64> {
        let last = || self.lines.iter().rev().filter(|line| line.split == Split::Train).take(20);
        let n = last().count();
        (n > 0).then(|| last().map(|line| line.seconds).sum::<f64>() / n as f64)
    }

    fn step(&self) -> usize {
        self.lines.last().map_or(0, |line| line.step)
    }

    /// Seconds of work so far, evaluation included.
    fn seconds(&self) -> f64 {
        self.lines.iter().map(|line| line.seconds).sum()
    }
}

struct View<'a> {
    jobs: &'a [Job],
    at_once: usize,
    followed: &'a HashMap<PathBuf, Followed>,
    variants: &'a [String],
    split: Split,
}

impl View<'_> {
    fn draw(&self, frame: &mut Frame, title: &str, elapsed: Duration) {
        let runs_height = (self.jobs.len() as u16 + 3).min(frame.area().height / 2);
        let [runs, chart, keys] =
            Layout::vertical([Constraint::Length(runs_height), Constraint::Min(3), Constraint::Length(1)])
                .areas(frame.area());
        self.draw_runs(frame, runs, title, elapsed);
        self.draw_chart(frame, chart);
        frame.render_widget(Line::from(" q stop   t train / validation loss").dim(), keys);
    }

    fn of(&self, job: &Job) -> Option<&Followed> {
        self.followed.get(&job.folder.metrics_path())
    }

    fn color(&self, job: &Job) -> Color {
        let index = self.variants.iter().position(|name| name == of_tuning(&job.config.variant)).unwrap_or(0);
        COLORS[index % COLORS.len()]
    }

    fn draw_runs(&self, frame: &mut Frame, area: Rect, title: &str, elapsed: Duration) {
        let number = |value: Option<f64>, digits: usize| value.map_or("-".into(), |v| format!("{v:.digits$}"));
        // Runs under way first when there is not room for all.
        let mut jobs: Vec<&Job> = self.jobs.iter().collect();
        if jobs.len() + 3 > area.height as usize {
            jobs.sort_by_key(|job| !job.is_running());
        }
        let rows = jobs.into_iter().map(|job| {
            let followed = self.of(job);
            let (train, valid) =
                (followed.and_then(|f| f.last(Split::Train)), followed.and_then(|f| f.last(Split::Valid)));
            let steps = job.config.train.steps;
            let step = followed.map_or(0, Followed::step);
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
            Row::new([
                job.config.label(),
                state,
                format!("{step}/{steps}"),
                number(train.map(|line| line.loss), 4),
                number(valid.map(|line| line.loss), 4),
                number(valid.map(|line| line.perplexity), 3),
                number(followed.and_then(Followed::step_seconds).map(|seconds| tokens / seconds), 0),
                left.map_or("-".into(), train::duration),
            ])
            .style(Style::new().fg(self.color(job)))
        });
        let label = self.jobs.iter().map(|job| job.config.label().len()).max().unwrap_or(0) as u16;
        let widths = [Constraint::Min(label)].into_iter().chain([12, 11, 7, 7, 9, 6, 6].map(Constraint::Length));
        let header = Row::new(["run", "state", "step", "train", "valid", "valid ppl", "tok/s", "left"]).bold();
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

    fn draw_chart(&self, frame: &mut Frame, area: Rect) {
        let curves: Vec<(&Job, Vec<(f64, f64)>)> = self
            .jobs
            .iter()
            .filter_map(|job| Some((job, binned(&self.of(job)?.lines, self.split, job.config.train.steps))))
            .filter(|(_, points)| !points.is_empty())
            .collect();
        let losses = || curves.iter().flat_map(|(_, points)| points.iter().map(|point| point.1));
        let (low, high) = (losses().fold(f64::INFINITY, f64::min), losses().fold(f64::NEG_INFINITY, f64::max));
        let (low, high) = match high - low {
            span if span > 0.0 => (low, high),
            _ if low.is_finite() => (low - 0.5, low + 0.5),
            _ => (0.0, 1.0),
        };
        let steps = self.jobs.iter().map(|job| job.config.train.steps).max().unwrap_or(1) as f64;
        let datasets = curves.iter().map(|(job, points)| {
            Dataset::default()
                .marker(Marker::Braille)
                .graph_type(GraphType::Line)
                .style(Style::new().fg(self.color(job)))
                .data(points)
        });
        let name = match self.split {
            Split::Train => " training loss, nats per token ",
            Split::Valid if curves.is_empty() => " validation loss: nothing evaluated yet ",
            Split::Valid => " validation loss, nats per token ",
        };
        let legend = self.variants.iter().enumerate().map(|(i, variant)| {
            ratatui::text::Span::styled(format!(" {variant} "), Style::new().fg(COLORS[i % COLORS.len()]))
        });
        let axis = |low: f64, high: f64, digits: usize| {
            let labels = [low, (low + high) / 2.0, high].map(|value| format!("{value:.digits$}"));
            Axis::default().bounds([low, high]).labels(labels)
        };
        let block = Block::bordered().title(name).title_bottom(Line::from_iter(legend));
        let chart = Chart::new(datasets.collect()).block(block);
        frame.render_widget(chart.x_axis(axis(0.0, steps, 0)).y_axis(axis(low, high, 3)).legend_position(None), area);
    }

    /// Seconds that a run still needs at the speed it has shown.
    fn seconds_left(&self, job: &Job) -> Option<f64> {
        let followed = self.of(job)?;
        let step = followed.step();
        (step > 0).then(|| followed.seconds() / step as f64 * (job.config.train.steps - step) as f64)
    }

    fn study_seconds_left(&self) -> Option<f64> {
        let known = || self.jobs.iter().filter_map(|job| self.of(job)).filter(|followed| followed.step() > 0);
        let steps: usize = known().map(Followed::step).sum();
        let per_step = known().map(Followed::seconds).sum::<f64>() / steps as f64;
        let left = self.jobs.iter().map(|job| match job.progress {
            Progress::Waiting => job.config.train.steps,
            Progress::Running(_) => job.config.train.steps - self.of(job).map_or(0, Followed::step),
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

/// Mean loss in each hundredth of the run.
fn binned(lines: &[MetricLine], split: Split, steps: usize) -> Vec<(f64, f64)> {
    let width = steps.div_ceil(100).max(1);
    let mut points: Vec<(usize, f64, f64, f64)> = vec![];
    for line in lines.iter().filter(|line| line.split == split) {
        let bin = (line.step - 1) / width;
        match points.last_mut().filter(|point| point.0 == bin) {
            Some(point) => *point = (bin, point.1 + 1.0, point.2 + line.step as f64, point.3 + line.loss),
            None => points.push((bin, 1.0, line.step as f64, line.loss)),
        }
    }
    points.into_iter().map(|(_, n, step, loss)| (step / n, loss / n)).collect()
}
