//! examples/tokio_router.rs as a program, between scripted clients and engines: whichever way a
//! response ends, its request is counted until then and no longer.
#![cfg(not(loom))]

mod programs;

use programs::{root, run};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

const HEAD: &str =
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close, x-hop\r\nx-hop: 1\r\n\r\n";
const CHUNK: &str = "5\r\ntoken\r\n";
const END: &str = "0\r\n\r\n";

/// What has not happened by then never does.
const PATIENCE: Duration = Duration::from_secs(20);

/// Built by the cargo and with the profile that built this test.
fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let messages = run(Command::new(env!("CARGO"))
            .args(["build", "--example", "tokio_router", "--profile", "test"])
            .args(["--message-format", "json", "--manifest-path"])
            .arg(root().join("Cargo.toml")));
        let mut texts = messages.split('"');
        texts.rfind(|text| text.ends_with("/examples/tokio_router")).expect("a program").into()
    })
}

struct Router {
    process: Child,
    address: SocketAddr,
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Router {
    fn before(engines: &[SocketAddr]) -> Self {
        let mut program = Command::new(program());
        program.arg("127.0.0.1:0").args(engines.iter().map(SocketAddr::to_string));
        let mut process = program.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut url = String::new();
        let out = process.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut url).expect("its address");
        let address = url.trim().strip_prefix("http://").and_then(|address| address.parse().ok());
        Self { process, address: address.unwrap_or_else(|| panic!("no address: {url:?}")) }
    }

    fn ask(&self, request: &str) -> TcpStream {
        let mut client = patient(TcpStream::connect(self.address).expect("it listens"));
        client.write_all(request.as_bytes()).expect("it reads");
        client
    }

    fn generate(&self) -> TcpStream {
        self.ask(
            "POST /generate?x=1 HTTP/1.1\r\nhost: router\r\ncontent-length: 6\r\n\
             connection: close, x-hop\r\nx-hop: 1\r\nx-end: 2\r\n\r\nprompt",
        )
    }

    /// In flight and ended, an engine each.
    fn counts(&self) -> Vec<(u32, u64)> {
        let answer =
            rest(self.ask("GET /counts HTTP/1.1\r\nhost: router\r\nconnection: close\r\n\r\n"));
        let (_, rows) = answer.split_once("\r\n\r\n").expect("a body");
        rows.lines()
            .map(|row| {
                let mut numbers = row.split(' ').skip(1);
                let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
                (number().expect("in flight"), number().expect("ended").into())
            })
            .collect()
    }

    /// Waits until these are the counts.
    #[track_caller]
    fn comes_to(&self, expected: &[(u32, u64)]) {
        for _ in 0..1000 {
            if self.counts() == expected {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(self.counts(), expected);
    }
}

fn engine() -> (TcpListener, SocketAddr) {
    let engine = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = engine.local_addr().expect("its address");
    (engine, address)
}

/// Nothing listens there.
fn nobody() -> SocketAddr {
    engine().1
}

/// The next request that the engine gets, read to its end, and where it is answered.
#[track_caller]
fn request(engine: &TcpListener) -> (TcpStream, String) {
    engine.set_nonblocking(true).expect("a socket");
    let accepted = (0..PATIENCE.as_millis()).find_map(|_| {
        thread::sleep(Duration::from_millis(1));
        engine.accept().ok()
    });
    let (stream, _) = accepted.expect("a connection of the router");
    stream.set_nonblocking(false).expect("a socket");
    let mut stream = patient(stream);
    let text = until(&mut stream, "prompt");
    (stream, text)
}

/// A router that hangs fails the test, instead of hanging it.
fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("not 0");
    stream
}

/// Reads until the text ends so.
#[track_caller]
fn until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let mut byte = [0];
        let read = stream.read(&mut byte).expect("more");
        assert_eq!(read, 1, "no {end:?} in {:?}", String::from_utf8_lossy(&text));
        text.extend(byte);
    }
    String::from_utf8(text).expect("text")
}

/// Reads until the other side closes.
fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    if let Err(error) = stream.read_to_end(&mut text) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    String::from_utf8(text).expect("text")
}

fn send(stream: &mut TcpStream, parts: &[&str]) {
    stream.write_all(parts.concat().as_bytes()).expect("it reads");
}

#[test]
fn a_client_that_reads_all_is_counted_until_the_last_byte() {
    let (engine, address) = engine();
    let router = Router::before(&[address]);
    let mut client = router.generate();
    let (mut stream, request) = request(&engine);
    assert!(request.starts_with("POST /generate?x=1 HTTP/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("host: {address}\r\n")), "{request}");
    assert!(request.contains("x-end: 2\r\n") && !request.contains("x-hop"), "{request}");
    assert_eq!(router.counts(), [(1, 0)]);

    send(&mut stream, &[HEAD, CHUNK]);
    let head = until(&mut client, "token\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && !head.contains("x-hop"), "{head}");
    assert_eq!(router.counts(), [(1, 0)], "it streams");
    send(&mut stream, &[CHUNK, END]);
    assert_eq!(until(&mut client, END), format!("{CHUNK}{END}"));
    router.comes_to(&[(0, 1)]);
}

#[test]
fn a_client_that_leaves_half_way_is_not_counted_and_its_engine_learns_of_it() {
    let (engine, address) = engine();
    let router = Router::before(&[address]);
    let mut client = router.generate();
    let (mut stream, _) = request(&engine);
    send(&mut stream, &[HEAD, CHUNK]);
    until(&mut client, "token\r\n");
    drop(client);
    assert_eq!(rest(stream), "", "closed by the router");
    router.comes_to(&[(0, 1)]);
}

#[test]
fn a_client_that_leaves_before_the_head_is_not_counted_and_its_engine_learns_of_it() {
    let (engine, address) = engine();
    let router = Router::before(&[address]);
    let client = router.generate();
    let (stream, _) = request(&engine);
    assert_eq!(router.counts(), [(1, 0)]);
    drop(client);
    assert_eq!(rest(stream), "", "closed by the router");
    router.comes_to(&[(0, 1)]);
}

#[test]
fn an_engine_that_breaks_off_breaks_its_response_off() {
    let (engine, address) = engine();
    let router = Router::before(&[address]);
    let client = router.generate();
    let (mut stream, _) = request(&engine);
    send(&mut stream, &[HEAD, CHUNK]);
    drop(stream);
    let response = rest(client);
    assert!(response.ends_with(CHUNK), "without an end: {response}");

    let client = router.generate();
    drop(request(&engine));
    assert!(rest(client).starts_with("HTTP/1.1 502 "), "before the head");
    router.comes_to(&[(0, 2)]);
}

#[test]
fn what_does_not_connect_is_tried_elsewhere() {
    let (engine, address) = engine();
    let router = Router::before(&[address, nobody()]);
    // The first is on either, the second tries the one that has none.
    let streams = [0, 1].map(|_| (router.generate(), request(&engine).0));
    assert_eq!(router.counts().iter().map(|&(in_flight, _)| in_flight).collect::<Vec<_>>(), [2, 0]);
    assert_ne!(router.counts()[1].1, 0, "tried");
    for (mut client, mut stream) in streams {
        send(&mut stream, &[HEAD, END]);
        assert!(until(&mut client, END).starts_with("HTTP/1.1 200 OK\r\n"));
    }
}

#[test]
fn no_engine_is_503() {
    let router = Router::before(&[nobody(), nobody()]);
    let response = rest(router.generate());
    assert!(
        response.starts_with("HTTP/1.1 503 ") && !response.contains("retry-after"),
        "{response}"
    );
    router.comes_to(&[(0, 1), (0, 1)]);
}

#[test]
fn a_full_engine_is_503_with_retry_after() {
    let (engine, address) = engine();
    let router = Router::before(&[address]);
    let held: Vec<_> = (0..256).map(|_| (router.generate(), request(&engine))).collect();
    let response = rest(router.generate());
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    assert!(response.contains("retry-after: 1\r\n"), "{response}");
    drop(held);
    router.comes_to(&[(0, 256)]);
}
