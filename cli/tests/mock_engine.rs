//! `evenkeel mock-engine`, as a router and a test of one meet it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Waits for this long are failures; nothing depends on how short they are.
const PATIENCE: Duration = Duration::from_secs(60);

struct Engine {
    child: Child,
    address: String,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A thousand times as fast as real, on a port of its own.
fn engine(options: &[&str]) -> Engine {
    let fast = ["--time-scale", "1000", "--sample-interval", "5ms"];
    start(&[&fast, options].concat())
}

/// Long requests stay for as long as a test may take.
fn slow_engine(options: &[&str]) -> Engine {
    start(&[&["--prefill-time", "1h"], options].concat())
}

fn start(options: &[&str]) -> Engine {
    let mut child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .arg("mock-engine")
        .args(options)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").expect("a URL").to_owned();
    Engine { child, address }
}

impl Engine {
    async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let stream = TcpStream::connect(&self.address).await.expect("the engine listens");
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// On a connection of its own, which ends with the response.
    async fn send(&self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        let mut sender = self.connect().await;
        patiently(sender.send_request(request)).await
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        text(self.send(Request::get(path).body(Full::default()).unwrap()).await.unwrap()).await
    }

    async fn json(&self, path: &str) -> Value {
        let (status, text) = self.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path} is JSON: {text}"))
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, String) {
        text(self.send(post(path, body)).await.unwrap()).await
    }

    async fn control(&self, faults: Value) {
        let (status, text) = self.post("/control", &faults).await;
        assert_eq!(status, StatusCode::OK, "{text}");
    }

    async fn reset(&self) {
        assert_eq!(self.post("/control/reset", &json!({})).await.0, StatusCode::OK);
    }

    /// Of each rank.
    async fn counts(&self, name: &str) -> Vec<u64> {
        let report = self.json("/control/report").await;
        let ranks = report["ranks"].as_array().unwrap();
        ranks.iter().map(|rank| rank[name].as_u64().unwrap()).collect()
    }

    async fn until_counts(&self, name: &str, expected: &[u64]) {
        let reached = async {
            while self.counts(name).await != expected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, reached).await.is_err() {
            panic!("{name} is {:?}, not {expected:?}", self.counts(name).await);
        }
    }

    /// Samples since the last reset, at moments when something was outstanding.
    async fn until_samples(&self, count: u64) -> Value {
        let sampled = async {
            loop {
                let report = self.json("/control/report").await;
                if report["outstanding_cv"]["samples"].as_u64() >= Some(count) {
                    return report;
                }
            }
        };
        patiently(sampled).await
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    async fn ended(&mut self) -> ExitStatus {
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        patiently(ended).await
    }
}

async fn patiently<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, wait).await.expect("it comes to an end")
}

fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    Request::post(path).body(Full::from(body.to_string())).unwrap()
}

async fn text(response: Response<Incoming>) -> (StatusCode, String) {
    let status = response.status();
    let body = patiently(response.into_body().collect()).await.expect("the body is whole");
    let body = body.to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn ask(rank: Option<u64>, tokens: u64) -> Value {
    json!({ "text": "a prompt", "sampling_params": { "max_new_tokens": tokens },
        "data_parallel_rank": rank })
}

fn streamed(mut ask: Value) -> Value {
    ask["stream"] = true.into();
    ask
}

/// The events of a stream, and whether it came to its end.
async fn events(response: Response<Incoming>) -> (Vec<String>, bool) {
    let mut body = response.into_body();
    let (mut text, mut whole) = (String::new(), true);
    while let Some(frame) = patiently(body.frame()).await {
        match frame {
            Ok(frame) => text += str::from_utf8(&frame.into_data().unwrap()).unwrap(),
            Err(_) => whole = false,
        }
    }
    let events = text.split("\n\n").filter(|event| !event.is_empty());
    (events.map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect(), whole)
}

fn names(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn what_a_router_asks_first() {
    let engine = engine(&["--dp-size", "3", "--role", "decode"]);
    assert_eq!(engine.get("/health").await, (StatusCode::OK, String::new()));
    let info = engine.json("/server_info").await;
    assert_eq!((&info["dp_size"], &info["disaggregation_mode"]), (&json!(3), &json!("decode")));
    assert_eq!(engine.json("/v1/models").await["data"][0]["id"], "mock");
}

#[tokio::test]
async fn loads_have_the_real_schema_and_the_truth() {
    let engine = slow_engine(&["--dp-size", "2"]);
    let mut open = Vec::new();
    for rank in [1, 1, 0, 1] {
        let mut ask = ask(Some(rank), 5);
        ask["mock"] = json!({ "input_tokens": 1_000, "cached_tokens": 100 });
        let mut sender = engine.connect().await;
        open.push(tokio::spawn(async move { sender.send_request(post("/generate", &ask)).await }));
    }
    engine.until_counts("outstanding", &[1, 3]).await;
    let loads = engine.json("/v1/loads?include=core").await;
    assert_eq!(names(&loads), ["accelerator", "loads", "num_accelerators", "timestamp", "version"]);
    let busy = &loads["loads"][1];
    assert_eq!(
        names(busy),
        [
            "cache_hit_rate",
            "decode_moments",
            "dp_rank",
            "gen_throughput",
            "max_running_requests",
            "max_total_num_tokens",
            "num_active_tokens",
            "num_running_reqs",
            "num_total_tokens",
            "num_used_tokens",
            "num_waiting_reqs",
            "num_waiting_uncached_tokens",
            "timestamp",
            "token_usage",
            "total_prefill_busy_us",
            "total_prefill_uncached_tokens",
            "utilization",
        ]
    );
    for (name, expected) in [
        ("dp_rank", json!(1)),
        ("num_running_reqs", json!(0)),
        ("num_waiting_reqs", json!(3)),
        ("num_used_tokens", json!(0)),
        ("num_total_tokens", json!(3_000)),
        ("num_waiting_uncached_tokens", json!(2_700)),
        ("cache_hit_rate", json!(0.1)),
    ] {
        assert_eq!(busy[name], expected, "{name}");
    }
    let again = engine.json("/v1/loads").await;
    let timestamp = |loads: &Value| loads["loads"][1]["timestamp"].as_f64().unwrap();
    assert!(timestamp(&again) > timestamp(&loads));
    assert_eq!(
        engine.json("/get_load").await,
        json!([{ "dp_rank": 0, "num_reqs": 1, "num_waiting_reqs": 1, "num_tokens": 1_000 },
            { "dp_rank": 1, "num_reqs": 3, "num_waiting_reqs": 3, "num_tokens": 3_000 }])
    );
    let polls = engine.json("/control/report").await["polls_unix_ms"].as_array().unwrap().len();
    assert_eq!(polls, 3);
}

#[tokio::test]
async fn running_requests_are_in_the_loads() {
    let engine = start(&["--step", "60000,0,0", "--prefill-time", "0s", "--transfer", "0s"]);
    let mut sender = engine.connect().await;
    let response = tokio::spawn(async move {
        sender.send_request(post("/generate", &ask(None, 5))).await.map(drop)
    });
    engine.until_counts("running", &[1]).await;
    let loads = &engine.json("/v1/loads").await["loads"][0];
    assert_eq!((&loads["num_running_reqs"], &loads["num_waiting_reqs"]), (&json!(1), &json!(0)));
    assert_eq!((&loads["num_used_tokens"], &loads["num_total_tokens"]), (&json!(2), &json!(2)));
    response.abort();
}

#[tokio::test]
async fn older_and_broken_loads() {
    let engine = slow_engine(&["--dp-size", "3"]);
    let mut sender = engine.connect().await;
    tokio::spawn(async move { sender.send_request(post("/generate", &ask(Some(1), 5))).await });
    engine.until_counts("outstanding", &[0, 1, 0]).await;

    engine.control(json!({ "loads_shape": "aggregate" })).await;
    let loads = engine.json("/v1/loads").await;
    assert_eq!(loads["aggregate"]["total_tokens"], 2);
    assert_eq!(loads["aggregate"]["total_reqs"], 1);
    assert_eq!(loads["loads"], Value::Null);

    engine.control(json!({ "loads_shape": "list" })).await;
    assert_eq!(engine.get("/v1/loads").await.0, StatusCode::NOT_FOUND);
    assert_eq!(engine.json("/get_load").await[1]["num_tokens"], 2);

    engine.control(json!({ "loads_shape": "html" })).await;
    assert!(engine.get("/v1/loads").await.1.starts_with("<!doctype html>"));

    engine.control(json!({ "loads_shape": "truncated" })).await;
    let (status, text) = engine.get("/v1/loads").await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.starts_with('{') && serde_json::from_str::<Value>(&text).is_err(), "{text}");

    engine.control(json!({ "loads_shape": "wrong_types" })).await;
    let loads = &engine.json("/v1/loads").await["loads"];
    let tokens = |rank: usize| &loads[rank]["num_total_tokens"];
    assert_eq!((tokens(0), tokens(1), tokens(2)), (&json!("0"), &json!(2), &json!("0")));

    engine.control(json!({ "loads_shape": "minus_one" })).await;
    let loads = &engine.json("/v1/loads").await["loads"];
    assert_eq!(loads[0]["num_total_tokens"], -1);
    assert_eq!(loads[2]["num_running_reqs"], -1);
    assert_eq!(loads[1]["num_total_tokens"], 2);

    engine.control(json!({ "loads_status": 500 })).await;
    assert_eq!(engine.get("/v1/loads").await.0, StatusCode::INTERNAL_SERVER_ERROR);

    engine.control(json!({})).await;
    assert_eq!(engine.json("/v1/loads").await["loads"][1]["num_total_tokens"], 2);
}

#[tokio::test]
async fn loads_that_lie() {
    let engine = slow_engine(&["--dp-size", "2", "--faults", r#"{"loads_frozen":true}"#]);
    let mut sender = engine.connect().await;
    tokio::spawn(async move { sender.send_request(post("/generate", &ask(Some(1), 5))).await });
    engine.until_counts("outstanding", &[0, 1]).await;
    let first = engine.json("/v1/loads").await;
    let second = engine.json("/v1/loads").await;
    assert_eq!(second["loads"][1]["num_total_tokens"], 0);
    assert_ne!(first["loads"][1]["timestamp"], second["loads"][1]["timestamp"]);

    engine.control(json!({ "timestamps_frozen": true })).await;
    let first = engine.json("/v1/loads").await;
    let second = engine.json("/v1/loads").await;
    assert_eq!(second["loads"][1]["num_total_tokens"], 2);
    assert_eq!(first["loads"][1]["timestamp"], second["loads"][1]["timestamp"]);

    engine.control(json!({ "loads_tokens": 0 })).await;
    let loads = &engine.json("/v1/loads").await["loads"][1];
    assert_eq!((&loads["num_total_tokens"], &loads["num_waiting_reqs"]), (&json!(0), &json!(0)));

    for dp_size in [1, 3] {
        engine.control(json!({ "dp_size": dp_size })).await;
        let loads = engine.json("/v1/loads").await;
        assert_eq!(loads["loads"].as_array().unwrap().len(), dp_size);
        assert_eq!(loads["loads"][dp_size - 1]["dp_rank"], dp_size - 1);
        assert_eq!(engine.json("/server_info").await["dp_size"], dp_size);
    }
}

#[tokio::test]
async fn late_loads_are_of_the_moment_they_were_asked_for() {
    let engine = slow_engine(&[]);
    engine.control(json!({ "loads_delay_ms": 500 })).await;
    let mut sender = engine.connect().await;
    let late = tokio::spawn(async move {
        let request = Request::get("/v1/loads").body(Full::default()).unwrap();
        text(sender.send_request(request).await.unwrap()).await
    });
    let polled = async {
        while engine.json("/control/report").await["polls_unix_ms"] == json!([]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    patiently(polled).await;
    let mut sender = engine.connect().await;
    tokio::spawn(async move { sender.send_request(post("/generate", &ask(None, 5))).await });
    engine.until_counts("outstanding", &[1]).await;
    assert!(!late.is_finished());
    let late: Value = serde_json::from_str(&late.await.unwrap().1).unwrap();
    assert_eq!(late["loads"][0]["num_total_tokens"], 0);
}

#[tokio::test]
async fn hanging_loads_hang_alone() {
    let engine = engine(&["--faults", r#"{"loads_hang":true}"#]);
    let mut sender = engine.connect().await;
    let hung = tokio::spawn(async move {
        sender.send_request(Request::get("/v1/loads").body(Full::default()).unwrap()).await
    });
    assert_eq!(engine.post("/generate", &ask(None, 3)).await.0, StatusCode::OK);
    engine.get("/health").await;
    assert!(!hung.is_finished());
}

#[tokio::test]
async fn the_given_rank_is_honoured() {
    let engine = engine(&["--dp-size", "4"]);
    let (_, answer) = engine.post("/generate", &ask(Some(2), 3)).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["meta_info"]["dp_rank"], 2);
    let chat = json!({ "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 2 });
    let mut by_header = post("/v1/chat/completions", &chat);
    by_header.headers_mut().insert("X-Data-Parallel-Rank", "3".parse().unwrap());
    assert_eq!(engine.send(by_header).await.unwrap().status(), StatusCode::OK);
    engine.until_counts("finished", &[0, 0, 1, 1]).await;
    assert_eq!(engine.counts("unrouted").await, [0; 4]);

    for _ in 0..6 {
        engine.post("/generate", &ask(None, 1)).await;
    }
    assert_eq!(engine.counts("begun").await, [2, 2, 2, 2]);
    assert_eq!(engine.counts("unrouted").await, [2, 2, 1, 1]);
}

#[tokio::test]
async fn a_wrong_rank_is_refused_and_says_why() {
    let engine = engine(&["--dp-size", "4"]);
    for rank in [json!(4), json!(-1)] {
        let (status, text) =
            engine.post("/generate", &json!({ "text": "a", "data_parallel_rank": rank })).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains("is not below the dp_size 4"), "{text}");
    }
    for (header, why) in
        [("2", "data_parallel_rank is 1, x-data-parallel-rank is 2"), ("x", "no number")]
    {
        let mut request = post("/generate", &ask(Some(1), 1));
        request.headers_mut().insert("X-Data-Parallel-Rank", header.parse().unwrap());
        let (status, text) = text(engine.send(request).await.unwrap()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains(why), "{text}");
    }
    let report = engine.json("/control/report").await;
    assert_eq!(report["rejected"], json!({ "400": 4 }));
    assert_eq!(engine.counts("begun").await, [0; 4]);
}

#[tokio::test]
async fn a_stream_has_an_event_a_token_and_an_end() {
    let engine = engine(&[]);
    let (chunks, whole) =
        events(engine.send(post("/generate", &streamed(ask(None, 37)))).await.unwrap()).await;
    assert!(whole);
    assert_eq!((chunks.len(), chunks.last().unwrap().as_str()), (38, "[DONE]"));
    for (nth, chunk) in chunks[..37].iter().enumerate() {
        let chunk: Value = serde_json::from_str(chunk).unwrap();
        assert_eq!(chunk["meta_info"]["completion_tokens"], nth + 1);
        assert_eq!(chunk["text"], " token");
        assert_eq!(chunk["meta_info"]["finish_reason"].is_null(), nth < 36, "{chunk}");
    }

    let chat = json!({ "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 5,
        "stream": true });
    let (chunks, whole) =
        events(engine.send(post("/v1/chat/completions", &chat)).await.unwrap()).await;
    assert!(whole);
    assert_eq!((chunks.len(), chunks[5].as_str()), (6, "[DONE]"));
    let reasons: Vec<Value> = (chunks[..5].iter())
        .map(|chunk| serde_json::from_str::<Value>(chunk).unwrap())
        .map(|chunk| chunk["choices"][0]["finish_reason"].clone())
        .collect();
    assert_eq!(reasons, [json!(null), json!(null), json!(null), json!(null), json!("length")]);
}

#[tokio::test]
async fn a_stream_interval_makes_larger_events() {
    for service in ["lockstep", "lognormal:mean=100ms,cv=1"] {
        let engine = engine(&["--stream-interval", "8", "--service", service]);
        let response = engine.send(post("/generate", &streamed(ask(None, 20)))).await.unwrap();
        let (chunks, whole) = events(response).await;
        let tokens: Vec<_> = (chunks[..chunks.len() - 1].iter())
            .map(|chunk| serde_json::from_str::<Value>(chunk).unwrap())
            .map(|chunk| chunk["output_ids"].as_array().unwrap().len())
            .collect();
        assert_eq!((tokens.as_slice(), whole), ([8, 8, 4].as_slice(), true));
    }
}

#[tokio::test]
async fn lengths_come_from_the_body() {
    let engine = engine(&[]);
    for (mut body, path, usage) in [
        (json!({ "text": "x".repeat(41) }), "/generate", (11, 128)),
        (json!({ "input_ids": [5, 6, 7], "max_new_tokens": 9 }), "/generate", (3, 9)),
        (
            json!({ "text": "x", "sampling_params": { "max_new_tokens": 4 },
                "mock": { "input_tokens": 77 } }),
            "/generate",
            (77, 4),
        ),
        (
            json!({ "messages": [{ "content": "x".repeat(30) }, { "content": null },
                { "content": [{ "type": "text", "text": "x".repeat(10) }] }],
                "max_completion_tokens": 6 }),
            "/v1/chat/completions",
            (10, 6),
        ),
    ] {
        body["model"] = "anything".into();
        let (status, text) = engine.post(path, &body).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        let given = if path == "/generate" { &answer["meta_info"] } else { &answer["usage"] };
        let given = (&given["prompt_tokens"], &given["completion_tokens"]);
        assert_eq!(given, (&json!(usage.0), &json!(usage.1)), "{body}");
        let text = answer["text"].as_str().or(answer["choices"][0]["message"]["content"].as_str());
        assert_eq!(text.unwrap().matches(" token").count(), usage.1);
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_request() {
    let engine = slow_engine(&["--dp-size", "2"]);
    for body in [ask(Some(1), 5), streamed(ask(Some(1), 5))] {
        engine.reset().await;
        let mut sender = engine.connect().await;
        let request =
            tokio::spawn(async move { sender.send_request(post("/generate", &body)).await });
        engine.until_counts("outstanding", &[0, 1]).await;
        request.abort();
        engine.until_counts("outstanding", &[0, 0]).await;
        assert_eq!(engine.counts("aborted").await, [0, 1]);
        assert_eq!(engine.counts("finished").await, [0, 0]);
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_mid_stream_frees_its_request() {
    let engine = start(&["--prefill-time", "0s", "--transfer", "0s", "--step", "20,0,0"]);
    let mut sender = engine.connect().await;
    let request = post("/generate", &streamed(ask(None, 1_000_000)));
    let mut response = sender.send_request(request).await.unwrap();
    for _ in 0..3 {
        response.frame().await.unwrap().unwrap();
    }
    assert_eq!(engine.counts("running").await, [1]);
    drop((response, sender));
    engine.until_counts("outstanding", &[0]).await;
    assert_eq!(engine.counts("aborted").await, [1]);
    assert_eq!(engine.json("/v1/loads").await["loads"][0]["num_used_tokens"], 0);
}

#[tokio::test]
async fn every_nth_request_is_refused() {
    let engine = engine(&[]);
    engine.control(json!({ "fail_every": 3 })).await;
    let mut statuses = Vec::new();
    for _ in 0..6 {
        statuses.push(engine.post("/generate", &ask(None, 1)).await.0.as_u16());
    }
    assert_eq!(statuses, [200, 200, 503, 200, 200, 503]);
    engine.control(json!({ "fail_every": 1, "fail_status": 429 })).await;
    assert_eq!(engine.post("/generate", &ask(None, 1)).await.0.as_u16(), 429);
    assert_eq!(engine.counts("begun").await, [4]);
    let report = engine.json("/control/report").await;
    assert_eq!(report["rejected"], json!({ "429": 1, "503": 2 }));
}

#[tokio::test]
async fn every_nth_response_breaks_off_in_the_middle() {
    let engine = engine(&["--faults", r#"{"break_every":2}"#]);
    let mut ends = Vec::new();
    for _ in 0..4 {
        let response = engine.send(post("/generate", &streamed(ask(None, 10)))).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let (chunks, whole) = events(response).await;
        ends.push((chunks.len(), whole));
    }
    assert_eq!(ends, [(11, true), (5, false), (11, true), (5, false)]);

    let mut whole = Vec::new();
    for _ in 0..2 {
        let response = engine.send(post("/generate", &ask(None, 10))).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        whole.push(response.into_body().collect().await.is_ok());
    }
    assert_eq!(whole, [true, false]);
    assert_eq!(engine.counts("failed").await, [3]);
    assert_eq!(engine.counts("finished").await, [3]);
    assert_eq!(engine.counts("aborted").await, [0]);
}

#[tokio::test]
async fn a_seed_decides_what_breaks_off() {
    let broken = async |seed: &str| {
        let faults = r#"{"break_probability":0.3}"#;
        let engine = engine(&["--seed", seed, "--faults", faults]);
        let mut broken = Vec::new();
        for _ in 0..40 {
            let response = engine.send(post("/generate", &ask(None, 2))).await.unwrap();
            broken.push(response.into_body().collect().await.is_err());
        }
        broken
    };
    let first = broken("1").await;
    assert!(first.contains(&true) && first.contains(&false));
    assert_eq!(first, broken("1").await);
    assert_ne!(first, broken("2").await);
}

#[tokio::test]
async fn hung_requests_go_on_when_told() {
    let engine = engine(&["--dp-size", "2", "--faults", r#"{"requests_hang":true}"#]);
    let mut hung = Vec::new();
    for rank in [0, 1, 1] {
        let mut sender = engine.connect().await;
        hung.push(tokio::spawn(async move {
            let request = post("/generate", &streamed(ask(Some(rank), 4)));
            events(sender.send_request(request).await.unwrap()).await
        }));
    }
    engine.until_counts("outstanding", &[1, 2]).await;
    engine.until_samples(20).await;
    assert_eq!(engine.counts("outstanding").await, [1, 2]);
    engine.control(json!({})).await;
    for request in hung {
        let (chunks, whole) = patiently(request).await.unwrap();
        assert_eq!((chunks.len(), whole), (5, true));
    }
    assert_eq!(engine.counts("finished").await, [1, 2]);
}

#[tokio::test]
async fn an_engine_goes_down_and_comes_back_on_its_port() {
    let engine = slow_engine(&[]);
    let mut sender = engine.connect().await;
    let cut =
        tokio::spawn(async move { sender.send_request(post("/generate", &ask(None, 3))).await });
    engine.until_counts("outstanding", &[1]).await;
    engine.control(json!({ "down_ms": 300 })).await;
    assert!(cut.await.unwrap().is_err());
    let (mut refused, mut back) = (0, false);
    let came_back = async {
        while !back {
            match TcpStream::connect(&engine.address).await {
                Ok(_) => back = true,
                Err(_) => refused += 1,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    patiently(came_back).await;
    assert!(refused > 0);
    assert_eq!(engine.counts("failed").await, [1]);
    assert_eq!(engine.counts("outstanding").await, [0]);
}

#[tokio::test]
async fn an_engine_exits_and_a_script_starts_it_again_on_its_port() {
    let mut engine = engine(&[]);
    engine.control(json!({ "exit": 7 })).await;
    assert_eq!(engine.ended().await.code(), Some(7));
    assert!(TcpStream::connect(&engine.address).await.is_err());
    let again = start(&["--listen", &engine.address]);
    assert_eq!(again.address, engine.address);
    assert_eq!(again.get("/health").await.0, StatusCode::OK);
}

#[tokio::test]
async fn bad_requests_say_why() {
    let engine = engine(&["--dp-size", "2"]);
    let control = "/control";
    for (path, body, why) in [
        ("/generate", "{", "EOF while parsing"),
        ("/generate", "{}", "text or input_ids is needed"),
        ("/generate", r#"{"text":3}"#, "expected a string"),
        ("/generate", r#"{"text":"a","input_ids":[1]}"#, "text or input_ids"),
        ("/generate", r#"{"text":"a","max_new_tokens":0}"#, "0 output tokens"),
        ("/generate", r#"{"text":"a","max_new_tokens":1000001}"#, "1000001 output tokens"),
        ("/generate", r#"{"text":"a","mock":{"service_ms":-1}}"#, "service_ms -1"),
        ("/v1/chat/completions", r#"{"messages":[]}"#, "messages are needed"),
        (control, "[]", "expected a JSON object"),
        (control, "", "expected a JSON object"),
        (control, r#"{"loads_shapes":1}"#, "unknown field `loads_shapes`"),
        (control, r#"{"fail_status":200}"#, "200 is no status"),
        (control, r#"{"break_probability":2}"#, "break_probability"),
    ] {
        let request = Request::post(path).body(Full::from(body)).unwrap();
        let (status, text) = text(engine.send(request).await.unwrap()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        let message = serde_json::from_str::<Value>(&text).unwrap()["message"].to_string();
        assert!(message.contains(why), "{body}: {message}");
    }
}

#[tokio::test]
async fn http_as_it_should_be() {
    let engine = engine(&[]);
    assert_eq!(engine.get("/nowhere").await.0, StatusCode::NOT_FOUND);
    let (status, _) = engine.get("/generate").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    let head = Request::head("/v1/loads").body(Full::default()).unwrap();
    let head = engine.send(head).await.unwrap();
    assert_eq!(head.status(), StatusCode::OK);
    assert!(head.headers()["content-length"].to_str().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(text(head).await.1, "");

    let mut sender = engine.connect().await;
    for _ in 0..3 {
        sender.ready().await.unwrap();
        let response = sender.send_request(post("/generate", &ask(None, 2))).await.unwrap();
        assert_eq!(text(response).await.0, StatusCode::OK, "on the same connection");
    }

    let large = json!({ "text": "x".repeat(16 << 20) });
    // The engine may close before it has read all of it.
    if let Ok(response) = engine.send(post("/generate", &large)).await {
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
    assert_eq!(engine.json("/control/report").await["rejected"], json!({ "413": 1 }));
}

#[tokio::test]
async fn the_report_says_what_arrived_where() {
    let engine = slow_engine(&["--dp-size", "2", "--sample-interval", "10ms"]);
    let mut open = Vec::new();
    for rank in [0, 1, 1, 1] {
        let mut sender = engine.connect().await;
        open.push(tokio::spawn(async move {
            sender.send_request(post("/generate", &ask(Some(rank), 5))).await
        }));
    }
    engine.until_counts("outstanding", &[1, 3]).await;
    engine.reset().await;
    let report = engine.until_samples(3).await;
    // Of 1 and 3: a deviation of 1, a mean of 2.
    assert_eq!(report["outstanding_cv"]["mean"], 0.5);
    let times: Vec<_> = (report["samples"]["unix_ms"].as_array().unwrap().iter())
        .map(|time| time.as_u64().unwrap())
        .collect();
    let outstanding = report["samples"]["outstanding"].as_array().unwrap();
    assert_eq!(times.len(), outstanding.len());
    assert!(outstanding.iter().all(|sample| *sample == json!([1, 3])), "{report}");
    assert!(times.iter().all(|time| time % 10 == 0), "engines' samples join: {times:?}");
    assert!(times.is_sorted_by(|one, next| one < next));
    assert!(times[0] >= report["since_unix_ms"].as_u64().unwrap() / 10 * 10);

    for request in open {
        request.abort();
    }
    engine.until_counts("aborted", &[1, 3]).await;
    assert_eq!(engine.counts("begun").await, [0, 0], "since the reset");
    assert_eq!(engine.counts("peak_outstanding").await, [1, 3]);
    engine.reset().await;
    assert_eq!(engine.counts("peak_outstanding").await, [0, 0]);
    assert_eq!(engine.counts("aborted").await, [0, 0]);
}

#[tokio::test]
async fn both_sides_of_a_pair_know_the_room() {
    let pair = json!({ "text": "a prompt", "max_new_tokens": 7, "data_parallel_rank": 1,
        "bootstrap_host": "10.0.0.1", "bootstrap_port": 8998,
        "bootstrap_room": 0x7fff_ffff_ffff_ffff_u64 });
    let room = json!([{ "bootstrap_host": "10.0.0.1", "bootstrap_port": 8998,
        "bootstrap_room": 0x7fff_ffff_ffff_ffff_u64, "rank": 1 }]);
    for (role, tokens) in [("prefill", 1), ("decode", 7), ("both", 7)] {
        let engine = engine(&["--dp-size", "2", "--role", role]);
        let (status, answer) = engine.post("/generate", &pair).await;
        assert_eq!(status, StatusCode::OK);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["meta_info"]["completion_tokens"], tokens, "{role}");
        assert_eq!(engine.json("/control/report").await["rooms"], room, "{role}");
        let alone = engine.post("/generate", &ask(None, 1)).await.0;
        assert_eq!(alone == StatusCode::OK, role == "both", "{role} needs a room");
    }
}

#[tokio::test]
async fn a_client_may_say_how_long_its_response_takes() {
    let engine = start(&["--service", "lognormal:mean=10d,cv=0"]);
    let mut sender = engine.connect().await;
    let long =
        tokio::spawn(async move { sender.send_request(post("/generate", &ask(None, 3))).await });
    engine.until_counts("running", &[1]).await;
    let mut short = ask(None, 3);
    short["mock"] = json!({ "service_ms": 1 });
    assert_eq!(engine.post("/generate", &short).await.0, StatusCode::OK);
    assert_eq!(engine.counts("finished").await, [1]);
    assert!(!long.is_finished());
}

#[tokio::test]
async fn a_signal_ends_an_engine_at_once_or_after_its_responses() {
    let mut at_once = slow_engine(&[]);
    let mut sender = at_once.connect().await;
    let cut =
        tokio::spawn(async move { sender.send_request(post("/generate", &ask(None, 3))).await });
    at_once.until_counts("outstanding", &[1]).await;
    at_once.signal("-TERM");
    assert_eq!(at_once.ended().await.code(), Some(0));
    assert!(cut.await.unwrap().is_err());

    let mut drained = start(&["--drain", "--prefill-time", "0s", "--transfer", "300ms"]);
    let mut sender = drained.connect().await;
    let served = tokio::spawn(async move {
        text(sender.send_request(post("/generate", &ask(None, 3))).await.unwrap()).await.0
    });
    drained.until_counts("outstanding", &[1]).await;
    drained.signal("-INT");
    assert_eq!(served.await.unwrap(), StatusCode::OK);
    assert_eq!(drained.ended().await.code(), Some(0));

    let mut impatient = slow_engine(&["--drain"]);
    let mut sender = impatient.connect().await;
    tokio::spawn(async move { sender.send_request(post("/generate", &ask(None, 3))).await });
    impatient.until_counts("outstanding", &[1]).await;
    impatient.signal("-TERM");
    while TcpStream::connect(&impatient.address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    impatient.signal("-TERM");
    assert_eq!(impatient.ended().await.code(), Some(1));
}

#[tokio::test]
async fn a_thousand_streams_at_once() {
    let engine = engine(&["--dp-size", "8"]);
    let mut streams = tokio::task::JoinSet::new();
    for number in 0..1_000 {
        let mut sender = engine.connect().await;
        streams.spawn(async move {
            let request = post("/generate", &streamed(ask(Some(number % 8), 20)));
            events(sender.send_request(request).await.unwrap()).await
        });
    }
    for (chunks, whole) in streams.join_all().await {
        assert_eq!((chunks.len(), whole), (21, true));
    }
    assert_eq!(engine.counts("finished").await, [125; 8]);
}

#[tokio::test]
async fn bad_options_are_refused() {
    for (option, value, why) in [
        ("--dp-size", "0", "from 1 to 1024"),
        ("--service", "lognormal:mean=1s", "lognormal:mean=600ms,cv=1.5"),
        ("--faults", r#"{"loads_shape":"odd"}"#, "unknown variant `odd`"),
        ("--faults", "[]", "expected a JSON object"),
        ("--faults", r#"{"exit":3}"#, "of the moment"),
        ("--faults", r#"{"down_ms":0}"#, "of the moment"),
        ("--listen", "nowhere", "invalid socket address"),
    ] {
        let child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
            .args(["mock-engine", option, value])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut engine = Engine { child, address: String::new() };
        assert!(!engine.ended().await.success());
        let mut error = String::new();
        engine.child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert!(error.contains(why), "{option} {value}: {error}");
    }
}
