//! One engine's HTTP: at most one connection, kept alive, driven by whoever asks, so that nothing of
//! it runs on when its owner is dropped.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Body as _;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::report::ParseError;

/// The most bytes of an answer's body.
pub const MAX_BODY: usize = 1 << 20;
/// The most headers of an answer, and the most bytes of all of them.
const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 16 << 10;

/// Why a poll brought no loads.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no connection: {0}")]
    Connect(std::io::Error),
    #[error("no answer in time")]
    Timeout,
    #[error("no HTTP answer: {}", with_causes(.0))]
    Http(hyper::Error),
    #[error("status {}; only 200 is allowed", .0.as_u16())]
    Status(StatusCode),
    #[error("content-encoding {0:?}; only identity is allowed")]
    Encoding(HeaderValue),
    #[error("a body of more than {MAX_BODY} bytes, which are the most allowed")]
    TooLarge,
    #[error("no report: {0}")]
    Body(#[from] ParseError),
    #[error("the pool: {0}")]
    Pool(#[from] evenkeel::Error),
}

impl Failure {
    /// It says nothing about the engine: the pool is busy, or this process has no descriptor left.
    pub(crate) fn is_ours(&self) -> bool {
        match self {
            Self::Pool(_) => true,
            Self::Connect(error) => {
                matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
            }
            _ => false,
        }
    }

    /// The label of the metric.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Timeout => "timeout",
            Self::Http(_) => "http",
            Self::Status(_) => "status",
            Self::Encoding(_) => "encoding",
            Self::TooLarge => "too_large",
            Self::Body(_) => "body",
            Self::Pool(_) => "pool",
        }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Asks one engine.
pub(crate) struct Client {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) tls: Option<(TlsConnector, ServerName<'static>)>,
    pub(crate) headers: HeaderMap,
    pub(crate) connection: Option<Connection>,
}

impl Client {
    /// Asks, after it has called `sending`. The connection is kept after a success alone.
    pub(crate) async fn get(
        &mut self,
        path: &Uri,
        mut sending: impl FnMut() -> Result<(), evenkeel::Error>,
    ) -> Result<Vec<u8>, Failure> {
        if let Some(kept) = self.connection.take() {
            match self.ask(kept, path, &mut sending).await {
                // The engine has closed it, as any may after some time, just when it was used again.
                Err(Failure::Http(_)) => {}
                result => return result,
            }
        }
        let new = self.connect().await?;
        self.ask(new, path, &mut sending).await
    }

    async fn ask(
        &mut self,
        mut connection: Connection,
        path: &Uri,
        sending: &mut impl FnMut() -> Result<(), evenkeel::Error>,
    ) -> Result<Vec<u8>, Failure> {
        sending()?;
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = path.clone();
        *request.headers_mut() = self.headers.clone();
        let body = connection.ask(request).await?;
        self.connection = connection.open.then_some(connection);
        Ok(body)
    }

    async fn connect(&mut self) -> Result<Connection, Failure> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await.map_err(Failure::Connect)?;
        stream.set_nodelay(true).map_err(Failure::Connect)?;
        match &self.tls {
            None => Connection::new(stream).await,
            Some((tls, name)) => {
                let stream = tls.connect(name.clone(), stream).await.map_err(Failure::Connect)?;
                Connection::new(stream).await
            }
        }
    }

    /// Waits, and sees meanwhile if the engine closes the connection.
    pub(crate) async fn rest(&mut self, time: impl Future<Output = ()>) {
        let mut time = pin!(time);
        if let Some(connection) = &mut self.connection {
            let closed = poll_fn(|context| match time.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(false),
                Poll::Pending => connection.driver.as_mut().poll(context).map(|_| true),
            });
            if !closed.await {
                return;
            }
            self.connection = None;
        }
        time.await;
    }
}

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

pub(crate) struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    driver: Driver,
    /// The driver has not ended.
    open: bool,
}

impl Connection {
    async fn new(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, Failure> {
        let (sender, driver) = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(Failure::Http)?;
        Ok(Self { sender, driver: Box::pin(driver), open: true })
    }

    async fn ask(&mut self, request: Request<Empty<Bytes>>) -> Result<Vec<u8>, Failure> {
        let Self { sender, driver, open } = self;
        let work = async {
            sender.ready().await.map_err(Failure::Http)?;
            let response = sender.send_request(request).await.map_err(Failure::Http)?;
            if response.status() != StatusCode::OK {
                return Err(Failure::Status(response.status()));
            }
            let encodings = response.headers().get_all(header::CONTENT_ENCODING);
            if let Some(encoding) = encodings.iter().find(|encoding| **encoding != "identity") {
                return Err(Failure::Encoding(encoding.clone()));
            }
            let mut body = response.into_body();
            if body.size_hint().lower() > MAX_BODY as u64 {
                return Err(Failure::TooLarge);
            }
            let mut read = Vec::new();
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame.map_err(Failure::Http)?.into_data() {
                    if read.len() + data.len() > MAX_BODY {
                        return Err(Failure::TooLarge);
                    }
                    read.extend_from_slice(&data);
                }
            }
            Ok(read)
        };
        let mut work = pin!(work);
        poll_fn(|context| {
            // If the connection ends, the work learns it from its parts.
            *open = *open && driver.as_mut().poll(context).is_pending();
            work.as_mut().poll(context)
        })
        .await
    }
}
