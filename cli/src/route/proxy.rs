//! One request's life: its head made fit for an engine, a worker chosen and counted, the request sent,
//! perhaps again to another worker, and the response's head made fit for the client.

use std::error::Error as _;
use std::net::IpAddr;

use evenkeel::{Error, WorkerId};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{self, Entry, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use serde_json::{Value, json};

use super::body::{self, ClientSilent, Held, Read, Reply, RequestBody, ResponseBody, Source};
use super::cluster::{Cluster, Worker};
use super::json::Object;
use super::options::DpRankIn;
use super::pair;
use super::status::{self, COUNTERS, count};
use super::upstream::Failure;
use super::{Mode, Router};

pub const RANK_HEADER: HeaderName = HeaderName::from_static("x-data-parallel-rank");
pub const RANK_MEMBER: &str = "data_parallel_rank";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// No request claims more tokens than this.
const MAX_TOKENS: u64 = 1 << 24;
/// Of each connection alone, not of what goes through it.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// What is known of a client by its connection.
pub struct Client {
    address: HeaderValue,
    hash: u64,
}

impl Client {
    pub fn new(address: IpAddr) -> Self {
        let address = address.to_canonical().to_string();
        let hash = evenkeel::key(&address);
        Self { address: HeaderValue::try_from(address).expect("digits, dots and colons"), hash }
    }
}

/// What the pools are asked with.
#[derive(Clone, Copy)]
pub struct Cost {
    tokens: u32,
    hash: u64,
}

impl Cost {
    pub fn request<'a>(&self, excluded: &'a [WorkerId]) -> evenkeel::Request<'a> {
        evenkeel::Request { tokens: self.tokens, hash: self.hash, excluded, ..Default::default() }
    }
}

pub type ClientResponse = Response<ResponseBody>;

pub async fn respond(
    router: &Router,
    client: &Client,
    request: Request<Incoming>,
) -> ClientResponse {
    match request.uri().path() {
        "/metrics" => own(&request, status::prometheus(router), "text/plain; version=0.0.4"),
        "/evenkeel/status" => {
            let status = status::json(router).map(|status| format!("{status:#}\n"));
            own(&request, status, "application/json")
        }
        _ => {
            count(&COUNTERS.requests);
            let waiting = Waiting;
            let (mut parts, body) = request.into_parts();
            let cost = cost(router, client, &parts.headers);
            let response = match cost.and_then(|cost| to_engine(&mut parts, client).map(|()| cost))
            {
                Err(refusal) => refusal.response(),
                Ok(cost) => match &router.mode {
                    Mode::Single(cluster) => forward(router, cluster, cost, parts, body).await,
                    Mode::Pairs { prefill, decode } => {
                        // What has no body, such as a question about models, one engine answers.
                        if parts.method == Method::POST && !body.is_end_stream() {
                            pair::forward(router, prefill, decode, cost, parts, body).await
                        } else {
                            forward(router, decode, cost, parts, body).await
                        }
                    }
                },
            };
            std::mem::forget(waiting);
            response
        }
    }
}

/// Dropped where the client leaves before the response's head.
struct Waiting;

impl Drop for Waiting {
    fn drop(&mut self) {
        count(&COUNTERS.client_left);
    }
}

async fn forward(
    router: &Router,
    cluster: &Cluster,
    cost: Cost,
    parts: Parts,
    body: Incoming,
) -> ClientResponse {
    let options = &router.options;
    let payload = if body.is_end_stream() {
        Payload::Empty
    } else if options.dp_rank_in == DpRankIn::Body {
        match body::read(body, options.body_limit, options.client_timeout).await {
            Ok(Read::Whole(bytes)) => Payload::Whole(bytes),
            Ok(Read::Beyond(source)) => Payload::Streamed(source),
            Err(error) => return broken_off(&*error),
        }
    } else {
        Payload::Streamed(Source::new(body, options.body_limit, options.client_timeout))
    };
    let object = match &payload {
        Payload::Whole(bytes) => Object::parse(bytes),
        Payload::Empty | Payload::Streamed(_) => None,
    };
    // Its parts, for a worker, if all of the body can still be had.
    let request = |worker: &Worker| {
        let mut headers = parts.headers.clone();
        let body = match (&payload, &object, &worker.rank_header) {
            (_, Some(object), Some(_)) => {
                let text = object.with(&[(RANK_MEMBER, &worker.rank.to_string())]);
                set_length(&mut headers, &text);
                RequestBody::Whole(Some(text))
            }
            (_, _, rank) => {
                if let Some(rank) = rank {
                    headers.insert(RANK_HEADER, rank.clone());
                }
                payload.body()?
            }
        };
        Some(request_to(worker, &parts.method, &parts.uri, headers, body))
    };

    let mut excluded = Vec::new();
    let mut chosen = match cluster.dispatch(&cost.request(&[])) {
        Ok(chosen) => chosen,
        Err(error) => return refused(&error),
    };
    let Some(mut next) = request(&chosen.worker) else {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "no_body", "the body is gone", None);
    };
    for retries in 0.. {
        let worker = chosen.worker.clone();
        let sent = worker.upstream.send(next, || request(&worker)).await;
        let may_retry = match &sent {
            Ok((response, _)) => response.status() == StatusCode::SERVICE_UNAVAILABLE,
            Err(failure) => failure.may_retry(&parts.method),
        };
        if may_retry && retries < options.retries {
            cluster.exclude_engine(&worker, &mut excluded);
            // It counts on the next worker before it ends on this one.
            if let Ok(other) = cluster.dispatch(&cost.request(&excluded))
                && let Some(request) = request(&other.worker)
            {
                count(&COUNTERS.retries);
                if let Err(failure) = &sent {
                    tracing::debug!(engine = worker.upstream.name, "tried elsewhere: {failure}");
                }
                (chosen, next) = (other, request);
                continue;
            }
        }
        return match sent {
            Ok((response, connection)) => {
                let in_flight = chosen.in_flight;
                to_client(response, Held { in_flight, worker, connection, prefill: None })
            }
            Err(failure) => failed(&worker, &failure),
        };
    }
    unreachable!("the loop has no other end")
}

enum Payload {
    Empty,
    Whole(Bytes),
    Streamed(std::sync::Arc<Source>),
}

impl Payload {
    fn body(&self) -> Option<RequestBody> {
        match self {
            Self::Empty => Some(RequestBody::Empty),
            Self::Whole(bytes) => Some(RequestBody::Whole(Some(bytes.clone()))),
            Self::Streamed(source) => source.body(),
        }
    }
}

pub fn request_to(
    worker: &Worker,
    method: &Method,
    uri: &Uri,
    mut headers: HeaderMap,
    body: RequestBody,
) -> Request<RequestBody> {
    headers.insert(header::HOST, worker.upstream.authority.clone());
    let mut request = Request::new(body);
    *request.method_mut() = method.clone();
    *request.uri_mut() = uri.clone();
    *request.headers_mut() = headers;
    request
}

pub fn set_length(headers: &mut HeaderMap, body: &Bytes) {
    headers.insert(header::CONTENT_LENGTH, body.len().into());
}

/// Why a request is not even given a worker.
struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Refusal {
    fn response(&self) -> ClientResponse {
        error(self.status, self.code, &self.message, None)
    }
}

/// What the request costs its worker, and what its placement goes by.
fn cost(router: &Router, client: &Client, headers: &HeaderMap) -> Result<Cost, Refusal> {
    let options = &router.options;
    let number = |value: &HeaderValue| value.to_str().ok()?.trim().parse::<u64>().ok();
    let stated = options.tokens_header.as_ref().and_then(|name| headers.get(name));
    let tokens = match stated {
        Some(value) => number(value).ok_or_else(|| {
            let name = options.tokens_header.as_ref().map_or("", HeaderName::as_str);
            let message = format!("{name} is {value:?}; a whole number is allowed");
            Refusal { status: StatusCode::BAD_REQUEST, code: "invalid_tokens", message }
        })?,
        None => headers.get(header::CONTENT_LENGTH).and_then(number).unwrap_or(0) / 4,
    };
    let hash = match headers.get(&options.hash_header) {
        Some(session) => evenkeel::key(&String::from_utf8_lossy(session.as_bytes())),
        None => client.hash,
    };
    Ok(Cost { tokens: tokens.min(MAX_TOKENS) as u32, hash })
}

/// Makes the head of a request one for an engine, but for what depends on which engine.
fn to_engine(parts: &mut Parts, client: &Client) -> Result<(), Refusal> {
    let headers = &mut parts.headers;
    // HTTP/2 that may as well stay HTTP/1.1 is the one upgrade that is only an offer.
    let upgrade = headers.get(header::UPGRADE).filter(|protocol| *protocol != "h2c");
    if upgrade.is_some() || parts.method == Method::CONNECT {
        return Err(Refusal {
            status: StatusCode::NOT_IMPLEMENTED,
            code: "upgrade_not_supported",
            message: "upgrades and tunnels are not supported; use plain HTTP requests".into(),
        });
    }
    let wants_trailers = headers
        .get_all(header::TE)
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| tokens(value).any(|te| te == "trailers")));
    remove_hop_by_hop(headers);
    if wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    // The router asks its client itself to go on, when it reads the body.
    headers.remove(header::EXPECT);
    headers.remove(RANK_HEADER);
    match headers.entry(FORWARDED_FOR) {
        Entry::Vacant(entry) => {
            entry.insert(client.address.clone());
        }
        Entry::Occupied(mut entry) => {
            let mut list = Vec::new();
            for value in entry.iter() {
                list.extend_from_slice(value.as_bytes());
                list.extend_from_slice(b", ");
            }
            list.extend_from_slice(client.address.as_bytes());
            if let Ok(list) = HeaderValue::from_bytes(&list) {
                entry.insert(list);
            }
        }
    }
    if let Some(host) = headers.remove(header::HOST)
        && !headers.contains_key(FORWARDED_HOST)
    {
        headers.insert(FORWARDED_HOST, host);
    }
    if parts.uri.authority().is_some() {
        let path = parts.uri.path_and_query().cloned();
        parts.uri = path.unwrap_or(PathAndQuery::from_static("/")).into();
    }
    Ok(())
}

/// Makes an engine's response one for the client.
pub fn to_client(response: Response<Incoming>, held: Held) -> ClientResponse {
    let (mut head, body) = response.into_parts();
    // Of two lengths the chunks' is the true one.
    if head.headers.contains_key(header::TRANSFER_ENCODING) {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let message = "the engine switched protocols unasked";
        let engine = Some(held.worker.upstream.name.as_str());
        return error(StatusCode::BAD_GATEWAY, "engine_invalid_response", message, engine);
    }
    remove_hop_by_hop(&mut head.headers);
    head.version = Version::HTTP_11;
    Response::from_parts(head, ResponseBody::Engine(Reply::new(body, held)))
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderValue> = headers.get_all(header::CONNECTION).iter().cloned().collect();
        for name in named.iter().flat_map(|value| tokens(value.to_str().unwrap_or_default())) {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

fn tokens(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|token| !token.is_empty())
}

/// The router's own answer to a question about itself.
fn own(
    request: &Request<Incoming>,
    text: Result<String, Error>,
    content_type: &'static str,
) -> ClientResponse {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response =
            error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "GET is allowed", None);
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match text {
        Ok(text) => {
            let mut response = Response::new(ResponseBody::own(text));
            let content_type = HeaderValue::from_static(content_type);
            response.headers_mut().insert(header::CONTENT_TYPE, content_type);
            response
        }
        Err(busy) => error(StatusCode::INTERNAL_SERVER_ERROR, "busy", &busy.to_string(), None),
    }
}

/// There is no worker for the request.
pub fn refused(why: &Error) -> ClientResponse {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    match why {
        Error::Saturated | Error::Overflow => {
            count(&COUNTERS.saturated);
            let mut response = error(status, "saturated", &why.to_string(), None);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            response
        }
        _ => {
            count(&COUNTERS.empty);
            error(status, "no_worker", &why.to_string(), None)
        }
    }
}

/// The engine gave no response.
pub fn failed(worker: &Worker, failure: &Failure) -> ClientResponse {
    if let Failure::Body(error) = failure {
        return broken_off(error.source().unwrap_or(error));
    }
    count(&COUNTERS.failed);
    let engine = worker.upstream.name.as_str();
    tracing::debug!(engine, "no response: {failure}");
    let message = format!("engine {engine}: {failure}");
    error(failure.status(), failure.code(), &message, Some(engine))
}

/// Its response can't be had any more.
pub fn gone(worker: &Worker) -> ClientResponse {
    let engine = worker.upstream.name.as_str();
    let message = format!("engine {engine}: the response is gone");
    error(StatusCode::BAD_GATEWAY, "engine_closed", &message, Some(engine))
}

/// The client sent no whole body.
pub fn broken_off(cause: &(dyn std::error::Error + 'static)) -> ClientResponse {
    count(&COUNTERS.client_left);
    let message = format!("the request's body broke off: {cause}");
    match cause.is::<ClientSilent>() {
        true => error(StatusCode::REQUEST_TIMEOUT, "body_timeout", &message, None),
        false => error(StatusCode::BAD_REQUEST, "incomplete_body", &message, None),
    }
}

pub fn error(
    status: StatusCode,
    code: &str,
    message: &str,
    engine: Option<&str>,
) -> ClientResponse {
    let kind = if status.is_client_error() { "invalid_request_error" } else { "server_error" };
    let mut body: Value = json!({ "error": { "message": message, "type": kind, "code": code } });
    if let Some(engine) = engine {
        body["error"]["engine"] = engine.into();
    }
    let mut response = Response::new(ResponseBody::own(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}
