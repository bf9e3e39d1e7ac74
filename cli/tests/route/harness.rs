//! The real router and real mock engines as processes, engines that follow a script, and a client.

use std::io::{BufRead, BufReader};
use std::pin::Pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Waits for this long are failures; nothing depends on how short they are.
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn patiently<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, wait).await.expect("it comes to an end")
}

/// Asks again and again, until the answer is this.
pub async fn until<T: PartialEq + std::fmt::Debug>(expected: T, ask: impl AsyncFn() -> T) {
    let reached = async {
        while ask().await != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, reached).await.is_err() {
        assert_eq!(ask().await, expected, "in the end");
    }
}

/// A router or a mock engine.
pub struct Process {
    pub child: Child,
    pub address: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(arguments).env_remove("SGLANG_ROUTER_P2C_LOAD_METRIC");
    command
}

pub fn start(mut command: Command) -> Process {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").expect("a URL").to_owned();
    Process { child, address }
}

/// A mock engine, a thousand times as fast as real.
pub fn engine(options: &[&str]) -> Process {
    let fast = ["mock-engine", "--time-scale", "1000", "--sample-interval", "5ms"];
    start(command(&[&fast, options].concat()))
}

/// A mock engine that keeps requests for as long as a test may take.
pub fn slow_engine(options: &[&str]) -> Process {
    start(command(&[&["mock-engine", "--prefill-time", "1h"], options].concat()))
}

/// A mock engine that streams slowly and endlessly.
pub fn endless_engine(options: &[&str]) -> Process {
    let endless = ["mock-engine", "--prefill-time", "0s", "--transfer", "0s", "--step", "20,0,0"];
    start(command(&[&endless, options].concat()))
}

/// A router that polls often.
pub fn router(options: &[&str]) -> Process {
    let usual =
        ["route", "--listen", "127.0.0.1:0", "--poll-interval", "20ms", "--log-level", "error"];
    start(command(&[&usual, options].concat()))
}

/// A router before engines that know nothing of loads.
pub fn router_before(engines: &[&Scripted], options: &[&str]) -> Process {
    let urls: Vec<String> =
        engines.iter().map(|engine| format!("--engine={}", engine.url())).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    router(&[&["--no-polls"], &urls[..], options].concat())
}

impl Process {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// As an option's value, with more behind it.
    pub fn with(&self, more: &str) -> String {
        format!("http://{},{more}", self.address)
    }

    pub async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let stream = self.stream().await;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    pub async fn stream(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.expect("it listens")
    }

    /// On a connection of its own, which ends with the response.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        let mut sender = self.connect().await;
        patiently(sender.send_request(request)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, String) {
        text(self.send(post(path, body)).await.unwrap()).await
    }

    pub async fn json(&self, path: &str) -> Value {
        let request = Request::get(path).body(Full::default()).unwrap();
        let (status, text) = text(self.send(request).await.unwrap()).await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path} is JSON: {text}"))
    }

    /// All of what comes back for these bytes, until the connection ends.
    pub async fn raw(&self, request: &str) -> String {
        let mut stream = self.stream().await;
        // An abrupt end is an end.
        stream.write_all(request.as_bytes()).await.ok();
        let mut response = Vec::new();
        patiently(stream.read_to_end(&mut response)).await.ok();
        String::from_utf8_lossy(&response).into_owned()
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub async fn ended(&mut self) -> ExitStatus {
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        patiently(ended).await
    }

    // Of a mock engine.

    /// Of each rank.
    pub async fn counts(&self, name: &str) -> Vec<u64> {
        let report = self.json("/control/report").await;
        let ranks = report["ranks"].as_array().unwrap();
        ranks.iter().map(|rank| rank[name].as_u64().unwrap()).collect()
    }

    pub async fn count(&self, name: &str) -> u64 {
        self.counts(name).await.iter().sum()
    }

    pub async fn until_count(&self, name: &str, expected: u64) {
        until(expected, || self.count(name)).await;
    }

    pub async fn control(&self, faults: Value) {
        assert_eq!(self.post("/control", &faults).await.0, StatusCode::OK);
    }

    // Of a router.

    pub async fn pool(&self, name: &str) -> Value {
        self.json("/evenkeel/status").await["pools"][name].take()
    }

    pub async fn total(&self, name: &str) -> u64 {
        self.json("/evenkeel/status").await["totals"][name].as_u64().unwrap()
    }

    /// In flight over all of a pool.
    pub async fn in_flight(&self, pool: &str) -> u64 {
        self.pool(pool).await["in_flight"].as_u64().unwrap()
    }

    /// By worker, of those that are active or draining.
    pub async fn workers(&self) -> Vec<(String, String, u64)> {
        let pool = self.pool("engines").await;
        let mut workers: Vec<_> = (pool["workers"].as_array().unwrap().iter())
            .map(|worker| {
                let text = |name: &str| worker[name].as_str().unwrap().to_owned();
                (text("label"), text("state"), worker["in_flight"].as_u64().unwrap())
            })
            .collect();
        workers.sort();
        workers
    }

    pub async fn until_in_flight(&self, expected: u64) {
        until(expected, || self.in_flight("engines")).await;
    }

    /// Nothing is in flight, and nothing ever ended that was not.
    pub async fn is_at_rest(&self) {
        for (name, _) in self.json("/evenkeel/status").await["pools"].as_object().unwrap() {
            until(0, || self.in_flight(name)).await;
            assert_eq!(self.pool(name).await["anomalies"], 0);
        }
    }
}

pub fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    Request::post(path).body(Full::from(body.to_string())).unwrap()
}

pub async fn text(response: Response<Incoming>) -> (StatusCode, String) {
    let status = response.status();
    let body = patiently(response.into_body().collect()).await.expect("the body is whole");
    (status, String::from_utf8(body.to_bytes().to_vec()).unwrap())
}

pub fn code(text: &str) -> String {
    let error: Value = serde_json::from_str(text).unwrap();
    error["error"]["code"].as_str().unwrap_or_default().to_owned()
}

pub fn ask(tokens: u64) -> Value {
    json!({ "text": "a prompt", "sampling_params": { "max_new_tokens": tokens } })
}

pub fn streamed(tokens: u64) -> Value {
    let mut ask = ask(tokens);
    ask["stream"] = true.into();
    ask
}

/// What a request was, as an engine got it.
#[derive(Clone, Debug)]
pub struct Got {
    /// In lower case.
    pub head: String,
    pub body: Vec<u8>,
}

/// An engine whose every connection goes by a script.
pub struct Scripted {
    pub address: String,
    pub connections: Arc<AtomicUsize>,
    pub requests: Arc<Mutex<Vec<Got>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection of a scripted engine.
pub struct Talk {
    pub stream: TcpStream,
    requests: Arc<Mutex<Vec<Got>>>,
    buffer: Vec<u8>,
}

pub type Script = Pin<Box<dyn Future<Output = ()> + Send>>;

pub async fn scripted(script: impl Fn(Talk) -> Script + Send + 'static) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connections = Arc::new(AtomicUsize::new(0));
    let requests = Arc::<Mutex<Vec<Got>>>::default();
    let (counted, kept) = (connections.clone(), requests.clone());
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(script(Talk { stream, requests: kept.clone(), buffer: Vec::new() }));
        }
    });
    Scripted { address, connections, requests, task }
}

/// A response, `ok`.
pub const WITH_TRAILERS: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
     2\r\nok\r\n0\r\nx-sum: 42\r\n\r\n";

/// An engine that answers every request with these bytes.
pub async fn answering(response: &'static str) -> Scripted {
    scripted(move |mut talk| {
        Box::pin(async move {
            while talk.request().await.is_some() {
                talk.say(response).await;
            }
        })
    })
    .await
}

impl Scripted {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn requests(&self) -> Vec<Got> {
        self.requests.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Talk {
    /// The head of the next request.
    pub async fn head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|part| part == b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                return Some(String::from_utf8(head).unwrap().to_lowercase());
            }
            self.read().await?;
        }
    }

    /// The next request, and its body if it has a length or comes in chunks.
    pub async fn request(&mut self) -> Option<Got> {
        let head = self.head().await?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let body = if head.contains("transfer-encoding: chunked") {
            loop {
                if let Some(end) = self.buffer.windows(5).position(|part| part == b"0\r\n\r\n") {
                    break self.buffer.drain(..end + 5).collect();
                }
                self.read().await?;
            }
        } else {
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            while self.buffer.len() < length {
                self.read().await?;
            }
            self.buffer.drain(..length).collect()
        };
        let got = Got { head, body };
        self.requests.lock().unwrap().push(got.clone());
        Some(got)
    }

    /// None at the end of the connection.
    pub async fn read(&mut self) -> Option<()> {
        let read = self.stream.read_buf(&mut self.buffer).await.unwrap_or(0);
        (read > 0).then_some(())
    }

    pub async fn say(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).await.ok();
    }
}
