//! Bodies on their way through: a request's, which may have to be sent again, and a response's,
//! which holds what its request counts.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use evenkeel::InFlight;
use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::HeaderMap;
use tokio::time::{Sleep, sleep, timeout};

use super::cluster::Worker;
use super::pair::PrefillRun;
use super::status::{COUNTERS, count};
use super::upstream::Connection;

pub type BoxError = Box<dyn Error + Send + Sync>;

/// What is sent to an engine.
pub enum RequestBody {
    Empty,
    Whole(Option<Bytes>),
    Streamed { source: Arc<Source>, attempt: u32, next: usize },
}

/// A part of a body that is kept takes at least so much memory.
const LEAST_KEPT: usize = 128;

/// The client sent nothing of its body for so long.
#[derive(Debug)]
pub struct ClientSilent(Duration);

impl fmt::Display for ClientSilent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing came for {:?}", self.0)
    }
}

impl Error for ClientSilent {}

/// A client's body. What was read of it is kept up to a limit, so that it can be sent again from its
/// start without anyone having waited for its end.
pub struct Source {
    length: SizeHint,
    limit: usize,
    /// The longest that the client may be silent.
    patience: Duration,
    state: Mutex<State>,
}

struct State {
    /// From the beginning; empty once that is more than the limit.
    kept: Vec<Bytes>,
    kept_bytes: usize,
    trailers: Option<HeaderMap>,
    rest: Option<Incoming>,
    /// All of it can be sent again.
    replayable: bool,
    /// Bodies of earlier attempts, which connections that end may still hold, get no more of it.
    attempt: u32,
    silence: Silence,
}

impl Source {
    pub fn new(body: Incoming, limit: usize, patience: Duration) -> Arc<Self> {
        let length = body.size_hint();
        Self::begun(Bytes::new(), body, length, limit, patience)
    }

    /// Of a body that was read in part.
    fn begun(
        kept: Bytes,
        rest: Incoming,
        length: SizeHint,
        limit: usize,
        patience: Duration,
    ) -> Arc<Self> {
        let kept_bytes = kept.len();
        let state = State {
            kept: if kept.is_empty() { Vec::new() } else { vec![kept] },
            kept_bytes,
            trailers: None,
            rest: Some(rest),
            replayable: true,
            attempt: 0,
            silence: Silence::default(),
        };
        Arc::new(Self { length, limit, patience, state: Mutex::new(state) })
    }

    /// The body from its start, if that can still be had.
    pub fn body(self: &Arc<Self>) -> Option<RequestBody> {
        let mut state = self.state();
        if !state.replayable {
            return None;
        }
        state.attempt += 1;
        let attempt = state.attempt;
        Some(RequestBody::Streamed { source: self.clone(), attempt, next: 0 })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(
        &self,
        attempt: u32,
        next: &mut usize,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut state = self.state();
        let state = &mut *state;
        if state.attempt != attempt {
            return Poll::Ready(Some(Err("sent again elsewhere".into())));
        }
        if let Some(kept) = state.kept.get(*next) {
            *next += 1;
            return Poll::Ready(Some(Ok(Frame::data(kept.clone()))));
        }
        let Some(rest) = &mut state.rest else {
            let trailers = (*next == state.kept.len()).then(|| state.trailers.clone()).flatten();
            *next += 1;
            return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
        };
        let frame = Pin::new(rest).poll_frame(context).map_err(BoxError::from);
        let silent = |longest| Some(Err(ClientSilent(longest).into()));
        let frame = match ready!(state.silence.check(frame, Some(self.patience), silent, context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                state.replayable = false;
                return Poll::Ready(Some(Err(error)));
            }
            None => {
                state.rest = None;
                return Poll::Ready(None);
            }
        };
        if let Some(data) = frame.data_ref() {
            state.kept_bytes += data.len().max(LEAST_KEPT);
            if state.kept_bytes <= self.limit {
                state.kept.push(data.clone());
                *next += 1;
            } else {
                state.replayable = false;
                state.kept = Vec::new();
                *next = 0;
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            state.trailers = Some(trailers.clone());
            state.rest = None;
            *next += 1;
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Streamed { source, attempt, next } => source.poll(*attempt, next, context),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty | Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty | Self::Whole(None) => SizeHint::with_exact(0),
            Self::Whole(Some(bytes)) => SizeHint::with_exact(bytes.len() as u64),
            Self::Streamed { source, .. } => source.length,
        }
    }
}

/// A body that was read as far as the limit.
pub enum Read {
    Whole(Bytes),
    Beyond(Arc<Source>),
}

pub async fn read(mut body: Incoming, limit: usize, patience: Duration) -> Result<Read, BoxError> {
    use http_body_util::BodyExt as _;
    let length = body.size_hint();
    if length.lower() > limit as u64 {
        return Ok(Read::Beyond(Source::new(body, limit, patience)));
    }
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    let whole = |first: Bytes, all: BytesMut| if all.is_empty() { first } else { all.freeze() };
    let next = async |body: &mut Incoming| {
        timeout(patience, body.frame()).await.map_err(|_| ClientSilent(patience))
    };
    while let Some(frame) = next(&mut body).await? {
        let Ok(data) = frame?.into_data() else { continue };
        if first.is_empty() {
            // Most bodies come in one part, which is not copied.
            first = data;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&data);
        }
        if first.len().max(all.len()) > limit {
            let kept = whole(first, all);
            return Ok(Read::Beyond(Source::begun(kept, body, length, limit, patience)));
        }
    }
    Ok(Read::Whole(whole(first, all)))
}

/// What is sent to the client.
pub enum ResponseBody {
    /// The router's own.
    Own(Full<Bytes>),
    Engine(Reply),
}

/// An engine's response. What its request counts is held until its last byte, or until this is dropped,
/// as hyper does when the client has left.
pub struct Reply {
    body: Incoming,
    held: Option<Held>,
    silence: Silence,
}

/// How long nothing has come of a body. It begins when more is asked for and nothing is there: whoever
/// reads slowly makes no sender silent.
#[derive(Default)]
struct Silence(Option<Pin<Box<Sleep>>>);

impl Silence {
    /// What has come, or `silent` if that took longer than the longest allowed.
    fn check<T>(
        &mut self,
        polled: Poll<T>,
        longest: Option<Duration>,
        silent: impl FnOnce(Duration) -> T,
        context: &mut Context<'_>,
    ) -> Poll<T> {
        if polled.is_ready() {
            self.0 = None;
            return polled;
        }
        let Some(longest) = longest else { return Poll::Pending };
        let silence = self.0.get_or_insert_with(|| Box::pin(sleep(longest)));
        silence.as_mut().poll(context).map(|()| silent(longest))
    }
}

pub struct Held {
    pub in_flight: InFlight<'static>,
    pub worker: Arc<Worker>,
    pub connection: Connection,
    pub prefill: Option<PrefillRun>,
}

impl ResponseBody {
    pub fn own(text: String) -> Self {
        Self::Own(Full::from(text))
    }
}

impl Reply {
    pub fn new(body: Incoming, held: Held) -> Self {
        let mut reply = Self { body, held: Some(held), silence: Silence::default() };
        reply.end_if_ended();
        reply
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context).map_err(BoxError::from);
        let longest = self.held.as_ref().and_then(|held| held.worker.upstream.silence_timeout);
        let silent = |longest: Duration| Some(Err(format!("nothing for {longest:?}").into()));
        self.silence.check(frame, longest, silent, context)
    }

    fn end_if_ended(&mut self) {
        if self.body.is_end_stream() {
            self.end();
        }
    }

    fn end(&mut self) {
        if let Some(held) = self.held.take() {
            // A worker that was abandoned is the one case in which nothing counts any more.
            held.in_flight.finish().ok();
            held.worker.upstream.keep(held.connection);
            if let Some(prefill) = held.prefill {
                prefill.let_end();
            }
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let reply = match &mut *self {
            Self::Own(body) => {
                return Pin::new(body).poll_frame(context).map_err(|never| match never {});
            }
            Self::Engine(reply) => reply,
        };
        let prefill = reply.held.as_mut().and_then(|held| held.prefill.as_mut());
        if let Some(failure) = prefill.and_then(|prefill| prefill.poll_failure(context)) {
            count(&COUNTERS.broken);
            reply.held = None;
            return Poll::Ready(Some(Err(failure.into())));
        }
        let frame = ready!(reply.poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(prefill) = reply.held.as_mut().and_then(|held| held.prefill.as_mut())
                    && frame.data_ref().is_some_and(|data| !data.is_empty())
                {
                    prefill.first_token();
                }
                // hyper asks for nothing after trailers.
                if frame.is_trailers() {
                    reply.end();
                }
                reply.end_if_ended();
            }
            Some(Err(error)) => {
                if let Some(held) = reply.held.take() {
                    count(&COUNTERS.broken);
                    tracing::debug!(
                        engine = held.worker.upstream.name,
                        "a response broke off: {error}"
                    );
                }
            }
            None => reply.end(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) => body.is_end_stream(),
            Self::Engine(reply) => reply.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) => body.size_hint(),
            Self::Engine(reply) => reply.body.size_hint(),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.held.is_some() {
            count(&COUNTERS.client_left);
        }
    }
}
