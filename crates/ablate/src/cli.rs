//! The command line.

use std::ffi::OsString;
use std::fmt::Debug;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use data::TokenizerKind;
use kernels::Kernels;
use strum::VariantArray;
use study::{Order, RunState};
use train::Backend;

/// Swap the norm or the activation of a small Transformer, and see what changes.
///
/// `ablate STUDY` is short for `ablate run STUDY`. A study is a TOML file, named by its path or, if it lies in
/// `experiments/`, by its name.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads the command line; a first word that is no command is the study of `run`.
    pub fn read() -> Self {
        let mut args: Vec<OsString> = std::env::args_os().collect();
        let mut definition = Cli::command();
        definition.build();
        let is_study = |word: &OsString| {
            let word = word.to_string_lossy();
            !word.starts_with('-') && definition.find_subcommand(word.as_ref()).is_none()
        };
        if args.get(1).is_some_and(is_study) {
            args.insert(1, "run".into());
        }
        Cli::parse_from(args)
    }
}

const EXIT_CODES: &str = "\
Exit codes:
   0  done
   1  internal error, or some runs of a study failed or cannot be read
   2  wrong usage or configuration
   3  every run diverged (one that diverges does not stop a study)
   4  a folder is in use by another process or has tasks in a queue, or holds a half-finished run of another
      configuration
   5  a corpus, run or study folder is missing, damaged or of a newer version; `report`, `list` and `plan` name such runs and go on
   6  the disk is full, or a file cannot be written
  75  stopped on request; rerun the command to go on";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train every variant of a study over its seeds, skip what is complete, and write the report
    Run(Run),
    /// Write the report of a study from its run folders, and print its table
    Report(Report),
    /// Write the list of a study's runs, for a scheduler that starts each by its number
    Plan(PlanStudy),
    /// Submit what is missing of a study as a Slurm job array, with a report behind it
    Submit(Submit),
    /// Print how far each run of a study is, and what the queue says of it
    Status(Report),
    /// Print every number of every run of a study as CSV: study, variant, seed, step, split, metric, value
    ExportMetrics(Report),
    /// List the studies in `experiments/`, or the runs below a folder
    List(List),
    /// Show the report of a study in a browser while it trains; by default only this machine can open it
    Watch(Watch),
    /// Print what a study would run: variants, differences, budgets, and the reference's full configuration
    Show(Study),
    /// Print text that a finished run's model writes
    Sample(Sample),
    /// Test every norm and feed-forward against the rules of a language model, and print which keep and which break them
    Check,
    /// List the backends of this build and the devices they find
    Devices,
    /// Compare a backend with the CPU: operations, every gradient, and 50 training steps of four models; 1 if it differs
    Selftest {
        /// Which backend
        #[arg(long, default_value = "wgpu", value_parser = by_name::<Backend>())]
        backend: Backend,
    },
    /// Write a finished run as a folder that Hugging Face transformers loads
    Export(Export),
    /// Read a Llama or GPT-2 folder of Hugging Face transformers as a finished run, for `sample` and `export`
    Import(Import),
    /// Test claims of articles and papers: supported, contradicted, or inconclusive at this scale
    Claims(Claims),
    /// Compare runs made anywhere; those that differ by their seed alone are one variant, the first is the reference
    Compare(Compare),
    /// Train a finished run again
    Rerun(Rerun),
    /// Time the training step of a study's models, beside burn's own operations or PyTorch
    Bench(Bench),
    /// List, show, fetch and tokenize corpora
    #[command(subcommand)]
    Data(Data),
    /// Print completions for a shell
    Completions {
        /// The shell to complete for
        shell: Shell,
    },
    #[command(hide = true)]
    Worker(Worker),
    #[command(hide = true)]
    Steps(Steps),
}

/// A study, and what to change about it.
#[derive(Clone, Debug, Args)]
pub struct Study {
    /// Name of a study in `experiments/`, or path of a study file
    pub study: String,
    #[command(flatten)]
    pub changes: Changes,
}

#[derive(Clone, Debug, Args)]
pub struct Changes {
    /// Set a key for the reference and every variant that does not set it itself, as in `--set model.norm=rmsnorm`; can
    /// be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Runs of each variant, with seeds 0, 1, ...
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub seeds: Option<u32>,
    /// Training steps of each run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: Option<u32>,
    /// Where to compute: flex and ndarray are for the CPU, wgpu is for a GPU
    #[arg(long, default_value = "flex", value_parser = by_name::<Backend>())]
    pub backend: Backend,
    /// Operations to compute with: fused (hand-written) where they exist, or plain (burn's own). They agree but for rounding
    /// [default: fused on the CPU, plain on a GPU]
    #[arg(long, value_parser = by_name::<Kernels>())]
    pub kernels: Option<Kernels>,
}

#[derive(Debug, Args)]
pub struct Run {
    /// Name of a study in `experiments/`, or path of a study file
    #[arg(required_unless_present = "plan", conflicts_with = "plan")]
    pub study: Option<String>,
    #[command(flatten)]
    pub changes: Changes,
    #[command(flatten)]
    pub how: How,
    /// Train one run of a plan, that `ablate plan` has written, in this process; nothing is done if it is complete
    #[arg(long, value_name = "FILE", conflicts_with_all = ["set", "seeds", "steps", "backend", "kernels", "jobs", "max_memory", "plain", "out"])]
    pub plan: Option<PathBuf>,
    /// Which run of the plan [default: SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX, as the scheduler sets it]
    #[arg(long, value_name = "N", requires = "plan")]
    pub index: Option<usize>,
}

/// How the runs of a study are carried out.
#[derive(Clone, Debug, Args)]
pub struct How {
    /// Runs at a time [default: one per core]; each has its share of the cores as threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
    /// Memory for all runs at a time, as 8G or 500M [default: all of the machine's]; fewer run at a time if it is short
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub max_memory: Option<f64>,
    /// Print lines instead of a dashboard, as without a terminal
    #[arg(long)]
    pub plain: bool,
    /// Folder for results: run folders and reports go to OUT/STUDY
    #[arg(long, default_value = "runs")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct PlanStudy {
    #[command(flatten)]
    pub study: Study,
    /// Folder for results: the plan goes to OUT/STUDY/plan.jsonl
    #[arg(long, default_value = "runs")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct Submit {
    #[command(flatten)]
    pub study: Study,
    /// Submit to Slurm, as the study's table `[slurm]` says
    #[arg(long, required = true)]
    pub slurm: bool,
    /// Print the scripts, and write and submit nothing
    #[arg(long)]
    pub dry_run: bool,
    /// From the job behind the runs that choose learning rates
    #[arg(long, hide = true)]
    pub after_tuning: bool,
    /// Folder for results, which all nodes see
    #[arg(long, default_value = "runs")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct Report {
    /// Name of a study that has run, or the path of its results
    pub study: String,
    /// Folder for results
    #[arg(long, default_value = "runs")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct Sample {
    /// Folder of a finished run, as in `runs/rmsnorm-swiglu/baseline/seed-0`
    pub run: PathBuf,
    /// Prompt
    #[arg(long, default_value = "")]
    pub prompt: String,
    /// Tokens to write
    #[arg(long, default_value_t = 300, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub tokens: u32,
    /// Sampling temperature: 1 samples from the model, 0 always takes the most likely token
    #[arg(long, default_value_t = 0.8, value_parser = temperature)]
    pub temperature: f64,
    /// Seed of the sampling
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct Export {
    /// Folder of a finished run, as in `runs/rmsnorm-swiglu/baseline/seed-0`
    pub run: PathBuf,
    /// Format to write
    #[arg(long, value_enum)]
    pub to: Format,
    /// Folder to write [default: the folder `hf` in that of the run]
    #[arg(long)]
    pub out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Format {
    /// config.json, model.safetensors, tokenizer.json for Hugging Face transformers
    Hf,
}

#[derive(Debug, Args)]
pub struct Import {
    /// Folder with config.json, model.safetensors and tokenizer.json
    pub folder: PathBuf,
    /// Folder of the run to write
    #[arg(long)]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct Bench {
    #[command(flatten)]
    pub study: Study,
    /// What to compare with, in turns; can be given more than once
    #[arg(long, value_enum)]
    pub against: Vec<Opponent>,
    /// Turns that each takes
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub turns: u16,
    /// Training steps of a turn
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub steps_per_turn: u16,
    /// Threads of each
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Processes of each that take their steps at the same time
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub copies: u16,
    /// Measure each norm, each activation, each branch and the loss by itself, at the sizes of the study, as often as a
    /// turn has steps
    #[arg(long, group = "what", conflicts_with_all = ["against", "copies", "turns"])]
    pub parts: bool,
    /// Measure how the step grows with tokens, width, depth and context
    #[arg(long, group = "what", conflicts_with_all = ["against", "copies", "turns"])]
    pub scaling: bool,
    /// Measure the whole study, and with `--against pytorch` the same runs in compiled PyTorch
    #[arg(long = "study", group = "what", conflicts_with_all = ["copies", "turns", "steps_per_turn", "threads"])]
    pub end_to_end: bool,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Opponent {
    /// The same program with `--kernels plain`
    Plain,
    /// The same model and optimizer in PyTorch, eager and compiled; needs `python3` with `torch`
    Pytorch,
}

#[derive(Debug, Subcommand)]
pub enum Data {
    /// List the corpora that have a name, and which of them are here
    List,
    /// Print a corpus's size, tokens, vocabulary, split and first lines
    Show(ShowCorpus),
    /// Download a corpus into `data/NAME`, checked by its size and SHA-256; a download that broke off is resumed
    Fetch(Fetch),
    /// Write a corpus as token files (llm.c's format), which are mapped and so may be larger than memory
    Tokenize(Tokenize),
}

#[derive(Debug, Args)]
pub struct ShowCorpus {
    /// Name of a corpus, or path of a text file, of a folder of text files, or of token files
    pub corpus: String,
    /// char, byte, bpe, bpe-N (N tokens), gpt2, or the path of a tokenizer.json [default: the baseline's]
    #[arg(long)]
    pub tokenizer: Option<TokenizerKind>,
}

#[derive(Debug, Args)]
pub struct Fetch {
    /// Name of a corpus, as `ablate data list` shows it
    pub corpus: String,
    /// Address to try first; one that ends in `/` is continued with the name of the file
    #[arg(long, value_name = "URL")]
    pub mirror: Option<String>,
    /// Take this file, or the files in this folder, instead of downloading
    #[arg(long, value_name = "PATH", conflicts_with = "mirror")]
    pub from: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Tokenize {
    /// Name of a corpus, or path of a text file or of a folder of text files
    pub corpus: String,
    /// char, byte, bpe, bpe-N (N tokens), gpt2, or the path of a tokenizer.json
    #[arg(long)]
    pub tokenizer: TokenizerKind,
    /// Folder to write; name it as `data.corpus` of a study
    #[arg(long)]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct Claims {
    /// Names of claims in `experiments/claims/` [default: all]
    #[arg(value_name = "CLAIM")]
    pub names: Vec<String>,
    /// How much to train: quick answers all claims within half an hour, full trains what the files say
    #[arg(long, value_enum, default_value_t = Budget::Quick)]
    pub budget: Budget,
    /// Print the claims and train nothing
    #[arg(long)]
    pub list: bool,
    /// Folder for results: runs go to OUT/claims-BUDGET, the answers to a file there
    #[arg(long, default_value = "runs")]
    pub out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Budget {
    Quick,
    Full,
}

#[derive(Debug, Args)]
pub struct Compare {
    /// Folders of runs
    #[arg(required = true, num_args = 2..)]
    pub runs: Vec<PathBuf>,
    /// Percent of perplexity within which a difference counts as none [default: that of the baseline]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub margin: Option<f64>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("purpose").required(true).multiple(true))]
pub struct Rerun {
    /// Folder of a finished run
    pub run: PathBuf,
    /// Compare every loss and every weight with the first time, bit by bit; 1 if they differ
    #[arg(long, group = "purpose")]
    pub verify: bool,
    /// Folder for the new run
    #[arg(long, group = "purpose")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct List {
    /// A folder of results, as `runs`: list its runs instead
    pub folder: Option<PathBuf>,
    /// Runs in this state only; stale: its status says running, but no process is
    #[arg(long, requires = "folder", value_parser = by_name::<RunState>())]
    pub state: Option<RunState>,
    /// Runs whose path contains this
    #[arg(long, requires = "folder", default_value = "", hide_default_value = true, value_name = "PART")]
    pub name: String,
    /// Sort order
    #[arg(long, requires = "folder", default_value = "name", value_parser = by_name::<Order>())]
    pub sort: Order,
}

#[derive(Debug, Args)]
pub struct Watch {
    /// Name of a study with results, or the path of their folder
    pub study: String,
    /// Folder for results, as given to `run`
    #[arg(long, default_value = "runs")]
    pub out: PathBuf,
    /// Where to listen; 0: any port that is free
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Address to listen on; any but the default lets other machines read along
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
}

/// One run of a study, in a process of its own.
#[derive(Debug, Args)]
pub struct Worker {
    pub folder: PathBuf,
    /// The run's config as TOML
    pub config: String,
    /// The command that the study was started with
    #[arg(long)]
    pub command: String,
    #[arg(long)]
    pub dashboard: bool,
    /// The process of the study, with which this one ends
    #[arg(long)]
    pub parent: Option<i32>,
}

/// Training steps by number, in a process of its own.
#[derive(Debug, Args)]
pub struct Steps {
    /// The run's config as TOML
    pub config: String,
    pub threads: u16,
}

/// A choice by its name; whether a backend is built in is for the planner to say.
fn by_name<T>() -> impl TypedValueParser<Value = T>
where
    T: VariantArray + FromStr<Err: Debug> + Clone + Send + Sync + 'static,
    &'static str: From<&'static T>,
{
    PossibleValuesParser::new(T::VARIANTS.iter().map(<&'static str>::from))
        .map(|name| name.parse().expect("a name of the list"))
}

/// A size in bytes, as `8G`.
fn bytes(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.split_at_checked(text.len().saturating_sub(1)) {
        Some((number, "K" | "k")) => (number, 1 << 10),
        Some((number, "M" | "m")) => (number, 1 << 20),
        Some((number, "G" | "g")) => (number, 1 << 30),
        _ => ("", 1),
    };
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value * f64::from(unit)),
        _ => Err("must be a size as 8G or 500M".into()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..100.0).contains(&value) => Ok(value),
        _ => Err("must be from 0 up to 100".into()),
    }
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("must be 0 or a positive number".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(["8G", "500m", "1.5k"].map(|text| bytes(text).unwrap()), [8589934592.0, 524288000.0, 1536.0]);
        assert!(["", "G", "8", "-1G", "8T", "nan", "infG", "8 GiB"].iter().all(|text| bytes(text).is_err()));
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
