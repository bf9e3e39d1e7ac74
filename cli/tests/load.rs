//! `evenkeel load` against mock engines, without a router: what it counts is what they did.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

struct Engine {
    child: Child,
    url: String,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn evenkeel() -> Command {
    Command::new(env!("CARGO_BIN_EXE_evenkeel"))
}

fn engine(options: &[&str]) -> Engine {
    let mut child = evenkeel()
        .args(["mock-engine", "--sample-interval", "5ms"])
        .args(options)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    Engine { child, url: url.trim().into() }
}

fn load(router: &str, options: &[&str]) -> Output {
    evenkeel().args(["load", router, "--json", "--warm-up", "0s"]).args(options).output().unwrap()
}

fn figures(router: &str, options: &[&str]) -> Value {
    let output = load(router, options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Answers the one request of each connection so.
fn server(answer: impl Fn(TcpStream) -> std::io::Result<()> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            // The client may leave before the end.
            let _ = read_request(&stream).and_then(|()| answer(stream));
        }
    });
    url
}

fn read_request(stream: &TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line)? > 2 {
        if let Some(given) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = given.trim().parse().unwrap();
        }
        line.clear();
    }
    reader.read_exact(&mut vec![0; length])
}

fn answers(headers: &'static str, json: &'static str) -> String {
    server(move |mut stream| {
        let length = json.len();
        write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n")?;
        write!(stream, "{headers}\r\n{json}")
    })
}

const QUICK: [&str; 2] = ["--service", "lognormal:mean=10ms,cv=1"];
const SHORT: [&str; 6] = ["--duration", "1s", "--clients", "10", "--think", "exp:5ms"];

#[test]
fn what_clients_count_is_what_the_engine_saw() {
    let engine = engine(&[&QUICK[..], &["--dp-size", "4"]].concat());
    for form in [&[][..], &["--whole"]] {
        let figures =
            figures(&engine.url, &[&SHORT[..], form, &["--engine", &engine.url]].concat());
        assert!(figures["requests"].as_u64() > Some(10), "{figures}");
        for count in ["requests", "finished"] {
            assert_eq!(figures[count], figures["at_engines"]["begun"], "{figures}");
        }
        assert_eq!(figures["at_engines"]["finished"], figures["finished"], "{figures}");
        assert_eq!(figures["errors"], serde_json::json!({}));
        assert_eq!(figures["at_engines"]["outstanding"], 0);
        assert!(figures["ranks"]["outstanding_cv"].as_f64() > Some(0.0), "{figures}");
        assert_eq!(figures["engines"]["outstanding_cv"], 0.0, "there is one engine");
        let [added, latency] = ["added_ms", "latency_ms"].map(|time| figures[time]["p50"].as_f64());
        assert!(Some(0.0) < added && added < latency, "{figures}");
    }
}

#[test]
fn clients_that_leave_are_aborted_requests() {
    let engine = engine(&["--service", "lognormal:mean=200ms,cv=0"]);
    let leave = ["--leave", "0.5", "--engine", &engine.url];
    let figures = figures(&engine.url, &[&SHORT[..], &leave].concat());
    assert!(figures["left"].as_u64() > Some(0), "{figures}");
    assert_eq!(figures["left"], figures["at_engines"]["aborted"], "{figures}");
    assert_eq!(figures["finished"], figures["at_engines"]["finished"], "{figures}");
    assert_eq!(figures["errors"], serde_json::json!({}));
}

#[test]
fn errors_are_told_apart() {
    for (faults, form, error) in [
        (r#"{"break_every": 2}"#, &[][..], "broken"),
        (r#"{"break_every": 2}"#, &["--whole"], "broken"),
        (r#"{"fail_every": 2, "fail_status": 500}"#, &[], "status 500"),
    ] {
        let engine = engine(&[&QUICK[..], &["--faults", faults]].concat());
        let figures = figures(&engine.url, &[&SHORT[..], form].concat());
        let count = figures["errors"][error].as_u64().unwrap_or(0);
        assert_eq!(figures["errors"].as_object().unwrap().len(), 1, "{faults}: {figures}");
        assert!(count > 0 && figures["finished"].as_u64() > Some(0), "{faults}: {figures}");
        assert_eq!(
            figures["finished"].as_u64().map(|finished| finished + count),
            figures["requests"].as_u64()
        );
    }
    // Nobody listens where somebody just did.
    let url = engine(&[]).url.clone();
    let output = load(&url, &SHORT);
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figures["errors"]["connect"], figures["requests"], "{figures}");
    assert_eq!(output.status.code(), Some(1), "no request got anywhere");
}

#[test]
fn bursts_that_all_failed_are_a_failure() {
    let engine = engine(&["--faults", r#"{"fail_every": 1}"#]);
    let options = ["--duration", "0s", "--bursts", "1", "--burst-size", "4"];
    let output = load(&engine.url, &[&options[..], &["--engine", &engine.url]].concat());
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figures["bursts"][0]["errors"], 4, "{figures}");
    assert_eq!(output.status.code(), Some(1), "no request got anywhere");
}

#[test]
fn a_time_that_no_engine_can_have_taken_is_not_taken_off() {
    for (dur, taken) in [("9e9", false), ("0.001", true)] {
        let headers = format!("Server-Timing: engine;dur={dur}\r\n").leak();
        let options = [&SHORT[..], &["--whole"]].concat();
        let figures = figures(&answers(headers, "{}"), &options);
        assert!(figures["finished"].as_u64() > Some(0), "{figures}");
        assert_eq!(figures["added_ms"].is_object(), taken, "{figures}");
    }
}

#[test]
fn engines_that_are_none_are_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = engine(&[]).url.clone();
    let endless = server(|mut stream| {
        write!(stream, "HTTP/1.1 200 OK\r\n\r\n")?;
        loop {
            stream.write_all(&[b' '; 1 << 16])?;
        }
    });
    for (url, why) in [
        (format!("http://{}", silent.local_addr().unwrap()), "no answer"),
        (gone, "Connection refused"),
        (endless, "length limit"),
        (answers("", "no JSON"), "expected ident"),
    ] {
        let options = ["--duration", "0s", "--bursts", "1", "--burst-size", "1", "--engine", &url];
        let output = load("http://127.0.0.1:1", &options);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{url}");
        assert!(error.contains(&format!("{url}/control/re")) && error.contains(why), "{error}");
    }
}

#[test]
fn a_router_that_is_none_is_named() {
    let (engine, gone) = (engine(&[]), engine(&[]).url.clone());
    let options = ["--duration", "0s", "--bursts", "1", "--engine", &engine.url];
    let output = load(&gone, &options);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains(&gone), "{error}");
}

/// An engine without a router before it takes its ranks in turn.
#[test]
fn bursts_are_counted_by_rank_and_engine() {
    let (one, other) = (engine(&["--dp-size", "4"]), engine(&["--dp-size", "2"]));
    let options = ["--duration", "0s", "--bursts", "2", "--burst-size", "6", "--tokens", "1"];
    let engines = ["--engine", &one.url, "--engine", &other.url];
    let figures = figures(&one.url, &[&options[..], &engines].concat());
    let bursts = figures["bursts"].as_array().unwrap();
    assert_eq!(bursts.len(), 2);
    for burst in bursts {
        assert_eq!(burst["errors"], 0, "{figures}");
        assert_eq!(burst["engines"], serde_json::json!({ "min": 0, "max": 6 }), "{figures}");
        assert_eq!(burst["ranks"], serde_json::json!({ "min": 0, "max": 2 }), "{figures}");
    }
}

#[test]
fn bad_options_are_refused() {
    for (options, why) in [
        (&["--think", "exp:soon"][..], "expected a time"),
        (&["--leave", "2"], "from 0 to 1"),
        (&["--leave", "0.1", "--whole"], "cannot be used with"),
        (&["--engine", "https://127.0.0.1:1"], "expected a URL such as"),
        (&["--engine", "http://u:p@127.0.0.1:1"], "expected a URL such as"),
        (&["--duration", "0s", "--engine", "http://127.0.0.1:1", "--bursts", "1"], "mock engine"),
    ] {
        let output = load("http://127.0.0.1:1", options);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(why), "{options:?}: {error}");
    }
}
