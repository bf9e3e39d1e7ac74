//! A streaming reverse proxy: it chooses an engine for each request and counts the request there until
//! its response ends, whichever way.
//! `cargo run --example tokio_router 127.0.0.1:8000 127.0.0.1:30000 127.0.0.1:30001`, and its counts:
//! `curl http://127.0.0.1:8000/counts`

use evenkeel::{Error, InFlight, Pool, PoolConfig, WorkerConfig, WorkerId};
use http_body_util::{BodyExt as _, Full, Limited, combinators::BoxBody};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName};
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::{Request, Response, StatusCode, Version, server::conn::http1, service::service_fn};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

const MAX_IN_FLIGHT: u32 = 256;
const MAX_REQUEST_BYTES: usize = 16 << 20;

struct Router {
    pool: Pool,
    engines: HashMap<WorkerId, Authority>,
    client: Client<HttpConnector, Full<Bytes>>,
}

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

async fn answer(router: Arc<Router>, request: Request<Incoming>) -> Answer {
    let (mut head, body) = request.into_parts();
    if head.uri.path() == "/counts" {
        return say(StatusCode::OK, counts(&router.pool));
    }
    // Whole, so that it can be sent again; what streams is the response.
    let Ok(body) = Limited::new(body, MAX_REQUEST_BYTES).collect().await else {
        return say(StatusCode::PAYLOAD_TOO_LARGE, "the request is too long, or broken off");
    };
    let body = body.to_bytes();
    let tokens = (body.len() / 4) as u32;
    let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
    forget_hop(&mut head.headers);
    head.headers.remove(header::HOST); // The client writes the engine's.
    head.headers.remove(header::EXPECT); // Answered above, by reading.
    head.version = Version::HTTP_11;

    let mut refused = Vec::new();
    loop {
        let ask = evenkeel::Request { tokens, excluded: &refused, ..Default::default() };
        let in_flight = match router.pool.dispatch(&ask) {
            // From here on the request ends with whatever drops this future, a client that leaves too.
            Ok(ticket) => router.pool.guard_owned(ticket),
            Err(error) => {
                let mut answer = say(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
                if error == Error::Saturated {
                    answer.headers_mut().insert(header::RETRY_AFTER, 1.into());
                }
                return answer;
            }
        };
        let engine = &router.engines[&in_flight.worker()];
        let Ok(uri) = format!("http://{engine}{path}").parse() else {
            return say(StatusCode::BAD_REQUEST, "the request has no path");
        };
        head.uri = uri;
        match router.client.request(Request::from_parts(head.clone(), body.clone().into())).await {
            Ok(mut response) => {
                forget_hop(response.headers_mut());
                *response.version_mut() = Version::HTTP_11;
                // The body's drop is the end: after its last byte, or when engine or client leave.
                return response.map(|body| body.map_frame(owner_of(in_flight)).boxed());
            }
            Err(error) if error.is_connect() => refused.push(in_flight.worker()),
            Err(error) => return say(StatusCode::BAD_GATEWAY, format!("{engine}: {error}")),
        }
    }
}

/// Changes nothing; it is there to own the guard.
fn owner_of<F>(in_flight: InFlight<'static>) -> impl FnMut(F) -> F {
    move |frame| {
        let _ = &in_flight;
        frame
    }
}

/// Removes what is between two neighbours alone.
fn forget_hop(headers: &mut HeaderMap) {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> = values
        .flat_map(|value| value.split(',').filter_map(|name| name.trim().parse().ok()))
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in ["connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"] {
        headers.remove(name);
    }
}

/// A line an engine: requests in flight, requests that ended.
fn counts(pool: &Pool) -> String {
    let rows = pool.stats().unwrap_or_default().into_iter();
    rows.map(|row| format!("{} {} {}\n", row.label, row.in_flight, row.finished)).collect()
}

fn say(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()).map_err(|never| match never {}).boxed());
    *answer.status_mut() = status;
    answer
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let listen = args.next().ok_or("which address to listen on, and which engines?")?;
    let pool = Pool::new(PoolConfig::default())?;
    let mut engines = HashMap::new();
    for engine in args {
        let config =
            WorkerConfig { label: &engine, max_in_flight: MAX_IN_FLIGHT, ..Default::default() };
        engines.insert(pool.add(evenkeel::key(&engine), config)?, engine.parse()?);
    }
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(Duration::from_secs(2)));
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let router = Arc::new(Router { pool, engines, client });

    let listener = TcpListener::bind(listen).await?;
    println!("http://{}", listener.local_addr()?);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await; // Too many files are open.
            continue;
        };
        let _ = stream.set_nodelay(true); // Fails if its client has left, and so does what follows.
        let router = router.clone();
        let service = service_fn(move |request| {
            let router = router.clone();
            async { Ok::<_, Infallible>(answer(router, request).await) }
        });
        let mut server = http1::Builder::new();
        let server =
            server.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
        tokio::spawn(server); // Its error is that its client left.
    }
}
