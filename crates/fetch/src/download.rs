//! One file from one address, resumed where it was left.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use data::Remote;
use ureq::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, RANGE};
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use crate::{FetchError, Verdict, bar, check};

/// The least speed: so many bytes of the file within each such time.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    bytes: u64,
    within: Duration,
}

/// About a kilobyte per second: at less, even a megabyte takes a quarter of an hour.
pub(crate) const PACE: Pace = Pace { bytes: 32 << 10, within: Duration::from_secs(30) };

/// Tries without progress before an address is given up.
const TRIES: u32 = 3;

/// The pause before the second of such tries; then as much more before each.
const PAUSE: Duration = Duration::from_millis(500);

/// Downloads into `part` and checks it. Returns why this address is of no use; what was downloaded stays, unless it is wrong.
///
/// # Errors
/// The file cannot be written: no other address will help.
pub(crate) fn download(url: &str, part: &Path, remote: &Remote, pace: Pace) -> Result<Verdict, FetchError> {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(part);
    let file = &mut file.map_err(FetchError::io(part))?;
    let mut reason = String::new();
    let mut furthest = length(file, part)?;
    let mut tries = 0;
    while tries < TRIES {
        if tries > 0 {
            thread::sleep(PAUSE * tries);
        }
        let before = length(file, part)?;
        let resumed = (1..=remote.bytes).contains(&before);
        if before > remote.bytes {
            file.set_len(0).map_err(FetchError::io(part))?;
        }
        let (outcome, was_slow) = at_pace(pace, |agent, received| append(agent, url, file, part, remote, received));
        match outcome? {
            Ok(()) => match check(part, remote)? {
                Ok(()) => return Ok(Ok(())),
                Err(problem) => {
                    file.set_len(0).map_err(FetchError::io(part))?;
                    // The beginning may have been another server's.
                    if !resumed {
                        return Ok(Err(format!("sends something else: {problem}")));
                    }
                }
            },
            Err(_) if was_slow => {
                let Pace { bytes, within } = pace;
                reason = format!(
                    "is too slow: it sent fewer than {bytes} bytes in {within:?} \
                     (the same command goes on from where this one stopped)"
                );
            }
            Err(problem) if problem.is_final => return Ok(Err(problem.reason)),
            Err(problem) => reason = problem.reason,
        }
        // Only what was never reached before is progress, and a byte is none, or a server could keep us busy for ever.
        let reached = length(file, part)?;
        tries = if reached >= furthest + pace.bytes { 0 } else { tries + 1 };
        furthest = furthest.max(reached);
    }
    if length(file, part)? == 0 {
        fs::remove_file(part).map_err(FetchError::io(part))?;
    }
    Ok(Err(reason))
}

fn length(file: &File, part: &Path) -> Result<u64, FetchError> {
    Ok(file.metadata().map_err(FetchError::io(part))?.len())
}

/// Runs one try. Its connections are closed if it receives too little, whatever the server sends instead: headers,
/// redirects or padding without end. Returns also whether that happened.
fn at_pace<T>(pace: Pace, attempt: impl FnOnce(&Agent, &AtomicU64) -> T) -> (T, bool) {
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        // Closing the connections ends everything but these two, which come before there is one.
        .timeout_resolve(Some(pace.within / 2))
        .timeout_connect(Some(pace.within / 2))
        .user_agent(concat!("ablate/", env!("CARGO_PKG_VERSION")))
        .build()
        .into();
    let (agent, received) = (&agent, &AtomicU64::new(0));
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let mut before = 0;
            while is_done.recv_timeout(pace.within) == Err(RecvTimeoutError::Timeout) {
                let now = received.load(Ordering::Relaxed);
                if now - before < pace.bytes {
                    agent.clone().shutdown();
                    return true;
                }
                before = now;
            }
            false
        });
        let outcome = attempt(agent, received);
        drop(done);
        (outcome, watch.join().expect("it only waits"))
    })
}

/// Why a try failed, and whether another one can be better.
struct Problem {
    reason: String,
    is_final: bool,
}

impl Problem {
    fn passing(reason: impl Into<String>) -> Self {
        Problem { reason: reason.into(), is_final: false }
    }

    fn lasting(reason: impl Into<String>) -> Self {
        Problem { reason: reason.into(), is_final: true }
    }
}

/// Asks for what is missing of a file and appends it; counts the bytes that come.
fn append(
    agent: &Agent,
    url: &str,
    file: &mut File,
    part: &Path,
    remote: &Remote,
    received: &AtomicU64,
) -> Result<Result<(), Problem>, FetchError> {
    let mut at = length(file, part)?;
    if at == remote.bytes {
        return Ok(Ok(()));
    }
    let mut request = agent.get(url).header(ACCEPT_ENCODING, "identity");
    if at > 0 {
        request = request.header(RANGE, format!("bytes={at}-"));
    }
    let response = match request.call() {
        Ok(response) => response,
        Err(ureq::Error::BadUri(_) | ureq::Error::Http(_)) => {
            return Ok(Err(Problem::lasting("is no address of the web")));
        }
        Err(error) => return Ok(Err(Problem::passing(format!("does not answer: {error}")))),
    };
    let status = response.status();
    if response.headers().contains_key(CONTENT_ENCODING) {
        return Ok(Err(Problem::lasting("sends it encoded, though that was not asked for")));
    }
    if status == StatusCode::PARTIAL_CONTENT && continues(&response, at) {
        // Goes on where we are.
    } else if status == StatusCode::OK {
        // The whole file, whether a part was asked for or not. What is here is not given up for something else.
        if let Some(n) = response.body().content_length().filter(|&n| n != remote.bytes) {
            return Ok(Err(Problem::lasting(format!("sends something else: {n} bytes instead of {}", remote.bytes))));
        }
        file.set_len(0).map_err(FetchError::io(part))?;
        at = 0;
    } else if status == StatusCode::PARTIAL_CONTENT || status == StatusCode::RANGE_NOT_SATISFIABLE {
        file.set_len(0).map_err(FetchError::io(part))?;
        return Ok(Err(Problem::passing("does not send the part that was asked for")));
    } else if status.is_server_error() {
        return Ok(Err(Problem::passing(format!("answers {status}"))));
    } else {
        return Ok(Err(Problem::lasting(format!("answers {status}"))));
    }
    file.seek(SeekFrom::Start(at)).map_err(FetchError::io(part))?;
    let bar = bar(remote.bytes, remote.file);
    bar.set_position(at);
    let mut body = response.into_body().into_reader();
    let mut buffer = vec![0; 1 << 16];
    let broken = loop {
        match body.read(&mut buffer) {
            Ok(0) => break None,
            Ok(n) => {
                received.fetch_add(n as u64, Ordering::Relaxed);
                at += n as u64;
                if at > remote.bytes {
                    break None;
                }
                file.write_all(&buffer[..n]).map_err(FetchError::io(part))?;
                bar.set_position(at);
            }
            Err(error) => break Some(error),
        }
    };
    bar.finish_and_clear();
    if at > remote.bytes {
        file.set_len(0).map_err(FetchError::io(part))?;
        return Ok(Err(Problem::lasting(format!("sends something else: more than {} bytes", remote.bytes))));
    }
    if at < remote.bytes {
        let why = broken.map_or(String::new(), |error| format!(": {error}"));
        return Ok(Err(Problem::passing(format!("breaks off after {at} of {} bytes{why}", remote.bytes))));
    }
    file.sync_all().map_err(FetchError::io(part))?;
    Ok(Ok(()))
}

/// Whether a partial answer starts at byte `at`.
fn continues(response: &Response<Body>, at: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {at}-")))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};

    use data::Take;
    use sha2::{Digest, Sha256};

    use super::*;

    /// A server's answer to a request for the bytes from a place on.
    type Answer = fn(&mut TcpStream, usize) -> std::io::Result<()>;

    /// Answers one request after the other.
    fn start(answer: Answer) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/file", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let lines = lines.take_while(|line| !line.is_empty());
                let head: Vec<String> = lines.map(|line| line.to_lowercase()).collect();
                let range =
                    head.iter().find_map(|line| Some(line.strip_prefix("range: bytes=")?.trim_end_matches('-')));
                // Ends when the client has gone.
                let _ = answer(&mut stream, range.map_or(0, |from| from.parse().unwrap()));
            }
        });
        url
    }

    /// Sends `begin`, and then `piece` every ten milliseconds.
    fn drip(stream: &mut TcpStream, begin: &str, piece: &[u8]) -> std::io::Result<()> {
        stream.write_all(begin.as_bytes())?;
        loop {
            thread::sleep(Duration::from_millis(10));
            stream.write_all(piece)?;
        }
    }

    fn download_from(answer: Answer, bytes: u64, least: u64) -> Verdict {
        let content = vec![b'x'; usize::try_from(bytes).unwrap()];
        let sha256: &'static str = data::hex(Sha256::digest(content)).leak();
        let remote = Remote { urls: &[], file: "file", bytes, sha256, take: Take::Whole("file") };
        let dir = tempfile::tempdir().unwrap();
        let pace = Pace { bytes: least, within: Duration::from_millis(300) };
        download(&start(answer), &dir.path().join("file.part"), &remote, pace).unwrap()
    }

    const ENDLESS: [(&str, Answer); 5] = [
        ("silence", |stream, _| drip(stream, "", b"")),
        ("headers", |stream, _| drip(stream, "HTTP/1.1 200 OK\r\nx: ", b"x")),
        ("a body", |stream, _| drip(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", b"x")),
        ("trailers", |stream, _| {
            drip(stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: x\r\n")
        }),
        ("the body of a redirect", |stream, _| {
            drip(stream, "HTTP/1.1 302 Found\r\nlocation: /file\r\ncontent-length: 1000000\r\n\r\n", b"x")
        }),
    ];

    #[test]
    fn a_server_that_never_ends_is_given_up() {
        thread::scope(|scope| {
            for (what, answer) in ENDLESS {
                scope.spawn(move || {
                    let reason = download_from(answer, 1_000_000, 1000).unwrap_err();
                    assert!(
                        reason.starts_with("is too slow: it sent fewer than 1000 bytes in 300ms"),
                        "{what}: {reason}"
                    );
                });
            }
        });
    }

    #[test]
    fn a_server_that_sends_a_byte_per_connection_is_given_up() {
        let answer: Answer = |stream, from| {
            if from == 0 {
                return write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\nx");
            }
            let range = format!("content-range: bytes {from}-999999/1000000\r\ncontent-length: {}", 1_000_000 - from);
            write!(stream, "HTTP/1.1 206 Partial Content\r\n{range}\r\n\r\nx")
        };
        let reason = download_from(answer, 1_000_000, 1000).unwrap_err();
        assert!(reason.starts_with("breaks off after 3 of 1000000 bytes"), "{reason}");
    }

    #[test]
    fn a_slow_server_is_waited_for() {
        let answer: Answer = |stream, _| drip(stream, "HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n", &[b'x'; 100]);
        assert_eq!(download_from(answer, 10_000, 10), Ok(()));
    }
}
