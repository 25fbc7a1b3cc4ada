//! `ablate watch`: the report of a study in a browser while it trains. Nothing can be changed from there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use study::Report;
use tiny_http::{Header, Method, Request, Response, Server};
use train::ConfigError;

use crate::cli::Watch;
use crate::print;

/// Time between two looks at the folder.
const EVERY: Duration = Duration::from_millis(500);

/// How long a browser waits for news before it asks again.
const PATIENCE: Duration = Duration::from_secs(20);

/// The names of this machine for itself.
const LOOPBACK: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

/// What the page's script looks for to ask for news.
const MARK: &str = "<meta name=\"watch\">";

pub fn run(args: &Watch) -> Result<u8> {
    let folder = study::folder_of(&args.study, &args.out)?;
    // A folder that is no study's is to be known now.
    Report::read(&folder)?;
    let address = (args.host.trim_matches(['[', ']']), args.port);
    let server = Server::http(address).map_err(|error| {
        ConfigError(format!("--host {} --port {}: cannot be listened on: {error}", args.host, args.port))
    })?;
    let server = Arc::new(server);
    let port = server.server_addr().to_ip().map_or(args.port, |address| address.port());
    let host = if args.host.contains(':') { format!("[{}]", args.host) } else { args.host.clone() };
    print(&format!("{} at http://{host}:{port}/ (stop with Ctrl-C)\n", folder.display()))?;
    // Another name for this machine in an address would be a page from elsewhere that wants to read along. Who opens the report to
    // other machines cannot know by what name these will ask.
    let is_loopback = LOOPBACK.contains(&host.to_ascii_lowercase().as_str());
    let names: Vec<String> = LOOPBACK.iter().map(|name| format!("{name}:{port}")).collect();
    let allowed = Arc::new(is_loopback.then_some(names));
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
    let _ = match (is_ours && is_read, request.url()) {
        (false, _) if is_ours => request.respond(Response::from_string("read only\n").with_status_code(405)),
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
