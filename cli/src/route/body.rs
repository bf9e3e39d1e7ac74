//! Bodies on their way through: a request's, which may have to be sent again, and a response's,
//! which holds what its request counts.

use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use evenkeel::InFlight;
use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::HeaderMap;
use tokio::time::{Sleep, sleep};

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

/// A client's body. What was read of it is kept up to a limit, so that it can be sent again from its
/// start without anyone having waited for its end.
pub struct Source {
    length: SizeHint,
    limit: usize,
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
}

impl Source {
    pub fn new(body: Incoming, limit: usize) -> Arc<Self> {
        let length = body.size_hint();
        Self::begun(Vec::new(), body, length, limit)
    }

    /// Of a body that was read in part.
    fn begun(kept: Vec<Bytes>, rest: Incoming, length: SizeHint, limit: usize) -> Arc<Self> {
        let kept_bytes = kept.iter().map(Bytes::len).sum();
        let state = State {
            kept,
            kept_bytes,
            trailers: None,
            rest: Some(rest),
            replayable: true,
            attempt: 0,
        };
        Arc::new(Self { length, limit, state: Mutex::new(state) })
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
        let frame = match ready!(Pin::new(rest).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                state.replayable = false;
                return Poll::Ready(Some(Err(error.into())));
            }
            None => {
                state.rest = None;
                return Poll::Ready(None);
            }
        };
        if let Some(data) = frame.data_ref() {
            state.kept_bytes += data.len();
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

pub async fn read(mut body: Incoming, limit: usize) -> hyper::Result<Read> {
    use http_body_util::BodyExt as _;
    let length = body.size_hint();
    if length.lower() > limit as u64 {
        return Ok(Read::Beyond(Source::new(body, limit)));
    }
    let (mut kept, mut bytes) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            bytes += data.len();
            kept.push(data);
            if bytes > limit {
                return Ok(Read::Beyond(Source::begun(kept, body, length, limit)));
            }
        }
    }
    Ok(Read::Whole(match kept.len() {
        1 => kept.swap_remove(0),
        _ => kept.concat().into(),
    }))
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
    /// Runs out when the engine has been silent for too long. A client that reads nothing makes no
    /// engine silent: it begins when more is asked for and nothing is there.
    silence: Option<Pin<Box<Sleep>>>,
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
        let mut reply = Self { body, held: Some(held), silence: None };
        reply.end_if_ended();
        reply
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.silence = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let longest = self.held.as_ref().and_then(|held| held.worker.upstream.silence_timeout);
        let Some(longest) = longest else { return Poll::Pending };
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep(longest)));
        ready!(silence.as_mut().poll(context));
        Poll::Ready(Some(Err(format!("nothing for {longest:?}").into())))
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
