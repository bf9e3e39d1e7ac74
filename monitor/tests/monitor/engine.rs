//! An engine as the tests script it, on bare sockets, so that it can say anything; and a pool and a
//! monitor before it.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use evenkeel::{Pool, PoolConfig, WorkerConfig, WorkerId, WorkerStats};
use evenkeel_monitor::{Engine, EngineStatus, Monitor, Options, host_port, worker_label};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tracing_subscriber::filter::LevelFilter;

/// What the scripted engine does with one request.
#[derive(Clone)]
pub enum Reply {
    /// This whole answer; the connection is kept.
    Answer(Vec<u8>),
    /// These bytes, then the end of the connection.
    Raw(Vec<u8>),
    /// These bytes, then the others again and again, as long as the client takes them.
    Endless(Vec<u8>, Vec<u8>),
    /// These bytes, then a byte now and then, as long as the client takes them.
    Drip(Vec<u8>),
}

/// A 200 with a JSON body.
pub fn json(body: impl AsRef<[u8]>) -> Reply {
    answer("200 OK", "Content-Type: application/json\r\n", body)
}

pub fn answer(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Reply {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    Reply::Answer([head.as_bytes(), body].concat())
}

pub fn not_found() -> Reply {
    answer("404 Not Found", "", "{\"detail\":\"Not Found\"}")
}

/// The current shape, with these tokens of ranks 0, 1, …
pub fn loads(tokens: &[u64]) -> Reply {
    loads_at(None, tokens)
}

/// The same, with a timestamp for every rank.
pub fn loads_at(timestamp: Option<f64>, tokens: &[u64]) -> Reply {
    let entries: Vec<_> = tokens
        .iter()
        .enumerate()
        .map(|(rank, tokens)| {
            let timestamp = timestamp.map(|at| format!("\"timestamp\":{at},")).unwrap_or_default();
            entry(&format!("{timestamp}\"dp_rank\":{rank},\"num_total_tokens\":{tokens}"))
        })
        .collect();
    report(&entries)
}

pub fn report(entries: &[String]) -> Reply {
    json(format!(
        r#"{{"timestamp":"2026-08-17T10:00:00Z","version":"0.5.21","accelerator":null,"num_accelerators":8,"loads":[{}]}}"#,
        entries.join(",")
    ))
}

/// An entry of the current shape: these fields, and those that nobody reads.
pub fn entry(fields: &str) -> String {
    format!(
        r#"{{{fields},"num_running_reqs":12,"num_waiting_reqs":3,"num_waiting_uncached_tokens":0,"num_used_tokens":1200000,"num_active_tokens":1100000,"max_total_num_tokens":4000000,"max_running_requests":256,"token_usage":0.3,"gen_throughput":840.5,"cache_hit_rate":0.9,"utilization":0.4,"total_prefill_uncached_tokens":0,"total_prefill_busy_us":0,"decode_moments":null}}"#
    )
}

/// Waits until it holds. Fails after a time that no machine needs.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let patience = Duration::from_secs(60);
    assert!(tokio::time::timeout(patience, wait).await.is_ok(), "never happened: {what}");
}

#[derive(Default)]
struct Script {
    replies: Mutex<VecDeque<Reply>>,
    always: Mutex<Option<Reply>>,
    changed: Notify,
    heads: Mutex<Vec<String>>,
    times: Mutex<Vec<Instant>>,
    connections: AtomicUsize,
    open: AtomicUsize,
}

impl Script {
    async fn next(&self) -> Reply {
        loop {
            let changed = self.changed.notified();
            if let Some(reply) = self.replies.lock().unwrap().pop_front() {
                return reply;
            }
            if let Some(reply) = self.always.lock().unwrap().clone() {
                return reply;
            }
            changed.await;
        }
    }
}

/// Without a reply it lets the client wait.
pub struct Server {
    pub address: SocketAddr,
    scheme: &'static str,
    script: Arc<Script>,
    task: AbortHandle,
}

impl Server {
    pub async fn new() -> Self {
        Self::with("http", |stream| async { Some(stream) }).await
    }

    /// `accept` makes what is spoken on from what was accepted.
    pub async fn with<S, F>(
        scheme: &'static str,
        accept: impl Fn(tokio::net::TcpStream) -> F + Send + Sync + 'static,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
        F: Future<Output = Option<S>> + Send,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::<Script>::default();
        let task = tokio::spawn({
            let script = script.clone();
            let accept = Arc::new(accept);
            async move {
                // With the listener go its connections.
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    let (script, accept) = (script.clone(), accept.clone());
                    connections.spawn(async move {
                        script.connections.fetch_add(1, Ordering::Relaxed);
                        script.open.fetch_add(1, Ordering::Relaxed);
                        if let Some(stream) = accept(stream).await {
                            let _ = converse(&script, stream).await;
                        }
                        script.open.fetch_sub(1, Ordering::Relaxed);
                    });
                }
            }
        })
        .abort_handle();
        Self { address, scheme, script, task }
    }

    pub fn url(&self) -> String {
        format!("{}://localhost:{}", self.scheme, self.address.port())
    }

    pub fn name(&self) -> String {
        host_port(&self.url().parse().unwrap()).unwrap()
    }

    /// How many requests have come.
    pub fn asked(&self) -> usize {
        self.script.heads.lock().unwrap().len()
    }

    /// The heads of all requests, as they came.
    pub fn heads(&self) -> Vec<String> {
        self.script.heads.lock().unwrap().clone()
    }

    /// When they came.
    pub fn times(&self) -> Vec<Instant> {
        self.script.times.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.script.connections.load(Ordering::Relaxed)
    }

    pub fn open(&self) -> usize {
        self.script.open.load(Ordering::Relaxed)
    }

    /// The reply to one request: the one that waits, or the next.
    pub fn once(&self, reply: Reply) {
        self.script.replies.lock().unwrap().push_back(reply);
        self.script.changed.notify_waiters();
    }

    /// The reply to all requests that have no other.
    pub fn always(&self, reply: Reply) {
        *self.script.always.lock().unwrap() = Some(reply);
        self.script.changed.notify_waiters();
    }

    /// Waits until so many requests have come.
    pub async fn until_asked(&self, count: usize) {
        eventually("the engine is asked", || self.asked() >= count).await;
    }

    /// Replies to the request that waits, and waits for the next: then the monitor is done with the
    /// reply.
    pub async fn reply(&self, reply: Reply) {
        self.until_asked(1).await;
        let next = self.asked() + 1;
        self.once(reply);
        self.until_asked(next).await;
    }

    /// The engine is dead.
    pub fn kill(&self) {
        self.task.abort();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn converse(
    script: &Script,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
) -> std::io::Result<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        script.times.lock().unwrap().push(Instant::now());
        script.heads.lock().unwrap().push(String::from_utf8(head).unwrap());
        let reply = tokio::select! {
            biased;
            // A client that leaves takes no reply; this one sends nothing else meanwhile.
            _ = stream.read_u8() => return Ok(()),
            reply = script.next() => reply,
        };
        match reply {
            Reply::Answer(bytes) => stream.write_all(&bytes).await?,
            Reply::Raw(bytes) => {
                stream.write_all(&bytes).await?;
                return stream.shutdown().await;
            }
            Reply::Endless(start, again) => {
                stream.write_all(&start).await?;
                loop {
                    stream.write_all(&again).await?;
                }
            }
            Reply::Drip(start) => {
                stream.write_all(&start).await?;
                loop {
                    stream.write_all(b" ").await?;
                    stream.flush().await?;
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
        stream.flush().await?;
    }
}

/// Often, and patient: the script says when.
pub fn options() -> Options {
    Options {
        interval: Duration::from_millis(2),
        timeout: Duration::from_secs(600),
        ..Options::default()
    }
}

/// A pool, a monitor and one engine.
pub struct Bench {
    pub pool: Pool,
    pub monitor: Monitor,
    pub server: Server,
    /// By rank.
    pub workers: Vec<WorkerId>,
}

impl Bench {
    pub async fn new(ranks: u32) -> Self {
        Self::with(ranks, options()).await
    }

    pub async fn with(ranks: u32, options: Options) -> Self {
        let pool = Pool::new(PoolConfig { seed: 5, ..Default::default() }).unwrap();
        let monitor = Monitor::new(&pool, options).unwrap();
        let server = Server::new().await;
        let workers = add(&pool, &monitor, &server, ranks);
        Self { pool, monitor, server, workers }
    }

    /// One more engine, with as many ranks.
    pub async fn another(&self) -> (Server, Vec<WorkerId>) {
        let server = Server::new().await;
        let workers = add(&self.pool, &self.monitor, &server, self.workers.len() as u32);
        (server, workers)
    }

    pub fn stats(&self, worker: WorkerId) -> WorkerStats {
        stats(&self.pool, worker)
    }

    /// The polled tokens of each rank.
    pub fn tokens(&self) -> Vec<Option<u64>> {
        tokens(&self.pool, &self.workers)
    }

    pub fn status(&self) -> EngineStatus {
        status(&self.monitor, &self.server)
    }

    pub async fn until_failed(&self, failures: u32) {
        eventually("the polls fail", || self.status().failures >= failures).await;
    }
}

/// Adds an engine's workers to the pool and the engine to the monitor.
pub fn add(pool: &Pool, monitor: &Monitor, server: &Server, ranks: u32) -> Vec<WorkerId> {
    let workers: Vec<_> = (0..ranks)
        .map(|rank| {
            let label = worker_label(&server.name(), rank);
            let config = WorkerConfig { label: &label, ..Default::default() };
            pool.add(evenkeel::key(&label), config).unwrap()
        })
        .collect();
    monitor.add(engine(server, &workers)).unwrap();
    workers
}

pub fn engine(server: &Server, workers: &[WorkerId]) -> Engine {
    let url = server.url().parse().unwrap();
    Engine { url, workers: workers.to_vec(), bearer: Some("s3cret".into()) }
}

pub fn stats(pool: &Pool, worker: WorkerId) -> WorkerStats {
    pool.stats().unwrap().into_iter().find(|stats| stats.worker == worker).expect("known")
}

pub fn tokens(pool: &Pool, workers: &[WorkerId]) -> Vec<Option<u64>> {
    workers.iter().map(|&worker| stats(pool, worker).load.map(|load| load.tokens)).collect()
}

pub fn status(monitor: &Monitor, server: &Server) -> EngineStatus {
    let name = server.name();
    monitor.engines().into_iter().find(|engine| engine.name == name).expect("added")
}

static LOGS: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// All that was logged in this process, at every level, since [`keep_logs`].
pub fn logs() -> String {
    String::from_utf8_lossy(&LOGS.lock().unwrap()).into_owned()
}

pub fn keep_logs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_writer(|| Log)
            .with_ansi(false)
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("only set here");
    });
}

struct Log;

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOGS.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
