//! Progress as plain lines, for pipes, logs and terminals that cannot draw.

use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, Instant};

use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn::train::metric::{MetricDefinition, MetricId};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining,
};

/// Time between two lines of training; an evaluation is always shown.
const EVERY: Duration = Duration::from_secs(5);

/// Prints a line every few seconds: `step 120/800 train loss 1.2345  perplexity 3.437  ...`.
pub(crate) struct LineRenderer {
    names: HashMap<MetricId, String>,
    train: Vec<(MetricId, String)>,
    valid: Vec<(MetricId, String)>,
    steps: usize,
    last: Instant,
}

impl LineRenderer {
    pub(crate) fn new() -> Self {
        LineRenderer { names: HashMap::new(), train: vec![], valid: vec![], steps: 0, last: Instant::now() }
    }

    fn line(&self, step: usize, split: &str, metrics: &[(MetricId, String)]) {
        let parts: Vec<String> =
            metrics.iter().map(|(id, value)| format!("{} {value}", self.names[id].to_lowercase())).collect();
        let width = self.steps.to_string().len();
        // A closed pipe must not end a run that is worth keeping.
        let _ = writeln!(std::io::stdout(), "step {step:>width$}/{} {split} {}", self.steps, parts.join("  "));
    }
}

fn set(metrics: &mut Vec<(MetricId, String)>, state: MetricState) {
    let entry = match state {
        MetricState::Generic(entry) | MetricState::Numeric(entry, _) => entry,
    };
    let value = entry.serialized_entry.formatted;
    match metrics.iter_mut().find(|(id, _)| *id == entry.metric_id) {
        Some(known) => known.1 = value,
        None => metrics.push((entry.metric_id, value)),
    }
}

impl MetricsRendererTraining for LineRenderer {
    fn update_train(&mut self, state: MetricState) {
        set(&mut self.train, state);
    }

    fn update_valid(&mut self, state: MetricState) {
        set(&mut self.valid, state);
    }
}

impl TrainingProgressLogger for LineRenderer {
    fn start(&mut self, _epochs: usize, _starting_epoch: usize, _total_items: Option<usize>, _label: Option<&str>) {}

    fn start_split(&mut self, _split: &str, total_items: usize) {
        self.steps = total_items;
    }

    fn update_split(&mut self, step: usize) {
        if !self.valid.is_empty() {
            let valid = std::mem::take(&mut self.valid);
            self.line(step, "valid", &valid);
        } else if step == 1 || self.last.elapsed() >= EVERY {
            self.last = Instant::now();
            self.line(step, "train", &self.train);
        }
    }

    fn update_epoch(&mut self, _epoch: usize) {}

    fn end_split(&mut self) {}

    fn end(&mut self) {}

    fn log_event_training(&mut self, _event: String) {}
}

impl EvaluationProgressLogger for LineRenderer {
    fn start_global_progress(&mut self, _total_tests: usize) {}

    fn start_test(&mut self, _name: &str, _total_items: usize) {}

    fn update_test_progress(&mut self, _items_processed: usize) {}

    fn end_test(&mut self) {}

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _event: String) {}
}

impl MetricsRendererEvaluation for LineRenderer {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}
}

impl MetricsRenderer for LineRenderer {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name.to_string());
    }
}
