//! What each norm and each activation takes, forward and backward, by our kernels and by burn's operations.

use anyhow::{Context, Result};
use study::{Plan, Table};
use train::{Cost, costs};

use crate::cli::Bench;
use crate::print;
use crate::resources::start_threads;

pub fn measure(plan: &Plan, args: &Bench) -> Result<Vec<Cost>> {
    start_threads(args.threads)?;
    let config = plan.runs().into_iter().next().context("a study has a run")?;
    let all = costs(&config, args.steps_per_turn.into())?;
    let tokens = config.train.batch_size * config.model.seq_len;
    print(&text(&all, [tokens, config.model.d_model, config.model.d_ff], args))?;
    Ok(all)
}

fn text(all: &[Cost], [tokens, d_model, d_ff]: [usize; 3], args: &Bench) -> String {
    let columns = ["microseconds", "forward", "backward", "burn's: forward", "backward", "burn's / ours"];
    let mut table = Table::new(&columns);
    for pair in all.chunks(2) {
        let [ours, plain] = pair else { continue };
        let micro = |seconds: f64| format!("{:.0}", 1e6 * seconds);
        let ratio = (plain.forward + plain.backward) / (ours.forward + ours.backward);
        table.rows.push(vec![
            ours.name.into(),
            micro(ours.forward),
            micro(ours.backward),
            micro(plain.forward),
            micro(plain.backward),
            format!("{ratio:.1}"),
        ]);
    }
    format!(
        "{tokens} tokens; norms of {d_model} numbers, activations of {d_ff}; attention and feed-forward with their matrices; {} thread(s), medians of {}\n\n{}\n\
         BatchNorm, GroupNorm and InstanceNorm are compositions of burn's operations in both.\n",
        args.threads,
        args.steps_per_turn,
        table.plain()
    )
}
