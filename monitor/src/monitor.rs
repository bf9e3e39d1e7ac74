//! The monitor as its users have it: engines come and go.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel::{Pool, WorkerId};
use http::Uri;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::{PathAndQuery, Scheme};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::client::Client;
use crate::engine::{self, Paths, State};
use crate::tls;

/// How to poll. The same for all engines of a monitor.
#[derive(Clone, Debug)]
pub struct Options {
    /// From one poll of an engine to the next: above 0. Default 1 s.
    pub interval: Duration,
    /// The longest that one poll may take, from connecting to the answer's last byte: above 0.
    /// Default 5 s.
    pub timeout: Duration,
    /// After how many failed polls in a row an engine's workers get the health veto: at least 1.
    /// Default 3.
    pub refusals: u32,
    /// Whom to trust that an https engine is who it says, instead of the system's roots; none: the
    /// system's. Default none.
    pub roots: Vec<CertificateDer<'static>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
            refusals: 3,
            roots: Vec::new(),
        }
    }
}

/// An engine to be polled.
#[derive(Clone)]
pub struct Engine {
    /// Where it is: http or https, a host, perhaps a port and a path that its own paths go below.
    pub url: Uri,
    /// The worker of each DP rank, by rank: `workers[rank]`. Each worker is of one engine.
    pub workers: Vec<WorkerId>,
    /// The key that it asks for. It is never told to anyone else.
    pub bearer: Option<String>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("url", &host_port(&self.url))
            .field("workers", &self.workers)
            .field("bearer", &self.bearer.as_ref().map(|_| "hidden"))
            .finish()
    }
}

/// What is known of an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineStatus {
    /// `host:port`, as [`Monitor::add`] returned it.
    pub name: String,
    /// Failed polls since the last success, those aside that failed for want of something of this
    /// process.
    pub failures: u32,
    /// Whether there are so many of them that its workers have the health veto.
    pub vetoed: bool,
    /// Why the last failed poll failed, also if polls have succeeded since.
    pub last_failure: Option<String>,
    /// How long ago the last success was.
    pub last_success_age: Option<Duration>,
}

/// Why a monitor or an engine was refused. Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value outside what is allowed.
    #[error("{what} is {value}; allowed: {allowed}")]
    Invalid {
        /// What it is of.
        what: &'static str,
        /// The value; of a secret, what it is.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The engine is there already.
    #[error("the engine {name} is there already; each host and port is allowed once")]
    Exists {
        /// Its name.
        name: String,
    },
    /// There is no tokio runtime with timers and sockets to poll on.
    #[error("no tokio runtime; a monitor is made inside one")]
    NoRuntime,
    /// The roots to trust could not be read.
    #[error("no roots to trust https engines by: {0}")]
    Roots(String),
}

pub(crate) fn invalid(
    what: &'static str,
    value: impl fmt::Display,
    allowed: &'static str,
) -> Error {
    Error::Invalid { what, value: value.to_string(), allowed }
}

/// Polls engines for loads and health, each on its own clock.
///
/// Any thread may call any method at any time. Dropping it stops all polls soon; [`Monitor::stop`]
/// waits until none is left. Loads and vetoes that polls have left in the pool stay after a drop.
pub struct Monitor {
    pool: Pool,
    options: Options,
    runtime: Handle,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    engines: BTreeMap<Arc<str>, Task>,
    /// Made for the first https engine.
    tls: Option<TlsConnector>,
}

struct Task {
    handle: JoinHandle<()>,
    workers: Arc<[WorkerId]>,
    state: Arc<Mutex<State>>,
}

impl Monitor {
    /// A monitor of this pool's workers, without engines. Polls run on the tokio runtime that this
    /// is called in.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an option out of range, [`Error::NoRuntime`].
    pub fn new(pool: &Pool, options: Options) -> Result<Self, Error> {
        for (what, duration) in [("interval", options.interval), ("timeout", options.timeout)] {
            if duration.is_zero() {
                return Err(invalid(what, "0", "durations above 0"));
            }
        }
        if options.refusals == 0 {
            return Err(invalid("refusals", 0, "1 to 4294967295"));
        }
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        crate::describe_metrics();
        Ok(Self { pool: pool.clone(), options, runtime, inner: Mutex::default() })
    }

    /// Begins to poll an engine, at once, and returns its name, `host:port` as [`host_port`] gives it.
    ///
    /// Waits for no network. Allocates. The first https engine makes it read the system's roots from files, unless
    /// [`Options::roots`] has some.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a URL that can't be asked, a key that is no header, workers that are
    /// none or repeated; [`Error::Exists`]; [`Error::Roots`].
    pub fn add(&self, engine: Engine) -> Result<String, Error> {
        let Engine { url, workers, bearer } = engine;
        let name: Arc<str> = host_port(&url)?.into();
        check_workers(&workers)?;
        let headers = headers(&name, bearer.as_deref())?;
        let workers: Arc<[WorkerId]> = workers.into();
        let host = url.host().unwrap_or_default().to_owned();

        let mut inner = self.inner();
        if inner.engines.contains_key(&name) {
            return Err(Error::Exists { name: name.to_string() });
        }
        let tls = match url.scheme() == Some(&Scheme::HTTPS) {
            true => Some((inner.connector(&self.options.roots)?, tls::server_name(&host)?)),
            false => None,
        };
        let state = Arc::<Mutex<State>>::default();
        let task = engine::Engine {
            name: name.clone(),
            pool: self.pool.clone(),
            poll: self.pool.poll(Some(&workers)),
            workers: workers.clone(),
            client: Client { host, port: port(&url), tls, headers, connection: None },
            paths: Paths {
                current: below(&url, "/v1/loads?include=core"),
                oldest: below(&url, "/get_load"),
                by_oldest: 0,
            },
            interval: self.options.interval,
            timeout: self.options.timeout,
            refusals: self.options.refusals,
            state: state.clone(),
            had_rejected: false,
        };
        let handle = self.runtime.spawn(task.run());
        inner.engines.insert(name.clone(), Task { handle, workers, state });
        Ok(name.to_string())
    }

    /// Ends the polls of an engine. Once this has returned, none of them changes anything any more,
    /// and the engine's workers have no load, as nobody asks for it. A health veto stays, since there was no
    /// success; the host may lift it. Returns whether the engine was there.
    ///
    /// Waits for nothing but a poll that is just publishing. If the future is dropped before its
    /// end, polling ends all the same and the loads may stay. An engine that is added again before this
    /// has returned may lose its first report.
    pub async fn remove(&self, name: &str) -> bool {
        let task = self.inner().engines.remove(name);
        match task {
            Some(task) => {
                task.handle.abort();
                self.end(name, task).await;
                true
            }
            None => false,
        }
    }

    /// Ends all polls, as [`Monitor::remove`] does for each engine, and waits until none is left.
    pub async fn stop(self) {
        let engines = std::mem::take(&mut self.inner().engines);
        for task in engines.values() {
            task.handle.abort();
        }
        for (name, task) in engines {
            self.end(&name, task).await;
        }
    }

    /// What is known of each engine, in the order of their names. Allocates.
    pub fn engines(&self) -> Vec<EngineStatus> {
        let status = |(name, task): (&Arc<str>, &Task)| {
            let state = task.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
            EngineStatus {
                name: name.to_string(),
                failures: state.failures,
                vetoed: state.failures >= self.options.refusals,
                last_failure: state.last_failure,
                last_success_age: state.last_success.map(|at| Instant::now() - at),
            }
        };
        self.inner().engines.iter().map(status).collect()
    }

    /// Waits for the end of a task that was aborted, and forgets what it published.
    async fn end(&self, name: &str, task: Task) {
        let _ = task.handle.await;
        let mut poll = self.pool.poll(Some(&task.workers));
        if let Err(error) = poll.begin().and_then(|()| poll.publish(&[])) {
            tracing::warn!(engine = name, "removed, and its loads stay: {error}");
        }
        metrics::gauge!(crate::VETOED, "engine" => name.to_owned()).set(0.0);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        for task in self.inner().engines.values() {
            task.handle.abort();
        }
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("engines", &self.engines()).finish_non_exhaustive()
    }
}

impl Inner {
    fn connector(&mut self, roots: &[CertificateDer<'static>]) -> Result<TlsConnector, Error> {
        if let Some(tls) = &self.tls {
            return Ok(tls.clone());
        }
        let tls = tls::connector(roots)?;
        Ok(self.tls.insert(tls).clone())
    }
}

/// The name of the engine at this URL: `host:port`, the host in lower case, IPv6 in brackets, the
/// port also where the URL leaves it to the scheme.
///
/// # Errors
/// [`Error::Invalid`] if the URL is not that of an engine.
pub fn host_port(url: &Uri) -> Result<String, Error> {
    const ALLOWED: &str = "http://HOST:PORT or https://HOST:PORT, perhaps with a path";
    let authority = url.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        // It may hold a password.
        return Err(invalid("the URL", "one with user information", ALLOWED));
    }
    let is_http = [Some(&Scheme::HTTP), Some(&Scheme::HTTPS)].contains(&url.scheme());
    let host = url.host().filter(|host| !host.is_empty());
    let (true, Some(host), None) = (is_http, host, url.query()) else {
        return Err(invalid("the URL", url, ALLOWED));
    };
    // What is behind the host is a port, or nothing at all.
    if authority.len() > host.len() && url.port_u16().is_none_or(|port| port == 0) {
        return Err(invalid("the URL", url, ALLOWED));
    }
    Ok(format!("{}:{}", host.to_ascii_lowercase(), port(url)))
}

/// The label of the worker of one rank of an engine: `host:port@rank`. The worker of an engine that
/// has but one rank may as well have the engine's name alone.
pub fn worker_label(host_port: &str, rank: u32) -> String {
    format!("{host_port}@{rank}")
}

/// The port of the engine at this URL, also where the URL leaves it to the scheme.
pub fn port(url: &Uri) -> u16 {
    let by_scheme = if url.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    url.port_u16().unwrap_or(by_scheme)
}

/// A path below the URL's own.
fn below(url: &Uri, path: &str) -> Uri {
    let path = format!("{}{path}", url.path().trim_end_matches('/'));
    PathAndQuery::try_from(path).expect("a path and a path are a path").into()
}

fn check_workers(workers: &[WorkerId]) -> Result<(), Error> {
    const ALLOWED: &str = "at least one, each once";
    if workers.is_empty() {
        return Err(invalid("the list of workers", "empty", ALLOWED));
    }
    let mut seen = HashSet::with_capacity(workers.len());
    match workers.iter().find(|worker| !seen.insert(**worker)) {
        Some(twice) => {
            Err(invalid("the list of workers", format!("one with {twice} twice"), ALLOWED))
        }
        None => Ok(()),
    }
}

fn headers(host: &str, bearer: Option<&str>) -> Result<HeaderMap, Error> {
    let host = HeaderValue::from_str(host)
        .map_err(|_| invalid("the URL's host", host, "a DNS name or an address"))?;
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, host);
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let agent = HeaderValue::from_static(concat!("evenkeel-monitor/", env!("CARGO_PKG_VERSION")));
    headers.insert(header::USER_AGENT, agent);
    if let Some(key) = bearer {
        let value = HeaderValue::from_str(&format!("Bearer {key}"));
        let mut value = value.map_err(|_| {
            invalid("the bearer key", "one that no header can hold", "visible ASCII characters")
        })?;
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    Ok(headers)
}
