//! A client: one request at a time over a connection that is kept.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::select;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Whoever takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Who leaves before the first token leaves after this time.
const SHORT_STAY: Duration = Duration::from_millis(50);
/// Of a stream that is whole.
const LAST_EVENT: &[u8] = b"data: [DONE]\n\n";
/// Of what an engine tells: how long to wait for it, and the most bytes. An hour of 500 ranks is less.
const FETCH_TIME: Duration = Duration::from_secs(10);
const FETCH_BYTES: usize = 64 << 20;

#[derive(Clone, Debug)]
pub struct Target {
    /// `host:port`.
    authority: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let url: Uri = text.parse().ok()?;
            let plain = url.scheme_str() == Some("http") && url.path() == "/";
            let authority = url.authority().filter(|it| plain && !it.as_str().contains('@'))?;
            Some(format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)))
        };
        let authority = parsed().ok_or("expected a URL such as http://127.0.0.1:8000")?;
        Ok(Self { authority })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Ends with it: a client that leaves is gone at once.
    _driver: JoinSet<hyper::Result<()>>,
}

impl Target {
    async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(&self.authority).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Ok(Connection { sender, _driver: driver })
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .expect("path and authority were parsed")
    }

    /// JSON, over a connection of its own.
    pub async fn fetch<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T> {
        let answer = async {
            let mut connection = self.connect().await?;
            let request = self.request(method, path, Bytes::new());
            let response = connection.sender.send_request(request).await?;
            let status = response.status();
            ensure!(status == StatusCode::OK, "{status}");
            let body = Limited::new(response.into_body(), FETCH_BYTES).collect().await;
            Ok(serde_json::from_slice(&body.map_err(|error| anyhow!(error))?.to_bytes())?)
        };
        let answer = timeout(FETCH_TIME, answer).await;
        let answer = answer.unwrap_or_else(|_| Err(anyhow!("no answer in {FETCH_TIME:?}")));
        answer.with_context(|| format!("{self}{path}"))
    }
}

/// One request, and the pause before it.
pub struct Ask {
    pub think: Duration,
    pub body: Bytes,
    pub stream: bool,
    /// Those after the first event.
    pub later_tokens: u32,
    /// Events; 0: before the first.
    pub leaves_after: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Failure {
    Connect,
    /// The connection ended before a response began.
    NoResponse,
    /// Another than 200.
    Status(u16),
    /// The response began, but did not end as it has to.
    Broken,
    /// No end within two minutes.
    Late,
}

#[derive(Clone, Copy, Debug)]
pub enum End {
    Finished,
    Left,
    Failed(Failure),
}

#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub began: Instant,
    pub end: End,
    /// From sending to the response's first bytes.
    pub first: Option<Duration>,
    /// From sending to its end.
    pub whole: Duration,
    pub later_tokens: u32,
    /// Of `first`, what the engine says that it took itself; none if it says more than that.
    pub engine: Option<Duration>,
}

impl Outcome {
    pub fn failure(&self) -> Option<Failure> {
        match self.end {
            End::Failed(failure) => Some(failure),
            End::Finished | End::Left => None,
        }
    }
}

pub async fn converse(
    target: Target,
    asks: impl Iterator<Item = Ask>,
    until: Instant,
) -> Vec<Outcome> {
    let mut connection = None;
    let mut outcomes = Vec::new();
    for ask in asks {
        sleep_until(until.min(Instant::now() + ask.think)).await;
        if Instant::now() >= until {
            break;
        }
        let outcome = send(&mut connection, &target, &ask).await;
        if outcome.failure().is_some() {
            // Who has no pauses must not ask a dead router without end.
            sleep(Duration::from_millis(10)).await;
        }
        outcomes.push(outcome);
    }
    outcomes
}

/// A connection that the other side has closed is replaced.
pub async fn open<'a>(
    connection: &'a mut Option<Connection>,
    target: &Target,
) -> Result<&'a mut Connection> {
    let usable = match connection {
        Some(open) => open.sender.ready().await.is_ok(),
        None => false,
    };
    if !usable {
        *connection = Some(target.connect().await?);
    }
    Ok(connection.as_mut().expect("just opened"))
}

pub async fn send(connection: &mut Option<Connection>, target: &Target, ask: &Ask) -> Outcome {
    let mut outcome = Outcome {
        began: Instant::now(),
        end: End::Failed(Failure::Late),
        first: None,
        whole: Duration::ZERO,
        later_tokens: ask.later_tokens,
        engine: None,
    };
    if let Ok(end) = timeout(PATIENCE, exchange(connection, target, ask, &mut outcome)).await {
        outcome.end = end;
    }
    outcome.whole = outcome.began.elapsed();
    if !matches!(outcome.end, End::Finished | End::Failed(Failure::Status(_))) {
        *connection = None;
    }
    outcome
}

async fn exchange(
    connection: &mut Option<Connection>,
    target: &Target,
    ask: &Ask,
    outcome: &mut Outcome,
) -> End {
    let Ok(connection) = open(connection, target).await else {
        return End::Failed(Failure::Connect);
    };
    let request = target.request(Method::POST, "/generate", ask.body.clone());
    let response = select! {
        response = connection.sender.send_request(request) => response,
        () = sleep(SHORT_STAY), if ask.leaves_after == Some(0) => return End::Left,
    };
    let Ok(response) = response else { return End::Failed(Failure::NoResponse) };
    let first = outcome.began.elapsed();
    outcome.first = Some(first);
    outcome.engine = engine_time(response.headers()).filter(|&time| time <= first);
    let status = response.status();
    let end = read(response, ask).await;
    if status == StatusCode::OK { end } else { End::Failed(Failure::Status(status.as_u16())) }
}

/// Server-Timing: engine;dur=1.25
fn engine_time(headers: &HeaderMap) -> Option<Duration> {
    let ms = headers.get("server-timing")?.to_str().ok()?.strip_prefix("engine;dur=")?;
    Duration::try_from_secs_f64(ms.parse::<f64>().ok()? / 1e3).ok()
}

async fn read(response: Response<Incoming>, ask: &Ask) -> End {
    let mut body = response.into_body();
    let mut events = 0;
    let mut tail = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return End::Failed(Failure::Broken) };
        let Some(data) = frame.data_ref() else { continue };
        tail.extend_from_slice(&data[data.len().saturating_sub(LAST_EVENT.len())..]);
        tail.drain(..tail.len().saturating_sub(LAST_EVENT.len()));
        if let Some(most) = ask.leaves_after {
            events += data.windows(6).filter(|part| part == b"data: ").count();
            if events >= most as usize {
                return End::Left;
            }
        }
    }
    if ask.stream && tail != LAST_EVENT { End::Failed(Failure::Broken) } else { End::Finished }
}
