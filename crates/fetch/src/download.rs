//! One file from one address, resumed where it was left.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use data::Remote;
use ureq::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, RANGE};
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use crate::{FetchError, Verdict, bar, check};

/// How long a server may say nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tries without a new byte before an address is given up.
const TRIES: u32 = 3;

/// The pause before the second of such tries; then as much more before each.
const PAUSE: Duration = Duration::from_millis(500);

/// Downloads into `part` and checks it. Returns why this address is of no use; what was downloaded stays, unless it is wrong.
///
/// # Errors
/// The file cannot be written: no other address will help.
pub(crate) fn download(url: &str, part: &Path, remote: &Remote) -> Result<Verdict, FetchError> {
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_per_read(Some(PATIENCE))
        .user_agent(concat!("ablate/", env!("CARGO_PKG_VERSION")))
        .build()
        .into();
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(part);
    let file = &mut file.map_err(FetchError::io(part))?;
    let mut reason = String::new();
    let mut furthest = length(file, part)?;
    let mut tries = 0;
    while tries < TRIES {
        if tries > 0 {
            std::thread::sleep(PAUSE * tries);
        }
        let before = length(file, part)?;
        let resumed = (1..=remote.bytes).contains(&before);
        if before > remote.bytes {
            file.set_len(0).map_err(FetchError::io(part))?;
        }
        match append(&agent, url, file, part, remote)? {
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
            Err(problem) if problem.is_final => return Ok(Err(problem.reason)),
            Err(problem) => reason = problem.reason,
        }
        // Only what was never reached before is progress, or a server could keep us busy for ever.
        let reached = length(file, part)?;
        tries = if reached > furthest { 0 } else { tries + 1 };
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

/// Asks for what is missing of a file and appends it.
fn append(
    agent: &Agent,
    url: &str,
    file: &mut File,
    part: &Path,
    remote: &Remote,
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
