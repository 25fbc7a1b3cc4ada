//! What burn's dashboard shows of a run.

use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn::train::logger::MetricLogger;
use burn::train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn::train::metric::{
    Metric, MetricAttributes, MetricDefinition, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use crate::learner::StepOutput;

/// One number of a report under a name.
#[derive(Clone)]
pub(crate) struct ScalarMetric {
    name: MetricName,
    higher_is_better: bool,
    read: fn(&StepOutput) -> f64,
    show: fn(f64) -> String,
    value: f64,
}

impl ScalarMetric {
    fn new(name: &str, read: fn(&StepOutput) -> f64, show: fn(f64) -> String) -> Self {
        ScalarMetric { name: Arc::new(name.into()), higher_is_better: false, read, show, value: f64::NAN }
    }

    /// Nats per token.
    pub(crate) fn loss() -> Self {
        ScalarMetric::new("Loss", StepOutput::loss, |value| format!("{value:.4}"))
    }

    pub(crate) fn perplexity() -> Self {
        ScalarMetric::new("Perplexity", |report| report.loss().exp(), |value| format!("{value:.3}"))
    }

    pub(crate) fn learning_rate() -> Self {
        ScalarMetric::new("Learning rate", |report| report.lr, |value| format!("{value:.2e}"))
    }

    pub(crate) fn tokens_per_second() -> Self {
        let speed =
            ScalarMetric::new("Tokens per second", |report| report.tokens_per_second, |value| format!("{value:.0}"));
        ScalarMetric { higher_is_better: true, ..speed }
    }

    pub(crate) fn time_left() -> Self {
        ScalarMetric::new("Time left", |report| report.seconds_left, duration)
    }

    fn entry(&self) -> SerializedEntry {
        SerializedEntry::new((self.show)(self.value), self.value.to_string())
    }
}

/// Seconds as `1h02m`, `3m07s` or `12s`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) => format!("{h}h{m:02}m"),
    }
}

impl Metric for ScalarMetric {
    type Input = StepOutput;

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes { unit: None, higher_is_better: self.higher_is_better }.into()
    }

    fn update(&mut self, report: &StepOutput, _at: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        self.value = (self.read)(report);
        Ok(self.entry())
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.entry())
    }

    fn clear(&mut self) {
        self.value = f64::NAN;
    }
}

impl Numeric for ScalarMetric {
    fn value(&self) -> Option<NumericEntry> {
        Some(NumericEntry::Value(self.value))
    }

    fn running_value(&self) -> Option<NumericEntry> {
        self.value()
    }

    fn final_value(&self) -> NumericEntry {
        NumericEntry::Final(self.value)
    }
}

/// Keeps nothing of what burn would log: `metrics.jsonl` is the log, and a long run must not grow.
pub(crate) struct NoLog;

impl MetricLogger for NoLog {
    fn log(&mut self, _update: MetricsUpdate, _epoch: usize, _split: &Split) {}

    fn read_numeric(&mut self, name: &str, _epoch: usize, _split: &Split) -> Result<Vec<NumericEntry>, String> {
        Err(format!("{name} is not kept"))
    }

    fn log_metric_definition(&mut self, _definition: MetricDefinition) {}

    fn log_epoch_summary(&mut self, _summary: EpochSummary) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        assert_eq!([0.4, 59.6, 187.0, 3720.0].map(duration), ["0s", "1m00s", "3m07s", "1h02m"]);
    }
}
