//! Many runs: what a study compares, how its budgets are made equal, and what its results say. It touches no tensor.

mod claim;
mod compare;
mod factorial;
mod inside;
mod list;
mod numbers;
mod overrides;
mod plan;
mod rates;
mod report;
mod results;
mod roughness;
mod row;
mod runs;
mod settings;
mod show;
mod stats;
mod table;

pub use claim::{Answer, Claim, Finding};
pub use compare::Comparison;
pub use list::{Order, RunState, list, run_state};
pub use numbers::grouped;
pub use overrides::{Override, nearest};
pub use plan::{Factor, Plan, Study, Sweep, TUNING, Variant, description};
pub use report::{Report, long_table};
pub use runs::compare;
pub use settings::{Matching, baseline, default_margin};
pub use table::Table;
