//! A tower layer in front of an HTTP client: it chooses a worker of a pool for each request, tells the
//! client by an extension of the request, and counts the request there until its response body ends.
//!
//! ```
//! use evenkeel::{Pool, WorkerId};
//! use evenkeel_tower::DispatchLayer;
//! use http::{Request, Response};
//! use tower::{Layer as _, service_fn};
//!
//! # fn layered(pool: Pool) {
//! let client = service_fn(|request: Request<String>| async move {
//!     let worker: &WorkerId = request.extensions().get().unwrap(); // Where to send it.
//!     Ok::<_, std::io::Error>(Response::new(request.into_body()))
//! });
//! let service = DispatchLayer::new(pool, |request: &Request<String>| evenkeel::Request {
//!     tokens: request.body().len() as u32 / 4,
//!     ..Default::default()
//! }).layer(client);
//! # }
//! ```
//!
//! # Readiness
//! Ready means that the client is ready, and says nothing of workers: which of them may take a request
//! depends on the request, which `poll_ready` does not have. What no worker takes fails at once with
//! [`Error::Refused`] (a 503), instead of waiting. A client that has a service for each worker waits for
//! the chosen one in its future: the request counts there meanwhile, so that others go elsewhere.
//!
//! Retries belong around this layer (`tower::retry`): each try is a dispatch. [`Error::Failed`] names the
//! worker; pass it back as [`excluded`](evenkeel::Request::excluded), by an extension of the request.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use evenkeel::{InFlight, Pool, WorkerId};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower_layer::Layer;
use tower_service::Service;

/// Makes a [`Dispatch`] of a client.
#[derive(Clone)]
pub struct DispatchLayer<A> {
    pool: Pool,
    ask: A,
}

impl<A> DispatchLayer<A> {
    /// Chooses workers of this pool, by what `ask` says of a request.
    pub fn new<B>(pool: Pool, ask: A) -> Self
    where
        A: for<'r> Fn(&'r Request<B>) -> evenkeel::Request<'r>,
    {
        Self { pool, ask }
    }
}

impl<S, A: Clone> Layer<S> for DispatchLayer<A> {
    type Service = Dispatch<S, A>;

    fn layer(&self, client: S) -> Dispatch<S, A> {
        Dispatch { client, layer: self.clone() }
    }
}

/// A client whose requests have a worker.
#[derive(Clone)]
pub struct Dispatch<S, A> {
    client: S,
    layer: DispatchLayer<A>,
}

impl<S, A, B, C> Service<Request<B>> for Dispatch<S, A>
where
    S: Service<Request<B>, Response = Response<C>>,
    A: for<'r> Fn(&'r Request<B>) -> evenkeel::Request<'r>,
{
    type Response = Response<Counted<C>>;
    type Error = Error<S::Error>;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.client.poll_ready(cx).map_err(|error| Error::Failed { worker: None, error })
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let DispatchLayer { pool, ask } = &self.layer;
        match pool.dispatch(&ask(&request)) {
            Ok(ticket) => {
                let in_flight = pool.guard_owned(ticket);
                request.extensions_mut().insert(in_flight.worker());
                let (response, in_flight) = (self.client.call(request), Some(in_flight));
                ResponseFuture { tried: Tried::Sent { response, in_flight } }
            }
            Err(error) => ResponseFuture { tried: Tried::Refused { error: Some(error) } },
        }
    }
}

pin_project! {
    /// A response to come. With its drop the request ends.
    pub struct ResponseFuture<F> {
        #[pin]
        tried: Tried<F>,
    }
}

pin_project! {
    #[project = TriedProjection]
    enum Tried<F> {
        Sent { #[pin] response: F, in_flight: Option<InFlight<'static>> },
        Refused { error: Option<evenkeel::Error> },
    }
}

impl<F, C, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<C>, E>>,
{
    type Output = Result<Response<Counted<C>>, Error<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().tried.project() {
            TriedProjection::Sent { response, in_flight } => {
                let response = ready!(response.poll(cx));
                let in_flight = in_flight.take();
                let worker = in_flight.as_ref().map(InFlight::worker);
                Poll::Ready(match response {
                    Ok(response) => Ok(response.map(|body| Counted { body, in_flight })),
                    Err(error) => Err(Error::Failed { worker, error }),
                })
            }
            TriedProjection::Refused { error } => {
                Poll::Ready(Err(Error::Refused(error.take().expect("polled once it was ready"))))
            }
        }
    }
}

pin_project! {
    /// A response's body. The request ends with its end, its failure or its drop.
    pub struct Counted<C> {
        #[pin]
        body: C,
        in_flight: Option<InFlight<'static>>,
    }
}

impl<C: Body> Body for Counted<C> {
    type Data = C::Data;
    type Error = C::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<C::Data>, C::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            *this.in_flight = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Why there is no response.
#[derive(Debug)]
pub enum Error<E> {
    /// No worker takes the request; it was not sent.
    Refused(evenkeel::Error),
    /// The client failed.
    Failed {
        /// The worker that the request counted on; none if the client was not ready.
        worker: Option<WorkerId>,
        /// The client's error.
        error: E,
    },
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Failed { error, .. } => error.fmt(f),
        }
    }
}

impl<E: std::error::Error> std::error::Error for Error<E> {}
