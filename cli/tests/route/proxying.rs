//! HTTP as a proxy has to speak it.

use std::fs;

use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use crate::harness::*;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn headers_of_one_hop_go_no_further() {
    let engine = answering(
        "HTTP/1.1 200 OK\r\nconnection: x-secret, keep-alive\r\nx-secret: 1\r\nkeep-alive: timeout=5\r\n\
         proxy-authenticate: a\r\nx-kept: 1\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\
         content-length: 2\r\n\r\nok",
    )
    .await;
    let router = router_before(&[&engine], &[]);
    let response = router
        .raw(
            "GET /a/b?c=d HTTP/1.1\r\nhost: client.example\r\nconnection: x-own, close\r\nx-own: 1\r\n\
             connection: x-more\r\nx-more: 1\r\nkeep-alive: 5\r\nproxy-connection: x\r\nte: gzip, trailers\r\n\
             proxy-authorization: secret\r\nauthorization: Bearer k\r\nx-kept: 1\r\nx-kept: 2\r\n\
             x-data-parallel-rank: 7\r\nx-forwarded-for: 10.1.1.1\r\nx-forwarded-for: 10.2.2.2\r\n\
             upgrade: h2c\r\n\r\n",
        )
        .await;
    let got = engine.requests().remove(0).head;
    let mut lines: Vec<&str> = got.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.remove(0), "get /a/b?c=d http/1.1");
    lines.sort_unstable();
    let expected = [
        "authorization: bearer k",
        &format!("host: {}", engine.address),
        "te: trailers",
        "x-forwarded-for: 10.1.1.1, 10.2.2.2, 127.0.0.1",
        "x-forwarded-host: client.example",
        "x-kept: 1",
        "x-kept: 2",
    ];
    assert_eq!(lines, expected);

    let response = response.to_lowercase();
    for gone in ["x-secret", "keep-alive", "proxy-authenticate"] {
        assert!(!response.contains(gone), "{gone}: {response}");
    }
    for kept in
        ["x-kept: 1", "set-cookie: a=1", "set-cookie: b=2", "content-length: 2", "\r\n\r\nok"]
    {
        assert!(response.contains(kept), "{kept}: {response}");
    }
}

#[tokio::test]
async fn connections_are_kept_on_both_sides() {
    let engine = answering(OK).await;
    let router = router_before(&[&engine], &[]);
    let mut sender = router.connect().await;
    for _ in 0..50 {
        sender.ready().await.unwrap();
        let response = patiently(sender.send_request(post("/", &json!({})))).await.unwrap();
        assert_eq!(text(response).await.1, "ok");
        router.is_at_rest().await;
    }
    assert_eq!(engine.requests().len(), 50);
    assert!(engine.connections() < 5, "{} connections", engine.connections());
}

#[tokio::test]
async fn a_client_that_expects_to_be_told_to_go_on_is_told() {
    let engine = answering(OK).await;
    let router = router_before(&[&engine], &[]);
    let mut stream = router.stream().await;
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\
        connection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut told = vec![0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    patiently(stream.read_exact(&mut told)).await.unwrap();
    assert_eq!(told, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"abc").await.unwrap();
    let mut response = String::new();
    patiently(stream.read_to_string(&mut response)).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("ok"), "{response}");
    let got = engine.requests().remove(0);
    assert_eq!(got.body, b"abc");
    assert!(!got.head.contains("expect"));
}

#[tokio::test]
async fn trailers_go_through_both_ways() {
    let engine = answering(WITH_TRAILERS).await;
    let router = router_before(&[&engine], &[]);
    let response =
        router.raw("GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: close\r\n\r\n").await;
    assert!(response.ends_with("2\r\nok\r\n0\r\nx-sum: 42\r\n\r\n"), "{response}");
    router.is_at_rest().await;

    let (heard, mut hear) = watch::channel(String::new());
    let engine = scripted(move |mut talk| {
        let heard = heard.clone();
        Box::pin(async move {
            let mut all = talk.head().await.unwrap();
            let mut byte = [0];
            while !all.ends_with("x-sum: 42\r\n\r\n") {
                talk.stream.read_exact(&mut byte).await.unwrap();
                all.push(byte[0].into());
            }
            heard.send(all).unwrap();
            talk.say(OK).await;
        })
    })
    .await;
    let router = router_before(&[&engine], &[]);
    let mut stream = router.stream().await;
    let head =
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n";
    stream.write_all(head).await.unwrap();
    // The head alone first, so that the scripted engine reads what follows byte by byte.
    router.until_in_flight(1).await;
    stream.write_all(b"2\r\nab\r\n0\r\nx-sum: 42\r\n\r\n").await.unwrap();
    patiently(hear.changed()).await.unwrap();
    assert!(hear.borrow().contains("transfer-encoding: chunked"));
}

/// By RFC 9112, 6.3, chunks tell the length, whatever Content-Length says.
#[tokio::test]
async fn of_two_lengths_of_a_response_the_chunks_win() {
    let engine = answering(
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    )
    .await;
    let router = router_before(&[&engine], &[]);
    let (status, all) = router.post("/generate", &ask(1)).await;
    assert_eq!((status, all.as_str()), (StatusCode::OK, "hello"));
    router.is_at_rest().await;
    assert_eq!(router.total("client_left").await, 0);
}

#[tokio::test]
async fn a_client_whose_body_is_broken_or_never_comes_is_told_so() {
    let engine = slow_engine(&[]);
    for rank_in in ["header", "body"] {
        let options = ["--client-timeout", "200ms", "--dp-rank-in", rank_in];
        let router = router(&[&["--no-polls", "--engine", &engine.url()], &options[..]].concat());
        let chunked =
            "POST /generate HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{ \r\n";
        let mut stream = router.stream().await;
        stream.write_all(chunked.as_bytes()).await.unwrap();
        if rank_in == "header" {
            router.until_in_flight(1).await;
        }
        stream.write_all(b"zz\r\n").await.unwrap();
        let mut heard = Vec::new();
        patiently(stream.read_to_end(&mut heard)).await.ok();
        let heard = String::from_utf8(heard).unwrap();
        assert!(heard.starts_with("HTTP/1.1 400") && heard.contains("incomplete_body"), "{heard}");
        router.is_at_rest().await;

        let heard = router.raw(chunked).await;
        assert!(heard.starts_with("HTTP/1.1 408") && heard.contains("body_timeout"), "{heard}");
        router.is_at_rest().await;
        assert_eq!(router.total("failed").await, 0);
    }
    engine.until_count("outstanding", 0).await;
}

#[tokio::test]
async fn heads_alone_and_old_clients() {
    let engine = answering("HTTP/1.1 200 OK\r\ncontent-length: 12345\r\n\r\n").await;
    let router = router_before(&[&engine], &[]);
    let mut sender = router.connect().await;
    for _ in 0..3 {
        sender.ready().await.unwrap();
        let head = Request::head("/").body(Full::default()).unwrap();
        let response = patiently(sender.send_request(head)).await.unwrap();
        assert_eq!(response.headers()["content-length"], "12345");
        assert_eq!(text(response).await.1, "");
        router.is_at_rest().await;
    }
    assert!(engine.requests()[0].head.starts_with("head / "));

    let engine =
        answering("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
            .await;
    let router = router_before(&[&engine], &[]);
    let response = router.raw("GET http://elsewhere/x HTTP/1.0\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.0 200") && response.ends_with("\r\n\r\nok"), "{response}");
    assert!(engine.requests()[0].head.starts_with("get /x http/1.1\r\n"));
    router.is_at_rest().await;
}

#[tokio::test]
async fn upgrades_and_tunnels_are_refused() {
    let engine = answering(OK).await;
    let router = router_before(&[&engine], &[]);
    for request in [
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    ] {
        let response = router.raw(request).await;
        assert!(response.starts_with("HTTP/1.1 501"), "{response}");
        assert!(response.contains("upgrade_not_supported"), "{response}");
    }
    assert!(engine.requests().is_empty());
    router.is_at_rest().await;
}

#[tokio::test]
async fn requests_can_not_be_smuggled() {
    let engine = answering(OK).await;
    let router = router_before(&[&engine], &[]);
    let hidden = "GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n";
    for head in [
        "transfer-encoding: chunked\r\ncontent-length: 4",
        "content-length: 4\r\ntransfer-encoding: chunked",
        "content-length: 4\r\ncontent-length: 40",
        "content-length: +4",
        "transfer-encoding: xchunked",
        "transfer-encoding: chunked, identity",
        "content-length: 4\r\nconnection: content-length",
        "transfer-encoding: chunked\r\nconnection: transfer-encoding",
    ] {
        let request = format!(
            "POST /seen HTTP/1.1\r\nhost: a\r\n{head}\r\nconnection: close\r\n\r\n0\r\n\r\n{hidden}"
        );
        router.raw(&request).await;
        for got in engine.requests() {
            assert!(got.head.starts_with("post /seen "), "{head}: {got:?}");
            let framings =
                [got.head.contains("content-length"), got.head.contains("transfer-encoding")];
            assert_ne!(framings, [true, true], "{head}: {got:?}");
        }
    }
    let response = router.raw("GET / HTTP/1.1\r\nhost: a\r\nbad header: x\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 400"), "{response}");
    // The router may close while the rest of such a head is still under way.
    let before = engine.requests().len();
    router.raw(&format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(1 << 20))).await;
    assert_eq!(engine.requests().len(), before);
    router.is_at_rest().await;
}

#[tokio::test]
async fn bytes_go_on_as_they_come() {
    let engine = scripted(|mut talk| {
        Box::pin(async move {
            talk.head().await.unwrap();
            talk.say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
            // An echo, letter by letter, before the request has ended.
            let mut byte = [0];
            while talk.stream.read_exact(&mut byte).await.is_ok() {
                let letter: char = byte[0].into();
                if letter.is_ascii_uppercase() {
                    talk.say(&format!("1\r\n{letter}\r\n")).await;
                }
            }
        })
    })
    .await;
    for rank_in in ["header", "body"] {
        let router = router_before(&[&engine], &["--body-limit", "2", "--dp-rank-in", rank_in]);
        let mut stream = router.stream().await;
        let head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nxyz\r\n";
        stream.write_all(head).await.unwrap();
        let mut heard = String::new();
        for letter in ["A", "B", "C"] {
            router.until_in_flight(1).await;
            stream.write_all(format!("1\r\n{letter}\r\n").as_bytes()).await.unwrap();
            let mut part = vec![0; 1024];
            while !heard.contains(&format!("1\r\n{letter}\r\n")) {
                let read = patiently(stream.read(&mut part)).await.unwrap();
                assert!(read > 0);
                heard += str::from_utf8(&part[..read]).unwrap();
            }
        }
        drop(stream);
        router.is_at_rest().await;
    }
}

#[tokio::test]
async fn large_bodies_take_no_memory() {
    const SIZE: usize = 512 << 20;
    let engine = scripted(|mut talk| {
        Box::pin(async move {
            talk.head().await.unwrap();
            let (mut reader, mut writer) = talk.stream.split();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n");
            writer.write_all(head.as_bytes()).await.unwrap();
            // Back what comes; a part of it may have come with the head.
            tokio::io::copy(&mut reader, &mut writer).await.ok();
        })
    })
    .await;
    let router = router_before(&[&engine], &[]);
    let stream = router.stream().await;
    let (mut reader, mut writer) = stream.into_split();
    let sending = tokio::spawn(async move {
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {SIZE}\r\n\r\n");
        writer.write_all(head.as_bytes()).await.unwrap();
        let part = vec![b'x'; 1 << 20];
        for _ in 0..SIZE >> 20 {
            writer.write_all(&part).await.unwrap();
        }
        writer
    });
    let mut read = 0;
    let mut part = vec![0; 1 << 20];
    // What came with the head is missing at the end.
    while read < SIZE - (1 << 20) {
        let more = patiently(reader.read(&mut part)).await.unwrap();
        assert!(more > 0);
        read += more;
    }
    drop((sending.await.unwrap(), reader));
    router.is_at_rest().await;
    let status = fs::read_to_string(format!("/proc/{}/status", router.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: usize = peak.trim().strip_suffix(" kB").unwrap().trim().parse().unwrap();
    assert!(peak < 100 << 10, "{peak} kB");
}

#[tokio::test]
async fn the_rank_goes_where_it_is_wanted() {
    let engine = answering(OK).await;
    let url = format!("{},dp_size=2", engine.url());
    let options =
        ["--no-polls", "--engine", &url, "--policy", "round_robin", "--body-limit", "100"];
    let send = async |rank_in: &str, body: &str| {
        let router = router(&[&options[..], &["--dp-rank-in", rank_in]].concat());
        let request = Request::post("/v1/chat/completions")
            .header("x-data-parallel-rank", "17")
            .body(Full::from(body.to_owned()))
            .unwrap();
        assert_eq!(text(router.send(request).await.unwrap()).await.1, "ok");
        let got = engine.requests.lock().unwrap().pop().unwrap();
        let in_head = got.head.lines().find_map(|line| line.strip_prefix("x-data-parallel-rank: "));
        (in_head.map(str::to_owned), String::from_utf8(got.body).unwrap())
    };
    let is_rank = |rank: Option<String>| matches!(rank.as_deref(), Some("0" | "1"));

    let body = r#"{"model":"m", "data_parallel_rank": 5,"n":1.50}"#;
    let (rank, got) = send("header", body).await;
    assert!(is_rank(rank));
    assert_eq!(got, body);
    let (rank, got) = send("body", body).await;
    assert_eq!(rank, None);
    let expected = |rank| format!(r#"{{"model":"m","n":1.50,"data_parallel_rank":{rank}}}"#);
    assert!(got == expected(0) || got == expected(1), "{got}");
    for other in ["no JSON", "[1,2]", "", &format!("{{\"a\":{:?}}}", "x".repeat(200))] {
        let (rank, got) = send("body", other).await;
        assert!(is_rank(rank), "{other}");
        assert_eq!(got, other);
    }
}

#[tokio::test]
async fn responses_stream_while_they_are_made() {
    let engine = endless_engine(&[]);
    let router = router(&["--engine", &engine.url()]);
    let mut response = router.send(post("/generate", &streamed(1_000_000))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    for _ in 0..5 {
        patiently(response.frame()).await.unwrap().unwrap();
    }
    assert_eq!(engine.count("running").await, 1);
    drop(response);
    router.is_at_rest().await;
}
