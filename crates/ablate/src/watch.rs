//! `ablate watch`: the report of a study in a browser while it trains. Nothing can be changed from there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use study::Report;
use tiny_http::{Header, Request, Response, Server};

use crate::cli::Watch;
use crate::print;

/// Time between two looks at the folder.
const EVERY: Duration = Duration::from_millis(500);

/// How long a browser waits for news before it asks again.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the page's script looks for to ask for news.
const MARK: &str = "<meta name=\"watch\">";

pub fn run(args: &Watch) -> Result<u8> {
    let folder = study::folder_of(&args.study, &args.out)?;
    // A folder that is no study's is to be known now.
    Report::read(&folder)?;
    let address = (args.host.as_str(), args.port);
    let server = Server::http(address).map_err(|error| anyhow::anyhow!("{error}"));
    let server = Arc::new(server.with_context(|| format!("{}:{} cannot be listened on", args.host, args.port))?);
    let port = server.server_addr().to_ip().map_or(args.port, |address| address.port());
    let host = if args.host.contains(':') { format!("[{}]", args.host) } else { args.host.clone() };
    print(&format!("{} at http://{host}:{port}/ (stop with Ctrl-C)\n", folder.display()))?;
    let own = format!("{host}:{port}");
    for request in server.incoming_requests() {
        let (folder, own) = (folder.clone(), own.clone());
        // A browser that waits for news keeps its thread.
        std::thread::spawn(move || answer(request, &folder, &own));
    }
    Ok(0)
}

/// Answers a browser; what goes wrong on the way to it is its own matter.
fn answer(request: Request, folder: &Path, own: &str) {
    let host =
        request.headers().iter().find(|header| header.field.equiv("Host")).map(|header| header.value.to_string());
    // Another name for this machine in the address would be a page from elsewhere that wants to read along.
    let is_ours =
        host.is_some_and(|host| host == own || host.strip_prefix("localhost") == own.strip_prefix("127.0.0.1"));
    let _ = match (is_ours, request.url()) {
        (false, _) => request.respond(Response::from_string("not this address\n").with_status_code(403)),
        (true, "/") => match Report::read(folder) {
            Ok(report) => {
                let page = report.page().replacen("<head>", &format!("<head>\n{MARK}"), 1);
                request.respond(
                    Response::from_string(page).with_header(header("Content-Type", "text/html; charset=utf-8")),
                )
            }
            Err(error) => request.respond(Response::from_string(format!("{error:#}\n")).with_status_code(500)),
        },
        (true, "/events") => {
            let (start, before) = (Instant::now(), latest(folder));
            while start.elapsed() < PATIENCE && latest(folder) == before {
                std::thread::sleep(EVERY);
            }
            let text = if latest(folder) == before { "retry: 100\n\n" } else { "retry: 100\ndata: news\n\n" };
            request.respond(Response::from_string(text).with_header(header("Content-Type", "text/event-stream")))
        }
        (true, _) => request.respond(Response::from_string("no such page\n").with_status_code(404)),
    };
}

fn header(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).expect("names and values of our own")
}

/// When a run of the study last wrote something.
fn latest(folder: &Path) -> Option<SystemTime> {
    let inside = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = inside(folder.into()).flat_map(inside).flat_map(inside).chain(inside(folder.into()));
    let of_interest = files.filter(|path| path.extension().is_some_and(|ending| ending == "json" || ending == "jsonl"));
    of_interest.filter_map(|path| path.metadata().ok()?.modified().ok()).max()
}
