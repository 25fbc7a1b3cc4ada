//! Fetching from a server of the test's own: nothing wrong is ever left under the final name.

use std::fs;
use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use data::{Known, Member, Remote, Take};
use fetch::{FetchError, Source, fetch};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// How a path of the server behaves.
#[derive(Clone, Copy)]
enum Manner {
    /// Whole, or the part that is asked for.
    Good,
    /// Points to the good path.
    Redirect,
    /// The first answer breaks off in the middle; parts are sent when asked for.
    BreaksOff,
    /// The first answer breaks off, and parts are not known.
    BreaksOffWithoutRanges,
    /// Every answer breaks off, and no part can be had.
    NeverWhole,
    /// As many bytes, but others.
    Wrong,
    /// The right bytes and more.
    TooLong,
    Missing,
}

struct Server {
    url: String,
    /// Path and range of each request.
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves `body` under the name of each manner.
    fn start(body: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(vec![]));
        let (served, base) = (log.clone(), url.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that has gone is no matter.
                let _ = answer(stream.unwrap(), &body, &base, &served);
            }
        });
        Server { url, log }
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

const MANNERS: [(&str, Manner); 8] = [
    ("/never-whole", Manner::NeverWhole),
    ("/good", Manner::Good),
    ("/redirect", Manner::Redirect),
    ("/breaks-off", Manner::BreaksOff),
    ("/no-ranges", Manner::BreaksOffWithoutRanges),
    ("/wrong", Manner::Wrong),
    ("/too-long", Manner::TooLong),
    ("/missing", Manner::Missing),
];

fn answer(mut stream: TcpStream, body: &[u8], base: &str, log: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let path = lines.next().unwrap()?.split(' ').nth(1).unwrap().to_string();
    let mut from = None;
    for line in lines {
        let line = line?.to_lowercase();
        if let Some(range) = line.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse::<usize>().ok();
        }
        if line.is_empty() {
            break;
        }
    }
    let n_before = log.lock().unwrap().iter().filter(|entry| entry.starts_with(&path)).count();
    log.lock().unwrap().push(format!("{path} {from:?}"));
    let manner = MANNERS.iter().find(|(name, _)| *name == path).map_or(Manner::Missing, |(_, manner)| *manner);
    let mut send = |status: &str, headers: &str, promised: usize, bytes: &[u8]| {
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {promised}\r\nconnection: close\r\n{headers}\r\n")?;
        stream.write_all(bytes)
    };
    let part = |from: usize| format!("content-range: bytes {from}-{}/{}\r\n", body.len() - 1, body.len());
    match (manner, from) {
        (Manner::Missing, _) => send("404 Not Found", "", 0, &[]),
        (Manner::Redirect, _) => send("302 Found", &format!("location: {base}/good\r\n"), 0, &[]),
        (Manner::NeverWhole, None) => send("200 OK", "", body.len(), &body[..body.len() / 2]),
        (Manner::NeverWhole, Some(_)) => send("416 Range Not Satisfiable", "", 0, &[]),
        (Manner::Wrong, _) => send("200 OK", "", body.len(), &vec![b'x'; body.len()]),
        (Manner::TooLong, _) => send("200 OK", "", body.len() + 1, &[body, b"x"].concat()),
        (Manner::BreaksOff | Manner::BreaksOffWithoutRanges, _) if n_before == 0 => {
            send("200 OK", "", body.len(), &body[..body.len() / 2])
        }
        (Manner::Good | Manner::BreaksOff, Some(from)) => {
            send("206 Partial Content", &part(from), body.len() - from, &body[from..])
        }
        _ => send("200 OK", "", body.len(), body),
    }
}

fn body() -> Vec<u8> {
    (0..300_000u32).flat_map(|i| format!("line {}\n", i * 7919 % 10_007).into_bytes()).collect()
}

fn sha256(bytes: &[u8]) -> &'static str {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>().leak()
}

/// A corpus of one file that lies at these addresses.
fn known(urls: &[String], bytes: &[u8], take: Take) -> Known {
    let urls: Vec<&'static str> = urls.iter().map(|url| &*url.clone().leak()).collect();
    let remote = Remote { urls: urls.leak(), file: "file", bytes: bytes.len() as u64, sha256: sha256(bytes), take };
    Known { name: "corpus", description: "", license: "", split: "", remotes: vec![remote].leak() }
}

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn fetch(&self, known: &Known, source: Source) -> Result<PathBuf, FetchError> {
        fetch(known, source, &self.root())
    }

    /// Fetches a text and checks that it is there and nothing else is.
    fn succeeds(&self, urls: &[String]) {
        let known = known(urls, &body(), Take::Whole("text.txt"));
        let folder = self.fetch(&known, Source::default()).unwrap();
        assert!(fs::read(folder.join("text.txt")).unwrap() == body());
        assert_eq!(fs::read_dir(self.root()).unwrap().count(), 1, "only the corpus is left");
    }

    /// Fails with this message, and leaves nothing under the final name.
    fn fails(&self, known: &Known, source: Source, expected: &str) {
        let error = self.fetch(known, source).unwrap_err().to_string();
        assert!(error.contains(expected), "expected `{expected}` in: {error}");
        assert!(!self.root().join("corpus").exists());
    }
}

#[test]
fn a_file_arrives_whole_from_every_server_that_has_it() {
    let server = Server::start(body());
    for path in ["/good", "/redirect", "/breaks-off", "/no-ranges"] {
        Place::new().succeeds(&[server.url.clone() + path]);
    }
    let half = body().len() / 2;
    let log = server.log();
    assert!(log.contains(&format!("/breaks-off Some({half})")), "resumed where it broke off: {log:?}");
    assert!(log.contains(&format!("/no-ranges Some({half})")), "{log:?}");
}

#[test]
fn the_next_address_helps_out() {
    let server = Server::start(body());
    for bad in ["/missing", "/wrong", "/too-long"] {
        Place::new().succeeds(&[server.url.clone() + bad, server.url.clone() + "/good"]);
    }
    Place::new().succeeds(&["http://127.0.0.1:1/nobody".into(), "no address".into(), server.url.clone() + "/good"]);
}

#[test]
fn a_wrong_beginning_is_not_kept() {
    let server = Server::start(body());
    let place = Place::new();
    fs::create_dir_all(place.root().join(".corpus")).unwrap();
    for beginning in [vec![b'x'; 1000], vec![b'x'; body().len()], vec![b'x'; body().len() + 5]] {
        fs::write(place.root().join(".corpus/file.part"), beginning).unwrap();
        place.succeeds(&[server.url.clone() + "/good"]);
        fs::remove_dir_all(place.root().join("corpus")).unwrap();
        fs::create_dir_all(place.root().join(".corpus")).unwrap();
    }
}

#[test]
fn what_was_downloaded_is_resumed_by_the_next_call() {
    let server = Server::start(body());
    let place = Place::new();
    fs::create_dir_all(place.root().join(".corpus/ready")).unwrap();
    fs::write(place.root().join(".corpus/ready/left-over"), "x").unwrap();
    fs::write(place.root().join(".corpus/file.part"), &body()[..1000]).unwrap();
    place.succeeds(&[server.url.clone() + "/good"]);
    assert_eq!(server.log(), ["/good Some(1000)"]);
    assert!(!place.root().join("corpus/left-over").exists());
    // And what is there is not fetched again.
    place.fetch(&known(&[], &body(), Take::Whole("text.txt")), Source::default()).unwrap();
}

#[test]
fn no_address_that_helps_is_said() {
    let server = Server::start(body());
    let at = |path: &str| known(&[server.url.clone() + path], &body(), Take::Whole("text.txt"));
    let place = Place::new();
    place.fails(&at("/missing"), Source::default(), "/missing answers 404 Not Found");
    place.fails(&at("/wrong"), Source::default(), "/wrong sends something else: its SHA-256 is ");
    place.fails(&at("/too-long"), Source::default(), "/too-long sends something else: ");
    let nowhere = known(&[], &body(), Take::Whole("text.txt"));
    place.fails(
        &nowhere,
        Source::default(),
        "corpus `corpus` has no address of its own: get file and give it with `--from`",
    );
}

#[test]
fn mirrors_and_files_at_hand_are_checked_alike() {
    let server = Server::start(body());
    let nowhere = || known(&[], &body(), Take::Whole("text.txt"));
    let place = Place::new();
    let wrong = server.url.clone() + "/wrong";
    place.fails(&nowhere(), Source { mirror: Some(&wrong), from: None }, "sends something else");
    let file = place.dir.path().join("file");
    let from = |path: &'static str| Source { mirror: None, from: Some(Path::new(path)) };
    place.fails(&nowhere(), from("/no/such/file"), "/no/such/file: cannot be read");
    fs::write(&file, "short").unwrap();
    let here = Source { mirror: None, from: Some(&file) };
    place.fails(&nowhere(), here, "is not file: 5 bytes instead of ");
    fs::write(&file, body()).unwrap();
    let folder = Source { mirror: None, from: Some(place.dir.path()) };
    assert!(place.fetch(&nowhere(), folder).unwrap().join("text.txt").is_file());
    let good = server.url.clone() + "/good";
    Place::new().fetch(&nowhere(), Source { mirror: Some(&good), from: None }).unwrap();
}

fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(vec![]));
    for (name, content) in members {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn member(name: &'static str, content: &[u8]) -> Member {
    Member { member: name, name: "train.txt", bytes: Some(content.len() as u64), sha256: Some(sha256(content)) }
}

/// Fetches from an archive of a good text and of members that want to be elsewhere.
fn from_archive(take: Take) -> (Place, Result<PathBuf, FetchError>) {
    let bytes =
        archive(&[("../evil.txt", b"evil"), ("/evil.txt", b"evil"), ("a/good.txt", b"good text"), ("a/b/c.txt", b"c")]);
    let place = Place::new();
    let file = place.dir.path().join("file");
    fs::write(&file, &bytes).unwrap();
    let fetched = place.fetch(&known(&[], &bytes, take), Source { mirror: None, from: Some(&file) });
    (place, fetched)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn only_the_named_member_of_an_archive_is_written() {
    let (place, fetched) = from_archive(Take::Members(vec![member("a/good.txt", b"good text")].leak()));
    let folder = fetched.unwrap();
    assert_eq!(names(&folder), ["train.txt"]);
    assert_eq!(fs::read(folder.join("train.txt")).unwrap(), b"good text");
    assert_eq!(names(place.dir.path()), ["data", "file"]);

    let (_place, fetched) =
        from_archive(Take::Parts(member("a/good.txt", b"good text"), &[("train.txt", 6), ("valid.txt", 3)]));
    let folder = fetched.unwrap();
    assert_eq!(fs::read(folder.join("train.txt")).unwrap(), b"good t");
    assert_eq!(fs::read(folder.join("valid.txt")).unwrap(), b"ext");

    let (_place, fetched) = from_archive(Take::Documents { folder: "a/", n: 1, bytes: 9 });
    assert_eq!(names(&fetched.unwrap()), ["good.txt"]);
}

#[test]
fn members_that_are_not_what_they_should_be_are_named() {
    let check = |take: Take, expected: &str| {
        let (place, fetched) = from_archive(take);
        let error = fetched.unwrap_err().to_string();
        assert!(error.contains(expected), "expected `{expected}` in: {error}");
        assert!(!place.root().join("corpus").exists());
    };
    check(Take::Members(vec![member("a/other.txt", b"")].leak()), "its member a/other.txt: is not there");
    check(Take::Members(vec![member("a/good.txt", b"good tent")].leak()), "its member a/good.txt: its SHA-256 is ");
    check(Take::Members(vec![member("a/good.txt", b"good")].leak()), "has more than 4 bytes");
    check(Take::Members(vec![member("a/good.txt", b"good text!")].leak()), "has 9 bytes, not 10");
    check(Take::Documents { folder: "a/", n: 2, bytes: 9 }, "has 1 texts of 9 bytes in a/ instead of 2 of 9");
    let place = Place::new();
    let file = place.dir.path().join("file");
    fs::write(&file, body()).unwrap();
    let known = known(&[], &body(), Take::Members(vec![member("a", b"")].leak()));
    place.fails(&known, Source { mirror: None, from: Some(&file) }, "is no zip archive");
}

#[test]
fn what_is_no_corpus_is_not_taken_for_one() {
    let server = Server::start(body());
    let known = known(&[server.url.clone() + "/good"], &body(), Take::Whole("text.txt"));
    let place = Place::new();
    fs::create_dir_all(place.root().join("corpus")).unwrap();
    let error = place.fetch(&known, Source::default()).unwrap_err().to_string();
    assert!(error.contains("is there, but is not this corpus"), "{error}");
    fs::remove_dir(place.root().join("corpus")).unwrap();
    place.fetch(&known, Source::default()).unwrap();
}

#[test]
fn a_file_that_is_whole_waits_for_the_others() {
    let server = Server::start(body());
    let remote = |file: &'static str, path: &str, take| {
        let url: &'static str = (server.url.clone() + path).leak();
        Remote { urls: vec![url].leak(), file, bytes: body().len() as u64, sha256: sha256(&body()), take }
    };
    let known = |second: &str| Known {
        name: "corpus",
        description: "",
        license: "",
        split: "",
        remotes: vec![remote("a", "/good", Take::Whole("valid.txt")), remote("b", second, Take::Whole("train.txt"))]
            .leak(),
    };
    let place = Place::new();
    place.fails(&known("/missing"), Source::default(), "b cannot be had");
    place.fetch(&known("/good"), Source::default()).unwrap();
    assert_eq!(server.log().iter().filter(|entry| entry.starts_with("/good")).count(), 2, "{:?}", server.log());
}

#[test]
fn two_processes_do_not_fetch_at_once() {
    let place = Place::new();
    fs::create_dir_all(place.root().join(".corpus")).unwrap();
    let lock = fs::File::create(place.root().join(".corpus/.lock")).unwrap();
    lock.lock().unwrap();
    let known = known(&[], &body(), Take::Whole("text.txt"));
    place.fails(&known, Source::default(), "another process is working in this folder");
}
