//! Many runs: what a study compares, how its budgets are made equal, and what its results say. It touches no tensor.

mod compare;
mod overrides;
mod plan;
mod report;
mod results;
mod roughness;
mod settings;
mod show;
mod stats;
mod table;

pub use compare::{Comparison, grouped};
pub use overrides::{Override, nearest};
pub use plan::{Plan, Study, Variant, description};
pub use report::Report;
pub use settings::{Matching, baseline};
pub use stats::median;
pub use table::Table;
