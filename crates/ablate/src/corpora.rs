//! `ablate data`: the corpora by name.

use std::path::Path;

use anyhow::Result;
use data::{DataConfig, Dataset, FOLDER, GENERATED, KNOWN, Known, write_tokens};
use fetch::Source;
use study::{grouped, nearest};
use train::{Backend, ConfigError};

use crate::cli::{Data, Fetch, ShowCorpus, Tokenize};
use crate::{print, printable};

pub fn dispatch(command: Data) -> Result<u8> {
    match command {
        Data::List => print(&list()),
        Data::Show(args) => print(&show(args)?),
        Data::Fetch(args) => fetch(&args),
        Data::Tokenize(args) => tokenize(&args),
    }
}

fn list() -> String {
    let mut lines: Vec<[String; 4]> = vec![];
    for (name, description) in GENERATED {
        lines.push([name.into(), "built in".into(), String::new(), description.into()]);
    }
    for known in KNOWN {
        let state = if known.is_at(&Path::new(FOLDER).join(known.name)) { "here" } else { "not here" };
        let bytes: u64 = known.remotes.iter().map(|remote| remote.bytes).sum();
        let description = format!("{} ({}; {})", known.description, known.license, known.split);
        lines.push([known.name.into(), state.into(), format!("{:.1} MB to get", bytes as f64 / 1e6), description]);
    }
    let width = |i: usize| lines.iter().map(|line| line[i].len()).max().unwrap_or(0);
    let (name, state, size) = (width(0), width(1), width(2));
    lines.iter().map(|[a, b, c, d]| format!("{a:<name$}  {b:<state$}  {c:>size$}  {d}\n")).collect()
}

fn show(args: ShowCorpus) -> Result<String> {
    let baseline = study::baseline(Backend::Flex);
    let tokenizer = args.tokenizer.unwrap_or(baseline.data.tokenizer);
    let config = DataConfig { corpus: args.corpus, tokenizer };
    let dataset = Dataset::load(&config, baseline.model.seq_len)?;
    let part = |tokens: usize, bytes: Option<usize>| match bytes {
        Some(bytes) => {
            let ratio = bytes as f64 / tokens as f64;
            format!("{} bytes, {} tokens, {ratio:.3} bytes per token", grouped(bytes), grouped(tokens))
        }
        None => format!("{} tokens", grouped(tokens)),
    };
    let mut text = format!(
        "corpus      {}, SHA-256 {}\nsplit       {}\ntraining    {}\nvalidation  {}\ntokenizer   {}, {} token ids, SHA-256 {}\n",
        config.corpus,
        dataset.origin.sha256,
        dataset.origin.split_rule,
        part(dataset.n_train(), dataset.train_bytes),
        part(dataset.n_valid(), dataset.valid_bytes),
        config.tokenizer,
        grouped(dataset.tokenizer.vocab_size()),
        dataset.tokenizer.sha256()?
    );
    if let Some(account) = &dataset.account {
        text += &format!("floor       {:.4} nats per token in windows of {}\n", account.floor, dataset.seq_len);
        for (class, own) in &account.classes {
            let (name, share) = (<&str>::from(class), own.n_tokens as f64 / dataset.n_valid() as f64);
            text += &format!("            {name}: {:.4}, {:.1}% of the tokens\n", own.floor, 100.0 * share);
        }
    }
    let beginning = dataset.beginning(400)?;
    text += "\n";
    for line in beginning.lines().take(8) {
        text += &(printable(line) + "\n");
    }
    Ok(text)
}

fn fetch(args: &Fetch) -> Result<u8> {
    let source = Source { mirror: args.mirror.as_deref(), from: args.from.as_deref() };
    let folder = fetch::fetch(known(&args.corpus)?, source, Path::new(FOLDER))?;
    print(&format!("{}: name it in a study as data.corpus = \"{}\"\n", folder.display(), args.corpus))
}

fn known(name: &str) -> Result<&'static Known, ConfigError> {
    let names: Vec<String> = KNOWN.iter().map(|known| known.name.to_string()).collect();
    KNOWN.iter().find(|known| known.name == name).ok_or_else(|| {
        let near = nearest(name, &names);
        ConfigError(format!("there is no corpus `{name}` to fetch; did you mean `{near}`? All: {}", names.join(", ")))
    })
}

fn tokenize(args: &Tokenize) -> Result<u8> {
    let sidecar = write_tokens(&args.corpus, &args.tokenizer, &args.out)?;
    print(&format!(
        "{}: {} tokens to train on, {} to validate, {} token ids; name it in a study as data.corpus = \"{}\" with data.tokenizer \
         = \"{}\"\n",
        args.out.display(),
        grouped(sidecar.train.tokens),
        grouped(sidecar.valid.tokens),
        grouped(sidecar.vocab_size),
        args.out.display(),
        sidecar.tokenizer
    ))
}
