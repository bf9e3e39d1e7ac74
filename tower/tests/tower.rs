//! The layer around clients whose responses the test holds, polled by hand, so that nothing waits.

use evenkeel::{Pool, PoolConfig, WorkerConfig, WorkerId};
use evenkeel_tower::{Counted, DispatchLayer, Error, ResponseFuture};
use http::{Request, Response};
use http_body::{Body, Frame};
use std::future::{self, Pending, Ready};
use std::io;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use tower::retry::{Policy, RetryLayer};
use tower::{Layer as _, Service, service_fn};

/// A body of these parts, the last one first.
struct Parts(Vec<io::Result<&'static [u8]>>);

impl Body for Parts {
    type Data = &'static [u8];
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<&'static [u8]>>>> {
        Poll::Ready(self.0.pop().map(|part| part.map(Frame::data)))
    }
}

type Answer = io::Result<Response<Parts>>;

fn pool_of(workers: u64, max_in_flight: u32) -> Pool {
    let pool = Pool::new(PoolConfig::default()).expect("memory");
    for key in 0..workers {
        pool.add(key, WorkerConfig { max_in_flight, ..Default::default() }).expect("room");
    }
    pool
}

/// Requests and tokens in flight.
fn in_flight(pool: &Pool) -> (u64, u32) {
    let tokens = pool.stats().expect("not busy").iter().map(|row| row.tokens).sum();
    (pool.totals().expect("not busy").in_flight, tokens)
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn now<F: Future>(future: F) -> F::Output {
    match poll(pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it has to wait"),
    }
}

fn frame(body: &mut Counted<Parts>) -> Option<io::Result<Frame<&'static [u8]>>> {
    now(future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)))
}

fn asked(request: &Request<()>) -> evenkeel::Request<'_> {
    let excluded = request.extensions().get::<Failed>().map_or(&[][..], |failed| &failed.0);
    evenkeel::Request { tokens: 7, excluded, ..Default::default() }
}

/// Calls a client that answers so through the layer.
fn call<F: Future<Output = Answer>>(pool: &Pool, client: impl Fn() -> F) -> ResponseFuture<F> {
    let mut service =
        DispatchLayer::new(pool.clone(), asked).layer(service_fn(|request: Request<()>| {
            assert!(request.extensions().get::<WorkerId>().is_some(), "a client knows the worker");
            client()
        }));
    now(future::poll_fn(|cx| service.poll_ready(cx))).expect("a service_fn is ready");
    service.call(Request::new(()))
}

fn streamed(pool: &Pool) -> Counted<Parts> {
    let parts = || Parts(vec![Err(io::Error::other("broken off")), Ok(b"b"), Ok(b"a")]);
    let response = call(pool, || future::ready(Ok(Response::new(parts()))));
    now(response).expect("an answer").into_body()
}

#[test]
fn a_request_counts_until_its_body_is_dropped() {
    let pool = pool_of(2, 0);
    let mut body = streamed(&pool);
    assert_eq!(in_flight(&pool), (1, 7));
    assert!(frame(&mut body).is_some_and(|frame| frame.is_ok()));
    assert_eq!(in_flight(&pool), (1, 7));
    drop(body);
    assert_eq!(in_flight(&pool), (0, 0));
}

#[test]
fn a_request_ends_with_its_bodys_failure_or_end_also_if_the_body_is_kept() {
    let pool = pool_of(2, 0);
    let mut body = streamed(&pool);
    while frame(&mut body).is_some_and(|frame| frame.is_ok()) {
        assert_eq!(in_flight(&pool), (1, 7));
    }
    assert_eq!(in_flight(&pool), (0, 0), "failed");

    let response = now(call(&pool, || future::ready(Ok(Response::new(Parts(vec![Ok(b"a")]))))));
    let mut body = response.expect("an answer").into_body();
    assert!(frame(&mut body).is_some());
    assert_eq!(in_flight(&pool), (1, 7));
    assert!(frame(&mut body).is_none());
    assert_eq!(in_flight(&pool), (0, 0), "ended");
}

#[test]
fn a_request_counts_before_the_head_until_its_future_is_dropped() {
    let pool = pool_of(2, 0);
    let mut response = Box::pin(call(&pool, future::pending::<Answer>));
    assert_eq!(in_flight(&pool), (1, 7), "also if it is never polled");
    assert!(poll(response.as_mut()).is_pending());
    assert_eq!(in_flight(&pool), (1, 7));
    drop(response);
    assert_eq!(in_flight(&pool), (0, 0));
}

#[test]
fn what_no_worker_takes_is_refused_and_not_sent() {
    let unsent = || -> Pending<Answer> { panic!("sent") };
    let refused = now(call(&pool_of(0, 0), unsent)).err();
    assert!(matches!(refused, Some(Error::Refused(evenkeel::Error::Empty))), "{refused:?}");

    let pool = pool_of(1, 1);
    let body = streamed(&pool);
    let refused = now(call(&pool, unsent)).err();
    assert!(matches!(refused, Some(Error::Refused(evenkeel::Error::Saturated))), "{refused:?}");
    drop(body);
    streamed(&pool);
}

/// Workers that a request has failed on.
#[derive(Clone, Default)]
struct Failed(Vec<WorkerId>);

#[derive(Clone)]
struct Elsewhere;

impl<R> Policy<Request<()>, R, Error<io::Error>> for Elsewhere {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        request: &mut Request<()>,
        result: &mut Result<R, Error<io::Error>>,
    ) -> Option<Ready<()>> {
        let Err(Error::Failed { worker: Some(worker), .. }) = result else { return None };
        request.extensions_mut().get_or_insert_default::<Failed>().0.push(*worker);
        Some(future::ready(()))
    }

    fn clone_request(&mut self, request: &Request<()>) -> Option<Request<()>> {
        Some(request.clone())
    }
}

#[test]
fn a_retry_goes_elsewhere_until_nobody_is_left() {
    let pool = pool_of(3, 0);
    let (tell, tried) = mpsc::channel();
    let client = service_fn(move |request: Request<()>| {
        tell.send(request.extensions().get::<WorkerId>().copied()).expect("it listens");
        future::ready(Answer::Err(io::ErrorKind::ConnectionRefused.into()))
    });
    let layered = DispatchLayer::new(pool.clone(), asked).layer(client);
    let mut service = RetryLayer::new(Elsewhere).layer(layered);
    now(future::poll_fn(|cx| service.poll_ready(cx))).expect("a service_fn is ready");
    let refused = now(service.call(Request::new(()))).err();
    assert!(matches!(refused, Some(Error::Refused(evenkeel::Error::Empty))), "{refused:?}");

    drop(service);
    let mut tried: Vec<_> = tried.iter().collect();
    tried.sort();
    let all: Vec<_> = pool.stats().expect("not busy").iter().map(|row| Some(row.worker)).collect();
    assert_eq!(tried, all, "each once");
    assert_eq!(in_flight(&pool), (0, 0));
}
