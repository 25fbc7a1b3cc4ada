//! `ablate claims`: what articles say, asked of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use study::{Answer, Claim, Finding, Plan, Report, Table, nearest};
use train::format::stamped;
use train::{Backend, ConfigError, write_whole};

use crate::cli::{Budget, Claims, How};
use crate::processes::{self, Outcome};
use crate::{print, studies};

/// `claims.json`
#[derive(Serialize)]
struct Answers<'a> {
    budget: &'static str,
    claims: &'a [Answered],
}

/// A claim that was answered.
#[derive(Serialize)]
struct Answered {
    name: String,
    statement: String,
    source: String,
    paper: String,
    #[serde(flatten)]
    finding: Finding,
    seconds: f64,
}

pub fn run(args: &Claims) -> Result<u8> {
    let files = chosen(&args.names)?;
    if args.list {
        let lines = files.iter().map(|(name, file)| Ok(format!("{name:<24}{}\n", Claim::read(file)?.statement)));
        return print(&lines.collect::<Result<String>>()?);
    }
    let budget = match args.budget {
        Budget::Quick => "quick",
        Budget::Full => "full",
    };
    let folder = args.out.join(format!("claims-{budget}"));
    fs::create_dir_all(&folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    // A file that cannot be read is to be known before anything is trained.
    let claims: Result<Vec<Claim>> = files.iter().map(|(_, file)| Claim::read(file)).collect();
    // The answers to some claims lie beside those to all.
    let answers = folder.join(if args.names.is_empty() { "claims.md".into() } else { args.names.join("-") + ".md" });
    let mut all = vec![];
    for ((name, file), claim) in files.into_iter().zip(claims?) {
        let start = Instant::now();
        let Some(finding) = answer(&claim, &file, &folder, args)? else {
            print(&format!("Stopped; the claims that are answered are in {}\n", answers.display()))?;
            return Ok(75);
        };
        print(&format!("{name}: {}\n", finding.answer.words()))?;
        let figures: String = finding.figures.iter().map(|figures| format!("  here: {figures}\n")).collect();
        print(&format!("  {}\n{figures}\n", claim.statement))?;
        let Claim { statement, source, paper, .. } = claim;
        all.push(Answered { name, statement, source, paper, finding, seconds: start.elapsed().as_secs_f64() });
        write_whole(&answers, markdown(&all, budget))?;
        let json = serde_json::to_string_pretty(&stamped(&Answers { budget, claims: &all }))?;
        write_whole(&answers.with_extension("json"), &(json + "\n"))?;
    }
    let mut table = Table::new(&["claim", "answer", "seconds"]);
    for Answered { name, finding, seconds, .. } in &all {
        table.rows.push(vec![name.clone(), finding.answer.words().into(), format!("{seconds:.0}")]);
    }
    print(&format!("\n{}\nFigures and sources: {}\n", table.plain(), answers.display()))
}

/// The files of the claims that are named, or all.
fn chosen(names: &[String]) -> Result<Vec<(String, PathBuf)>, ConfigError> {
    let all = studies::in_folder(&Path::new(studies::FOLDER).join("claims"));
    if all.is_empty() {
        return Err(ConfigError(format!("there is no folder `{}/claims` with claims here", studies::FOLDER)));
    }
    if names.is_empty() {
        return Ok(all);
    }
    let known: Vec<String> = all.iter().map(|(name, _)| name.clone()).collect();
    let find = |name: &String| {
        all.iter().find(|(known, _)| known == name).cloned().ok_or_else(|| {
            ConfigError(format!("there is no claim `{name}`; the nearest is `{}`", nearest(name, &known)))
        })
    };
    names.iter().map(find).collect()
}

/// The answer; `None` when training was stopped.
fn answer(claim: &Claim, file: &Path, folder: &Path, args: &Claims) -> Result<Option<Finding>> {
    if let Some(exact) = claim.exact {
        let (holds, figures) = exact.check(&Backend::Flex.device()?);
        let answer = if holds { Answer::Supported } else { Answer::Contradicted };
        return Ok(Some(Finding { answer, figures: vec![figures] }));
    }
    let overrides = match args.budget {
        Budget::Quick => claim.quick(),
        Budget::Full => vec![],
    };
    let mut plan = Plan::read(file, &overrides, Backend::Flex, None)?;
    claim.check(&plan)?;
    if claim.is_counted() {
        return Ok(Some(claim.count(&plan)));
    }
    let how = How { jobs: None, max_memory: None, plain: true, out: folder.into() };
    match processes::run_study(&mut plan, &how)? {
        Outcome::Stopped => Ok(None),
        Outcome::DiskFull => Err(std::io::Error::from(std::io::ErrorKind::StorageFull)).context(plan.study.name),
        // Runs that failed are missing from the figures, which say how many seeds there are.
        Outcome::Ended | Outcome::SomeFailed | Outcome::AllDiverged => {
            let report = Report::read(&folder.join(&plan.study.name))?;
            Ok(Some(claim.judge(&report.comparison)))
        }
    }
}

fn markdown(all: &[Answered], budget: &str) -> String {
    let mut text = format!(
        "# Claims, budget {budget}\n\nEvery answer follows from the figures by rule; none is written by hand.\n"
    );
    for Answered { name, statement, source, paper, finding, seconds } in all {
        text += &format!(
            "\n## {name}: {}\n\n{statement}\n\n- source: {source}\n- papers: {paper}\n",
            finding.answer.words()
        );
        for figures in &finding.figures {
            text += &format!("- here: {figures}\n");
        }
        text += &format!("- answered in {seconds:.0} s\n");
    }
    text
}
