//! What is counted, from when, until when. The known faults of such routers first, by their names.

use std::fs;

use http_body_util::BodyExt;
use hyper::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use crate::harness::*;

#[tokio::test]
async fn fault_counting_only_after_prefill_has_finished() {
    let engine = slow_engine(&[]);
    let router = router(&["--engine", &engine.url()]);
    let mut sender = router.connect().await;
    let request =
        tokio::spawn(async move { sender.send_request(post("/generate", &ask(5))).await });
    engine.until_count("outstanding", 1).await;
    assert_eq!(engine.count("running").await, 0, "it is in prefill");
    assert_eq!(router.in_flight("engines").await, 1);
    request.abort();
    router.is_at_rest().await;
}

#[tokio::test]
async fn fault_releasing_when_the_response_object_returns() {
    let (go_on, wait) = watch::channel(0);
    let engine = scripted(move |mut talk| {
        let mut wait = wait.clone();
        Box::pin(async move {
            talk.request().await.unwrap();
            talk.say("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n").await;
            for part in ["ab", "cd"] {
                wait.changed().await.unwrap();
                talk.say(part).await;
            }
            talk.read().await;
        })
    })
    .await;
    let router = router_before(&[&engine], &[]);
    let mut response = router.send(post("/generate", &ask(5))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(router.in_flight("engines").await, 1, "the head is here, nothing of the body");
    go_on.send(1).unwrap();
    let part = patiently(response.frame()).await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(part, "ab");
    assert_eq!(router.in_flight("engines").await, 1, "half of the body is here");
    go_on.send(2).unwrap();
    assert_eq!(text(response).await.1, "cd");
    router.is_at_rest().await;
}

#[tokio::test]
async fn fault_leaking_a_count_for_each_client_that_leaves() {
    let engine = slow_engine(&["--dp-size", "2"]);
    let router = router(&["--engine", &engine.with("dp_size=2")]);
    for round in 1..=20 {
        let mut sender = router.connect().await;
        let request =
            tokio::spawn(async move { sender.send_request(post("/generate", &ask(5))).await });
        engine.until_count("outstanding", 1).await;
        request.abort();
        engine.until_count("aborted", round).await;
    }
    router.is_at_rest().await;

    let engine = endless_engine(&[]);
    let router = crate::harness::router(&["--engine", &engine.url()]);
    for round in 1..=20 {
        let mut sender = router.connect().await;
        let request = post("/generate", &streamed(1_000_000));
        let mut response = patiently(sender.send_request(request)).await.unwrap();
        // Half of them leave unread.
        if round % 2 == 0 {
            response.frame().await.unwrap().unwrap();
        }
        drop((response, sender));
        engine.until_count("aborted", round).await;
    }
    router.is_at_rest().await;
    until(20, || router.total("client_left")).await;
}

#[tokio::test]
async fn fault_resets_that_wipe_live_counts() {
    let engine = slow_engine(&["--dp-size", "2"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = format!("engine = [\"{}\"]\n", engine.with("dp_size=2"));
    fs::write(file.path(), config).unwrap();
    let router = router(&["--config", file.path().to_str().unwrap()]);
    let clients = in_prefill(&router, &engine, 5).await;
    router.signal("-HUP");
    let polls = async || {
        engine.json("/control/report").await["polls_unix_ms"].as_array().unwrap().len() > 10
    };
    until(true, polls).await;
    assert_eq!(router.in_flight("engines").await, 5);
    drop(clients);
    router.is_at_rest().await;
}

/// So many requests, which end when what is returned is dropped.
async fn asking(router: &Process, count: u64) -> Vec<tokio::net::TcpStream> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut stream = router.stream().await;
        let body = ask(5).to_string();
        let head =
            format!("POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        clients.push(stream);
    }
    clients
}

async fn in_prefill(router: &Process, engine: &Process, count: u64) -> Vec<tokio::net::TcpStream> {
    let clients = asking(router, count).await;
    engine.until_count("outstanding", count).await;
    clients
}

#[tokio::test]
async fn fault_a_worker_removed_and_added_again_while_old_requests_end() {
    let (engine, other) = (slow_engine(&[]), slow_engine(&[]));
    let file = tempfile::NamedTempFile::new().unwrap();
    let set = |engines: &[&Process]| {
        let urls: Vec<String> = engines.iter().map(|engine| engine.url()).collect();
        fs::write(file.path(), format!("engine = {urls:?}\n")).unwrap();
    };
    set(&[&engine]);
    let router = router(&["--config", file.path().to_str().unwrap()]);
    let label = format!("{}@0", engine.address);
    let old = in_prefill(&router, &engine, 3).await;

    set(&[&other]);
    router.signal("-HUP");
    let of_engine = async || router.workers().await.into_iter().find(|(name, ..)| *name == label);
    let expected = |state: &str, count| Some((label.clone(), state.to_owned(), count));
    until(expected("draining", 3), of_engine).await;
    let elsewhere = in_prefill(&router, &other, 1).await;

    set(&[&engine, &other]);
    router.signal("-HUP");
    until(expected("active", 3), of_engine).await;
    drop(old);
    until(expected("active", 0), of_engine).await;
    drop(elsewhere);
    router.is_at_rest().await;
}

#[tokio::test]
async fn fault_registering_again_gives_two_entries() {
    let engines = [slow_engine(&["--dp-size", "2"]), slow_engine(&["--dp-size", "2"])];
    let file = tempfile::NamedTempFile::new().unwrap();
    let urls = engines.each_ref().map(|engine| engine.with("dp_size=2"));
    fs::write(file.path(), format!("engine = {urls:?}\n")).unwrap();
    let router = router(&["--config", file.path().to_str().unwrap()]);
    let before = router.workers().await;
    assert_eq!(before.len(), 4);
    for _ in 0..3 {
        router.signal("-HUP");
    }
    // A reload that changes something shows that the others are over.
    fs::write(file.path(), format!("policy = \"random\"\nengine = {urls:?}\n")).unwrap();
    router.signal("-HUP");
    until("random".into(), async || router.pool("engines").await["policy"].clone()).await;
    assert_eq!(router.workers().await, before);

    let twice = ["--engine", &urls[0], "--engine", &urls[0].replace(",dp_size=2", "/")];
    let output = command(&[&["route"], &twice[..]].concat()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("is given twice"));
}

#[tokio::test]
async fn an_engine_that_breaks_off_ends_its_count_and_the_client_knows() {
    let engine = engine(&["--faults", r#"{"break_every":1}"#]);
    let router = router(&["--engine", &engine.url()]);
    for body in [streamed(10), ask(10)] {
        let response = router.send(post("/generate", &body)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(patiently(response.into_body().collect()).await.is_err());
    }
    router.is_at_rest().await;
    assert_eq!(router.total("broken").await, 2);
    assert_eq!(router.total("client_left").await, 0);
}

#[tokio::test]
async fn a_client_that_leaves_while_its_body_is_sent_ends_its_count() {
    let engine = answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let router = router_before(&[&engine], &[]);
    let mut stream = router.stream().await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nabc")
        .await
        .unwrap();
    router.until_in_flight(1).await;
    drop(stream);
    router.is_at_rest().await;
}

/// hyper looks for the end of a connection only where nothing unread is before it.
#[tokio::test]
async fn a_client_that_leaves_with_something_unread_ends_its_count() {
    let engine = slow_engine(&[]);
    let deaf = scripted(|mut talk| {
        Box::pin(async move {
            talk.head().await;
            std::future::pending().await
        })
    })
    .await;
    let body = ask(5).to_string();
    let head = |length: usize| {
        format!("POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n")
    };
    let request = head(body.len()) + &body;
    for (engine, request) in [
        (engine.url(), request.clone() + "\r\n"),
        (engine.url(), request.clone() + &request),
        (deaf.url(), head(64 << 20) + &"a".repeat(12 << 20)),
    ] {
        let router = router(&["--no-polls", "--engine", &engine]);
        let mut clients = Vec::new();
        for _ in 0..4 {
            let mut stream = router.stream().await;
            // It takes with it what it has not sent; else its system would wait for room to send it first.
            stream.set_zero_linger().unwrap();
            let request = request.clone();
            clients.push(tokio::spawn(async move {
                stream.write_all(request.as_bytes()).await.ok();
                stream
            }));
        }
        router.until_in_flight(4).await;
        for client in clients {
            client.abort();
            drop(client.await);
        }
        router.is_at_rest().await;
        assert_eq!(router.total("client_left").await, 4);
        assert_eq!(router.total("failed").await, 0);
    }
    engine.until_count("outstanding", 0).await;
    assert_eq!(engine.count("aborted").await, 8);
}

#[tokio::test]
async fn a_response_with_trailers_is_whole_and_its_connection_kept() {
    let engine = answering(WITH_TRAILERS).await;
    let router = router_before(&[&engine], &[]);
    for _ in 0..10 {
        assert_eq!(router.post("/generate", &ask(1)).await, (StatusCode::OK, "ok".into()));
        router.is_at_rest().await;
    }
    assert_eq!(router.total("client_left").await, 0);
    assert_eq!(engine.connections(), 1);
}

/// Loads decide ties alone, so that no engine has to wait for its first, nor for one that is late.
#[tokio::test]
async fn engines_without_loads_get_their_share_of_least_requests() {
    let engines = [slow_engine(&[]), slow_engine(&[]), slow_engine(&[])];
    engines[1].control(json!({ "loads_hang": true })).await;
    engines[2].control(json!({ "loads_shape": "truncated" })).await;
    let urls: Vec<_> = engines.iter().map(|engine| format!("--engine={}", engine.url())).collect();
    let router = router(&[&urls[0], &urls[1], &urls[2], "--poll-refusals", "1000000"]);
    let loaded = async || {
        let pool = router.pool("engines").await;
        let workers = pool["workers"].as_array().unwrap().iter();
        workers.filter(|worker| worker["load"].is_object()).count()
    };
    until(1, loaded).await;
    let clients = asking(&router, 30).await;
    for engine in &engines {
        engine.until_count("outstanding", 10).await;
    }
    drop(clients);
    router.is_at_rest().await;
}

#[tokio::test]
async fn every_rank_of_every_engine_gets_its_share() {
    let engines = [slow_engine(&["--dp-size", "4"]), slow_engine(&["--dp-size", "2"])];
    let urls = [engines[0].with("dp_size=4"), engines[1].with("dp_size=2,weight=2")];
    for rank_in in ["header", "body"] {
        let options = ["--engine", &urls[0], "--engine", &urls[1], "--dp-rank-in", rank_in];
        let router = router(&options);
        let clients = asking(&router, 64).await;
        engines[0].until_count("outstanding", 32).await;
        engines[1].until_count("outstanding", 32).await;
        assert_eq!(engines[0].counts("outstanding").await, [8; 4]);
        assert_eq!(engines[1].counts("outstanding").await, [16; 2]);
        assert_eq!(engines[0].count("unrouted").await, 0);
        drop(clients);
        router.is_at_rest().await;
        engines[0].until_count("outstanding", 0).await;
        engines[1].until_count("outstanding", 0).await;
    }
}

#[tokio::test]
async fn a_thousand_streams_at_once() {
    let engine = engine(&["--dp-size", "8"]);
    let router = router(&["--engine", &engine.with("dp_size=8")]);
    let mut streams = tokio::task::JoinSet::new();
    for number in 0..1_000 {
        let mut sender = router.connect().await;
        streams.spawn(async move {
            let response = patiently(sender.send_request(post("/generate", &streamed(20)))).await;
            let mut response = response.unwrap();
            if number % 10 == 0 {
                // A tenth leaves.
                response.frame().await.unwrap().unwrap();
                return None;
            }
            Some(text(response).await.1.matches("data: ").count())
        });
    }
    let ends = streams.join_all().await;
    assert_eq!(ends.iter().flatten().count(), 900);
    assert!(ends.iter().flatten().all(|events| *events == 21));
    router.is_at_rest().await;
    assert_eq!(engine.count("begun").await, 1_000);
}

#[tokio::test]
async fn a_pool_that_is_full_and_one_that_is_empty_say_so_differently() {
    let engine = slow_engine(&[]);
    let router = router(&["--engine", &engine.with("max_in_flight=2"), "--poll-refusals", "1"]);
    let clients = in_prefill(&router, &engine, 2).await;
    let response = router.send(post("/generate", &ask(5))).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(code(&text(response).await.1), "saturated");
    engine.control(serde_json::json!({ "loads_status": 500 })).await;
    let vetoed = async || router.pool("engines").await["engines"][0]["vetoed"] == true;
    until(true, vetoed).await;
    let response = router.send(post("/generate", &ask(5))).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(!response.headers().contains_key("retry-after"));
    assert_eq!(code(&text(response).await.1), "no_worker");
    assert_eq!(router.in_flight("engines").await, 2, "a veto ends nothing");
    drop(clients);
    router.is_at_rest().await;
}

#[tokio::test]
async fn a_slow_reader_counts_until_it_has_read() {
    let engine = scripted(|mut talk| {
        Box::pin(async move {
            talk.request().await.unwrap();
            talk.say("HTTP/1.1 200 OK\r\ncontent-length: 67108864\r\n\r\n").await;
            let part = vec![b'x'; 1 << 20];
            for _ in 0..64 {
                if talk.stream.write_all(&part).await.is_err() {
                    return;
                }
            }
            talk.read().await;
        })
    })
    .await;
    let router = router_before(&[&engine], &[]);
    let mut stream = router.stream().await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut part = vec![0; 1 << 20];
    stream.read_exact(&mut part).await.unwrap();
    assert_eq!(router.in_flight("engines").await, 1);
    drop(stream);
    router.is_at_rest().await;
}
