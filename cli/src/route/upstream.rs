//! One engine's side of HTTP: connections that are kept, and a request sent on one of them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::body::RequestBody;
use super::options::{EngineSpec, RouteOptions};
use crate::net::set_up;

/// The most bytes of a head, from either side.
pub const MAX_HEAD: usize = 64 << 10;
/// Connections that nobody used for so long are closed.
const MAX_IDLE: Duration = Duration::from_secs(60);

pub type Connection = SendRequest<RequestBody>;

pub struct Upstream {
    /// `host:port`.
    pub name: String,
    pub host: String,
    pub port: u16,
    pub bootstrap_port: u16,
    pub authority: HeaderValue,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    connect_timeout: Duration,
    response_timeout: Option<Duration>,
    /// The longest that it may be silent within a response.
    pub silence_timeout: Option<Duration>,
    /// The longest unused first.
    idle: Mutex<VecDeque<(Instant, Connection)>>,
}

/// Why an engine gave no response.
#[derive(Debug)]
pub enum Failure {
    /// Nothing of the request was sent.
    Connect(io::Error),
    ConnectTimeout,
    /// It closed the connection before the response; a `kept` one perhaps only because it was idle.
    Closed {
        error: hyper::Error,
        kept: bool,
    },
    /// It took too long to begin the response.
    ResponseTimeout,
    /// What it sent is no response.
    Invalid(hyper::Error),
    /// The client's body broke off.
    Body(hyper::Error),
}

impl Upstream {
    /// https engines are trusted by what connects.
    pub fn new(engine: &EngineSpec, tls: Option<&TlsConnector>, options: &RouteOptions) -> Self {
        let host = engine.url.host().unwrap_or_default();
        Self {
            name: engine.name.clone(),
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: evenkeel_monitor::port(&engine.url),
            bootstrap_port: engine.bootstrap_port,
            authority: HeaderValue::from_str(&engine.name).expect("part of a URL"),
            tls: tls.cloned().zip(engine.server_name.clone()),
            connect_timeout: options.connect_timeout,
            response_timeout: options.response_timeout,
            silence_timeout: options.silence_timeout,
            idle: Mutex::default(),
        }
    }

    pub fn is_https(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether an engine that is given so is reached by this.
    pub fn is_of(&self, engine: &EngineSpec) -> bool {
        self.bootstrap_port == engine.bootstrap_port && self.is_https() == engine.is_https()
    }

    /// The response's head, and the connection that its body comes on. A kept connection may have been
    /// closed for no other reason than that it was idle; then the request is sent on a new one, if it
    /// can be had `again`.
    pub async fn send(
        &self,
        request: Request<RequestBody>,
        again: impl FnOnce() -> Option<Request<RequestBody>>,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        let method = request.method().clone();
        match self.send_once(request, false).await {
            Err(failure @ Failure::Closed { kept: true, .. }) if failure.may_retry(&method) => {
                match again() {
                    Some(request) => self.send_once(request, true).await,
                    None => Err(failure),
                }
            }
            sent => sent,
        }
    }

    async fn send_once(
        &self,
        mut request: Request<RequestBody>,
        new: bool,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        while let Some(mut kept) = (!new).then(|| self.kept()).flatten() {
            match self.ask(&mut kept, request, true).await {
                Ok(response) => return Ok((response, kept)),
                Err(Unanswered { unsent: Some(unsent), .. }) => request = unsent,
                Err(Unanswered { failure, .. }) => return Err(failure),
            }
        }
        let mut new = self.connect().await?;
        match self.ask(&mut new, request, false).await {
            Ok(response) => Ok((response, new)),
            Err(Unanswered { failure, .. }) => Err(failure),
        }
    }

    async fn ask(
        &self,
        connection: &mut Connection,
        request: Request<RequestBody>,
        kept: bool,
    ) -> Result<Response<Incoming>, Unanswered> {
        let response = connection.try_send_request(request);
        let response = match self.response_timeout {
            None => response.await,
            Some(longest) => match timeout(longest, response).await {
                Ok(response) => response,
                Err(_) => {
                    return Err(Unanswered { unsent: None, failure: Failure::ResponseTimeout });
                }
            },
        };
        response.map_err(|mut error| {
            let unsent = error.take_message();
            let error = error.into_error();
            let closed = error.is_incomplete_message() || error.is_closed() || error.is_canceled();
            let failure = if error.is_user() {
                Failure::Body(error)
            } else if closed || is_io(&error) {
                Failure::Closed { error, kept }
            } else {
                Failure::Invalid(error)
            };
            Unanswered { unsent, failure }
        })
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let connected = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            set_up(&stream)?;
            match &self.tls {
                None => handshake(stream).await,
                Some((tls, name)) => handshake(tls.connect(name.clone(), stream).await?).await,
            }
        };
        match timeout(self.connect_timeout, connected).await {
            Ok(connected) => connected.map_err(Failure::Connect),
            Err(_) => Err(Failure::ConnectTimeout),
        }
    }

    /// A kept connection that can take a request at once. One whose request is still being sent, as
    /// its response came early, stays.
    fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle();
        for at in (0..idle.len()).rev() {
            let connection = &idle[at].1;
            if connection.is_closed() {
                idle.remove(at);
            } else if connection.is_ready() {
                return idle.remove(at).map(|(_, connection)| connection);
            }
        }
        None
    }

    /// For the next request, once the response has ended.
    pub fn keep(&self, connection: Connection) {
        if connection.is_closed() {
            return;
        }
        let now = Instant::now();
        let mut idle = self.idle();
        while idle.front().is_some_and(|(since, _)| now - *since > MAX_IDLE) {
            idle.pop_front();
        }
        idle.push_back((now, connection));
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<(Instant, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> io::Result<Connection> {
    let (connection, driver) = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(driver);
    Ok(connection)
}

struct Unanswered {
    /// The request, if nothing of it was sent.
    unsent: Option<Request<RequestBody>>,
    failure: Failure,
}

fn is_io(error: &hyper::Error) -> bool {
    use std::error::Error as _;
    !error.is_user() && error.source().is_some_and(|cause| cause.is::<io::Error>())
}

impl Failure {
    /// The engine has begun nothing, or what it began is lost without a trace for the client.
    pub fn may_retry(&self, method: &Method) -> bool {
        match self {
            Self::Connect(_) | Self::ConnectTimeout => true,
            // What a generation has computed is nobody's loss.
            Self::Closed { .. } => method.is_idempotent() || *method == Method::POST,
            Self::ResponseTimeout | Self::Invalid(_) | Self::Body(_) => false,
        }
    }

    pub fn status(&self) -> StatusCode {
        match self {
            Self::ConnectTimeout | Self::ResponseTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Connect(_) | Self::Closed { .. } | Self::Invalid(_) => StatusCode::BAD_GATEWAY,
            Self::Body(_) => StatusCode::BAD_REQUEST,
        }
    }

    pub fn code(&self) -> &'static str {
        match self {
            Self::Connect(_) => "engine_unreachable",
            Self::ConnectTimeout => "engine_connect_timeout",
            Self::Closed { .. } => "engine_closed",
            Self::ResponseTimeout => "engine_response_timeout",
            Self::Invalid(_) => "engine_invalid_response",
            Self::Body(_) => "incomplete_body",
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "no connection: {error}"),
            Self::ConnectTimeout => f.write_str("no connection in time"),
            Self::Closed { error, .. } => write!(f, "closed before a response: {error}"),
            Self::ResponseTimeout => f.write_str("no response in time"),
            Self::Invalid(error) => write!(f, "no valid response: {error}"),
            Self::Body(error) => write!(f, "the request's body broke off: {error}"),
        }
    }
}
