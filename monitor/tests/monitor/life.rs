//! Engines that come, go, fail and return; what is told of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel::{Pool, PoolConfig, Vetoes, WorkerConfig};
use evenkeel_monitor::{Engine, Error, Monitor, Options, host_port, worker_label};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use crate::engine::*;

fn vetoes(bench: &Bench) -> Vec<Vetoes> {
    bench.workers.iter().map(|&worker| bench.stats(worker).vetoes).collect()
}

#[tokio::test]
async fn failures_in_a_row_veto_and_only_a_success_lifts() {
    let bench = Bench::new(2).await;
    let broken = || answer("503 Service Unavailable", "", "");
    bench.server.until_asked(1).await;
    bench.server.reply(broken()).await;
    bench.server.reply(broken()).await;
    assert_eq!(vetoes(&bench), [Vetoes::NONE; 2]);
    // A success in between starts the row anew.
    bench.server.reply(loads(&[1, 1])).await;
    bench.server.reply(broken()).await;
    bench.server.reply(broken()).await;
    assert_eq!(vetoes(&bench), [Vetoes::NONE; 2]);
    assert!(!bench.status().vetoed);
    bench.server.reply(broken()).await;
    assert_eq!(vetoes(&bench), [Vetoes::HEALTH; 2]);
    assert!(bench.status().vetoed);
    bench.server.reply(broken()).await;
    assert_eq!(vetoes(&bench), [Vetoes::HEALTH; 2]);
    assert_eq!(bench.status().failures, 4);
    bench.server.reply(loads(&[1, 1])).await;
    assert_eq!(vetoes(&bench), [Vetoes::NONE; 2]);
    assert_eq!(bench.status().failures, 0);
}

#[tokio::test]
async fn an_operators_and_a_hosts_veto_stay() {
    let bench = Bench::with(2, Options { refusals: 1, ..options() }).await;
    bench.server.until_asked(1).await;
    bench.pool.veto(bench.workers[0], Vetoes::OPERATOR, true).unwrap();
    bench.pool.veto(bench.workers[1], Vetoes::HOST, true).unwrap();
    bench.server.reply(answer("503 Service Unavailable", "", "")).await;
    assert_eq!(vetoes(&bench), [Vetoes::OPERATOR, Vetoes::HOST].map(|veto| veto | Vetoes::HEALTH));
    bench.server.reply(loads(&[1, 1])).await;
    assert_eq!(vetoes(&bench), [Vetoes::OPERATOR, Vetoes::HOST]);
    assert_eq!(bench.tokens(), [Some(1), Some(1)]);
}

/// A host that adds a worker with the health veto waits for the engine's first answer; one that adds it
/// again without, while the engine is dead, does not undo the monitor's.
#[tokio::test]
async fn vetoes_of_workers_that_come_back_follow_the_engine() {
    let bench = Bench::with(1, Options { refusals: 1, ..options() }).await;
    let worker = bench.workers[0];
    bench.server.until_asked(1).await;
    let come_back = |vetoes| {
        let key = bench.stats(worker).key;
        let _request = bench.pool.guard_owned(bench.pool.begin(worker, 0).unwrap());
        bench.pool.remove(worker).unwrap();
        let config = WorkerConfig { vetoes, ..Default::default() };
        assert_eq!(bench.pool.add(key, config), Ok(worker));
        assert_eq!(bench.stats(worker).vetoes, vetoes);
    };
    bench.server.reply(loads(&[1])).await;
    come_back(Vetoes::HEALTH);
    bench.server.reply(loads(&[1])).await;
    assert_eq!(vetoes(&bench), [Vetoes::NONE]);
    bench.server.reply(answer("503 Service Unavailable", "", "")).await;
    come_back(Vetoes::NONE);
    bench.server.reply(answer("503 Service Unavailable", "", "")).await;
    assert_eq!(vetoes(&bench), [Vetoes::HEALTH]);
}

#[tokio::test]
async fn a_dead_engine_is_vetoed_and_comes_back() {
    let bench = Bench::new(2).await;
    bench.server.reply(loads(&[1, 2])).await;
    bench.server.kill();
    bench.until_failed(3).await;
    eventually("the veto", || vetoes(&bench) == [Vetoes::HEALTH; 2]).await;
    assert_eq!(bench.tokens(), [None, None]);
    assert!(bench.status().last_success_age.is_some());
}

#[tokio::test]
async fn one_poll_an_engine_on_a_kept_connection() {
    let bench = Bench::new(8).await;
    bench.server.always(loads(&[1; 8]));
    bench.server.until_asked(20).await;
    assert_eq!(bench.server.connections(), 1);
    assert_eq!(bench.server.open(), 1);
}

/// Some servers close a connection that was idle for a while, others after each answer.
#[tokio::test]
async fn connections_that_the_engine_closes_fail_no_poll() {
    let bench = Bench::with(1, Options { refusals: 1, ..options() }).await;
    bench.server.until_asked(1).await;
    let Reply::Answer(kept) = loads(&[1]) else { unreachable!() };
    let said = String::from_utf8(kept.clone()).unwrap();
    let closing = said.replacen("\r\n", "\r\nConnection: close\r\n", 1).into_bytes();
    for _ in 0..20 {
        // Closed though the answer did not say so; the question is on its way again before one knows.
        bench.server.reply(Reply::Raw(kept.clone())).await;
        bench.server.reply(Reply::Raw(closing.clone())).await;
        bench.server.reply(loads(&[1])).await;
        // Closed instead of an answer to the next question.
        bench.server.reply(Reply::Raw(Vec::new())).await;
    }
    assert_eq!(bench.status().failures, 0);
    assert_eq!(bench.status().last_failure, None);
}

#[tokio::test]
async fn an_engine_without_v1_loads_is_asked_the_oldest_way() {
    let bench = Bench::new(2).await;
    let oldest = r#"[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":70},
                     {"dp_rank":1,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}]"#;
    bench.server.until_asked(1).await;
    bench.server.reply(not_found()).await;
    bench.server.reply(json(oldest)).await;
    assert_eq!(bench.tokens(), [Some(70), Some(0)]);
    let load = bench.stats(bench.workers[0]).load.unwrap();
    assert_eq!((load.running, load.waiting), (Some(3), Some(2)));
    let path = |at: usize| bench.server.heads()[at].split(' ').nth(1).unwrap().to_owned();
    assert_eq!([path(0), path(1)], ["/v1/loads?include=core", "/get_load"]);
    // It is known now, for a while; then the current path gets another chance.
    for poll in 2..62 {
        assert_eq!(path(poll), "/get_load");
        bench.server.reply(json(oldest)).await;
    }
    assert_eq!(path(62), "/v1/loads?include=core");
    bench.server.reply(not_found()).await;
    bench.server.reply(json(oldest)).await;
    assert_eq!(path(64), "/get_load");
    // An engine that no longer knows the oldest is asked the current way at once.
    bench.server.reply(not_found()).await;
    assert_eq!(path(65), "/v1/loads?include=core");
    bench.server.reply(loads(&[8, 9])).await;
    assert_eq!(bench.tokens(), [Some(8), Some(9)]);
    assert_eq!(path(66), "/v1/loads?include=core");
    assert_eq!(bench.status().last_failure, None);
    // A failure makes it forget the oldest.
    bench.server.reply(not_found()).await;
    bench.server.reply(json(oldest)).await;
    bench.server.reply(answer("500 Internal Server Error", "", "")).await;
    assert_eq!(
        [path(67), path(68), path(69)],
        ["/get_load", "/get_load", "/v1/loads?include=core"]
    );
}

#[tokio::test]
async fn an_engine_of_one_rank_may_report_as_a_whole() {
    let bench = Bench::new(1).await;
    bench.server.until_asked(1).await;
    for (body, tokens) in [
        (r#"{"aggregate":{"total_running_reqs":2,"total_tokens":512}}"#, 512),
        (r#"{"loads":[{"dp_rank":null,"num_total_tokens":513}]}"#, 513),
        (r#"[{"num_tokens":514}]"#, 514),
        (r#"{"loads":[{"dp_rank":0,"num_total_tokens":515}],"aggregate":{"total_tokens":1}}"#, 515),
    ] {
        bench.server.reply(json(body)).await;
        assert_eq!(bench.tokens(), [Some(tokens)]);
    }
}

#[tokio::test]
async fn an_engine_behind_a_path() {
    let pool = Pool::new(PoolConfig::default()).unwrap();
    let monitor = Monitor::new(&pool, options()).unwrap();
    let server = Server::new().await;
    let worker = pool.add(1, Default::default()).unwrap();
    let url = format!("{}/engines/7/", server.url()).parse().unwrap();
    let name = monitor.add(Engine { url, workers: vec![worker], bearer: None }).unwrap();
    assert_eq!(name, server.name());
    server.until_asked(1).await;
    let head = &server.heads()[0];
    assert!(head.starts_with("GET /engines/7/v1/loads?include=core HTTP/1.1\r\n"), "{head}");
    assert!(!head.to_ascii_lowercase().contains("authorization"), "{head}");
}

/// Over any time there are at most as many polls as ticks, and the one at the start, however slow
/// answers are.
#[tokio::test]
async fn ticks_that_a_slow_poll_missed_are_left_out() {
    let interval = Duration::from_millis(20);
    let bench = Bench::with(1, Options { interval, ..options() }).await;
    bench.server.until_asked(1).await;
    // Twenty ticks go by.
    tokio::time::sleep(interval * 20).await;
    let since = Instant::now();
    bench.server.always(loads(&[1]));
    bench.server.until_asked(10).await;
    let ticks = since.elapsed().as_nanos() / interval.as_nanos() + 1;
    assert!(bench.server.asked() as u128 - 1 <= ticks, "{} polls", bench.server.asked());
}

/// Engines that were added together share their first instant and no other.
#[tokio::test]
async fn engines_have_clocks_that_are_apart() {
    let pool = Pool::new(PoolConfig::default()).unwrap();
    let interval = Duration::from_millis(200);
    let monitor = Monitor::new(&pool, Options { interval, ..options() }).unwrap();
    let mut servers = Vec::new();
    for _ in 0..8 {
        servers.push(Server::new().await);
    }
    for server in &servers {
        server.always(loads(&[1]));
        add(&pool, &monitor, server, 1);
    }
    for server in &servers {
        server.until_asked(4).await;
    }
    // That eight random clocks are all within a tenth of the interval happens once in a million times.
    let spread = |poll: usize| {
        let times: Vec<_> = servers.iter().map(|server| server.times()[poll]).collect();
        *times.iter().max().unwrap() - *times.iter().min().unwrap()
    };
    assert!((1..4).any(|poll| spread(poll) > interval / 10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remove_while_a_poll_hangs() {
    let bench = Bench::with(2, Options { refusals: 1, ..options() }).await;
    bench.server.reply(loads(&[1, 2])).await;
    // The next poll hangs; its workers live on.
    assert!(bench.monitor.remove(&bench.server.name()).await);
    assert_eq!(bench.tokens(), [None, None], "nobody asks for them any more");
    assert!(bench.monitor.engines().is_empty());
    bench.server.once(loads(&[3, 4]));
    eventually("no connection is left", || bench.server.open() == 0).await;
    bench.server.kill();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(bench.tokens(), [None, None]);
    assert_eq!(vetoes(&bench), [Vetoes::NONE; 2]);
    assert!(!bench.monitor.remove(&bench.server.name()).await, "it is not there any more");
}

/// Whatever a poll is just doing: after the removal nothing of it happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_poll_outlives_its_engine() {
    let pool = Pool::new(PoolConfig::default()).unwrap();
    let options = Options { interval: Duration::from_micros(1), refusals: 1, ..options() };
    let monitor = Monitor::new(&pool, options).unwrap();
    let server = Server::new().await;
    server.always(loads(&[1, 2]));
    let workers = add(&pool, &monitor, &server, 2);
    for round in 0..200 {
        server.until_asked(server.asked() + round % 3).await;
        assert!(monitor.remove(&server.name()).await);
        let removed = pool.totals().unwrap().version;
        assert_eq!(tokens(&pool, &workers), [None, None]);
        tokio::task::yield_now().await;
        assert_eq!(pool.totals().unwrap().version, removed, "in round {round}");
        monitor.add(engine(&server, &workers)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_while_polls_hang() {
    let bench = Bench::new(1).await;
    let (other, others) = bench.another().await;
    let (busy, _) = bench.another().await;
    busy.always(loads(&[1]));
    bench.server.reply(loads(&[5])).await;
    other.until_asked(1).await;
    let Bench { pool, monitor, server, workers } = bench;
    monitor.stop().await;
    let version = pool.totals().unwrap().version;
    for server in [&server, &other, &busy] {
        server.always(loads(&[9]));
        eventually("no connection is left", || server.open() == 0).await;
    }
    assert_eq!(pool.totals().unwrap().version, version);
    assert_eq!((tokens(&pool, &workers), tokens(&pool, &others)), (vec![None], vec![None]));
}

#[tokio::test]
async fn a_dropped_monitor_stops() {
    let bench = Bench::new(1).await;
    bench.server.always(loads(&[5]));
    bench.server.until_asked(3).await;
    drop(bench.monitor);
    eventually("no connection is left", || bench.server.open() == 0).await;
}

#[tokio::test]
async fn an_engine_comes_again_with_another_rank_count() {
    let bench = Bench::new(2).await;
    bench.server.reply(loads(&[1, 2])).await;
    let refused = bench.monitor.add(engine(&bench.server, &bench.workers));
    assert_eq!(refused, Err(Error::Exists { name: bench.server.name() }));
    bench.monitor.remove(&bench.server.name()).await;
    let label = worker_label(&bench.server.name(), 2);
    let third = bench.pool.add(evenkeel::key(&label), Default::default()).unwrap();
    let workers = [bench.workers[0], bench.workers[1], third];
    bench.monitor.add(engine(&bench.server, &workers)).unwrap();
    bench.server.until_asked(3).await;
    bench.server.reply(loads(&[4, 5, 6])).await;
    assert_eq!(tokens(&bench.pool, &workers), [Some(4), Some(5), Some(6)]);
}

/// A worker that leaves the pool leaves its engine's other ranks alone.
#[tokio::test]
async fn a_rank_that_left_the_pool_is_left_out() {
    let bench = Bench::with(2, Options { refusals: 1, ..options() }).await;
    bench.server.reply(loads(&[1, 2])).await;
    bench.pool.remove(bench.workers[0]).unwrap();
    bench.server.reply(loads(&[3, 4])).await;
    assert_eq!(tokens(&bench.pool, &bench.workers[1..]), [Some(4)]);
    bench.server.reply(answer("500 Internal Server Error", "", "")).await;
    assert_eq!(bench.stats(bench.workers[1]).vetoes, Vetoes::HEALTH);
}

#[tokio::test]
async fn values_that_are_not_allowed() {
    let pool = Pool::new(PoolConfig::default()).unwrap();
    let refused = |options| Monitor::new(&pool, options).unwrap_err().to_string();
    let zero = Duration::ZERO;
    assert_eq!(
        refused(Options { interval: zero, ..options() }),
        "interval is 0; allowed: durations above 0"
    );
    assert_eq!(
        refused(Options { timeout: zero, ..options() }),
        "timeout is 0; allowed: durations above 0"
    );
    assert_eq!(
        refused(Options { refusals: 0, ..options() }),
        "refusals is 0; allowed: 1 to 4294967295"
    );

    let monitor = Monitor::new(&pool, options()).unwrap();
    let worker = pool.add(1, Default::default()).unwrap();
    let add = |url: &str, workers: &[_]| {
        let workers = workers.to_vec();
        monitor.add(Engine { url: url.parse().unwrap(), workers, bearer: None })
    };
    for url in
        ["ftp://a:1", "/v1", "a:1", "http://a:1/?x=y", "http://a:0", "http://a:99999", "http://a:"]
    {
        let error = add(url, &[worker]).unwrap_err().to_string();
        assert!(
            error.contains(url.trim_start_matches('/')) && error.contains("allowed: http"),
            "{error}"
        );
    }
    let error = add("http://me:s3cret@a:1", &[worker]).unwrap_err().to_string();
    assert!(error.contains("user information") && !error.contains("s3cret"), "{error}");
    let error = add("http://a:1", &[]).unwrap_err().to_string();
    assert_eq!(error, "the list of workers is empty; allowed: at least one, each once");
    let error = add("http://a:1", &[worker, worker]).unwrap_err().to_string();
    assert!(error.contains("twice"), "{error}");
    assert!(monitor.engines().is_empty());
}

#[test]
fn a_monitor_needs_a_runtime() {
    let pool = Pool::new(PoolConfig::default()).unwrap();
    assert_eq!(Monitor::new(&pool, Options::default()).unwrap_err(), Error::NoRuntime);
}

#[test]
fn names() {
    for (url, name) in [
        ("http://10.0.0.1:30000", "10.0.0.1:30000"),
        ("http://Engine-1.Example/base", "engine-1.example:80"),
        ("https://engine/", "engine:443"),
        ("https://[2001:DB8::1]:8443", "[2001:db8::1]:8443"),
        ("http://[::1]", "[::1]:80"),
    ] {
        assert_eq!(host_port(&url.parse().unwrap()).as_deref(), Ok(name));
    }
    assert_eq!(worker_label("[::1]:80", 7), "[::1]:80@7");
}

#[tokio::test]
async fn metrics_by_name() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let bench = Bench::new(2).await;
    bench.server.until_asked(1).await;
    let entries = [r#""dp_rank":0,"num_total_tokens":-1"#, r#""dp_rank":1,"num_total_tokens":10"#];
    bench.server.reply(report(&entries.map(entry))).await;
    for _ in 0..3 {
        bench.server.reply(answer("500 Internal Server Error", "", "")).await;
    }
    let ours: BTreeMap<_, _> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .filter_map(|(key, _, _, value)| {
            let key = key.key();
            let label = |name: &str| {
                key.labels().find(|label| label.key() == name).map(|label| label.value().to_owned())
            };
            let name = match label("outcome") {
                Some(outcome) => format!("{} {outcome}", key.name()),
                None => key.name().to_owned(),
            };
            (label("engine")? == bench.server.name()).then_some((name, value))
        })
        .collect();
    let value = |name: &str| &ours[&format!("evenkeel_monitor_{name}")];
    assert_eq!(value("polls_total ok"), &DebugValue::Counter(1));
    assert_eq!(value("polls_total status"), &DebugValue::Counter(3));
    assert_eq!(value("rejected_entries_total"), &DebugValue::Counter(1));
    assert_eq!(value("vetoed"), &DebugValue::Gauge(1.0.into()));
    assert!(matches!(value("last_success_timestamp_seconds"), DebugValue::Gauge(at) if at.0 > 1e9));
    assert!(matches!(value("poll_seconds"), DebugValue::Histogram(all) if all.len() == 4));
    assert_eq!(ours.len(), 6, "{ours:?}");
}
