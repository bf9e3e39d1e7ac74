//! Other workers are tried where that is safe, each engine once.

use std::fs;

use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode};
use tokio::net::TcpListener;

use crate::harness::*;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const REFUSAL: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\nx-from: engine\r\n\r\nbusy";

/// An engine that reads a request and closes the connection.
async fn closing() -> Scripted {
    scripted(|mut talk| Box::pin(async move { drop(talk.request().await) })).await
}

/// A port on which nobody listens.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Until each engine has been the first choice, as which of two that are even is by chance.
async fn ask_until<T: PartialEq + std::fmt::Debug>(
    router: &Process,
    expected: T,
    seen: impl Fn() -> T,
) {
    let body = ask(1);
    let asked = async {
        while seen() != expected {
            assert_eq!(router.post("/generate", &body).await, (StatusCode::OK, "ok".into()));
        }
    };
    patiently(asked).await;
    router.is_at_rest().await;
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_passed_over() {
    let good = answering(OK).await;
    let router = router_before(&[&good], &["--engine", &nobody().await]);
    for _ in 0..20 {
        assert_eq!(router.post("/generate", &ask(1)).await, (StatusCode::OK, "ok".into()));
    }
    router.is_at_rest().await;
    assert!(router.total("retries").await > 0);
}

#[tokio::test]
async fn an_engine_that_refuses_is_passed_over() {
    let (good, busy) = (answering(OK).await, answering(REFUSAL).await);
    let router = router_before(&[&good, &busy], &[]);
    ask_until(&router, true, || busy.requests().len() >= 3).await;
    assert!(good.requests().iter().all(|got| got.body == ask(1).to_string().as_bytes()));
}

#[tokio::test]
async fn an_engine_that_closes_before_its_response_is_passed_over() {
    let (good, bad) = (answering(OK).await, closing().await);
    let router = router_before(&[&good, &bad], &[]);
    ask_until(&router, true, || bad.requests().len() >= 3).await;
    assert!(good.requests().iter().all(|got| got.body == ask(1).to_string().as_bytes()));
}

#[tokio::test]
async fn a_body_in_chunks_is_sent_again_as_well() {
    let (good, busy) = (answering(OK).await, answering(REFUSAL).await);
    let router = router_before(&[&good, &busy], &[]);
    let request = "POST /generate HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\
        connection: close\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n";
    while busy.requests().len() < 3 {
        let response = router.raw(request).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }
    for got in good.requests() {
        let body = String::from_utf8(got.body).unwrap();
        let letters: String = body.lines().skip(1).step_by(2).collect();
        assert_eq!(letters, "abcdefg", "{body}");
    }
    router.is_at_rest().await;
}

#[tokio::test]
async fn what_can_not_be_sent_again_fails_with_the_engines_name() {
    let bad = closing().await;
    let good = answering(OK).await;
    let router = router_before(&[&bad, &good], &["--body-limit", "100"]);
    let large = "x".repeat(1_000);
    let request = |method: Method, body: &str| {
        Request::builder().method(method).uri("/").body(Full::from(body.to_owned())).unwrap()
    };
    for (method, body) in [(Method::POST, large.as_str()), (Method::PATCH, "small")] {
        let before = bad.requests().len();
        let mut answers = Vec::new();
        while bad.requests().len() == before {
            answers.push(text(router.send(request(method.clone(), body)).await.unwrap()).await);
        }
        let (status, text) = answers.pop().unwrap();
        assert_eq!(status, StatusCode::BAD_GATEWAY, "{method}: {text}");
        assert_eq!(code(&text), "engine_closed");
        assert!(text.contains(&bad.address), "{text}");
        assert!(answers.iter().all(|(status, _)| *status == StatusCode::OK));
    }
    router.is_at_rest().await;
}

#[tokio::test]
async fn where_all_fail_the_client_hears_the_last_of_them() {
    let router_of = |options: &[&str]| router(&[&["--no-polls"], options].concat());
    let (one, other) = (nobody().await, nobody().await);
    let router = router_of(&["--engine", &one, "--engine", &other]);
    let (status, text) = router.post("/generate", &ask(1)).await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert_eq!(code(&text), "engine_unreachable");
    assert!([one, other].iter().any(|url| text.contains(&url["http://".len()..])), "{text}");
    assert_eq!(router.total("retries").await, 1);
    router.is_at_rest().await;

    let busy = [answering(REFUSAL).await, answering(REFUSAL).await, answering(REFUSAL).await];
    let router = router_before(&[&busy[0], &busy[1], &busy[2]], &[]);
    let response = router.send(post("/generate", &ask(1))).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["x-from"], "engine");
    assert_eq!(crate::harness::text(response).await.1, "busy");
    let tried = busy.each_ref().map(|engine| engine.requests().len());
    assert_eq!(tried, [1; 3], "each engine once");
    router.is_at_rest().await;

    let router = router_before(&[&busy[0], &busy[1], &busy[2]], &["--retries", "1"]);
    router.post("/generate", &ask(1)).await;
    let tried: usize = busy.iter().map(|engine| engine.requests().len()).sum();
    assert_eq!(tried, 3 + 2, "at most so many tries");
}

#[tokio::test]
async fn no_rank_of_a_failing_engine_is_tried_again() {
    let busy = answering(REFUSAL).await;
    let url = format!("{},dp_size=8", busy.url());
    let router = router(&["--no-polls", "--engine", &url]);
    assert_eq!(router.post("/generate", &ask(1)).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(busy.requests().len(), 1);
    router.is_at_rest().await;
}

#[tokio::test]
async fn other_errors_of_engines_are_theirs() {
    for status in ["400 Bad", "429 Many", "500 Oops", "504 Late"] {
        let response = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        let response: &'static str = response.leak();
        let engines = [answering(response).await, answering(response).await];
        let router = router_before(&[&engines[0], &engines[1]], &[]);
        let got = router.post("/generate", &ask(1)).await.0;
        assert_eq!(got.as_str(), &status[..3]);
        assert_eq!(router.total("retries").await, 0);
    }
}

#[tokio::test]
async fn a_kept_connection_that_has_closed_is_no_failure() {
    // Each connection answers once as if it would stay, and closes when the next request comes.
    let engine = scripted(|mut talk| {
        Box::pin(async move {
            talk.request().await;
            talk.say(OK).await;
            talk.head().await;
        })
    })
    .await;
    let router = router_before(&[&engine], &[]);
    for _ in 0..10 {
        assert_eq!(router.post("/generate", &ask(1)).await, (StatusCode::OK, "ok".into()));
    }
    assert_eq!(engine.requests().len(), 10);
    assert_eq!(router.total("failed").await, 0);
    router.is_at_rest().await;
}

#[tokio::test]
async fn an_engine_that_hangs_is_given_up_where_that_is_wanted() {
    let engine = slow_engine(&[]);
    let router = router(&["--engine", &engine.url(), "--response-timeout", "50ms"]);
    let (status, text) = router.post("/generate", &ask(1)).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(code(&text), "engine_response_timeout");
    router.is_at_rest().await;
    engine.until_count("aborted", 1).await;
}

#[tokio::test]
async fn an_engine_that_falls_silent_is_given_up_where_that_is_wanted() {
    let engine = scripted(|mut talk| {
        Box::pin(async move {
            talk.request().await;
            talk.say("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na begin").await;
            std::future::pending().await
        })
    })
    .await;
    let router = router_before(&[&engine], &["--silence-timeout", "50ms"]);
    let response = router.send(post("/generate", &ask(1))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(patiently(response.into_body().collect()).await.is_err(), "the response breaks off");
    router.is_at_rest().await;
    assert_eq!(router.total("broken").await, 1);
}

/// The engine has long sent everything: what waits is the client.
#[tokio::test]
async fn a_client_that_reads_late_makes_no_engine_silent() {
    const LENGTH: usize = 32 << 20;
    let engine = scripted(|mut talk| {
        Box::pin(async move {
            talk.request().await;
            talk.say(&format!("HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n")).await;
            talk.say(&"a".repeat(LENGTH)).await;
        })
    })
    .await;
    let router = router_before(&[&engine], &["--silence-timeout", "1s"]);
    let response = router.send(post("/generate", &ask(1))).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(text(response).await.1.len(), LENGTH);
    router.is_at_rest().await;
}

#[tokio::test]
async fn nonsense_from_an_engine_is_a_bad_gateway() {
    for nonsense in [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ] {
        let engine = answering(nonsense).await;
        let router = router_before(&[&engine], &[]);
        let (status, text) = router.post("/generate", &ask(1)).await;
        assert_eq!(status, StatusCode::BAD_GATEWAY, "{nonsense}: {text}");
        assert!(text.contains(&engine.address), "{text}");
        router.is_at_rest().await;
    }
}

#[tokio::test]
async fn an_engine_goes_down_under_load_and_comes_back() {
    let engines = [engine(&[]), engine(&[])];
    let (one, other) = (engines[0].url(), engines[1].url());
    let router = router(&["--engine", &one, "--engine", &other]);
    let mut clients = tokio::task::JoinSet::new();
    let address = router.address.clone();
    for _ in 0..16 {
        let address = address.clone();
        clients.spawn(async move {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let stream = hyper_util::rt::TokioIo::new(stream);
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            for _ in 0..50 {
                sender.ready().await.unwrap();
                let mut body = ask(3);
                body["mock"] = serde_json::json!({ "input_tokens": 200_000 });
                let response = patiently(sender.send_request(post("/generate", &body))).await;
                assert_eq!(text(response.unwrap()).await.0, StatusCode::OK);
            }
        });
    }
    until(true, async || engines[0].count("finished").await > 50).await;
    engines[0].control(serde_json::json!({ "down_ms": 200 })).await;
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    router.is_at_rest().await;
}

#[tokio::test]
async fn a_request_whose_worker_leaves_meanwhile_ends_there() {
    let engine = endless_engine(&[]);
    let other = engine_that_answers().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), format!("engine = [\"{}\"]\n", engine.url())).unwrap();
    let router = router(&["--no-polls", "--config", file.path().to_str().unwrap()]);
    let response = router.send(post("/generate", &streamed(20))).await.unwrap();
    fs::write(file.path(), format!("engine = [\"{}\"]\n", other.url())).unwrap();
    router.signal("-HUP");
    until(true, async || {
        router.workers().await.iter().any(|worker| worker.0.contains(&other.address))
    })
    .await;
    assert_eq!(router.post("/generate", &ask(1)).await.1, "ok");
    assert_eq!(text(response).await.1.matches("data: ").count(), 21);
    router.is_at_rest().await;
    assert_eq!(router.workers().await.len(), 1);
}

async fn engine_that_answers() -> Scripted {
    answering(OK).await
}
