//! The endpoints, apart from generation itself.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::generate::{self, Api};
use super::report::Record;
use super::{Engine, Order, Role, loads, unix_ms};

pub type Body = UnsyncBoxBody<Bytes, io::Error>;

const BODY_LIMIT: usize = 16 << 20;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html");

/// An answer that says why not.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: String,
}

impl Refusal {
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    fn response(&self) -> Response<Body> {
        let body = json!({ "object": "error", "message": self.message,
            "type": self.status.canonical_reason(), "code": self.status.as_u16() });
        with_status(self.status, json(&body))
    }
}

pub async fn respond(
    engine: &Arc<Engine>,
    request: Request<Incoming>,
    order: &OnceLock<Order>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path();
    let allowed: &[_] = match path {
        "/health" | "/health_generate" | "/v1/models" | "/server_info" | "/get_server_info"
        | "/model_info" | "/get_model_info" | "/v1/loads" | "/get_load" | "/control/report" => {
            &[Method::GET, Method::HEAD]
        }
        "/control" => &[Method::GET, Method::HEAD, Method::POST],
        "/generate" | "/v1/chat/completions" | "/control/reset" => &[Method::POST],
        _ => {
            let message = format!("there is no {path}");
            return Ok(Refusal { status: StatusCode::NOT_FOUND, message }.response());
        }
    };
    if !allowed.contains(request.method()) {
        let allowed: Vec<_> = allowed.iter().map(Method::as_str).collect();
        let allowed = allowed.join(", ");
        let message = format!("{path} takes {allowed}");
        let mut response = Refusal { status: StatusCode::METHOD_NOT_ALLOWED, message }.response();
        response.headers_mut().extend(allowed.parse().map(|value| (ALLOW, value)));
        return Ok(response);
    }
    let response = match path {
        "/health" | "/health_generate" => Response::new(whole("")),
        "/v1/models" => json(&json!({ "object": "list", "data": [{ "id": "mock",
            "object": "model", "created": 0, "owned_by": "evenkeel", "root": "mock" }] })),
        "/model_info" | "/get_model_info" => {
            json(&json!({ "model_path": "mock", "tokenizer_path": "mock", "is_generation": true }))
        }
        "/server_info" | "/get_server_info" => json(&server_info(engine)),
        "/v1/loads" | "/get_load" => loads(engine, path).await,
        "/control/report" => {
            let state = engine.state();
            json(&state.record.json(&state.ranks, unix_ms()))
        }
        "/control/reset" => {
            let mut state = engine.state();
            state.ranks.reset_counts();
            state.record = Record::new(unix_ms());
            json(&json!({}))
        }
        "/control" if request.method() == Method::POST => {
            control(engine, request, order).await.unwrap_or_else(|refusal| refusal.response())
        }
        "/control" => json(&json!(engine.state().faults)),
        _ => {
            let api = if path == "/generate" { Api::Generate } else { Api::Chat };
            match generate::respond(engine, api, request).await {
                Ok(response) => response,
                Err(refusal) => {
                    engine.state().record.reject(refusal.status.as_u16());
                    refusal.response()
                }
            }
        }
    };
    Ok(response)
}

/// All of it, within the limit.
pub async fn read(body: Incoming) -> Result<Bytes, Refusal> {
    match Limited::new(body, BODY_LIMIT).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Refusal {
            status: StatusCode::PAYLOAD_TOO_LARGE,
            message: format!("a body has at most {BODY_LIMIT} bytes"),
        }),
        Err(error) => Err(Refusal::bad_request(format!("the body broke off: {error}"))),
    }
}

pub fn whole(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}

pub fn json(body: &Value) -> Response<Body> {
    with_type(JSON, whole(body.to_string()))
}

pub fn with_type(content_type: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn with_status(status: StatusCode, mut response: Response<Body>) -> Response<Body> {
    *response.status_mut() = status;
    response
}

fn server_info(engine: &Engine) -> Value {
    let dp_size = engine.state().faults.dp_size.unwrap_or(engine.options.dp_size);
    let disaggregation_mode = match engine.options.role {
        Role::Both => "null",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    };
    json!({ "model_path": "mock", "served_model_name": "mock", "dp_size": dp_size, "tp_size": dp_size,
        "enable_dp_attention": dp_size > 1, "disaggregation_mode": disaggregation_mode,
        "max_running_requests": engine.options.max_running_requests,
        "version": concat!("mock-", env!("CARGO_PKG_VERSION")) })
}

async fn loads(engine: &Engine, path: &str) -> Response<Body> {
    // Told late, but as it is now.
    let (faults, told) = {
        let mut state = engine.state();
        state.record.poll(unix_ms());
        let told = loads::told(state.loads(), &state.frozen, &state.faults);
        (state.faults.clone(), told)
    };
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    if faults.loads_hang {
        std::future::pending::<()>().await;
    }
    sleep(Duration::from_millis(faults.loads_delay_ms)).await;
    if let Some(status) = faults.loads_status() {
        return Refusal { status, message: "as asked for by /control".into() }.response();
    }
    if path == "/get_load" {
        return with_type(JSON, whole(loads::list(&told)));
    }
    let content_type = if faults.loads_shape == loads::Shape::Html { HTML } else { JSON };
    match loads::v1(&told, faults.loads_shape, &now) {
        Some(body) => with_type(content_type, whole(body)),
        None => {
            let message = "this engine is too old for /v1/loads".into();
            Refusal { status: StatusCode::NOT_FOUND, message }.response()
        }
    }
}

async fn control(
    engine: &Engine,
    request: Request<Incoming>,
    order: &OnceLock<Order>,
) -> Result<Response<Body>, Refusal> {
    let body = read(request.into_body()).await?;
    let text = str::from_utf8(&body).map_err(|error| Refusal::bad_request(error.to_string()))?;
    let mut faults: super::Faults = text.parse().map_err(Refusal::bad_request)?;
    let given = match (faults.exit.take(), faults.down_ms.take()) {
        (Some(code), _) => Some(Order::Exit(code)),
        (None, Some(ms)) => Some(Order::Down(Duration::from_millis(ms))),
        (None, None) => None,
    };
    let mut response = json(&json!(faults));
    engine.misbehave(faults);
    if let Some(given) = given {
        // It is carried out when this connection has ended.
        order.set(given).ok();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}
