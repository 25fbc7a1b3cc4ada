//! `ablate watch`: the report of a study in a browser while it trains. Nothing can be changed from there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use study::Report;
use tiny_http::{Header, Method, Request, Response, Server};
use train::ConfigError;

use crate::cli::Watch;
use crate::{print, studies};

/// Time between two looks at the folder.
const EVERY: Duration = Duration::from_millis(500);

/// Least time between two renewals of a page: a run writes at each step, and a page that is renewed forgets what was chosen.
const CALM: Duration = Duration::from_secs(5);

/// How long a browser waits for news before it asks again.
const PATIENCE: Duration = Duration::from_secs(20);

/// The names of this machine for itself.
const LOOPBACK: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

pub fn run(args: &Watch) -> Result<u8> {
    let folder = studies::results(&args.study, &args.out)?;
    // A folder that is no study's is to be known now.
    Report::read(&folder)?;
    let host = args.host.trim_matches(['[', ']']);
    let server = Server::http((host, args.port)).map_err(|error| {
        ConfigError(format!("--host {} --port {}: cannot be listened on: {error}", args.host, args.port))
    })?;
    let bound = server.server_addr().to_ip();
    let port = bound.map_or(args.port, |address| address.port());
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_ascii_lowercase() };
    print(&format!("{} at http://{host}:{port}/ (stop with Ctrl-C)\n", folder.display()))?;
    // Another name for this machine in an address would be a page from elsewhere that wants to read along. Who opens the report to
    // other machines cannot know by what name these will ask.
    let names = LOOPBACK.iter().copied().chain([host.as_str()]);
    // Of the usual port browsers say nothing.
    let names =
        names.flat_map(|name| [format!("{name}:{port}")].into_iter().chain((port == 80).then(|| name.to_string())));
    let is_loopback = bound.is_some_and(|address| address.ip().is_loopback());
    let allowed = Arc::new(is_loopback.then(|| names.collect::<Vec<String>>()));
    for request in server.incoming_requests() {
        let (folder, allowed) = (folder.clone(), allowed.clone());
        // A browser that waits for news keeps its thread.
        std::thread::spawn(move || answer(request, &folder, allowed.as_deref()));
    }
    Ok(0)
}

/// Answers a browser; what goes wrong on the way to it is its own matter.
fn answer(request: Request, folder: &Path, allowed: Option<&[String]>) {
    let host =
        request.headers().iter().find(|header| header.field.equiv("Host")).map(|header| header.value.to_string());
    let host = host.map(|host| host.to_ascii_lowercase());
    let is_ours = allowed.is_none_or(|names| host.is_some_and(|host| names.contains(&host)));
    let is_read = matches!(request.method(), Method::Get | Method::Head);
    let refused = |request: Request, why: &str, code: u16| {
        let _ = request.respond(Response::from_string(why).with_status_code(code));
    };
    if !is_ours {
        return refused(request, "not this address\n", 403);
    }
    if !is_read {
        return refused(request, "read only\n", 405);
    }
    let url = request.url().to_string();
    let (path, seen) = url.split_once('?').unwrap_or((&url, ""));
    let _ = match path {
        "/" => {
            // What is written from now on is news to this page.
            let now = latest(folder);
            match Report::read(folder) {
                Ok(report) => {
                    let mark = format!("<head>\n<meta name=\"watch\" content=\"{now}\">");
                    let page = Response::from_string(report.page().replacen("<head>", &mark, 1));
                    request.respond(page.with_header(header("Content-Type", "text/html; charset=utf-8")))
                }
                Err(error) => {
                    let text = Response::from_string(format!("{error:#}\n")).with_status_code(500);
                    request.respond(text.with_header(header("Refresh", "5")))
                }
            }
        }
        "/events" => {
            let start = Instant::now();
            let is_news = || latest(folder).to_string() != seen;
            std::thread::sleep(CALM);
            while start.elapsed() < PATIENCE && !is_news() {
                std::thread::sleep(EVERY);
            }
            let text = if is_news() { "retry: 100\ndata: news\n\n" } else { "retry: 100\n\n" };
            request.respond(Response::from_string(text).with_header(header("Content-Type", "text/event-stream")))
        }
        _ => request.respond(Response::from_string("no such page\n").with_status_code(404)),
    };
}

fn header(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).expect("names and values of our own")
}

/// When a run of the study, tuning runs included, last wrote something: milliseconds since 1970.
fn latest(folder: &Path) -> u128 {
    let inside = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = vec![folder.into()];
    let mut newest = 0;
    // STUDY / tuning / VARIANT / seed-N / file
    for _ in 0..4 {
        files = files.into_iter().flat_map(inside).collect();
        let of_interest =
            files.iter().filter(|path| path.extension().is_some_and(|end| end == "json" || end == "jsonl"));
        let modified = of_interest.filter_map(|path| path.metadata().ok()?.modified().ok());
        let since = modified.filter_map(|time| Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis()));
        newest = since.fold(newest, u128::max);
    }
    newest
}
