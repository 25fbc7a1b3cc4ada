//! A plan in words.

use std::fmt::{Display, Formatter, Result};

use model::{Budget, Parts};

use crate::numbers::grouped;
use crate::plan::{Plan, PlannedVariant, Sweep, Text};
use crate::settings::Matching;
use crate::table::Table;

impl Display for Plan {
    /// What the study would run: variants, differences, budgets, and the full configuration of the reference.
    fn fmt(&self, f: &mut Formatter) -> Result {
        let train = &self.settings.train;
        let tokens = train.steps * train.batch_size * self.settings.model.seq_len;
        writeln!(f, "{}\n{}\n", self.study.name, self.study.description)?;
        writeln!(
            f,
            "{} variants x {} seeds = {} runs of {} steps, {} tokens each",
            self.variants.len(),
            self.study.seeds,
            self.runs().len(),
            train.steps,
            grouped(tokens)
        )?;
        if let Some(Sweep { rates, seeds }) = &self.study.sweep {
            let runs = self.tuning_runs();
            let rates: Vec<String> = rates.iter().map(f64::to_string).collect();
            writeln!(
                f,
                "before that {} runs, {seeds} for each variant and rate, choose among {}",
                runs.len(),
                rates.join(", ")
            )?;
        }
        writeln!(f, "differences within {}% of perplexity count as none\n", self.study.margin)?;
        let reference = self.variants[0].budget;
        let mut table =
            Table::new(&["variant", "d_ff", "params", "against reference", "FLOPs/token", "against reference"]);
        let mut parts = Table::new(&[
            "variant",
            "embedding",
            "attention",
            "feed-forward",
            "norms",
            "MFLOPs: attention",
            "feed-forward",
            "head",
        ]);
        for PlannedVariant { config, budget: Budget { params, flops } } in &self.variants {
            let against = |own: &Parts, reference: &Parts| {
                format!("{:+.2}%", 100.0 * (own.total() as f64 / reference.total() as f64 - 1.0))
            };
            table.rows.push(vec![
                config.variant.clone(),
                config.model.d_ff.to_string(),
                grouped(params.total()),
                against(params, &reference.params),
                grouped(flops.total()),
                against(flops, &reference.flops),
            ]);
            let mega = |flops: usize| format!("{:.3}", flops as f64 / 1e6);
            parts.rows.push(vec![
                config.variant.clone(),
                grouped(params.embedding),
                grouped(params.attention),
                grouped(params.ffn),
                grouped(params.norm),
                mega(flops.attention),
                mega(flops.ffn),
                mega(flops.head),
            ]);
        }
        writeln!(f, "{}", table.plain())?;
        let matched = match self.study.matching {
            Matching::Params => "d_ff is matched by parameters, rounded to the nearest whole number",
            Matching::Flops => "d_ff is matched by FLOPs per token, rounded to the nearest whole number",
            Matching::Width | Matching::Loose => "d_ff is as written: budgets are unmatched",
        };
        writeln!(f, "{matched}\n")?;
        writeln!(f, "parameters and FLOPs per token by part; the head's parameters are the embedding's:\n")?;
        writeln!(f, "{}", parts.plain())?;
        for variant in &self.study.variants[1..] {
            let reference = self.study.variants[0].d_ff;
            let width = if variant.d_ff == reference {
                String::new()
            } else {
                format!("; d_ff {reference} -> {}", variant.d_ff)
            };
            writeln!(f, "{} changes {}{width}", variant.name, variant.changes.join(", "))?;
        }
        let Text { split_rule, n_train, n_valid, account, .. } = &self.text;
        writeln!(
            f,
            "\n{}: {} tokens to train on, {} to validate; {split_rule}",
            self.settings.data.corpus,
            grouped(*n_train),
            grouped(*n_valid)
        )?;
        if let Some(account) = account {
            writeln!(f, "the best possible validation loss on this text is {:.4} nats per token", account.floor)?;
            if account.fact_nats.is_some() {
                let exposures = tokens as f64 / *n_valid as f64;
                writeln!(f, "each fact is seen about {exposures:.0} times")?;
            }
        }
        let config = toml::to_string(&self.variants[0].config).expect("a config is a table");
        write!(f, "\nconfiguration of {}, seed 0:\n\n{config}", self.study.variants[0].name)
    }
}
