//! `ablate watch`: the report of a study in a browser while it trains. Nothing can be changed from there.
//!
//! Each client gets one request per connection. How many connections there are, how long each may take and how long its
//! headers may be is limited, so that no client can use up the memory or stop the server.

use std::net;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, REFRESH};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use study::Report;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio::time::{sleep, timeout};
use train::ConfigError;

use crate::cli::Watch;
use crate::{print, studies};

/// Time between two checks of the folder.
const EVERY: Duration = Duration::from_millis(500);

/// Least time between two reloads of a page: a run writes at each step, and a page that is reloaded forgets what was chosen.
const CALM: Duration = Duration::from_secs(5);

/// How long a browser waits for news before it asks again.
const PATIENCE: Duration = Duration::from_secs(20);

/// Open connections at a time; more wait in the system's queue. Well below the 64 open files that some systems allow.
const CONNECTIONS: usize = 32;

/// Reads of the study's files at a time.
const READS: usize = 2;

/// How long a client may take to send its headers.
const HEADER_TIME: Duration = Duration::from_secs(3);

/// The headers of one request, in bytes: browsers send the cookies of everything that this machine serves.
const HEADER_BYTES: usize = 64 << 10;

/// How long a connection may last, with the wait for news and a slow reader.
const CONNECTION_TIME: Duration = Duration::from_secs(60);

/// The names of this machine for itself.
const LOOPBACK: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

/// What is served, and to whom.
struct Site {
    folder: PathBuf,
    /// The values of `Host` that are answered; all if there are none.
    hosts: Option<Vec<String>>,
}

pub fn run(args: &Watch) -> Result<u8> {
    let folder = studies::results(&args.study, &args.out)?;
    // A folder that is no study's is to be known now.
    Report::read(&folder)?;
    let host = args.host.trim_matches(['[', ']']);
    let listener = net::TcpListener::bind((host, args.port)).map_err(|error| {
        ConfigError(format!("--host {} --port {}: cannot be listened on: {error}", args.host, args.port))
    })?;
    let bound = listener.local_addr().context("the server has no address")?;
    let port = bound.port();
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_ascii_lowercase() };
    print(&format!("{} at http://{host}:{port}/ (stop with Ctrl-C)\n", folder.display()))?;
    // Another name for this machine in an address would be a page from elsewhere that wants to read along. Who opens the report to
    // other machines cannot know by what name these will ask.
    let names = LOOPBACK.iter().copied().chain([host.as_str()]);
    // Of the usual port browsers say nothing.
    let names =
        names.flat_map(|name| [format!("{name}:{port}")].into_iter().chain((port == 80).then(|| name.to_string())));
    let hosts = bound.ip().is_loopback().then(|| names.collect());
    // Served until the process ends.
    let site: &'static Site = Box::leak(Box::new(Site { folder, hosts }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.and_then(|runtime| runtime.block_on(serve(listener, site))).context("the server cannot be started")
}

/// Accepts connections until the process ends.
async fn serve(listener: net::TcpListener, site: &'static Site) -> std::io::Result<u8> {
    static FREE: Semaphore = Semaphore::const_new(CONNECTIONS);
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    loop {
        let permit = FREE.acquire().await.expect("never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(async move {
                    let _permit = permit;
                    serve_connection(stream, site).await;
                });
            }
            // The client has gone, or this process may open no more files until a connection ends.
            Err(_) => sleep(EVERY).await,
        }
    }
}

async fn serve_connection(stream: TcpStream, site: &'static Site) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(HEADER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service_fn(move |request| answer(request, site)));
    // What goes wrong on the way to a browser is its own matter.
    let _ = timeout(CONNECTION_TIME, connection).await;
}

async fn answer(request: Request<Incoming>, site: &'static Site) -> Result<Response<String>, JoinError> {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).map(str::to_ascii_lowercase);
    if !site.hosts.as_ref().is_none_or(|names| host.is_some_and(|host| names.contains(&host))) {
        return Ok(plain(StatusCode::FORBIDDEN, "not this address\n"));
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return Ok(plain(StatusCode::METHOD_NOT_ALLOWED, "read only\n"));
    }
    match request.uri().path() {
        "/" => read_files(move || page(&site.folder)).await,
        "/events" => events(request.uri().query().unwrap_or_default(), site).await,
        _ => Ok(plain(StatusCode::NOT_FOUND, "no such page\n")),
    }
}

/// The report, or why there is none now.
fn page(folder: &Path) -> Response<String> {
    // What is written from now on is news to this page.
    let now = latest(folder);
    match Report::read(folder) {
        Ok(report) => {
            let mark = format!("<head>\n<meta name=\"watch\" content=\"{now}\">");
            respond(StatusCode::OK, "text/html; charset=utf-8", report.page().replacen("<head>", &mark, 1))
        }
        Err(error) => {
            let mut response = plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n"));
            response.headers_mut().insert(REFRESH, HeaderValue::from_static("5"));
            response
        }
    }
}

/// Waits until something newer than `seen` was written, but not for ever.
async fn events(seen: &str, site: &'static Site) -> Result<Response<String>, JoinError> {
    let start = Instant::now();
    sleep(CALM).await;
    let text = loop {
        if read_files(move || latest(&site.folder)).await?.to_string() != seen {
            break "retry: 100\ndata: news\n\n";
        }
        if start.elapsed() >= PATIENCE {
            break "retry: 100\n\n";
        }
        sleep(EVERY).await;
    };
    Ok(respond(StatusCode::OK, "text/event-stream", text))
}

/// Reads files on another thread, so that the other connections go on. A read outlives a client that goes away, so each waits
/// for its turn before it starts.
async fn read_files<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    static FREE: Semaphore = Semaphore::const_new(READS);
    let permit = FREE.acquire().await.expect("never closed");
    let reading = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        read()
    });
    reading.await
}

fn plain(status: StatusCode, text: impl Into<String>) -> Response<String> {
    respond(status, "text/plain; charset=utf-8", text)
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<String>) -> Response<String> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
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
