//! A request on two engines at once: one computes its prompt, the other, which the client hears,
//! its tokens. They find each other by the bootstrap fields that SGLang's engines take.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel::InFlight;
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use tokio::select;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Router;
use super::body::{self, Held, Read, RequestBody};
use super::cluster::{Chosen, Cluster, Worker};
use super::json::Object;
use super::options::{DpRankIn, PrefillCountsTo};
use super::proxy::{self, ClientResponse, Cost};
use super::status::{COUNTERS, count};
use super::upstream::{Connection, Failure};

/// How much longer than decode a prefill may talk.
const LONGEST_REST: Duration = Duration::from_secs(10);

pub async fn forward(
    router: &Router,
    prefill: &Cluster,
    decode: &Cluster,
    cost: Cost,
    parts: Parts,
    body: Incoming,
) -> ClientResponse {
    let options = &router.options;
    let bytes = match body::read(body, options.body_limit, options.client_timeout).await {
        Ok(Read::Whole(bytes)) => bytes,
        Ok(Read::Beyond(_)) => {
            let message = format!("a body of a pair has at most {} bytes", options.body_limit);
            return proxy::error(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", &message, None);
        }
        Err(error) => return proxy::broken_off(&*error),
    };
    let Some(object) = Object::parse(&bytes) else {
        let message = "the body is no JSON object; prefill-decode pairs need one";
        return proxy::error(StatusCode::BAD_REQUEST, "invalid_json", message, None);
    };

    let choose = |cluster: &Cluster, excluded: &[_]| cluster.dispatch(&cost.request(excluded));
    let both = choose(prefill, &[]).and_then(|one| Ok((one, choose(decode, &[])?)));
    let mut pair = match both {
        Ok(pair) => pair,
        Err(error) => return proxy::refused(&error),
    };
    let (mut no_prefill, mut no_decode) = (Vec::new(), Vec::new());
    for retries in 0.. {
        let (on_prefill, on_decode) = (pair.0.worker.clone(), pair.1.worker.clone());
        let end = match attempt(router, &parts, &object, pair).await {
            Ok(response) => return response,
            Err(end) => end,
        };
        if !end.may_retry || retries == options.retries {
            return (end.response)();
        }
        let failing = if end.of_prefill { &on_prefill } else { &on_decode };
        let (cluster, excluded) = match end.of_prefill {
            true => (prefill, &mut no_prefill),
            false => (decode, &mut no_decode),
        };
        cluster.exclude_engine(failing, excluded);
        let both =
            choose(prefill, &no_prefill).and_then(|one| Ok((one, choose(decode, &no_decode)?)));
        match both {
            Ok(next) => pair = next,
            Err(_) => return (end.response)(),
        }
        count(&COUNTERS.retries);
    }
    unreachable!("the loop has no other end")
}

/// A pair that did not come about.
struct End {
    of_prefill: bool,
    may_retry: bool,
    /// What the client hears if no other pair does.
    response: Box<dyn FnOnce() -> ClientResponse + Send>,
}

async fn attempt(
    router: &Router,
    parts: &Parts,
    object: &Object<'_>,
    (on_prefill, on_decode): (Chosen, Chosen),
) -> Result<ClientResponse, End> {
    let bootstrap = Bootstrap::new(&on_prefill.worker, object.batch_size());
    let request = |worker: &Worker| {
        let in_body = router.options.dp_rank_in == DpRankIn::Body;
        let text = bootstrap.body(object, worker, in_body);
        let mut headers = parts.headers.clone();
        proxy::set_length(&mut headers, &text);
        if let Some(rank) = worker.rank_header.as_ref().filter(|_| !in_body) {
            headers.insert(proxy::RANK_HEADER, rank.clone());
        }
        let body = RequestBody::Whole(Some(text));
        proxy::request_to(worker, &parts.method, &parts.uri, headers, body)
    };
    let counts_to = router.options.prefill_counts_to;
    let mut prefill = PrefillRun::start(on_prefill, request, counts_to);
    let Chosen { worker, in_flight } = on_decode;
    let sent = {
        let decode = worker.upstream.send(request(&worker), || Some(request(&worker)));
        tokio::pin!(decode);
        select! {
            biased;
            // Decode, which would wait for it, is cancelled with the end of this block.
            failed = prefill.failed() => Err(failed),
            sent = &mut decode => Ok(sent),
        }
    };
    match sent {
        Ok(Ok((response, connection))) => {
            let refused =
                response.status().is_client_error() || response.status().is_server_error();
            let may_retry = response.status() == StatusCode::SERVICE_UNAVAILABLE;
            // A decode that was refused has no use for its prefill.
            let prefill = (!refused).then_some(prefill);
            let held = Held { in_flight, worker, connection, prefill };
            let response = || proxy::to_client(response, held);
            match may_retry {
                true => Err(End { of_prefill: false, may_retry, response: Box::new(response) }),
                false => Ok(response()),
            }
        }
        Ok(Err(failure)) => Err(End {
            of_prefill: false,
            may_retry: failure.may_retry(&parts.method),
            response: Box::new(move || proxy::failed(&worker, &failure)),
        }),
        Err(PrefillFailure::Refused(response, connection)) => {
            let may_retry = response.status() == StatusCode::SERVICE_UNAVAILABLE;
            let worker = prefill.worker.clone();
            let in_flight = prefill.in_flight.take();
            let response = move || match in_flight {
                Some(in_flight) => {
                    let held = Held { in_flight, worker, connection, prefill: None };
                    proxy::to_client(response, held)
                }
                None => proxy::gone(&worker),
            };
            Err(End { of_prefill: true, may_retry, response: Box::new(response) })
        }
        Err(PrefillFailure::None(failure)) => Err(of_prefill(&prefill, failure)),
        Err(PrefillFailure::Broken(error)) => {
            Err(End { may_retry: true, ..of_prefill(&prefill, Failure::Invalid(error)) })
        }
    }
}

/// The prefill engine gave no response, or not all of it.
fn of_prefill(prefill: &PrefillRun, failure: Failure) -> End {
    let worker = prefill.worker.clone();
    End {
        of_prefill: true,
        may_retry: failure.may_retry(&Method::POST),
        response: Box::new(move || proxy::failed(&worker, &failure)),
    }
}

/// By which the two engines of a pair find each other.
struct Bootstrap {
    host: String,
    port: String,
    room: String,
}

impl Bootstrap {
    /// One room, or one for each prompt of a list.
    fn new(prefill: &Worker, prompts: Option<usize>) -> Self {
        let upstream = &prefill.upstream;
        let host = serde_json::Value::from(upstream.host.as_str()).to_string();
        let port = upstream.bootstrap_port.to_string();
        match prompts {
            None => Self { host, port, room: room(prefill).to_string() },
            Some(prompts) => {
                let list = |one: &dyn Fn() -> String| {
                    let all: Vec<String> = (0..prompts).map(|_| one()).collect();
                    format!("[{}]", all.join(","))
                };
                Self {
                    host: list(&|| host.clone()),
                    port: list(&|| port.clone()),
                    room: list(&|| room(prefill).to_string()),
                }
            }
        }
    }

    fn body(&self, object: &Object<'_>, worker: &Worker, with_rank: bool) -> Bytes {
        let rank = worker.rank.to_string();
        let members = [
            ("bootstrap_host", self.host.as_str()),
            ("bootstrap_port", &self.port),
            ("bootstrap_room", &self.room),
            (proxy::RANK_MEMBER, &rank),
        ];
        let with_rank = with_rank && worker.dp_size > 1;
        object.with(if with_rank { &members } else { &members[..3] })
    }
}

/// Random, of 63 bits; an engine that derives the prefill rank from it, as SGLang's may, finds the
/// one that was chosen.
fn room(prefill: &Worker) -> u64 {
    let dp_size = u64::from(prefill.dp_size);
    let room = fastrand::u64(..(1 << 63) - dp_size);
    room - room % dp_size + u64::from(prefill.rank)
}

enum PrefillFailure {
    None(Failure),
    /// It answered so.
    Refused(Response<Incoming>, Connection),
    /// Its response broke off.
    Broken(hyper::Error),
}

/// The prefill side of a pair, cancelled when this is dropped.
pub struct PrefillRun {
    worker: Arc<Worker>,
    /// None once it counts no more.
    in_flight: Option<InFlight<'static>>,
    counts_to: PrefillCountsTo,
    task: JoinHandle<Result<(), PrefillFailure>>,
    ended: bool,
}

impl PrefillRun {
    fn start(
        chosen: Chosen,
        request: impl Fn(&Worker) -> Request<RequestBody>,
        counts_to: PrefillCountsTo,
    ) -> Self {
        let Chosen { worker, in_flight } = chosen;
        let (first, again) = (request(&worker), request(&worker));
        let task = tokio::spawn(run(worker.clone(), first, again));
        Self { worker, in_flight: Some(in_flight), counts_to, task, ended: false }
    }

    async fn failed(&mut self) -> PrefillFailure {
        std::future::poll_fn(|context| self.poll_failed(context)).await
    }

    /// Pending if it ended well.
    fn poll_failed(&mut self, context: &mut Context<'_>) -> Poll<PrefillFailure> {
        if self.ended {
            return Poll::Pending;
        }
        match Pin::new(&mut self.task).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => {
                self.ended = true;
                match result {
                    Ok(Err(failure)) => Poll::Ready(failure),
                    Ok(Ok(())) => {
                        // It ends with the first token, also if decode keeps that for itself yet.
                        self.first_token();
                        Poll::Pending
                    }
                    // It is cancelled by its owner alone, which asks no more then.
                    Err(_) => Poll::Pending,
                }
            }
        }
    }

    /// Why the response has to break off, now that its head is sent.
    pub fn poll_failure(&mut self, context: &mut Context<'_>) -> Option<String> {
        let Poll::Ready(failure) = self.poll_failed(context) else { return None };
        let why = match failure {
            PrefillFailure::None(failure) => failure.to_string(),
            PrefillFailure::Refused(response, _) => format!("status {}", response.status()),
            PrefillFailure::Broken(error) => format!("its response broke off: {error}"),
        };
        tracing::debug!(engine = self.worker.upstream.name, "prefill failed: {why}");
        Some(why)
    }

    pub fn first_token(&mut self) {
        if self.counts_to == PrefillCountsTo::FirstToken {
            self.in_flight = None;
        }
    }

    /// Decode has ended well; what prefill may still have to say is read for a while, so that its
    /// connection can be used again.
    pub fn let_end(mut self) {
        self.ended = true;
        let task = self.task.abort_handle();
        if !task.is_finished() {
            tokio::spawn(async move {
                sleep(LONGEST_REST).await;
                task.abort();
            });
        }
    }
}

impl Drop for PrefillRun {
    fn drop(&mut self) {
        if !self.ended {
            self.task.abort();
        }
    }
}

async fn run(
    worker: Arc<Worker>,
    first: Request<RequestBody>,
    again: Request<RequestBody>,
) -> Result<(), PrefillFailure> {
    let upstream = &worker.upstream;
    let sent = upstream.send(first, || Some(again)).await;
    let (mut response, connection) = sent.map_err(PrefillFailure::None)?;
    if response.status().is_client_error() || response.status().is_server_error() {
        return Err(PrefillFailure::Refused(response, connection));
    }
    while let Some(frame) = response.frame().await {
        frame.map_err(PrefillFailure::Broken)?;
    }
    upstream.keep(connection);
    Ok(())
}
