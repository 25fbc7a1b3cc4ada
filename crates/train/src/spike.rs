//! Losses that leap out of those before them.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Losses that one is held against.
const WINDOW: usize = 50;

/// Standard deviations above their mean from which on a loss is a spike. Losses of batches scatter about normally: against a mean and a
/// deviation that are themselves estimated from the window, one in some millions lies so far out by chance.
const THRESHOLD: f64 = 6.0;

/// The losses of the last steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window(
    /// As bits: a number in JSON need not come back as it was.
    VecDeque<u64>,
);

impl Window {
    /// The z-score of a loss, in standard deviations of those before it above their mean, if that makes it a spike; `None` also while
    /// there are too few to tell.
    pub(crate) fn spike(&self, loss: f64) -> Option<f64> {
        let n = self.0.len() as f64;
        let losses = || self.0.iter().map(|&bits| f64::from_bits(bits));
        let mean = losses().sum::<f64>() / n;
        let deviation = (losses().map(|loss| (loss - mean).powi(2)).sum::<f64>() / n).sqrt();
        let z = (loss - mean) / deviation;
        (self.0.len() == WINDOW && z.is_finite() && z > THRESHOLD).then_some(z)
    }

    /// The next loss, in place of the oldest.
    pub(crate) fn push(&mut self, loss: f64) {
        self.0.push_back(loss.to_bits());
        if self.0.len() > WINDOW {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leap_is_a_spike_and_a_fall_is_none() {
        let mut window = Window::default();
        // A mean of 2 and a deviation of 0.1.
        for i in 0..WINDOW {
            assert_eq!(window.spike(1e9), None, "too few to tell");
            window.push(if i % 2 == 0 { 1.9 } else { 2.1 });
        }
        assert!((window.spike(2.8).unwrap() - 8.0).abs() < 1e-9);
        assert_eq!([2.5, 2.0, 0.1, f64::NAN, f64::INFINITY].map(|loss| window.spike(loss)), [None; 5]);
        // The window moves on: what stays up is no spike for ever.
        (0..WINDOW).for_each(|i| window.push(if i % 2 == 0 { 2.7 } else { 2.9 }));
        assert_eq!(window.spike(3.0), None);
        let json = serde_json::to_string(&window).unwrap();
        assert_eq!(serde_json::from_str::<Window>(&json).unwrap(), window);
    }
}
