//! Options, files, signals, and what the router tells of itself.

use std::fs;

use http_body_util::Full;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, StatusCode};
use serde_json::json;
use tokio::net::TcpStream;

use crate::harness::*;

#[tokio::test]
async fn a_rank_count_changes_while_requests_run() {
    let engine = endless_engine(&["--dp-size", "8"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let set = |ranks: u32| {
        let engine = engine.with(&format!("dp_size={ranks},weight=3,max_in_flight=100"));
        fs::write(path, format!("unreported-compete = true\nengine = [\"{engine}\"]\n")).unwrap();
    };
    set(2);
    let router = router(&["--config", path]);
    let mut streams = Vec::new();
    let mut last = 0;
    for ranks in [2, 4, 1, 8] {
        if ranks != 2 {
            set(ranks);
            router.signal("-HUP");
        }
        let active = async || {
            router.workers().await.iter().filter(|(_, state, _)| state == "active").count()
        };
        until(ranks as usize, active).await;
        for _ in 0..8 {
            let response = router.send(post("/generate", &streamed(50))).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            streams.push(response);
        }
        last = ranks;
    }
    assert_eq!(last, 8);
    for response in streams {
        assert_eq!(text(response).await.1.matches("data: ").count(), 51);
    }
    router.is_at_rest().await;
    assert_eq!(engine.count("finished").await, 32);
    assert_eq!(engine.count("unrouted").await, 8, "with one rank there is nothing to say");
    assert_eq!(router.workers().await.len(), 8);
    assert_eq!(router.pool("engines").await["workers"][0]["weight"], 3);
    let polled = async || {
        let pool = router.pool("engines").await;
        pool["workers"].as_array().unwrap().iter().all(|worker| !worker["load"].is_null())
    };
    until(true, polled).await;
}

#[tokio::test]
async fn a_bad_file_changes_nothing() {
    let engine = engine(&[]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let good = format!("policy = \"random\"\nengine = [\"{}\"]\n", engine.url());
    fs::write(path, &good).unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command =
        command(&["route", "--listen", "127.0.0.1:0", "--config", path, "--log", "json"]);
    command.stderr(log.reopen().unwrap());
    let router = start(command);
    let before = router.workers().await;
    for (bad, reason) in [
        ("engine = [", "is no TOML"),
        ("", "no engine"),
        ("polcy = \"random\"", "polcy is no setting of a file"),
        ("engine = [\"http://a:1,dp_size=0\"]", "from 1 to 1024"),
        ("engine = [\"http://a:1\", \"http://A:1\"]", "is given twice"),
        (&format!("{good}threads = 3"), "without a new start"),
        (&format!("{good}retries = 1.5"), "1.5"),
        ("prefill = [\"http://a:1\"]\ndecode = [\"http://a:2\"]", "only by a new start"),
        (&format!("{good}config = \"other\""), "config is no setting of a file"),
        (&format!("{good}help = true"), "help is no setting of a file"),
        (&format!("{good}retries = false"), "invalid value 'false'"),
        (&format!("{good}retries = [1, 2]"), "retries is a list; one value is allowed"),
        (&format!("{good}no-polls = \"yes\""), "no-polls is true or false"),
        (&format!("{good}threads = 1979-05-27"), "threads is 1979-05-27; text"),
        ("engine = [\"http://a:1,dp_size=2,dp_size=3\"]", "dp_size is given twice"),
    ] {
        fs::write(path, bad).unwrap();
        router.signal("-HUP");
        until(true, async || fs::read_to_string(log.path()).unwrap().contains(reason)).await;
        assert_eq!(router.workers().await, before);
        assert_eq!(router.post("/generate", &ask(1)).await.0, StatusCode::OK);
    }
    for line in fs::read_to_string(log.path()).unwrap().lines() {
        serde_json::from_str::<serde_json::Value>(line).expect("each line of the log is JSON");
    }
    fs::write(path, good.replace("random", "round_robin")).unwrap();
    router.signal("-HUP");
    until("round_robin".into(), async || router.pool("engines").await["policy"].clone()).await;
}

/// It would have nobody to say it to.
#[tokio::test]
async fn a_log_that_cannot_be_written_ends_nothing() {
    let engine = engine(&[]);
    let usual = ["route", "--listen", "127.0.0.1:0", "--poll-interval", "20ms", "--engine"];
    let mut command = command(&[&usual[..], &[&engine.url()]].concat());
    command.stderr(fs::File::options().write(true).open("/dev/full").unwrap());
    let router = start(command);
    router.signal("-HUP");
    let failures = async || {
        router.pool("engines").await["engines"][0]["failures"].as_u64().is_some_and(|of| of > 3)
    };
    engine.control(json!({ "loads_status": 500 })).await;
    until(true, failures).await;
    engine.control(json!({})).await;
    until(true, async || !failures().await).await;
    assert_eq!(router.post("/generate", &ask(1)).await.0, StatusCode::OK);
}

/// A host without power closes no connection.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_system_looks_after_silent_connections() {
    let engine = slow_engine(&[]);
    let router = router(&["--no-polls", "--engine", &engine.url()]);
    let request = router.send(post("/generate", &ask(1)));
    let looked_after = async {
        router.until_in_flight(1).await;
        let port = |address: &str| {
            let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
            format!(":{port:04X}")
        };
        let (client, engine) = (port(&router.address), port(&engine.address));
        // Of established connections; a keep-alive timer has number 2.
        let timers = |of: &dyn Fn(&str, &str) -> bool| -> Vec<String> {
            let all = fs::read_to_string("/proc/net/tcp").unwrap();
            let lines = all.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
            let lines = lines.filter(|line| of(line[1], line[2]) && line[3] == "01");
            lines.map(|line| line[5][..2].to_owned()).collect()
        };
        until(vec!["02".to_owned()], async || timers(&|_, to| to.ends_with(&engine))).await;
        // Another connection is that of the status; it is one of the router's, too.
        let of_clients = async || timers(&|from, _| from.ends_with(&client)).contains(&"02".into());
        until(true, of_clients).await;
    };
    tokio::select! {
        _ = request => panic!("it takes an hour"),
        () = looked_after => {}
    }
}

#[tokio::test]
async fn ranks_more_of_an_engine_that_is_silent_wait_for_it() {
    let engine = engine(&["--dp-size", "4"]);
    engine.control(json!({ "loads_status": 500 })).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let set = |ranks: u32| {
        fs::write(
            file.path(),
            format!("engine = \"{}\"\n", engine.with(&format!("dp_size={ranks}"))),
        )
        .unwrap();
    };
    set(2);
    let router = router(&["--config", file.path().to_str().unwrap(), "--poll-refusals", "2"]);
    let vetoed = async || {
        let pool = router.pool("engines").await;
        let workers = pool["workers"].as_array().unwrap().iter();
        workers.filter(|worker| worker["vetoes"] == json!(["health"])).count()
    };
    until(2, vetoed).await;
    set(4);
    router.signal("-HUP");
    until(4, async || router.workers().await.len()).await;
    assert_eq!(vetoed().await, 4);
    engine.control(json!({})).await;
    until(0, vetoed).await;
    assert_eq!(router.post("/generate", &ask(1)).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_signal_ends_the_router_after_its_responses() {
    let engine = endless_engine(&[]);
    let url = engine.url();
    let mut drained = router(&["--engine", &url]);
    let response = drained.send(post("/generate", &streamed(50))).await.unwrap();
    drained.signal("-TERM");
    until(true, async || TcpStream::connect(&drained.address).await.is_err()).await;
    assert_eq!(text(response).await.1.matches("data: ").count(), 51);
    assert_eq!(drained.ended().await.code(), Some(0));

    let mut impatient = router(&["--engine", &url, "--drain-timeout", "100ms"]);
    let _response = impatient.send(post("/generate", &streamed(1_000_000))).await.unwrap();
    impatient.signal("-INT");
    assert_eq!(impatient.ended().await.code(), Some(1));

    let mut twice = router(&["--engine", &url]);
    let _response = twice.send(post("/generate", &streamed(1_000_000))).await.unwrap();
    twice.signal("-TERM");
    until(true, async || TcpStream::connect(&twice.address).await.is_err()).await;
    twice.signal("-TERM");
    assert_eq!(twice.ended().await.code(), Some(1));
}

#[tokio::test]
async fn a_flag_beats_the_environment_which_beats_the_default() {
    let engine = engine(&[]);
    let policy = async |variable: Option<&str>, options: &[&str]| {
        let url = engine.url();
        let usual = ["route", "--listen", "127.0.0.1:0", "--engine", &url, "--log-level", "error"];
        let mut command = command(&[&usual[..], options].concat());
        if let Some(metric) = variable {
            command.env("SGLANG_ROUTER_P2C_LOAD_METRIC", metric);
        }
        start(command).pool("engines").await["policy"].as_str().unwrap().to_owned()
    };
    let metric = "--p2c-load-metric";
    for (variable, options, expected) in [
        (None, &[][..], "least_requests"),
        (None, &["--policy", "power_of_two"], "power_of_two:tokens"),
        (Some("requests"), &["--policy", "power_of_two"], "power_of_two:requests"),
        (Some("requests"), &[], "power_of_two:requests"),
        (Some("requests"), &[metric, "tokens"], "power_of_two:tokens"),
        (
            Some("requests"),
            &["--policy", "power_of_two", metric, "least_requests"],
            "least_requests",
        ),
        (Some("requests"), &["--policy", "balanced"], "balanced"),
    ] {
        assert_eq!(policy(variable, options).await, expected, "{variable:?} {options:?}");
    }
    for policy_name in [
        "round_robin",
        "random",
        "power_of_two:tokens",
        "power_of_two:requests",
        "least_requests",
        "least_tokens",
        "balanced",
        "consistent_hashing",
    ] {
        assert_eq!(policy(None, &["--policy", policy_name]).await, policy_name);
    }
}

#[test]
fn bad_options_say_what_is_allowed() {
    let engine = ["--engine", "http://127.0.0.1:1"];
    for (options, reason) in [
        (&[][..], "no engine"),
        (&["--engine", "127.0.0.1:1"], "expected http[s]://HOST:PORT"),
        (&["--engine", "ftp://a:1"], "expected http[s]://HOST:PORT"),
        (&["--engine", "http://a:1/v1"], "without a user or a path"),
        (&["--engine", "http://a:0"], "expected http[s]://HOST:PORT"),
        (&["--engine", "http://127.0.0.1:1", "--listen", "127.0.0.1:1"], "is the router itself"),
        (&[&engine[..], &["--prefill-policy", "random"]].concat(), "for --prefill and --decode"),
        (&["--engine", "https://a..b:1"], "the URL's host is a..b"),
        (
            &["--engine", "http://a:1,weight=x"],
            "weight is \"x\": expected a whole number from 0 to 1000000",
        ),
        (&["--engine", "http://a:1,wait=1"], "\"wait\" is unknown; dp_size"),
        (&["--prefill", "http://a:1"], "both --prefill and --decode"),
        (
            &[&engine[..], &["--prefill", "http://a:1", "--decode", "http://a:2"]].concat(),
            "either --engine",
        ),
        (
            &[&engine[..], &["--policy", "best"]].concat(),
            "policy is \"best\"; allowed: round_robin",
        ),
        (
            &[&engine[..], &["--policy", "random", "--p2c-load-metric", "tokens"]].concat(),
            "power_of_two",
        ),
        (
            &[&engine[..], &["--p2c-load-metric", "kv"]].concat(),
            "possible values: tokens, requests, least_requests",
        ),
        (&[&engine[..], &["--hash-load-factor", "50"]].concat(), "from 100 to 10000"),
        (&[&engine[..], &["--poll-key-env", "NO_SUCH_KEY"]].concat(), "NO_SUCH_KEY"),
        (&[&engine[..], &["--poll-interval", "0s"]].concat(), "from 1ms"),
        (&[&engine[..], &["--listen", "nowhere"]].concat(), "nowhere"),
        (&["--config", "/no/such/file"], "/no/such/file"),
    ] {
        let output = command(&[&["route"], options].concat()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(reason), "{options:?}: {error}");
    }
    let output = command(&["route", "--policy", "random", "--engine", "http://a:1"])
        .env("SGLANG_ROUTER_P2C_LOAD_METRIC", "bogus")
        .args(["--policy", "power_of_two"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("bogus"));
}

#[tokio::test]
async fn sessions_stay_with_their_worker() {
    let engine = engine(&["--dp-size", "8"]);
    let url = engine.with("dp_size=8");
    let router =
        router(&["--engine", &url, "--policy", "consistent_hashing", "--hash-header", "x-user"]);
    for user in 0..20 {
        for _ in 0..3 {
            let request = Request::post("/generate")
                .header("x-user", format!("user {user}"))
                .body(Full::from(ask(1).to_string()))
                .unwrap();
            assert_eq!(text(router.send(request).await.unwrap()).await.0, StatusCode::OK);
        }
    }
    let counts = engine.counts("begun").await;
    assert!(counts.iter().all(|count| count % 3 == 0), "{counts:?}");
    assert!(counts.iter().filter(|count| **count > 0).count() > 3, "{counts:?}");
}

#[tokio::test]
async fn tokens_come_from_the_header_or_the_length() {
    let engine = slow_engine(&[]);
    let router = router(&["--engine", &engine.url(), "--tokens-header", "x-tokens"]);
    let tokens = async || router.pool("engines").await["workers"][0]["tokens"].as_u64().unwrap();
    let body = ask(1).to_string();
    let request =
        |header: Option<&'static str>| {
            let mut request = Request::post("/generate").body(Full::from(body.clone())).unwrap();
            request.headers_mut().extend(header.map(|value| {
                (HeaderName::from_static("x-tokens"), HeaderValue::from_static(value))
            }));
            request
        };
    let hold = async |header| {
        let (mut sender, request) = (router.connect().await, request(header));
        tokio::spawn(async move { sender.send_request(request).await }).abort_handle()
    };
    let by_length = hold(None).await;
    until(body.len() as u64 / 4, tokens).await;
    by_length.abort();
    until(0, tokens).await;
    let by_header = hold(Some("1234")).await;
    until(1234, tokens).await;
    by_header.abort();
    let bad = router.send(request(Some("many"))).await.unwrap();
    assert_eq!(bad.status(), StatusCode::BAD_REQUEST);
    assert_eq!(code(&text(bad).await.1), "invalid_tokens");
    router.is_at_rest().await;
}

#[tokio::test]
async fn polls_have_the_key_and_requests_their_own() {
    let engine = answering(
        "HTTP/1.1 200 OK\r\ncontent-length: 65\r\n\r\n\
         [{\"dp_rank\":0,\"num_reqs\":1,\"num_waiting_reqs\":0,\"num_tokens\":77}]",
    )
    .await;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "secret\n").unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), format!("engine = \"{}\"\n", engine.url())).unwrap();
    let key = ["--poll-key-file", file.path().to_str().unwrap()];
    let config = ["--config", config.path().to_str().unwrap()];
    let router = router(&[config, key].concat());
    let load = async || router.pool("engines").await["workers"][0]["load"]["tokens"].clone();
    until(json!(77), load).await;
    let request =
        Request::get("/x").header("authorization", "Bearer own").body(Full::default()).unwrap();
    router.send(request).await.unwrap();
    let of = |path: &str, key: &str| {
        let key = format!("authorization: bearer {key}\r\n");
        let requests = engine.requests();
        let mut asked = requests.iter().filter(|got| got.head.starts_with(path)).peekable();
        assert!(asked.peek().is_some(), "{path}");
        assert!(asked.all(|got| got.head.contains(&key)), "{path}");
    };
    of("get /x ", "own");
    of("get /v1/loads", "secret");

    fs::write(file.path(), "another\n").unwrap();
    router.signal("-HUP");
    let polled = async || {
        engine.requests().iter().any(|got| got.head.contains("authorization: bearer another\r\n"))
    };
    until(true, polled).await;
}

#[tokio::test]
async fn it_tells_of_itself() {
    let engine = engine(&["--dp-size", "2"]);
    let router = router(&["--engine", &engine.with("dp_size=2"), "--policy", "round_robin"]);
    for _ in 0..10 {
        router.post("/generate", &ask(1)).await;
    }
    let request = Request::get("/metrics").body(Full::default()).unwrap();
    let metrics = text(router.send(request).await.unwrap()).await.1;
    assert!(metrics.contains("\nevenkeel_route_requests_total 10\n"), "{metrics}");
    for name in
        ["evenkeel_monitor_polls_total", "evenkeel_worker_in_flight", "evenkeel_worker_vetoed"]
    {
        assert!(metrics.contains(&format!("\n{name}{{")), "{name}: {metrics}");
    }
    let finished =
        format!("{{pool=\"engines\",worker=\"{}@1\",state=\"active\"}} 5\n", engine.address);
    assert!(metrics.contains(&format!("evenkeel_worker_finished_total{finished}")), "{metrics}");
    assert_eq!(router.post("/metrics", &json!({})).await.0, StatusCode::METHOD_NOT_ALLOWED);
}
