//! Prefill and decode: two engines, two counts, one response.

use std::collections::HashSet;

use http_body_util::BodyExt;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use serde_json::{Value, json};

use crate::harness::*;

struct Pair {
    prefill: Process,
    decode: Process,
    router: Process,
}

fn pair(prefill: Process, decode: Process, options: &[&str]) -> Pair {
    let urls = [prefill.with("dp_size=4,bootstrap_port=9001"), decode.with("dp_size=2")];
    let engines = ["--prefill", &urls[0], "--decode", &urls[1]];
    let router = router(&[&engines[..], options].concat());
    Pair { prefill, decode, router }
}

fn fast(role: &str, ranks: &str) -> Process {
    engine(&["--role", role, "--dp-size", ranks])
}

async fn rooms(engine: &Process) -> Vec<Value> {
    engine.json("/control/report").await["rooms"].as_array().unwrap().clone()
}

#[tokio::test]
async fn both_get_the_same_room_and_decode_answers() {
    for rank_in in ["header", "body"] {
        let pair = pair(fast("prefill", "4"), fast("decode", "2"), &["--dp-rank-in", rank_in]);
        for number in 0..20 {
            let body = if number % 2 == 0 { ask(7) } else { streamed(7) };
            let (status, text) = pair.router.post("/generate", &body).await;
            assert_eq!(status, StatusCode::OK, "{text}");
            assert_eq!(text.matches(" token").count(), 7, "{text}");
        }
        pair.router.is_at_rest().await;
        pair.prefill.until_count("outstanding", 0).await;
        let (of_prefill, of_decode) = (rooms(&pair.prefill).await, rooms(&pair.decode).await);
        let numbers = |rooms: &[Value]| -> HashSet<u64> {
            rooms.iter().map(|room| room["bootstrap_room"].as_u64().unwrap()).collect()
        };
        assert_eq!(numbers(&of_prefill).len(), 20, "each room once");
        assert_eq!(numbers(&of_prefill), numbers(&of_decode));
        let host = pair.prefill.address.split(':').next().unwrap();
        for room in of_prefill.iter().chain(&of_decode) {
            assert_eq!(
                (&room["bootstrap_host"], &room["bootstrap_port"]),
                (&json!(host), &json!(9001))
            );
            assert!(room["bootstrap_room"].as_u64().unwrap() < 1 << 63);
        }
        for room in &of_prefill {
            assert_eq!(
                room["bootstrap_room"].as_u64().unwrap() % 4,
                room["rank"].as_u64().unwrap()
            );
        }
        assert_eq!(pair.prefill.count("unrouted").await, 0);
        assert_eq!(pair.decode.counts("unrouted").await, [0, 0]);
        assert_eq!(pair.prefill.count("aborted").await, 0);
    }
}

#[tokio::test]
async fn each_side_has_its_policy() {
    let policies = ["--prefill-policy", "consistent_hashing", "--decode-policy", "round_robin"];
    let pair = pair(fast("prefill", "4"), fast("decode", "2"), &policies);
    for _ in 0..20 {
        let request = Request::post("/generate")
            .header("x-session-id", "one session")
            .body(Full::from(ask(1).to_string()))
            .unwrap();
        assert_eq!(text(pair.router.send(request).await.unwrap()).await.0, StatusCode::OK);
    }
    let mut prefilled = pair.prefill.counts("begun").await;
    prefilled.sort_unstable();
    assert_eq!(prefilled, [0, 0, 0, 20]);
    assert_eq!(pair.decode.counts("begun").await, [10, 10]);
    pair.router.is_at_rest().await;
}

#[tokio::test]
async fn prefill_counts_to_the_first_token_or_to_the_end() {
    for (counts_to, expected) in [("first-token", 0), ("end", 1)] {
        let decode = endless_engine(&["--role", "decode", "--dp-size", "2"]);
        let pair = pair(fast("prefill", "4"), decode, &["--prefill-counts-to", counts_to]);
        let response = pair.router.send(post("/generate", &streamed(1_000_000))).await;
        let mut response = response.unwrap();
        patiently(response.frame()).await.unwrap().unwrap();
        assert_eq!(pair.router.in_flight("prefill").await, expected, "{counts_to}");
        assert_eq!(pair.router.in_flight("decode").await, 1);
        drop(response);
        pair.router.is_at_rest().await;
    }
    let prefill = slow_engine(&["--role", "prefill", "--dp-size", "4"]);
    let pair = pair(prefill, slow_engine(&["--role", "decode", "--dp-size", "2"]), &[]);
    let mut sender = pair.router.connect().await;
    let request =
        tokio::spawn(async move { sender.send_request(post("/generate", &ask(1))).await });
    pair.prefill.until_count("outstanding", 1).await;
    pair.decode.until_count("outstanding", 1).await;
    assert_eq!(pair.router.in_flight("prefill").await, 1);
    assert_eq!(pair.router.in_flight("decode").await, 1);
    // A client that leaves cancels both.
    request.abort();
    pair.prefill.until_count("aborted", 1).await;
    pair.decode.until_count("aborted", 1).await;
    pair.router.is_at_rest().await;
}

#[tokio::test]
async fn a_prefill_that_fails_cancels_its_decode() {
    let prefill = fast("prefill", "4");
    let decode = slow_engine(&["--role", "decode", "--dp-size", "2"]);
    let pair = pair(prefill, decode, &[]);
    for (round, status) in [(1, 500), (2, 503), (3, 400)] {
        pair.prefill.control(json!({ "fail_every": 1, "fail_status": status })).await;
        let got = pair.router.post("/generate", &ask(1)).await.0;
        assert_eq!(got.as_u16(), status, "the engine's own");
        pair.router.is_at_rest().await;
        pair.decode.until_count("outstanding", 0).await;
        assert!(pair.decode.count("begun").await <= round);
    }
    // Its status is good, and its body breaks off.
    let broken = scripted(|mut talk| {
        Box::pin(async move {
            talk.request().await;
            talk.say("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nab").await;
        })
    })
    .await;
    let decode = pair.decode.url();
    let router = router(&["--no-polls", "--prefill", &broken.url(), "--decode", &decode]);
    let (status, text) = router.post("/generate", &ask(1)).await;
    assert_eq!(status, StatusCode::BAD_GATEWAY, "{text}");
    assert!(text.contains(&broken.address), "{text}");
    pair.decode.until_count("outstanding", 0).await;
    router.is_at_rest().await;
}

#[tokio::test]
async fn a_prefill_that_fails_late_breaks_the_response_off() {
    // It says that all is well, and closes without its body's end.
    let prefill = scripted(|mut talk| {
        Box::pin(async move {
            talk.request().await;
            talk.say("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n").await;
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        })
    })
    .await;
    let decode = endless_engine(&["--role", "decode"]);
    let router = router(&["--no-polls", "--prefill", &prefill.url(), "--decode", &decode.url()]);
    let response = router.send(post("/generate", &streamed(1_000_000))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(patiently(response.into_body().collect()).await.is_err());
    decode.until_count("aborted", 1).await;
    router.is_at_rest().await;
}

#[tokio::test]
async fn a_decode_that_fails_cancels_its_prefill() {
    let prefill = slow_engine(&["--role", "prefill", "--dp-size", "4"]);
    let decode = engine(&["--role", "decode", "--dp-size", "2", "--faults", r#"{"fail_every":1}"#]);
    let pair = pair(prefill, decode, &[]);
    let (status, _) = pair.router.post("/generate", &ask(1)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    pair.prefill.until_count("outstanding", 0).await;
    pair.router.is_at_rest().await;
}

#[tokio::test]
async fn another_pair_is_tried() {
    let urls =
        [fast("prefill", "1"), fast("prefill", "1"), fast("decode", "1"), fast("decode", "1")];
    let [good_prefill, bad_prefill, good_decode, bad_decode] = &urls;
    bad_prefill.control(json!({ "fail_every": 1 })).await;
    bad_decode.control(json!({ "fail_every": 1 })).await;
    let router = router(&[
        "--prefill",
        &good_prefill.url(),
        "--prefill",
        &bad_prefill.url(),
        "--decode",
        &good_decode.url(),
        "--decode",
        &bad_decode.url(),
    ]);
    for _ in 0..30 {
        assert_eq!(router.post("/generate", &ask(3)).await.0, StatusCode::OK);
    }
    assert!(router.total("retries").await > 0);
    // A decode may have ended before its prefill was known to have failed; then there is another one.
    assert!(good_decode.count("finished").await >= 30);
    for bad in [bad_prefill, bad_decode] {
        assert_eq!(bad.count("begun").await, 0);
    }
    router.is_at_rest().await;
}

/// What was tried elsewhere with success is no failure, and nobody has left.
#[tokio::test]
async fn a_pair_that_was_tried_again_counts_as_nothing_else() {
    let (good_prefill, good_decode) = (fast("prefill", "4"), fast("decode", "2"));
    let refusing = answering("HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy").await;
    let closing = scripted(|mut talk| Box::pin(async move { drop(talk.request().await) })).await;
    let breaking = scripted(|mut talk| {
        Box::pin(async move {
            talk.request().await;
            talk.say("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na begin").await;
        })
    })
    .await;
    for bad in [&refusing, &closing, &breaking] {
        let bad = bad.url();
        let (prefill, decode) = (good_prefill.with("dp_size=4"), good_decode.with("dp_size=2"));
        let mut lists = vec![["--prefill", &bad, "--prefill", &prefill, "--decode", &decode]];
        if bad != breaking.url() {
            lists.push(["--prefill", &prefill, "--decode", &bad, "--decode", &decode]);
        }
        for list in lists {
            let router = router(&[&list[..], &["--no-polls"]].concat());
            let again = async || {
                let (status, text) = router.post("/generate", &ask(3)).await;
                assert_eq!(status, StatusCode::OK, "{text}");
                router.total("retries").await > 2
            };
            until(true, again).await;
            router.is_at_rest().await;
            for nothing in ["failed", "client_left", "broken"] {
                assert_eq!(router.total(nothing).await, 0, "{nothing} with {list:?}");
            }
        }
    }
}

/// A response that isn't streamed comes long after the first token.
#[tokio::test]
async fn a_prefill_that_has_ended_counts_no_more() {
    let pair =
        pair(fast("prefill", "4"), endless_engine(&["--role", "decode", "--dp-size", "2"]), &[]);
    let request = pair.router.send(post("/generate", &ask(1_000_000)));
    let waiting = async {
        until(1, || pair.router.in_flight("decode")).await;
        until(0, || pair.router.in_flight("prefill")).await;
        assert_eq!(pair.prefill.count("finished").await, 1);
        assert_eq!(pair.router.in_flight("decode").await, 1);
    };
    tokio::select! {
        _ = request => panic!("it takes for ever"),
        () = waiting => {}
    }
    pair.router.is_at_rest().await;
}

#[tokio::test]
async fn a_prefill_that_never_ends_is_left_some_time_after_its_decode() {
    let (gone, mut going) = tokio::sync::mpsc::unbounded_channel();
    let prefill = scripted(move |mut talk| {
        let gone = gone.clone();
        Box::pin(async move {
            talk.request().await;
            talk.say("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na begin").await;
            while talk.read().await.is_some() {}
            gone.send(()).ok();
        })
    })
    .await;
    let decode = answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let (prefill, decode) = (prefill.url(), decode.url());
    let router = router(&["--prefill", &prefill, "--decode", &decode, "--no-polls"]);
    for _ in 0..10 {
        assert_eq!(router.post("/generate", &ask(1)).await, (StatusCode::OK, "ok".into()));
    }
    router.is_at_rest().await;
    for _ in 0..10 {
        patiently(going.recv()).await.expect("the connection ends");
    }
}

/// The decode side of the file is refused when the prefill side has been taken.
#[tokio::test]
async fn a_file_that_is_refused_changes_neither_side() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let set = |settings: String| std::fs::write(file.path(), settings).unwrap();
    set("prefill = \"http://127.0.0.1:1\"\ndecode = \"http://127.0.0.1:2\"\n".into());
    let config = file.path().to_str().unwrap();
    let mut command =
        command(&["route", "--listen", "127.0.0.1:0", "--no-polls", "--config", config]);
    command.stderr(log.reopen().unwrap());
    let router = start(command);
    let pools = async || [router.pool("prefill").await, router.pool("decode").await];
    let before = pools().await;
    let many: Vec<_> =
        (1..10).map(|engine| format!("http://127.0.0.1:{engine},dp_size=1024")).collect();
    set(format!("policy = \"random\"\nprefill = \"http://127.0.0.1:3\"\ndecode = {many:?}\n"));
    router.signal("-HUP");
    let refused = async || std::fs::read_to_string(log.path()).unwrap().contains("stays as it was");
    until(true, refused).await;
    assert_eq!(pools().await, before);
}

#[tokio::test]
async fn what_is_no_pair() {
    let pair = pair(fast("prefill", "4"), fast("decode", "2"), &["--body-limit", "1000"]);
    assert_eq!(pair.router.json("/v1/models").await["data"][0]["id"], "mock");
    let bad = Request::post("/generate").body(Full::from("no JSON")).unwrap();
    let (status, reason) = text(pair.router.send(bad).await.unwrap()).await;
    assert_eq!((status, code(&reason)), (StatusCode::BAD_REQUEST, "invalid_json".into()));
    let large = json!({ "text": "x".repeat(2_000) });
    let (status, reason) = pair.router.post("/generate", &large).await;
    assert_eq!((status, code(&reason)), (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large".into()));
    pair.router.is_at_rest().await;
}
