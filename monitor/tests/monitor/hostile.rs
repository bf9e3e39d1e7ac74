//! Engines that send what no engine should.

use std::io::Write as _;
use std::time::Duration;

use evenkeel_monitor::{MAX_BODY, Options};

use crate::engine::*;

/// After a good report, this reply to all polls leaves the engine without loads, for this reason.
async fn refused(reply: Reply, reason: &str) {
    let bench = Bench::with(1, Options { refusals: 1000, ..options() }).await;
    refused_by(&bench, reply, reason).await;
}

async fn refused_by(bench: &Bench, reply: Reply, reason: &str) {
    bench.server.reply(loads(&[7])).await;
    assert_eq!(bench.tokens(), [Some(7)]);
    bench.server.always(reply);
    bench.until_failed(2).await;
    assert_eq!(bench.tokens(), [None]);
    let failure = bench.status().last_failure.unwrap();
    assert!(failure.contains(reason), "{failure:?}");
    // And the monitor is as good as before.
    bench.server.always(loads(&[8]));
    eventually("a load again", || bench.tokens() == [Some(8)]).await;
}

/// A body of exactly so many bytes.
fn padded(size: usize) -> Vec<u8> {
    let body = br#"{"loads":[{"dp_rank":0,"num_total_tokens":6}]}"#;
    [body.as_slice(), &vec![b' '; size - body.len()]].concat()
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let chunks = body
        .chunks(10_000)
        .map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
    [head, chunks.collect::<Vec<_>>().concat(), b"0\r\n\r\n".to_vec()].concat()
}

#[tokio::test]
async fn one_mib_is_taken() {
    let bench = Bench::new(1).await;
    for reply in [json(padded(MAX_BODY)), Reply::Answer(chunked(&padded(MAX_BODY)))] {
        bench.server.reply(loads(&[7])).await;
        bench.server.reply(reply).await;
        assert_eq!(bench.tokens(), [Some(6)]);
    }
    assert_eq!(bench.server.connections(), 1);
}

#[tokio::test]
async fn one_mib_and_a_byte_is_refused() {
    refused(json(padded(MAX_BODY + 1)), "more than 1048576 bytes").await;
}

#[tokio::test]
async fn one_mib_and_a_byte_of_unknown_length_is_refused() {
    refused(Reply::Answer(chunked(&padded(MAX_BODY + 1))), "more than 1048576 bytes").await;
    let head = b"HTTP/1.0 200 OK\r\n\r\n".to_vec();
    refused(Reply::Raw([head, padded(MAX_BODY + 1)].concat()), "more than 1048576 bytes").await;
}

#[tokio::test]
async fn an_announced_size_is_not_waited_for() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec();
    refused(Reply::Drip(head), "more than 1048576 bytes").await;
}

#[tokio::test]
async fn an_endless_body_is_refused() {
    let head = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    refused(Reply::Endless(head, vec![b' '; 4096]), "more than 1048576 bytes").await;
}

#[tokio::test]
async fn a_gzip_bomb_is_refused_unread() {
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    bomb.write_all(&vec![b' '; 64 << 20]).unwrap();
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < MAX_BODY);
    for encoding in ["gzip", "identity, gzip", "br"] {
        let header = format!("Content-Encoding: {encoding}\r\n");
        refused(answer("200 OK", &header, &bomb), "only identity is allowed").await;
    }
    refused(json(&bomb), "no report").await;
}

#[tokio::test]
async fn an_identity_encoding_is_taken() {
    let bench = Bench::new(1).await;
    bench.server.until_asked(1).await;
    bench.server.reply(answer("200 OK", "Content-Encoding: identity\r\n", padded(64))).await;
    assert_eq!(bench.tokens(), [Some(6)]);
}

#[tokio::test]
async fn deep_nesting_is_refused() {
    for open in ["[", "{\"a\":", "{\"loads\":[{\"dp_rank\":", "[[{\"x\":["] {
        refused(json(open.repeat(MAX_BODY / 2 / open.len())), "nested deeper than 32").await;
    }
}

#[tokio::test]
async fn endless_headers_are_refused() {
    let head = b"HTTP/1.1 200 OK\r\n".to_vec();
    refused(Reply::Endless(head.clone(), b"X: y\r\n".to_vec()), "no HTTP answer").await;
    refused(Reply::Endless(head.clone(), b"X".to_vec()), "no HTTP answer").await;
    let long = format!("X: {}\r\n\r\n", "y".repeat(100 << 10));
    refused(Reply::Raw([head, long.into_bytes()].concat()), "no HTTP answer").await;
}

#[tokio::test]
async fn endless_chunk_extensions_and_trailers_are_refused() {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1".to_vec();
    refused(Reply::Endless([head.clone(), b";".to_vec()].concat(), b"x".to_vec()), "no HTTP").await;
    let trailers = [head, b"\r\n{\r\n0\r\n".to_vec()].concat();
    refused(Reply::Endless(trailers, b"X: y\r\n".to_vec()), "no HTTP answer").await;
}

#[tokio::test]
async fn chunked_garbage_is_refused() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for chunks in
        ["zz\r\n{}\r\n", "ffffffffffffffffff\r\n{}", "-1\r\n{}\r\n", "5\r\n{}\r\n0\r\n\r\n"]
    {
        refused(Reply::Raw(format!("{head}{chunks}").into_bytes()), "no HTTP answer").await;
    }
}

#[tokio::test]
async fn what_is_no_http_is_refused() {
    for bytes in ["", "\0\0\0\0", "HTTP/9.9 200 OK\r\n\r\n", "HTTP/1.1 20", "SSH-2.0-x\r\n\r\n"] {
        refused(Reply::Raw(bytes.into()), "no HTTP answer").await;
    }
}

#[tokio::test]
async fn half_a_body_is_refused() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 46\r\n\r\n";
    let half = r#"{"loads":[{"dp_rank":0,"num_to"#;
    refused(Reply::Raw(format!("{head}{half}").into()), "no HTTP answer").await;
    refused(json(half), "no report").await;
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let bench = Bench::with(1, Options { refusals: 1000, ..options() }).await;
    let target = Server::new().await;
    target.always(loads(&[1]));
    for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"] {
        bench.server.reply(loads(&[7])).await;
        let location = format!("Location: {}/v1/loads\r\n", target.url());
        bench.server.reply(answer(status, &location, "")).await;
        assert_eq!(bench.tokens(), [None]);
        assert!(
            bench.status().last_failure.unwrap().starts_with(&format!("status {}", &status[..3]))
        );
    }
    assert_eq!(target.asked(), 0);
}

#[tokio::test]
async fn a_dripping_body_and_a_hanging_engine_time_out() {
    let patience = Options { timeout: Duration::from_millis(50), refusals: 1000, ..options() };
    let bench = Bench::with(1, patience).await;
    bench.server.always(Reply::Drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n".into()));
    bench.until_failed(2).await;
    assert_eq!(bench.status().last_failure.unwrap(), "no answer in time");
    bench.server.always(Reply::Drip(b"HTTP/1.1 200 OK\r\nX:".into()));
    let asked = bench.server.asked();
    bench.server.until_asked(asked + 2).await;
    assert_eq!(bench.status().last_failure.unwrap(), "no answer in time");
    // Each poll that timed out has closed its connection.
    bench.server.always(loads(&[8]));
    eventually("a load again", || bench.tokens() == [Some(8)]).await;
    eventually("one connection", || bench.server.open() == 1).await;
}

#[tokio::test]
async fn interim_answers_without_end_time_out() {
    let patience = Options { timeout: Duration::from_millis(50), refusals: 1000, ..options() };
    let bench = Bench::with(1, patience).await;
    let interim = b"HTTP/1.1 100 Continue\r\n\r\n".to_vec();
    bench.server.always(Reply::Endless(Vec::new(), interim));
    bench.until_failed(2).await;
    bench.server.always(loads(&[8]));
    eventually("a load again", || bench.tokens() == [Some(8)]).await;
}

#[tokio::test]
async fn an_engine_forges_no_line_of_the_log() {
    keep_logs();
    let bench = Bench::new(1).await;
    bench.server.until_asked(1).await;
    let line = "2026-11-30T00:00:00Z ERROR forged";
    bench.server.reply(report(&[format!("[\"a\",\n\"{line}\"\n]")])).await;
    bench.server.reply(json(format!("{{\"loads\":\n\"{line}\"\n}}"))).await;
    bench.server.reply(answer("200 OK", &format!("Content-Encoding: \t{line}\r\n"), "")).await;
    let logs = logs();
    let forged: Vec<_> = logs.lines().filter(|logged| logged.contains("forged")).collect();
    assert_eq!(forged.len(), 3, "{forged:#?}");
    assert!(forged.iter().all(|logged| logged.contains(&bench.server.name())), "{forged:#?}");
}

/// Whatever is wrong with entries, they neither fail the poll nor take others along, and the log stays short.
#[tokio::test]
async fn entries_by_the_thousand_are_rejected_in_a_few_lines() {
    keep_logs();
    let bench = Bench::new(2).await;
    bench.server.until_asked(1).await;
    let mut entries: Vec<_> = (0..5000).map(|_| r#"{"dp_rank":"x"}"#.to_owned()).collect();
    entries.push(entry(r#""dp_rank":1,"num_total_tokens":4"#));
    bench.server.reply(report(&entries)).await;
    assert_eq!(bench.tokens(), [None, Some(4)]);
    let engine = format!("engine={}", bench.server.name());
    let logs = logs();
    let lines: Vec<_> =
        logs.lines().filter(|line| line.ends_with(&engine) && line.contains("reject")).collect();
    assert_eq!(lines.len(), 9, "{lines:#?}");
    assert!(lines[0].contains("WARN") && lines[0].contains("entry 0"), "{}", lines[0]);
}
