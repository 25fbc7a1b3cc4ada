//! Where the time of a training step goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use strum::{EnumCount, IntoStaticStr, VariantArray};

/// A kind of work. Only the fused kernels are timed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray, EnumCount, IntoStaticStr, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Part {
    /// Products with the matrices of attention and feed-forward.
    Matrices,
    /// Scores, softmax, weighted values and rotations.
    Attention,
    Norm,
    Activation,
    /// The head's product and the cross-entropy.
    Loss,
    /// The gradient's norm and AdamW.
    Optimizer,
}

/// Nanoseconds of this process.
static SPENT: [AtomicU64; Part::COUNT] = [const { AtomicU64::new(0) }; Part::COUNT];

/// Does some work of a kind. It costs two looks at the clock, some 50 nanoseconds.
pub(crate) fn timed<T>(part: Part, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    SPENT[part as usize].fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    done
}

/// Seconds that went into a kind of work since this was last asked.
pub fn take_spent(part: Part) -> f64 {
    SPENT[part as usize].swap(0, Ordering::Relaxed) as f64 * 1e-9
}
