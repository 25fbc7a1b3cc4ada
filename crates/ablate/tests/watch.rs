//! `ablate watch` against clients that ask for too much: they are cut off, and the others are served.

mod place;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use place::Place;

/// A server of a small study's report, which ends with the test.
struct Server {
    child: Child,
    address: String,
    _place: Place,
}

impl Server {
    /// Starts one that may have so many files open.
    fn start(open_files: u32) -> Self {
        let place = Place::new();
        place.ok(&["small", "--seeds", "1"]);
        let mut child = Command::new("sh")
            .current_dir(place.dir.path())
            .args(["-c", &format!("ulimit -n {open_files}; exec \"$0\" watch small --port 0")])
            .arg(assert_cmd::cargo::cargo_bin!("ablate"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_string();
        Server { child, address, _place: place }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// What the server answers to these headers.
    fn get(&self, headers: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(format!("{headers}\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn serves_the_report(&mut self) {
        let page = self.get(&format!("GET / HTTP/1.1\r\nHost: {}", self.address));
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("swiglu"), "{page}");
        assert_eq!(self.child.try_wait().unwrap(), None, "the server goes on");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended, which the test has said by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_endless_header_is_cut_off() {
    let mut server = Server::start(64);
    let mut stream = server.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
    // The sockets' buffers take some of it too.
    let piece = vec![b'x'; 1 << 20];
    let sent = (0..64).take_while(|_| stream.write_all(&piece).is_ok()).count();
    assert!(sent < 64, "64 MiB of one header were taken");
    let many = format!("GET / HTTP/1.1\r\nHost: {}\r\n{}", server.address, "X: x\r\n".repeat(200));
    assert!(server.get(many.trim_end()).starts_with("HTTP/1.1 431"));
    server.serves_the_report();
}

#[test]
fn idle_connections_are_closed() {
    let mut server = Server::start(64);
    let mut idle: Vec<TcpStream> = (0..60).map(|_| server.connect()).collect();
    // Half a header is no request either.
    idle.iter_mut().step_by(2).for_each(|stream| stream.write_all(b"GET / HTTP").unwrap());
    server.serves_the_report();
}

#[test]
fn the_server_outlasts_a_lack_of_file_descriptors() {
    let mut server = Server::start(24);
    let idle: Vec<TcpStream> = (0..30).map(|_| server.connect()).collect();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(server.child.try_wait().unwrap(), None, "the server goes on");
    drop(idle);
    server.serves_the_report();
}

#[test]
fn nothing_but_reading_is_answered() {
    let server = Server::start(64);
    let request = |line: &str| server.get(&format!("{line} HTTP/1.1\r\nHost: {}", server.address));
    assert!(request("POST /").starts_with("HTTP/1.1 405"));
    assert!(request("GET /elsewhere").starts_with("HTTP/1.1 404"));
    let (page, head) = (request("GET /"), request("HEAD /"));
    assert!(page.trim_end().ends_with("</html>") && head.ends_with("\r\n\r\n"), "{head}");
    let length = |answer: &str| {
        answer.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok()).unwrap()
    };
    assert_eq!(length(&head), length(&page));
}
